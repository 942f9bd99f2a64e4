// The emulated GPU as a device of the engine: "cuda:0" and "cuda:1" are CudaBackend objects over
// the host runtime.
#pragma once

#include <weft/kernels/cuda/host/cuda_backend.h>

namespace weft::cuda::simt {

/// Registers the emulated devices with backend(); a repeated call changes nothing.
void install();
CudaBackend& device(int index = 0);
/// Makes a separate device with that many processors and the shared memory of the settings. Its launches have
/// other grids; results must not differ.
CudaBackend& device_of(int processors);

}  // namespace weft::cuda::simt
