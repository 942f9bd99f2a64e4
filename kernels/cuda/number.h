// Numbers of any dtype in a kernel: conversion to the type that arithmetic is done in and back, by the hardware's instruction where it has one.
#pragma once

#include <cstdint>
#include <type_traits>

#include <weft/kernels/cuda/simt.h>
#include <weft/kernels/dtype.h>

#if defined(__CUDACC__)
#define WEFT_UNROLL4 _Pragma("unroll 4")
#else
#define WEFT_UNROLL4
#endif

namespace weft::cuda {

/// The type that floating numbers T are computed in.
template <class T> using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

namespace inner {
WEFT_DEVICE inline float widen(Half x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return x;
#endif
}
WEFT_DEVICE inline float widen(BFloat16 x) { return x; }
template <class T> WEFT_DEVICE inline T narrow(float x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Half>) {
    T y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, BFloat16>) {
    T y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
#endif
#endif
  return T(x);
}
template <class T> inline constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
}  // namespace inner

/// x as a C.
template <class C, class T> WEFT_DEVICE inline C number(T x) {
  if constexpr (inner::kIsHalf<T>) return static_cast<C>(inner::widen(x));
  else return static_cast<C>(x);
}
/// x rounded to T.
template <class T, class C> WEFT_DEVICE inline T rounded(C x) {
  if constexpr (inner::kIsHalf<T>) return inner::narrow<T>(static_cast<float>(x));
  else if constexpr (std::is_same_v<T, bool>) return x != C(0);
  else return static_cast<T>(x);
}

/// Calls f(TypeTag<T>) for the floating type `t`, or, for a whole V, for the type of integers (bool reads as uint8).
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

/// Element `at` of an array of dtype `t`, of the class of V.
template <class V> WEFT_DEVICE inline V get_number(const void* data, DType t, int64_t at) {
  V value{};
  with_type<V>(t, [&](auto tag) { value = number<V>(static_cast<const typename decltype(tag)::type*>(data)[at]); });
  return value;
}
/// The same written, rounded to any dtype.
template <class V> WEFT_DEVICE inline void set_number(void* data, DType t, int64_t at, V value) {
  switch (t) {
    case DType::kBool: static_cast<bool*>(data)[at] = rounded<bool>(value); return;
    case DType::kUInt8: static_cast<uint8_t*>(data)[at] = rounded<uint8_t>(value); return;
    case DType::kInt32: static_cast<int32_t*>(data)[at] = rounded<int32_t>(value); return;
    case DType::kInt64: static_cast<int64_t*>(data)[at] = rounded<int64_t>(value); return;
    case DType::kFloat16: static_cast<Half*>(data)[at] = rounded<Half>(value); return;
    case DType::kBFloat16: static_cast<BFloat16*>(data)[at] = rounded<BFloat16>(value); return;
    case DType::kFloat32: static_cast<float*>(data)[at] = rounded<float>(value); return;
    case DType::kFloat64: static_cast<double*>(data)[at] = rounded<double>(value); return;
  }
}

/// Numbers of T in 16 bytes, the widest access of a thread.
template <class T> inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

/// N numbers in registers.
template <class C, int N> struct Numbers {
  C v[N];
};

}  // namespace weft::cuda
