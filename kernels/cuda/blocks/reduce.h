// Reductions over any dims and strides. Accumulators are double (floating dtypes) or int64 (others), as on
// the CPU. The kept dims index the outputs, the reduced dims the elements of each output; both are merged if
// their strides allow it. There are two forms:
//   lines    A team (a few lanes, a warp or a block) reduces the elements of one output. A dense line is read
//            in packs of 16 bytes.
//   columns  If the densest dim is kept, a block reduces neighbouring outputs together, with one warp per
//            row.
// If there are few outputs, the elements of each are cut into segments, which a second launch combines. The
// partition depends on shapes only, and every combination is a fixed tree: the same bits on every run and
// device. Overwrites y; reads each input once. A kernel is compiled per combination of two numbers (sum,
// product, larger, smaller) and per map of an element. A thread has a few packs or rows in flight.
#pragma once

#include <limits>

#include <weft/kernels/cuda/blocks/rows.h>
#include <weft/kernels/cuda/layout.h>
#include <weft/kernels/inner/functors.h>

namespace weft::cuda::reduction {

using kernels::functors::ring;

constexpr int64_t kEnough = 512;                       // blocks that keep every device busy
constexpr int64_t kLeastLine = 8192, kLeastRows = 64;  // of a segment

struct Sum {
  static constexpr Operands kOrder = kInAnyOrder;
  template <class V> WEFT_DEVICE static V combine(V a, V b) { return static_cast<V>(ring(a) + ring(b)); }
};
struct Product {
  static constexpr Operands kOrder = kInAnyOrder;
  template <class V> WEFT_DEVICE static V combine(V a, V b) { return static_cast<V>(ring(a) * ring(b)); }
};
struct Larger {                                 // NaN wins
  static constexpr Operands kOrder = kInOrder;  // of two zeros, the right one
  template <class V> WEFT_DEVICE static V combine(V a, V b) { return a > b || a != a ? a : b; }
};
struct Smaller {
  static constexpr Operands kOrder = kInOrder;
  template <class V> WEFT_DEVICE static V combine(V a, V b) { return a < b || a != a ? a : b; }
};

/// The map of an element before it is combined.
enum class Map : uint8_t { kNone, kAbs, kSquare, kTest };
template <Map map, class V> WEFT_DEVICE V mapped(V x) {
  if constexpr (map == Map::kNone) return x;
  else if constexpr (map == Map::kTest) return x != 0;
  else if constexpr (map == Map::kSquare) return static_cast<V>(ring(x) * ring(x));
  else return static_cast<V>(x <= 0 ? 0 - ring(x) : ring(x));  // +0 of -0 too
}

template <class V> struct Source {
  const void* data;
  DType dtype;
  V identity;
  Layout<2> kept;  // x, y
  Layout<1> reduced;
  int64_t segments, length;  // reduced elements are cut into segments of this length
  WEFT_DEVICE int64_t begin(int64_t segment) const { return segment * length; }
  WEFT_DEVICE int64_t end(int64_t segment) const {
    return segment + 1 < segments ? (segment + 1) * length : reduced.numel;
  }
};

/// The destination of totals: y (any dtype), or a scratch array if there are segments.
template <class V> struct Target {
  void* data;
  DType dtype;
  V* partial;                         // null: y
  int64_t output_step, segment_step;  // of partial
  WEFT_DEVICE void put(int64_t y_offset, int64_t output, int64_t segment, V total) const {
    if (partial) partial[output * output_step + segment * segment_step] = total;
    else set_number(data, dtype, y_offset, total);
  }
};

constexpr int kAhead = 3;  // rows of a column in flight

/// Columns of floating dtypes are read in packs.
template <class V, class T> inline constexpr int kWide = std::is_floating_point_v<V> ? kPack<T> : 1;

template <class Op, Map map, class V> struct ReduceLines {
  static constexpr int kThreads = kRowThreads, kBlocks = kRowBlocks<float>;
  Source<V> from;
  Target<V> to;
  Team team;
  WEFT_DEVICE void operator()(Thread t) const {
    team.each(t, from.kept.numel * from.segments, [&](int64_t task, bool mine) {
      const int64_t output = from.segments > 1 ? task / from.segments : task,
                    segment = from.segments > 1 ? task - output * from.segments : 0;
      V total = from.identity;
      int64_t at[2] = {};
      if (mine) {
        from.kept.locate(output, at);
        total = part(team.rank(t), team.size(t), at[0], from.begin(segment), from.end(segment));
      }
      total = team.fold<Op::kOrder>(t, total, [](V a, V b) { return Op::combine(a, b); });
      if (mine && team.rank(t) == 0) to.put(at[1], output, segment, total);
    });
  }

  /// Reduces the part of elements [begin, end) that belongs to thread `rank` of `size`.
  WEFT_DEVICE V part(int rank, int size, int64_t offset, int64_t begin, int64_t end) const {
    V total = from.identity;
    if (from.reduced.ndim > 1) {
      for (int64_t k = begin + rank; k < end; k += 2 * size) {
        int64_t one[1], two[1];
        from.reduced.locate(k, one);
        V v = get_number<V>(from.data, from.dtype, offset + one[0]), w = from.identity;
        const bool both = k + size < end;
        if (both) {
          from.reduced.locate(k + size, two);
          w = get_number<V>(from.data, from.dtype, offset + two[0]);
        }
        total = Op::combine(total, mapped<map>(v));
        if (both) total = Op::combine(total, mapped<map>(w));
      }
      return total;
    }
    const int64_t step = from.reduced.ndim == 0 ? 1 : from.reduced.stride[0][0], n = end - begin;
    with_type<V>(from.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const Line<const T> line{static_cast<const T*>(from.data) + offset + begin * step, step};
      stride_loop<T, kTogether<T>>(
          rank, size, packed_range(n, line), n,
          [&](int64_t k, auto many) { return fetch<many.value>(line, k); },
          [&](int64_t, auto many, const auto& loaded) {
            const auto v = numbers<V>(loaded);
            WEFT_UNROLL
            for (int i = 0; i < many.value; ++i) total = Op::combine(total, mapped<map>(v.v[i]));
          });
    });
    return total;
  }
};

