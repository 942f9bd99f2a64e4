// Layer normalisation over the last dim: x [R, K], weight and bias [K]; mean and rstd [R] are kept for
// backward. Forward reads a row three times, in cache. Backward writes dx (=) row by row. It sums dweight and
// dbias (=) over parts of the rows, then over the parts in order. The number of parts depends on the shape
// only.
#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/rows.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

/// A vector view [K] as contiguous numbers; null if absent.
template <class C> const C* dense(V v, C* buffer) {
  if (!v.defined()) return nullptr;
  for (int64_t k = 0; k < v.size(0); ++k) buffer[k] = static_cast<C>(get_number(v, k));
  return buffer;
}

/// Sums of v - near and of its squares over a row.
template <class C> struct Around { C sum, squares; };

/// The first sum corrects the rounding error of `near`: equal numbers then differ from their mean by 0.
template <class C> WEFT_INLINE Around<C> sums_around(int64_t count, const C* x, C near) {
  Vec<C> sum[2] = {}, squares[2] = {};
  const auto add = [&](int u, Vec<C> d) __attribute__((always_inline)) { sum[u] += d, squares[u] += d * d; };
  int64_t k = 0;
  for (; k + 2 * kLanes<C> <= count; k += 2 * kLanes<C>)
#pragma GCC unroll 2
    for (int u = 0; u < 2; ++u) add(u, load(x + k + u * kLanes<C>) - near);
  for (; k < count; k += kLanes<C>)
    add(0, load_part(x + k, count - k < kLanes<C> ? count - k : kLanes<C>, near) - near);
  return {sum_lanes<C>(sum[0] + sum[1]), sum_lanes<C>(squares[0] + squares[1])};
}

}  // namespace

void IsaBackend::layer_norm(Context&, View x, View weight, View bias, double eps, View y, View mean,
                            View rstd) {
  const int64_t rows = x.size(0), count = x.size(1);
  dispatch_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = RowType<T>;
    const Scratch<C> weight_buffer(weight.defined() ? count : 1), bias_buffer(bias.defined() ? count : 1);
    const C *w = dense(weight, weight_buffer.get()), *b = dense(bias, bias_buffer.get());
    each_rows(rows, count, [&](int64_t begin, int64_t end) {
      const Scratch<C> in(count), out(count);
      const RowReader<T> read(x, in.get());
      const RowWriter<T> write(y, out.get());
      for (int64_t r = begin; r < end; ++r) {
        const C* from = read(r);
        C* to = write(r);
        const C n = static_cast<C>(count);
        const C near = sum_row<C>(
                           count, [](Vec<C> v) __attribute__((always_inline)) { return v; }, from) /
                       n;
        const Around<C> a = sums_around(count, from, near);
        const C m = near + a.sum / n, left = a.squares - a.sum * (a.sum / n), squares = left < 0 ? 0 : left;
        const C s = static_cast<C>(1 / __builtin_sqrt(static_cast<double>(squares / n) + eps));
        if (w && b)
          map_row(
              count, to,
              [=](Vec<C> v, Vec<C> p, Vec<C> q)
                  __attribute__((always_inline)) { return (v - m) * s * p + q; },
              from, w, b);
        else if (w)
          map_row(
              count, to, [=](Vec<C> v, Vec<C> p) __attribute__((always_inline)) { return (v - m) * s * p; },
              from, w);
        else if (b)
          map_row(
              count, to, [=](Vec<C> v, Vec<C> q) __attribute__((always_inline)) { return (v - m) * s + q; },
              from, b);
        else
          map_row(
              count, to, [=](Vec<C> v) __attribute__((always_inline)) { return (v - m) * s; }, from);
        write.commit(r);
        if (mean.defined()) set_number(mean, r, m);
        if (rstd.defined()) set_number(rstd, r, s);
      }
    });
  });
}

namespace {

template <class T> void backward(V x, V weight, V mean, V rstd, V dy, V dx, V dweight, V dbias) {
  using C = RowType<T>;
  const int64_t rows = x.size(0), count = x.size(1);
  const Scratch<C> weight_buffer(weight.defined() ? count : 1);
  const C* w = dense(weight, weight_buffer.get());
  const int64_t least = 1 + 16384 / (count + 1), sixteenth = (rows + 15) / 16;
  const Parts parts(rows, least > sixteenth ? least : sixteenth);
  const bool sums = dweight.defined() || dbias.defined();
  const Scratch<C> partial(sums ? parts.count * 2 * count + 1 : 1);
  each_task(parts.count, [&](int64_t part) {
    const Scratch<C> first(count), second(count), out(count), weighted(count);
    const RowReader<T> read_x(x, first.get()), read_dy(dy, second.get());
    C *to_weight = partial.get() + part * 2 * count, *to_bias = to_weight + count;
    if (sums)
      for (int64_t k = 0; k < 2 * count; ++k) to_weight[k] = 0;
    for (int64_t r = parts.begin(part); r < parts.begin(part + 1); ++r) {
      const C *from = read_x(r), *g = read_dy(r);
      const C m = static_cast<C>(get_number(mean, r)), s = static_cast<C>(get_number(rstd, r));
      if (sums) {
        map_row(
            count, to_weight,
            [=](Vec<C> a, Vec<C> v, Vec<C> h)
                __attribute__((always_inline)) { return a + h * ((v - m) * s); },
            to_weight, from, g);
        map_row(
            count, to_bias, [](Vec<C> a, Vec<C> h) __attribute__((always_inline)) { return a + h; }, to_bias,
            g);
      }
      if (!dx.defined()) continue;
      const C* h = g;
      if (w) {
        map_row(
            count, weighted.get(), [](Vec<C> a, Vec<C> p) __attribute__((always_inline)) { return a * p; }, g,
            w);
        h = weighted.get();
      }
      const C n = static_cast<C>(count);
      const C average = sum_row<C>(
                            count, [](Vec<C> a) __attribute__((always_inline)) { return a; }, h) /
                        n;
      const C along =
          sum_row<C>(
              count, [=](Vec<C> a, Vec<C> v) __attribute__((always_inline)) { return a * ((v - m) * s); }, h,
              from) /
          n;
      const RowWriter<T> write(dx, out.get());
      map_row(
          count, write(r),
          [=](Vec<C> a, Vec<C> v)
              __attribute__((always_inline)) { return s * (a - average - (v - m) * s * along); },
          h, from);
      write.commit(r);
    }
  });
  const auto total = [&](V to, int64_t offset) {
    if (!to.defined()) return;
    for (int64_t k = 0; k < count; ++k) {
      C sum = 0;
      for (int64_t part = 0; part < parts.count; ++part) sum += partial.get()[part * 2 * count + offset + k];
      set_number(to, k, sum);
    }
  };
  total(dweight, 0);
  total(dbias, count);
}

}  // namespace

void IsaBackend::layer_norm_backward(Context&, View x, View weight, View mean, View rstd, View dy, View dx,
                                     View dweight, View dbias) {
  dispatch_floating(x.dtype, [&](auto tag) {
    backward<typename decltype(tag)::type>(x, weight, mean, rstd, dy, dx, dweight, dbias);
  });
}

}  // namespace weft::kernels::WEFT_ISA_NS
