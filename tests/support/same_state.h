// The comparison of named tensors, such as the state of an optimizer.
#pragma once

#include <weft/tensor/io/safetensors.h>

#include "support/golden.h"

namespace weft::testing {

/// True if both have the same names in one order, with the same dtypes, sizes and bits.
inline bool same_state(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].first != b[i].first || !same_bits(a[i].second, b[i].second)) return false;
  return true;
}

}  // namespace weft::testing
