// Coordinates of the non-zero elements, in row-major order. Elements are read twice. The first reading counts
// them per tile of a block. After a scan over the tiles, the second writes the coordinates of each to its
// place. An element is tested by its bits (-0 is zero, NaN is not), so there is one kernel per width.
// count_nonzero waits for its result. Reads 2 x.numel elements, writes 8 ndim bytes per element found (=).
#include <bit>

#include <weft/kernels/cuda/blocks/scan.h>
#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/layout.h>

namespace weft::cuda {

namespace {

constexpr int kThreads = 256;

/// Elements of x in tiles; a thread looks at kEach neighbours. U: unsigned, of x's width.
template <class U> struct Tiles {
  static constexpr int kEach = 16 / static_cast<int>(sizeof(U)), kTile = kThreads * kEach;
  struct alignas(16) Some {
    U v[kEach];
  };
  const U* x;
  U mask;       ///< the bits that decide: all are 0 in a zero
  bool packed;  ///< dense and aligned
  Layout<1> layout;

  int64_t count() const { return blocks_for(layout.numel, kTile); }
  /// Bit k: element first + k exists and is not zero.
  WEFT_DEVICE uint32_t look(int64_t first) const {
    uint32_t found = 0;
    if (packed && first + kEach <= layout.numel) {
      const Some some = *reinterpret_cast<const Some*>(x + first);
      for (int k = 0; k < kEach; ++k) found |= (some.v[k] & mask) != 0 ? 1u << k : 0;
      return found;
    }
    for (int k = 0; k < kEach && first + k < layout.numel; ++k) {
      int64_t offset[1];
      layout.locate(first + k, offset);
      found |= (x[offset[0]] & mask) != 0 ? 1u << k : 0;
    }
    return found;
  }
};

template <class U> struct CountTiles {
  Tiles<U> tiles;
  int64_t count;
  int64_t* counts;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t tile = t.block(); tile < count; tile += t.blocks()) {
      const auto found =
          static_cast<uint32_t>(std::popcount(tiles.look(tile * Tiles<U>::kTile + t.id() * Tiles<U>::kEach)));
      const uint32_t total = block_scan(t, found, uint32_t{0}, Plus(), t.shared<uint32_t>()).total;
      if (t.id() == 0) counts[tile] = total;
    }
  }
};

/// counts[i] = sum of those before, counts[n] = the sum of all. One block.
struct ScanTiles {
  int64_t n;
  int64_t* counts;

  WEFT_DEVICE void operator()(Thread t) const {
    int64_t carry = 0;
    for (int64_t start = 0; start < n; start += t.count()) {
      const int64_t i = start + t.id();
      const auto scanned = block_scan(t, i < n ? counts[i] : 0, int64_t{0}, Plus(), t.shared<int64_t>());
      if (i < n) counts[i] = carry + scanned.before;
      carry += scanned.total;
    }
    if (t.id() == 0) counts[n] = carry;
  }
};

struct Coordinates {
  int ndim;
  int64_t size[kMaxDims];
};

template <class U> struct WriteFound {
  Tiles<U> tiles;
  int64_t count;
  const int64_t* starts;
  Coordinates shape;
  int64_t* out;
  int64_t out_row, out_step, rows;

  WEFT_DEVICE void operator()(Thread t) const {
    for (int64_t tile = t.block(); tile < count; tile += t.blocks()) {
      const int64_t first = tile * Tiles<U>::kTile + t.id() * Tiles<U>::kEach;
      uint32_t found = tiles.look(first);
      int64_t row = starts[tile] + block_scan(t, static_cast<uint32_t>(std::popcount(found)), uint32_t{0},
                                              Plus(), t.shared<uint32_t>())
                                       .before;
      for (int k = 0; found != 0; ++k, found >>= 1) {
        if ((found & 1) == 0) continue;
        int64_t at = first + k;
        for (int d = shape.ndim - 1; d >= 0 && row < rows; --d) {
          const int64_t above = at / shape.size[d];
          out[row * out_row + d * out_step] = at - above * shape.size[d];
          at = above;
        }
        ++row;
      }
    }
  }
};

/// Calls f(tiles) for the width and the zero of x's dtype.
template <class F> void with_tiles(const View& x, const F& f) {
  const View* const views[] = {&x};
  const Layout<1> layout = layout_of(views, false);
  const bool packed = layout.dense() && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  const auto go = [&]<class U>(TypeTag<U>) {
    const U all = static_cast<U>(~U{0});
    f(Tiles<U>{x.as<U>(), is_floating(x.dtype) ? static_cast<U>(all >> 1) : all, packed, layout});
  };
  switch (size_of(x.dtype)) {
    case 1: return go(TypeTag<uint8_t>{});
    case 2: return go(TypeTag<uint16_t>{});
    case 4: return go(TypeTag<uint32_t>{});
    default: return go(TypeTag<uint64_t>{});
  }
}

/// The grid of a body over n tiles.
template <class Body> Grid grid_of_tiles(const CudaBackend& backend, const char* name, int64_t n) {
  constexpr size_t shared = kScanRoom * sizeof(uint32_t);
  return {.blocks = backend.blocks_at_once<Body>(name, n, kThreads, shared),
          .threads = kThreads,
          .shared = shared};
}

/// Fills counts [tiles + 1] with the cumulative sums over tiles.
template <class U>
void count_tiles(CudaBackend& backend, Context& c, const Tiles<U>& tiles, int64_t* counts) {
  const int64_t n = tiles.count();
  launch(backend.stream_of(c), "count_tiles", grid_of_tiles<CountTiles<U>>(backend, "count_tiles", n),
         CountTiles<U>{tiles, n, counts});
  const int threads = n <= 64 ? 64 : n <= 256 ? 256 : 1024;
  launch(backend.stream_of(c), "scan_tiles", {.threads = threads, .shared = kScanRoom * sizeof(int64_t)},
         ScanTiles{n, counts});
}

}  // namespace

int64_t CudaBackend::count_nonzero(Context& c, View x) {
  if (x.numel() == 0) return 0;
  enter();
  int64_t found = 0;
  with_tiles(x, [&](const auto& tiles) {
    const Scratch counts(*this, c, static_cast<size_t>(tiles.count() + 1) * sizeof(int64_t));
    count_tiles(*this, c, tiles, counts.as<int64_t>());
    copy_to_host(c, counts.as<int64_t>() + tiles.count(), &found, sizeof found);
  });
  return found;
}

void CudaBackend::nonzero(Context& c, View x, View out) {
  if (x.numel() == 0 || out.numel() == 0) return;
  enter();
  Coordinates shape{x.ndim(), {}};
  for (int d = 0; d < x.ndim(); ++d) shape.size[d] = x.size(d);
  with_tiles(x, [&]<class U>(const Tiles<U>& tiles) {
    const int64_t n = tiles.count();
    const Scratch counts(*this, c, static_cast<size_t>(n + 1) * sizeof(int64_t));
    count_tiles(*this, c, tiles, counts.as<int64_t>());
    launch(stream_of(c), "write_found", grid_of_tiles<WriteFound<U>>(*this, "write_found", n),
           WriteFound<U>{tiles, n, counts.as<int64_t>(), shape, out.as<int64_t>(), out.stride(0),
                         out.stride(1), out.size(0)});
  });
}

}  // namespace weft::cuda
