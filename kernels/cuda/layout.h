// Where the elements of strided operands lie: dims of size 1 dropped, dims merged where every operand allows it, ordered by the first operand's
// strides (the output's). Offsets are in elements. Passed to kernels by value.
#pragma once

#include <cstdint>

#include <weft/kernels/cuda/simt.h>
#include <weft/kernels/view.h>

namespace weft::cuda {

/// Operand 0 leads. Sizes of all operands are equal.
template <int N>
struct Layout {
  int ndim = 0;
  int64_t numel = 1;
  int64_t size[kMaxDims] = {};
  int64_t stride[N][kMaxDims] = {};

  /// Whether operand i is dense in the order of the loop (offset == linear position).
  bool dense(int i) const { return ndim == 0 || (ndim == 1 && stride[i][0] == 1); }
  bool dense() const {
    for (int i = 0; i < N; ++i)
      if (!dense(i)) return false;
    return true;
  }

  WEFT_DEVICE void locate(int64_t at, int64_t (&offset)[N]) const {
    for (int i = 0; i < N; ++i) offset[i] = 0;
    for (int d = ndim - 1; d >= 0; --d) {
      int64_t k = at;
      if (d > 0) {
        if (at <= 0x7FFFFFFF && size[d] <= 0x7FFFFFFF) {  // 64-bit division is slow
          const auto a = static_cast<uint32_t>(at), s = static_cast<uint32_t>(size[d]);
          at = a / s;
          k = a - static_cast<uint32_t>(at) * s;
        } else {
          const int64_t q = at / size[d];
          k = at - q * size[d];
          at = q;
        }
      }
      for (int i = 0; i < N; ++i) offset[i] += k * stride[i][d];
    }
  }
};

/// The loop over N views of equal sizes; `sorted`: dims ordered by the output's strides, else as they are (row-major positions).
template <int N>
Layout<N> layout_of(const View* const (&views)[N], bool sorted = true) {
  Layout<N> l;
  const View& lead = *views[0];
  int order[kMaxDims];
  int n = 0;
  for (int d = 0; d < lead.ndim(); ++d) {
    l.numel *= lead.size(d);
    if (lead.size(d) != 1) order[n++] = d;
  }
  if (sorted)  // insertion sort, stable: the largest stride of the output first
    for (int i = 1; i < n; ++i)
      for (int k = i; k > 0 && lead.stride(order[k - 1]) < lead.stride(order[k]); --k) {
        const int t = order[k];
        order[k] = order[k - 1], order[k - 1] = t;
      }
  for (int i = 0; i < n; ++i) {
    const int d = order[i];
    bool merged = l.ndim > 0;
    for (int v = 0; v < N && merged; ++v) merged = l.stride[v][l.ndim - 1] == views[v]->stride(d) * lead.size(d);
    if (merged) {
      l.size[l.ndim - 1] *= lead.size(d);
    } else {
      l.size[l.ndim++] = lead.size(d);
    }
    for (int v = 0; v < N; ++v) l.stride[v][l.ndim - 1] = views[v]->stride(d);
  }
  return l;
}

}  // namespace weft::cuda
