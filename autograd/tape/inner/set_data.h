// Replacing the data of a tensor. Module::to moves a module to another device or dtype this way. All handles
// to its parameters change with it.
#pragma once

#include <weft/tensor/tensor.h>

namespace weft {

/// Gives `x` the storage, dtype and device of `value`, or of a copy if that is not contiguous, and clears its
/// grad(). Views of x and results of detach() keep the old data. A parameter marked concurrent stays marked.
/// Throws: ShapeError for different sizes, AutogradError unless x is a leaf.
WEFT_API void set_data(const Tensor& x, const Tensor& value);

}  // namespace weft
