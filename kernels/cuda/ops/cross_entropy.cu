// Softmax cross entropy with class indices. Forward: x [R, K], target int64 [R] -> loss [R], log_sums [R, 2]
// (=) in one pass over x, 4 bytes per float. Backward: x -> dx [R, K] (=, may be x) in one pass, 8 bytes per
// float. A team processes a row. A target outside [0, K) is reported (fault.h) and counts as ignored.
#include <weft/kernels/cuda/blocks/online_softmax.h>

namespace weft::cuda {
namespace {

struct Targets {
  const int64_t* p;
  int64_t step, classes, ignore;
  Fault* fault;
  explicit Targets(const View& target, int64_t k, int64_t ignored, Fault* f)
      : p(target.as<int64_t>()), step(target.stride(0)), classes(k), ignore(ignored), fault(f) {}
  /// The class of row r, or -1 if the row is ignored; `report` is true on one thread of a team.
  WEFT_DEVICE int64_t get(Thread t, int64_t r, bool report) const {
    const int64_t k = p[r * step];
    if (k == ignore) return -1;
    if (k >= 0 && k < classes) return k;
    if (report) fault->report(t, Fault::kTarget, k, classes, r);
    return -1;
  }
};

/// Class weights; absent: all 1. `total` is their sum on the device, if smoothing needs it.
struct Weights {
  Column each;
  const double* total;
  WEFT_DEVICE double of(int64_t k) const { return each.p ? each.get(k) : 1; }
  WEFT_DEVICE double sum(int64_t classes) const { return total ? *total : static_cast<double>(classes); }
};

/// For each row the maximum and the logarithm of sum exp(x - maximum).
struct LogSums {
  Column top, log;
  explicit LogSums(const View& v) : top(column(v, 0)), log(column(v, 1)) {}

 private:
  static Column column(const View& v, int64_t k) {
    Column c(v);
    c.p = static_cast<char*>(c.p) + k * v.stride(1) * size_of(v.dtype);
    return c;
  }
};

/// kSmooth: with label smoothing.
template <class T, bool kSmooth> struct CrossEntropy {
  using C = Compute<T>;
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<T>;
  Matrix<const T> x;
  Targets target;
  Weights weights;
  double smoothing;
  Column loss;
  LogSums kept;
  int64_t rows, count;
  Team team;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, rows, [&](int64_t r, bool mine) {
      const int64_t n = mine ? count : 0;
      const Line<const T> from = x.line(r);
      Online<C> all;
      const int64_t k = mine ? target.get(t, r, team.rank(t) == 0) : -1;
      const C near = k >= 0 ? convert<C>(from.p[k * from.step]) : C(0),
              origin = near - near == 0 ? near : C(0);
      C along = 0;  // sum of w (x - origin)
      add_row<T>(all, team.rank(t), team.size(t), from, n, [&](int64_t first, auto many, const auto& raw) {
        if constexpr (kSmooth) {
          const auto v = numbers<C>(raw);
          for (int i = 0; i < many.value; ++i) {
            const C away = v.v[i] - origin;
            along += weights.each.p ? away * static_cast<C>(weights.each.get(first + i)) : away;
          }
        }
      });
      all = all.of_team(t, team);
      if constexpr (kSmooth) along = team.sum(t, along);
      if (!mine || team.rank(t) != 0) return;
      const double log = all.divisor_logarithm(), top = all.top;
      kept.top.set(r, top), kept.log.set(r, log);
      double value = 0;
      if (k >= 0) {
        value = (1 - smoothing) * weights.of(k) * (log - (static_cast<double>(near) - top));
        if constexpr (kSmooth) {
          const double whole = log + (top - static_cast<double>(origin));
          value += smoothing / static_cast<double>(count) *
                   (weights.sum(count) * whole - static_cast<double>(along));
        }
      }
      loss.set(r, value);
    });
  }
};

