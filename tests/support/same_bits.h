// Comparison of tensors bit by bit.
#pragma once

#include <cstring>

#include <weft/tensor/tensor.h>

namespace weft::test {

/// Whether both are undefined, or have the same dtype, sizes and bits.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  const Tensor x = a.contiguous(), y = b.contiguous();
  return x.dtype() == y.dtype() && x.sizes() == y.sizes() &&
         (x.numel() == 0 ||
          std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) == 0);
}

}  // namespace weft::test
