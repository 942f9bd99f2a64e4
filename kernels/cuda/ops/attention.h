// Tiles of the attention kernels (attention_forward.cu, attention_backward.cu). A block keeps rows of one or
// two matrices in shared memory, in their compute type. It moves along the rows of the other matrices in
// blocks of kColumns. Two loops do all arithmetic: products of the rows of two matrices, and sums of rows
// that such products weigh. Both read shared memory in packs of 16 bytes. With eight rows of floats per
// thread, 12 packs give 128 multiply-adds. Sums have the order of the rows, so a call repeats its bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include <weft/kernels/cuda/blocks/number.h>
#include <weft/kernels/cuda/blocks/online_softmax.h>
#include <weft/kernels/cuda/blocks/row_lanes.h>
#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/ops/attention_calls.h>
#include <weft/kernels/cuda/packs.h>

namespace weft::cuda {

/// The row and column of a product in a tile.
struct TilePlace {
  int down, across;
};

/// Heads of up to W numbers in the compute type C. The 128 threads of a block stand in 8 rows of 16. Thread
/// (y, x) has the rows y, y + 8, .. of a tile. Of a row of products it has the columns x, x + 16, .., and of
/// a row of a result the packs x, x + 16, .. of n numbers.
template <class C, int W> struct AttentionTile {
  static constexpr int kDown = 8, kAcross = 16, kThreads = kDown * kAcross;
  static constexpr int n = kPack<C>;
  static constexpr int kColumns = kAcross * n;
  static constexpr int kPacks = W / kColumns;  ///< of a thread in a row of a result
  /// Numbers from row to row in shared memory, of a matrix and of products. Neighbouring rows begin at other
  /// banks.
  static constexpr int kRow = W + n, kProducts = kColumns + 64 / static_cast<int>(sizeof(C));
  static_assert(kPacks * kColumns == W);

  /// Bytes of shared memory: `matrices` of `rows` rows, a block of another matrix, and the products.
  static constexpr size_t shared(int matrices, int rows) {
    return static_cast<size_t>((matrices * rows + kColumns) * kRow + rows * kProducts) * sizeof(C);
  }
  WEFT_DEVICE static int down(Thread t) { return t.id() / kAcross; }
  WEFT_DEVICE static int across(Thread t) { return t.id() % kAcross; }
  /// The place of a thread's product s[i][j] in the tile.
  WEFT_DEVICE static auto places(Thread t) {
    return [y = down(t), x = across(t)](int i, int j) { return TilePlace{y + i * kDown, x + j * kAcross}; };
  }
};

/// q, k, v, y or dy: [B, H, rows, width] with dense rows.
struct AttentionMatrix {
  const void* data = nullptr;
  DType dtype = kFloat32;
  bool packs = false;  ///< rows can be read 16 bytes at a time
  int width = 0;
  int64_t rows = 0, heads = 1;
  int64_t batch = 0, head = 0, row = 0;  ///< strides

  AttentionMatrix() = default;
  explicit AttentionMatrix(const View& v)
      : data(v.data),
        dtype(v.dtype),
        packs(access_bytes({&v}, v.size(3)) == 16),
        width(static_cast<int>(v.size(3))),
        rows(v.size(2)),
        heads(v.size(1)),
        batch(v.stride(0)),
        head(v.stride(1)),
        row(v.stride(2)) {}
  /// The offset of head `number` of all B H heads.
  WEFT_DEVICE int64_t begin(int64_t number) const { return number / heads * batch + number % heads * head; }
};

/// y, dq, dk or dv: contiguous.
struct AttentionResult {
  void* data = nullptr;  ///< may be absent
  DType dtype = kFloat32;
  bool packs = false;  ///< of as many numbers as 16 bytes of the compute type hold
  bool whole = false;  ///< rows can be written 16 bytes at a time
  int width = 0;

