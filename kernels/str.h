// str(): concatenates values into a string, mostly for error messages.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include <weft/kernels/macros.h>

namespace weft {

namespace detail {
WEFT_API void append_number(std::string& out, double value);

template <class T> void append(std::string& out, const T& part) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) out += std::string_view(part);
  else if constexpr (std::is_same_v<T, char>) out += part;
  else if constexpr (std::is_same_v<T, bool>) out += part ? "true" : "false";
  else if constexpr (std::is_integral_v<T>) out += std::to_string(part);
  else if constexpr (std::is_floating_point_v<T>) append_number(out, static_cast<double>(part));
  else out += to_string(part);  // found beside the type
}
}  // namespace detail

/// Concatenates the parts: `throw ShapeError(str("view: ", n, " elements"))`. A user-defined type needs a
/// `to_string` in its namespace.
template <class... Parts> std::string str(const Parts&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

}  // namespace weft
