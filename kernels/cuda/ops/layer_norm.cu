// Layer normalisation over the last dim: x [R, K], weight and bias [K] -> y (=), mean and rstd [R] (=). A
// team reads a row once and keeps it in registers if it is of whole aligned packs (kept_rows.h): 8 bytes per
// float. Other rows it reads three times, twice from the cache. Backward: teams compute dx (=) in the same
// way, 12 bytes per float. Blocks of columns compute dweight and dbias (=), a warp per row, 8 bytes
// per float. They sum over parts of the rows, then over the parts in order; the number of parts depends on
// the shape only.
#include <cmath>

#include <weft/kernels/cuda/blocks/kept_rows.h>

namespace weft::cuda {
namespace {

/// A vector [K] of numbers of T; if it is not given, all numbers are `absent`.
template <class T> struct Scale {
  const T* p = nullptr;
  int64_t step = 0;
  explicit Scale(const View& v) : p(v.as<const T>()), step(v.defined() ? v.stride(0) : 1) {}
  /// Whether it can be read in the packs of a row.
  bool packs() const { return !p || (step == 1 && reinterpret_cast<uintptr_t>(p) % 16 == 0); }
  // for packed_range
  WEFT_DEVICE Line<const T> line(const Line<const T>& other) const {
    return p ? Line<const T>{p, step} : other;
  }
};

/// Runs of three lines from one position on.
template <class T, int N> struct Three { Raw<T, N> a, b, c; };

/// Sums of v - m and of its squares. The first sum corrects the rounding error of the mean m: equal numbers
/// then differ from it by 0.
template <class C> struct Around {
  C sum = 0, squares = 0;
  WEFT_DEVICE void add(C d) { sum += d, squares += d * d; }
  WEFT_DEVICE C squares_about_mean(C count) const {
    const C left = squares - sum * (sum / count);
    return left < 0 ? C(0) : left;
  }
};
/// The sums of a team. Reached by the whole block.
template <class C> WEFT_DEVICE Around<C> sums(Thread t, const Team& team, const Around<C>& mine) {
  return team.fold<kInAnyOrder>(t, mine, [](const Around<C>& p, const Around<C>& q) {
    return Around<C>{p.sum + q.sum, p.squares + q.squares};
  });
}

/// y of a number, with the mean m and the reciprocal s of the deviation.
template <class C, int N, class T>
WEFT_DEVICE Numbers<C, N> normalised(Numbers<C, N> v, C m, C s, bool scaled, const Raw<T, N>& weight,
                                     bool shifted, const Raw<T, N>& bias) {
  const auto slope = numbers<C>(weight), shift = numbers<C>(bias);
  WEFT_UNROLL
  for (int i = 0; i < N; ++i) {
    v.v[i] = (v.v[i] - m) * s;
    if (scaled) v.v[i] *= slope.v[i];
    if (shifted) v.v[i] += shift.v[i];
  }
  return v;
}

template <class T> struct LayerNormInRegisters : RowsInRegisters<T> {
  using C = Compute<T>;
  using Rows = RowsInRegisters<T>;
  static constexpr int n = Rows::n, kept = Rows::kept;
  Matrix<const T> x;
  Scale<T> weight, bias;
  double eps;
  Matrix<T> y;
  Column mean, rstd;
  WEFT_DEVICE void operator()(Thread t) const {
    const C count = static_cast<C>(this->packs) * n;
    this->each_row(t, [&](int64_t r, const typename Rows::ThreadPacks& mine) {
      const Line<const T> from = x.line(r), w = weight.line(from), b = bias.line(from);
      const Line<T> to = y.line(r);
      Raw<T, n> loaded[kept] = {};  // missing packs add zeros
      mine.load(from, loaded);
      C m = 0;
      WEFT_UNROLL
      for (int a = 0; a < kept; ++a) {
        const auto v = numbers<C>(loaded[a]);
        WEFT_UNROLL
        for (int i = 0; i < n; ++i) m += v.v[i];
      }
      m = this->team.sum(t, m) / count;
      Around<C> around;
      WEFT_UNROLL
      for (int a = 0; a < kept; ++a) {
        if (!mine.has(a)) continue;
        const auto v = numbers<C>(loaded[a]);
        WEFT_UNROLL
        for (int i = 0; i < n; ++i) around.add(v.v[i] - m);
      }
      around = sums(t, this->team, around);
      m += around.sum / count;
      const C s =
          static_cast<C>(1 / std::sqrt(static_cast<double>(around.squares_about_mean(count) / count) + eps));
      WEFT_UNROLL
      for (int a = 0; a < kept; ++a) {
        if (!mine.has(a)) continue;
        write(to, mine.at(a),
              normalised(numbers<C>(loaded[a]), m, s, weight.p != nullptr, fetch<n>(w, mine.at(a)),
                         bias.p != nullptr, fetch<n>(b, mine.at(a))));
      }
      if (mine.end == 0 || mine.rank != 0) return;
      if (mean.p) mean.set(r, m);
      if (rstd.p) rstd.set(r, s);
    });
  }
};

template <class T> struct LayerNorm {
  using C = Compute<T>;
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<T>;
  Matrix<const T> x;
  Scale<T> weight, bias;
  double eps;
  Matrix<T> y;
  Column mean, rstd;
  int64_t rows, count;
  Team team;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, rows, [&](int64_t r, bool mine) {
      const int64_t n = mine ? count : 0;
      const int rank = team.rank(t), size = team.size(t);
      const Line<const T> from = x.line(r), w = weight.line(from), b = bias.line(from);
      const Line<T> to = y.line(r);
      const PackedRange alone = packed_range(n, from);
      const auto load = [&](int64_t k, auto many) { return fetch<many.value>(from, k); };
      C m = 0;
      Around<C> a;
      stride_loop<T, 4>(rank, size, alone, n, load, [&](int64_t, auto many, const auto& loaded) {
        const auto v = numbers<C>(loaded);
        WEFT_UNROLL
        for (int i = 0; i < many.value; ++i) m += v.v[i];
      });
      m = team.sum(t, m) / static_cast<C>(count);
      stride_loop<T, 4>(rank, size, alone, n, load, [&](int64_t, auto many, const auto& loaded) {
        const auto v = numbers<C>(loaded);
        WEFT_UNROLL
        for (int i = 0; i < many.value; ++i) a.add(v.v[i] - m);
      });
      a = sums(t, team, a);
      const C squares = a.squares_about_mean(static_cast<C>(count));
      m += a.sum / static_cast<C>(count);
      const C s = static_cast<C>(1 / std::sqrt(static_cast<double>(squares / static_cast<C>(count)) + eps));
      stride_loop<T, 2>(
          rank, size, packed_range(n, from, to, w, b), n,
          [&](int64_t k, auto many) {
            return Three<T, many.value>{fetch<many.value>(from, k), fetch<many.value>(w, k),
                                        fetch<many.value>(b, k)};
          },
          [&](int64_t k, auto, const auto& loaded) {
            write(to, k,
                  normalised(numbers<C>(loaded.a), m, s, weight.p != nullptr, loaded.b, bias.p != nullptr,
                             loaded.c));
          });
      if (!mine || rank != 0) return;
      if (mean.p) mean.set(r, m);
      if (rstd.p) rstd.set(r, s);
    });
  }
};

