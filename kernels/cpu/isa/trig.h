// Sine and cosine of floats in double precision, without branches, so that compilers vectorise loops over
// them. For |x| <= kTrigEnd the error is below one unit in the last place; the rows of unary.cpp pass other
// numbers to the C library.
#pragma once

#include <bit>
#include <cstdint>

#include <weft/kernels/cpu/isa/vec.h>

namespace weft::kernels::WEFT_ISA_NS {

inline constexpr float kTrigEnd = 1048576;  // 2^20: up to here the products with kHalfPiHigh are exact

/// The sine of x + quarter * pi / 2.
WEFT_INLINE float sine(float x, int64_t quarter) {
  constexpr double kHalfPiHigh = 0x1.921fb544p+0, kHalfPiLow = 0x1.0b4611a626331p-34;  // 33 bits and the rest
  constexpr double kMagic = 0x1.8p+52;  // adding it rounds to a whole number, found in the low bits
  const double wide = x, shifted = wide * 0x1.45f306dc9c883p-1 + kMagic, whole = shifted - kMagic;
  const int64_t n = std::bit_cast<int64_t>(shifted) + quarter;
  const double r = (wide - whole * kHalfPiHigh) - whole * kHalfPiLow, z = r * r;
  double s = 1.0 / 362880;  // Taylor series on [-pi / 4, pi / 4]
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  s = (s * z + 1.0) * r;
  double c = -1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  c = c * z + 1.0;
  const double y = (n & 1) != 0 ? c : s;
  return static_cast<float>(std::bit_cast<double>(std::bit_cast<int64_t>(y) ^ ((n & 2) << 62)));
}

}  // namespace weft::kernels::WEFT_ISA_NS
