// Packing and register tiles of the matrix product (gemm_tile.h). The tile kernel is one function template,
// instantiated for each height and for a width of one or two vectors. The accumulators stay in registers over
// a whole block of k.
#include <weft/kernels/cpu/isa/gemm_tile.h>

#include <weft/kernels/cpu/isa/rows.h>

#include <utility>

namespace weft::kernels::WEFT_ISA_NS {

template <class T> void positive_part(int64_t m, int64_t n, T* c, int64_t c_row) {
  for (int64_t i = 0; i < m; ++i) {
    T* const row = c + i * c_row;
    map_row(
        n, row, [](Vec<T> v) __attribute__((always_inline)) { return v <= Vec<T>{} ? Vec<T>{} : v; }, row);
  }
}

namespace {

template <class T> struct QuadOf;
template <> struct QuadOf<float> { using Type = float __attribute__((vector_size(16))); };
template <> struct QuadOf<double> { using Type = double __attribute__((vector_size(32))); };
template <class T> using Quad = typename QuadOf<T>::Type;

/// Four rows of four consecutive k to four columns: the transposing inner step of pack().
template <class T> WEFT_INLINE void transpose4(T* dst, int64_t width, const T* src, int64_t stride_i) {
  Quad<T> r0, r1, r2, r3;
  __builtin_memcpy(&r0, src, sizeof r0);
  __builtin_memcpy(&r1, src + stride_i, sizeof r0);
  __builtin_memcpy(&r2, src + 2 * stride_i, sizeof r0);
  __builtin_memcpy(&r3, src + 3 * stride_i, sizeof r0);
  const Quad<T> low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5),
                high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  const Quad<T> low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5),
                high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  const Quad<T> c0 = __builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                c1 = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  const Quad<T> c2 = __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                c3 = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
  __builtin_memcpy(dst, &c0, sizeof c0);
  __builtin_memcpy(dst + width, &c1, sizeof c0);
  __builtin_memcpy(dst + 2 * width, &c2, sizeof c0);
  __builtin_memcpy(dst + 3 * width, &c3, sizeof c0);
}

/// Rows of b and bytes of a packed strip that are fetched before their use. Few rows of a: b comes from
/// beyond the second-level cache. Many: b comes from there, and drives the strip out of the first level.
inline constexpr int64_t kFetchAhead = 32, kFetchBytes = 384;
inline constexpr bool kFetchStrips = kVecBytes == 64;  // else loads bound it

/// acc = a strip (rows) times b panel (vectors), over k; a is [k][a_k] with rows a_i apart, b is [k][ldb].
/// The lines of c, which the caller writes next, are fetched one row after the other, so that they do not
/// delay those of a and b.
template <class T, int kRows, int kVecs>
WEFT_INLINE void accumulate(Vec<T> (&acc)[kRows][kVecs], int64_t k, const T* a, int64_t a_i, int64_t a_k,
                            const T* b, int64_t ldb, const T* c, int64_t c_row) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) acc[i][j] = Vec<T>{};
  const int64_t part = (k + kRows - 1) / kRows;
  for (int64_t done = 0; done < k; done += part) {
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) __builtin_prefetch(c + j * kLanes<T>, 1);
    c += c_row;
    const int64_t end = k - done < part ? k : done + part;
    for (int64_t p = done; p < end; ++p) {
      Vec<T> column[kVecs];
      if (kFetchStrips && a_i == 1) __builtin_prefetch(a + kFetchBytes / int64_t{sizeof(T)});
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) {
        __builtin_prefetch(b + kFetchAhead * ldb + j * kLanes<T>);
        column[j] = load(b + j * kLanes<T>);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const Vec<T> x = splat(a[i * a_i]);
#pragma GCC unroll 4
        for (int j = 0; j < kVecs; ++j) acc[i][j] += x * column[j];
      }
      a += a_k;
      b += ldb;
    }
  }
}

template <class T>
WEFT_INLINE void finish_vector(T* c, Vec<T> acc, int64_t count, Finish<T> f, const T* bias) {
  const bool whole = count >= kLanes<T>;
  Vec<T> v = acc * f.alpha;
  if (f.beta != 0) v += (whole ? load(c) : load_part(c, count)) * f.beta;
  if (bias) v += whole ? load(bias) : load_part(bias, count);
  if (whole) store(c, v);
  else store_part(c, count, v);
}

