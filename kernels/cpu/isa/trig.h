// Sine, cosine and tangent of floats without branches, for |x| <= kTrigEnd, and the angle of a point. Errors
// are below one unit in the last place (tests/kernels/trig_test.cpp measures them). The rows of unary.cpp
// pass other numbers to the C library. With fused products sine and cosine are computed in vectors of floats,
// all else in double precision.
#pragma once

#include <bit>
#include <cstdint>

#include <weft/kernels/cpu/isa/vec.h>

namespace weft::kernels::WEFT_ISA_NS {

inline constexpr float kTrigEnd = 1048576;  // 2^20: up to here the first product of a reduction is exact

/// x = n pi / 2 + r, with the Taylor series of sin(r) and cos(r), |r| <= pi / 4.
struct Quarters {
  int64_t n;
  double sine, cosine;
};
WEFT_INLINE Quarters quarters_of(float x) {
  constexpr double kHalfPiHigh = 0x1.921fb544p+0, kHalfPiLow = 0x1.0b4611a626331p-34;  // 33 bits and the rest
  constexpr double kMagic = 0x1.8p+52;  // adding it rounds to a whole number, found in the low bits
  const double wide = x, shifted = wide * 0x1.45f306dc9c883p-1 + kMagic, whole = shifted - kMagic;
  const double r = (wide - whole * kHalfPiHigh) - whole * kHalfPiLow, z = r * r;
  double s = 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  double c = -1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  return {std::bit_cast<int64_t>(shifted), (s * z + 1.0) * r, c * z + 1.0};
}

WEFT_INLINE float tangent(float x) {
  const Quarters q = quarters_of(x);
  const bool odd = (q.n & 1) != 0;
  return static_cast<float>((odd ? -q.cosine : q.sine) / (odd ? q.sine : q.cosine));
}

/// The angle of the point (x, y) of floats held as doubles; rounding to float gives the result.
WEFT_INLINE VecD angle(VecD y, VecD x) {
  using Bits = uint64_t __attribute__((vector_size(kVecBytes)));
  constexpr double kMost = 1e300, kPi = 0x1.921fb54442d18p+1;  // kMost: any float beside it counts as 0
  const auto bits = [](VecD v) __attribute__((always_inline)) { return reinterpret_cast<Bits>(v); };
  const Bits top = bits(splat(-0.0));
  const auto size = [&](VecD v) __attribute__((always_inline)) {
    const VecD a = reinterpret_cast<VecD>(bits(v) & ~top);
    return a < kMost ? a : splat(kMost);
  };
  const VecD a = size(y), b = size(x), least = a < b ? a : b, most = a < b ? b : a;
  // the arc of least / most, or of its tangent's distance to pi / 4, where a short polynomial does
  const auto beyond = least > most * 0x1.a827999fcef32p-2;  // tan(pi / 8)
  const VecD over = beyond ? least - most : least, under = beyond ? least + most : most;
  const VecD t = over / (under == 0.0 ? splat(1.0) : under), z = t * t;
  // (arc / t - 1) / z, interpolated at the Chebyshev points of [0, tan(pi / 8)^2]: within 1e-10
  VecD p = splat(0x1.9d8b23404175p-5);
  p = p * z - 0x1.614448ba6f0e4p-4;
  p = p * z + 0x1.c57bad2dcecadp-4;
  p = p * z - 0x1.248a17322e5b7p-3;
  p = p * z + 0x1.99997b13be4cfp-3;
  p = p * z - 0x1.5555554c0aeeep-2;
  VecD r = t + p * (z * t);
  r = beyond ? r + kPi / 4 : r;
  r = a > b ? kPi / 2 - r : r;
  r = reinterpret_cast<VecI64>(x) < 0 ? kPi - r : r;
  r = reinterpret_cast<VecD>(bits(r) | (bits(y) & top));
  return ((x == x) & (y == y)) ? r : x + y;
}

#if defined(__AVX2__) && defined(__FMA__)

/// c - a * b, rounded once.
WEFT_INLINE VecF minus_product(VecF c, VecF a, VecF b) {
#if defined(__AVX512F__)
  return _mm512_fnmadd_ps(a, b, c);
#else
  return _mm256_fnmadd_ps(a, b, c);
#endif
}

/// The sine of x + kQuarter * pi / 2. x = whole * pi / 2 + r + low, where r + low is exact to about 48 bits.
template <int kQuarter> WEFT_INLINE VecF sine(VecF x) {
  // pi / 2 in three parts. All are positive, so that r keeps the sign of a zero.
  constexpr float kHigh = 0x1.921fb4p+0f, kMiddle = 0x1.4442dp-24f, kLow = 0x1.84698ap-48f;
  constexpr float kMagic = 0x1.8p+23f;  // adding it rounds to a whole number, found in the low bits
  const VecF shifted = x * 0x1.45f306p-1f + kMagic, whole = shifted - kMagic;
  const VecI32 n = reinterpret_cast<VecI32>(shifted) + kQuarter;
  const VecF near = minus_product(x, whole, splat(kHigh));  // exact, and a multiple of 2^-24
  VecF middle = whole * kMiddle;
  asm("" : "+v"(middle));  // rounded here: the difference below has no fused product
  const VecF r = near - middle, lost = (near - r) - middle;  // lost is exact, since near is so coarse
  const VecF low = lost + minus_product(minus_product(middle, whole, splat(kMiddle)), whole, splat(kLow));
  const VecF z = r * r;
  VecF s = splat(1.0f / 362880);  // Taylor series on [-pi / 4, pi / 4]
  s = s * z - 1.0f / 5040;
  s = s * z + 1.0f / 120;
  s = s * z - 1.0f / 6;
  s = r + (s * (z * r) + low);
  VecF c = splat(-1.0f / 3628800);
  c = c * z + 1.0f / 40320;
  c = c * z - 1.0f / 720;
  c = c * z + 1.0f / 24;
  const VecF one = splat(1.0f), half = splat(0.5f), top = minus_product(one, z, half);
  const VecF cut = minus_product(one - top, z, half);  // 1 - z / 2 = top + cut
  c = top + (c * (z * z) + minus_product(cut, r, low));
  const VecF y = (n & 1) != 0 ? c : s;
  const VecF sine = reinterpret_cast<VecF>(reinterpret_cast<VecI32>(y) ^ ((n & 2) << 30));
  return kQuarter == 0 ? (x == 0.0f ? x : sine) : sine;
}

/// out[i] = the sine of x[i] + kQuarter * pi / 2 for n numbers. Returns true if one of them is beyond
/// kTrigEnd, and has no result.
template <int kQuarter> WEFT_INLINE bool sines(const float* x, float* out, int64_t n) {
  VecI32 far{};
  const auto step = [&](VecF v) __attribute__((always_inline)) {
    const VecF size = reinterpret_cast<VecF>(reinterpret_cast<VecI32>(v) & 0x7FFFFFFF);
    far |= ~(size <= kTrigEnd);
    return sine<kQuarter>(v);
  };
  int64_t i = 0;
  for (; i + kLanes<float> <= n; i += kLanes<float>) store(out + i, step(load(x + i)));
  if (i < n) store_part(out + i, n - i, step(load_part(x + i, n - i)));
  return fold_lanes<int32_t>(
             far, [](auto a, auto b) __attribute__((always_inline)) { return a | b; }) != 0;
}

#else

/// The sine of x + quarter * pi / 2.
WEFT_INLINE float sine(float x, int64_t quarter) {
  const Quarters q = quarters_of(x);
  const int64_t n = q.n + quarter;
  const double y = (n & 1) != 0 ? q.cosine : q.sine;
  return static_cast<float>(std::bit_cast<double>(std::bit_cast<int64_t>(y) ^ ((n & 2) << 62)));
}

/// out[i] = the sine of x[i] + kQuarter * pi / 2 for n numbers. Returns true if one of them is beyond
/// kTrigEnd, and has no result.
template <int kQuarter> WEFT_INLINE bool sines(const float* x, float* out, int64_t n) {
  int far = 0;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = sine(x[i], kQuarter);
    far += __builtin_fabsf(x[i]) <= kTrigEnd ? 0 : 1;
  }
  return far > 0;
}

#endif

/// The same of tangents.
WEFT_INLINE bool tangents(const float* x, float* out, int64_t n) {
  int far = 0;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = tangent(x[i]);
    far += __builtin_fabsf(x[i]) <= kTrigEnd ? 0 : 1;
  }
  return far > 0;
}

}  // namespace weft::kernels::WEFT_ISA_NS
