// Copy, fill and arange. A copy between equal dtypes is compiled per element width. If input and output are
// dense along different dims (a transpose), the copy goes tile by tile. Each tile reads and writes whole
// cache lines, which matters because rows a power of two apart share a cache set.
#include <weft/kernels/cpu/isa/elementwise.h>
#include <weft/kernels/cpu/isa/stream.h>
#include <weft/kernels/inner/convert.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

/// Side of a tile in bytes: one cache line.
constexpr int64_t kLine = 64;

template <class U> void transpose_tile(const U* x, int64_t x_step, U* y, int64_t y_step) {
  constexpr int64_t side = kLine / static_cast<int64_t>(sizeof(U));
  alignas(64) U in[side][side];
  alignas(64) U out[side][side];
  for (int64_t j = 0; j < side; ++j) __builtin_memcpy(in[j], x + j * x_step, sizeof in[j]);
  for (int64_t i = 0; i < side; ++i)
    for (int64_t j = 0; j < side; ++j) out[i][j] = in[j][i];
  for (int64_t i = 0; i < side; ++i) __builtin_memcpy(y + i * y_step, out[i], sizeof out[i]);
}

/// y[i, j] = x[j, i] for rows x rows of y: y strides (y_step, 1), x strides (1, x_step).
template <class U>
void transpose(const U* x, int64_t x_step, U* y, int64_t y_step, int64_t rows, int64_t columns) {
  constexpr int64_t side = kLine / static_cast<int64_t>(sizeof(U));
  const int64_t full_rows = rows / side * side, full_columns = columns / side * side;
  for (int64_t i = 0; i < full_rows; i += side)
    for (int64_t j = 0; j < full_columns; j += side)
      transpose_tile(x + i + j * x_step, x_step, y + i * y_step + j, y_step);
  for (int64_t i = 0; i < full_rows; ++i)
    for (int64_t j = full_columns; j < columns; ++j) y[i * y_step + j] = x[i + j * x_step];
  for (int64_t i = full_rows; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) y[i * y_step + j] = x[i + j * x_step];
}

void transpose_width(int64_t width, const void* x, int64_t x_step, void* y, int64_t y_step, int64_t rows,
                     int64_t columns) {
  switch (width) {
    case 1:
      return transpose(static_cast<const uint8_t*>(x), x_step, static_cast<uint8_t*>(y), y_step, rows,
                       columns);
    case 2:
      return transpose(static_cast<const uint16_t*>(x), x_step, static_cast<uint16_t*>(y), y_step, rows,
                       columns);
    case 4:
      return transpose(static_cast<const uint32_t*>(x), x_step, static_cast<uint32_t*>(y), y_step, rows,
                       columns);
    default:
      return transpose(static_cast<const uint64_t*>(x), x_step, static_cast<uint64_t*>(y), y_step, rows,
                       columns);
  }
}

void copy_tiled(const Loops& loops, int dim, V x, V y) {
  const int last = loops.ndim - 1;
  const int64_t width = size_of(y.dtype), rows = loops.size[dim], columns = loops.size[last];
  const int64_t strip = kLine / width;  // rows of y per piece
  const int64_t strips = (rows + strip - 1) / strip;
  const int64_t planes = loops.numel / (rows * columns);
  const int64_t per_piece = kCheapGrain / (strip * columns) + 1;
  parallel_for(planes * strips, per_piece, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      int64_t plane = piece / strips, x_at = 0, y_at = 0;
      for (int d = last - 1; d >= 0; --d) {
        if (d == dim) continue;
        y_at += plane % loops.size[d] * loops.stride[0][d];
        x_at += plane % loops.size[d] * loops.stride[1][d];
        plane /= loops.size[d];
      }
      const int64_t row = piece % strips * strip;
      const int64_t count = rows - row < strip ? rows - row : strip;
      x_at += row * loops.stride[1][dim];
      y_at += row * loops.stride[0][dim];
      transpose_width(width, static_cast<const char*>(x.data) + x_at * width, loops.stride[1][last],
                      static_cast<char*>(y.data) + y_at * width, loops.stride[0][dim], count, columns);
    }
  });
}

template <class U> void identity_loop(const Params&, void* const* p, int64_t n) {
  if (p[0] != p[1]) __builtin_memmove(p[0], p[1], static_cast<size_t>(n) * sizeof(U));
}
Kernel identity(int64_t width) {
  return width == 1   ? identity_loop<uint8_t>
         : width == 2 ? identity_loop<uint16_t>
         : width == 4 ? identity_loop<uint32_t>
                      : identity_loop<uint64_t>;
}