template <class Op, Map map, class V> struct ReduceColumns {
  static constexpr int kThreads = 256, kBlocks = 4, kWarps = kThreads / kWarp;
  static constexpr int kMost = kWide<V, Half>;  // neighbours of one lane
  Source<V> from;
  Target<V> to;
  int64_t width, blocks;  // outputs along the densest kept dim, and the blocks of neighbours they make
  int pack;               // neighbours of one lane: a pack, or 1
  WEFT_DEVICE void operator()(Thread t) const {
    const int64_t tasks = from.kept.numel / width * blocks * from.segments;
    for (int64_t task = t.block(); task < tasks; task += t.blocks()) {
      // Kept in registers besides the totals: the first output of the block, their number, and the segment.
      const int64_t rest = task / blocks, first = (task - rest * blocks) * kWarp * pack,
                    line = rest / from.segments;
      const int segment = static_cast<int>(rest - line * from.segments), most = kWarp * pack,
                count = static_cast<int>(width - first < most ? width - first : most);
      const int64_t output = line * width + first;
      V* const totals = t.shared<V>();  // [warps, lanes * pack]
      fold(t, output + t.lane() * pack, t.lane() * pack < count, segment,
           totals + (t.warp() * kWarp + t.lane()) * pack);
      t.sync();
      for (int c = t.id(); c < count; c += kThreads) {
        V sum = totals[c];
        WEFT_ROLLED for (int w = 1; w < kWarps; ++w) sum = Op::combine(sum, totals[w * kWarp * pack + c]);
        int64_t at[2];
        from.kept.locate(output + c, at);
        to.put(at[1], output + c, segment, sum);
      }
      t.sync();
    }
  }
  /// Reduces the outputs from `output` on over this warp's rows of a segment. The rows are those of all
  /// reduced dims.
  WEFT_DEVICE void fold(Thread t, int64_t output, bool mine, int segment, V* result) const {
    V total[kMost];
    WEFT_UNROLL
    for (int i = 0; i < kMost; ++i) total[i] = from.identity;
    if (mine) {
      const int last = from.reduced.ndim - 1;
      const int64_t step = from.reduced.stride[0][last], inner = from.reduced.size[last];
      const int64_t begin = (from.segments > 1 ? from.begin(segment) : 0) + t.warp(),
                    rows = (from.segments > 1 ? from.end(segment) : inner) - begin;
      int64_t start[2];
      from.kept.locate(output, start);
      for (int64_t outer = 0; outer < from.reduced.numel; outer += inner) {
        int64_t at[1] = {};
        if (last > 0) from.reduced.locate(outer, at);
        at[0] += start[0] + begin * step;
        with_type<V>(from.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          const T* const x = static_cast<const T*>(from.data) + at[0];
          if (pack == 1) add_rows<1>(x, step * kWarps, rows, total);
          else if constexpr (kWide<V, T> > 1) add_rows<kWide<V, T>>(x, step * kWarps, rows, total);
        });
      }
    }
    WEFT_UNROLL
    for (int i = 0; i < kMost; ++i)
      if (i < pack) result[i] = total[i];
  }
  /// Every kWarps-th of `rows` rows, at a distance of `apart`.
  template <int N, class T>
  static WEFT_DEVICE void add_rows(const T* x, int64_t apart, int64_t rows, V (&total)[kMost]) {
    for (; rows > 0; rows -= kAhead * kWarps, x += kAhead * apart) {
      Raw<T, N> loaded[kAhead] = {};
      WEFT_UNROLL
      for (int a = 0; a < kAhead; ++a)
        if (a * kWarps < rows) loaded[a] = fetch<N>(Line<const T>{x + a * apart, 1}, 0);
      WEFT_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        if (a * kWarps >= rows) continue;
        const auto v = numbers<V>(loaded[a]);
        WEFT_UNROLL
        for (int i = 0; i < N; ++i) total[i] = Op::combine(total[i], mapped<map>(v.v[i]));
      }
    }
  }
};

