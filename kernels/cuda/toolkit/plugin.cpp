// The entry point of the CUDA library (kernels/plugin/plugin.h). The backend of a device is created at the
// first request, since it needs a context on the device, and is never destroyed.
#include <weft/kernels/plugin/abi_stamp.h>
#include <weft/kernels/plugin/plugin.h>

#include <array>
#include <cstdio>

#include <weft/kernels/cuda/host/cuda_backend.h>

extern "C" WEFT_API int weft_cuda_open(const char* abi_stamp, int device, char* error, size_t error_size) {
  using namespace weft;
  const std::string own = weft::abi_stamp();
  if (own != abi_stamp) {
    std::snprintf(error, error_size,
                  "core was built as [%s], the CUDA library as [%s]; install both from one build", abi_stamp,
                  own.c_str());
    return -1;
  }
  const int count = cuda::runtime::device_count();
  static std::array<cuda::CudaBackend*, 128> backends{};  // the caller serialises calls
  if (device >= 0 && device < count && device < static_cast<int>(backends.size())) {
    auto& slot = backends[static_cast<size_t>(device)];
    if (!slot) slot = new cuda::CudaBackend(device);
    register_backend(Device(DeviceType::kCuda, device), slot);
  }
  return count;
}

namespace {
const bool registered = (weft::register_cuda_opener(weft_cuda_open), true);
}
