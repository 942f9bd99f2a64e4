// The register-tile matrix product: packed panels of a and b, and a kernel that holds a tile of c in
// registers, kStripRows rows of kPanelVectors vectors.
//
// A panel of b is [k][kPanel]; the last ones have the vectors that their columns take. A strip of
// a is [k][rows]. Every element of c is summed over k in order inside blocks of kBlockK. So the tiling, the
// partition among threads and the number of rows never change the bits. Dot products, for few rows and a
// transposed b, sum each lane of a vector apart, in any place with the same bits.
#pragma once

#include <weft/kernels/cpu/isa/tasks.h>
#include <weft/kernels/cpu/isa/vec.h>

namespace weft::kernels::WEFT_ISA_NS {

#if defined(__AVX512F__)
inline constexpr int kStripRows = 12, kPanelVectors = 2;  // 24 of 32 registers hold the tile
inline constexpr int kDotsRows = 4;                       // 16 of 32 registers hold sums
#elif defined(__AVX2__)
inline constexpr int kStripRows = 4, kPanelVectors = 3;  // 12 of 16; fewer loads than 6 rows and 2 vectors
inline constexpr int kDotsRows = 3;                      // 12 of 16
#else
inline constexpr int kStripRows = 5, kPanelVectors = 2;  // 10 of 16; a product needs a register without FMA
inline constexpr int kDotsRows = 2;
#endif
// A block of b takes 384 KB of the second-level cache, and a strip of a at most 18 KB of the first level.
inline constexpr int64_t kBlockK = 384;
inline constexpr int64_t kBlockBytes = 1024;  // of a row of b
template <class T> inline constexpr int kPanel = kPanelVectors* kLanes<T>;
template <class T>
inline constexpr int64_t kBlockColumns = kBlockBytes / int64_t{sizeof(T)} / kPanel<T>* kPanel<T>;

/// An operand [rows, columns]: element (i, j) is data[i * row + j * col].
template <class T> struct Operand {
  const T* data = nullptr;
  int64_t row = 0, col = 1;
  const T* at(int64_t i, int64_t j) const { return data + i * row + j * col; }
  Operand from(int64_t i, int64_t j) const { return {at(i, j), row, col}; }
  Operand transposed() const { return {data, col, row}; }
};

/// Columns that n columns occupy when packed: full panels, and one or two vectors for the rest.
template <class T> constexpr int64_t packed_columns(int64_t n) {
  return (n + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

/// A last panel of one vector would wait for its sums, so the one before it gives it another. These are the
/// columns of such a panel at most; none with panels of two vectors.
template <class T> inline constexpr int64_t kShortPanel = kPanelVectors > 2 ? kLanes<T> : 0;
/// Panels of each part of b where tasks share its columns. A short panel and the last one are one part's.
template <class T> inline constexpr int64_t kLeastPanels = kShortPanel<T> > 0 ? 2 : 1;
/// Columns of the panel, or of the block of b, that begins where `rest` columns are left.
template <class T> constexpr int64_t panel_columns(int64_t rest) {
  if (rest <= kPanel<T>) return rest;
  return rest <= kPanel<T> + kShortPanel<T> ? kPanel<T> - kShortPanel<T> : kPanel<T>;
}
template <class T> constexpr int64_t block_columns(int64_t rest) {
  return rest <= kBlockColumns<T> + kShortPanel<T> ? rest : kBlockColumns<T>;
}

/// The last step of a tile: c = alpha * acc + beta * c + bias. With beta 0, c is not read; bias may be null.
template <class T> struct Finish {
  T alpha = 1, beta = 0;
  const T* bias = nullptr;  ///< of the tile's first column
};

/// dst[k * width + i] = src[i * stride_i + k * stride_k] for i < count, 0 for count <= i < width.
template <class T>
void pack(T* dst, int64_t width, int64_t count, const T* src, int64_t stride_i, int64_t stride_k, int64_t k);

/// Packs columns [n0, n1) of b [k, n], n0 a multiple of kPanel, to their place in `dst`, which holds
/// packed_columns(n) * k numbers. The order in `dst` is by blocks of kBlockK, and by panels inside a block.
template <class T> void pack_b(T* dst, Operand<T> b, int64_t k, int64_t n, int64_t n0, int64_t n1);

/// Whether tiles read a [m, k] without a pack, for n columns of b: its rows or columns are contiguous.
/// Columns at a distance of 4 KB would share one set of the caches. Few columns in a strip use little of each
/// line, so they are packed if many columns of b use the pack.
template <class T> bool is_read_in_place(const Operand<T>& a, int64_t m, int64_t n) {
  const bool dense = kStripRows * int64_t{sizeof(T)} >= 32 || m <= kStripRows || n <= 256;
  return a.col == 1 || (a.row == 1 && dense && a.col * int64_t{sizeof(T)} % 4096 != 0);
}

/// Packs all of a [m, k], m * k numbers, by blocks of kBlockK, and by strips inside a block.
template <class T> void pack_a(T* dst, Operand<T> a, int64_t m, int64_t k);

/// An operand of multiply(): packed whole, or null and its numbers. Blocks of b are packed on the way, and a
/// where is_read_in_place() is false.
template <class T> struct Side {
  const T* packed = nullptr;
  Operand<T> plain;
};

/// The positive part of c [m, n] in place; NaN stays.
template <class T> void positive_part(int64_t m, int64_t n, T* c, int64_t c_row);

/// c[m, n0..n1) = finish(a[m, k] b[k, n]) on the calling thread, n0 a multiple of kPanel. So is n1, and n has
/// kLeastPanels or more after it, unless n1 is n. Packs are those of pack_a and pack_b. `relu`: the positive
/// part of that, taken while a strip is in the cache.
template <class T>
void multiply(int64_t m, int64_t n, int64_t k, Side<T> a, Side<T> b, int64_t n0, int64_t n1, T* c,
              int64_t c_row, Finish<T> finish, bool relu = false);

/// The same of all columns, with b in place: row-major, or its transpose by multiply_dots.
template <class T>
void multiply_direct(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
                     Finish<T> finish, bool relu = false);

/// The same by dot products, without `relu`: rows of a and columns of b are contiguous.
template <class T>
void multiply_dots(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_column,
                   T* c, int64_t c_row, Finish<T> finish);

}  // namespace weft::kernels::WEFT_ISA_NS
