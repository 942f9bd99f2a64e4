// Vectors of the instruction set that this translation unit is compiled for, by the compiler's vector
// extension. Vec<float> fills one register (4, 8 or 16 lanes). Loads and stores take any alignment. The
// *_part functions access only the first n lanes in memory. Only for kernels/cpu/isa: all of it is in
// WEFT_ISA_NS, so the copies for different sets are separate.
#pragma once

#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft::kernels::WEFT_ISA_NS {

#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVecBytes = 32;
#else
inline constexpr int kVecBytes = 16;
#endif

using VecF = float __attribute__((vector_size(kVecBytes)));
using VecD = double __attribute__((vector_size(kVecBytes)));
using VecI32 = int32_t __attribute__((vector_size(kVecBytes)));
using VecI64 = int64_t __attribute__((vector_size(kVecBytes)));

template <class T> struct VecTypes;
template <> struct VecTypes<float> {
  using Vec = VecF;
  using Int = VecI32;
  using IntLane = int32_t;
};
template <> struct VecTypes<double> {
  using Vec = VecD;
  using Int = VecI64;
  using IntLane = int64_t;
};
template <class T> using Vec = typename VecTypes<T>::Vec;
template <class T> using VecInt = typename VecTypes<T>::Int;

template <class T> inline constexpr int kLanes = kVecBytes / static_cast<int>(sizeof(T));

template <class T> WEFT_INLINE Vec<T> load(const T* p) {
  Vec<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T> WEFT_INLINE void store(T* p, Vec<T> v) { __builtin_memcpy(p, &v, sizeof v); }

/// Floats for a register of doubles, and conversions between them. GCC 12 by itself would convert two halves.
using HalfVecF = float __attribute__((vector_size(kVecBytes / 2)));
WEFT_INLINE VecD widen(HalfVecF x) {
#if defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_cvtps2pd512_mask(x, VecD{}, -1, 4);  // 4: the current rounding mode
#else
  return __builtin_convertvector(x, VecD);
#endif
}
WEFT_INLINE HalfVecF narrow(VecD x) {
#if defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_cvtpd2ps512_mask(x, HalfVecF{}, -1, 4);
#else
  return __builtin_convertvector(x, HalfVecF);
#endif
}

/// A register of doubles, from as many doubles or floats.
WEFT_INLINE VecD load_wide(const double* p) { return load(p); }
WEFT_INLINE VecD load_wide(const float* p) {
  HalfVecF part;
  __builtin_memcpy(&part, p, sizeof part);
  return widen(part);
}

template <class T> WEFT_INLINE Vec<T> splat(T x) { return x - Vec<T>{}; }  // x - 0 is x, -0 too, and folds

#if defined(__AVX512F__)
WEFT_INLINE VecF load_part(const float* p, int64_t n, float fill = 0) {
  return _mm512_mask_loadu_ps(splat(fill), static_cast<__mmask16>((1u << n) - 1), p);
}
WEFT_INLINE VecD load_part(const double* p, int64_t n, double fill = 0) {
  return _mm512_mask_loadu_pd(splat(fill), static_cast<__mmask8>((1u << n) - 1), p);
}
WEFT_INLINE void store_part(float* p, int64_t n, VecF v) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
}
WEFT_INLINE void store_part(double* p, int64_t n, VecD v) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << n) - 1), v);
}
#elif defined(__AVX2__)
/// All bits set in the first n lanes.
template <class T> WEFT_INLINE VecInt<T> first_lanes(int64_t n) {
  VecInt<T> lane;
  for (int i = 0; i < kLanes<T>; ++i) lane[i] = i;
  return lane < static_cast<typename VecTypes<T>::IntLane>(n);
}
WEFT_INLINE VecF load_part(const float* p, int64_t n, float fill = 0) {
  const VecI32 in = first_lanes<float>(n);
  const VecF v = _mm256_maskload_ps(p, reinterpret_cast<__m256i>(in));
  return in ? v : splat(fill);
}
WEFT_INLINE VecD load_part(const double* p, int64_t n, double fill = 0) {
  const VecI64 in = first_lanes<double>(n);
  const VecD v = _mm256_maskload_pd(p, reinterpret_cast<__m256i>(in));
  return in ? v : splat(fill);
}
WEFT_INLINE void store_part(float* p, int64_t n, VecF v) {
  _mm256_maskstore_ps(p, reinterpret_cast<__m256i>(first_lanes<float>(n)), v);
}
WEFT_INLINE void store_part(double* p, int64_t n, VecD v) {
  _mm256_maskstore_pd(p, reinterpret_cast<__m256i>(first_lanes<double>(n)), v);
}
#else
template <class T> WEFT_INLINE Vec<T> load_part(const T* p, int64_t n, T fill = 0) {
  Vec<T> v = splat(fill);
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
}
template <class V, class T> WEFT_INLINE void store_part(T* p, int64_t n, V v) {
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
}
#endif

/// Maximum by comparison: NaN in `a` gives b, NaN in `b` stays.
template <class V> WEFT_INLINE V vmax(V a, V b) { return a > b ? a : b; }

/// Folds the lanes by halves with op (a fixed order).
template <class T, class V, class Op> WEFT_INLINE T fold_lanes(V v, Op op) {
  constexpr int kCount = static_cast<int>(sizeof(V) / sizeof(T));
  if constexpr (kCount == 2) {
    return op(v, __builtin_shufflevector(v, v, 1, 1))[0];
  } else if constexpr (kCount == 4) {
    return fold_lanes<T>(op(__builtin_shufflevector(v, v, 0, 1), __builtin_shufflevector(v, v, 2, 3)), op);
  } else if constexpr (kCount == 8) {
    return fold_lanes<T>(
        op(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7)), op);
  } else {
    return fold_lanes<T>(op(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                            __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)),
                         op);
  }
}
template <class T> WEFT_INLINE T sum_lanes(Vec<T> v) {
  return fold_lanes<T>(
      v, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}

}  // namespace weft::kernels::WEFT_ISA_NS
