// The operations of a reduction: map() of an element, combine() of two partial results, and the result of no
// elements.
#pragma once

#include <limits>
#include <type_traits>

#include <weft/kernels/cpu/isa/vec.h>
#include <weft/kernels/inner/functors.h>

namespace weft::kernels::WEFT_ISA_NS {

using functors::ring;

template <class C> using Accumulator = std::conditional_t<std::is_floating_point_v<C>, double, int64_t>;

template <class W> constexpr W lowest() {
  return std::is_same_v<W, double> ? static_cast<W>(-std::numeric_limits<double>::infinity())
                                   : std::numeric_limits<W>::min();
}
template <class W> constexpr W highest() {
  return std::is_same_v<W, double> ? static_cast<W>(std::numeric_limits<double>::infinity())
                                   : std::numeric_limits<W>::max();
}

// Integers wrap around; vectors and floating numbers use the plain operators.
template <class V> WEFT_INLINE V plus(V a, V b) {
  if constexpr (std::is_integral_v<V>) return static_cast<V>(ring(a) + ring(b));
  else return a + b;
}
template <class V> WEFT_INLINE V times(V a, V b) {
  if constexpr (std::is_integral_v<V>) return static_cast<V>(ring(a) * ring(b));
  else return a * b;
}
template <class V> WEFT_INLINE V magnitude(V x) {
  if constexpr (std::is_integral_v<V>) return x < 0 ? static_cast<V>(-ring(x)) : x;
  else return x <= 0 ? V{} - x : x;  // +0 of -0 too
}

// map() and combine() work on numbers and on vectors. Merge is the operation that combines partial results.
struct SumOp {
  using Merge = SumOp;
  template <class W> static constexpr W identity() { return 0; }
  template <class V> static V map(V x) { return x; }
  template <class V> static V combine(V a, V b) { return plus(a, b); }
};
struct SumAbsOp : SumOp {
  template <class V> static V map(V x) { return magnitude(x); }
};
struct SumSquaresOp : SumOp {
  template <class V> static V map(V x) { return times(x, x); }
};
struct ProdOp {
  using Merge = ProdOp;
  template <class W> static constexpr W identity() { return 1; }
  template <class V> static V map(V x) { return x; }
  template <class V> static V combine(V a, V b) { return times(a, b); }
};
struct MaxOp {  // NaN wins
  using Merge = MaxOp;
  template <class W> static constexpr W identity() { return lowest<W>(); }
  template <class V> static V map(V x) { return x; }
  template <class V> static V combine(V a, V b) { return ((a > b) | (a != a)) ? a : b; }
};
struct MinOp {
  using Merge = MinOp;
  template <class W> static constexpr W identity() { return highest<W>(); }
  template <class V> static V map(V x) { return x; }
  template <class V> static V combine(V a, V b) { return ((a < b) | (a != a)) ? a : b; }
};
struct MaxAbsOp : MaxOp {
  template <class W> static constexpr W identity() { return 0; }
  template <class V> static V map(V x) { return magnitude(x); }
};
struct AnyOp {
  using Merge = AnyOp;
  template <class W> static constexpr W identity() { return 0; }
  template <class W> static W map(W x) { return x != 0; }
  template <class W> static W combine(W a, W b) { return a != 0 || b != 0; }
};
struct AllOp {
  using Merge = AllOp;
  template <class W> static constexpr W identity() { return 1; }
  template <class W> static W map(W x) { return x != 0; }
  template <class W> static W combine(W a, W b) { return a != 0 && b != 0; }
};
template <class Op>
inline constexpr bool kChooses = std::is_base_of_v<MaxOp, Op> || std::is_base_of_v<MinOp, Op>;
template <class Op> inline constexpr bool kVectors = !std::is_same_v<Op, AnyOp> && !std::is_same_v<Op, AllOp>;

}  // namespace weft::kernels::WEFT_ISA_NS
