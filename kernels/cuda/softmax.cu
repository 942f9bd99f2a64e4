// Softmax, log-softmax and logsumexp over the last dim: x [R, K] -> y [R, K] (=) or y [R] (=); y may be x. The backward forms use y alone: softmax
// dx = y (dy - sum y dy), log dx = dy - exp(y) sum dy; dx may be dy. A team takes a row.
//   rows that a team holds in registers (up to 8192 floats or halves, 2048 doubles, in whole aligned packs) are read from memory once: 8 bytes per
//     float forward, 12 backward, one exponential per element;
//   others are read twice. Forward: the maximum and the sum of exponentials at once (online_softmax.h), then the result, two exponentials per element.
//     The second time a row comes out of the cache if the rows in work fit there (two per processor: about 40 thousand floats each in 50 MB, half of
//     that backward), else from memory: 12 bytes per float forward, 20 backward.
// logsumexp reads each number once.
#include <initializer_list>

#include <weft/kernels/cuda/online_softmax.h>

namespace weft::cuda {
namespace {

/// The packs of a row that a thread keeps.
template <class T> inline constexpr int kKept = kTogether<T>;

template <class T> struct SoftmaxKept {
  using C = Compute<T>;
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<T>, n = kPack<T>, kept = kKept<T>;
  Matrix<const T> x;
  Matrix<T> y;
  int64_t rows;
  int packs;
  Team team;
  bool log;
  WEFT_DEVICE void operator()(Thread t) const {
    const int rank = team.rank(t), size = team.size(t);
    team.each(t, rows, [&](int64_t r, bool mine) {
      const int end = mine ? packs : 0;
      const Line<const T> from = x.line(r);
      const Line<T> to = y.line(r);
      Raw<T, n> loaded[kept] = {};
      WEFT_UNROLL for (int a = 0; a < kept; ++a)
        if (rank + a * size < end) loaded[a] = fetch<n>(from, int64_t{rank + a * size} * n);
      Numbers<C, n> v[kept];
      Online<C> all;
      WEFT_UNROLL for (int a = 0; a < kept; ++a) {
        v[a] = numbers<C>(loaded[a]);
        WEFT_UNROLL for (int i = 0; i < n; ++i) {
          if (rank + a * size >= end) v[a].v[i] = -std::numeric_limits<C>::infinity();
          all.top = std::fmax(all.top, v[a].v[i]);
        }
      }
      const C top = all.top, shift = all.finite_top();
      WEFT_UNROLL for (int a = 0; a < kept; ++a) {
        WEFT_UNROLL for (int i = 0; i < n; ++i) {
          const C e = exponential(v[a].v[i] - shift);
          all.sum += e;
          if (!log) v[a].v[i] = e;
        }
      }
      all = team.fold(t, all, [](const Online<C>& a, const Online<C>& b) { return a.joined(b); });
      // The exponentials were taken against the thread's own maximum.
      const C less = log ? all.logarithm() : C(0), scale = log ? C(1) : exponential(top - all.top) / all.sum;
      WEFT_UNROLL for (int a = 0; a < kept; ++a) {
        if (rank + a * size >= end) continue;
        WEFT_UNROLL for (int i = 0; i < n; ++i) v[a].v[i] = log ? v[a].v[i] - less : v[a].v[i] * scale;
        write(to, int64_t{rank + a * size} * n, v[a]);
      }
    });
  }
};

template <class T> struct Softmax {
  using C = Compute<T>;
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<T>;
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
      const C shift = log ? all.logarithm() : all.top, scale = log ? C(1) : 1 / all.sum;
      deal<T, kTogether<T>>(
          team.rank(t), team.size(t), cut_row(n, from, to), n, [&](int64_t k, auto many) { return fetch<many.value>(from, k); },
          [&](int64_t k, auto many, const auto& loaded) {
            auto v = numbers<C>(loaded);
            WEFT_UNROLL for (int i = 0; i < many.value; ++i) v.v[i] = log ? v.v[i] - shift : exponential(v.v[i] - shift) * scale;
            write(to, k, v);
          });
    });
  }
};

