// Random numbers from the lanes of Philox blocks, by formulas that every backend uses. For float they call no
// library function, so without fused multiply-add they give the same bits everywhere. Normal numbers of
// float64 use the library's log, cos and sin and agree up to rounding.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <weft/kernels/dtype.h>
#include <weft/kernels/inner/philox.h>
#include <weft/kernels/math.h>

namespace weft::kernels::random {

/// [0, 1) for element i of a run of lanes: one lane each, or two for double.
template <class C> WEFT_HD inline C unit(const uint32_t* bits, int64_t i) {
  if constexpr (std::is_same_v<C, double>) return unit_double(bits[2 * i], bits[2 * i + 1]);
  else return unit_float(bits[i]);
}

/// The largest number of a half type below `high`.
template <class H> float below(float high) {
  H h(high);
  while (static_cast<float>(h) >= high) {
    const bool negative = (h.bits & 0x8000u) != 0;
    const bool zero = (h.bits & 0x7FFFu) == 0;
    h.bits = static_cast<uint16_t>(zero ? 0x8001u : negative ? h.bits + 1u : h.bits - 1u);
  }
  return static_cast<float>(h);
}

/// [low, high) from [0, 1), for an output of dtype `t`: rounding must not reach the open end.
template <class C> struct Uniform {
  C low, width, last;

  Uniform(double from, double to, DType t) : low(static_cast<C>(from)), width(static_cast<C>(to - from)) {
    const C end = static_cast<C>(to);
    const C before = t == DType::kFloat16    ? static_cast<C>(below<Half>(static_cast<float>(to)))
                     : t == DType::kBFloat16 ? static_cast<C>(below<BFloat16>(static_cast<float>(to)))
                                             : std::nextafter(end, low);
    last = before >= low ? before : low;
  }
  WEFT_HD C operator()(C u) const {
    const C v = low + width * u;
    return v > last ? last : v;
  }
};

/// log(x) of x in (0, 1]: exponent and mantissa, then the series of log((1 + s) / (1 - s)).
/// Within 2e-7 relative.
WEFT_HD inline float fast_log(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t shifted = u - 0x3F3504F3u;  // the mantissa is taken in [sqrt(1/2), sqrt(2))
  const int32_t exponent = static_cast<int32_t>(shifted) >> 23;
  const float m = std::bit_cast<float>(u - (static_cast<uint32_t>(exponent) << 23));
  const float s = (m - 1) / (m + 1), z = s * s;
  const float series = 2 * s * (1 + z * (0.333333333f + z * (0.2f + z * (0.142857143f + z * 0.111111111f))));
  return static_cast<float>(exponent) * 0.693147181f + series;
}

/// cos and sin of 2 pi t, t in [0, 1): reduced to an eighth of a turn, then Taylor.
WEFT_HD inline void turn(float t, float& c, float& s) {
  const float quarter = t * 4;
  const int32_t q = static_cast<int32_t>(quarter + 0.5f);
  const float a = (quarter - static_cast<float>(q)) * 1.57079632679f, z = a * a;
  const float sine =
      a * (1 + z * (-1.66666667e-1f + z * (8.33333333e-3f + z * (-1.98412698e-4f + z * 2.75573192e-6f))));
  const float cosine =
      1 +
      z * (-0.5f + z * (4.16666667e-2f + z * (-1.38888889e-3f + z * (2.48015873e-5f + z * -2.75573192e-7f))));
  const float first = (q & 1) ? sine : cosine, second = (q & 1) ? cosine : sine;
  // The signs, as bits: cos is negative in quarters 1 and 2, sin in 2 and 3.
  c = std::bit_cast<float>(std::bit_cast<uint32_t>(first) ^ (static_cast<uint32_t>((q + 1) & 2) << 30));
  s = std::bit_cast<float>(std::bit_cast<uint32_t>(second) ^ (static_cast<uint32_t>(q & 2) << 30));
}

/// Two normal numbers (Box & Muller 1958) from two lanes, for float, or four, for double.
WEFT_HD inline void normal_pair(const uint32_t* bits, float mean, float stddev, float* out) {
  const float u = static_cast<float>(static_cast<int32_t>(bits[0] >> 8) + 1) * 0x1p-24f;  // (0, 1]
  const float t = static_cast<float>(static_cast<int32_t>(bits[1] >> 8)) * 0x1p-24f;
  const float square = -2 * fast_log(u);
  const float r = std::sqrt(square > 0 ? square : 0.0f);
  float c, s;
  turn(t, c, s);
  out[0] = mean + stddev * (r * c);
  out[1] = mean + stddev * (r * s);
}
WEFT_HD inline void normal_pair(const uint32_t* bits, double mean, double stddev, double* out) {
  const double u = 1 - unit_double(bits[0], bits[1]), t = unit_double(bits[2], bits[3]);
  const double r = std::sqrt(-2 * std::log(u));
  out[0] = mean + stddev * (r * std::cos(6.283185307179586 * t));
  out[1] = mean + stddev * (r * std::sin(6.283185307179586 * t));
}

/// low + a number below `range` from two lanes.
WEFT_HD inline int64_t bounded(uint32_t high, uint32_t low_bits, int64_t low, uint64_t range) {
  const uint64_t word = (uint64_t{high} << 32) | low_bits;
  return static_cast<int64_t>(static_cast<uint64_t>(low) +
                              static_cast<uint64_t>((static_cast<unsigned __int128>(word) * range) >> 64));
}

}  // namespace weft::kernels::random
