// The total norm of many tensors from the sum of each, and the factor that clips it. Host and kernels share
// the arithmetic.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <weft/kernels/math.h>

namespace weft {

/// The p-norm of parts that are added one after another. A part is given by its sum of |x|^p, or for p =
/// infinity by its largest |x|; NaN counts as the largest.
class NormSum {
 public:
  WEFT_HD explicit NormSum(double p) : p_(p) {}
  WEFT_HD void add(double power) {
    if (p_ != std::numeric_limits<double>::infinity()) total_ += power;
    else if (power > total_ || power != power) total_ = power;
  }
  WEFT_HD double norm() const {
    if (p_ == std::numeric_limits<double>::infinity()) return total_;
    return p_ == 2 ? std::sqrt(total_) : std::pow(total_, 1 / p_);
  }

 private:
  double p_, total_ = 0;
};

/// The factor that brings a norm of `total` down to `max_norm`: at most 1, and 1 for a total that is NaN.
WEFT_HD inline double clip_factor(double total, double max_norm) {
  const double factor = max_norm / (total + 1e-6);
  return factor < 1 ? factor : 1;
}

}  // namespace weft
