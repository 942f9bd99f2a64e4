// Softmax cross entropy with class indices: x [R, K], target int64 [R] -> loss, lse [R] (=) in one pass over x (4 bytes per float), backward x -> dx
// [R, K] (=, may be x) in one pass (8 bytes per float). A team takes a row. A target outside [0, K) is reported (fault.h) and counts as ignored.
#include <weft/kernels/cuda/online_softmax.h>

namespace weft::cuda {
namespace {

struct Targets {
  const int64_t* p;
  int64_t step, classes, ignore;
  Fault* fault;
  explicit Targets(const View& target, int64_t k, int64_t ignored, Fault* f)
      : p(target.as<int64_t>()), step(target.stride(0)), classes(k), ignore(ignored), fault(f) {}
  /// The class of row r, or -1 when the row counts for nothing; `report` on one thread of a team.
  WEFT_DEVICE int64_t get(Thread t, int64_t r, bool report) const {
    const int64_t k = p[r * step];
    if (k == ignore) return -1;
    if (k >= 0 && k < classes) return k;
    if (report) fault->report(t, Fault::kTarget, k, classes, r);
    return -1;
  }
};

/// Class weights; absent: all 1. `total` is their sum where smoothing needs it, on the device.
struct Weights {
  Column each;
  const double* total;
  WEFT_DEVICE double of(int64_t k) const { return each.p ? each.get(k) : 1; }
  WEFT_DEVICE double sum(int64_t classes) const { return total ? *total : static_cast<double>(classes); }
};

/// kSmooth: the target shares its probability with all classes.
template <class T, bool kSmooth> struct CrossEntropy {
  using C = Compute<T>;
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<T>;
  Matrix<const T> x;
  Targets target;
  Weights weights;
  double smoothing;
  Column loss, lse;
  int64_t rows, count;
  Team team;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, rows, [&](int64_t r, bool mine) {
      const int64_t n = mine ? count : 0;
      const Line<const T> from = x.line(r);
      Online<C> all;
      C along = 0;  // sum of w x
      add_row<T>(all, team.rank(t), team.size(t), from, n, [&](int64_t k, auto many, const auto& raw) {
        if constexpr (kSmooth) {
          const auto v = numbers<C>(raw);
          for (int i = 0; i < many.value; ++i)
            along += weights.each.p ? v.v[i] * static_cast<C>(weights.each.get(k + i)) : v.v[i];
        }
      });
      all = team.fold(t, all, [](const Online<C>& a, const Online<C>& b) { return a.joined(b); });
      if constexpr (kSmooth) along = team.sum(t, along);
      if (!mine || team.rank(t) != 0) return;
      const double whole = all.logarithm();
      lse.set(r, whole);
      double value = 0;
      if (const int64_t k = target.get(t, r, true); k >= 0) {
        value = (1 - smoothing) * weights.of(k) * (whole - convert<double>(from.p[k * from.step]));
        if constexpr (kSmooth)
          value += smoothing / static_cast<double>(count) *
                   (weights.sum(count) * whole - static_cast<double>(along));
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
  Column lse, g;
  Matrix<T> dx;
  int64_t rows, count;
  Team team;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, rows, [&](int64_t r, bool mine) {
      const int64_t n = mine ? count : 0;
      const Line<const T> from = x.line(r);
      const Line<T> to = dx.line(r);
      const int64_t hit = mine ? target.get(t, r, team.rank(t) == 0) : -1;
      const C shift = mine ? static_cast<C>(lse.get(r)) : C(0);
      C scale = 0, flat = 0;  // dx[k] = scale softmax[k] - flat w[k], less at the target
      if (hit >= 0) {
        const double grad = g.get(r);
        scale = static_cast<C>(grad * ((1 - smoothing) * weights.of(hit) + even() * weights.sum(count))),
        flat = static_cast<C>(grad * even());
      }
      deal<T, 2>(
          team.rank(t), team.size(t), cut_row(n, from, to), n,
          [&](int64_t k, auto many) { return fetch<many.value>(from, k); },
          [&](int64_t k, auto many, const auto& loaded) {
            auto v = numbers<C>(loaded);
            WEFT_UNROLL
            for (int i = 0; i < many.value; ++i) {
              C d = scale * exponential(v.v[i] - shift);
              if constexpr (kSmooth)
                d -= weights.each.p ? flat * static_cast<C>(weights.each.get(k + i)) : flat;
              v.v[i] = hit >= 0 ? d : C(0);
            }
            if (hit >= k && hit < k + many.value) {
              const C d = at_target(r, hit, exponential(convert<C>(from.p[hit * from.step]) - shift));
              WEFT_UNROLL
              for (int i = 0; i < many.value; ++i)
                if (k + i == hit) v.v[i] = d;
            }
            write(to, k, v);
          });
    });
  }
  WEFT_DEVICE double even() const { return kSmooth ? smoothing / static_cast<double>(count) : 0; }
  /// From the probability itself: where it is near 1, the difference keeps its digits.
  WEFT_DEVICE C at_target(int64_t r, int64_t hit, double p) const {
    const double weight = weights.of(hit), uniform = kSmooth ? even() * (weights.sum(count) * p - weight) : 0;
    return static_cast<C>(g.get(r) * ((1 - smoothing) * weight * (p - 1) + uniform));
  }
};

/// The sum of the class weights on the device, where it is needed.
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
                                double smoothing, View loss, View lse) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (rows == 0) return;
  const WeightSum sum(*this, c, weight, smoothing);
  for_floating("cross_entropy", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const TeamGrid team = team_grid(*this, rows, count, kPack<T>);
    const auto run = [&]<bool kSmooth>(std::bool_constant<kSmooth>) {
      launch(stream_of(c), "cross_entropy", team.grid,
             CrossEntropy<T, kSmooth>{Matrix<const T>(x),
                                      Targets(target, count, ignore, fault()),
                                      {Column(weight), sum.get()},
                                      smoothing,
                                      Column(loss),
                                      Column(lse),
                                      rows,
                                      count,
                                      team.team});
    };
    if (smoothing != 0) run(std::true_type());
    else run(std::false_type());
  });
  after_launch();
}

void CudaBackend::cross_entropy_backward(Context& c, View x, View lse, View target, View weight,
                                         int64_t ignore, double smoothing, View g, View dx) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (rows == 0 || count == 0) return;
  const WeightSum sum(*this, c, weight, smoothing);
  for_floating("cross_entropy_backward", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const TeamGrid team = team_grid(*this, rows, count, kPack<T>);
    const auto run = [&]<bool kSmooth>(std::bool_constant<kSmooth>) {
      launch(stream_of(c), "cross_entropy_backward", team.grid,
             CrossEntropyBackward<T, kSmooth>{Matrix<const T>(x),
                                              Targets(target, count, ignore, fault()),
                                              {Column(weight), sum.get()},
                                              smoothing,
                                              Column(lse),
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
