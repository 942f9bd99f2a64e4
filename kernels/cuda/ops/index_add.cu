// Accumulation by index. A stable sort of (target, position) pairs groups equal indices, and one thread or
// group of lanes adds a group in order of position. Sums have the bits of a plain loop, except for the
// longest groups, and are the same in every run.
//   add_rows   dx [V, K] += dy [n, K] at index [n]: sorts n pairs; reads n K + U K and writes U K elements
//              for U distinct rows; n K adds. A group of more than max(1024, 2 sqrt(n)) rows is cut at
//              multiples of half that number. A second launch adds the pieces in order.
//   scatter    y = src at index along dim, or y + src, y * src, their maximum or minimum. Short or very many
//              lines run one thread each; many lines along memory one warp each; others are sorted.
// Half dtypes are added in float within a group and rounded once; threads and warps per line round after each
// element. An index out of range is reported, and its row or element is not written.
#include <bit>
#include <type_traits>

#include <weft/kernels/cuda/blocks/indices.h>
#include <weft/kernels/cuda/blocks/number.h>
#include <weft/kernels/cuda/blocks/radix.h>
#include <weft/kernels/cuda/blocks/row_lanes.h>
#include <weft/kernels/cuda/layout.h>
#include <weft/kernels/inner/convert.h>

namespace weft::cuda {

namespace {

constexpr int kAhead = 8;  // reads in flight in a long run

/// The sum of elements of T: integers wrap around, bool is "any".
template <class T> struct Sum {
  using Total =
      std::conditional_t<kernels::kIsHalf<T>, float,
                         std::conditional_t<std::is_floating_point_v<T>, T,
                                            std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>>;
  static WEFT_DEVICE Total of(T x) { return kernels::convert<Total>(x); }
  static WEFT_DEVICE Total add(Total a, Total b) {
    if constexpr (std::is_same_v<T, bool>) return a | b;
    else return a + b;
  }
  static WEFT_DEVICE T to(Total a) { return kernels::convert<T>(a); }
};

/// Calls use(read(i)) for positions from i on, in order, up to n or the first that is not the same as i.
/// Later ones are not the same either. Reads of A positions are in flight. Returns the position where it
/// stopped.
template <int A, class T, class Same, class Read, class Use>
WEFT_DEVICE int64_t each_together(int64_t i, int64_t n, const Same& same, const Read& read, const Use& use) {
  for (; i + A <= n && same(i + A - 1); i += A) {
    T part[A];
    WEFT_UNROLL
    for (int a = 0; a < A; ++a) part[a] = read(i + a);
    WEFT_UNROLL
    for (int a = 0; a < A; ++a) use(part[a]);
  }
  return i;
}
template <class T, class Same, class Read, class Use>
WEFT_DEVICE void each_while(int64_t start, int64_t n, const Same& same, const Read& read, const Use& use) {
  int64_t i = each_together<kAhead, T>(start, n, same, read, use);
  i = each_together<2, T>(i, n, same, read, use);
  each_together<1, T>(i, n, same, read, use);
}

int bits_for(uint64_t largest) { return 64 - std::countl_zero(largest); }  // host

/// The row of each index; `rows` for indices that are skipped.
struct KeyRows {
  Indices index;
  uint32_t* keys;
  int64_t n, step, skip;
  static constexpr bool kIndependent = true;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t i = t.global(); i < n; i += t.globals()) {
      const int64_t v = index.at(i * step);
      const bool inside = index.inside(v);
      if (!inside && v != skip) index.report(t, v, i);
      keys[i] = static_cast<uint32_t>(inside && v != skip ? v : index.size);
    }
  }
};

/// Sorted keys. Runs of more than 2^(shift + 1) equal keys are cut at borders, which are 2^shift positions
/// apart.
template <class T> struct Runs {
  Pairs<uint32_t> sorted;
  int64_t n;
  uint32_t rows;  ///< keys from this one on are skipped
  int shift;
  /// [stretches between borders, 2, K]: sums of the run that crosses the first border, and of the one that
  /// crosses the last
  typename Sum<T>::Total* pieces;

  WEFT_DEVICE uint32_t key(int64_t i) const { return sorted.keys[i]; }
  WEFT_DEVICE bool begins(int64_t i) const { return i == 0 || key(i - 1) != key(i); }
  /// the next border after position i
  WEFT_DEVICE int64_t border(int64_t i) const { return ((i >> shift) + 1) << shift; }
  /// The start of the run of position i.
  WEFT_DEVICE int64_t begin(int64_t i) const {
    const uint32_t own = key(i);
    int64_t low = 0;
    while (low < i) {
      const int64_t middle = (low + i) / 2;
      if (key(middle) < own) low = middle + 1;
      else i = middle;
    }
    return low;
  }
  /// Whether the run that starts there is cut.
  WEFT_DEVICE bool is_long(int64_t start) const {
    const int64_t behind = start + (int64_t{2} << shift);
    return behind < n && key(behind) == key(start);
  }
};

