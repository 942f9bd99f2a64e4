// The trace of a group: every call, its wait for a thread and its handler, on all workers, in one file.
//
//   rpc::start_trace();                        // on all workers, also on later ones
//   ... a few training steps ...
//   rpc::write_trace("steps.json");            // open it in ui.perfetto.dev or chrome://tracing
//   for (auto& [name, l] : rpc::call_latencies()) print(name, l.quantile(0.99));
//   puts(rpc::wait_graph().c_str());           // which worker waits for which, on all living workers
//
// A span is a call at its caller, a served request at its callee, or a TraceSpan of the program. Messages of
// references, backward passes and optimizers are calls too. Each has the bytes of its tensors. Backward
// passes and steps of a DistributedOptimizer are TraceSpans of the library, "backward" and "step". Arrows
// lead from calls to their handlers. The clocks of the workers are aligned by the fastest of a few calls. So
// arrows are off by at most half of that call's time. The functions call registered functions of all living
// workers ("weft::trace" and "weft::open_calls"), to which access lists apply. Without start_trace nothing is
// recorded. Thread safety: any thread.
#pragma once

#include <array>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/runtime/runtime.h>

namespace weft::rpc {

class Agent;

/// Durations of the ended calls of one function.
struct WEFT_API Latencies {
  /// calls[i]: number of calls of less than 2^i microseconds, and not of less than half of that
  std::array<int64_t, 40> calls{};
  int64_t count = 0;   ///< of all calls
  int64_t errors = 0;  ///< of the calls that ended with an error
  Duration total{}, longest{};

  void add(Duration duration, bool ok);
  /// An upper bound of the given quantile of the durations, such as 0.99, to a factor of 2. Zero without
  /// calls.
  /// Throws: ValueError for a part that is not in 0 to 1.
  Duration quantile(double part) const;
};

/// A span of the program, from its construction to its destruction, on the worker of the current scope. Costs
/// nothing while nothing is recorded. Thread safety: one thread or fiber.
///   const rpc::TraceSpan span("evaluate");
class WEFT_API TraceSpan {
 public:
  /// `name`: a text that lives as long as the program.
  explicit TraceSpan(const char* name) noexcept;
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;

 private:
  const char* name_;
  TimePoint start_{};
  std::shared_ptr<Agent> agent_;  ///< null: nothing is recorded
};

/// Options of start_trace.
struct TraceOptions {
  int64_t spans = 65536;  ///< kept on each worker; the oldest are dropped first
  Duration timeout = std::chrono::seconds(10);
  bool keep = false;  ///< workers that already record continue, and forget nothing
};

/// Forgets the earlier spans and records on all living workers, including this one. Until the trace ends,
/// this worker also makes each later worker record, as soon as it knows that worker. Once this worker is
/// lost, later workers do not record until another worker calls start_trace. Blocks. Throws: ValueError for a
/// number of spans that is not in 1 to 10 million; the errors of rpc_sync.
WEFT_API void start_trace(const TraceOptions& options = {});
/// Ends the recording on all living workers. The spans remain. Blocks and throws as rpc_sync.
WEFT_API void stop_trace(Duration timeout = std::chrono::seconds(10));
/// Collects the spans of all living workers and writes them in Chrome's trace format. Blocks for at most
/// `timeout`; zero: no limit. Throws: IoError for the file; the errors of rpc_sync.
WEFT_API void write_trace(const std::string& path, Duration timeout = std::chrono::seconds(30));
/// The same into a stream, of the workers with these names; none: of all living workers. It delays no worker
/// while it writes. Throws: IoError when the stream fails. ValueError for a name outside the group; PeerLost
/// for a named worker that is lost. The errors of rpc_sync.
WEFT_API void write_trace(std::ostream& out, const std::vector<std::string>& workers = {},
                          Duration timeout = std::chrono::seconds(30));
/// Latencies of this worker's calls since start_trace, by the names of functions and kinds.
WEFT_API std::map<std::string, Latencies> call_latencies();
/// The open calls of all living workers, as Agent::dump with a head per worker. A worker that does not answer
/// within `timeout` is listed with the reason.
WEFT_API std::string wait_graph(Duration timeout = std::chrono::seconds(5));

}  // namespace weft::rpc
