// Softmax, log-softmax and logsumexp over the last dim. x [R, K] -> y [R, K] (=) or y [R] (=). Softmax reads
// a row for its maximum, writes exp(x - max) while summing, then scales. These are three passes in cache, 8
// bytes of memory traffic per float. Log-softmax subtracts the row's maximum, then the logarithm of that sum.
// The backward kernels use y only: dx = y (dy - sum y dy) for softmax, dx = dy - exp(y) sum dy for
// log-softmax.
#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/rows.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

template <class T> void softmax_row(int64_t count, const T* x, T* y) {
  const T top = max_row(count, x);
  const T scale = 1 / exp_row(count, x, top, y);
  map_row(
      count, y, [scale](Vec<T> v) __attribute__((always_inline)) { return v * scale; }, y);
}

}  // namespace

void IsaBackend::softmax(Context&, bool log, View x, View y) {
  const int64_t count = x.size(1);
  if (count == 0) return;
  dispatch_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = RowType<T>;
    each_rows(x.size(0), count, [&](int64_t begin, int64_t end) {
      const Scratch<C> in(count), out(count);
      const RowReader<T> read(x, in.get());
      const RowWriter<T> write(y, out.get());
      for (int64_t r = begin; r < end; ++r) {
        const C* from = read(r);
        C* to = write(r);
        if (log) {
          const LogSum<C> sum = softmax_log_sum(count, from);
          map_row(
              count, to, [sum](Vec<C> v) __attribute__((always_inline)) { return (v - sum.top) - sum.log; },
              from);
        } else {
          softmax_row(count, from, to);
        }
        write.commit(r);
      }
    });
  });
}

void IsaBackend::softmax_backward(Context&, bool log, View y, View dy, View dx) {
  const int64_t count = y.size(1);
  if (count == 0) return;
  dispatch_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = RowType<T>;
    each_rows(y.size(0), count, [&](int64_t begin, int64_t end) {
      const Scratch<C> first(count), second(count), out(count);
      const RowReader<T> read_y(y, first.get()), read_dy(dy, second.get());
      const RowWriter<T> write(dx, out.get());
      for (int64_t r = begin; r < end; ++r) {
        const C *p = read_y(r), *g = read_dy(r);
        C* to = write(r);
        if (log) {
          const C sum = sum_row<C>(
              count, [](Vec<C> v) __attribute__((always_inline)) { return v; }, g);
          map_row(
              count,
              to, [sum](Vec<C> q, Vec<C> v) __attribute__((always_inline)) { return v - vexp<C>(q) * sum; },
              p, g);
        } else {
          const C sum = sum_row<C>(
              count, [](Vec<C> q, Vec<C> v) __attribute__((always_inline)) { return q * v; }, p, g);
          map_row(
              count, to, [sum](Vec<C> q, Vec<C> v) __attribute__((always_inline)) { return q * (v - sum); },
              p, g);
        }
        write.commit(r);
      }
    });
  });
}

void IsaBackend::logsumexp(Context&, View x, View y) {
  const int64_t count = x.size(1);
  dispatch_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = RowType<T>;
    each_rows(x.size(0), count, [&](int64_t begin, int64_t end) {
      const Scratch<C> in(count);
      const RowReader<T> read(x, in.get());
      for (int64_t r = begin; r < end; ++r) {
        const LogSum<C> sum = log_sum_row(count, read(r));
        set_number(y, r, sum.top + sum.log);
      }
    });
  });
}

}  // namespace weft::kernels::WEFT_ISA_NS
