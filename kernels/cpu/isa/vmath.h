// exp, expm1, tanh and sigmoid on vectors of float or double, within a few units in the last place. All use
// one reduction, x = n ln 2 + r with |r| <= ln 2 / 2, and the Taylor series of e^r - 1. On this interval it
// needs 7 terms for float and 13 for double. Infinities and NaN are handled. Results below the normal range
// are rounded twice.
#pragma once

#include <weft/kernels/cpu/isa/vec.h>

namespace weft::kernels::WEFT_ISA_NS {

template <class T> struct ExpConst;
template <> struct ExpConst<float> {
  static constexpr float kLog2E = 0x1.715476p+0f, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kMagic = 0x1.8p+23f;  // adding it rounds to an integer in the low bits
  static constexpr float kHighest = 89.0f, kLowest = -104.0f;
  static constexpr int kMantissa = 23, kBias = 127, kTerms = 7;
  static constexpr float kTanhEnd = 9.5f;  // tanh is 1 from here on
};
template <> struct ExpConst<double> {
  static constexpr double kLog2E = 0x1.71547652b82fep+0, kLn2High = 0x1.62e42fefa38p-1,
                          kLn2Low = 0x1.ef35793c7673p-45;
  static constexpr double kMagic = 0x1.8p+52;
  static constexpr double kHighest = 710.0, kLowest = -746.0;
  static constexpr int kMantissa = 52, kBias = 1023, kTerms = 13;
  static constexpr double kTanhEnd = 20.0;
};

/// 2^n for whole n inside the exponent range.
template <class T> WEFT_INLINE Vec<T> power_of_two(VecInt<T> n) {
  return reinterpret_cast<Vec<T>>((n + ExpConst<T>::kBias) << ExpConst<T>::kMantissa);
}

/// n and e^r - 1 of x = n ln 2 + r.
template <class T> WEFT_INLINE Vec<T> reduced_expm1(Vec<T> x, VecInt<T>& n) {
  using C = ExpConst<T>;
  const Vec<T> shifted = x * C::kLog2E + C::kMagic;
  n = reinterpret_cast<VecInt<T>>(shifted) - reinterpret_cast<VecInt<T>>(splat(C::kMagic));
  const Vec<T> whole = shifted - C::kMagic;
  const Vec<T> r = (x - whole * C::kLn2High) - whole * C::kLn2Low;
  constexpr auto kInverse = [] {  // 1 / k!
    struct {
      T at[16];
    } f{};
    double product = 1;
    for (int k = 1; k < 16; ++k) f.at[k] = static_cast<T>(1 / (product *= k));
    return f;
  }();
  Vec<T> series = splat(kInverse.at[C::kTerms]);
#pragma GCC unroll 16
  for (int k = C::kTerms - 1; k >= 2; --k) series = series * r + kInverse.at[k];
  return series * (r * r) + r;
}

template <class T> WEFT_INLINE Vec<T> vexp(Vec<T> x) {
  using C = ExpConst<T>;
  x = x > C::kHighest ? splat(C::kHighest) : x;
  x = x < C::kLowest ? splat(C::kLowest) : x;
  VecInt<T> n;
  const Vec<T> e = reduced_expm1<T>(x, n) + T(1);
  const VecInt<T> half = n >> 1;  // in two steps, so that neither factor overflows
  return e * power_of_two<T>(half) * power_of_two<T>(n - half);
}

/// A faster exp for x <= 88 (float) or 709 (double); results below the normal range become 0. For softmax,
/// where x <= 0.
template <class T> WEFT_INLINE Vec<T> vexp_below(Vec<T> x) {
  constexpr T kLeast = sizeof(T) == 4 ? T(-87.3365) : T(-708.3964);
  VecInt<T> n;
  const Vec<T> e = reduced_expm1<T>(x, n) + T(1);
  return x < kLeast ? Vec<T>{} : e * power_of_two<T>(n);
}

/// e^x - 1 without loss near zero, for |x| <= 64.
template <class T> WEFT_INLINE Vec<T> vexpm1_bounded(Vec<T> x) {
  VecInt<T> n;
  const Vec<T> e = reduced_expm1<T>(x, n), scale = power_of_two<T>(n);
  return e * scale + (scale - T(1));
}

template <class T> WEFT_INLINE Vec<T> vtanh(Vec<T> x) {
  using C = ExpConst<T>;
  const VecInt<T> sign = reinterpret_cast<VecInt<T>>(x) & reinterpret_cast<VecInt<T>>(splat(T(-0.0)));
  Vec<T> magnitude = reinterpret_cast<Vec<T>>(reinterpret_cast<VecInt<T>>(x) ^ sign);
  magnitude = magnitude > C::kTanhEnd ? splat(C::kTanhEnd) : magnitude;
  const Vec<T> e = vexpm1_bounded<T>(magnitude + magnitude);
  return reinterpret_cast<Vec<T>>(reinterpret_cast<VecInt<T>>(e / (e + T(2))) | sign);
}

template <class T> WEFT_INLINE Vec<T> vsigmoid(Vec<T> x) { return T(1) / (T(1) + vexp<T>(-x)); }

}  // namespace weft::kernels::WEFT_ISA_NS
