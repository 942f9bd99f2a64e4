// Softmax cross entropy with class indices. Forward reads the logits once and keeps two numbers per row
// (LogSum). Backward reads the logits again and writes dx (=) in the same pass. Memory traffic: 4 bytes per
// float forward, 8 backward. Both in one call take each exponential once: a row's exponentials are written to
// dx while they are summed, and are scaled there while the row is in a cache. That traffic is 8 bytes per
// float in all. Targets are checked before anything is written.
#include <weft/kernels/cpu/isa/backend.h>
#include <weft/kernels/cpu/isa/class_loss.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

/// Row r of log_sums [R, 2], of the compute type of C.
template <class C> C* log_sum_at(const View& log_sums, int64_t r) {
  return log_sums.as<C>() + r * log_sums.stride(0);
}

/// The loss of rows, and its gradient: dx[k] = scale * softmax[k] - flat * w[k] - own at the target.
template <class C> struct RowLoss {
  RowLoss(const View& weight, int64_t classes, double smooth)
      : count(classes),
        weights(weight, classes),
        smoothing(smooth),
        even(smooth / static_cast<double>(classes)) {}

  double own(int64_t t) const { return (1 - smoothing) * weights.of(t); }

  double value(const C* x, int64_t t, LogSum<C> sum) const {
    const double log = static_cast<double>(sum.log);
    double loss = own(t) * (log - (static_cast<double>(x[t]) - static_cast<double>(sum.top)));
    if (smoothing != 0) loss += even * (weights.sum * log - weighted_sum(count, sum.top, x, weights.each));
    return loss;
  }

  /// scale / the sum of the row's exponentials.
  C factor(int64_t t, double grad, double share) const {
    return static_cast<C>(grad * (own(t) + even * weights.sum)) * static_cast<C>(share);
  }

  /// dx[k] of elements k = begin .. end - 1, of which scaled(x[k]) is scale * softmax[k].
  template <class F>
  WEFT_INLINE void gradient(int64_t begin, int64_t end, double grad, const F& scaled, const C* x,
                            C* to) const {
    const C flat = static_cast<C>(grad * even);
    if (weights.each && smoothing != 0)
      map_row(
          end - begin,
          to + begin, [=](Vec<C> v, Vec<C> u) __attribute__((always_inline)) { return scaled(v) - flat * u; },
          x + begin, weights.each + begin);
    else
      map_row(
          end - begin, to + begin, [=](Vec<C> v) __attribute__((always_inline)) { return scaled(v) - flat; },
          x + begin);
  }

  /// dx of the target, from its probability itself, so that no digits cancel if it is near 1.
  C at_target(int64_t t, double grad, double p) const {
    return static_cast<C>(grad * (own(t) * (p - 1) + even * (weights.sum * p - weights.of(t))));
  }

  const int64_t count;
  const Weights<C> weights;
  const double smoothing, even;
};

/// 1 / the sum of a row's exponentials below its maximum.
template <class C> double share_of(LogSum<C> sum) { return __builtin_exp(-static_cast<double>(sum.log)); }

/// A row's exponentials, each below the largest number so far when its block was read. In blocks before the
/// first number above -inf they are 0, and the shift is -inf.
template <class C> struct Exponentials {
  static constexpr int64_t kBlock = 2048;
  explicit Exponentials(int64_t classes) : count(classes), shifts(classes / kBlock + 1) {}

  /// Reads the row, as log_sum_row does, and writes its exponentials to e.
  LogSum<C> read(const C* x, C* e) const {
    const C lowest = -__builtin_inf();
    C top = lowest, sum = 0;
    for (int64_t k = 0; k < count; k += kBlock) {
      const int64_t here = size(k);
      const C block_top = max_row(here, x + k);
      if (block_top > top) {
        sum *= static_cast<C>(__builtin_exp(static_cast<double>(top - block_top)));
        top = block_top;
      }
      shifts.get()[k / kBlock] = top;
      const C shift = top == lowest ? C(0) : top;  // so that the exponentials of -inf are 0
      sum += exp_row(here, x + k, shift, e + k, x + k + kBlock);
    }
    if (top == static_cast<C>(__builtin_inf())) sum = static_cast<C>(__builtin_nan(""));
    return {top, static_cast<C>(__builtin_log(static_cast<double>(sum)))};
  }

  C shift(int64_t k) const { return shifts.get()[k / kBlock]; }
  int64_t size(int64_t k) const { return count - k < kBlock ? count - k : kBlock; }

  const int64_t count;
  const Scratch<C> shifts;
};

}  // namespace

