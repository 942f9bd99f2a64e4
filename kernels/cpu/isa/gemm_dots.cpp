// Matrix products by dot products, for few rows and a transposed b (gemm_tile.h). Several rows of a meet four
// columns of b at once. The sums over the lanes of the four are taken together.
#include <weft/kernels/cpu/isa/gemm_finish.h>
#include <weft/kernels/cpu/isa/quads.h>

#include <type_traits>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

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
  if constexpr (kDotsRows > 3) rows(std::integral_constant<int, 3>());
  if constexpr (kDotsRows > 2) rows(std::integral_constant<int, 2>());
  rows(std::integral_constant<int, 1>());
}

/// A single row of a, as in inference, where calls per four columns would take a third of the time.
template <class T>
[[gnu::flatten]] void dots_of_row(int64_t n, int64_t k, const T* a, const T* b, int64_t b_column, T* c,
                                  Finish<T> f) {
  int64_t j = 0;
  for (; j + 4 <= n; j += 4) dots<T, 1, 4>(k, a, 0, b + j * b_column, b_column, c + j, 0, at_column(f, j));
  for (; j < n; ++j) dots<T, 1, 1>(k, a, 0, b + j * b_column, b_column, c + j, 0, at_column(f, j));
}

}  // namespace

template <class T>
void multiply_dots(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_column,
                   T* c, int64_t c_row, Finish<T> f) {
  if (m == 1) return dots_of_row(n, k, a, b, b_column, c, f);
  int64_t j = 0;
  for (; j + 4 <= n; j += 4)
    dots_of_columns<T, 4>(m, k, a, a_row, b + j * b_column, b_column, c + j, c_row, at_column(f, j));
  for (; j < n; ++j)
    dots_of_columns<T, 1>(m, k, a, a_row, b + j * b_column, b_column, c + j, c_row, at_column(f, j));
}

#define WEFT_INSTANTIATE(T)                                                                           \
  template void multiply_dots<T>(int64_t, int64_t, int64_t, const T*, int64_t, const T*, int64_t, T*, \
                                 int64_t, Finish<T>);
WEFT_INSTANTIATE(float)
WEFT_INSTANTIATE(double)
#undef WEFT_INSTANTIATE

}  // namespace weft::kernels::WEFT_ISA_NS