template <class T, int kRows, int kVecs>
void tile(int64_t k, const T* a, int64_t a_i, int64_t a_k, const T* b, int64_t ldb, T* c, int64_t c_row,
          int64_t columns, Finish<T> f) {
  Vec<T> acc[kRows][kVecs];
  if (a_i == 1 && a_k == kRows) accumulate<T, kRows, kVecs>(acc, k, a, 1, kRows, b, ldb, c, c_row);
  else accumulate<T, kRows, kVecs>(acc, k, a, a_i, a_k, b, ldb, c, c_row);
  if (columns == kVecs * kLanes<T> && f.alpha == 1 && f.beta == 0 && !f.bias) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) store(c + i * c_row + j * kLanes<T>, acc[i][j]);
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j)
      if (const int64_t at = j * kLanes<T>; at < columns)
        finish_vector(c + i * c_row + at, acc[i][j], columns - at, f, f.bias ? f.bias + at : nullptr);
}

template <class T>
using TileFn = void (*)(int64_t k, const T* a, int64_t a_i, int64_t a_k, const T* b, int64_t ldb, T* c,
                        int64_t c_row, int64_t columns, Finish<T> f);

template <class T> struct Tiles {
  TileFn<T> one[kStripRows + 1], two[kStripRows + 1];  // by height
  template <int... kI> static constexpr Tiles make(std::integer_sequence<int, kI...>) {
    return {{nullptr, tile<T, kI + 1, 1>...}, {nullptr, tile<T, kI + 1, 2>...}};
  }
};
template <class T>
inline constexpr Tiles<T> kTiles = Tiles<T>::make(std::make_integer_sequence<int, kStripRows>());

template <class T> Finish<T> at_column(Finish<T> f, int64_t column) {
  if (f.bias) f.bias += column;
  return f;
}

/// The last step for blocks of k after the first: it adds to c.
template <class T> Finish<T> of_block(Finish<T> f, int64_t block) {
  return block == 0 ? f : Finish<T>{f.alpha, 1, nullptr};
}

/// c = beta * c + bias, for an empty sum.
template <class T> void finish_empty(int64_t m, int64_t n0, int64_t n1, T* c, int64_t c_row, Finish<T> f) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = n0; j < n1; ++j)
      c[i * c_row + j] = (f.beta != 0 ? f.beta * c[i * c_row + j] : T(0)) + (f.bias ? f.bias[j] : T(0));
}

/// Dot products of kRows rows of a with kColumns columns of b, both contiguous along k.
template <class T, int kRows, int kColumns>
void dots(int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_column, T* c, int64_t c_row,
          Finish<T> f) {
  Vec<T> acc[kRows][kColumns] = {};
  int64_t p = 0;
  const auto step = [&](auto get) __attribute__((always_inline)) {
    Vec<T> x[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) x[i] = get(a + i * a_row + p);
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      const Vec<T> y = get(b + j * b_column + p);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) acc[i][j] += x[i] * y;
    }
  };
  for (; p + kLanes<T> <= k; p += kLanes<T>)
    step([](const T* q) __attribute__((always_inline)) { return load(q); });
  if (p < k) step([ k, p ](const T* q) __attribute__((always_inline)) { return load_part(q, k - p); });
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      T& out = c[i * c_row + j];
      T v = f.alpha * sum_lanes<T>(acc[i][j]);
      if (f.beta != 0) v += f.beta * out;
      if (f.bias) v += f.bias[j];
      out = v;
    }
}

template <class T>
void multiply_dots(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_column,
                   T* c, int64_t c_row, Finish<T> f) {
  for (int64_t j = 0; j < n; j += 4) {
    const Finish<T> here = at_column(f, j);
    for (int64_t i = 0; i < m; i += 2) {
      const T* x = a + i * a_row;
      const T* y = b + j * b_column;
      T* out = c + i * c_row + j;
      if (i + 2 <= m && j + 4 <= n) dots<T, 2, 4>(k, x, a_row, y, b_column, out, c_row, here);
      else if (j + 4 <= n) dots<T, 1, 4>(k, x, a_row, y, b_column, out, c_row, here);
      else
        for (int64_t r = i; r < m && r < i + 2; ++r)
          for (int64_t q = 0; q < n - j; ++q)
            dots<T, 1, 1>(k, a + r * a_row, a_row, y + q * b_column, b_column, c + r * c_row + j + q, c_row,
                          at_column(here, q));
    }
  }
}

}  // namespace

