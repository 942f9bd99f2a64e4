// The limits of the bytes that open calls of a worker hold (docs/rpc.md, "Memory").
#pragma once

#include <cstdint>

namespace weft::rpc {

/// Bytes of requests, results and arriving messages. A message above a limit is sent when no other of its
/// sort is open.
struct BudgetLimits {
  /// Open requests from one worker to another, unless a served function makes them; further requests wait at
  /// the caller. The smaller limit of caller and callee counts. The same limit applies to the replies that a
  /// callee keeps for one caller.
  int64_t per_peer = int64_t{1} << 30;
  /// All open requests: at the caller to all callees, at the callee from all callers. Calls that would exceed
  /// half of this limit wait. Calls that a served function makes do not wait; they fail beyond the whole
  /// limit.
  int64_t in_all = int64_t{8} << 30;
  /// Room beyond `in_all` for results kept at their callee, and for arriving replies, gradients and control
  /// messages. Requests never use it. A result beyond it becomes ResultDropped. An arriving message beyond it
  /// waits at its sender. 0: none; negative: ValueError.
  int64_t reserve = int64_t{4} << 30;
};

}  // namespace weft::rpc
