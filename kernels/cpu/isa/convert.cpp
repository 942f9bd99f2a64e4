// Conversion between all pairs of dtypes over contiguous memory (inner/convert.h). The half dtypes use the
// processor's conversion instructions if there are any.
#include <type_traits>

#include <weft/kernels/cpu/isa/elementwise.h>
#include <weft/kernels/inner/convert.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace weft::kernels::WEFT_ISA_NS {

namespace {

template <class From, class To> void convert_loop(const void* xv, void* yv, int64_t n) {
  const From* const x = static_cast<const From*>(xv);
  To* const y = static_cast<To*>(yv);
  int64_t i = 0;
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<From, Half> && std::is_same_v<To, float>) {
    for (; i + 16 <= n; i += 16)
      _mm512_storeu_ps(y + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i))));
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Half>) {
    for (; i + 16 <= n; i += 16)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i),
                          _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
#if defined(__F16C__)
  if constexpr (std::is_same_v<From, Half> && std::is_same_v<To, float>) {
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Half>) {
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
#pragma GCC ivdep
  for (; i < n; ++i) y[i] = convert<To>(x[i]);
}

struct ConvertTable {
  Convert at[kDTypeCount][kDTypeCount];
};

template <class From> constexpr void fill_row(Convert* row) {
  row[0] = convert_loop<From, bool>;
  row[1] = convert_loop<From, uint8_t>;
  row[2] = convert_loop<From, int32_t>;
  row[3] = convert_loop<From, int64_t>;
  row[4] = convert_loop<From, Half>;
  row[5] = convert_loop<From, BFloat16>;
  row[6] = convert_loop<From, float>;
  row[7] = convert_loop<From, double>;
}

constexpr ConvertTable table = [] {
  ConvertTable t{};
  fill_row<bool>(t.at[0]);
  fill_row<uint8_t>(t.at[1]);
  fill_row<int32_t>(t.at[2]);
  fill_row<int64_t>(t.at[3]);
  fill_row<Half>(t.at[4]);
  fill_row<BFloat16>(t.at[5]);
  fill_row<float>(t.at[6]);
  fill_row<double>(t.at[7]);
  return t;
}();

}  // namespace

Convert converter(DType from, DType to) { return table.at[static_cast<int>(from)][static_cast<int>(to)]; }

}  // namespace weft::kernels::WEFT_ISA_NS
