// Register tiles of the matrix product (gemm_tile.h). The tile kernel is one function template, instantiated
// for each height, width in vectors and form of a. The accumulators stay in registers over a whole block of
// k. A row-major b and most forms of a are read in place: what that costs in loads, packing would cost too.
#include <weft/kernels/cpu/isa/gemm_finish.h>

#include <iterator>
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

/// Rows of b that are fetched before their use, and columns of a strip where they lie side by side.
/// Rows that lie in a few sets of the caches are fetched late, or the next ones would replace them.
inline constexpr int64_t kFetchAhead = 32, kFetchLate = 6, kFetchColumns = 16;
inline constexpr bool kFetchStrips = kVecBytes == 64;  // else loads bound it

/// Rows of a whose sums go through one panel of b after the other. They stay in the second-level cache.
inline constexpr int64_t kChunkRows = 128;
/// The first strip copies a panel whose rows of b lie in a few sets of the caches, at a distance that is a
/// multiple of this. With so many strips it copies each panel, if the first-level cache has room for it.
inline constexpr int64_t kBadDistance = kVecBytes == 64 ? 2048 : 1024;
inline constexpr int64_t kManyStrips = kVecBytes == 64 ? int64_t{1} << 62 : 8;
template <class T> bool is_bad_distance(int64_t ldb) { return ldb * int64_t{sizeof(T)} % kBadDistance == 0; }

/// Few rows by wide panels: whether the set has registers for them, vectors of sums, rows at most, rows of b
/// that are fetched before their use. Beyond these bytes of b one row takes them too.
inline constexpr bool kHasWide = kVecBytes == 64;
inline constexpr int kWideSums = 24, kWideRows = 6;
inline constexpr int64_t kWideBytes = 1 << 20, kFetchWide = 4;

/// acc = a strip (rows) times b panel (vectors), over k. Rows of a lie a_far apart, with their numbers side
/// by side; with kByRows false its columns do. b is [k][ldb]. The lines of c, which the caller writes next,
/// are fetched one row after the other. So they do not delay the lines of a and b. With kCopy the panel goes
/// to `copy` too.
template <class T, bool kByRows, int kRows, int kVecs, bool kCopy>
WEFT_INLINE void accumulate(Vec<T> (&acc)[kRows][kVecs], int64_t k, const T* a, int64_t a_far, const T* b,
                            int64_t ldb, const T* c, int64_t c_row, T* copy) {
  constexpr int64_t kLast = kLanes<T> - 1;  // the first number of a vector is in the line of the one before
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) acc[i][j] = Vec<T>{};
  constexpr int64_t kPart = (kBlockK + kRows - 1) / kRows;
  const int64_t ahead = (is_bad_distance<T>(ldb) ? kFetchLate : kFetchAhead) * ldb;
  for (int64_t rest = k; rest > 0; rest -= kPart) {
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) __builtin_prefetch(c + j * kLanes<T> + kLast, 1);
    c += c_row;
    for (int64_t steps = rest < kPart ? rest : kPart; steps > 0; --steps) {
      Vec<T> column[kVecs];
      if constexpr (kFetchStrips && !kByRows) __builtin_prefetch(a + kFetchColumns * a_far + kRows - 1);
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) {
        if ((j + 1) * kVecBytes % 64 == 0 || j + 1 == kVecs)
          __builtin_prefetch(b + ahead + j * kLanes<T> + kLast);
        column[j] = load(b + j * kLanes<T>);
        if constexpr (kCopy) store(copy + j * kLanes<T>, column[j]);
      }
      const T* four = a;
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        if (kByRows && i % 4 == 0) {
          four = a + i * a_far;
          asm("" : "+r"(four));  // else GCC keeps a pointer to each row, more than the registers hold
        }
        const Vec<T> x = splat(kByRows ? four[i % 4 * a_far] : a[i]);
#pragma GCC unroll 4
        for (int j = 0; j < kVecs; ++j) acc[i][j] += x * column[j];
      }
      a += kByRows ? 1 : a_far;
      b += ldb;
      if constexpr (kCopy) copy += kVecs * kLanes<T>;
    }
  }
}

template <class T, bool kByRows, int kRows, int kVecs, bool kCopy = false>
void tile(int64_t k, const T* a, int64_t a_far, const T* b, int64_t ldb, T* c, int64_t c_row, int64_t columns,
          Finish<T> f, T* copy) {
  Vec<T> acc[kRows][kVecs];
  accumulate<T, kByRows, kRows, kVecs, kCopy>(acc, k, a, a_far, b, ldb, c, c_row, copy);
  const bool plain = columns == kVecs * kLanes<T> && f.alpha == 1 && !f.bias;
  if (plain && f.beta == 0) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) store(c + i * c_row + j * kLanes<T>, acc[i][j]);
    return;
  }
  if (plain && f.beta == 1) {  // a block of k after the first
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) {
        T* const to = c + i * c_row + j * kLanes<T>;
        store(to, load(to) + acc[i][j]);
      }
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
using TileFn = void (*)(int64_t k, const T* a, int64_t a_far, const T* b, int64_t ldb, T* c, int64_t c_row,
                        int64_t columns, Finish<T> f, T* copy);

