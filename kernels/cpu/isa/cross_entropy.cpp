// Softmax cross entropy with class indices. Forward reads the logits once and keeps two numbers per row
// (LogSum). Backward reads the logits again and writes dx (=) in the same pass. Memory traffic: 4 bytes per
// float forward, 8 backward. Targets are checked before anything is written.
#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/class_loss.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

/// Row r of log_sums [R, 2], of the compute type of C.
template <class C> C* log_sum_at(const View& log_sums, int64_t r) {
  return log_sums.as<C>() + r * log_sums.stride(0);
}

}  // namespace

void IsaBackend::cross_entropy(Context&, View x, View target, View weight, int64_t ignore, double smoothing,
                               View loss, View log_sums) {
  const int64_t rows = x.size(0), count = x.size(1);
  check_targets(target, rows, count, ignore);
  dispatch_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = RowType<T>;
    const Weights<C> weights(weight, count);
    const double even = smoothing / static_cast<double>(count);
    each_rows(rows, count, [&](int64_t begin, int64_t end) {
      const Scratch<C> in(count);
      const RowReader<T> read(x, in.get());
      for (int64_t r = begin; r < end; ++r) {
        const int64_t t = target.as<int64_t>()[r * target.stride(0)];
        const C* row = read(r);
        const LogSum<C> sum = softmax_log_sum(count, row);
        C* const kept = log_sum_at<C>(log_sums, r);
        kept[0] = sum.top, kept[log_sums.stride(1)] = sum.log;
        double value = 0;
        if (t != ignore) {
          const double log = static_cast<double>(sum.log);
          value = (1 - smoothing) * weights.of(t) *
                  (log - (static_cast<double>(row[t]) - static_cast<double>(sum.top)));
          if (smoothing != 0)
            value += even * (weights.sum * log - weighted_sum(count, sum.top, row, weights.each));
        }
        set_number(loss, r, value);
      }
    });
  });
}

void IsaBackend::cross_entropy_backward(Context&, View x, View log_sums, View target, View weight,
                                        int64_t ignore, double smoothing, View g, View dx) {
  const int64_t rows = x.size(0), count = x.size(1);
  check_targets(target, rows, count, ignore);
  dispatch_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = RowType<T>;
    const Weights<C> weights(weight, count);
    const double even = smoothing / static_cast<double>(count);
    each_rows(rows, count, [&](int64_t begin, int64_t end) {
      const Scratch<C> in(count), out(count);
      const RowReader<T> read(x, in.get());
      const RowWriter<T> write(dx, out.get());
      for (int64_t r = begin; r < end; ++r) {
        const int64_t t = target.as<int64_t>()[r * target.stride(0)];
        C* to = write(r);
        if (t == ignore) {
          for (int64_t k = 0; k < count; ++k) to[k] = 0;
        } else {
          // dx[k] = scale * softmax[k] - flat * w[k] - own at the target
          const double grad = get_number(g, r), own = (1 - smoothing) * weights.of(t);
          const C scale = static_cast<C>(grad * (own + even * weights.sum)),
                  flat = static_cast<C>(grad * even);
          const C* const kept = log_sum_at<C>(log_sums, r);
          const C top = kept[0],
                  share = static_cast<C>(__builtin_exp(-static_cast<double>(kept[log_sums.stride(1)]))),
                  factor = scale * share;
          const auto scaled = [=](Vec<C> v) __attribute__((always_inline)) {
            return vexp_below<C>(v - top) * factor;
          };
          const C* row = read(r);
          const C mine = row[t];  // read first: dx may be x
          if (weights.each && smoothing != 0)
            map_row(
                count,
                to, [=](Vec<C> v, Vec<C> u) __attribute__((always_inline)) { return scaled(v) - flat * u; },
                row, weights.each);
          else
            map_row(
                count, to, [=](Vec<C> v) __attribute__((always_inline)) { return scaled(v) - flat; }, row);
          // The target's element from the probability itself, so that no digits cancel if it is near 1.
          const C p = vexp_below<C>(splat(mine - top))[0] * share;
          to[t] = static_cast<C>(grad * (own * (static_cast<double>(p) - 1) +
                                         even * (weights.sum * static_cast<double>(p) - weights.of(t))));
        }
        write.commit(r);
      }
    });
  });
}

}  // namespace weft::kernels::WEFT_ISA_NS