void IsaBackend::cross_entropy(Context&, View x, View target, View weight, int64_t ignore, double smoothing,
                               View loss, View log_sums) {
  const int64_t rows = x.size(0), count = x.size(1);
  check_targets(target, rows, count, ignore);
  dispatch_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = RowType<T>;
    const RowLoss<C> of_row(weight, count, smoothing);
    each_rows(rows, count, [&](int64_t begin, int64_t end) {
      const Scratch<C> in(count);
      const RowReader<T> read(x, in.get());
      for (int64_t r = begin; r < end; ++r) {
        const int64_t t = target.as<int64_t>()[r * target.stride(0)];
        const C* row = read(r);
        const LogSum<C> sum = softmax_log_sum(count, row);
        C* const kept = log_sum_at<C>(log_sums, r);
        kept[0] = sum.top, kept[log_sums.stride(1)] = sum.log;
        set_number(loss, r, t == ignore ? 0 : of_row.value(row, t, sum));
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
    const RowLoss<C> of_row(weight, count, smoothing);
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
          const C* const kept = log_sum_at<C>(log_sums, r);
          const LogSum<C> sum{kept[0], kept[log_sums.stride(1)]};
          const C* row = read(r);
          const C mine = row[t];  // read first: dx may be x
          const double grad = get_number(g, r), share = share_of(sum);
          const C top = sum.top, factor = of_row.factor(t, grad, share);
          of_row.gradient(
              0, count,
              grad, [=](Vec<C> v) __attribute__((always_inline)) { return vexp_below<C>(v - top) * factor; },
              row, to);
          to[t] = of_row.at_target(t, grad, vexp_below<C>(splat(mine - top))[0] * static_cast<C>(share));
        }
        write.commit(r);
      }
    });
  });
}

bool IsaBackend::cross_entropy_both(Context&, View x, View target, View weight, int64_t ignore,
                                    double smoothing, View g, View loss, View log_sums, View dx) {
  if (is_half(x.dtype)) return false;
  const int64_t rows = x.size(0), count = x.size(1);
  check_targets(target, rows, count, ignore);
  dispatch_floating(x.dtype, [&](auto tag) {
    using C = RowType<typename decltype(tag)::type>;
    const RowLoss<C> of_row(weight, count, smoothing);
    each_rows(rows, count, [&](int64_t begin, int64_t end) {
      const Scratch<C> in(count), out(count);
      const RowReader<C> read(x, in.get());
      const RowWriter<C> write(dx, out.get());
      const Exponentials<C> each(count);
      for (int64_t r = begin; r < end; ++r) {
        const int64_t t = target.as<int64_t>()[r * target.stride(0)];
        const C* row = read(r);
        C* to = write(r);
        const LogSum<C> sum = each.read(row, to);
        C* const kept = log_sum_at<C>(log_sums, r);
        kept[0] = sum.top, kept[log_sums.stride(1)] = sum.log;
        if (t == ignore) {
          set_number(loss, r, 0);
          for (int64_t k = 0; k < count; ++k) to[k] = 0;
        } else {
          set_number(loss, r, of_row.value(row, t, sum));
          const double grad = get_number(g, r), share = share_of(sum);
          const C factor = of_row.factor(t, grad, share);
          for (int64_t k = 0; k < count; k += each.kBlock) {
            const C here =
                factor * static_cast<C>(__builtin_exp(static_cast<double>(each.shift(k) - sum.top)));
            of_row.gradient(
                k, k + each.size(k), grad, [=](Vec<C> e) __attribute__((always_inline)) { return e * here; },
                to, to);
          }
          to[t] =
              of_row.at_target(t, grad, vexp_below<C>(splat(row[t] - sum.top))[0] * static_cast<C>(share));
        }
        write.commit(r);
      }
    });
  });
  return true;
}

}  // namespace weft::kernels::WEFT_ISA_NS
