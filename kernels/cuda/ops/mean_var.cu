// Mean and variance over the last dim: x [R, K] -> mean, var [R] (=). A team reads a row twice, the second
// time from the cache: for the mean, then for the squared differences, all in double. Doubles are read once
// more, to correct the mean. A few long rows are cut
// into segments with separate means and sums of squares, which a second launch combines. M = M1 + M2 + d^2 n1
// n2 / (n1 + n2) with d the difference of the means. Source: Chan, Golub, LeVeque 1979, eq. 2.1.
#include <weft/kernels/cuda/blocks/rows.h>

namespace weft::cuda {
namespace {

constexpr int64_t kEnough = 512, kLeast = 8192;

struct Moments {
  double count, mean, squares;
};
WEFT_DEVICE inline Moments join(const Moments& a, const Moments& b) {
  if (a.count == 0 || b.count == 0) return a.count == 0 ? b : a;
  const double n = a.count + b.count, d = b.mean - a.mean;
  return {n, a.mean + d * (b.count / n), a.squares + b.squares + d * d * (a.count * b.count / n)};
}

struct MeanVar {
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<float>;
  const void* x;
  DType dtype;
  int64_t rows, row, count, col;
  int64_t segments, length;
  double correction;
  Team team;
  Moments* partial;  // [rows, segments], or null
  Column mean, var;

  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, rows * segments, [&](int64_t task, bool mine) {
      const int64_t r = task / segments, begin = (task - r * segments) * length;
      const int64_t n = mine ? (begin + length < count ? length : count - begin) : 0;
      Moments m{static_cast<double>(n), 0, 0};
      with_type<double>(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const Line<const T> line{static_cast<const T*>(x) + r * row + begin * col, col};
        const PackedRange range = packed_range(n, line);
        const auto load = [&](int64_t k, auto many) { return fetch<many.value>(line, k); };
        stride_loop<T, 4>(team.rank(t), team.size(t), range, n, load,
                          [&](int64_t, auto many, const auto& loaded) {
                            const auto v = numbers<double>(loaded);
                            WEFT_UNROLL
                            for (int i = 0; i < many.value; ++i) m.mean += v.v[i];
                          });
        m.mean = team.sum(t, m.mean) / m.count;
        if constexpr (std::is_same_v<T, double>) {  // a sum of floats has no such rounding error
          double off = 0;
          stride_loop<T, 4>(team.rank(t), team.size(t), range, n, load,
                            [&](int64_t, auto many, const auto& loaded) {
                              const auto v = numbers<double>(loaded);
                              WEFT_UNROLL
                              for (int i = 0; i < many.value; ++i) off += v.v[i] - m.mean;
                            });
          m.mean += team.sum(t, off) / m.count;
        }
        stride_loop<T, 4>(team.rank(t), team.size(t), range, n, load,
                          [&](int64_t, auto many, const auto& loaded) {
                            const auto v = numbers<double>(loaded);
                            WEFT_UNROLL
                            for (int i = 0; i < many.value; ++i)
                              m.squares += (v.v[i] - m.mean) * (v.v[i] - m.mean);
                          });
        m.squares = team.sum(t, m.squares);
      });
      if (!mine || team.rank(t) != 0) return;
      if (partial) partial[task] = m;
      else put(r, m);
    });
  }
  WEFT_DEVICE void put(int64_t r, const Moments& m) const {
    const double n = static_cast<double>(count) - correction;
    mean.set(r, m.mean);
    var.set(r, m.squares / (n > 0 ? n : 0));
  }
};

struct FinishMeanVar {
  MeanVar of;
  Team team;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, of.rows, [&](int64_t r, bool mine) {
      Moments m{0, 0, 0};
      for (int64_t s = team.rank(t); mine && s < of.segments; s += team.size(t))
        m = join(m, of.partial[r * of.segments + s]);
      m = team.fold(t, m, [](const Moments& a, const Moments& b) { return join(a, b); });
      if (mine && team.rank(t) == 0) of.put(r, m);
    });
  }
};

}  // namespace

void CudaBackend::mean_var(Context& c, double correction, View x, View mean, View var) {
  enter();
  const int64_t rows = x.size(0), count = x.size(1);
  if (rows == 0) return;
  MeanVar body{x.data,     x.dtype, rows,    x.stride(0),  count,      count == 1 ? 1 : x.stride(1), 1, count,
               correction, {},      nullptr, Column(mean), Column(var)};
  const int64_t wanted = rows < kEnough ? kEnough / rows : 1, most = count / kLeast,
                parts = wanted < most ? wanted : most;
  if (parts > 1) {
    body.length = blocks_for(blocks_for(count, parts), 64) * 64;
    body.segments = blocks_for(count, body.length);
  }
  const Scratch partial(*this, c,
                        body.segments > 1 ? static_cast<size_t>(rows * body.segments) * sizeof(Moments) : 0);
  body.partial = partial.as<Moments>();
  TeamGrid g = team_grid(rows * body.segments, body.length, static_cast<int>(16 / size_of(x.dtype)));
  g.grid.shared = fold_bytes<Moments>();
  body.team = g.team;
  launch(stream_of(c), "mean_var", g.grid, body);
  if (body.segments == 1) return;
  TeamGrid f = team_grid(rows, body.segments, 1);
  f.grid.shared = fold_bytes<Moments>();
  launch(stream_of(c), "mean_var_finish", f.grid, FinishMeanVar{body, f.team});
}

}  // namespace weft::cuda
