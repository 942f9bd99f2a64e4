// take_rows, gather and triangle. They only move elements, so they are compiled per element width.
//   take_rows   y [n, K] = x [V, K] at index [n]   reads n K + n, writes n K elements; 16 bytes at a time if
//               the rows allow it
//   gather      y = x at index along dim           reads 2 y.numel, writes y.numel; four independent reads in
//               flight per thread
// An index out of range is reported, and its row or element is not written. index_add.cu has the kernels that
// accumulate.
#include <weft/kernels/cuda/blocks/indices.h>
#include <weft/kernels/cuda/blocks/row_lanes.h>
#include <weft/kernels/cuda/layout.h>

namespace weft::cuda {

namespace {

constexpr int kAhead = 4;  // reads in flight

/// Calls f(TypeTag<U>) with the unsigned type of this many bytes.
template <class F> void dispatch_bytes(int64_t width, const F& f) {
  switch (width) {
    case 1: return f(TypeTag<uint8_t>{});
    case 2: return f(TypeTag<uint16_t>{});
    case 4: return f(TypeTag<uint32_t>{});
    default: return f(TypeTag<uint64_t>{});
  }
}

/// Strides in units of U.
template <class U> struct TakeRows {
  const U* x;
  U* y;
  Indices index;
  RowLanes lanes;
  int64_t n, units, index_step, x_row, x_step, y_row, y_step;
  static constexpr bool kIndependent = true;
  static constexpr int kThreads = 256, kBlocks = 4;

  WEFT_DEVICE void operator()(Thread t) const {
    const int64_t step = lanes.row_step(t);
    for (int64_t i = lanes.first_row(t); i < n; i += kAhead * step) {
      const U* from[kAhead];
      WEFT_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        const int64_t row = i + a * step;
        from[a] = nullptr;
        if (row >= n) continue;
        const int64_t v = index.at(row * index_step);
        if (index.inside(v)) from[a] = x + v * x_row;
        else if (lanes.first_unit(t) == 0) index.report(t, v, row);
      }
      for (int64_t u = lanes.first_unit(t); u < units; u += lanes.unit_step(t)) {
        U part[kAhead] = {};
        WEFT_UNROLL
        for (int a = 0; a < kAhead; ++a)
          if (from[a]) part[a] = from[a][u * x_step];
        WEFT_UNROLL
        for (int a = 0; a < kAhead; ++a)
          if (from[a]) y[(i + a * step) * y_row + u * y_step] = part[a];
      }
    }
  }
};

/// Operands of the layout: y, index, x with stride 0 along dim.
template <class U> struct Gather {
  const U* x;
  U* y;
  Indices index;
  int64_t x_step;
  Layout<3> layout;
  static constexpr bool kIndependent = true;
  static constexpr int kThreads = 256, kBlocks = 4;

  WEFT_DEVICE void operator()(Thread t) const {
    const int64_t step = t.globals();
    for (int64_t i = t.global(); i < layout.numel; i += kAhead * step) {
      int64_t v[kAhead], from[kAhead], to[kAhead];
      U part[kAhead] = {};
      WEFT_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        v[a] = from[a] = to[a] = -1;
        if (i + a * step >= layout.numel) continue;
        int64_t offset[3];
        layout.locate(i + a * step, offset);
        v[a] = index.at(offset[1]), from[a] = offset[2], to[a] = offset[0];
      }
      WEFT_UNROLL
      for (int a = 0; a < kAhead; ++a)
        if (index.inside(v[a])) part[a] = x[from[a] + v[a] * x_step];
      WEFT_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        if (index.inside(v[a])) y[to[a]] = part[a];
        else if (to[a] >= 0) index.report(t, v[a], i + a * step);
      }
    }
  }
};

