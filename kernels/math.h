// The elementary functions for inner/functors.h. The float versions of exp, log, tanh, erf and related
// functions have no branches. So compilers vectorise loops over them under every instruction set. Their
// errors stay within about 2 units in the last place (tests/kernels/math_test.cpp measures them). The double
// versions call the C library. On a CUDA device a quotient and 2^x are one instruction each. So some
// functions are shorter there, with errors of up to 2 units more.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <weft/kernels/error.h>

namespace weft::kernels::math {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

namespace detail {

inline constexpr float kLn2High = 0x1.62e4p-1f;  // few bits: products with small whole numbers are exact
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;

/// a / b for b in [2^-126, 2^126], or 0 for a = 1 and a larger b. On CUDA devices within 2 units in the last
/// place.
WEFT_HD inline float quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

/// 2^n for -126 <= n <= 127.
WEFT_HD inline float power_of_two(int32_t n) { return std::bit_cast<float>((n + 127) << 23); }

/// x = n ln 2 + r with |r| <= ln 2 / 2: returns e^r - 1 by its Taylor series.
WEFT_HD inline float reduced_expm1(float x, int32_t& n) {
  constexpr float magic = 0x1.8p+23f;  // adding it rounds to a whole number, found in the low bits
  const float shifted = x * 0x1.715476p+0f + magic;
  n = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(magic);
  const float whole = shifted - magic;
  const float r = (x - whole * kLn2High) - whole * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  return p * (r * r) + r;
}

/// x = 2^e m with m in [sqrt(1/2), sqrt(2)): returns log(m); x positive and finite.
WEFT_HD inline float reduced_log(float x, float& e) {
  const bool tiny = x < 0x1p-126f;
  const float scaled = x * 0x1p23f;
  const float y = tiny ? scaled : x;
  const uint32_t bits = std::bit_cast<uint32_t>(y);
  const int32_t k = static_cast<int32_t>(bits - 0x3F3504F3u) >> 23;
  const float m = std::bit_cast<float>(bits - (static_cast<uint32_t>(k) << 23));
  e = static_cast<float>(k) - (tiny ? 23.0f : 0.0f);
  const float f = m - 1;
  const float s = f / (2 + f), z = s * s;
  float p = 2.0f / 11;
  p = p * z + 2.0f / 9;
  p = p * z + 2.0f / 7;
  p = p * z + 2.0f / 5;
  p = p * z + 2.0f / 3;
  p = p * z;  // log(m) = 2 s + s p = f - s (f - p)
  return f - s * (f - p);
}

/// log(x) for x = 0, infinity, NaN and negative x; `inside` for all others.
WEFT_HD inline float log_ends(float x, float inside) {
  float y = x == kInf ? kInf : inside;
  y = x == 0 ? -kInf : y;
  y = x < 0 ? kNan : y;
  return x != x ? x : y;
}

/// erf for |x| <= 1 (even powers of x from [0, 1]).
WEFT_HD inline float erf_small(float x) {
  const float t = x * x;
  float p = 7.875875063e-5f;
  p = p * t - 0.0008016864287f;
  p = p * t + 0.005189087423f;
  p = p * t - 0.02685421201f;
  p = p * t + 0.1128359472f;
  p = p * t - 0.3761262667f;
  p = p * t + 1.128379166f;
  return x * p;
}

/// erfc(z) / e^(-z^2) for 1 <= z <= 10.5, as a polynomial in 1 / (z + 2).
WEFT_HD inline float scaled_erfc(float z) {
  const float t = quotient(1, z + 2);
  float p = 19.45286058f;
  p = p * t - 21.66188555f;
  p = p * t + 0.2187163631f;
  p = p * t + 3.895652443f;
  p = p * t + 2.408692676f;
  p = p * t + 2.04065149f;
  p = p * t + 1.122530753f;
  p = p * t + 0.5644653256f;
  return p * t - 5.398616006e-6f;
}

/// log(erfc(z) e^(z^2) / t) for 0 <= z <= 10.5 and t = 1 / (1 + 0.4 z), within 1e-7: a fit of erfc.
WEFT_HD inline float log_scaled_erfc(float t) {
  float p = -0.2079591602f;
  p = p * t + 0.9269723892f;
  p = p * t - 1.490982294f;
  p = p * t + 1.0050776f;
  p = p * t - 0.447714299f;
  p = p * t + 0.3022925854f;
  p = p * t + 0.3992498219f;
  p = p * t + 1.001779795f;
  return p * t - 1.488716602f;
}

/// The distribution function of the standard normal with one polynomial for all x.
WEFT_HD inline float short_normal_cdf(float x) {
  float z = std::fabs(x * 0x1.6a09e6p-1f);
  z = z > 10.5f ? 10.5f : z;
  const float t = quotient(1, 1 + 0.4f * z);
  const float tail = 0.5f * t * std::exp(log_scaled_erfc(t) - z * z);
  return x < 0 ? tail : x != x ? x : 1 - tail;
}

/// tanh by e^2a - 1. The result is 1 for a >= 9.5, so the factor 2^n needs no second step.
WEFT_HD inline float short_tanh(float x) {
  float a = std::fabs(x);
  a = a > 9.5f ? 9.5f : a;
  int32_t n;
  const float q = reduced_expm1(a + a, n), power = power_of_two(n);
  const float e = q * power + (power - 1);
  return std::copysign(quotient(e, e + 2), x);
}

/// log(1 + t) for t in [0, 1]: 2 atanh(t / (2 + t)) by its series.
WEFT_HD inline float short_log1p(float t) {
  const float s = quotient(t, 2 + t), z = s * s;
  float p = 2.0f / 17;
  p = p * z + 2.0f / 15;
  p = p * z + 2.0f / 13;
  p = p * z + 2.0f / 11;
  p = p * z + 2.0f / 9;
  p = p * z + 2.0f / 7;
  p = p * z + 2.0f / 5;
  p = p * z + 2.0f / 3;
  return s * (z * p) + (s + s);
}

}  // namespace detail

WEFT_HD inline float exp(float x) {
#if defined(__CUDA_ARCH__)
  return std::exp(x);
#else
  float c = x > 89.0f ? 89.0f : x;
  c = c < -104.0f ? -104.0f : c;
  int32_t n;
  const float e = detail::reduced_expm1(c, n) + 1;
  const int32_t half = n >> 1;  // in two steps, so that neither factor overflows
  return e * detail::power_of_two(half) * detail::power_of_two(n - half);
#endif
}
WEFT_HD inline float expm1(float x) {
  float c = x > 89.0f ? 89.0f : x;
  c = c < -20.0f ? -20.0f : c;
  int32_t n;
  const float q = detail::reduced_expm1(c, n);
  const int32_t half = n >> 1;
  const float a = detail::power_of_two(half);
  const float y = (q * a + (a - detail::power_of_two(half - n))) * detail::power_of_two(n - half);
  return std::copysign(y, x);  // the sums above give +0 for -0
}
WEFT_HD inline float log(float x) {
  float e;
  const float m = detail::reduced_log(x, e);
  return detail::log_ends(x, e * 0x1.62e4p-1f + (e * detail::kLn2Low + m));
}
WEFT_HD inline float log2(float x) {
  float e;
  const float m = detail::reduced_log(x, e);
  return detail::log_ends(x, e + m * 0x1.715476p+0f);
}
WEFT_HD inline float log1p(float x) {
  const float u = 1 + x;
  float e;
  const float m = detail::reduced_log(u, e);
  const float lost = (x - (u - 1)) / u;  // the rounding error of 1 + x, to first order
  const float y = e * 0x1.62e4p-1f + (e * detail::kLn2Low + (m + lost));
  return std::copysign(detail::log_ends(u, y), x);
}
/// log(1 + e^x) for x <= 0.
WEFT_HD inline float log1p_exp(float x) {
#if defined(__CUDA_ARCH__)
  return detail::short_log1p(exp(x));
#else
  return log1p(exp(x));
#endif
}
WEFT_HD inline float tanh(float x) {
#if defined(__CUDA_ARCH__)
  return detail::short_tanh(x);
#else
  float a = std::fabs(x);
  a = a > 9.5f ? 9.5f : a;
  const float e = expm1(a + a);
  return std::copysign(e / (e + 2), x);
#endif
}
WEFT_HD inline float sigmoid(float x) { return detail::quotient(1, 1 + exp(-x)); }
WEFT_HD inline float erf(float x) {
#if defined(__CUDA_ARCH__)
  return std::erf(x);
#else
  const float a = std::fabs(x);
  float z = a < 1.0f ? 1.0f : a;
  z = z > 10.5f ? 10.5f : z;
  const float far = std::copysign(1 - detail::scaled_erfc(z) * exp(-z * z), x);
  return a <= 1.0f ? detail::erf_small(x) : x != x ? x : far;
#endif
}
/// The distribution function of the standard normal, without cancellation for negative x.
WEFT_HD inline float normal_cdf(float x) {
#if defined(__CUDA_ARCH__)
  return detail::short_normal_cdf(x);
#else
  const float s = x * 0x1.6a09e6p-1f, a = std::fabs(s);
  float z = a < 1.0f ? 1.0f : a;
  z = z > 10.5f ? 10.5f : z;
  const float tail = 0.5f * detail::scaled_erfc(z) * exp(-z * z);
  const float far = s < 0 ? tail : 1 - tail;
  const float near = 0.5f + 0.5f * detail::erf_small(s);
  return a <= 1.0f ? near : x != x ? x : far;
#endif
}
/// log(1 + e^x).
WEFT_HD inline float softplus(float x) {
  const float y = (x > 0 ? x : 0) + log1p_exp(-std::fabs(x));
  return x != x ? x : y;
}

WEFT_HD inline double exp(double x) { return std::exp(x); }
WEFT_HD inline double expm1(double x) { return std::expm1(x); }
WEFT_HD inline double log(double x) { return std::log(x); }
WEFT_HD inline double log2(double x) { return std::log2(x); }
WEFT_HD inline double log1p(double x) { return std::log1p(x); }
WEFT_HD inline double log1p_exp(double x) { return std::log1p(std::exp(x)); }
WEFT_HD inline double tanh(double x) { return std::tanh(x); }
WEFT_HD inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
WEFT_HD inline double erf(double x) { return std::erf(x); }
WEFT_HD inline double normal_cdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }
WEFT_HD inline double softplus(double x) {
  return x != x ? x : (x > 0 ? x : 0) + std::log1p(std::exp(-std::fabs(x)));
}

}  // namespace weft::kernels::math
