// The maximum of a row and the sum of exp(x - maximum) in one pass: a thread carries both and rescales its sum when the maximum grows; two such
// pairs join the same way (Milakov, Gimelshein 2018, section 3). NaN passes the maximum by and shows in the sum.
#pragma once

#include <cmath>
#include <limits>

#include <weft/kernels/cuda/rows.h>

namespace weft::cuda {

template <class C> WEFT_DEVICE inline C exponential(C x) { return std::exp(x); }

template <class C> struct Online {
  C top = -std::numeric_limits<C>::infinity(), sum = 0;

  template <int N> WEFT_DEVICE void add(const Numbers<C, N>& x) {
    C m = x.v[0];
    for (int i = 1; i < N; ++i) m = x.v[i] > m || m != m ? x.v[i] : m;
    if (m > top) {
      sum *= exponential(top - m);
      top = m;
    }
    const C shift = finite_top();
    for (int i = 0; i < N; ++i) sum += exponential(x.v[i] - shift);
  }
  /// What exponents are taken against: a row of -infinity alone has a sum of 0, not NaN.
  WEFT_DEVICE C finite_top() const { return top == -std::numeric_limits<C>::infinity() ? C(0) : top; }
  WEFT_DEVICE Online joined(const Online& o) const {
    Online r;
    r.top = o.top > top ? o.top : top;
    r.sum = scaled(r.top) + o.scaled(r.top);
    return r;
  }
  /// log(sum exp(x)).
  WEFT_DEVICE C logarithm() const {
    constexpr C inf = std::numeric_limits<C>::infinity();
    if (top == inf || (top == -inf && sum == sum)) return top;
    return top == -inf ? sum : top + std::log(sum);
  }

 private:
  WEFT_DEVICE C scaled(C to) const { return top == to ? sum : sum * exponential(top - to); }
};

/// The pair of row `x` [count], the same on every thread of the team. Reached by the whole block.
template <class C, class T> WEFT_DEVICE Online<C> online_row(Thread t, const Team& team, const Line<const T>& x, int64_t count) {
  Online<C> mine;
  deal<T>(team.rank(t), team.size(t), cut_row(count, x), count, [&](int64_t k, auto many) { mine.add(read<C, many.value>(x, k)); });
  return team.fold(t, mine, [](const Online<C>& a, const Online<C>& b) { return a.joined(b); });
}

}  // namespace weft::cuda
