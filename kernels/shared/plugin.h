// How a CUDA library joins core. It brings one function, `weft_cuda_open`, and registers it: linked into the program by a constructor, or found by
// name in the library that core opened (kernels/shared/cuda_loader.cpp). Both sides compare a stamp (abi_stamp.h) before anything else is exchanged, so that a
// library of another build is refused with a text instead of crashing.
#pragma once

#include <cstddef>

#include <weft/kernels/error.h>

namespace weft {

/// Compares the stamps, registers the backend of `device` unless that is negative, and returns the number of devices. Returns -1 with a text in
/// `error` when the stamps differ. Throws: DeviceError that says which of driver and device is missing.
using CudaOpener = int(const char* abi_stamp, int device, char* error, size_t error_size);

WEFT_API void register_cuda_opener(CudaOpener* opener);

}  // namespace weft
