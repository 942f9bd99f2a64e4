// Conversion of a number between any two dtypes, the same on every device. The half dtypes are converted
// through float. Floating to integer truncates and saturates, and NaN gives 0; C++ leaves values out of range
// undefined.
#pragma once

#include <limits>
#include <type_traits>

#include <weft/kernels/dtype.h>
#include <weft/kernels/half.h>
#include <weft/kernels/math.h>
#include <weft/kernels/scalar.h>

namespace weft::kernels {

template <class T> inline constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <class To, class F> WEFT_HD inline To to_integer(F x) {
  constexpr F low = static_cast<F>(std::numeric_limits<To>::min());
  // may round up to 2^31 or 2^63, hence >=
  constexpr F high = static_cast<F>(std::numeric_limits<To>::max());
  F c = x < low ? low : x;
  c = x != x ? F(0) : c;
  return c >= high ? std::numeric_limits<To>::max() : static_cast<To>(c);
}

template <class To, class From> WEFT_HD inline To convert(From x) {
  if constexpr (std::is_same_v<From, To>) return x;
  else if constexpr (kIsHalf<From>) return convert<To>(widen(x));
  else if constexpr (std::is_same_v<To, bool>) return x != From(0);
  else if constexpr (kIsHalf<To>) return narrow<To>(static_cast<float>(x));
  else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) return to_integer<To>(x);
  else return static_cast<To>(x);
}

/// A Scalar as a kernel's parameter. Launches have checked that it fits; for other callers it is clamped to
/// T's range.
template <class T> inline T parameter(const Scalar& s) {
  return s.integral && std::is_integral_v<T> ? convert<T>(s.i) : convert<T>(s.d);
}

}  // namespace weft::kernels
