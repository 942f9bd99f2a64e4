// The limits of the bytes that open calls of a worker hold (docs/rpc.md, "Memory").
#pragma once

#include <cstdint>

namespace weft::rpc {

/// Bytes of requests and of kept replies. A message above a limit goes alone.
struct BudgetLimits {
  /// Requests from one worker to another that are open at once, unless a served function makes them; further
  /// ones wait at the caller. Of the limits of caller and callee the smaller one counts. Also the replies
  /// that a callee keeps for one caller.
  int64_t per_peer = int64_t{1} << 30;
  /// All of them together: at the caller those to all callees, at the callee those of all callers. Calls that
  /// would exceed half of it wait, unless a served function makes them. Those fail beyond all of it.
  int64_t in_all = int64_t{8} << 30;
};

}  // namespace weft::rpc
