// Prefix sums over the threads of a warp and of a block, for cumulate, nonzero, sort and multinomial. The
// order of the additions depends on positions only, so floating results have the same bits in every run.
#pragma once

#include <cstdint>

#include <weft/kernels/cuda/simt.h>

namespace weft::cuda {

struct Plus {
  template <class T> WEFT_DEVICE T operator()(T a, T b) const { return a + b; }
};

/// op over the values of this lane and all lanes before it. T has 4 or 8 bytes; op(earlier, later) is
/// associative.
template <class T, class Op> WEFT_DEVICE T warp_scan(Thread t, T v, Op op) {
  for (int by = 1; by < kWarp; by *= 2) {
    const T earlier = t.shuffle_up(v, by);
    if (t.lane() >= by) v = op(earlier, v);
  }
  return v;
}

template <class T> struct Scanned {
  T before;  ///< of all threads before this one
  T total;   ///< of all threads of the block
};

/// Shared memory for block_scan, in values of T.
inline constexpr int kScanRoom = kWarp;

/// The same over a block, without the thread's value. After the call `room` may be reused, and all earlier
/// writes to shared memory are visible.
template <class T, class Op> WEFT_DEVICE Scanned<T> block_scan(Thread t, T v, T identity, Op op, T* room) {
  const int warps = t.count() / kWarp;
  const T inclusive = warp_scan(t, v, op);
  T before = t.shuffle_up(inclusive, 1);
  if (t.lane() == 0) before = identity;
  if (t.lane() == kWarp - 1) room[t.warp()] = inclusive;
  t.sync();
  if (t.warp() == 0) {
    const T of_warp = t.lane() < warps ? room[t.lane()] : identity;
    room[t.lane()] = warp_scan(t, of_warp, op);
  }
  t.sync();
  const T total = room[warps - 1];
  if (t.warp() > 0) before = op(room[t.warp() - 1], before);
  t.sync();
  return {before, total};
}

}  // namespace weft::cuda
