// The copy kernel between different dtypes.
#pragma once

#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/layout.h>

namespace weft::cuda {

/// y = x, converted; `layout` is the non-empty layout of {y, x}.
void convert_elements(CudaBackend& backend, void* stream, const Layout<2>& layout, const View& x,
                      const View& y);

}  // namespace weft::cuda
