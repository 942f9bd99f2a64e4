// Packing for the register tiles of the matrix product (gemm_tile.h). Operands that are contiguous along k
// are transposed four k at a time.
#include <weft/kernels/cpu/isa/gemm_tile.h>

#include <weft/kernels/cpu/isa/quads.h>

#include <type_traits>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

/// Most quads of a vector; a transpose stays within quads only for float.
template <class T>
inline constexpr int kMostQuads = sizeof(T) == sizeof(float) ? kVecBytes / (4 * static_cast<int>(sizeof(T)))
                                                             : 1;

/// v = four numbers of each fourth row of src, side by side. The last row is at `last`.
template <class T, int kQuads>
WEFT_INLINE void join([[maybe_unused]] const T* src, [[maybe_unused]] int64_t stride_i, const T* last,
                      Wide<T, kQuads>& v) {
#if defined(__AVX512F__)
  if constexpr (kQuads > 2) {
    v = _mm512_insertf32x4(_mm512_castps128_ps512(_mm_loadu_ps(src)), _mm_loadu_ps(src + 4 * stride_i), 1);
    if constexpr (kQuads == 4) v = _mm512_insertf32x4(v, _mm_loadu_ps(src + 8 * stride_i), 2);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(last), kQuads - 1);
    return;
  }
#endif
#if defined(__AVX2__)
  if constexpr (kQuads == 2) {
    v = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(src)), _mm_loadu_ps(last), 1);
    return;
  }
#endif
  if constexpr (kQuads == 1) __builtin_memcpy(&v, last, sizeof v);
}

/// pack() of kQuads times four rows that are contiguous along k. The last four begin at `last`, and may
/// overlap the ones before. Four consecutive k of all rows are transposed at once.
template <class T, int kQuads>
void transpose(T* dst, int64_t width, int64_t last, const T* src, int64_t stride_i, int64_t k) {
  constexpr int64_t kLine = 64 / int64_t{sizeof(T)};
  constexpr size_t kQuad = 4 * sizeof(T);
  const int64_t rows = last + 4, steps = k / 4 * 4;
  const bool whole = rows == 4 * kQuads && kQuads != 3;
  for (int64_t p = 0; p < steps; p += 4) {
    if (p % kLine == 0)
      for (int64_t i = rows; i < 2 * rows; ++i)
        __builtin_prefetch(src + i * stride_i + p);  // of the next strip
    const T* from = src + p;
    asm("" : "+r"(from));  // else GCC keeps a pointer to each row, more than the registers hold
    Wide<T, kQuads> r[4], low01, high01, low23, high23, c[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q)
      join<T, kQuads>(from + q * stride_i, stride_i, from + (last + q) * stride_i, r[q]);
    pick<0, 4, 1, 5>(r[0], r[1], low01), pick<2, 6, 3, 7>(r[0], r[1], high01);
    pick<0, 4, 1, 5>(r[2], r[3], low23), pick<2, 6, 3, 7>(r[2], r[3], high23);
    pick<0, 1, 4, 5>(low01, low23, c[0]), pick<2, 3, 6, 7>(low01, low23, c[1]);
    pick<0, 1, 4, 5>(high01, high23, c[2]), pick<2, 3, 6, 7>(high01, high23, c[3]);
    T* const to = dst + p * width;
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      T* const column = to + q * width;
      if (whole) {
        __builtin_memcpy(column, &c[q], sizeof c[q]);
      } else {
        const auto* const quads = reinterpret_cast<const char*>(&c[q]);
        if constexpr (kQuads > 2) __builtin_memcpy(column, quads, 2 * kQuad);
        if constexpr (kQuads == 2) __builtin_memcpy(column, quads, kQuad);
        if constexpr (kQuads == 4) __builtin_memcpy(column + 8, quads + 2 * kQuad, kQuad);
        __builtin_memcpy(column + last, quads + (kQuads - 1) * kQuad, kQuad);
      }
    }
  }
  for (int64_t p = steps; p < k; ++p)
    for (int64_t i = 0; i < rows; ++i) dst[p * width + i] = src[i * stride_i + p];
}

/// pack() of `count` rows that are contiguous along k, at least four.
template <class T>
void pack_rows(T* dst, int64_t width, int64_t count, const T* src, int64_t stride_i, int64_t k) {
  constexpr int kMost = kMostQuads<T>;
  for (int64_t i = 0; i < count;) {
    const int64_t rest = count - i, rows = rest < 4 ? 4 : rest < 4 * kMost ? rest : 4 * kMost;
    if (rest < 4) i = count - 4;
    const auto by = [&](auto quads) {
      if ((rows + 3) / 4 == quads)
        transpose<T, quads>(dst + i, width, rows - 4, src + i * stride_i, stride_i, k);
    };
    by(std::integral_constant<int, 1>());
    if constexpr (kMost > 1) by(std::integral_constant<int, 2>());
    if constexpr (kMost > 2) by(std::integral_constant<int, 3>()), by(std::integral_constant<int, 4>());
    i += rows;
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
  if (stride_k == 1 && count >= 4) {
    pack_rows(dst, width, count, src, stride_i, k);
  } else {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t p = 0; p < k; ++p) dst[p * width + i] = src[i * stride_i + p * stride_k];
  }
  for (int64_t i = count; i < width; ++i)
    for (int64_t p = 0; p < k; ++p) dst[p * width + i] = 0;
}

namespace {

/// Packs kc rows of n columns of b by panels.
template <class T> void pack_panels(T* dst, Operand<T> b, int64_t kc, int64_t n) {
  for (int64_t j = 0, count; j < n; j += count) {
    count = panel_columns<T>(n - j);
    pack(dst + j * kc, packed_columns<T>(count), count, b.at(0, j), b.col, b.row, kc);
  }
}

/// Copies numbers that lie side by side. Masked stores take longer than whole ones of which two overlap.
template <class T> WEFT_INLINE void copy_few(T* to, const T* from, int64_t count) {
  constexpr int64_t kQuad = 16 / int64_t{sizeof(T)};
  if (count < kQuad) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  for (int64_t i = 0; i + kQuad <= count; i += kQuad) __builtin_memcpy(to + i, from + i, 16);
  __builtin_memcpy(to + count - kQuad, from + count - kQuad, 16);
}

/// Packs kc columns of a by strips. Where columns are contiguous, several strips read each column in turn. So
/// a page is used for the rows of more than one strip.
template <class T> void pack_strips(T* dst, Operand<T> a, const Parts& strips, int64_t kc) {
  constexpr int64_t kTogether = 16, kFetchColumns = 16;
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
        __builtin_prefetch(a.at(i, p + kFetchColumns) + rows - 1);
        copy_few(dst + i * kc + p * rows, a.at(i, p), rows);
        i += rows;
      }
    }
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

#define WEFT_INSTANTIATE(T)                                                         \
  template void pack<T>(T*, int64_t, int64_t, const T*, int64_t, int64_t, int64_t); \
  template void pack_b<T>(T*, Operand<T>, int64_t, int64_t, int64_t, int64_t);      \
  template void pack_a<T>(T*, Operand<T>, int64_t, int64_t);
WEFT_INSTANTIATE(float)
WEFT_INSTANTIATE(double)
#undef WEFT_INSTANTIATE

}  // namespace weft::kernels::WEFT_ISA_NS
