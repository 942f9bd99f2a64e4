// Conversion between the half types and float in kernels: float y = kernels::widen(x). CUDA kernels use the
// device's instructions, which drop the payload of a NaN.
#pragma once

#include <cstdint>
#include <type_traits>

#include <weft/kernels/dtype.h>
#include <weft/kernels/macros.h>

namespace weft::kernels {

WEFT_HD inline float widen(Half x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return x;
#endif
}
WEFT_HD inline float widen(BFloat16 x) { return x; }

/// Rounds to nearest even.
template <class H> WEFT_HD inline H narrow(float x) {
#if defined(__CUDA_ARCH__)
  [[maybe_unused]] H y;
  if constexpr (std::is_same_v<H, Half>) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<H, BFloat16>) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
#endif
#endif
  return H(x);
}

/// The number of a half type with these bits.
template <class H> WEFT_HD inline H of_bits(uint16_t bits) {
  H x;
  x.bits = bits;
  return x;
}

}  // namespace weft::kernels
