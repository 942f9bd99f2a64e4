// Register tiles and dot products of the matrix product (gemm_tile.h). The tile kernel is one function
// template, instantiated for each height and for a width of one or two vectors. The accumulators stay in
// registers over a whole block of k.
#include <weft/kernels/cpu/isa/gemm_tile.h>

#include <weft/kernels/cpu/isa/quads.h>
#include <weft/kernels/cpu/isa/rows.h>

#include <iterator>
#include <type_traits>
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

/// Rows of b and bytes of a packed strip that are fetched before their use. Few rows of a: b comes from
/// beyond the second-level cache. Many: b comes from there, and drives the strip out of the first level.
inline constexpr int64_t kFetchAhead = 32, kFetchBytes = 384;
inline constexpr bool kFetchStrips = kVecBytes == 64;  // else loads bound it

/// Few rows by wide panels: whether the set has registers for them, vectors of sums, rows at most, rows of b
/// that are fetched before their use. Beyond these bytes of b one row takes them too.
inline constexpr bool kHasWide = kVecBytes == 64;
inline constexpr int kWideSums = 24, kWideRows = 6;
inline constexpr int64_t kWideBytes = 1 << 20, kFetchWide = 4;

/// acc = a strip (rows) times b panel (vectors), over k; a is [k][a_k] with rows a_i apart, b is [k][ldb].
/// The lines of c, which the caller writes next, are fetched one row after the other. So they do not delay
/// the lines of a and b.
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

/// Rounds a product here. A sum that takes it in its own instruction has other bits, and the compiler would
/// choose differently from place to place.
template <class V> WEFT_INLINE void round_here(V& v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__FMA__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  if constexpr (sizeof v <= kVecBytes) {
    asm("" : "+w"(v));
  } else {  // in several registers
    VecD parts[sizeof v / kVecBytes];
    __builtin_memcpy(parts, &v, sizeof v);
    for (VecD& part : parts) asm("" : "+w"(part));
    __builtin_memcpy(&v, parts, sizeof v);
  }
#else
  static_cast<void>(v);  // there is no such instruction
#endif
}

template <class T>
WEFT_INLINE void finish_vector(T* c, Vec<T> acc, int64_t count, Finish<T> f, const T* bias) {
  const bool whole = count >= kLanes<T>;
  Vec<T> v = acc * f.alpha;
  round_here(v);
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

/// The sum of the lanes of each of four vectors, added in the order of sum_lanes().
template <class T> WEFT_INLINE void sums_of_four(const Vec<T> (&a)[4], Wide<T, 1>& sums) {
  constexpr int kCount = kLanes<T>;
  if constexpr (kCount == 16) {
    const auto halves = [](const Vec<T>& x, const Vec<T>& y, Vec<T>& v) __attribute__((always_inline)) {
      v = __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
          __builtin_shufflevector(x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    };
    Vec<T> x, y;
    halves(a[0], a[1], x), halves(a[2], a[3], y);
    Vec<T> v = __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    Vec<T> other;
    pick<2, 3, 2, 3>(v, v, other), v += other;
    pick<1, 1, 1, 1>(v, v, other), v += other;
    sums = __builtin_shufflevector(v, v, 0, 4, 8, 12);
  } else if constexpr (kCount == 8) {
    const auto quads = [](const Vec<T>& x, const Vec<T>& y, Vec<T>& v) __attribute__((always_inline)) {
      v = __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11) +
          __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15);
    };
    Vec<T> x, y;
    quads(a[0], a[1], x), quads(a[2], a[3], y);
    Vec<T> v = __builtin_shufflevector(x, y, 0, 1, 4, 5, 8, 9, 12, 13) +
               __builtin_shufflevector(x, y, 2, 3, 6, 7, 10, 11, 14, 15);
    Vec<T> other = __builtin_shufflevector(v, v, 1, 1, 3, 3, 5, 5, 7, 7);
    v += other;
    sums = __builtin_shufflevector(v, v, 0, 2, 4, 6);
  } else if constexpr (kCount == 4) {
    Vec<T> low, high, x, y;
    pick<0, 4, 1, 5>(a[0], a[1], low), pick<2, 6, 3, 7>(a[0], a[1], high), x = low + high;
    pick<0, 4, 1, 5>(a[2], a[3], low), pick<2, 6, 3, 7>(a[2], a[3], high), y = low + high;
    pick<0, 1, 4, 5>(x, y, low), pick<2, 3, 6, 7>(x, y, high);
    sums = low + high;
  } else {
    for (int i = 0; i < 4; ++i) sums[i] = sum_lanes<T>(a[i]);
  }
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
  for (int i = 0; i < kRows; ++i) {
    T* const out = c + i * c_row;
    std::conditional_t<kColumns == 4, Wide<T, 1>, T> v, old;
    if constexpr (kColumns == 4) sums_of_four<T>(acc[i], v);
    else v = sum_lanes<T>(acc[i][0]);
    v *= f.alpha;
    round_here(v);
    if (f.beta != 0) __builtin_memcpy(&old, out, sizeof old), v += f.beta * old;
    if (f.bias) __builtin_memcpy(&old, f.bias, sizeof old), v += old;
    __builtin_memcpy(out, &v, sizeof v);
  }
}

