// copy between equal dtypes, fill and arange. Elements are moved as bits, so there is one kernel per width. A
// copy of two dense operands is a call of the runtime. If an operand is dense along another dim than the
// output (a transpose), square tiles in shared memory make reads and writes whole runs. Every element is read
// once and written once (=).
#include <cstring>

#include <weft/kernels/cuda/blocks/convert.h>
#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/packs.h>
#include <weft/kernels/inner/convert.h>

namespace weft::cuda {

namespace {

template <class U> inline constexpr int kPerPack = 16 / static_cast<int>(sizeof(U));

template <class U> struct Move {
  static constexpr bool kIndependent = true;
  Packs<2> loop;
  const void* x;
  void* y;
  WEFT_DEVICE void operator()(Thread t) const {
    each_two_packs(t, loop.packs, [&](int64_t first, int64_t second, bool both) {
      int64_t a[2], b[2];
      loop.layout.locate(first, a);
      const auto one = load_pack<U, kPerPack<U>>(x, a[1], loop.splats(1));
      if (both) {
        loop.layout.locate(second, b);
        store_pack(y, b[0], load_pack<U, kPerPack<U>>(x, b[1], loop.splats(1)));
      }
      store_pack(y, a[0], one);
    });
    for (int64_t i = loop.packs * loop.width + t.global(); i < loop.numel; i += t.globals()) {
      int64_t at[2];
      loop.element(i, at);
      static_cast<U*>(y)[at[0]] = static_cast<const U*>(x)[at[1]];
    }
  }
};

template <class U> struct Fill {
  static constexpr bool kIndependent = true;
  Packs<1> loop;
  U value;
  void* y;
  WEFT_DEVICE void operator()(Thread t) const {
    Pack<U, kPerPack<U>> pack;
    for (int i = 0; i < kPerPack<U>; ++i) pack.at[i] = value;
    int64_t at[1];
    for (int64_t i = t.global(); i < loop.packs; i += t.globals()) {
      loop.layout.locate(i, at);
      store_pack(y, at[0], pack);
    }
    for (int64_t i = loop.packs * loop.width + t.global(); i < loop.numel; i += t.globals()) {
      loop.element(i, at);
      static_cast<U*>(y)[at[0]] = value;
    }
  }
};

/// y[i, j] = x[j, i] in tiles of kSide x kSide for every position of `planes`: y has stride 1 along
/// j, x along i.
template <class U> struct Transpose {
  static constexpr int kThreads = 256, kBlocks = 4;
  static constexpr int kSide = sizeof(U) <= 2 ? 64 : 32;
  // rows of a tile between those of a thread, and how many it has
  static constexpr int kStep = kThreads / kSide, kEach = kSide / kStep;
  // a column of the tile falls into different banks
  static constexpr int kRow = kSide + (sizeof(U) < 4 ? 4 / static_cast<int>(sizeof(U)) : 1);
  Layout<2> planes;
  const U* x;
  U* y;
  int64_t rows, columns, x_step, y_step;
  Divider tile_rows, tile_columns;
  int64_t tiles;

  WEFT_DEVICE void operator()(Thread t) const {
    U* const tile = t.shared<U>();
    const int column = t.id() % kSide, row = t.id() / kSide;
    for (int64_t at = t.block(); at < tiles; at += t.blocks()) {
      const uint32_t strip = tile_columns.quotient(static_cast<uint32_t>(at)),
                     plane = tile_rows.quotient(strip);
      const int64_t j0 =
          static_cast<int64_t>(static_cast<uint32_t>(at) - strip * tile_columns.divisor) * kSide;
      const int64_t i0 = static_cast<int64_t>(strip - plane * tile_rows.divisor) * kSide;
      int64_t offset[2];
      planes.locate(plane, offset);
      const U* const from = x + offset[1] + j0 * x_step + i0;
      U part[kEach] = {};
      WEFT_UNROLL
      for (int e = 0; e < kEach; ++e)
        if (const int j = row + e * kStep; j0 + j < columns && i0 + column < rows)
          part[e] = from[j * x_step + column];
      WEFT_UNROLL
      for (int e = 0; e < kEach; ++e) tile[(row + e * kStep) * kRow + column] = part[e];
      t.sync();
      U* const to = y + offset[0] + i0 * y_step + j0;
      WEFT_UNROLL
      for (int e = 0; e < kEach; ++e)
        if (const int i = row + e * kStep; i0 + i < rows && j0 + column < columns)
          to[i * y_step + column] = tile[column * kRow + i];
      t.sync();
    }
  }
};

struct Arange {
  static constexpr bool kIndependent = true;
  uint64_t first, by;
  double from, step;
  bool integral;
  DType dtype;
  int64_t n, stride;
  void* y;
  template <class T> WEFT_DEVICE void write(int64_t i) const {
    using kernels::convert;
    T& to = static_cast<T*>(y)[i * stride];
    if (!integral) to = convert<T>(from + step * static_cast<double>(i));
    else to = convert<T>(static_cast<int64_t>(first + by * static_cast<uint64_t>(i)));
  }
  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t i = t.global(); i < n; i += t.globals()) {
      switch (dtype) {
        case DType::kBool: write<bool>(i); break;
        case DType::kUInt8: write<uint8_t>(i); break;
        case DType::kInt32: write<int32_t>(i); break;
        case DType::kInt64: write<int64_t>(i); break;
        case DType::kFloat16: write<Half>(i); break;
        case DType::kBFloat16: write<BFloat16>(i); break;
        case DType::kFloat32: write<float>(i); break;
        case DType::kFloat64: write<double>(i); break;
      }
    }
  }
};