  AttentionResult() = default;
  explicit AttentionResult(const View& v) {
    if (!v.defined()) return;
    const int together = v.dtype == kFloat64 ? kPack<double> : kPack<float>;
    data = v.data, dtype = v.dtype, width = static_cast<int>(v.size(3));
    packs = width % together == 0 &&
            reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(together * size_of(dtype)) == 0;
    whole = access_bytes({&v}, v.size(3)) == 16;
  }
};

/// Calls f(TypeTag<T>) for the stored type of numbers that are computed as C.
template <class C, class F> WEFT_DEVICE inline void with_stored(DType t, const F& f) {
  if constexpr (std::is_same_v<C, double>) {
    f(TypeTag<double>{});
  } else {
    if (t == DType::kFloat32) f(TypeTag<float>{});
    else if (t == DType::kFloat16) f(TypeTag<Half>{});
    else f(TypeTag<BFloat16>{});
  }
}

/// Copies `count` of R rows, N numbers at a time, and writes zeros for the others. Four reads come before the
/// first write.
template <class C, int W, int R, int N, class T>
WEFT_DEVICE void fetch_rows_by(Thread t, const T* from, int64_t stride, int width, int count, C* to) {
  using Tile = AttentionTile<C, W>;
  constexpr int across = W / N, step = Tile::kThreads / across, rounds = R / step,
                together = rounds < 4 ? rounds : 4, n = Tile::n;
  static_assert(step * across == Tile::kThreads && rounds % together == 0);
  const int column = t.id() % across * N;
  if (column >= (width + n - 1) / n * n) return;
  for (int row = t.id() / across; row < R; row += together * step) {
    Pack<T, N> loaded[together] = {};
    WEFT_UNROLL
    for (int a = 0; a < together; ++a)
      if (row + a * step < count && column < width)
        loaded[a] = load_pack<T, N>(from, (row + a * step) * stride + column);
    WEFT_UNROLL
    for (int a = 0; a < together; ++a) {
      C* const p = to + (row + a * step) * Tile::kRow + column;
      constexpr int most = N < n ? N : n;
      WEFT_UNROLL
      for (int i = 0; i < N; i += most) {
        Pack<C, most> pack;
        WEFT_UNROLL
        for (int k = 0; k < most; ++k) pack.at[k] = convert<C>(loaded[a].at[i + k]);
        store_pack(p, i, pack);
      }
    }
  }
}

/// Copies rows first .. first + R of a head to shared memory. Rows beyond the last row are zeros, and so are
/// numbers beyond the width in the last pack.
template <class C, int W, int R>
WEFT_DEVICE void fetch_rows(Thread t, const AttentionMatrix& m, int64_t begin, int64_t first, C* to) {
  const int count = m.rows - first < R ? static_cast<int>(m.rows - first) : R;
  with_stored<C>(m.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* const from = static_cast<const T*>(m.data) + begin + first * m.row;
    if (m.packs) fetch_rows_by<C, W, R, kPack<T>>(t, from, m.row, m.width, count, to);
    else fetch_rows_by<C, W, R, 1>(t, from, m.row, m.width, count, to);
  });
}

/// s[i][j] = sum over e < width of a[y + 8 i][e] b[x + 16 j][e].
template <class C, int W, int A, int N>
WEFT_DEVICE void multiply_rows(Thread t, const C* a, const C* b, int width, C (&s)[A][N]) {
  using Tile = AttentionTile<C, W>;
  static_assert(N == Tile::n);
  a += Tile::down(t) * Tile::kRow, b += Tile::across(t) * Tile::kRow;
  WEFT_UNROLL
  for (int i = 0; i < A; ++i) {
    WEFT_UNROLL
    for (int j = 0; j < N; ++j) s[i][j] = 0;
  }
  WEFT_ROLLED for (int e = 0; e < width; e += N) {
    Pack<C, N> right[N];
    WEFT_UNROLL
    for (int j = 0; j < N; ++j) right[j] = load_pack<C, N>(b, j * Tile::kAcross * Tile::kRow + e);
    WEFT_UNROLL
    for (int i = 0; i < A; ++i) {
      const Pack<C, N> left = load_pack<C, N>(a, i * Tile::kDown * Tile::kRow + e);
      WEFT_UNROLL
      for (int k = 0; k < N; ++k) {
        WEFT_UNROLL
        for (int j = 0; j < N; ++j) s[i][j] += left.at[k] * right[j].at[k];
      }
    }
  }
}

/// The thread's part of a result: sum[i] += sum over j < count of p[y + 8 i][j] b[j].
template <class C, int W, int A, int M>
WEFT_DEVICE void add_rows_by(Thread t, const C* p, const C* b, int count, int width, C (&sum)[A][M]) {
  using Tile = AttentionTile<C, W>;
  constexpr int n = Tile::n;
  static_assert(M == Tile::kPacks * n);
  if (Tile::across(t) * n >= width) return;
  p += Tile::down(t) * Tile::kProducts, b += Tile::across(t) * n;
  WEFT_ROLLED for (int j = 0; j < count; j += n) {
    Pack<C, n> left[A];
    WEFT_UNROLL
    for (int i = 0; i < A; ++i) left[i] = load_pack<C, n>(p, i * Tile::kDown * Tile::kProducts + j);
    WEFT_UNROLL
    for (int k = 0; k < n; ++k) {
      WEFT_UNROLL
      for (int c = 0; c < Tile::kPacks; ++c) {
        const Pack<C, n> right = load_pack<C, n>(b, (j + k) * Tile::kRow + c * Tile::kColumns);
        WEFT_UNROLL
        for (int i = 0; i < A; ++i) {
          WEFT_UNROLL
          for (int m = 0; m < n; ++m) sum[i][c * n + m] += left[i].at[k] * right.at[m];
        }
      }
    }
  }
}

/// Writes the thread's numbers of a tile of products to shared memory.
template <class C, int W, int A, int N> WEFT_DEVICE void keep_products(Thread t, const C (&s)[A][N], C* p) {
  using Tile = AttentionTile<C, W>;
  p += Tile::down(t) * Tile::kProducts + Tile::across(t);
  WEFT_UNROLL
  for (int i = 0; i < A; ++i) {
    WEFT_UNROLL
    for (int j = 0; j < N; ++j) p[i * Tile::kDown * Tile::kProducts + j * Tile::kAcross] = s[i][j];
  }
}

