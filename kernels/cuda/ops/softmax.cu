// Softmax, log-softmax and logsumexp over the last dim: x [R, K] -> y [R, K] (=) or y [R] (=); y may be x.
// The backward kernels use y only. For softmax dx = y (dy - sum y dy), for log-softmax dx = dy - exp(y) sum
// dy; dx may be dy. A team processes a row. logsumexp reads each number once. Softmax has three cases:
//   registers      Rows that a team holds in registers are read from memory once. They have up to 8192
//                  floats or halves, or 2048 doubles, in whole aligned packs. Traffic is 8 bytes per float
//                  forward, 12 backward, with one exponential per element.
//   shared memory  Rows that fit the shared memory of a block are read once too. They have up to 58 thousand
//                  floats with 227 KiB per block, 16 thousand with 64 KiB. Forward computes the maximum and
//                  the sum of exponentials while it loads the row (online_softmax.h), with two exponentials
//                  per element. Backward of log-softmax keeps dy, which its sum needs, and reads y
//                  afterwards. Backward of softmax keeps both if they fit (29 thousand floats). For longer
//                  rows it keeps dy and reads y again, mostly from the cache: 16 bytes per float instead of
//                  20.
//   cache          Longer rows, and rows of a few lanes, are read twice: 12 bytes per float forward, 20
//                  backward, 16 for log-softmax; less if the second read hits the cache. A cache of 50 MB
//                  holds rows of about 90 thousand floats, one per processor, or half of that backward.
#include <weft/kernels/cuda/blocks/kept_rows.h>
#include <weft/kernels/cuda/blocks/online_softmax.h>

