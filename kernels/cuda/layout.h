// Layout: sizes and strides of several operands for a kernel. Dims of size 1 are dropped. The others are
// ordered by the strides of the first operand (the output) and merged if every operand allows it. Offsets are
// in elements. Passed to kernels by value.
#pragma once

#include <cstdint>

#include <weft/kernels/cuda/simt.h>
#include <weft/kernels/view.h>

namespace weft::cuda {

/// Division of numbers below 2^31 by a fixed divisor as a multiplication and a shift. Source: Granlund &
/// Montgomery 1994, "Division by invariant integers using multiplication", section 4.
struct Divider {
  uint32_t divisor = 1, factor = 1, shift = 0;

  Divider() = default;
  /// 1 <= d < 2^31.
  explicit Divider(int64_t d) : divisor(static_cast<uint32_t>(d)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
  }
  WEFT_DEVICE uint32_t quotient(uint32_t n) const {
    const auto high = static_cast<uint32_t>((uint64_t{n} * factor) >> 32);
    return (high + n) >> shift;
  }
};

/// Operands of equal sizes; operand 0 is the output. layout_of creates it.
template <int N> struct Layout {
  int ndim = 0;
  bool narrow = true;  ///< positions fit in 31 bits, so that dividers can be used
  int64_t numel = 1;
  int64_t size[kMaxDims] = {};
  int64_t stride[N][kMaxDims] = {};
  Divider divider[kMaxDims];

  /// Whether operand i is dense in the order of the loop (offset == linear position).
  bool dense(int i) const { return ndim == 0 || (ndim == 1 && stride[i][0] == 1); }
  bool dense() const {
    for (int i = 0; i < N; ++i)
      if (!dense(i)) return false;
    return true;
  }
  /// Updates the derived members after a change of sizes.
  void prepare() {
    numel = 1;
    for (int d = 0; d < ndim; ++d) numel *= size[d];
    narrow = numel < (int64_t{1} << 31);
    for (int d = 1; d < ndim && narrow && numel > 0; ++d) divider[d] = Divider(size[d]);
  }

  /// Offsets of linear position `at`, which is below numel.
  WEFT_DEVICE void locate(int64_t at, int64_t (&offset)[N]) const {
    if (ndim == 1) {
      for (int i = 0; i < N; ++i) offset[i] = at * stride[i][0];
      return;
    }
    for (int i = 0; i < N; ++i) offset[i] = 0;
    if (narrow) {
      auto rest = static_cast<uint32_t>(at);
      WEFT_ROLLED for (int d = ndim - 1; d > 0; --d) {
        const uint32_t q = divider[d].quotient(rest);
        const auto k = static_cast<int64_t>(rest - q * divider[d].divisor);
        rest = q;
        for (int i = 0; i < N; ++i) offset[i] += k * stride[i][d];
      }
      at = rest;
    } else {
      WEFT_ROLLED for (int d = ndim - 1; d > 0; --d) {
        const int64_t q = at / size[d], k = at - q * size[d];
        at = q;
        for (int i = 0; i < N; ++i) offset[i] += k * stride[i][d];
      }
    }
    if (ndim > 0)
      for (int i = 0; i < N; ++i) offset[i] += at * stride[i][0];
  }
};

/// The layout of N views of equal sizes. `sorted`: dims ordered by the output's strides, else as given
/// (row-major positions).
template <int N> Layout<N> layout_of(const View* const (&views)[N], bool sorted = true) {
  Layout<N> l;
  const View& lead = *views[0];
  int order[kMaxDims];
  int n = 0;
  for (int d = 0; d < lead.ndim(); ++d)
    if (lead.size(d) != 1) order[n++] = d;
  if (sorted)  // insertion sort, stable: the largest stride of the output first
    for (int i = 1; i < n; ++i)
      for (int k = i; k > 0 && lead.stride(order[k - 1]) < lead.stride(order[k]); --k) {
        const int t = order[k];
        order[k] = order[k - 1], order[k - 1] = t;
      }
  for (int i = 0; i < n; ++i) {
    const int d = order[i];
    bool merged = l.ndim > 0;
    for (int v = 0; v < N && merged; ++v)
      merged = l.stride[v][l.ndim - 1] == views[v]->stride(d) * lead.size(d);
    if (merged) {
      l.size[l.ndim - 1] *= lead.size(d);
    } else {
      l.size[l.ndim++] = lead.size(d);
    }
    for (int v = 0; v < N; ++v) l.stride[v][l.ndim - 1] = views[v]->stride(d);
  }
  l.prepare();
  return l;
}

/// Whether operand i is dense along another dim than the output. Then a warp that writes one run of memory
/// would read 32 runs. Only for sizes for which a copy in the output's order pays.
template <int N> bool reads_across(const Layout<N>& l, int i, int64_t least = 1 << 15) {
  const int last = l.ndim - 1;
  if (last < 1 || l.numel < least || l.stride[0][last] != 1 || l.stride[i][last] == 0 ||
      l.stride[i][last] == 1 || l.size[last] < 8)
    return false;
  for (int d = 0; d < last; ++d)
    if (l.stride[i][d] == 1 && l.size[d] >= 8) return true;
  return false;
}

/// Strides of a dense block with the dims in the order of v's.
inline Shape dense_strides(const View& v) {
  Shape strides(v.ndim(), 0);
  int64_t step = 1;
  for (int64_t bound = -1;;) {  // dims by growing stride, equal ones from the last to the first
    int64_t next = -1;
    for (const int64_t s : v.strides)
      if (s > bound && (next < 0 || s < next)) next = s;
    if (next < 0) return strides;
    for (int d = v.ndim() - 1; d >= 0; --d) {
      if (v.strides[d] != next) continue;
      strides[d] = step;
      step *= v.sizes[d];
    }
    bound = next;
  }
}

}  // namespace weft::cuda
