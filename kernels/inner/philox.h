// Philox4x32-10: a block of four 32-bit numbers from a counter and a key, without state. Source: Salmon et
// al. 2011, "Parallel random numbers: as easy as 1, 2, 3". Block b under seed s has counter (low b, high b,
// 0, 0) and key (low s, high s). PhiloxKey (backend.h) defines the lane of each element of a tensor.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define WEFT_PHILOX_HD __host__ __device__
#else
#define WEFT_PHILOX_HD
#endif

namespace weft {

struct PhiloxBlock {
  uint32_t v[4];
};

WEFT_PHILOX_HD constexpr PhiloxBlock philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0,
                                            uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0,
                   n2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(b), c3 = static_cast<uint32_t>(a), c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

WEFT_PHILOX_HD constexpr PhiloxBlock philox(uint64_t seed, uint64_t block) {
  return philox(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0,
                static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

/// [0, 1) from the top 24 bits.
WEFT_PHILOX_HD constexpr float unit_float(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }
/// [0, 1) from the top 53 bits of two lanes, the first being the high one.
WEFT_PHILOX_HD constexpr double unit_double(uint32_t high, uint32_t low) {
  return static_cast<double>(((uint64_t{high} << 32) | low) >> 11) * 0x1p-53;
}

}  // namespace weft