/// False if there are too many tiles for a launch.
bool transpose(CudaBackend& backend, void* stream, const Layout<2>& l, const View& x, const View& y) {
  const int last = l.ndim - 1;
  int across = 0;  // the dim of x's runs
  while (l.stride[1][across] != 1 || l.size[across] < 8) ++across;
  Layout<2> planes;
  for (int d = 0; d < last; ++d) {
    if (d == across) continue;
    planes.size[planes.ndim] = l.size[d];
    for (int i = 0; i < 2; ++i) planes.stride[i][planes.ndim] = l.stride[i][d];
    ++planes.ndim;
  }
  planes.prepare();
  bool done = false;
  with_width(size_of(y.dtype), [&]<class U>(TypeTag<U>) {
    constexpr int kSide = Transpose<U>::kSide;
    const int64_t rows = l.size[across], columns = l.size[last], down = blocks_for(rows, kSide),
                  along = blocks_for(columns, kSide);
    const int64_t tiles = planes.numel * down * along;
    if (tiles >= int64_t{1} << 31) return;
    Grid grid = backend.grid_for(tiles * 256);
    grid.shared = sizeof(U) * kSide * Transpose<U>::kRow;
    launch(stream, "transpose", grid,
           Transpose<U>{planes, x.as<U>(), y.as<U>(), rows, columns, l.stride[1][last], l.stride[0][across],
                        Divider(down), Divider(along), tiles});
    done = true;
  });
  return done;
}

}  // namespace

void CudaBackend::copy(Context& c, View x, View y) {
  enter();
  if (y.numel() == 0) return;
  void* const stream = stream_of(c);
  const View* const views[] = {&y, &x};
  const Layout<2> layout = layout_of(views);
  if (x.dtype != y.dtype) {
    if (!reads_across(layout, 1)) return convert_elements(*this, stream, layout, x, y);
    const Scratch scratch(*this, c, static_cast<size_t>(y.numel() * size_of(x.dtype)));
    const View between{scratch.as<void>(), x.dtype, y.sizes, dense_strides(y)};
    copy(c, x, between);
    return copy(c, between, y);
  }
  if (layout.dense()) {
    if (x.data != y.data)
      runtime::copy(y.data, x.data, static_cast<size_t>(layout.numel * size_of(y.dtype)), stream);
    return;
  }
  if (reads_across(layout, 1, 256) && transpose(*this, stream, layout, x, y)) return;
  with_width(size_of(y.dtype), [&]<class U>(TypeTag<U>) {
    const Packs<2> loop = packs_of(views, layout, kPerPack<U>);
    launch(stream, "copy", grid_for(loop.threads()), Move<U>{loop, x.data, y.data});
  });
}

void CudaBackend::fill(Context& c, Scalar value, View y) {
  enter();
  if (y.numel() == 0) return;
  unsigned char bits[8] = {};
  dispatch(y.dtype, [&]<class T>(TypeTag<T>) {
    const T typed = kernels::parameter<T>(value);
    std::memcpy(bits, &typed, sizeof typed);
  });
  const View* const views[] = {&y};
  const Layout<1> layout = layout_of(views);
  with_width(size_of(y.dtype), [&]<class U>(TypeTag<U>) {
    U word;
    std::memcpy(&word, bits, sizeof word);
    const bool one_byte = std::count(bits, bits + sizeof word, bits[0]) == static_cast<int64_t>(sizeof word);
    if (one_byte && layout.dense())
      return runtime::fill(y.data, bits[0], static_cast<size_t>(layout.numel) * sizeof word, stream_of(c));
    const Packs<1> loop = packs_of(views, layout, kPerPack<U>);
    launch(stream_of(c), "fill", grid_for(loop.threads()), Fill<U>{loop, word, y.data});
  });
}

void CudaBackend::arange(Context& c, Scalar start, Scalar step, View y) {
  enter();
  if (y.numel() == 0) return;
  launch(stream_of(c), "arange", grid_for(y.numel()),
         Arange{static_cast<uint64_t>(start.i), static_cast<uint64_t>(step.i), start.d, step.d,
                start.integral && step.integral, y.dtype, y.numel(), y.stride(0), y.data});
}

}  // namespace weft::cuda
