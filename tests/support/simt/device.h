// The emulated GPU as a device of the engine: "cuda:0" and "cuda:1" are CudaBackend objects over the host runtime.
#pragma once

#include <weft/kernels/cuda/cuda_backend.h>

namespace weft::cuda::simt {

/// From here on backend() finds the emulated devices; doing it again changes nothing.
void install();
CudaBackend& device(int index = 0);
/// A device of its own with that many processors, and the shared memory of the settings: launches have other grids, results must not differ.
CudaBackend& device_of(int processors);

}  // namespace weft::cuda::simt