/// Both contiguous, different dtypes.
void convert_dense(V x, V y) {
  const int64_t from = size_of(x.dtype), to = size_of(y.dtype), n = y.numel();
  const Convert convert = converter(x.dtype, y.dtype);
  const bool stream = streams(n * to);
  parallel_for(n, kCheapGrain, [&](int64_t begin, int64_t end) {
    const auto run = [&](void* out, int64_t first, int64_t count) {
      convert(static_cast<const char*>(x.data) + (begin + first) * from, out, count);
    };
    void* const out = static_cast<char*>(y.data) + begin * to;
    if (stream) run_streamed(out, to, end - begin, run);
    else run(out, 0, end - begin);
  });
}

/// Equal dtypes, any strides.
void copy_strided(const Loops& loops, V x, V y) {
  const int64_t width = size_of(y.dtype);
  const int last = loops.ndim - 1;
  const int64_t row = loops.size[last], xs = loops.stride[1][last], ys = loops.stride[0][last];
  parallel_for(loops.numel, kCheapGrain, [&](int64_t begin, int64_t end) {
    int64_t index[kMaxDims], offsets[2];
    loops.locate(begin, 2, index, offsets);
    for (;;) {
      const int64_t left = row - index[last];
      const int64_t n = left < end - begin ? left : end - begin;
      move_strided(width, static_cast<const char*>(x.data) + offsets[1] * width, xs,
                   static_cast<char*>(y.data) + offsets[0] * width, ys, n);
      if ((begin += n) >= end) return;
      loops.advance(last, n, 2, index, offsets);
    }
  });
}

}  // namespace

void copy_any(V x, V y) {
  const View* const views[] = {&y, &x};
  if (x.dtype == y.dtype && !(x.is_contiguous() && y.is_contiguous())) {
    const Loops loops(views, 2);
    if (loops.numel == 0) return;
    if (const int dim = loops.transposed_dim(1); dim >= 0) return copy_tiled(loops, dim, x, y);
    return copy_strided(loops, x, y);
  }
  if (x.dtype != y.dtype && x.is_contiguous() && y.is_contiguous()) return convert_dense(x, y);
  const DType compute[] = {x.dtype, x.dtype};
  run_elementwise(identity(size_of(x.dtype)), {}, views, compute, 2, kCheapGrain);
}

void IsaBackend::copy(Context&, View x, View y) { copy_any(x, y); }

void IsaBackend::fill(Context&, Scalar value, View y) {
  alignas(8) unsigned char bits[8] = {};
  dispatch(y.dtype, [&]<class T>(TypeTag<T>) {
    const T typed = parameter<T>(value);
    __builtin_memcpy(bits, &typed, sizeof typed);
  });
  const int64_t width = size_of(y.dtype);
  if (y.is_contiguous()) {
    const bool stream = streams(y.numel() * width);
    parallel_for(y.numel(), kCheapGrain, [&](int64_t begin, int64_t end) {
      const auto run = [&](void* out, int64_t, int64_t n) { move_strided(width, bits, 0, out, 1, n); };
      void* const out = static_cast<char*>(y.data) + begin * width;
      if (stream) run_streamed(out, width, end - begin, run);
      else run(out, 0, end - begin);
    });
    return;
  }
  View x = y;
  x.data = bits;
  for (int64_t& s : x.strides) s = 0;
  const View* const views[] = {&y, &x};
  const Loops loops(views, 2);
  if (loops.numel > 0) copy_strided(loops, x, y);
}

void IsaBackend::arange(Context&, Scalar start, Scalar step, View y) {
  const int64_t stride = y.strides[0];
  dispatch(y.dtype, [&]<class T>(TypeTag<T>) {
    T* const out = y.as<T>();
    parallel_for(y.numel(), kCheapGrain, [&](int64_t begin, int64_t end) {
      if (start.integral && step.integral) {
        const auto first = static_cast<uint64_t>(start.i), by = static_cast<uint64_t>(step.i);
        for (int64_t i = begin; i < end; ++i)
          out[i * stride] = convert<T>(static_cast<int64_t>(first + by * static_cast<uint64_t>(i)));
      } else {
        const double first = start.d, by = step.d;
        for (int64_t i = begin; i < end; ++i)
          out[i * stride] = convert<T>(first + by * static_cast<double>(i));
      }
    });
  });
}

}  // namespace weft::kernels::WEFT_ISA_NS
