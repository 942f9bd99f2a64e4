// The index of the largest or smallest element along one dim, and its value: x -> values (=, may be absent),
// indices int64 (=). The first NaN wins, then the first of equal values. This order has no ties, so the
// result does not depend on the partition. A team reduces the elements of one output, or a single thread if
// neighbouring outputs are dense. A few long outputs are cut into segments, which a second launch combines.
// Reads x once.
#include <weft/kernels/cuda/blocks/rows.h>
#include <weft/kernels/cuda/layout.h>

namespace weft::cuda {
namespace {

constexpr int64_t kEnough = 512, kLeast = 8192;

template <class V> struct Best {
  V value;
  int64_t at;  // -1: none yet
};

template <class V> struct ArgReduce {
  const void* x;
  DType dtype;
  Layout<3> kept;  // x, values, indices
  int64_t count, step;
  int64_t segments, length;
  bool largest;
  Team team;
  Best<V>* partial;  // [outputs, segments], or null: write the result
  void* values;      // of x's dtype, or null
  int64_t* indices;

  WEFT_DEVICE Best<V> better(const Best<V>& a, const Best<V>& b) const {
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool tie = a_nan ? b_nan : !b_nan && a.value == b.value;
    if (tie) return a.at < b.at ? a : b;
    if (a_nan || b_nan) return a_nan ? a : b;
    return (largest ? a.value > b.value : a.value < b.value) ? a : b;
  }

  /// The best of a few neighbours, `first` being the place of the first one.
  template <int N> WEFT_DEVICE Best<V> best_of(const Numbers<V, N>& few, int64_t first) const {
    V value = few.v[0];
    int place = 0;
    WEFT_UNROLL
    for (int i = 1; i < N; ++i) {
      const V v = few.v[i];
      const bool wins = value == value && ((largest ? v > value : v < value) || v != v);
      value = wins ? v : value, place = wins ? i : place;
    }
    return {value, first + place};
  }

  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, kept.numel * segments, [&](int64_t task, bool mine) {
      const int64_t output = task / segments, segment = task - output * segments;
      Best<V> best{V(), -1};
      int64_t at[3] = {};
      if (mine) {
        kept.locate(output, at);
        const int64_t begin = segment * length, end = begin + length < count ? begin + length : count;
        with_type<V>(dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          const Line<const T> line{static_cast<const T*>(x) + at[0] + begin * step, step};
          stride_loop<T, kTogether<V>>(
              team.rank(t), team.size(t), packed_range(end - begin, line), end - begin,
              [&](int64_t k, auto n) { return fetch<n.value>(line, k); },
              [&](int64_t k, auto, const auto& loaded) {
                best = better(best, best_of(numbers<V>(loaded), begin + k));
              });
        });
      }
      best = team.fold(t, best, [&](const Best<V>& a, const Best<V>& b) { return better(a, b); });
      if (!mine || team.rank(t) != 0) return;
      if (partial) partial[task] = best;
      else put(at, best);
    });
  }
  WEFT_DEVICE void put(const int64_t (&at)[3], const Best<V>& best) const {
    if (values) set_number(values, dtype, at[1], best.value);
    indices[at[2]] = best.at;
  }
};

template <class V> struct FinishArgReduce {
  ArgReduce<V> of;
  Team team;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, of.kept.numel, [&](int64_t output, bool mine) {
      Best<V> best{V(), -1};
      for (int64_t s = team.rank(t); mine && s < of.segments; s += team.size(t))
        best = of.better(best, of.partial[output * of.segments + s]);
      best = team.fold(t, best, [&](const Best<V>& a, const Best<V>& b) { return of.better(a, b); });
      if (!mine || team.rank(t) != 0) return;
      int64_t at[3];
      of.kept.locate(output, at);
      of.put(at, best);
    });
  }
};

template <class V> void run(CudaBackend& b, Context& c, ArgReduce<V> body, int pack) {
  const int64_t outputs = body.kept.numel, wanted = outputs < kEnough ? kEnough / outputs : 1,
                most = body.count / kLeast;
  const int64_t parts = wanted < most ? wanted : most;
  body.segments = 1, body.length = body.count;
  if (parts > 1) {
    body.length = blocks_for(blocks_for(body.count, parts), 64) * 64;
    body.segments = blocks_for(body.count, body.length);
  }
  const Scratch partial(
      b, c, body.segments > 1 ? static_cast<size_t>(outputs * body.segments) * sizeof(Best<V>) : 0);
  body.partial = partial.as<Best<V>>();
  TeamGrid g = team_grid(outputs * body.segments, body.length, pack);
  const int last = body.kept.ndim - 1;
  if (body.step != 1 && last >= 0 && body.kept.stride[0][last] == 1 && body.kept.size[last] >= kWarp &&
      outputs >= kEnough * kWarp) {
    g.team.lanes = 1;
    g.grid.blocks = one_round(blocks_for(outputs, g.grid.threads));
  }
  body.team = g.team;
  launch(b.stream_of(c), "arg_reduce", g.grid, body);
  if (body.segments == 1) return;
  const TeamGrid f = team_grid(outputs, body.segments, 1);
  launch(b.stream_of(c), "arg_reduce_finish", f.grid, FinishArgReduce<V>{body, f.team});
}

}  // namespace

void CudaBackend::arg_reduce(Context& c, bool largest, int dim, View x, View values, View indices) {
  enter();
  const int64_t count = x.size(dim), step = count == 1 ? 1 : x.stride(dim);
  View places = x, kept_values = values.defined() ? values : indices, kept_indices = indices;
  for (View* v : {&places, &kept_values, &kept_indices}) v->sizes.erase(dim), v->strides.erase(dim);
  const Layout<3> kept = layout_of<3>({&places, &kept_values, &kept_indices});
  if (kept.numel == 0) return;
  const int pack = step == 1 ? static_cast<int>(16 / size_of(x.dtype)) : 1;
  const auto run_as = [&]<class V>(V) {
    run<V>(*this, c,
           {x.data,
            x.dtype,
            kept,
            count,
            step,
            1,
            count,
            largest,
            {},
            nullptr,
            values.data,
            indices.as<int64_t>()},
           pack);
  };
  if (is_floating(x.dtype)) run_as(double());
  else run_as(int64_t());
}

}  // namespace weft::cuda
