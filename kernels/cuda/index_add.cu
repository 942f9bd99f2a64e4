// What accumulates by index. Equal indices are grouped by a stable sort of (target, position) pairs on the device, and the first of each group walks
// over its group in order of position: sums have the bits of the plain loop, in every run, without atomic operations on numbers.
//   add_rows   dx [V, K] += dy [n, K] at index [n]         sorts n pairs; reads n K + U K, writes U K elements, U the rows that are met; n K adds
//   scatter    y = or += src at index along dim            lines that are many or short run one thread each, others sort all positions
// Half types are added up in float within a group and rounded once. A bad index is reported and its row or element left out.
#include <bit>
#include <type_traits>

#include <weft/kernels/convert.h>
#include <weft/kernels/cuda/indices.h>
#include <weft/kernels/cuda/layout.h>
#include <weft/kernels/cuda/radix.h>
#include <weft/kernels/cuda/row_lanes.h>

namespace weft::cuda {

namespace {

constexpr int kAhead = 8;  // reads on the way at once in a long run

/// How elements of T add up: integers wrap around, bool is "any".
template <class T> struct Sum {
  using Total = std::conditional_t<kernels::kIsHalf<T>, float, std::conditional_t<std::is_floating_point_v<T>, T, std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>>;
  static WEFT_DEVICE Total of(T x) { return kernels::convert<Total>(x); }
  static WEFT_DEVICE Total add(Total a, Total b) {
    if constexpr (std::is_same_v<T, bool>) return a | b;
    else return a + b;
  }
  static WEFT_DEVICE T to(Total a) { return kernels::convert<T>(a); }
};

/// use(read(i)) for the places i of a run of equal keys that begins at `start`, in order; reads of A places are on the way at once.
template <int A, class T, class K, class Read, class Use>
WEFT_DEVICE int64_t each_together(const Pairs<K>& runs, int64_t i, int64_t n, K key, const Read& read, const Use& use) {
  for (; i + A <= n && runs.keys[i + A - 1] == key; i += A) {
    T part[A];
    for (int a = 0; a < A; ++a) part[a] = read(i + a);
    for (int a = 0; a < A; ++a) use(part[a]);
  }
  return i;
}
template <class T, class K, class Read, class Use>
WEFT_DEVICE void each_of_run(const Pairs<K>& runs, int64_t start, int64_t n, const Read& read, const Use& use) {
  const K key = runs.keys[start];
  int64_t i = each_together<kAhead, T>(runs, start, n, key, read, use);
  i = each_together<2, T>(runs, i, n, key, read, use);
  each_together<1, T>(runs, i, n, key, read, use);
}

int bits_for(uint64_t largest) { return 64 - std::countl_zero(largest); }

/// The row of each index; `rows` itself for what is left out.
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

/// A group of lanes per run of equal keys, N elements at a time. Strides in elements.
template <class T, int N> struct AddRuns {
  Pairs<uint32_t> runs;
  const T* dy;
  T* dx;
  RowLanes lanes;
  uint32_t rows;
  int64_t n, units, dy_row, dy_step, dx_row, dx_step;
  static constexpr bool kIndependent = true;
  static constexpr int kThreads = 256;

  WEFT_DEVICE void operator()(Thread t) const {
    using Some = Pack<T, N>;
    using S = Sum<T>;
    for (int64_t start = lanes.first_row(t); start < n; start += lanes.row_step(t)) {
      const uint32_t key = runs.keys[start];
      if (key >= rows || (start > 0 && runs.keys[start - 1] == key)) continue;
      for (int64_t u = lanes.first_unit(t); u < units; u += lanes.unit_step(t)) {
        Some* const to = reinterpret_cast<Some*>(dx + key * dx_row + u * N * dx_step);
        const Some old = *to;
        typename S::Total total[N];
        for (int k = 0; k < N; ++k) total[k] = S::of(old.at[k]);
        each_of_run<Some>(
            runs, start, n, [&](int64_t i) { return *reinterpret_cast<const Some*>(dy + runs.at[i] * dy_row + u * N * dy_step); },
            [&](const Some& part) {
              for (int k = 0; k < N; ++k) total[k] = S::add(total[k], S::of(part.at[k]));
            });
        Some sum = {};
        for (int k = 0; k < N; ++k) sum.at[k] = S::to(total[k]);
        *to = sum;
      }
    }
  }
};

/// What scatter does with an element: overwriting goes by width, adding by type.
template <class U> struct Assign {
  using T = U;
  static constexpr bool kAdds = false;
};
template <class U> struct Add {
  using T = U;
  static constexpr bool kAdds = true;
};

/// The lines of a scatter along a dim: the index tensor without it, in row-major order. Operands: index, src, y.
struct ScatterLines {
  Indices index;
  Layout<3> lines;
  int64_t n, index_step, src_step, y_step;
  int64_t inner;  ///< elements of the index tensor behind dim

  WEFT_DEVICE int64_t position(int64_t line, int64_t i) const { return line / inner * (n * inner) + i * inner + line % inner; }
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
        if constexpr (Rule::kAdds) to = Sum<T>::to(Sum<T>::add(Sum<T>::of(to), Sum<T>::of(x)));
        else to = x;
      }
    }
  }
};

/// Key of element i of a line: line * size + target, or lines * size for what is left out.
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

