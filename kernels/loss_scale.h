// The scale of a loss as kernels find it (optim/grad_scaler.h): a float64 tensor of four numbers, one arithmetic for the host and for devices.
#pragma once

#include <cstdint>
#include <limits>

#include <weft/kernels/math.h>

namespace weft {

struct LossScale {
  double scale, inverse;
  double nonfinite;   ///< not 0: some gradient of this iteration is infinite or NaN
  double good_steps;  ///< iterations in a row without one

  WEFT_HD void set(double to) {
    scale = to;
    inverse = 1 / to;
  }
  /// The end of an iteration. A scale beyond float32 stays.
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
