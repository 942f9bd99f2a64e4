// A number whose type does not count in promotion: a double or an int64.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace weft {

struct Scalar {
  double d = 0;
  int64_t i = 0;
  bool integral = true;

  constexpr Scalar() = default;
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr Scalar(T value) : d(static_cast<double>(value)), i(0), integral(std::is_integral_v<T>) {
    if constexpr (std::is_integral_v<T>) i = static_cast<int64_t>(value);
  }
  template <class T> constexpr T to() const {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      return integral ? static_cast<T>(i) : static_cast<T>(d);
    else if constexpr (std::is_same_v<T, bool>) return d != 0;
    else if constexpr (std::is_floating_point_v<T>) return integral ? static_cast<T>(i) : static_cast<T>(d);
    else return T(static_cast<float>(d));
  }
};

}  // namespace weft
