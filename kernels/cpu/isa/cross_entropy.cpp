// Softmax cross entropy with class indices. Forward reads the logits once and keeps one number per row (logsumexp); backward reads them
// again and writes dx (=) in the same pass: 4 bytes per float forward, 8 backward. Targets are checked before anything is written.
#include <weft/kernels/cpu/isa/rows.h>
#include <weft/kernels/cpu/isa_table.h>
#include <weft/kernels/cpu/rows.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

void check_targets(V target, int64_t rows, int64_t classes, int64_t ignore) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = target.as<int64_t>()[r * target.stride(0)];
    if (t != ignore && (t < 0 || t >= classes)) throw_bad_target(t, r, classes);
  }
}

/// The class weights as numbers of the row type with their sum; without weights null and K.
template <class C> struct Weights {
  Scratch<C> buffer;
  const C* each = nullptr;
  double sum;

  Weights(const View& weight, int64_t classes) : sum(static_cast<double>(classes)) {
    if (!weight.defined()) return;
    buffer.resize(classes + 1);
    sum = 0;
    for (int64_t k = 0; k < classes; ++k) sum += buffer.get()[k] = static_cast<C>(get_number(weight, k));
    each = buffer.get();
  }
  double of(int64_t target) const { return each ? static_cast<double>(each[target]) : 1.0; }
};

/// sum_k w[k] x[k].
template <class C> double weighted_sum(int64_t count, const C* x, const C* w) {
  if (w)
    return sum_row<C>(
        count, [](Vec<C> v, Vec<C> u) __attribute__((always_inline)) { return v * u; }, x, w);
  return sum_row<C>(
      count, [](Vec<C> v) __attribute__((always_inline)) { return v; }, x);
}

void cross_entropy(V x, V target, V weight, int64_t ignore, double smoothing, V loss, V lse) {
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
        const double whole = logsumexp_row(count, row);
        set_number(lse, r, whole);
        double value = 0;
        if (t != ignore) {
          value = (1 - smoothing) * weights.of(t) * (whole - static_cast<double>(row[t]));
          if (smoothing != 0) value += even * (weights.sum * whole - weighted_sum(count, row, weights.each));
        }
        set_number(loss, r, value);
      }
    });
  });
}

void cross_entropy_backward(V x, V lse, V target, V weight, int64_t ignore, double smoothing, V g, V dx) {
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
          const C shift = static_cast<C>(get_number(lse, r));
          const C* row = read(r);
          const C mine = row[t];  // read first: dx may be x
          if (weights.each && smoothing != 0)
            map_row(
                count, to,
                [=](Vec<C> v, Vec<C> u)
                    __attribute__((always_inline)) { return vexp_below<C>(v - shift) * scale - flat * u; },
                row, weights.each);
          else
            map_row(
                count, to,
                [=](Vec<C> v)
                    __attribute__((always_inline)) { return vexp_below<C>(v - shift) * scale - flat; },
                row);
          // The target's element from the probability itself: where it is near 1, the difference keeps its digits.
          const C p = vexp_below<C>(splat(mine - shift))[0];
          to[t] = static_cast<C>(grad * (own * (static_cast<double>(p) - 1) +
                                         even * (weights.sum * static_cast<double>(p) - weights.of(t))));
        }
        write.commit(r);
      }
    });
  });
}

}  // namespace

void fill_cross_entropy(IsaTable& t) {
  t.cross_entropy = cross_entropy;
  t.cross_entropy_backward = cross_entropy_backward;
}

}  // namespace weft::kernels::WEFT_ISA_NS