/// N elements of a row at a time. Operands of the layout, which counts matrices: y, x.
template <class U, int N> struct Triangle {
  const U* x;
  U* y;
  bool upper;
  RowLanes lanes;
  int64_t diagonal, height, rows, units, x_row, x_step, y_row, y_step;
  Layout<2> matrices;
  static constexpr bool kIndependent = true;

  WEFT_DEVICE bool kept(int64_t above) const { return upper ? above >= diagonal : above <= diagonal; }

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t r = lanes.first_row(t); r < rows; r += lanes.row_step(t)) {
      const int64_t matrix = r / height, i = r - matrix * height;
      int64_t offset[2];
      matrices.locate(matrix, offset);
      const U* const from = x + offset[1] + i * x_row;
      U* const to = y + offset[0] + i * y_row;
      for (int64_t u = lanes.first_unit(t); u < units; u += lanes.unit_step(t)) {
        const int64_t above = u * N - i;
        Pack<U, N> pack = {};
        if (kept(upper ? above + N - 1 : above)) pack = load_pack<U, N>(from, u * N * x_step);
        for (int k = 0; k < N; ++k)
          if (!kept(above + k)) pack.at[k] = U(0);
        store_pack(to, u * N * y_step, pack);
      }
    }
  }
};

}  // namespace

void CudaBackend::take_rows(Context& c, View x, View index, View y) {
  const int64_t n = y.size(0), k = y.size(1);
  if (n == 0) return;
  enter();
  const auto run = [&](auto tag) {
    using U = typename decltype(tag)::type;
    const int64_t per_unit = static_cast<int64_t>(sizeof(U)) / size_of(x.dtype), units = k / per_unit;
    RowLanes lanes;
    const Grid grid = share_rows<TakeRows<U>>(*this, "take_rows", n, units, lanes);
    launch(stream_of(c), "take_rows", grid,
           TakeRows<U>{x.as<U>(), y.as<U>(), Indices(index, x.size(0), fault()), lanes, n, units,
                       index.stride(0), x.stride(0) / per_unit, x.stride(1), y.stride(0) / per_unit,
                       y.stride(1)});
  };
  const int64_t bytes = access_bytes({&x, &y}, k);
  if (bytes == 16) run(TypeTag<Pack<uint32_t, 4>>{});
  else dispatch_bytes(bytes, run);
  after_launch();
}

void CudaBackend::gather(Context& c, int dim, View x, View index, View y) {
  if (y.numel() == 0) return;
  enter();
  View start = x;  // the first element of each line
  start.sizes = index.sizes;
  start.strides[dim] = 0;
  const View* const views[] = {&y, &index, &start};
  const Layout<3> layout = layout_of(views, false);  // row-major, so that errors report row-major positions
  dispatch_bytes(size_of(x.dtype), [&](auto tag) {
    using U = typename decltype(tag)::type;
    launch(stream_of(c), "gather", grid_for(blocks_for(layout.numel, kAhead)),
           Gather<U>{x.as<U>(), y.as<U>(), Indices(index, x.size(dim), fault()), x.stride(dim), layout});
  });
  after_launch();
}

void CudaBackend::triangle(Context& c, bool upper, int64_t k, View x, View y) {
  if (y.numel() == 0) return;
  enter();
  const int row = x.ndim() - 2, column = x.ndim() - 1;
  const int64_t height = x.size(row), width = x.size(column);
  View x_matrices = x, y_matrices = y;
  for (View* v : {&x_matrices, &y_matrices}) v->sizes.resize(row), v->strides.resize(row);
  const View* const views[] = {&y_matrices, &x_matrices};
  const Layout<2> matrices = layout_of(views, false);
  dispatch_bytes(size_of(x.dtype), [&](auto tag) {
    using U = typename decltype(tag)::type;
    const auto run = [&]<class Body>(Body body) {
      const Grid grid = share_rows<Body>(*this, "triangle", body.rows, body.units, body.lanes);
      launch(stream_of(c), "triangle", grid, body);
    };
    constexpr int kUnit = 16 / static_cast<int>(sizeof(U));
    const int64_t rows = matrices.numel * height;
    if (access_bytes({&x, &y}, width) == 16)
      run(Triangle<U, kUnit>{x.as<U>(),
                             y.as<U>(),
                             upper,
                             {},
                             k,
                             height,
                             rows,
                             width / kUnit,
                             x.stride(row),
                             1,
                             y.stride(row),
                             1,
                             matrices});
    else
      run(Triangle<U, 1>{x.as<U>(),
                         y.as<U>(),
                         upper,
                         {},
                         k,
                         height,
                         rows,
                         width,
                         x.stride(row),
                         x.stride(column),
                         y.stride(row),
                         y.stride(column),
                         matrices});
  });
}

}  // namespace weft::cuda
