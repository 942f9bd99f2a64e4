// The check of an argument's dtype that layers with parameters share. Its error names the layer.
#pragma once

#include <weft/autograd/tape/grad_mode.h>
#include <weft/tensor/inner/launch.h>

namespace weft::nn {

/// Throws: ValueError if x is undefined; DTypeError unless x has the dtype of `like`. Under an Autocast
/// float32 and half dtypes mix.
inline void check_type_of_x(const char* layer, const char* name, const Tensor& x, const char* name_of_like,
                            const Tensor& like) {
  if (!x.defined()) launch::throw_undefined(layer, name);
  const auto narrow = [](DType t) { return is_floating(t) && t != kFloat64; };
  if (x.dtype() == like.dtype() ||
      (autograd_state().autocast != kFloat32 && narrow(x.dtype()) && narrow(like.dtype())))
    return;
  throw DTypeError(str(layer, ": ", name, " is ", x.dtype(), ", ", name_of_like, " is ", like.dtype(),
                       "; convert one of them with to()"));
}

}  // namespace weft::nn