/// As LayerNormInput, for rows in registers.
template <class T> struct LayerNormInputInRegisters : RowsInRegisters<T> {
  using C = Compute<T>;
  using Rows = RowsInRegisters<T>;
  static constexpr int n = Rows::n, kept = Rows::kept;
  /// dy weight takes the place of dy; a half type would round it.
  static constexpr bool kKeepsWeighted = std::is_same_v<C, T>;
  Matrix<const T> x, dy;
  Scale<T> weight;
  Column mean, rstd;
  Matrix<T> dx;
  WEFT_DEVICE void operator()(Thread t) const {
    const C count = static_cast<C>(this->packs) * n;
    this->each_row(t, [&](int64_t r, const typename Rows::ThreadPacks& mine) {
      const Line<const T> from = x.line(r), w = weight.line(from);
      const Line<T> to = dx.line(r);
      Raw<T, n> in[kept] = {}, gradient[kept] = {};
      mine.load(from, in);
      mine.load(dy.line(r), gradient);
      const C m = mine.end > 0 ? static_cast<C>(mean.get(r)) : C(0),
              s = mine.end > 0 ? static_cast<C>(rstd.get(r)) : C(0);
      const auto weighted = [&](int a) {
        auto h = numbers<C>(gradient[a]);
        if (!weight.p) return h;
        const auto slope = numbers<C>(fetch<n>(w, mine.at(a)));
        WEFT_UNROLL
        for (int i = 0; i < n; ++i) h.v[i] *= slope.v[i];
        return h;
      };
      Around<C> total;  // of h, and of h xhat
      WEFT_UNROLL
      for (int a = 0; a < kept; ++a) {
        if (!mine.has(a)) continue;
        const auto v = numbers<C>(in[a]), h = weighted(a);
        WEFT_UNROLL
        for (int i = 0; i < n; ++i) total.sum += h.v[i], total.squares += h.v[i] * ((v.v[i] - m) * s);
        if constexpr (kKeepsWeighted) std::memcpy(static_cast<void*>(&gradient[a]), &h, sizeof h);
      }
      total = sums(t, this->team, total);
      const C average = total.sum / count, along = total.squares / count;
      WEFT_UNROLL
      for (int a = 0; a < kept; ++a) {
        if (!mine.has(a)) continue;
        const auto v = numbers<C>(in[a]);
        auto h = kKeepsWeighted ? numbers<C>(gradient[a]) : weighted(a);
        WEFT_UNROLL
        for (int i = 0; i < n; ++i) h.v[i] = s * (h.v[i] - average - (v.v[i] - m) * s * along);
        write(to, mine.at(a), h);
      }
    });
  }
};