template <class T> struct SoftmaxBackwardKept {
  using C = Compute<T>;
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<T>, n = kPack<T>, kept = kKept<T>;
  Matrix<const T> y, dy;
  Matrix<T> dx;
  int64_t rows;
  int packs;
  Team team;
  bool log;
  WEFT_DEVICE void operator()(Thread t) const {
    const int rank = team.rank(t), size = team.size(t);
    team.each(t, rows, [&](int64_t r, bool mine) {
      const int end = mine ? packs : 0;
      const Line<const T> p = y.line(r), g = dy.line(r);
      const Line<T> to = dx.line(r);
      Raw<T, n> result[kept] = {}, gradient[kept] = {};
      WEFT_UNROLL for (int a = 0; a < kept; ++a) {
        if (rank + a * size >= end) continue;
        result[a] = fetch<n>(p, int64_t{rank + a * size} * n);
        gradient[a] = fetch<n>(g, int64_t{rank + a * size} * n);
      }
      C sum = 0;
      WEFT_UNROLL for (int a = 0; a < kept; ++a) {
        const auto q = numbers<C>(result[a]), b = numbers<C>(gradient[a]);
        WEFT_UNROLL for (int i = 0; i < n; ++i) sum += log ? b.v[i] : q.v[i] * b.v[i];
      }
      sum = team.sum(t, sum);
      WEFT_UNROLL for (int a = 0; a < kept; ++a) {
        if (rank + a * size >= end) continue;
        const auto q = numbers<C>(result[a]);
        auto b = numbers<C>(gradient[a]);
        WEFT_UNROLL for (int i = 0; i < n; ++i) b.v[i] = log ? b.v[i] - exponential(q.v[i]) * sum : q.v[i] * (b.v[i] - sum);
        write(to, int64_t{rank + a * size} * n, b);
      }
    });
  }
};

/// What two lines hold from one number on.
template <class T, int N> struct Both {
  Raw<T, N> y, dy;
};

template <class T> struct SoftmaxBackward {
  using C = Compute<T>;
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<T>;
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
      const auto load = [&](int64_t k, auto many) { return Both<T, many.value>{fetch<many.value>(p, k), fetch<many.value>(g, k)}; };
      C sum = 0;
      deal<T, 2>(team.rank(t), team.size(t), cut, n, load, [&](int64_t, auto many, const auto& loaded) {
        const auto a = numbers<C>(loaded.y), b = numbers<C>(loaded.dy);
        WEFT_UNROLL for (int i = 0; i < many.value; ++i) sum += log ? b.v[i] : a.v[i] * b.v[i];
      });
      sum = team.sum(t, sum);
      deal<T, 2>(team.rank(t), team.size(t), cut, n, load, [&](int64_t k, auto many, const auto& loaded) {
        const auto a = numbers<C>(loaded.y);
        auto b = numbers<C>(loaded.dy);
        WEFT_UNROLL for (int i = 0; i < many.value; ++i) b.v[i] = log ? b.v[i] - exponential(a.v[i]) * sum : a.v[i] * (b.v[i] - sum);
        write(to, k, b);
      });
    });
  }
};

template <class T> struct LogSumExp {
  using C = Compute<T>;
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<T>;
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

/// The packs of a row where every row is whole packs, on 16-byte borders, and no more of them than the threads of a block keep; else 0.
template <class T> int kept_packs(std::initializer_list<const View*> views) {
  constexpr int64_t n = kPack<T>;
  for (const View* v : views) {
    const bool whole = v->size(1) % n == 0 && v->stride(1) == 1 && (v->size(0) == 1 || v->stride(0) % n == 0) && reinterpret_cast<uintptr_t>(v->data) % 16 == 0;
    if (!whole || v->size(1) / n > int64_t{kKept<T>} * kRowThreads) return 0;
  }
  return static_cast<int>((*views.begin())->size(1) / n);
}
/// As many threads as it takes to hold a row; more where there are few rows.
template <class T> TeamGrid kept_grid(const CudaBackend& b, int64_t rows, int packs) {
  constexpr int64_t kEnough = 512;
  const int each = rows < kEnough ? 1 : kKept<T>;
  TeamGrid g;
  g.grid.shared = fold_bytes<Online<Compute<T>>>();
  g.grid.threads = 256;
  g.team.lanes = 1;
  while (g.team.lanes < kWarp && g.team.lanes < packs) g.team.lanes *= 2;
  if (packs > kWarp * each) {
    g.team.lanes = 0, g.grid.threads = 2 * kWarp;
    while (g.grid.threads < kRowThreads && g.grid.threads * each < packs) g.grid.threads *= 2;
  }
  g.grid.blocks = b.resident(blocks_for(rows, g.team.lanes > 0 ? g.grid.threads / g.team.lanes : 1), g.grid.threads);
  return g;
}

}  // namespace

void CudaBackend::softmax(Context& c, bool log, View x, View y) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (rows == 0 || count == 0) return;
  for_floating("softmax", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (const int packs = kept_packs<T>({&x, &y})) {
      const TeamGrid g = kept_grid<T>(*this, rows, packs);
      return launch(stream_of(c), "softmax", g.grid, SoftmaxKept<T>{Matrix<const T>(x), Matrix<T>(y), rows, packs, g.team, log});
    }
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
    if (const int packs = kept_packs<T>({&y, &dy, &dx})) {
      const TeamGrid g = kept_grid<T>(*this, rows, packs);
      return launch(stream_of(c), "softmax_backward", g.grid,
                    SoftmaxBackwardKept<T>{Matrix<const T>(y), Matrix<const T>(dy), Matrix<T>(dx), rows, packs, g.team, log});
    }
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