/// A group of lanes per piece of a run, N elements at a time. Strides in elements.
template <class T, int N> struct AddRuns {
  Runs<T> runs;
  const T* dy;
  T* dx;
  RowLanes lanes;
  int64_t units, dy_row, dy_step, dx_row, dx_step;
  static constexpr bool kIndependent = true;
  static constexpr int kThreads = 256, kBlocks = 4;

  WEFT_DEVICE void operator()(Thread t) const {
    using Some = Pack<T, N>;
    using S = Sum<T>;
    for (int64_t start = lanes.first_row(t); start < runs.n; start += lanes.row_step(t)) {
      const uint32_t key = runs.key(start);
      const bool begins = runs.begins(start);
      const int64_t border = runs.border(start);
      if (key >= runs.rows || (!begins && border - start != int64_t{1} << runs.shift)) continue;
      const bool whole = !runs.is_long(begins ? start : runs.begin(start));
      if (whole && !begins) continue;
      const int64_t end = whole || border > runs.n ? runs.n : border;
      for (int64_t u = lanes.first_unit(t); u < units; u += lanes.unit_step(t)) {
        Some* const to = reinterpret_cast<Some*>(dx + key * dx_row + u * N * dx_step);
        const Some old = whole ? *to : Some{};
        typename S::Total total[N];
        WEFT_UNROLL
        for (int k = 0; k < N; ++k) total[k] = S::of(old.at[k]);
        each_while<Some>(
            start, end, [&](int64_t i) { return runs.key(i) == key; },
            [&](int64_t i) {
              return *reinterpret_cast<const Some*>(dy + runs.sorted.at[i] * dy_row + u * N * dy_step);
            },
            [&](const Some& part) {
              WEFT_UNROLL
              for (int k = 0; k < N; ++k) total[k] = S::add(total[k], S::of(part.at[k]));
            });
        if (whole) {
          Some sum = {};
          WEFT_UNROLL
          for (int k = 0; k < N; ++k) sum.at[k] = S::to(total[k]);
          *to = sum;
        } else {
          auto* const piece =
              runs.pieces + ((start >> runs.shift) * 2 + (begins ? 1 : 0)) * units * N + u * N;
          WEFT_UNROLL
          for (int k = 0; k < N; ++k) piece[k] = total[k];
        }
      }
    }
  }
};

/// dx += the pieces of a run, in order: a group of lanes per run that crosses a border.
template <class T> struct AddPieces {
  Runs<T> runs;
  T* dx;
  RowLanes lanes;
  int64_t units, dx_row, dx_step;
  static constexpr bool kIndependent = true;
  static constexpr int kThreads = 256;

  WEFT_DEVICE void operator()(Thread t) const {
    using S = Sum<T>;
    using Total = typename S::Total;
    const int64_t stretches = (runs.n - 1) >> runs.shift;  // those that end at a border
    for (int64_t s = lanes.first_row(t); s < stretches; s += lanes.row_step(t)) {
      const int64_t border = (s + 1) << runs.shift;
      const uint32_t key = runs.key(border);
      if (key >= runs.rows || runs.key(border - 1) != key) continue;
      if (const int64_t begin = runs.begin(border - 1); begin >> runs.shift != s || !runs.is_long(begin))
        continue;
      for (int64_t u = lanes.first_unit(t); u < units; u += lanes.unit_step(t)) {
        T& to = dx[key * dx_row + u * dx_step];
        Total total = S::add(S::of(to), runs.pieces[(s * 2 + 1) * units + u]);
        each_while<Total>(
            s + 1, stretches + 1, [&](int64_t i) { return runs.key(i << runs.shift) == key; },
            [&](int64_t i) { return runs.pieces[i * 2 * units + u]; },
            [&](Total piece) { total = S::add(total, piece); });
        to = S::to(total);
      }
    }
  }
};