/// Writes the thread's part of `count` rows of a result, whose first is row `first` of all heads.
template <class C, int W, int A, int M>
WEFT_DEVICE void store_rows(Thread t, const AttentionResult& y, int64_t first, int64_t count,
                            const C (&sum)[A][M]) {
  using Tile = AttentionTile<C, W>;
  constexpr int n = Tile::n;
  with_stored<C>(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    WEFT_UNROLL
    for (int i = 0; i < A; ++i) {
      const int row = Tile::down(t) + i * Tile::kDown;
      if (row >= count) continue;
      T* const to = static_cast<T*>(y.data) + (first + row) * y.width;
      WEFT_UNROLL
      for (int c = 0; c < Tile::kPacks; ++c) {
        const int column = (Tile::across(t) + c * Tile::kAcross) * n;
        if (column >= y.width) continue;
        Pack<T, n> pack;
        WEFT_UNROLL
        for (int m = 0; m < n; ++m) pack.at[m] = convert<T>(sum[i][c * n + m]);
        if (y.packs) {
          store_pack(to, column, pack);
          continue;
        }
        WEFT_UNROLL
        for (int m = 0; m < n; ++m)
          if (column + m < y.width) to[column + m] = pack.at[m];
      }
    }
  });
}

/// A call, in the arguments that all kernels share.
template <class C> struct AttentionCall {
  AttentionMatrix q, k, v;
  const void* mask = nullptr;  ///< bool, or C
  bool flags = false;
  int64_t mask_batch = 0, mask_head = 0, mask_row = 0, mask_column = 0;  ///< strides
  C scale;
  bool causal;

  explicit AttentionCall(const AttentionViews& a)
      : q(a.q), k(a.k), v(a.v), scale(static_cast<C>(a.scale)), causal(a.causal) {
    if (!a.mask.defined()) return;
    mask = a.mask.data, flags = a.mask.dtype == kBool;
    mask_batch = a.mask.stride(0), mask_head = a.mask.stride(1);
    mask_row = a.mask.stride(2), mask_column = a.mask.stride(3);
  }

  static constexpr C kNone = -std::numeric_limits<C>::infinity();

  /// Turns the products s of queries and keys of a head into the softmax's arguments, which are -infinity
  /// where a key takes no part. The tile's rows are the queries from `query` on, and its columns the keys
  /// from `key` on; with kKeysDown it is the other way round. place(i, j) is the place of s[i][j] in it.
  template <bool kKeysDown, int A, int N, class F>
  WEFT_DEVICE void finish(int64_t number, int64_t query, int64_t key, C (&s)[A][N], const F& place) const {
    constexpr int64_t kFar = 1 << 20;  // beyond a tile
    const auto limit = [](int64_t n) { return static_cast<int>(n < kFar ? n : kFar); };
    const int queries = limit(q.rows - query), keys = limit(k.rows - key),
              ahead = causal ? limit(query - key) : static_cast<int>(kFar);
    const int64_t from =
        number / q.heads * mask_batch + number % q.heads * mask_head + query * mask_row + key * mask_column;
    WEFT_UNROLL
    for (int i = 0; i < A; ++i) {
      WEFT_UNROLL
      for (int j = 0; j < N; ++j) {
        const TilePlace p = place(i, j);
        const int at_query = kKeysDown ? p.across : p.down, at_key = kKeysDown ? p.down : p.across;
        C value = s[i][j] * scale;
        const bool in = at_query < queries && at_key < keys && at_key - at_query <= ahead;
        if (mask != nullptr && in) {
          const int64_t at = from + at_query * mask_row + at_key * mask_column;
          if (!flags) value += static_cast<const C*>(mask)[at];
          else if (!static_cast<const bool*>(mask)[at]) value = kNone;
        }
        s[i][j] = in ? value : kNone;
      }
    }
  }
};

/// Calls f(TypeTag<C>, width) with the compute type of a call and std::integral_constant<int, W>, for a W
/// that holds its heads; backends take no others (CudaBackend::has_attention).
template <class F> void with_attention_tile(const AttentionViews& v, const F& f) {
  if (v.q.dtype == kFloat64) return f(TypeTag<double>{}, std::integral_constant<int, 64>());
  if (std::max(v.q.size(3), v.v.size(3)) <= 64) return f(TypeTag<float>{}, std::integral_constant<int, 64>());
  f(TypeTag<float>{}, std::integral_constant<int, 128>());
}

/// along[row] = the sum of dy y over a row of all heads.
void launch_attention_along(CudaBackend& backend, Context& c, const AttentionViews& v, void* along);

/// Rows of a thread in a tile. The backward's two sums and two tiles of products leave room for four.
template <class C> inline constexpr int kAttentionRows = sizeof(C) == sizeof(float) ? 8 : 4;
inline constexpr int kAttentionBackwardRows = 4;

}  // namespace weft::cuda
