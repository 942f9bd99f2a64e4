// Remainders of floats, on vectors of double. They are exact (functors.h says why), so the few numbers that
// the vectors do not take have the same bits by the functor.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <weft/kernels/backend.h>
#include <weft/kernels/cpu/isa/vec.h>
#include <weft/kernels/inner/functors.h>

namespace weft::kernels::WEFT_ISA_NS {

/// The loop of Fmod (the sign of a) or Remainder (the sign of b).
template <template <class> class Functor> void fmod_row(const PointwiseParams&, void* const* p, int64_t n) {
  using Floats = HalfVecF;
  using Whole = int32_t __attribute__((vector_size(kVecBytes / 2)));
  constexpr int kCount = kLanes<double>;
  constexpr bool kOfB = std::is_same_v<Functor<float>, functors::Remainder<float>>;
  const float *a = static_cast<const float*>(p[1]), *b = static_cast<const float*>(p[2]);
  float* y = static_cast<float*>(p[0]);
  const Functor<float> alone{};
  for (; n > 0; n -= kCount, a += kCount, b += kCount, y += kCount) {
    Floats x, d = Floats{} + 1.0f;
    const auto bytes = n < kCount ? static_cast<size_t>(n) * sizeof(float) : sizeof x;
    x = Floats{};
    if (bytes == sizeof x) __builtin_memcpy(&x, a, sizeof x), __builtin_memcpy(&d, b, sizeof d);
    else __builtin_memcpy(&x, a, bytes), __builtin_memcpy(&d, b, bytes);
    const VecD wide = widen(x), by = widen(d);
    const VecD quotient = wide / by;
    const VecI64 usual = (quotient < 0x1p28) & (quotient > -0x1p28) & (by - by == 0.0);
    const VecD held = usual ? quotient : VecD{};
    const VecD whole = __builtin_convertvector(__builtin_convertvector(held, Whole), VecD);
    Floats r = narrow(wide - whole * by);
    const Whole sign = reinterpret_cast<Whole>(x) & INT32_MIN;
    r = reinterpret_cast<Floats>((reinterpret_cast<Whole>(r) & INT32_MAX) | sign);
    if constexpr (kOfB) r = ((r != 0.0f) & ((r < 0.0f) != (d < 0.0f))) ? r + d : r;
    bool all = true;
    for (int i = 0; i < kCount; ++i) all = all && usual[i] != 0;
    if (!all)
      for (int i = 0; i < kCount; ++i)
        if (usual[i] == 0) r[i] = alone(x[i], d[i]);
    if (bytes == sizeof r) __builtin_memcpy(y, &r, sizeof r);
    else __builtin_memcpy(y, &r, bytes);
  }
}

}  // namespace weft::kernels::WEFT_ISA_NS
