// A seam of the tests: a function that is called at every point of a step in two phases on an owner.
#pragma once

#include <atomic>

#include <weft/kernels/macros.h>

namespace weft::dist_optim::detail {

/// For tests: called with "prepare", "prepared", "commit", "committed", "abort" and "aborted". It may end a
/// worker.
WEFT_API extern std::atomic<void (*)(const char* point)> at_step_point;
inline void step_seam(const char* point) {
  if (const auto f = at_step_point.load()) f(point);
}

}  // namespace weft::dist_optim::detail