/// A thread per run of equal keys: its first one when adding, its last one when overwriting.
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
      const int64_t neighbour = Rule::kAdds ? r - 1 : r + 1;
      if (neighbour >= 0 && neighbour < count && runs.keys[neighbour] == key) continue;
      const auto line = static_cast<int64_t>(key) / s.index.size, v = static_cast<int64_t>(key) - line * s.index.size;
      int64_t offset[3];
      s.lines.locate(line, offset);
      const T* const from = src + offset[1] - line * s.n * s.src_step;  // positions count all lines
      T& to = y[offset[2] + v * s.y_step];
      if constexpr (Rule::kAdds) {
        auto total = Sum<T>::of(to);
        each_of_run<T>(
            runs, r, count, [&](int64_t i) { return from[runs.at[i] * s.src_step]; }, [&](const T& x) { total = Sum<T>::add(total, Sum<T>::of(x)); });
        to = Sum<T>::to(total);
      } else {
        to = from[runs.at[r] * s.src_step];
      }
    }
  }
};

/// f(TypeTag<Assign<U>>) or f(TypeTag<Add<T>>).
template <class F>
void dispatch_rule(bool add, DType dtype, const F& f) {
  if (add) return dispatch(dtype, [&]<class T>(TypeTag<T>) { f(TypeTag<Add<T>>{}); });
  switch (size_of(dtype)) {
    case 1: return f(TypeTag<Assign<uint8_t>>{});
    case 2: return f(TypeTag<Assign<uint16_t>>{});
    case 4: return f(TypeTag<Assign<uint32_t>>{});
    default: return f(TypeTag<Assign<uint64_t>>{});
  }
}

void scatter_sorted(CudaBackend& backend, Context& c, bool add, const ScatterLines& s, const View& src, const View& y) {
  const int64_t count = s.lines.numel * s.n;
  const PairRoom<uint64_t> room(backend, c, count);
  const Grid grid = backend.grid_for(count);
  launch(backend.stream_of(c), "key_scatter", grid, KeyScatter{s, room.first().keys});
  const Pairs<uint64_t> runs = sort_pairs(backend, c, room.first(), room.second(), 1, count, bits_for(static_cast<uint64_t>(s.lines.numel * s.index.size)));
  dispatch_rule(add, y.dtype, [&]<class Rule>(TypeTag<Rule>) {
    using T = typename Rule::T;
    launch(backend.stream_of(c), "scatter_runs", grid, ScatterRuns<Rule>{s, runs, src.as<T>(), y.as<T>()});
  });
}

}  // namespace

void CudaBackend::add_rows(Context& c, View index, View dy, int64_t skip, View dx) {
  const int64_t n = dy.size(0), k = dy.size(1), rows = dx.size(0);
  if (n == 0) return;
  if (n > INT32_MAX || rows >= UINT32_MAX) throw ValueError(str("add_rows: ", n, " rows into ", rows, " is more than a CUDA device sorts at once"));
  enter();
  const PairRoom<uint32_t> room(*this, c, n);
  launch(stream_of(c), "key_rows", grid_for(n), KeyRows{Indices(index, rows, fault()), room.first().keys, n, index.stride(0), skip});
  if (k > 0 && rows > 0) {
    const Pairs<uint32_t> runs = sort_pairs(*this, c, room.first(), room.second(), 1, n, bits_for(static_cast<uint64_t>(rows)));
    dispatch(dx.dtype, [&]<class T>(TypeTag<T>) {
      const auto run = [&](auto body) {
        const Grid grid = share_rows(*this, n, body.units, body.lanes);
        launch(stream_of(c), "add_runs", grid, body);
      };
      const auto limit = static_cast<uint32_t>(rows);
      if constexpr (is_floating(dtype_of<T>)) {
        constexpr int kUnit = 16 / static_cast<int>(sizeof(T));
        if (access_bytes({&dy, &dx}, k) == 16)
          return run(AddRuns<T, kUnit>{runs, dy.as<T>(), dx.as<T>(), {}, limit, n, k / kUnit, dy.stride(0), 1, dx.stride(0), 1});
      }
      run(AddRuns<T, 1>{runs, dy.as<T>(), dx.as<T>(), {}, limit, n, k, dy.stride(0), dy.stride(1), dx.stride(0), dx.stride(1)});
    });
  }
  after_launch();
}

void CudaBackend::scatter(Context& c, bool add, int dim, View index, View src, View y) {
  const int64_t n = index.size(dim), count = index.numel();
  if (count == 0) return;
  enter();
  View a = index, b = src, to = y;
  for (View* v : {&a, &b, &to}) v->sizes = index.sizes, v->sizes[dim] = 1;
  const View* const views[] = {&a, &b, &to};
  ScatterLines s{Indices(index, y.size(dim), fault()), layout_of(views, false), n, index.stride(dim), src.stride(dim), y.stride(dim), 1};
  for (int d = dim + 1; d < index.ndim(); ++d) s.inner *= index.size(d);
  const int64_t lines = s.lines.numel;
  if (n <= 32 || lines >= 4 * blocks_at_once() || count > INT32_MAX) {
    dispatch_rule(add, y.dtype, [&]<class Rule>(TypeTag<Rule>) {
      using T = typename Rule::T;
      launch(stream_of(c), "scatter_by_line", grid_for(lines), ScatterByLine<Rule>{s, src.as<T>(), y.as<T>()});
    });
  } else {
    scatter_sorted(*this, c, add, s, src, y);
  }
  after_launch();
}

}  // namespace weft::cuda
