// The copy between unequal dtypes.
#pragma once

#include <weft/kernels/cuda/cuda_backend.h>
#include <weft/kernels/cuda/layout.h>

namespace weft::cuda {

/// y = x, converted; `layout` is that of {y, x}, not empty.
void convert_elements(CudaBackend& backend, void* stream, const Layout<2>& layout, const View& x,
                      const View& y);

}  // namespace weft::cuda
