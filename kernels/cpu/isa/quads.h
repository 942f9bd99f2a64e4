// Vectors of several times four numbers ("quads"), and shuffles within each quad, for transposes and sums.
#pragma once

#include <utility>

#include <weft/kernels/cpu/isa/vec.h>

namespace weft::kernels::WEFT_ISA_NS {

/// A vector with room for kQuads times four numbers.
template <class T, int kQuads> struct WideOf {
  typedef T Type __attribute__((vector_size((kQuads == 3 ? 4 : kQuads) * 4 * sizeof(T))));
};
template <class T, int kQuads> using Wide = typename WideOf<T, kQuads>::Type;

/// Within each quad: kA to kD name the four numbers of v, 0 to 3 those of a's quad, 4 to 7 those of b's.
template <int kA, int kB, int kC, int kD, class V> WEFT_INLINE void pick(const V& a, const V& b, V& v) {
  constexpr int kCount = sizeof(V) / sizeof(a[0]);
  constexpr auto at = [](int i, int count) {
    const int of[4] = {kA, kB, kC, kD}, k = of[i % 4];
    return i / 4 * 4 + k % 4 + (k < 4 ? 0 : count);
  };
  [&]<int... kI>(std::integer_sequence<int, kI...>) __attribute__((always_inline)) {
    v = __builtin_shufflevector(a, b, at(kI, kCount)...);
  }
  (std::make_integer_sequence<int, kCount>());
}

}  // namespace weft::kernels::WEFT_ISA_NS