/// dx = s (h - mean h - xhat mean(h xhat)), with h = dy weight and xhat = (x - m) s.
template <class T> struct LayerNormInput {
  using C = Compute<T>;
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<T>;
  Matrix<const T> x, dy;
  Scale<T> weight;
  Column mean, rstd;
  Matrix<T> dx;
  int64_t rows, count;
  Team team;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, rows, [&](int64_t r, bool mine) {
      const int64_t n = mine ? count : 0;
      const int rank = team.rank(t), size = team.size(t);
      const Line<const T> from = x.line(r), g = dy.line(r), w = weight.line(from);
      const Line<T> to = dx.line(r);
      const PackedRange range = packed_range(n, from, g, w, to);
      const C m = mine ? static_cast<C>(mean.get(r)) : C(0), s = mine ? static_cast<C>(rstd.get(r)) : C(0);
      const auto load = [&](int64_t k, auto many) {
        return Three<T, many.value>{fetch<many.value>(from, k), fetch<many.value>(g, k),
                                    fetch<many.value>(w, k)};
      };
      const auto weighted = [&](const auto& loaded) {
        auto h = numbers<C>(loaded.b);
        const auto slope = numbers<C>(loaded.c);
        for (int i = 0; weight.p && i < static_cast<int>(sizeof h / sizeof(C)); ++i) h.v[i] *= slope.v[i];
        return h;
      };
      C average = 0, along = 0;
      stride_loop<T, 2>(rank, size, range, n, load, [&](int64_t, auto many, const auto& loaded) {
        const auto v = numbers<C>(loaded.a), h = weighted(loaded);
        WEFT_UNROLL
        for (int i = 0; i < many.value; ++i) average += h.v[i], along += h.v[i] * ((v.v[i] - m) * s);
      });
      average = team.sum(t, average) / static_cast<C>(count);
      along = team.sum(t, along) / static_cast<C>(count);
      stride_loop<T, 2>(rank, size, range, n, load, [&](int64_t k, auto many, const auto& loaded) {
        const auto v = numbers<C>(loaded.a);
        auto h = weighted(loaded);
        WEFT_UNROLL
        for (int i = 0; i < many.value; ++i) h.v[i] = s * (h.v[i] - average - (v.v[i] - m) * s * along);
        write(to, k, h);
      });
    });
  }
};