/// One or four columns of b with all rows of a.
template <class T, int kColumns>
void dots_of_columns(int64_t m, int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_column, T* c,
                     int64_t c_row, Finish<T> f) {
  int64_t i = 0;
  const auto rows = [&](auto many) __attribute__((always_inline)) {
    for (; i + many <= m; i += many)
      dots<T, many, kColumns>(k, a + i * a_row, a_row, b, b_column, c + i * c_row, c_row, f);
  };
  rows(std::integral_constant<int, kDotsRows>());
  if constexpr (kDotsRows > 2) rows(std::integral_constant<int, 2>());
  rows(std::integral_constant<int, 1>());
}

template <class T>
void multiply_dots(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_column,
                   T* c, int64_t c_row, Finish<T> f) {
  int64_t j = 0;
  for (; j + 4 <= n; j += 4)
    dots_of_columns<T, 4>(m, k, a, a_row, b + j * b_column, b_column, c + j, c_row, at_column(f, j));
  for (; j < n; ++j)
    dots_of_columns<T, 1>(m, k, a, a_row, b + j * b_column, b_column, c + j, c_row, at_column(f, j));
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

/// A few rows of c by whole panels of a row-major b in place, as many vectors wide as registers hold sums. So
/// each row of b is read by long pieces, as the processor fetches them best from beyond the second-level
/// cache. Each sum is that of a tile. Returns the columns that are done.
template <class T, int kRows, int kVecs = kWideSums / kRows>
int64_t multiply_wide(int64_t n, int64_t kc, Operand<T> a, const T* b, int64_t ldb, T* c, int64_t c_row,
                      Finish<T> f) {
  int64_t j0 = 0;
  for (; j0 + kVecs * kLanes<T> <= n; j0 += kVecs * kLanes<T>) {
    Vec<T> acc[kRows][kVecs];
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 24
      for (int v = 0; v < kVecs; ++v) acc[i][v] = Vec<T>{};
    const T *from = b + j0, *x = a.data;
    for (int64_t p = 0; p < kc; ++p, from += ldb, x += a.col) {
      Vec<T> row[kRows];
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) row[i] = splat(x[i * a.row]);
#pragma GCC unroll 24
      for (int v = 0; v < kVecs; ++v) {
        __builtin_prefetch(from + kFetchWide * ldb + v * kLanes<T>);
        const Vec<T> column = load(from + v * kLanes<T>);
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) acc[i][v] += row[i] * column;
      }
    }
    const Finish<T> here = at_column(f, j0);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 24
      for (int v = 0; v < kVecs; ++v)
        finish_vector(c + i * c_row + j0 + v * kLanes<T>, acc[i][v], kLanes<T>, here,
                      here.bias ? here.bias + v * kLanes<T> : nullptr);
  }
  return j0;
}

template <class T>
int64_t multiply_wide(int64_t m, int64_t n, int64_t kc, Operand<T> a, const T* b, int64_t ldb, T* c,
                      int64_t c_row, Finish<T> f) {
  constexpr decltype(&multiply_wide<T, 2>) kByHeight[] = {multiply_wide<T, 2>, multiply_wide<T, 3>,
                                                          multiply_wide<T, 4>, multiply_wide<T, 5>,
                                                          multiply_wide<T, 6>};
  static_assert(std::size(kByHeight) == kWideRows - 1);
  return kByHeight[m - 2](n, kc, a, b, ldb, c, c_row, f);
}

/// Adds kRows rows of b, times x, to kVecs vectors of sums. The first rows begin the sums.
template <int kRows, int kVecs, class T, class Get>
WEFT_INLINE void add_rows(T* sums, bool first, const Vec<T> (&x)[kRows], const T* b, int64_t ldb, Get get) {
  Vec<T> sum[kVecs];
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) sum[v] = first ? Vec<T>{} : load(sums + v * kLanes<T>);
#pragma GCC unroll 8
  for (int q = 0; q < kRows; ++q)
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sum[v] += x[q] * get(b + q * ldb + v * kLanes<T>);
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) store(sums + v * kLanes<T>, sum[v]);
}

