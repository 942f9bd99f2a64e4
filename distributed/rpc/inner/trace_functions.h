// The registered functions of the trace: "weft::trace" and "weft::open_calls".
#pragma once

#include <string>
#include <vector>

#include <weft/distributed/rpc/function.h>
#include <weft/distributed/wire/codec_std.h>
#include <weft/distributed/wire/fields.h>
#include <weft/distributed/wire/worker_info.h>

namespace weft::rpc::builtin {

/// A Span on its way to the worker that writes the file; times in nanoseconds of the sender's clock.
struct SpanRecord {
  uint8_t of = 0;  ///< SpanOf
  bool ok = true;
  std::string name{};
  int32_t peer = 0;
  uint64_t incarnation = 0, sequence = 0;
  int64_t bytes = 0, start = 0, begun = 0, end = 0;
};
WEFT_FIELDS(SpanRecord, of, ok, name, peer, incarnation, sequence, bytes, start, begun, end)

struct WorkerTrace {
  std::vector<SpanRecord> spans{};
  int64_t dropped = 0, now = 0;
  uint64_t incarnation = 0;
};
WEFT_FIELDS(WorkerTrace, spans, dropped, now, incarnation)

/// kTraceJoin: a start that leaves a recording as it is.
enum TraceAction : int64_t { kTraceClock, kTraceStart, kTraceStop, kTraceRead, kTraceJoin };
inline constexpr int64_t kMostSpans = 10'000'000;

/// Does one action on this worker; `spans` for the start. Returns its clock, and the spans when they are
/// read.
WorkerTrace trace(int64_t action, int64_t spans);
std::string open_calls();

}  // namespace weft::rpc::builtin

namespace weft::rpc::inner {

/// Starts the tracer of a worker that has joined, if the current worker has started a trace. Does not block.
void trace_joined(const WorkerInfo& member);

}  // namespace weft::rpc::inner
