// Reduction of one value per thread to one per group of lanes or per block, with the same bits on every
// thread. Lanes exchange values by shuffles, warps through shared memory. The tree is fixed, so a result
// depends only on the values. The lower lane is the left operand, unless the caller says that the order does
// not matter. Then no lane has to choose, which would make both choices run for every step.
#pragma once

#include <cstring>
#include <type_traits>

#include <weft/kernels/cuda/simt.h>

namespace weft::cuda {

/// The value of the lane whose number differs in the bit `mask`; T is any trivial type of whole words.
template <class T> WEFT_DEVICE T other_lane(Thread t, const T& v, int mask) {
  if constexpr (std::is_arithmetic_v<T>) {
    return t.shuffle_xor(v, mask);
  } else {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint32_t) == 0);
    uint32_t words[sizeof(T) / sizeof(uint32_t)];
    std::memcpy(words, &v, sizeof v);
    for (uint32_t& w : words) w = t.shuffle_xor(w, mask);
    T result;
    std::memcpy(&result, words, sizeof result);
    return result;
  }
}

/// Whether combine(a, b) has the bits of combine(b, a).
enum class Operands { kInOrder, kInAnyOrder };
using enum Operands;

/// Reduces v over each group of `width` neighbouring lanes (a power of two). Reached by the whole warp.
template <Operands order = kInOrder, class T, class Combine>
WEFT_DEVICE T fold_lanes(Thread t, T v, int width, const Combine& combine) {
  for (int mask = 1; mask < width; mask *= 2) {
    const T other = other_lane(t, v, mask);
    if constexpr (order == kInAnyOrder) v = combine(v, other);
    else v = (t.lane() & mask) ? combine(other, v) : combine(v, other);
  }
  return v;
}

/// Shared memory that fold_block needs for values of type T.
template <class T> constexpr size_t fold_bytes() { return kWarp * sizeof(T); }

/// Reduces v over a block of 32 * 2^k threads. Reached by the whole block. `scratch` has fold_bytes<T>()
/// bytes and may be reused afterwards.
template <Operands order = kInOrder, class T, class Combine>
WEFT_DEVICE T fold_block(Thread t, T v, void* scratch, const Combine& combine) {
  v = fold_lanes<order>(t, v, kWarp, combine);
  const int warps = t.count() / kWarp;
  if (warps == 1) return v;
  T* const each = static_cast<T*>(scratch);
  if (t.lane() == 0) each[t.warp()] = v;
  t.sync();
  v = fold_lanes<order>(t, T(each[t.lane() & (warps - 1)]), warps, combine);
  t.sync();
  return v;
}

}  // namespace weft::cuda