namespace weft::cuda {
namespace {

template <class T> struct SoftmaxInRegisters : RowsInRegisters<T> {
  using C = Compute<T>;
  using Rows = RowsInRegisters<T>;
  static constexpr int n = Rows::n, kept = Rows::kept;
  bool log;
  Matrix<const T> x;
  Matrix<T> y;
  WEFT_DEVICE void operator()(Thread t) const {
    this->each_row(t, [&](int64_t r, const typename Rows::ThreadPacks& mine) {
      const Line<T> to = y.line(r);
      Raw<T, n> loaded[kept] = {};
      mine.load(x.line(r), loaded);
      Numbers<C, n> v[kept];
      Online<C> all;
      WEFT_UNROLL
      for (int a = 0; a < kept; ++a) {
        v[a] = numbers<C>(loaded[a]);
        WEFT_UNROLL
        for (int i = 0; i < n; ++i) {
          if (!mine.has(a)) v[a].v[i] = -std::numeric_limits<C>::infinity();
          all.top = std::fmax(all.top, v[a].v[i]);
        }
      }
      all.top = this->team.most(t, all.top);
      const C shift = all.finite_top();
      WEFT_UNROLL
      for (int a = 0; a < kept; ++a) {
        WEFT_UNROLL
        for (int i = 0; i < n; ++i) {
          const C e = exponential(v[a].v[i] - shift);
          all.sum += e;
          if (!log) v[a].v[i] = e;
        }
      }
      all.sum = this->team.sum(t, all.sum);
      const C less = log ? all.divisor_logarithm() : C(0), scale = log ? C(1) : 1 / all.divisor();
      WEFT_UNROLL
      for (int a = 0; a < kept; ++a) {
        if (!mine.has(a)) continue;
        WEFT_UNROLL
        for (int i = 0; i < n; ++i) v[a].v[i] = log ? (v[a].v[i] - all.top) - less : v[a].v[i] * scale;
        write(to, mine.at(a), v[a]);
      }
    });
  }
};

template <class T> struct SoftmaxBackwardInRegisters : RowsInRegisters<T> {
  using C = Compute<T>;
  using Rows = RowsInRegisters<T>;
  static constexpr int n = Rows::n, kept = Rows::kept;
  bool log;
  Matrix<const T> y, dy;
  Matrix<T> dx;
  WEFT_DEVICE void operator()(Thread t) const {
    this->each_row(t, [&](int64_t r, const typename Rows::ThreadPacks& mine) {
      const Line<T> to = dx.line(r);
      Raw<T, n> result[kept] = {}, gradient[kept] = {};
      mine.load(y.line(r), result);
      mine.load(dy.line(r), gradient);
      C sum = 0;
      WEFT_UNROLL
      for (int a = 0; a < kept; ++a) {
        const auto q = numbers<C>(result[a]), b = numbers<C>(gradient[a]);
        WEFT_UNROLL
        for (int i = 0; i < n; ++i) sum += log ? b.v[i] : q.v[i] * b.v[i];
      }
      sum = this->team.sum(t, sum);
      WEFT_UNROLL
      for (int a = 0; a < kept; ++a) {
        if (!mine.has(a)) continue;
        const auto q = numbers<C>(result[a]);
        auto b = numbers<C>(gradient[a]);
        WEFT_UNROLL
        for (int i = 0; i < n; ++i)
          b.v[i] = log ? b.v[i] - exponential(q.v[i]) * sum : q.v[i] * (b.v[i] - sum);
        write(to, mine.at(a), b);
      }
    });
  }
};

/// Rows of any length and layout. If a block processes a row, its shared memory holds `kept` of the input
/// lines.
template <class T> struct RowsAnyhow {
  // of a block that has a processor to itself; doubles take twice the registers
  static constexpr int kThreads = sizeof(T) == sizeof(double) ? 512 : 1024;
  int64_t rows, count;
  Team team;
  int kept;
  bool log;

  /// Bytes of a kept line. It has the same alignment to 16 bytes as in memory, so that packs stay aligned.
  static constexpr size_t line_bytes(int64_t count) {
    return (static_cast<size_t>(count) * sizeof(T) + 31) / 16 * 16;
  }
  static constexpr size_t kBefore = fold_bytes<Online<Compute<T>>>();
  /// The shared memory of line number `which`.
  WEFT_DEVICE Line<T> room(Thread t, int which, const Line<const T>& line) const {
    char* const begin = t.shared<char>() + kBefore + static_cast<size_t>(which) * line_bytes(count);
    return {reinterpret_cast<T*>(begin + reinterpret_cast<uintptr_t>(line.p) % 16), 1};
  }
};

template <class T> struct Softmax : RowsAnyhow<T> {
  using C = Compute<T>;
  Matrix<const T> x;
  Matrix<T> y;
  WEFT_DEVICE void operator()(Thread t) const {
    const Team team = this->team;
    const bool log = this->log, kept = this->kept > 0;
    team.each(t, this->rows, [&](int64_t r, bool mine) {
      const int64_t n = mine ? this->count : 0;
      const Line<const T> from = x.line(r);
      const Line<T> to = y.line(r), room = this->room(t, 0, from);
      if (kept) t.sync();  // the previous row may still be in use
      const Online<C> all = online_row<C>(t, team, from, n, [&](int64_t k, auto, const auto& raw) {
        if (kept) keep(room, k, raw);
      });
      const Line<const T> again = kept ? Line<const T>{room.p, 1} : from;
      const C shift = all.top, less = log ? all.divisor_logarithm() : C(0),
              scale = log ? C(1) : 1 / all.divisor();
      stride_loop<T, kTogether<T>>(
          team.rank(t), team.size(t), packed_range(n, again, to), n,
          [&](int64_t k, auto many) { return fetch<many.value>(again, k); },
          [&](int64_t k, auto many, const auto& loaded) {
            auto v = numbers<C>(loaded);
            WEFT_UNROLL
            for (int i = 0; i < many.value; ++i)
              v.v[i] = log ? (v.v[i] - shift) - less : exponential(v.v[i] - shift) * scale;
            write(to, k, v);
          });
    });
  }
};

/// Runs of two lines from one position on.
template <class T, int N> struct Both { Raw<T, N> y, dy; };

template <class T> struct SoftmaxBackward : RowsAnyhow<T> {
  using C = Compute<T>;
  Matrix<const T> y, dy;
  Matrix<T> dx;
  WEFT_DEVICE void operator()(Thread t) const {
    const Team team = this->team;
    const bool log = this->log;
    const int kept = this->kept;  // dy, then y
    team.each(t, this->rows, [&](int64_t r, bool mine) {
      const int64_t n = mine ? this->count : 0;
      const Line<const T> p = y.line(r), g = dy.line(r);
      const Line<T> to = dx.line(r), room_g = this->room(t, 0, g), room_p = this->room(t, 1, p);
      if (kept > 0) t.sync();  // the previous row may still be in use
      C sum = 0;
      stride_loop<T, 2>(
          team.rank(t), team.size(t), log ? packed_range(n, g) : packed_range(n, p, g), n,
          [&](int64_t k, auto many) {
            return Both<T, many.value>{log ? Raw<T, many.value>{} : fetch<many.value>(p, k),
                                       fetch<many.value>(g, k)};
          },
          [&](int64_t k, auto many, const auto& loaded) {
            if (kept > 0) keep(room_g, k, loaded.dy);
            if (kept > 1) keep(room_p, k, loaded.y);
            const auto a = numbers<C>(loaded.y), b = numbers<C>(loaded.dy);
            WEFT_UNROLL
            for (int i = 0; i < many.value; ++i) sum += log ? b.v[i] : a.v[i] * b.v[i];
          });
      sum = team.sum(t, sum);
      const Line<const T> q = kept > 1 ? Line<const T>{room_p.p, 1} : p,
                          h = kept > 0 ? Line<const T>{room_g.p, 1} : g;
      stride_loop<T, 2>(
          team.rank(t), team.size(t), packed_range(n, q, h, to), n,
          [&](int64_t k, auto many) {
            return Both<T, many.value>{fetch<many.value>(q, k), fetch<many.value>(h, k)};
          },
          [&](int64_t k, auto many, const auto& loaded) {
            const auto a = numbers<C>(loaded.y);
            auto b = numbers<C>(loaded.dy);
            WEFT_UNROLL
            for (int i = 0; i < many.value; ++i)
              b.v[i] = log ? b.v[i] - exponential(a.v[i]) * sum : a.v[i] * (b.v[i] - sum);
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
      const Online<C> all =
          online_row<C>(t, team, x.line(r), mine ? count : 0, [](int64_t, auto, const auto&) {});
      if (mine && team.rank(t) == 0) y.set(r, all.logarithm());
    });
  }
};

/// The grid for rows in any layout, of whose `lines` lines a block keeps as many as fit. The number of
/// threads depends on the row only. A thread has at most eight packs if more threads are possible, since a
/// processor holds only few blocks with long rows.
struct AnyhowGrid : TeamGrid {
  int kept = 0;
};
template <class T> AnyhowGrid anyhow_grid(const CudaBackend& b, int64_t rows, int64_t count, int lines) {
  using Rows = RowsAnyhow<T>;
  AnyhowGrid g{team_grid(rows, count, kPack<T>)};
  if (g.team.lanes > 0) return g;
  const size_t line = Rows::line_bytes(count), all = line * static_cast<size_t>(lines);
  while (g.grid.threads < Rows::kThreads && all > static_cast<size_t>(g.grid.threads) * 8 * 16)
    g.grid.threads *= 2;
  while (g.kept < lines && Rows::kBefore + static_cast<size_t>(g.kept + 1) * line <= b.shared_memory())
    ++g.kept;
  if (g.kept > 0) g.grid.shared = Rows::kBefore + static_cast<size_t>(g.kept) * line;
  g.grid.blocks = one_round(rows);
  return g;
}

}  // namespace

void CudaBackend::softmax(Context& c, bool log, View x, View y) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (rows == 0 || count == 0) return;
  for_floating("softmax", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Matrix<const T> from(x);
    const Matrix<T> to(y);
    if (const int packs = kept_packs<T>({&x, &y})) {
      const TeamGrid g = kept_grid<T>(rows, packs);
      return launch(stream_of(c), "softmax", g.grid,
                    SoftmaxInRegisters<T>{{rows, packs, g.team}, log, from, to});
    }
    const AnyhowGrid g = anyhow_grid<T>(*this, rows, count, 1);
    launch(stream_of(c), "softmax", g.grid, Softmax<T>{{rows, count, g.team, g.kept, log}, from, to});
  });
}

void CudaBackend::softmax_backward(Context& c, bool log, View y, View dy, View dx) {
  enter();
  const int64_t rows = y.size(0), count = y.size(1);
  if (rows == 0 || count == 0) return;
  for_floating("softmax_backward", y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Matrix<const T> result(y), gradient(dy);
    const Matrix<T> to(dx);
    if (const int packs = kept_packs<T>({&y, &dy, &dx})) {
      const TeamGrid g = kept_grid<T>(rows, packs);
      return launch(stream_of(c), "softmax_backward", g.grid,
                    SoftmaxBackwardInRegisters<T>{{rows, packs, g.team}, log, result, gradient, to});
    }
    const AnyhowGrid g = anyhow_grid<T>(*this, rows, count, log ? 1 : 2);
    launch(stream_of(c), "softmax_backward", g.grid,
           SoftmaxBackward<T>{{rows, count, g.team, g.kept, log}, result, gradient, to});
  });
}

void CudaBackend::logsumexp(Context& c, View x, View y) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (rows == 0) return;
  for_floating("logsumexp", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const TeamGrid g = team_grid(rows, count, kPack<T>);
    launch(stream_of(c), "logsumexp", g.grid,
           LogSumExp<T>{Matrix<const T>(x), Column(y), rows, count, g.team});
  });
}

}  // namespace weft::cuda
