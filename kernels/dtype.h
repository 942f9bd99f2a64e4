// Element types: the enumeration, the two 16-bit floating types (storage with conversion; arithmetic runs in
// float), sizes, names and the promotion rule. dispatch(dtype, f) maps a run-time DType to a C++ type.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <string>

#include <weft/kernels/error.h>

namespace weft {

/// The type of a tensor's elements.
enum class DType : uint8_t { kBool, kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64 };
inline constexpr int kDTypeCount = 8;

inline constexpr DType kBool = DType::kBool, kUInt8 = DType::kUInt8, kInt32 = DType::kInt32,
                       kInt64 = DType::kInt64, kFloat16 = DType::kFloat16, kBFloat16 = DType::kBFloat16,
                       kFloat32 = DType::kFloat32, kFloat64 = DType::kFloat64;

/// IEEE binary16 as storage; converts to and from float, rounding to nearest even.
struct Half {
  uint16_t bits = 0;
  Half() = default;
  constexpr Half(float f) : bits(from_float(f)) {}
  constexpr operator float() const { return to_float(bits); }

  static constexpr float to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7FFFu;
    if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
    if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
    const float small = static_cast<float>(magnitude) * 0x1p-24f;  // subnormal: an exact multiple of 2^-24
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(small));
  }
  static constexpr uint16_t from_float(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
    const uint32_t magnitude = u & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return sign | 0x7E00u;
    if (magnitude >= 0x47800000u) return sign | 0x7C00u;  // 65536 and above
    if (magnitude < 0x38800000u) {                        // subnormal: adding 0.5 rounds at 2^-24
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3F000000u);
    }
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
  }
};

/// bfloat16 as storage; converts to and from float, rounding to nearest even.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  constexpr BFloat16(float f) : bits(from_float(f)) {}
  constexpr operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

  static constexpr uint16_t from_float(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
    return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
  }
};

constexpr int64_t size_of(DType t) {
  // four bits per type, the first one last; a table here would be built on the stack by every call
  return 0x84228411u >> (4 * static_cast<unsigned>(t)) & 15u;
}
constexpr const char* to_string(DType t) {
  constexpr const char* names[kDTypeCount] = {"bool",    "uint8",    "int32",   "int64",
                                              "float16", "bfloat16", "float32", "float64"};
  return names[static_cast<int>(t)];
}
WEFT_API std::ostream& operator<<(std::ostream& out, DType t);
constexpr bool is_floating(DType t) { return t >= DType::kFloat16; }
constexpr bool is_half(DType t) { return t == DType::kFloat16 || t == DType::kBFloat16; }
/// The dtype in which sums of `t` accumulate: float32 for the half types, int64 for integers and bool.
constexpr DType accumulate_type(DType t) { return is_half(t) ? kFloat32 : is_floating(t) ? t : kInt64; }

/// The common type of two tensors: the wider type; floating beats integer; float16 with bfloat16 gives
/// float32.
constexpr DType promote(DType a, DType b) {
  if (is_half(a) && is_half(b) && a != b) return kFloat32;
  return a > b ? a : b;
}

/// The C++ types of elements. int64_t is `long` on Linux, so `long long` is not among them.
template <class T>
concept Element = std::same_as<T, bool> || std::same_as<T, uint8_t> || std::same_as<T, int32_t> ||
    std::same_as<T, int64_t> || std::same_as<T, Half> || std::same_as<T, BFloat16> ||
    std::same_as<T, float> || std::same_as<T, double>;

template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(
      Element<T>,
      "weft: tensors hold bool, uint8_t, int32_t, int64_t, Half, BFloat16, float or double, not this type");
  return DType::kFloat32;
}();
template <> inline constexpr DType dtype_of<float> = DType::kFloat32;
template <> inline constexpr DType dtype_of<bool> = DType::kBool;
template <> inline constexpr DType dtype_of<uint8_t> = DType::kUInt8;
template <> inline constexpr DType dtype_of<int32_t> = DType::kInt32;
template <> inline constexpr DType dtype_of<int64_t> = DType::kInt64;
template <> inline constexpr DType dtype_of<Half> = DType::kFloat16;
template <> inline constexpr DType dtype_of<BFloat16> = DType::kBFloat16;
template <> inline constexpr DType dtype_of<double> = DType::kFloat64;

template <class T> struct TypeTag { using type = T; };

/// Calls f(TypeTag<T>{}) for the C++ type of `t`.
template <class F> decltype(auto) dispatch(DType t, F&& f) {
  switch (t) {
    case DType::kBool: return f(TypeTag<bool>{});
    case DType::kUInt8: return f(TypeTag<uint8_t>{});
    case DType::kInt32: return f(TypeTag<int32_t>{});
    case DType::kInt64: return f(TypeTag<int64_t>{});
    case DType::kFloat16: return f(TypeTag<Half>{});
    case DType::kBFloat16: return f(TypeTag<BFloat16>{});
    case DType::kFloat32: return f(TypeTag<float>{});
    case DType::kFloat64: return f(TypeTag<double>{});
  }
  throw DTypeError("unknown dtype");
}

/// The same for float32 and float64 only; `what` names the operation in the error.
template <class F> decltype(auto) dispatch_float(const char* what, DType t, F&& f) {
  if (t == DType::kFloat32) return f(TypeTag<float>{});
  if (t == DType::kFloat64) return f(TypeTag<double>{});
  throw DTypeError(str(what, ": takes float32 or float64, got ", t));
}

}  // namespace weft