/// Products, and the larger or smaller of two, which is NaN if either is; bool is "all", "any" and "all".
template <class T> struct Product : Sum<T> {
  using typename Sum<T>::Total;
  static WEFT_DEVICE Total add(Total a, Total b) { return a * b; }
};
template <class T, bool kLargest> struct Extreme : Sum<T> {
  using typename Sum<T>::Total;
  static WEFT_DEVICE Total add(Total a, Total b) {
    // integers add up without a sign
    using Ordered = std::conditional_t<std::is_floating_point_v<Total>, Total, T>;
    const Ordered x = static_cast<Ordered>(a), y = static_cast<Ordered>(b);
    return (kLargest ? x > y : x < y) || x != x ? a : b;
  }
};

/// The combination of scatter: assignment is compiled per width, others per type.
template <class U> struct Assign {
  using T = U;
  static constexpr bool kCombines = false;
};
template <class U, class F> struct Combine {
  using T = U;
  using Fold = F;
  static constexpr bool kCombines = true;
};

/// The lines of a scatter along a dim: the index tensor without it, in row-major order. Operands: index, src,
/// y.
struct ScatterLines {
  Indices index;
  Layout<3> lines;
  int64_t n, index_step, src_step, y_step;
  int64_t inner;  ///< elements of the index tensor after dim

  WEFT_DEVICE int64_t position(int64_t line, int64_t i) const {
    return line / inner * (n * inner) + i * inner + line % inner;
  }
};

/// A thread per line.
template <class Rule> struct ScatterByLine {
  using T = typename Rule::T;
  ScatterLines s;
  const T* src;
  T* y;
  static constexpr bool kIndependent = true;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t line = t.global(); line < s.lines.numel; line += t.globals()) {
      int64_t offset[3];
      s.lines.locate(line, offset);
      for (int64_t i = 0; i < s.n; ++i) {
        const int64_t v = s.index.at(offset[0] + i * s.index_step);
        if (!s.index.inside(v)) {
          s.index.report(t, v, s.position(line, i));
          continue;
        }
        const T x = src[offset[1] + i * s.src_step];
        T& to = y[offset[2] + v * s.y_step];
        if constexpr (Rule::kCombines) {
          using F = typename Rule::Fold;
          to = F::to(F::add(F::of(to), F::of(x)));
        } else {
          to = x;
        }
      }
    }
  }
};

/// A warp per line, 32 elements at a time. Of the lanes with the same target, the last one assigns, or the
/// first one combines the values of all in order.
template <class Rule> struct ScatterByWarp {
  using T = typename Rule::T;
  ScatterLines s;
  const T* src;
  T* y;
  static constexpr int kThreads = 256;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t line = t.global() / kWarp; line < s.lines.numel; line += t.globals() / kWarp) {
      int64_t offset[3];
      s.lines.locate(line, offset);
      for (int64_t first = 0; first < s.n; first += kWarp) {
        const int64_t i = first + t.lane();
        int64_t v = i < s.n ? s.index.at(offset[0] + i * s.index_step) : -1;
        const bool inside = s.index.inside(v);
        if (i < s.n && !inside) s.index.report(t, v, s.position(line, i));
        if (!inside) v = -1;
        const T x = inside ? src[offset[1] + i * s.src_step] : T();
        T* const to = y + offset[2] + v * s.y_step;
        bool mine = inside;
        if constexpr (Rule::kCombines) {
          using S = typename Rule::Fold;
          T total = inside ? *to : T();
          WEFT_UNROLL4
          for (int lane = 0; lane < kWarp; ++lane) {
            const bool same = t.shuffle(v, lane) == v;
            const auto part = t.shuffle(S::of(x), lane);
            if (same) total = S::to(S::add(S::of(total), part));
            if (same && lane < t.lane()) mine = false;
          }
          if (mine) *to = total;
        } else {
          WEFT_UNROLL4
          for (int lane = 0; lane < kWarp; ++lane)
            if (t.shuffle(v, lane) == v && lane > t.lane()) mine = false;
          if (mine) *to = x;
        }
        t.sync_warp();  // the next elements may have the same targets
      }
    }
  }
};