/// Cuts the reduced elements into segments of at least `least`, so that `tasks` times segments fill the
/// device.
template <class V> void cut(Source<V>& from, int64_t tasks, int64_t least) {
  const int64_t n = from.reduced.numel, wanted = tasks < kEnough ? kEnough / tasks : 1, most = n / least;
  const int64_t parts = wanted < most ? wanted : most;
  from.segments = 1, from.length = n;
  if (parts < 2) return;
  from.length = blocks_for(blocks_for(n, parts), 64) * 64;
  from.segments = blocks_for(n, from.length);
}

template <class V> bool packs_fit(const Source<V>& s, int64_t width) {
  if (!std::is_floating_point_v<V>) return false;
  const int64_t n = 16 / size_of(s.dtype);
  bool fits = reinterpret_cast<uintptr_t>(s.data) % 16 == 0 && width % n == 0;
  for (int d = 0; d + 1 < s.kept.ndim; ++d) fits = fits && s.kept.stride[0][d] % n == 0;
  for (int d = 0; d < s.reduced.ndim; ++d) fits = fits && s.reduced.stride[0][d] % n == 0;
  return fits;
}

template <class Op, Map map, class V> struct Reducer {
  CudaBackend& backend;
  Context& context;

  /// `whole`: the elements of an output are not cut into segments.
  void operator()(Source<V> from, void* y, DType y_type, bool whole = false) const {
    const int last = from.kept.ndim - 1, rlast = from.reduced.ndim - 1;
    const auto distance = [](int64_t s) { return s < 0 ? -s : s; };
    const bool kept_is_dense = last >= 0 && from.kept.stride[0][last] == 1 && rlast >= 0 &&
                               distance(from.reduced.stride[0][rlast]) > 1;
    if (kept_is_dense && from.kept.size[last] >= 16 && from.reduced.numel >= 16)
      columns(from, y, y_type, whole);
    else lines(from, y, y_type, kept_is_dense, whole);
  }

 private:
  void lines(Source<V>& from, void* y, DType y_type, bool kept_is_dense, bool whole) const {
    cut(from, whole ? kEnough : from.kept.numel, kLeastLine);
    const Scratch partial(
        backend, context,
        from.segments > 1 ? static_cast<size_t>(from.kept.numel * from.segments) * sizeof(V) : 0);
    const bool packs = from.reduced.ndim == 0 || (from.reduced.ndim == 1 && from.reduced.stride[0][0] == 1);
    TeamGrid g = team_grid(from.kept.numel * from.segments, from.length,
                           packs ? static_cast<int>(16 / size_of(from.dtype)) : 1);
    // neighbouring lanes read neighbouring outputs
    if (kept_is_dense && from.reduced.numel <= kWarp && from.kept.size[from.kept.ndim - 1] >= kWarp) {
      g.team.lanes = 1;
      g.grid.blocks = one_round(blocks_for(from.kept.numel, g.grid.threads));
    }
    launch(backend.stream_of(context), "reduce_lines", g.grid,
           ReduceLines<Op, map, V>{from, {y, y_type, partial.as<V>(), from.segments, 1}, g.team});
    finish(from, partial, from.segments, 1, y, y_type);
  }

  void columns(Source<V>& from, void* y, DType y_type, bool whole) const {
    const int64_t width = from.kept.size[from.kept.ndim - 1], n = 16 / size_of(from.dtype);
    const bool packs = packs_fit(from, width) && width >= kWarp * n;
    const int64_t blocks = blocks_for(width, kWarp * (packs ? n : 1)),
                  tasks = from.kept.numel / width * blocks;
    cut(from, whole || from.reduced.ndim > 1 ? kEnough : tasks, kLeastRows);
    const Scratch partial(
        backend, context,
        from.segments > 1 ? static_cast<size_t>(from.kept.numel * from.segments) * sizeof(V) : 0);
    using Body = ReduceColumns<Op, map, V>;
    const Grid grid{.blocks = one_round(tasks * from.segments),
                    .threads = Body::kThreads,
                    .shared = static_cast<size_t>(Body::kThreads * (packs ? n : 1)) * sizeof(V)};
    launch(backend.stream_of(context), "reduce_columns", grid,
           Body{from,
                {y, y_type, partial.as<V>(), 1, from.kept.numel},
                width,
                blocks,
                static_cast<int>(packs ? n : 1)});
    finish(from, partial, 1, from.kept.numel, y, y_type);
  }

  /// Combines the totals of the segments.
  void finish(const Source<V>& done, const Scratch& partial, int64_t output_step, int64_t segment_step,
              void* y, DType y_type) const {
    if (done.segments == 1) return;
    Source<V> from{partial.as<void>(), dtype_of<V>, done.identity, done.kept, {}, 1, done.segments};
    int64_t step = output_step;
    for (int d = from.kept.ndim - 1; d >= 0; --d) from.kept.stride[0][d] = step, step *= from.kept.size[d];
    from.reduced.ndim = 1, from.reduced.size[0] = done.segments, from.reduced.stride[0][0] = segment_step;
    from.reduced.prepare();
    Reducer<Op, Map::kNone, V>{backend, context}(from, y, y_type, true);
  }
};