/// Sums over part of the rows of dy xhat and of dy: partial [parts, 2, K].
template <class T> struct LayerNormColumns {
  using C = Compute<T>;
  static constexpr int kThreads = 256, kBlocks = 4, kWarps = kThreads / kWarp;
  Matrix<const T> x, dy;
  Column mean, rstd;
  int64_t rows, count, parts, length, blocks;
  int pack;  // columns of one lane: a pack, or 1
  C* partial;
  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t task = t.block(); task < blocks * parts; task += t.blocks()) {
      const int64_t part = task / blocks, first = (task - part * blocks) * kWarp * pack;
      if (pack == 1) fold<1>(t, part, first);
      else fold<kPack<T>>(t, part, first);
    }
  }
  template <int N> WEFT_DEVICE void fold(Thread t, int64_t part, int64_t first) const {
    C* const totals = t.shared<C>();  // [2, warps, lanes * N]
    constexpr int wide = kWarp * N, kRows = 2;
    C slope[N], shift[N];
    for (int i = 0; i < N; ++i) slope[i] = shift[i] = 0;
    if (const int64_t column = first + t.lane() * N; column < count) {
      const int64_t begin = part * length, end = begin + length < rows ? begin + length : rows;
      for (int64_t r = begin + t.warp(); r < end; r += kRows * kWarps) {
        Raw<T, N> in[kRows] = {}, gradient[kRows] = {};
        C m[kRows] = {}, s[kRows] = {};
        WEFT_UNROLL
        for (int a = 0; a < kRows; ++a) {
          const int64_t row = r + a * kWarps;
          if (row >= end) continue;
          in[a] = fetch<N>(x.line(row), column), gradient[a] = fetch<N>(dy.line(row), column);
          m[a] = static_cast<C>(mean.get(row)), s[a] = static_cast<C>(rstd.get(row));
        }
        WEFT_UNROLL
        for (int a = 0; a < kRows; ++a) {  // missing rows add zeros
          const auto v = numbers<C>(in[a]), g = numbers<C>(gradient[a]);
          WEFT_UNROLL
          for (int i = 0; i < N; ++i) slope[i] += g.v[i] * ((v.v[i] - m[a]) * s[a]), shift[i] += g.v[i];
        }
      }
    }
    for (int i = 0; i < N; ++i) {
      totals[t.warp() * wide + t.lane() * N + i] = slope[i];
      totals[(kWarps + t.warp()) * wide + t.lane() * N + i] = shift[i];
    }
    t.sync();
    for (int c = t.id(); c < 2 * wide; c += kThreads) {
      const int which = c / wide, column = c - which * wide;
      if (first + column >= count) continue;
      C sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += totals[(which * kWarps + w) * wide + column];
      partial[(part * 2 + which) * count + first + column] = sum;
    }
    t.sync();
  }
};

template <class C> struct LayerNormFinish {
  const C* partial;
  int64_t count, parts;
  Column dweight, dbias;
  static constexpr bool kIndependent = true;
  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t k = t.global(); k < 2 * count; k += t.globals()) {
      // each vector by its name: a choice of one by an address would put the arguments into local memory
      if (k < count ? dweight.p == nullptr : dbias.p == nullptr) continue;
      C sum = 0;
      for (int64_t part = 0; part < parts; ++part) sum += partial[part * 2 * count + k];
      if (k < count) dweight.set(k, sum);
      else dbias.set(k - count, sum);
    }
  }
};

