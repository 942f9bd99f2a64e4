// Numbers of any dtype in a kernel, read and written in the compute type (kernels/inner/convert.h has the
// conversion of one number).
#pragma once

#include <cstdint>
#include <type_traits>

#include <weft/kernels/cuda/simt.h>
#include <weft/kernels/dtype.h>
#include <weft/kernels/inner/convert.h>

#if defined(__CUDACC__)
#define WEFT_UNROLL4 _Pragma("unroll 4")
#else
#define WEFT_UNROLL4
#endif

namespace weft::cuda {

using kernels::convert;

/// The compute type of floating numbers T.
template <class T> using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls f(TypeTag<T>) for the floating type `t`, or, for a whole V, for the type of integers (bool reads as
/// uint8).
template <class V, class F> WEFT_DEVICE inline void with_type(DType t, const F& f) {
  if constexpr (std::is_floating_point_v<V>) {
    if (t == DType::kFloat32) f(TypeTag<float>{});
    else if (t == DType::kFloat64) f(TypeTag<double>{});
    else if (t == DType::kFloat16) f(TypeTag<Half>{});
    else f(TypeTag<BFloat16>{});
  } else {
    if (t == DType::kInt64) f(TypeTag<int64_t>{});
    else if (t == DType::kInt32) f(TypeTag<int32_t>{});
    else f(TypeTag<uint8_t>{});
  }
}

/// Reads element `at` of an array of dtype `t`, floating if V is floating.
template <class V> WEFT_DEVICE inline V get_number(const void* data, DType t, int64_t at) {
  V value{};
  with_type<V>(
      t, [&](auto tag) { value = convert<V>(static_cast<const typename decltype(tag)::type*>(data)[at]); });
  return value;
}
/// The same written to an array of any dtype: floating numbers saturate in integers, as on the CPU.
template <class V> WEFT_DEVICE inline void set_number(void* data, DType t, int64_t at, V value) {
  switch (t) {
    case DType::kBool: static_cast<bool*>(data)[at] = convert<bool>(value); return;
    case DType::kUInt8: static_cast<uint8_t*>(data)[at] = convert<uint8_t>(value); return;
    case DType::kInt32: static_cast<int32_t*>(data)[at] = convert<int32_t>(value); return;
    case DType::kInt64: static_cast<int64_t*>(data)[at] = convert<int64_t>(value); return;
    case DType::kFloat16: static_cast<Half*>(data)[at] = convert<Half>(value); return;
    case DType::kBFloat16: static_cast<BFloat16*>(data)[at] = convert<BFloat16>(value); return;
    case DType::kFloat32: static_cast<float*>(data)[at] = convert<float>(value); return;
    case DType::kFloat64: static_cast<double*>(data)[at] = convert<double>(value); return;
  }
}

/// Numbers of T in 16 bytes, the widest access of a thread.
template <class T> inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

/// N numbers in registers.
template <class C, int N> struct Numbers { C v[N]; };

}  // namespace weft::cuda
