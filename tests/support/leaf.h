// Small float64 tensors and special numbers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include <weft/tensor/factories.h>

namespace weft::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity(),
                        kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

/// A leaf of these values that requires a gradient.
inline Tensor leaf(std::initializer_list<double> values) {
  return tensor(values, {.dtype = kFloat64, .requires_grad = true});
}
/// The same without a gradient.
inline Tensor row(std::initializer_list<double> values) { return tensor(values, {.dtype = kFloat64}); }
inline std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace weft::test