/// Tiles of each height, by vectors of width less one, and those that copy a whole panel.
template <class T> struct Tiles {
  TileFn<T> by_width[kPanelVectors][kStripRows + 1], copying[kStripRows + 1];
  template <bool kByRows, int kVecs, int... kI>
  static constexpr void fill(TileFn<T> (&to)[kStripRows + 1], std::integer_sequence<int, kI...>) {
    ((to[kI + 1] = tile<T, kByRows, kI + 1, kVecs>), ...);
  }
  template <bool kByRows, int... kV> static constexpr Tiles make(std::integer_sequence<int, kV...>) {
    constexpr auto kHeights = std::make_integer_sequence<int, kStripRows>();
    Tiles t{};
    (fill<kByRows, kV + 1>(t.by_width[kV], kHeights), ...);
    [&]<int... kI>(std::integer_sequence<int, kI...>) {
      ((t.copying[kI + 1] = tile<T, kByRows, kI + 1, kPanelVectors, true>), ...);
    }
    (kHeights);
    return t;
  }
};
template <class T, bool kByRows>
inline constexpr Tiles<T> kTiles =
    Tiles<T>::template make<kByRows>(std::make_integer_sequence<int, kPanelVectors>());

/// A block of columns of a, kc of them, as tiles read it: a pack, or in place.
template <class T> struct Left {
  const T* packed;
  Operand<T> plain;
  int64_t kc;
  const Tiles<T>& tiles() const { return by_rows() ? kTiles<T, true> : kTiles<T, false>; }
  bool by_rows() const { return !packed && plain.col == 1; }
  const T* at(int64_t i) const { return packed ? packed + i * kc : plain.at(i, 0); }
  int64_t far(int64_t rows) const { return packed ? rows : by_rows() ? plain.row : plain.col; }
};

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

/// One block of b, which stays in the second-level cache, with each strip of a, which stays in the first
/// level. So a row of c is written from one column to the next.
template <class T>
void multiply_block(const Parts& strips, int64_t n, const Left<T>& a, const T* b, T* c, int64_t c_row,
                    Finish<T> f, bool relu) {
  const Tiles<T>& tiles = a.tiles();
  for (int64_t s = 0; s < strips.count; ++s) {
    const int64_t i = strips.begin(s), rows = strips.size(s);
    for (int64_t j = 0, columns; j < n; j += columns) {
      columns = panel_columns<T>(n - j);
      const int64_t width = packed_columns<T>(columns);
      tiles.by_width[width / kLanes<T> - 1][rows](a.kc, a.at(i), a.far(rows), b + j * a.kc, width,
                                                  c + i * c_row + j, c_row, columns, at_column(f, j),
                                                  nullptr);
    }
    if (relu) positive_part(rows, n, c + i * c_row, c_row);
  }
}

/// Rows of a row-major b in place, panel by panel, each with all strips of a. The last columns are padded, so
/// that a whole vector can be read.
template <class T>
void multiply_panels(const Parts& strips, int64_t n, const Left<T>& a, const T* b, int64_t ldb, T* c,
                     int64_t c_row, Finish<T> f) {
  alignas(kVecBytes) T panel[kBlockK * kPanel<T>];
  const Tiles<T>& tiles = a.tiles();
  const bool copied = strips.count > 1 && (is_bad_distance<T>(ldb) || strips.count >= kManyStrips);
  for (int64_t j = 0, columns; j < n; j += columns) {
    columns = panel_columns<T>(n - j);
    const int64_t width = packed_columns<T>(columns);
    const Finish<T> here = at_column(f, j);
    const T* from = b + j;
    int64_t from_row = ldb;
    if (columns < width) {
      pack(panel, width, columns, from, 1, ldb, a.kc);
      from = panel, from_row = width;
    }
    for (int64_t s = 0; s < strips.count; ++s) {
      const int64_t i = strips.begin(s), rows = strips.size(s);
      const bool copies = copied && s == 0 && columns == kPanel<T>;
      const TileFn<T> run = copies ? tiles.copying[rows] : tiles.by_width[width / kLanes<T> - 1][rows];
      run(a.kc, a.at(i), a.far(rows), from, from_row, c + i * c_row + j, c_row, columns, here, panel);
      if (copies) from = panel, from_row = width;
    }
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
      const T* ahead = from + kFetchWide * ldb;
      asm("" : "+r"(ahead));  // else GCC keeps the distance of each vector in a register
      Vec<T> row[kRows];
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) row[i] = splat(x[i * a.row]);
#pragma GCC unroll 24
      for (int v = 0; v < kVecs; ++v) {
        __builtin_prefetch(ahead + v * kLanes<T>);
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
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) sum[v] = first ? Vec<T>{} : load(sums + v * kLanes<T>);
#pragma GCC unroll 16
  for (int q = 0; q < kRows; ++q, b += ldb) {
    asm("" : "+r"(b));  // else GCC keeps a pointer to each row, more than the registers hold
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) sum[v] += x[q] * get(b + v * kLanes<T>);
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) store(sums + v * kLanes<T>, sum[v]);
}