template <class T>
void column_sums(CudaBackend& b, Context& c, const View& x, const View& mean, const View& rstd,
                 const View& dy, const View& dweight, const View& dbias) {
  using C = Compute<T>;
  using Body = LayerNormColumns<T>;
  const int64_t rows = x.size(0), count = x.size(1);
  constexpr int64_t n = kPack<T>;
  const auto aligned = [](const View& v) {
    return reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && v.stride(1) == 1 && v.stride(0) % n == 0;
  };
  const bool packs = count % n == 0 && count >= kWarp * n && aligned(x) && aligned(dy);
  const int pack = packs ? static_cast<int>(n) : 1;
  const int64_t blocks = blocks_for(count, kWarp * pack), wanted = blocks_for(512, blocks),
                most = rows < 64 ? 1 : rows / 64;
  const int64_t length = rows == 0 ? 1 : blocks_for(rows, wanted < most ? wanted : most),
                parts = blocks_for(rows, length);
  const Scratch partial(b, c, static_cast<size_t>(parts * 2 * count) * sizeof(C));
  const Grid grid{.blocks = one_round(blocks * parts),
                  .threads = Body::kThreads,
                  .shared = static_cast<size_t>(2 * Body::kThreads * pack) * sizeof(C)};
  launch(b.stream_of(c), "layer_norm_columns", grid,
         Body{Matrix<const T>(x), Matrix<const T>(dy), Column(mean), Column(rstd), rows, count, parts, length,
              blocks, pack, partial.as<C>()});
  launch(b.stream_of(c), "layer_norm_finish", b.grid_for(2 * count),
         LayerNormFinish<C>{partial.as<C>(), count, parts, Column(dweight), Column(dbias)});
}

}  // namespace

void CudaBackend::layer_norm(Context& c, View x, View weight, View bias, double eps, View y, View mean,
                             View rstd) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (rows == 0) return;
  for_floating("layer_norm", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Scale<T> slope(weight), shift(bias);
    if (const int packs = slope.packs() && shift.packs() ? kept_packs<T>({&x, &y}) : 0) {
      const TeamGrid g = kept_grid<T>(rows, packs);
      return launch(stream_of(c), "layer_norm", g.grid,
                    LayerNormInRegisters<T>{{rows, packs, g.team},
                                            Matrix<const T>(x),
                                            slope,
                                            shift,
                                            eps,
                                            Matrix<T>(y),
                                            Column(mean),
                                            Column(rstd)});
    }
    const TeamGrid g = team_grid(rows, count, kPack<T>);
    launch(stream_of(c), "layer_norm", g.grid,
           LayerNorm<T>{Matrix<const T>(x), slope, shift, eps, Matrix<T>(y), Column(mean), Column(rstd), rows,
                        count, g.team});
  });
}

void CudaBackend::layer_norm_backward(Context& c, View x, View weight, View mean, View rstd, View dy, View dx,
                                      View dweight, View dbias) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (count == 0) return;
  for_floating("layer_norm_backward", x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (dweight.defined() || dbias.defined()) column_sums<T>(*this, c, x, mean, rstd, dy, dweight, dbias);
    if (!dx.defined()) return;
    const Scale<T> slope(weight);
    if (const int packs = slope.packs() ? kept_packs<T>({&x, &dy, &dx}) : 0) {
      const TeamGrid g = kept_grid<T>(rows, packs);
      return launch(stream_of(c), "layer_norm_input", g.grid,
                    LayerNormInputInRegisters<T>{{rows, packs, g.team},
                                                 Matrix<const T>(x),
                                                 Matrix<const T>(dy),
                                                 slope,
                                                 Column(mean),
                                                 Column(rstd),
                                                 Matrix<T>(dx)});
    }
    const TeamGrid g = team_grid(rows, count, kPack<T>);
    launch(stream_of(c), "layer_norm_input", g.grid,
           LayerNormInput<T>{Matrix<const T>(x), Matrix<const T>(dy), slope, Column(mean), Column(rstd),
                             Matrix<T>(dx), rows, count, g.team});
  });
}

}  // namespace weft::cuda