template <class T>
void pack(T* dst, int64_t width, int64_t count, const T* src, int64_t stride_i, int64_t stride_k, int64_t k) {
  if (stride_i == 1) {
    if (count == width && width % kLanes<T> == 0) {
      for (int64_t p = 0; p < k; ++p)
        for (int64_t i = 0; i < width; i += kLanes<T>) {
          __builtin_prefetch(src + p * stride_k + width + i);  // of the next panel
          store(dst + p * width + i, load(src + p * stride_k + i));
        }
      return;
    }
    const int64_t whole = count / kLanes<T> * kLanes<T>, rest = count - whole;
    for (int64_t p = 0; p < k; ++p) {
      const T* from = src + p * stride_k;
      T* to = dst + p * width;
      for (int64_t i = 0; i < whole; i += kLanes<T>) store(to + i, load(from + i));
      if (rest > 0) store_part(to + whole, rest, load_part(from + whole, rest));
      for (int64_t i = count; i < width; ++i) to[i] = 0;
    }
    return;
  }
  constexpr int64_t kLine = 64 / int64_t{sizeof(T)};
  const int64_t fours = stride_k == 1 ? count / 4 * 4 : 0, steps = k / 4 * 4;
  for (int64_t i = 0; i < fours; i += 4) {
    const T* from = src + i * stride_i;
    for (int64_t p = 0; p < steps; p += 4) {
      if (p % kLine == 0)
        for (int64_t q = 4; q < 8; ++q) __builtin_prefetch(from + q * stride_i + p);  // of the next four rows
      transpose4(dst + p * width + i, width, from + p, stride_i);
    }
    for (int64_t p = steps; p < k; ++p)
      for (int64_t q = 0; q < 4; ++q) dst[p * width + i + q] = from[q * stride_i + p];
  }
  for (int64_t i = fours; i < count; ++i)
    for (int64_t p = 0; p < k; ++p) dst[p * width + i] = src[i * stride_i + p * stride_k];
  for (int64_t i = count; i < width; ++i)
    for (int64_t p = 0; p < k; ++p) dst[p * width + i] = 0;
}

namespace {

/// Packs kc rows of n columns of b by panels.
template <class T> void pack_panels(T* dst, Operand<T> b, int64_t kc, int64_t n) {
  for (int64_t j = 0; j < n; j += kPanel<T>) {
    const int64_t count = n - j < kPanel<T> ? n - j : kPanel<T>;
    pack(dst + j * kc, packed_columns<T>(count), count, b.at(0, j), b.col, b.row, kc);
  }
}

/// Packs kc columns of a by strips. Where columns are contiguous, several strips read each of them in turn,
/// so that a page is used for more than the rows of one strip.
template <class T> void pack_strips(T* dst, Operand<T> a, const Parts& strips, int64_t kc) {
  constexpr int64_t kTogether = 16;
  const int64_t together = a.row == 1 ? kTogether : 1;
  for (int64_t first = 0; first < strips.count; first += together) {
    const int64_t last = strips.count - first < together ? strips.count : first + together;
    if (together == 1) {
      const int64_t i = strips.begin(first), rows = strips.size(first);
      pack(dst + i * kc, rows, rows, a.at(i, 0), a.row, a.col, kc);
      continue;
    }
    for (int64_t p = 0; p < kc; ++p) {
      int64_t i = strips.begin(first);
      for (int64_t s = first; s < last; ++s) {
        const int64_t rows = strips.size(s);
        const T* from = a.at(i, p);
        T* to = dst + i * kc + p * rows;
        int64_t r = 0;
        for (; r + kLanes<T> <= rows; r += kLanes<T>) store(to + r, load(from + r));
        if (r < rows) store_part(to + r, rows - r, load_part(from + r, rows - r));
        i += rows;
      }
    }
  }
}

/// One block of b, which stays in the second-level cache, with each strip of a, which stays in the first
/// level. So a row of c is written from one column to the next.
template <class T>
void multiply_block(const Parts& strips, int64_t n, int64_t kc, const T* a, const T* b, T* c, int64_t c_row,
                    Finish<T> f, bool relu) {
  for (int64_t s = 0; s < strips.count; ++s) {
    const int64_t i = strips.begin(s), rows = strips.size(s);
    for (int64_t j = 0; j < n; j += kPanel<T>) {
      const int64_t columns = n - j < kPanel<T> ? n - j : kPanel<T>, width = packed_columns<T>(columns);
      const auto& tiles = width > kLanes<T> ? kTiles<T>.two : kTiles<T>.one;
      tiles[rows](kc, a + i * kc, 1, rows, b + j * kc, width, c + i * c_row + j, c_row, columns,
                  at_column(f, j));
    }
    if (relu) positive_part(rows, n, c + i * c_row, c_row);
  }
}

}  // namespace

template <class T> void pack_b(T* dst, Operand<T> b, int64_t k, int64_t n, int64_t n0, int64_t n1) {
  const Parts blocks(k, kBlockK);
  for (int64_t kb = 0; kb < blocks.count; ++kb) {
    const int64_t k0 = blocks.begin(kb), kc = blocks.size(kb);
    pack_panels(dst + k0 * packed_columns<T>(n) + n0 * kc, b.from(k0, n0), kc, n1 - n0);
  }
}

template <class T> void pack_a(T* dst, Operand<T> a, int64_t m, int64_t k) {
  const Parts blocks(k, kBlockK), strips(m, kStripRows);
  for (int64_t kb = 0; kb < blocks.count; ++kb)
    pack_strips(dst + blocks.begin(kb) * m, a.from(0, blocks.begin(kb)), strips, blocks.size(kb));
}

