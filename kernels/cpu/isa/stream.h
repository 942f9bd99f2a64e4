// Stores of large outputs past the caches. A usual store reads the cache line first, and an output larger
// than the last-level cache pushes out all else.
#pragma once

#include <cstddef>
#include <cstdint>

#include <weft/kernels/cpu/isa/vec.h>
#include <weft/kernels/cpu/limits.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace weft::kernels::WEFT_ISA_NS {

inline constexpr int64_t kStreamBlock = 4096;  ///< bytes: small enough to stay in the first-level cache

/// True for outputs to write past the caches; `bytes` is the whole size of one.
inline bool streams(int64_t bytes) {
#if defined(__SSE2__)
  static const int64_t cache = cache_bytes();
  return bytes >= cache;
#else
  return false;
#endif
}

/// Elements until `to` is at the begin of a cache line; -1 if none of them is.
inline int64_t elements_to_line(const void* to, int64_t width) {
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) & 63);
  return past % width == 0 ? (64 - past) % 64 / width : -1;
}

/// Writes a block of memory to aligned memory, both at the begin of a cache line.
inline void stream_block(void* to, const void* block) {
#if defined(__AVX2__)
  for (int64_t i = 0; i < kStreamBlock / 32; ++i)
    _mm256_stream_si256(static_cast<__m256i*>(to) + i,
                        _mm256_load_si256(static_cast<const __m256i*>(block) + i));
#elif defined(__SSE2__)
  for (int64_t i = 0; i < kStreamBlock / 16; ++i)
    _mm_stream_si128(static_cast<__m128i*>(to) + i, _mm_load_si128(static_cast<const __m128i*>(block) + i));
#else
  __builtin_memcpy(to, block, kStreamBlock);
#endif
}

/// Orders streamed stores before the next stores of this thread. Other threads may then read them.
inline void finish_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

/// Calls f(out, first, count) for all of [0, n). f computes elements into `out`: memory of the output, or a
/// block that is then streamed there.
template <class F> void run_streamed(void* output, int64_t width, int64_t n, F&& f) {
  alignas(64) char block[kStreamBlock];
  const int64_t head = elements_to_line(output, width), step = kStreamBlock / width;
  int64_t done = head < 0 || head > n ? n : head;
  if (done > 0) f(output, int64_t{0}, done);
  for (; done + step <= n; done += step) {
    f(static_cast<void*>(block), done, step);
    stream_block(static_cast<char*>(output) + done * width, block);
  }
  if (done < n) f(static_cast<void*>(static_cast<char*>(output) + done * width), done, n - done);
  finish_stream();
}

}  // namespace weft::kernels::WEFT_ISA_NS
