// copy between equal dtypes, fill and arange. Elements are moved as bits, so there is one kernel per width. A
// copy of two dense operands is a call of the runtime. If an operand is dense along another dim than the
// output (a transpose), square tiles in shared memory make reads and writes whole runs. Where the layouts
// allow it, a thread moves 16 bytes at a time. Every element is read once and written once (=).
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
      loop.layout.locate(both ? second : first, b);
      const auto one = load_pack<U, kPerPack<U>>(x, a[1], loop.splats(1)),
                 other = load_pack<U, kPerPack<U>>(x, b[1], loop.splats(1));
      store_pack(y, a[0], one);
      if (both) store_pack(y, b[0], other);
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

/// The tiles of y[i, j] = x[j, i] for every position of `planes`: y has stride 1 along j, x along i.
template <class U> struct TransposeTiles {
  Layout<2> planes;
  const U* x;
  U* y;
  int64_t rows, columns, x_step, y_step;
  Divider tile_rows, tile_columns;
  int64_t tiles;

  /// A tile: its first numbers in x and y, and how many rows and columns of y are left from there on.
  struct Tile {
    const U* from;
    U* to;
    int64_t rows, columns;
  };
  template <int side> WEFT_DEVICE Tile tile(int64_t at) const {
    const uint32_t strip = tile_columns.quotient(static_cast<uint32_t>(at)),
                   plane = tile_rows.quotient(strip);
    const int64_t j = static_cast<int64_t>(static_cast<uint32_t>(at) - strip * tile_columns.divisor) * side,
                  i = static_cast<int64_t>(strip - plane * tile_rows.divisor) * side;
    int64_t offset[2];
    planes.locate(plane, offset);
    return {x + offset[1] + j * x_step + i, y + offset[0] + i * y_step + j, rows - i, columns - j};
  }
  /// Whether every run of both operands consists of whole aligned packs of `n`.
  bool in_packs(int64_t n) const {
    const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    bool all =
        aligned(x) && aligned(y) && rows % n == 0 && columns % n == 0 && x_step % n == 0 && y_step % n == 0;
    for (int d = 0; d < planes.ndim; ++d)
      all = all && planes.stride[0][d] % n == 0 && planes.stride[1][d] % n == 0;
    return all;
  }
};

/// One number in each access.
template <class U> struct Transpose : TransposeTiles<U> {
  static constexpr int kThreads = 256, kBlocks = 4;
  static constexpr int kSide = sizeof(U) <= 2 ? 64 : 32;
  // rows of a tile between those of a thread, and how many it has
  static constexpr int kStep = kThreads / kSide, kEach = kSide / kStep;
  // a column of the tile falls into different banks
  static constexpr int kRow = kSide + (sizeof(U) < 4 ? 4 / static_cast<int>(sizeof(U)) : 1);

  WEFT_DEVICE void operator()(Thread t) const {
    U* const tile = t.shared<U>();
    const int column = t.id() % kSide, row = t.id() / kSide;
    for (int64_t at = t.block(); at < this->tiles; at += t.blocks()) {
      const auto here = this->template tile<kSide>(at);
      U part[kEach] = {};
      WEFT_UNROLL
      for (int e = 0; e < kEach; ++e)
        if (const int j = row + e * kStep; j < here.columns && column < here.rows)
          part[e] = here.from[j * this->x_step + column];
      WEFT_UNROLL
      for (int e = 0; e < kEach; ++e) tile[(row + e * kStep) * kRow + column] = part[e];
      t.sync();
      WEFT_UNROLL
      for (int e = 0; e < kEach; ++e)
        if (const int i = row + e * kStep; i < here.rows && column < here.columns)
          here.to[i * this->y_step + column] = tile[column * kRow + i];
      t.sync();
    }
  }
};

/// Packs of 16 bytes, for numbers of 2 and 4 bytes. A warp takes eight packs of each of four rows. These are
/// whole lines of memory, and the k-th numbers of its packs fall into different banks. Only numbers of 2
/// bytes need two turns when the tile is read.
template <class U> struct TransposePacks : TransposeTiles<U> {
  static constexpr int kThreads = 256, kBlocks = 4, kSide = 64, kPack = kPerPack<U>;
  static constexpr int kAcross = 8, kDown = kWarp / kAcross, kRowGroups = kSide / kDown;
  static constexpr int kEach = kRowGroups * (kSide / kPack / kAcross) / (kThreads / kWarp);
  static constexpr int kRow = kSide + 4 / static_cast<int>(sizeof(U));

  /// Row and first column of pack e of a thread; the same in the tile of x and in that of y.
  struct Place {
    int row, column;
  };
  static WEFT_DEVICE Place place(Thread t, int e) {
    const int group = t.warp() + e * (kThreads / kWarp);
    return {group % kRowGroups * kDown + t.lane() / kAcross,
            (group / kRowGroups * kAcross + t.lane() % kAcross) * kPack};
  }
  WEFT_DEVICE void operator()(Thread t) const {
    U* const tile = t.shared<U>();
    for (int64_t at = t.block(); at < this->tiles; at += t.blocks()) {
      const auto here = this->template tile<kSide>(at);
      Pack<U, kPack> part[kEach] = {};
      WEFT_UNROLL
      for (int e = 0; e < kEach; ++e)
        if (const Place p = place(t, e); p.row < here.columns && p.column < here.rows)
          part[e] = load_pack<U, kPack>(here.from, p.row * this->x_step + p.column);
      WEFT_UNROLL
      for (int e = 0; e < kEach; ++e) {
        const Place p = place(t, e);
        WEFT_UNROLL
        for (int k = 0; k < kPack; ++k) tile[p.row * kRow + p.column + k] = part[e].at[k];
      }
      t.sync();
      WEFT_UNROLL
      for (int e = 0; e < kEach; ++e) {
        const Place p = place(t, e);
        if (p.row >= here.rows || p.column >= here.columns) continue;
        Pack<U, kPack> out;
        WEFT_UNROLL
        for (int k = 0; k < kPack; ++k) out.at[k] = tile[(p.column + k) * kRow + p.row];
        store_pack(here.to, p.row * this->y_step + p.column, out);
      }
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
    const int64_t rows = l.size[across], columns = l.size[last];
    TransposeTiles<U> body{
        planes, x.as<U>(), y.as<U>(), rows, columns, l.stride[1][last], l.stride[0][across], {}, {}, 0};
    const auto run = [&]<class Body>(TypeTag<Body>) {
      const int64_t down = blocks_for(rows, Body::kSide), along = blocks_for(columns, Body::kSide);
      body.tiles = planes.numel * down * along;
      if (body.tiles >= int64_t{1} << 31) return;
      body.tile_rows = Divider(down), body.tile_columns = Divider(along);
      Grid grid = backend.grid_for(body.tiles * 256);
      grid.shared = sizeof(U) * Body::kSide * Body::kRow;
      launch(stream, "transpose", grid, Body{body});
      done = true;
    };
    if constexpr (sizeof(U) == 2 || sizeof(U) == 4)
      if (body.in_packs(kPerPack<U>)) return run(TypeTag<TransposePacks<U>>{});
    run(TypeTag<Transpose<U>>{});
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
    if (x.data == y.data) return;
    const TraceSpan span("copy", stream);
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
    if (one_byte && layout.dense()) {
      const TraceSpan span("fill", stream_of(c));
      return runtime::fill(y.data, bits[0], static_cast<size_t>(layout.numel) * sizeof word, stream_of(c));
    }
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