template <class T>
void multiply(int64_t m, int64_t n, int64_t k, Side<T> a, Side<T> b, int64_t n0, int64_t n1, T* c,
              int64_t c_row, Finish<T> finish, bool relu) {
  if (k == 0) {
    finish_empty(m, n0, n1, c, c_row, finish);
    if (relu) positive_part(m, n1 - n0, c + n0, c_row);
    return;
  }
  const Parts blocks(k, kBlockK), strips(m, kStripRows);
  const bool many = n1 - n0 > kBlockColumns<T>;  // blocks of columns, each of which reads all of a
  const int64_t columns = many ? kBlockColumns<T> : packed_columns<T>(n1 - n0), rows = blocks.size(0);
  const Scratch<T> strips_here(a.packed ? 0 : m * (many ? k : rows));
  const Scratch<T> panels_here(b.packed ? 0 : columns * rows);
  if (!a.packed && many) pack_a(strips_here.get(), a.plain, m, k), a.packed = strips_here.get();
  for (int64_t j = n0; j < n1; j += kBlockColumns<T>) {
    const int64_t width = n1 - j < kBlockColumns<T> ? n1 - j : kBlockColumns<T>;
    for (int64_t kb = 0; kb < blocks.count; ++kb) {
      const int64_t k0 = blocks.begin(kb), kc = blocks.size(kb);
      if (!a.packed) pack_strips(strips_here.get(), a.plain.from(0, k0), strips, kc);
      if (!b.packed) pack_panels(panels_here.get(), b.plain.from(k0, j), kc, width);
      multiply_block(strips, width, kc, a.packed ? a.packed + k0 * m : strips_here.get(),
                     b.packed ? b.packed + k0 * packed_columns<T>(n) + j * kc : panels_here.get(), c + j,
                     c_row, at_column(of_block(finish, kb), j), relu && kb + 1 == blocks.count);
    }
  }
}

template <class T>
void multiply_direct(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
                     Finish<T> finish) {
  if (k == 0) return finish_empty(m, 0, n, c, c_row, finish);
  if (b.col != 1) return multiply_dots(m, n, k, a.data, a.row, b.data, b.col, c, c_row, finish);
  const Parts blocks(k, kBlockK), strips(m, kStripRows);
  // Each row of a that lies apart takes a register for its address.
  const bool packed = m > 6 && a.row != 1 && n >= 2 * kPanel<T>;
  const Scratch<T> strips_here(packed ? m * blocks.size(0) : 0);
  for (int64_t kb = 0; kb < blocks.count; ++kb) {
    const int64_t k0 = blocks.begin(kb), kc = blocks.size(kb);
    if (packed) pack_strips(strips_here.get(), a.from(0, k0), strips, kc);
    for (int64_t j = 0; j < n; j += kPanel<T>) {
      const int64_t columns = n - j < kPanel<T> ? n - j : kPanel<T>, width = packed_columns<T>(columns);
      const Finish<T> f = at_column(of_block(finish, kb), j);
      const T* panel = b.at(k0, j);
      int64_t ldb = b.row;
      T edge[kBlockK * kPanel<T>];
      if (columns < width) {  // the last columns, padded, so that a whole vector can be read
        pack(edge, width, columns, panel, 1, ldb, kc);
        panel = edge;
        ldb = width;
      }
      const auto& tiles = width > kLanes<T> ? kTiles<T>.two : kTiles<T>.one;
      for (int64_t s = 0; s < strips.count; ++s) {
        const int64_t i = strips.begin(s);
        const int64_t rows = strips.size(s);
        tiles[rows](kc, packed ? strips_here.get() + i * kc : a.at(i, k0), packed ? 1 : a.row,
                    packed ? rows : a.col, panel, ldb, c + i * c_row + j, c_row, columns, f);
      }
    }
  }
}

#define WEFT_INSTANTIATE(T)                                                                             \
  template void pack<T>(T*, int64_t, int64_t, const T*, int64_t, int64_t, int64_t);                     \
  template void pack_b<T>(T*, Operand<T>, int64_t, int64_t, int64_t, int64_t);                          \
  template void pack_a<T>(T*, Operand<T>, int64_t, int64_t);                                            \
  template void positive_part<T>(int64_t, int64_t, T*, int64_t);                                        \
  template void multiply<T>(int64_t, int64_t, int64_t, Side<T>, Side<T>, int64_t, int64_t, T*, int64_t, \
                            Finish<T>, bool);                                                           \
  template void multiply_direct<T>(int64_t, int64_t, int64_t, Operand<T>, Operand<T>, T*, int64_t, Finish<T>);
WEFT_INSTANTIATE(float)
WEFT_INSTANTIATE(double)
#undef WEFT_INSTANTIATE

}  // namespace weft::kernels::WEFT_ISA_NS