/// Key of element i of a line: line * size + target, or lines * size for elements that are skipped.
struct KeyScatter {
  ScatterLines s;
  uint64_t* keys;
  static constexpr bool kIndependent = true;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t e = t.global(); e < s.lines.numel * s.n; e += t.globals()) {
      const int64_t line = e / s.n, i = e - line * s.n;
      int64_t offset[3];
      s.lines.locate(line, offset);
      const int64_t v = s.index.at(offset[0] + i * s.index_step);
      const bool inside = s.index.inside(v);
      if (!inside) s.index.report(t, v, s.position(line, i));
      keys[e] = static_cast<uint64_t>(inside ? line * s.index.size + v : s.lines.numel * s.index.size);
    }
  }
};

/// A thread per run of equal keys: its first one when combining, its last one when assigning.
template <class Rule> struct ScatterRuns {
  using T = typename Rule::T;
  ScatterLines s;
  Pairs<uint64_t> runs;
  const T* src;
  T* y;
  static constexpr bool kIndependent = true;

  WEFT_DEVICE void operator()(Thread t) const {
    const int64_t count = s.lines.numel * s.n;
    for (int64_t r = t.global(); r < count; r += t.globals()) {
      const uint64_t key = runs.keys[r];
      if (key >= static_cast<uint64_t>(s.lines.numel * s.index.size)) continue;
      const int64_t neighbour = Rule::kCombines ? r - 1 : r + 1;
      if (neighbour >= 0 && neighbour < count && runs.keys[neighbour] == key) continue;
      const auto line = static_cast<int64_t>(key) / s.index.size,
                 v = static_cast<int64_t>(key) - line * s.index.size;
      int64_t offset[3];
      s.lines.locate(line, offset);
      const T* const from = src + offset[1] - line * s.n * s.src_step;  // positions count all lines
      T& to = y[offset[2] + v * s.y_step];
      if constexpr (Rule::kCombines) {
        using F = typename Rule::Fold;
        auto total = F::of(to);
        each_while<T>(
            r, count, [&](int64_t i) { return runs.keys[i] == key; },
            [&](int64_t i) { return from[runs.at[i] * s.src_step]; },
            [&](const T& x) { total = F::add(total, F::of(x)); });
        to = F::to(total);
      } else {
        to = from[runs.at[r] * s.src_step];
      }
    }
  }
};

/// Calls f(TypeTag<Assign<U>>) or f(TypeTag<Combine<T, Fold>>).
template <class F> void dispatch_rule(ScatterRule rule, DType dtype, const F& f) {
  if (rule != ScatterRule::kAssign) {
    return dispatch(dtype, [&]<class T>(TypeTag<T>) {
      if (rule == ScatterRule::kAdd) f(TypeTag<Combine<T, Sum<T>>>{});
      else if (rule == ScatterRule::kMul) f(TypeTag<Combine<T, Product<T>>>{});
      else if (rule == ScatterRule::kMax) f(TypeTag<Combine<T, Extreme<T, true>>>{});
      else f(TypeTag<Combine<T, Extreme<T, false>>>{});
    });
  }
  switch (size_of(dtype)) {
    case 1: return f(TypeTag<Assign<uint8_t>>{});
    case 2: return f(TypeTag<Assign<uint16_t>>{});
    case 4: return f(TypeTag<Assign<uint32_t>>{});
    default: return f(TypeTag<Assign<uint64_t>>{});
  }
}

void scatter_sorted(CudaBackend& backend, Context& c, ScatterRule rule, const ScatterLines& s,
                    const View& src, const View& y) {
  const int64_t count = s.lines.numel * s.n;
  const PairRoom<uint64_t> room(backend, c, count);
  const Grid grid = backend.grid_for(count);
  launch(backend.stream_of(c), "key_scatter", grid, KeyScatter{s, room.first().keys});
  const Pairs<uint64_t> runs = sort_pairs(backend, c, room.first(), room.second(), 1, count,
                                          bits_for(static_cast<uint64_t>(s.lines.numel * s.index.size)));
  dispatch_rule(rule, y.dtype, [&]<class Rule>(TypeTag<Rule>) {
    using T = typename Rule::T;
    launch(backend.stream_of(c), "scatter_runs", grid, ScatterRuns<Rule>{s, runs, src.as<T>(), y.as<T>()});
  });
}

}  // namespace