/// One row of c by a row-major b, in place: kRows rows of b at once, each from one end to the other. Each sum
/// is that of a tile.
template <int kRows, int kVecs, class T>
void rows_to_row(int64_t n, int64_t kc, const T* a, int64_t a_k, const T* b, int64_t ldb, T* c, Finish<T> f) {
  constexpr int64_t kColumns = 4096 / int64_t{sizeof(T)};  // their sums stay in the first-level cache
  alignas(kVecBytes) T sums[kColumns];
  for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
    const int64_t columns = n - j0 < kColumns ? n - j0 : kColumns, whole = columns / kLanes<T> * kLanes<T>;
    const auto add = [&](int64_t p, auto rows) __attribute__((always_inline)) {
      constexpr int kMany = rows;
      const T* const from = b + p * ldb + j0;
      Vec<T> x[kMany];
      for (int q = 0; q < kMany; ++q) x[q] = splat(a[(p + q) * a_k]);
      const auto all = [](const T* y) __attribute__((always_inline)) { return load(y); };
      const auto part = [&](const T* y) __attribute__((always_inline)) {
        return load_part(y, columns - whole);
      };
      int64_t j = 0;
      for (; j + kVecs * kLanes<T> <= whole; j += kVecs * kLanes<T>)
        add_rows<kMany, kVecs>(sums + j, p == 0, x, from + j, ldb, all);
      for (; j < whole; j += kLanes<T>) add_rows<kMany, 1>(sums + j, p == 0, x, from + j, ldb, all);
      if (whole < columns) add_rows<kMany, 1>(sums + whole, p == 0, x, from + whole, ldb, part);
    };
    int64_t p = 0;
    for (; p + kRows <= kc; p += kRows) add(p, std::integral_constant<int, kRows>());
    for (; p < kc; ++p) add(p, std::integral_constant<int, 1>());
    const Finish<T> last = at_column(f, j0);
    for (int64_t j = 0; j < columns; j += kLanes<T>)
      finish_vector(c + j0 + j, load(sums + j), columns - j, last, last.bias ? last.bias + j : nullptr);
  }
}

/// One row of c. A b that stays in the second-level cache is read row by row if its rows are long.
template <class T>
void multiply_row(int64_t n, int64_t kc, Operand<T> a, const T* b, int64_t ldb, T* c, Finish<T> f,
                  bool large) {
  int64_t done = 0;
  if constexpr (kHasWide) {
    if (!large && n >= 32 * kLanes<T>) return rows_to_row<1, 8>(n, kc, a.data, a.col, b, ldb, c, f);
    done = multiply_wide<T, 1>(n, kc, a, b, ldb, c, 0, f);
    done += multiply_wide<T, 1, 16>(n - done, kc, a, b + done, ldb, c + done, 0, at_column(f, done));
  }
  rows_to_row<4, 1>(n - done, kc, a.data, a.col, b + done, ldb, c + done, at_column(f, done));
}

}  // namespace

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
      if (!a.packed) pack_a(strips_here.get(), a.plain.from(0, k0), m, kc);
      if (!b.packed) pack_b(panels_here.get(), b.plain.from(k0, j), kc, width, 0, width);
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
  const bool large = n * k * int64_t{sizeof(T)} > kWideBytes;
  for (int64_t kb = 0; kb < blocks.count; ++kb) {
    const int64_t k0 = blocks.begin(kb), kc = blocks.size(kb);
    const Finish<T> here = of_block(finish, kb);
    if (m == 1) {
      multiply_row(n, kc, a.from(0, k0), b.at(k0, 0), b.row, c, here, large);
      continue;
    }
    int64_t done = 0;
    if constexpr (kHasWide)
      if (m <= kWideRows) done = multiply_wide(m, n, kc, a.from(0, k0), b.at(k0, 0), b.row, c, c_row, here);
    if (packed) pack_a(strips_here.get(), a.from(0, k0), m, kc);
    for (int64_t j = done; j < n; j += kPanel<T>) {
      const int64_t columns = n - j < kPanel<T> ? n - j : kPanel<T>, width = packed_columns<T>(columns);
      const Finish<T> f = at_column(here, j);
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
  template void positive_part<T>(int64_t, int64_t, T*, int64_t);                                        \
  template void multiply<T>(int64_t, int64_t, int64_t, Side<T>, Side<T>, int64_t, int64_t, T*, int64_t, \
                            Finish<T>, bool);                                                           \
  template void multiply_direct<T>(int64_t, int64_t, int64_t, Operand<T>, Operand<T>, T*, int64_t, Finish<T>);
WEFT_INSTANTIATE(float)
WEFT_INSTANTIATE(double)
#undef WEFT_INSTANTIATE

}  // namespace weft::kernels::WEFT_ISA_NS
