// The limits of the bytes that open calls of a worker hold (docs/rpc.md, "Memory").
#pragma once

#include <cstdint>

namespace weft::rpc {

/// Bytes of requests, results and arriving messages. A message above a limit goes alone, one of each sort.
struct BudgetLimits {
  /// Requests from one worker to another that are open at once, unless a served function makes them; further
  /// ones wait at the caller. Of the limits of caller and callee the smaller one counts. Also the replies
  /// that a callee keeps for one caller.
  int64_t per_peer = int64_t{1} << 30;
  /// All of them together: at the caller those to all callees, at the callee those of all callers. Calls that
  /// would exceed half of it wait, unless a served function makes them. Those fail beyond all of it.
  int64_t in_all = int64_t{8} << 30;
  /// Room beyond `in_all` for results that stand at their callee, and for replies, gradients and control that
  /// arrive. Requests never take it. A result beyond it becomes ResultDropped. An arriving message beyond it
  /// waits at its sender. 0: none; negative: ValueError.
  int64_t reserve = int64_t{4} << 30;
};

}  // namespace weft::rpc
