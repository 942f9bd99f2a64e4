// A CUDA library whose one device is the CPU; other devices make it throw.
#include <cstdio>

#include <weft/distributed/runtime/error.h>
#include <weft/kernels/plugin/abi_stamp.h>
#include <weft/kernels/plugin/plugin.h>

extern "C" WEFT_API int weft_cuda_open(const char* abi_stamp, int device, char* error, size_t size) {
  using namespace weft;
  if (weft::abi_stamp() != abi_stamp) {
    std::snprintf(error, size, "stamps differ");
    return -1;
  }
  if (device == 5) throw OutOfMemoryError(str("no memory for cuda:", device));
  if (device == 6) throw RemoteError("worker6", "ShapeError", "thrown in the library");
  if (device == 0) register_backend(Device(DeviceType::kCuda, 0), &backend(kCpu));
  return 2;
}