template <class T, bool kSmooth> struct CrossEntropyBackward {
  using C = Compute<T>;
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<T>;
  Matrix<const T> x;
  Targets target;
  Weights weights;
  double smoothing;
  LogSums kept;
  Column g;
  Matrix<T> dx;
  int64_t rows, count;
  Team team;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, rows, [&](int64_t r, bool mine) {
      const int64_t n = mine ? count : 0;
      const Line<const T> from = x.line(r);
      const Line<T> to = dx.line(r);
      const int64_t hit = mine ? target.get(t, r, team.rank(t) == 0) : -1;
      const C top = mine ? static_cast<C>(kept.top.get(r)) : C(0);
      const C log = mine ? static_cast<C>(kept.log.get(r)) : C(0);
      C scale = 0, flat = 0;  // dx[k] = scale softmax[k] - flat w[k], less at the target
      if (hit >= 0) {
        const double grad = g.get(r);
        scale = static_cast<C>(grad * ((1 - smoothing) * weights.of(hit) + even() * weights.sum(count))),
        flat = static_cast<C>(grad * even());
      }
      stride_loop<T, 2>(
          team.rank(t), team.size(t), packed_range(n, from, to), n,
          [&](int64_t k, auto many) { return fetch<many.value>(from, k); },
          [&](int64_t k, auto many, const auto& loaded) {
            auto v = numbers<C>(loaded);
            WEFT_UNROLL
            for (int i = 0; i < many.value; ++i) {
              C d = scale * exponential((v.v[i] - top) - log);
              if constexpr (kSmooth)
                d -= weights.each.p ? flat * static_cast<C>(weights.each.get(k + i)) : flat;
              v.v[i] = hit >= 0 ? d : C(0);
            }
            if (hit >= k && hit < k + many.value) {
              const C d = at_target(r, hit, std::exp((convert<C>(from.p[hit * from.step]) - top) - log));
              WEFT_UNROLL
              for (int i = 0; i < many.value; ++i)
                if (k + i == hit) v.v[i] = d;
            }
            write(to, k, v);
          });
    });
  }
  WEFT_DEVICE double even() const { return kSmooth ? smoothing / static_cast<double>(count) : 0; }
  /// Computed from the probability, so that no digits cancel if it is near 1.
  WEFT_DEVICE C at_target(int64_t r, int64_t hit, double p) const {
    const double weight = weights.of(hit), uniform = kSmooth ? even() * (weights.sum(count) * p - weight) : 0;
    return static_cast<C>(g.get(r) * ((1 - smoothing) * weight * (p - 1) + uniform));
  }
};

/// The sum of the class weights on the device, if it is needed.
class WeightSum {
 public:
  WeightSum(CudaBackend& b, Context& c, const View& weight, double smoothing)
      : room_(b, c, weight.defined() && smoothing != 0 ? sizeof(double) : 0) {
    if (room_.as<double>()) b.reduce(c, Reduce::kSum, weight, {room_.as<double>(), kFloat64, {1}, {1}});
  }
  const double* get() const { return room_.as<double>(); }

 private:
  const Scratch room_;
};

}  // namespace

void CudaBackend::cross_entropy(Context& c, View x, View target, View weight, int64_t ignore,
                                double smoothing, View loss, View log_sums) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (rows == 0) return;
  const WeightSum sum(*this, c, weight, smoothing);
  for_floating("cross_entropy", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const TeamGrid team = team_grid(rows, count, kPack<T>);
    const auto run = [&]<bool kSmooth>(std::bool_constant<kSmooth>) {
      launch(stream_of(c), "cross_entropy", team.grid,
             CrossEntropy<T, kSmooth>{Matrix<const T>(x),
                                      Targets(target, count, ignore, fault()),
                                      {Column(weight), sum.get()},
                                      smoothing,
                                      Column(loss),
                                      LogSums(log_sums),
                                      rows,
                                      count,
                                      team.team});
    };
    if (smoothing != 0) run(std::true_type());
    else run(std::false_type());
  });
  after_launch();
}

void CudaBackend::cross_entropy_backward(Context& c, View x, View log_sums, View target, View weight,
                                         int64_t ignore, double smoothing, View g, View dx) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (rows == 0 || count == 0) return;
  const WeightSum sum(*this, c, weight, smoothing);
  for_floating("cross_entropy_backward", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const TeamGrid team = team_grid(rows, count, kPack<T>);
    const auto run = [&]<bool kSmooth>(std::bool_constant<kSmooth>) {
      launch(stream_of(c), "cross_entropy_backward", team.grid,
             CrossEntropyBackward<T, kSmooth>{Matrix<const T>(x),
                                              Targets(target, count, ignore, fault()),
                                              {Column(weight), sum.get()},
                                              smoothing,
                                              LogSums(log_sums),
                                              Column(g),
                                              Matrix<T>(dx),
                                              rows,
                                              count,
                                              team.team});
    };
    if (smoothing != 0) run(std::true_type());
    else run(std::false_type());
  });
  after_launch();
}

}  // namespace weft::cuda
