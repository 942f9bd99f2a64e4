// Stable sorting of (key, position) pairs on the device. add_rows and scatter group equal indices with it;
// sort uses it for long rows.
#pragma once

#include <bit>
#include <cstdint>

#include <weft/kernels/cuda/host/cuda_backend.h>

namespace weft::cuda {

template <class K> struct Pairs {
  K* keys;
  int32_t* at;
};

/// Sorts each of `rows` rows of n keys, n < 2^31, by the low `bits` bits; higher bits must be 0. The sort is
/// stable. In the result, at[i] is the previous position of key i in its row; `from.at` need not be set. Both
/// buffers have room for rows * n; the returned one has the result.
Pairs<uint32_t> sort_pairs(CudaBackend& backend, Context& c, Pairs<uint32_t> from, Pairs<uint32_t> spare,
                           int64_t rows, int64_t n, int bits);
Pairs<uint64_t> sort_pairs(CudaBackend& backend, Context& c, Pairs<uint64_t> from, Pairs<uint64_t> spare,
                           int64_t rows, int64_t n, int bits);

/// Two buffers for `count` pairs, as one piece of scratch memory.
template <class K> class PairRoom {
 public:
  PairRoom(CudaBackend& backend, const Context& c, int64_t count)
      : count_(count),
        keys_(backend, c, 2 * static_cast<size_t>(count) * sizeof(K)),
        at_(backend, c, 2 * static_cast<size_t>(count) * sizeof(int32_t)) {}
  Pairs<K> first() const { return {keys_.as<K>(), at_.as<int32_t>()}; }
  Pairs<K> second() const { return {keys_.as<K>() + count_, at_.as<int32_t>() + count_}; }

 private:
  int64_t count_;
  Scratch keys_, at_;
};

/// The lanes of the warp with the same digit (below 256) as this one, as bits; 0 for a lane without a digit.
WEFT_DEVICE inline uint32_t peers_of(Thread t, bool valid, uint32_t digit) {
  uint32_t peers = t.ballot(valid);
  for (int b = 0; b < 8; ++b) {
    const bool set = (digit >> b & 1) != 0;
    const uint32_t same = t.ballot(set);
    peers &= set ? same : ~same;
  }
  return valid ? peers : 0;
}
/// The first of some lanes, given as bits. Compilers for devices take std::popcount, and read
/// std::countr_zero without a word as 32.
WEFT_DEVICE inline int first_lane(uint32_t lanes) { return std::popcount((lanes & (0 - lanes)) - 1); }
/// The bits of the lanes before this one.
WEFT_DEVICE inline uint32_t lanes_before(Thread t) { return (1u << t.lane()) - 1; }

}  // namespace weft::cuda