void CudaBackend::add_rows(Context& c, View index, View dy, int64_t skip, View dx) {
  const int64_t n = dy.size(0), k = dy.size(1), rows = dx.size(0);
  if (n == 0) return;
  if (n > INT32_MAX || rows >= UINT32_MAX)
    throw ValueError(str("add_rows: ", n, " rows into ", rows, " is more than a CUDA device sorts at once"));
  enter();
  const PairRoom<uint32_t> room(*this, c, n);
  launch(stream_of(c), "key_rows", grid_for(n),
         KeyRows{Indices(index, rows, fault()), room.first().keys, n, index.stride(0), skip});
  if (k > 0 && rows > 0) {
    const Pairs<uint32_t> sorted =
        sort_pairs(*this, c, room.first(), room.second(), 1, n, bits_for(static_cast<uint64_t>(rows)));
    dispatch(dx.dtype, [&]<class T>(TypeTag<T>) {
      using Total = typename Sum<T>::Total;
      int shift = 9;
      while (int64_t{1} << 2 * shift < n) ++shift;
      const int64_t stretches = n > int64_t{2} << shift ? blocks_for(n, int64_t{1} << shift) : 1;
      const Scratch pieces(*this, c,
                           stretches > 1 ? static_cast<size_t>(stretches * 2 * k) * sizeof(Total) : 0);
      const Runs<T> runs{sorted, n, static_cast<uint32_t>(rows), shift, pieces.template as<Total>()};
      const auto run = [&]<class Body>(const char* name, int64_t groups, Body body) {
        const Grid grid = share_rows<Body>(*this, name, groups, body.units, body.lanes);
        launch(stream_of(c), name, grid, body);
      };
      constexpr int kUnit = is_floating(dtype_of<T>) ? 16 / static_cast<int>(sizeof(T)) : 1;
      if (kUnit > 1 && access_bytes({&dy, &dx}, k) == 16)
        run("add_runs", n,
            AddRuns<T, kUnit>{runs, dy.as<T>(), dx.as<T>(), {}, k / kUnit, dy.stride(0), 1, dx.stride(0), 1});
      else
        run("add_runs", n,
            AddRuns<T, 1>{
                runs, dy.as<T>(), dx.as<T>(), {}, k, dy.stride(0), dy.stride(1), dx.stride(0), dx.stride(1)});
      if (stretches > 1)
        run("add_pieces", stretches - 1, AddPieces<T>{runs, dx.as<T>(), {}, k, dx.stride(0), dx.stride(1)});
    });
  }
  after_launch();
}

void CudaBackend::scatter(Context& c, ScatterRule rule, int dim, View index, View src, View y) {
  const int64_t n = index.size(dim), count = index.numel();
  if (count == 0) return;
  enter();
  View a = index, b = src, to = y;
  for (View* v : {&a, &b, &to}) v->sizes = index.sizes, v->sizes[dim] = 1;
  const View* const views[] = {&a, &b, &to};
  ScatterLines s{Indices(index, y.size(dim), fault()),
                 layout_of(views, false),
                 n,
                 index.stride(dim),
                 src.stride(dim),
                 y.stride(dim),
                 1};
  for (int d = dim + 1; d < index.ndim(); ++d) s.inner *= index.size(d);
  const int64_t lines = s.lines.numel;
  // A thread waits for each element of its line, so only very many threads are faster than the sort. A warp
  // takes 32 elements at once. Only sizes decide, because halves are rounded more often by these two than
  // after a sort.
  constexpr int64_t enough_warps = 1024, enough_threads = 65536;
  const bool by_warp = n > kWarp && index.stride(dim) == 1 && src.stride(dim) == 1 && lines >= enough_warps;
  if (by_warp) {
    dispatch_rule(rule, y.dtype, [&]<class Rule>(TypeTag<Rule>) {
      using T = typename Rule::T;
      launch(stream_of(c), "scatter_by_warp", grid_for(lines * kWarp),
             ScatterByWarp<Rule>{s, src.as<T>(), y.as<T>()});
    });
  } else if (n <= kWarp || lines >= enough_threads || count > INT32_MAX) {
    dispatch_rule(rule, y.dtype, [&]<class Rule>(TypeTag<Rule>) {
      using T = typename Rule::T;
      launch(stream_of(c), "scatter_by_line", grid_for(lines),
             ScatterByLine<Rule>{s, src.as<T>(), y.as<T>()});
    });
  } else {
    scatter_sorted(*this, c, rule, s, src, y);
  }
  after_launch();
}

}  // namespace weft::cuda
