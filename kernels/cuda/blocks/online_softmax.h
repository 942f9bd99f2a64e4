// The maximum of a row and the sum of exp(x - maximum) in one pass (online softmax). A thread keeps both and
// rescales its sum if the maximum grows. A team finds its maximum, rescales the sum of each thread once, and
// adds these. NaN does not change the maximum, but makes the sum NaN. Source: Milakov, Gimelshein 2018,
// section 3.
#pragma once

#include <cmath>
#include <limits>

#include <weft/kernels/cuda/blocks/rows.h>

namespace weft::cuda {

/// e^x of the difference from a maximum. For float on a device it is 2^x of a rounded product, two
/// instructions. Its error is up to |x| + 2 units in the last place, and numbers below 2^-126 are 0. No sum
/// of a row can show that, since it contains a 1.
template <class C> WEFT_DEVICE inline C exponential(C x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<C, float>) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 0x1.715476p+0f));
    return y;
  }
#endif
  return std::exp(x);
}

template <class C> struct Online {
  C top = -std::numeric_limits<C>::infinity(), sum = 0;

  /// -infinity adds nothing.
  template <int N> WEFT_DEVICE void add(const Numbers<C, N>& x) {
    C m = top;
    WEFT_UNROLL
    for (int i = 0; i < N; ++i) m = std::fmax(m, x.v[i]);
    if (m > top) {
      sum *= exponential(top - m);
      top = m;
    }
    const C shift = finite_top();
    WEFT_UNROLL
    for (int i = 0; i < N; ++i) sum += exponential(x.v[i] - shift);
  }
  /// The number subtracted in exponents. A row of -infinity only gets the sum 0, and a row with infinity the
  /// sum infinity, unless there is a NaN.
  WEFT_DEVICE C finite_top() const { return top - top != 0 ? C(0) : top; }
  /// The pair of the team's numbers, with the same value on every thread. Reached by the whole block.
  WEFT_DEVICE Online of_team(Thread t, const Team& team) const {
    Online r;
    r.top = team.most(t, top);
    r.sum = team.sum(t, sum * exponential(top == r.top ? C(0) : top - r.top));
    return r;
  }
  /// log(sum exp(x)).
  WEFT_DEVICE C logarithm() const {
    constexpr C inf = std::numeric_limits<C>::infinity();
    return top == inf ? sum : top + std::log(sum);
  }
  /// The divisor of softmax for numbers minus `top`, and its logarithm; NaN for a row with an infinity.
  /// Subtracting `top` first is exact; subtracting log(sum exp(x)) is not if x is large.
  WEFT_DEVICE C divisor() const {
    return top == std::numeric_limits<C>::infinity() ? std::numeric_limits<C>::quiet_NaN() : sum;
  }
  WEFT_DEVICE C divisor_logarithm() const { return std::log(divisor()); }
};

/// Adds the runs of N numbers of `x` at k; k[a] < 0 is no run. They are read together and rescaled once.
/// each(k, many, raw) gets the same numbers in their stored form.
template <int N, int A, class C, class T, class Each>
WEFT_DEVICE void add_runs(Online<C>& all, const Line<const T>& x, const int64_t (&k)[A], const Each& each) {
  Raw<T, N> loaded[A] = {};
  WEFT_UNROLL
  for (int a = 0; a < A; ++a)
    if (k[a] >= 0) loaded[a] = fetch<N>(x, k[a]);
  Numbers<C, A * N> v;
  WEFT_UNROLL
  for (int a = 0; a < A; ++a) {
    const Numbers<C, N> some = numbers<C>(loaded[a]);
    WEFT_UNROLL
    for (int i = 0; i < N; ++i) v.v[a * N + i] = k[a] >= 0 ? some.v[i] : -std::numeric_limits<C>::infinity();
    if (k[a] >= 0) each(k[a], std::integral_constant<int, N>(), loaded[a]);
  }
  all.add(v);
}
/// Adds the part of row `x` [count] that belongs to thread `rank` of `size`.
template <class T, int A = kTogether<T>, class C, class Each>
WEFT_DEVICE void add_row(Online<C>& all, int rank, int size, const Line<const T>& x, int64_t count,
                         const Each& each) {
  unrolled_stride_loop<T, A>(rank, size, packed_range(count, x), count,
                             [&](const int64_t(&k)[A], auto many) { add_runs<many.value>(all, x, k, each); });
}

/// The pair of row `x` [count], with the same value on every thread of the team; `each` as in add_runs.
/// Reached by the whole block.
template <class C, class T, class Each>
WEFT_DEVICE Online<C> online_row(Thread t, const Team& team, const Line<const T>& x, int64_t count,
                                 const Each& each) {
  Online<C> mine;
  add_row<T>(mine, team.rank(t), team.size(t), x, count, each);
  return mine.of_team(t, team);
}

}  // namespace weft::cuda
