// Powers of floats, on vectors of double: 2^(y log2(x)). The error is hardly above half a unit in the last
// place (tests/kernels/power_test.cpp measures it). Zeros, infinities, NaN and negative bases follow
// std::pow.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <weft/kernels/cpu/isa/vec.h>
#include <weft/kernels/inner/convert.h>
#include <weft/kernels/pointwise.h>

namespace weft::kernels::WEFT_ISA_NS {

using VecU64 = uint64_t __attribute__((vector_size(kVecBytes)));

/// log2(x) of positive finite numbers: x = 2^k m with m in [sqrt(1/2), sqrt(2)).
WEFT_INLINE VecD vlog2(VecD x) {
  constexpr uint64_t kOne = 0x3FF0000000000000, kRootHalf = 0x3FE6A09E667F3BCD;  // the bits of 1, sqrt(1/2)
  const VecU64 bits = reinterpret_cast<VecU64>(x), carried = bits + (kOne - kRootHalf);
  const VecU64 biased = carried >> 52;  // k + 1023; below, 2^52 + biased has it in the low bits
  const VecD k = reinterpret_cast<VecD>(biased | 0x4330000000000000) - (0x1p52 + 1023);
  const VecD m = reinterpret_cast<VecD>(bits - (biased << 52) + kOne);
  const VecD s = (m - 1.0) / (m + 1.0), z = s * s;  // log(m) = 2 (s + s^3 / 3 + s^5 / 5 ..), |s| < 0.172
  const VecD z2 = z * z, z4 = z2 * z2;
  const VecD low = (z * (1.0 / 5) + 1.0 / 3) + z2 * (z * (1.0 / 9) + 1.0 / 7);
  const VecD p = low + z4 * ((z * (1.0 / 13) + 1.0 / 11) + z2 * (1.0 / 15));
  return (p * (z * s) + s) * 0x1.71547652b82fep+1 + k;
}

/// 2^x, with x held within -160 and 129, where floats have ended. NaN counts as 129.
WEFT_INLINE VecD vexp2(VecD x) {
  x = x < 129.0 ? x : splat(129.0);
  x = x > -160.0 ? x : splat(-160.0);
  constexpr double kMagic = 0x1.8p+52;  // adding it rounds to a whole number, found in the low bits
  const VecD shifted = x + kMagic, r = (x - (shifted - kMagic)) * 0x1.62e42fefa39efp-1;
  const VecD r2 = r * r, r4 = r2 * r2;  // Taylor series of e^r, |r| <= ln 2 / 2
  const VecD low = (r + 1.0) + r2 * (r * (1.0 / 6) + 0.5);
  const VecD high = (r * (1.0 / 120) + 1.0 / 24) + r2 * (r * (1.0 / 5040) + 1.0 / 720);
  const VecD p = low + r4 * (high + r4 * (1.0 / 40320));
  return reinterpret_cast<VecD>(reinterpret_cast<VecU64>(p) + (reinterpret_cast<VecU64>(shifted) << 52));
}

/// x^y of floats held as doubles, for 0 < x < infinity and finite y. Rounding to float gives the result.
WEFT_INLINE VecD vpow_plain(VecD x, VecD y) { return vexp2(vlog2(x) * y); }

/// x^y of any floats held as doubles; rounding to float gives the result.
WEFT_INLINE VecD vpow(VecD x, VecD y) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kMagic = 0x1.8p+52;
  constexpr double kEven = 0x1p24;  // from here on, each float is an even number
  const VecU64 top = reinterpret_cast<VecU64>(splat(-0.0)), signs = reinterpret_cast<VecU64>(x) & top;
  const VecD a = reinterpret_cast<VecD>(reinterpret_cast<VecU64>(x) ^ signs);
  VecD log = vlog2(a);
  log = a == 0.0 ? splat(-kInf) : log;
  log = a == kInf ? splat(kInf) : log;
  VecD r = a == 1.0 ? splat(1.0) : vexp2(log * y);
  VecD held = y < kEven ? y : splat(kEven);
  held = held > -kEven ? held : splat(-kEven);
  const VecD shifted = held + kMagic, whole = shifted - kMagic;
  const VecU64 odd = reinterpret_cast<VecU64>(shifted) << 63;
  r = reinterpret_cast<VecD>(reinterpret_cast<VecU64>(r) | (whole == held ? signs & odd : VecU64{}));
  const VecD outside = ((x < 0.0) & (a < kInf) & (whole != held)) ? splat(kInf) - splat(kInf) : r;
  r = ((x == x) & (y == y)) ? outside : x + y;
  return ((x == 1.0) | (y == 0.0)) ? splat(1.0) : r;
}

/// The operands of a power: two tensors, a tensor and the exponent s, or the base s and a tensor.
enum class PowerForm { kTensors, kExponent, kBase };

/// The loop of one form over floats in contiguous memory, by blocks. A block of usual numbers takes the short
/// way, which gives the same bits. A cube is two products, as in PyTorch.
template <PowerForm form> void power_row(const PointwiseParams& params, void* const* p, int64_t n) {
  constexpr int64_t kBlock = 256;
  constexpr float kMax = std::numeric_limits<float>::max();
  const float s = parameter<float>(params.s);
  const float* x = static_cast<const float*>(p[1]);
  const float* y = static_cast<const float*>(p[form == PowerForm::kTensors ? 2 : 1]);
  float* z = static_cast<float*>(p[0]);
  if (form == PowerForm::kExponent && s == 3) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) z[i] = x[i] * x[i] * x[i];
    return;
  }
  float base[kBlock] = {}, exponent[kBlock] = {};
  for (; n > 0; n -= kBlock, x += kBlock, y += kBlock, z += kBlock) {
    const int64_t count = n < kBlock ? n : kBlock;
    int unusual = 0;
    for (int64_t i = 0; i < count; ++i) {
      base[i] = form == PowerForm::kBase ? s : x[i];
      exponent[i] = form == PowerForm::kExponent ? s : y[i];
      const bool usual = (base[i] > 0) & (base[i] <= kMax) & (std::fabs(exponent[i]) <= kMax);
      unusual += usual ? 0 : 1;
    }
    for (int64_t i = 0; i < count; i += kLanes<double>) {
      const VecD a = load_wide(base + i), b = load_wide(exponent + i);
      const HalfVecF rounded = narrow(unusual > 0 ? vpow(a, b) : vpow_plain(a, b));
      __builtin_memcpy(base + i, &rounded, sizeof rounded);
    }
    __builtin_memcpy(z, base, static_cast<size_t>(count) * sizeof(float));
  }
}

}  // namespace weft::kernels::WEFT_ISA_NS
