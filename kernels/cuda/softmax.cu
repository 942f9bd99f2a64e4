// Softmax, log-softmax and logsumexp over the last dim: x [R, K] -> y [R, K] (=) or y [R] (=); y may be x. A team takes a row: one pass for its
// maximum and the sum of exponentials at once (online_softmax.h), a second, whose reads come out of the cache, for the result: 8 bytes per float
// with device memory, about 20 operations per element. The backward forms use y alone: softmax dx = y (dy - sum y dy), log dx = dy - exp(y) sum dy,
// 12 bytes per float. dx may be dy.
#include <weft/kernels/cuda/online_softmax.h>

namespace weft::cuda {
namespace {

template <class T> struct Softmax {
  using C = Compute<T>;
  Matrix<const T> x;
  Matrix<T> y;
  int64_t rows, count;
  Team team;
  bool log;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, rows, [&](int64_t r, bool mine) {
      const int64_t n = mine ? count : 0;
      const Line<const T> from = x.line(r);
      const Line<T> to = y.line(r);
      const Online<C> all = online_row<C>(t, team, from, n);
      const Cut cut = cut_row(n, from, to);
      if (log) {
        const C shift = all.logarithm();
        deal<T>(team.rank(t), team.size(t), cut, n, [&](int64_t k, auto many) {
          auto v = read<C, many.value>(from, k);
          for (int i = 0; i < many.value; ++i) v.v[i] -= shift;
          write(to, k, v);
        });
      } else {
        const C scale = 1 / all.sum;
        deal<T>(team.rank(t), team.size(t), cut, n, [&](int64_t k, auto many) {
          auto v = read<C, many.value>(from, k);
          for (int i = 0; i < many.value; ++i) v.v[i] = exponential(v.v[i] - all.top) * scale;
          write(to, k, v);
        });
      }
    });
  }
};

template <class T> struct SoftmaxBackward {
  using C = Compute<T>;
  Matrix<const T> y, dy;
  Matrix<T> dx;
  int64_t rows, count;
  Team team;
  bool log;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, rows, [&](int64_t r, bool mine) {
      const int64_t n = mine ? count : 0;
      const Line<const T> p = y.line(r), g = dy.line(r);
      const Line<T> to = dx.line(r);
      const Cut cut = cut_row(n, p, g, to);
      C sum = 0;
      deal<T>(team.rank(t), team.size(t), cut, n, [&](int64_t k, auto many) {
        const auto b = read<C, many.value>(g, k);
        if (log) {
          for (int i = 0; i < many.value; ++i) sum += b.v[i];
        } else {
          const auto a = read<C, many.value>(p, k);
          for (int i = 0; i < many.value; ++i) sum += a.v[i] * b.v[i];
        }
      });
      sum = team.sum(t, sum);
      deal<T>(team.rank(t), team.size(t), cut, n, [&](int64_t k, auto many) {
        const auto a = read<C, many.value>(p, k);
        auto b = read<C, many.value>(g, k);
        for (int i = 0; i < many.value; ++i) b.v[i] = log ? b.v[i] - exponential(a.v[i]) * sum : a.v[i] * (b.v[i] - sum);
        write(to, k, b);
      });
    });
  }
};

template <class T> struct LogSumExp {
  using C = Compute<T>;
  Matrix<const T> x;
  Column y;
  int64_t rows, count;
  Team team;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, rows, [&](int64_t r, bool mine) {
      const Online<C> all = online_row<C>(t, team, x.line(r), mine ? count : 0);
      if (mine && team.rank(t) == 0) y.set(r, all.logarithm());
    });
  }
};

}  // namespace

void CudaBackend::softmax(Context& c, bool log, View x, View y) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (rows == 0 || count == 0) return;
  for_floating("softmax", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const TeamGrid g = team_grid(*this, rows, count, kPack<T>);
    launch(stream_of(c), "softmax", g.grid, Softmax<T>{Matrix<const T>(x), Matrix<T>(y), rows, count, g.team, log});
  });
}

void CudaBackend::softmax_backward(Context& c, bool log, View y, View dy, View dx) {
  enter();
  const int64_t rows = y.size(0), count = y.size(1);
  if (rows == 0 || count == 0) return;
  for_floating("softmax_backward", y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const TeamGrid g = team_grid(*this, rows, count, kPack<T>);
    launch(stream_of(c), "softmax_backward", g.grid, SoftmaxBackward<T>{Matrix<const T>(y), Matrix<const T>(dy), Matrix<T>(dx), rows, count, g.team, log});
  });
}

void CudaBackend::logsumexp(Context& c, View x, View y) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (rows == 0) return;
  for_floating("logsumexp", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const TeamGrid g = team_grid(*this, rows, count, kPack<T>);
    launch(stream_of(c), "logsumexp", g.grid, LogSumExp<T>{Matrix<const T>(x), Column(y), rows, count, g.team});
  });
}

}  // namespace weft::cuda
