// Giving a tensor other data in place of its own: how a module moves to another device or dtype while handles held elsewhere follow.
#pragma once

#include <weft/tensor/tensor.h>

namespace weft {

/// `x` becomes what `value` is (storage, dtype, device); its grad() is dropped. Sizes must agree.
/// Throws: ShapeError; AutogradError when x is not a leaf.
WEFT_API void set_data(const Tensor& x, const Tensor& value);

}  // namespace weft