template <class V>
void reduce_as(CudaBackend& b, Context& c, Reduce op, Source<V> from, void* y, DType y_type) {
  constexpr bool real = std::is_floating_point_v<V>;
  using Limits = std::numeric_limits<V>;
  const auto run = [&]<class Op, Map map>(Op, std::integral_constant<Map, map>, V identity) {
    from.identity = identity;
    Reducer<Op, map, V>{b, c}(from, y, y_type);
  };
  constexpr std::integral_constant<Map, Map::kNone> as_it_is;
  constexpr std::integral_constant<Map, Map::kAbs> absolute;
  constexpr std::integral_constant<Map, Map::kSquare> square;
  constexpr std::integral_constant<Map, Map::kTest> test;
  switch (op) {
    case Reduce::kSum: return run(Sum(), as_it_is, 0);
    case Reduce::kSumAbs: return run(Sum(), absolute, 0);
    case Reduce::kSumSquares: return run(Sum(), square, 0);
    case Reduce::kProd: return run(Product(), as_it_is, 1);
    case Reduce::kMax: return run(Larger(), as_it_is, real ? -Limits::infinity() : Limits::min());
    case Reduce::kMaxAbs: return run(Larger(), absolute, 0);
    case Reduce::kAny: return run(Larger(), test, 0);
    case Reduce::kMin: return run(Smaller(), as_it_is, real ? Limits::infinity() : Limits::max());
    case Reduce::kAll: return run(Smaller(), test, 1);
  }
}

/// reduce_as for integers; in a separate file, to compile in parallel.
void reduce_integers(CudaBackend& b, Context& c, Reduce op, const Source<int64_t>& from, void* y,
                     DType y_type);

}  // namespace weft::cuda::reduction
