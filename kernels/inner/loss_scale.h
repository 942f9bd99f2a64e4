// The state of a GradScaler (optim/grad_scaler.h) for kernels: a float64 tensor of four numbers. Host and
// devices share the arithmetic.
#pragma once

#include <cstdint>
#include <limits>

#include <weft/kernels/math.h>

namespace weft {

struct LossScale {
  double scale, inverse;
  double nonfinite;   ///< not 0: a gradient of this iteration is infinite or NaN
  double good_steps;  ///< consecutive iterations without one

  WEFT_HD void set(double to) {
    scale = to;
    inverse = 1 / to;
  }
  /// Called at the end of an iteration. The scale does not grow beyond float32's range.
  WEFT_HD void update(double growth, double backoff, int64_t interval) {
    if (nonfinite != 0) {
      set(scale * backoff);
      good_steps = 0;
    } else if (++good_steps >= static_cast<double>(interval)) {
      if (scale * growth <= static_cast<double>(std::numeric_limits<float>::max())) set(scale * growth);
      good_steps = 0;
    }
    nonfinite = 0;
  }
};

}  // namespace weft
