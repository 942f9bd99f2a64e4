// Scalar: a number argument of an operation, a double or an int64. It takes no part in type promotion, and
// converting it to a type that cannot hold it throws.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include <weft/kernels/dtype.h>

namespace weft {

/// A number argument of an operation: a double or an int64.
struct Scalar {
  double d = 0;          ///< the value; for a large int64 the nearest double
  int64_t i = 0;         ///< the value if integral
  bool integral = true;  ///< made from an integer; beyond int64's range it becomes the nearest double

  constexpr Scalar() = default;
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr Scalar(T value) : d(static_cast<double>(value)), i(0), integral(std::is_integral_v<T>) {
    if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) integral = value >> 63 == 0;
    if constexpr (std::is_integral_v<T>) i = integral ? static_cast<int64_t>(value) : 0;
  }

  /// Whether a T can hold the value. A bool holds every number, an integer type whole numbers of its range. A
  /// floating type holds all numbers except finite numbers beyond its largest.
  template <class T> constexpr bool fits() const {
    if constexpr (std::is_same_v<T, bool>) {
      return true;
    } else if constexpr (std::is_integral_v<T>) {
      constexpr double end = 2.0 * static_cast<double>(uint64_t{1} << (std::numeric_limits<T>::digits - 1));
      constexpr double begin = std::is_signed_v<T> ? -end : 0;
      if (!integral) return d >= begin && d < end && static_cast<double>(static_cast<T>(d)) == d;
      if constexpr (sizeof(T) == 8) return std::is_signed_v<T> || i >= 0;
      else return i >= int64_t{std::numeric_limits<T>::min()} && i <= int64_t{std::numeric_limits<T>::max()};
    } else {
      return d - d != 0 || (d >= -largest<T>() && d <= largest<T>());  // NaN and infinities too
    }
  }
  WEFT_API bool fits(DType t) const;

  /// The value as a T; the error text begins with `name`. Throws: DTypeError if it does not fit.
  template <class T> constexpr T to(const char* name = "Scalar") const {
    if (!fits<T>()) refuse(name, dtype_name<T>());
    if constexpr (std::is_same_v<T, bool>) return d != 0;
    else if constexpr (std::is_arithmetic_v<T>) return integral ? static_cast<T>(i) : static_cast<T>(d);
    else return T(static_cast<float>(d));
  }

  /// Throws: DTypeError `<name>: the number <value> does not fit <type>`.
  [[noreturn]] WEFT_API void refuse(const char* name, const char* type) const;

 private:
  template <class T> static constexpr double largest() {
    if constexpr (std::is_same_v<T, Half>) return 65504;
    else if constexpr (std::is_same_v<T, BFloat16>) return 0x1.fep127;
    else return static_cast<double>(std::numeric_limits<T>::max());
  }
  template <class T> static constexpr const char* dtype_name() {
    if constexpr (std::is_same_v<T, int8_t>) return "int8";
    else if constexpr (std::is_same_v<T, int16_t>) return "int16";
    else if constexpr (std::is_same_v<T, uint16_t>) return "uint16";
    else if constexpr (std::is_integral_v<T> && sizeof(T) == 4 && std::is_unsigned_v<T>) return "uint32";
    else if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) return "uint64";
    else if constexpr (std::is_integral_v<T> && sizeof(T) == 8) return "int64";
    else return to_string(dtype_of<T>);
  }
};

/// Text as in error messages: integers with all digits.
WEFT_API std::string to_string(const Scalar& s);

}  // namespace weft
