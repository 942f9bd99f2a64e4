// The interface between the core library and a CUDA library, which provides one function, `weft_cuda_open`.
// If it is linked into the program, a constructor registers the function; otherwise core opens the library
// and finds it by name (kernels/plugin/cuda_loader.cpp). Both sides first compare a stamp (abi_stamp.h), so a
// library of another build is refused with a message.
#pragma once

#include <cstddef>

#include <weft/kernels/error.h>

namespace weft {

/// Compares the stamps, registers the backend of `device` unless that is negative, and returns the number of
/// devices. Returns -1 with a message in `error` if the stamps differ.
/// Throws: DeviceError that names the missing driver or device.
using CudaOpener = int(const char* abi_stamp, int device, char* error, size_t error_size);

WEFT_API void register_cuda_opener(CudaOpener* opener);

}  // namespace weft