/// One row of c by a row-major b, in place: kRows rows of b at once, each from one end to the other. Each sum
/// is that of a tile.
template <int kRows, int kVecs, class T>
void rows_to_row(int64_t n, int64_t kc, const T* a, int64_t a_k, const T* b, int64_t ldb, T* c, Finish<T> f) {
  constexpr int64_t kColumns = 16384 / int64_t{sizeof(T)};  // their sums stay in the first-level cache
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
    if (!large && n >= 32 * kLanes<T>) return rows_to_row<10, 16>(n, kc, a.data, a.col, b, ldb, c, f);
    done = multiply_wide<T, 1>(n, kc, a, b, ldb, c, 0, f);
    done += multiply_wide<T, 1, 16>(n - done, kc, a, b + done, ldb, c + done, 0, at_column(f, done));
  }
  rows_to_row<4, 8>(n - done, kc, a.data, a.col, b + done, ldb, c + done, at_column(f, done));
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
  const int64_t most = packed_columns<T>(block_columns<T>(n1 - n0)) + kShortPanel<T>;
  const bool packs = !a.packed && !is_read_in_place(a.plain, m, n1 - n0);
  const Scratch<T> strips_here(packs ? m * k : 0), panels_here(b.packed ? 0 : most * blocks.size(0));
  if (packs) pack_a(strips_here.get(), a.plain, m, k), a.packed = strips_here.get();
  for (int64_t j = n0, width; j < n1; j += width) {
    width = block_columns<T>(n1 - j);
    for (int64_t kb = 0; kb < blocks.count; ++kb) {
      const int64_t k0 = blocks.begin(kb), kc = blocks.size(kb);
      const Left<T> left{a.packed ? a.packed + k0 * m : nullptr,
                         a.packed ? Operand<T>{} : a.plain.from(0, k0), kc};
      if (!b.packed) pack_b(panels_here.get(), b.plain.from(k0, j), kc, width, 0, width);
      multiply_block(strips, width, left,
                     b.packed ? b.packed + k0 * packed_columns<T>(n) + j * kc : panels_here.get(), c + j,
                     c_row, at_column(of_block(finish, kb), j), relu && kb + 1 == blocks.count);
    }
  }
}

template <class T>
void multiply_direct(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
                     Finish<T> finish, bool relu) {
  if (k == 0) finish_empty(m, 0, n, c, c_row, finish);
  else if (b.col != 1) multiply_dots(m, n, k, a.data, a.row, b.data, b.col, c, c_row, finish);
  if (k == 0 || b.col != 1) {
    if (relu) positive_part(m, n, c, c_row);
    return;
  }
  const Parts blocks(k, kBlockK), chunks(m, kChunkRows);
  const bool packs = m > 1 && !is_read_in_place(a, m, n);
  const Scratch<T> strips_here(packs ? chunks.size(0) * blocks.size(0) : 0);
  const bool large = n * k * int64_t{sizeof(T)} > kWideBytes;
  for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
    const int64_t i = chunks.begin(chunk), rows = chunks.size(chunk);
    T* const to = c + i * c_row;
    for (int64_t kb = 0; kb < blocks.count; ++kb) {
      const int64_t k0 = blocks.begin(kb), kc = blocks.size(kb);
      const Finish<T> here = of_block(finish, kb);
      const Operand<T> left = a.from(i, k0);
      const T* const right = b.at(k0, 0);
      int64_t done = 0;
      if (m == 1) multiply_row(n, kc, left, right, b.row, to, here, large), done = n;
      if constexpr (kHasWide)
        if (m > 1 && m <= kWideRows) done = multiply_wide(m, n, kc, left, right, b.row, to, c_row, here);
      if (done == n) continue;
      if (packs) pack_a(strips_here.get(), left, rows, kc);
      multiply_panels(Parts(rows, kStripRows), n - done, Left<T>{strips_here.get(), left, kc}, right + done,
                      b.row, to + done, c_row, at_column(here, done));
    }
    if (relu) positive_part(rows, n, to, c_row);
  }
}

#define WEFT_INSTANTIATE(T)                                                                             \
  template void positive_part<T>(int64_t, int64_t, T*, int64_t);                                        \
  template void multiply<T>(int64_t, int64_t, int64_t, Side<T>, Side<T>, int64_t, int64_t, T*, int64_t, \
                            Finish<T>, bool);                                                           \
  template void multiply_direct<T>(int64_t, int64_t, int64_t, Operand<T>, Operand<T>, T*, int64_t,      \
                                   Finish<T>, bool);
WEFT_INSTANTIATE(float)
WEFT_INSTANTIATE(double)
#undef WEFT_INSTANTIATE

}  // namespace weft::kernels::WEFT_ISA_NS
