// The emulated GPU as a device of the engine: "cuda:0" and "cuda:1" are CudaBackend objects over the host runtime.
#pragma once

#include <weft/kernels/cuda/cuda_backend.h>

namespace weft::cuda::simt {

/// From here on backend() finds the emulated devices; doing it again changes nothing.
void install();
CudaBackend& device(int index = 0);

}  // namespace weft::cuda::simt
