// The kernel of the pointwise operations, y[i] = f(a[i], b[i], ...) (=), for a functor and its compute type.
// With compute type float it reads and writes float32, float16 and bfloat16, so an operation is instantiated
// once per compute type. A thread takes two packs of 16 bytes at a time, of four floats or eight halves, and
// reads both before it computes. Each operand is read or written once.
#pragma once

#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/packs.h>
#include <weft/kernels/inner/convert.h>
#include <weft/kernels/inner/functors.h>
#include <weft/kernels/pointwise.h>

namespace weft::cuda {

/// The operands of a pointwise kernel.
template <int Inputs> struct MapCall {
  Packs<Inputs + 1> loop;
  void* out = nullptr;
  const void* in[Inputs] = {};
  DType out_dtype = kFloat32;
  DType in_dtype[Inputs] = {};
};

/// Number of elements of the compute type that a thread computes at once. They fill two packs of the compute
/// type, or one pack of a narrower one.
template <class C> inline constexpr int kHeld = sizeof(C) == 1 ? 16 : sizeof(C) == 8 ? 4 : 8;

namespace inner {

template <class C> WEFT_DEVICE inline C load_number(const void* base, int64_t at, [[maybe_unused]] DType t) {
  if constexpr (std::is_same_v<C, float>) {
    if (t == DType::kFloat16) return kernels::widen(static_cast<const Half*>(base)[at]);
    if (t == DType::kBFloat16) return kernels::widen(static_cast<const BFloat16*>(base)[at]);
  }
  return static_cast<const C*>(base)[at];
}
template <class R>
WEFT_DEVICE inline void store_number(void* base, int64_t at, [[maybe_unused]] DType t, R v) {
  if constexpr (std::is_same_v<R, float>) {
    if (t == DType::kFloat16) return void(static_cast<Half*>(base)[at] = kernels::narrow<Half>(v));
    if (t == DType::kBFloat16) return void(static_cast<BFloat16*>(base)[at] = kernels::narrow<BFloat16>(v));
  }
  static_cast<R*>(base)[at] = v;
}

template <class T, int E, class C>
WEFT_DEVICE inline void load_as(const void* base, int64_t at, bool splat, C* x) {
  const Pack<T, E> pack = load_pack<T, E>(base, at, splat);
  for (int i = 0; i < E; ++i) x[i] = kernels::convert<C>(pack.at[i]);
}
template <class T, int E> WEFT_DEVICE inline void widen_bits(const Pack<uint16_t, E>& bits, float (&x)[E]) {
  Pack<T, E> pack;
  std::memcpy(static_cast<void*>(&pack), &bits, sizeof pack);
  WEFT_UNROLL
  for (int i = 0; i < E; ++i) x[i] = kernels::convert<float>(pack.at[i]);
}
template <class T, int E, class R> WEFT_DEVICE inline void store_as(void* base, int64_t at, const R* y) {
  Pack<T, E> pack;
  for (int i = 0; i < E; ++i) pack.at[i] = kernels::convert<T>(y[i]);
  store_pack(base, at, pack);
}

}  // namespace inner

/// C: the compute type of F; R: bool for comparisons, else C. With packs, all operands have one dtype, except
/// a bool output.
template <class F, class C, class R, int Inputs> struct Map {
  static constexpr bool kIndependent = true;
  static constexpr int kThreads = 256, kBlocks = 4;
  static constexpr int kWide = kHeld<C>;
  MapCall<Inputs> call;
  F f;

  WEFT_DEVICE R value(const C (&x)[Inputs]) const {
    if constexpr (Inputs == 1) return static_cast<R>(f(x[0]));
    else if constexpr (Inputs == 2) return static_cast<R>(f(x[0], x[1]));
    else return static_cast<R>(f(x[0], x[1], x[2]));
  }

  /// A pack of the whole width as in memory: bytes, or halves.
  using Bits = std::conditional_t<std::is_same_v<C, float>, uint16_t, C>;
  /// Two packs of the whole width; `second` is valid if `both`. All loads are issued before the first
  /// conversion, so the second ones may not depend on `both`. Of three inputs, the loads of one pack suffice,
  /// and those of two would not fit in the registers.
  WEFT_DEVICE void two_wide(int64_t first, int64_t second, bool both) const {
    int64_t a[Inputs + 1], b[Inputs + 1];
    Pack<Bits, kWide> one[Inputs], other[Inputs];
    call.loop.layout.locate(first, a);
    if constexpr (Inputs > 2) {
      load(a, one);
      finish(one, a[0]);
      if (!both) return;
      call.loop.layout.locate(second, b);
      load(b, other);
      finish(other, b[0]);
    } else {
      call.loop.layout.locate(both ? second : first, b);
      load(a, one);
      load(b, other);
      finish(one, a[0]);
      if (both) finish(other, b[0]);
    }
  }
  WEFT_DEVICE void load(const int64_t (&at)[Inputs + 1], Pack<Bits, kWide> (&raw)[Inputs]) const {
    WEFT_UNROLL
    for (int i = 0; i < Inputs; ++i)
      raw[i] = load_pack<Bits, kWide>(call.in[i], at[i + 1], call.loop.splats(i + 1));
  }
  WEFT_DEVICE void finish(const Pack<Bits, kWide> (&raw)[Inputs], int64_t at) const {
    C x[Inputs][kWide];
    WEFT_UNROLL
    for (int i = 0; i < Inputs; ++i) {
      if constexpr (std::is_same_v<C, float>) {
        if (call.in_dtype[i] == DType::kFloat16) inner::widen_bits<Half>(raw[i], x[i]);
        else inner::widen_bits<BFloat16>(raw[i], x[i]);
      } else {
        for (int k = 0; k < kWide; ++k) x[i][k] = raw[i].at[k];
      }
    }
    R y[kWide];
    compute(x, y);
    if constexpr (std::is_same_v<R, float>) {
      if (call.out_dtype == DType::kFloat16) inner::store_as<Half, kWide>(call.out, at, y);
      else inner::store_as<BFloat16, kWide>(call.out, at, y);
    } else {
      inner::store_as<R, kWide>(call.out, at, y);
    }
  }
  /// Two packs of half the width; `second` is valid if `both`. All loads are issued before the first
  /// operation.
  WEFT_DEVICE void two(int64_t first, int64_t second, bool both) const {
    constexpr int kEach = kWide / 2;
    int64_t a[Inputs + 1], b[Inputs + 1];
    call.loop.layout.locate(first, a);
    call.loop.layout.locate(both ? second : first, b);
    C x[Inputs][kWide];
    for (int i = 0; i < Inputs; ++i) {
      const bool splat = call.loop.splats(i + 1);
      inner::load_as<C, kEach>(call.in[i], a[i + 1], splat, x[i]);
      inner::load_as<C, kEach>(call.in[i], b[i + 1], splat, x[i] + kEach);
    }
    R y[kWide];
    compute(x, y);
    inner::store_as<R, kEach>(call.out, a[0], y);
    if (both) inner::store_as<R, kEach>(call.out, b[0], y + kEach);
  }
  WEFT_DEVICE void compute(const C (&x)[Inputs][kWide], R (&y)[kWide]) const {
    for (int k = 0; k < kWide; ++k) {
      C one[Inputs];
      for (int i = 0; i < Inputs; ++i) one[i] = x[i][k];
      y[k] = value(one);
    }
  }

  WEFT_DEVICE void operator()(Thread t) const {
    if (sizeof(C) == 1 || (std::is_same_v<C, float> && call.loop.width == kWide)) {
      if constexpr (sizeof(C) == 1 || std::is_same_v<C, float>)
        each_two_packs(t, call.loop.packs,
                       [&](int64_t first, int64_t second, bool both) { two_wide(first, second, both); });
    } else if constexpr (sizeof(C) > 1) {
      each_two_packs(t, call.loop.packs,
                     [&](int64_t first, int64_t second, bool both) { two(first, second, both); });
    }
    for (int64_t i = call.loop.packs * call.loop.width + t.global(); i < call.loop.numel; i += t.globals()) {
      int64_t at[Inputs + 1];
      call.loop.element(i, at);
      C x[Inputs];
      for (int k = 0; k < Inputs; ++k) x[k] = inner::load_number<C>(call.in[k], at[k + 1], call.in_dtype[k]);
      inner::store_number<R>(call.out, at[0], call.out_dtype, value(x));
    }
  }
};

template <int Inputs>
using MapLaunch = void (*)(void* stream, const char* name, const Grid& grid, const MapCall<Inputs>& call,
                           Scalar s, Scalar t);

/// The launch of one operation in one compute type; null if the operation does not support it.
template <template <class> class F, OpClass cls, class C, int Inputs>
constexpr MapLaunch<Inputs> map_launch() {
  if constexpr (takes(cls, dtype_of<C>)) {
    return [](void* stream, const char* name, const Grid& grid, const MapCall<Inputs>& call, Scalar s,
              Scalar t) {
      using R = std::conditional_t<cls == OpClass::kTest, bool, C>;
      launch(stream, name, grid,
             Map<F<C>, C, R, Inputs>{call, {kernels::parameter<C>(s), kernels::parameter<C>(t)}});
    };
  } else {
    return nullptr;
  }
}

/// The launches of the operations, by compute dtype. Each column is in a separate file, to compile in
/// parallel.
extern const MapLaunch<1> unary_float[], unary_double[], unary_uint8[], unary_int32[], unary_int64[],
    unary_bool[];
extern const MapLaunch<2> binary_float[], binary_double[], binary_uint8[], binary_int32[], binary_int64[],
    binary_bool[];
extern const MapLaunch<3> ternary_float[], ternary_double[], ternary_uint8[], ternary_int32[],
    ternary_int64[], ternary_bool[];

}  // namespace weft::cuda
