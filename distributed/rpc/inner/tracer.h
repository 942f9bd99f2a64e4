// The spans that one agent records: its ended calls, the requests that it has served, and spans of its
// program. The newest are kept. A call has the same life of its caller and number on both ends. Thread
// safety: all members, any thread.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include <weft/distributed/rpc/trace.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/wire/message.h>

namespace weft::rpc {

enum class SpanOf : uint8_t { kCall, kServed, kProgram };

/// One span. `what` null: the name of the kind.
struct Span {
  SpanOf of = SpanOf::kCall;
  bool ok = true;  ///< it did not end with an error
  Kind kind{};
  const char* what = nullptr;
  Life peer{};            ///< callee of a call, caller of a request
  uint64_t sequence = 0;  ///< number of the call at its caller; 0: unknown
  int64_t bytes = 0;      ///< of the tensors sent: arguments of a call, results of a request
  TimePoint start{};      ///< the call began; the request arrived
  TimePoint begun{};      ///< the handler began; requests only
  TimePoint end{};
};

class Tracer {
 public:
  bool on() const { return on_.load(std::memory_order_relaxed); }
  /// Forgets all spans and latencies, and keeps at most `capacity` spans from now on.
  void start(size_t capacity);
  void stop() { for_joiners_ = 0, on_ = false; }
  /// This worker starts the tracers of workers that join later, with so many spans; 0: it does not.
  void start_joiners(int64_t spans) { for_joiners_ = spans; }
  int64_t for_joiners() const { return for_joiners_; }
  void add(Span span);
  /// The kept spans, the oldest first.
  std::vector<Span> spans() const;
  int64_t dropped() const;  ///< spans that newer ones have replaced
  std::map<std::string, Latencies> latencies() const;

 private:
  std::atomic<bool> on_{false};
  std::atomic<int64_t> for_joiners_{0};
  mutable Mutex mutex_;
  size_t capacity_ WEFT_GUARDED_BY(mutex_) = 0;
  size_t count_ WEFT_GUARDED_BY(mutex_) = 0;  ///< of all spans since the start
  std::vector<Span> ring_ WEFT_GUARDED_BY(mutex_);
  std::map<std::string, Latencies> latencies_ WEFT_GUARDED_BY(mutex_);
};

/// The name of a span's function or kind.
std::string name_of(const Span& span);
/// The bytes of a message's tensors.
int64_t tensor_bytes(const Message& message);

}  // namespace weft::rpc
