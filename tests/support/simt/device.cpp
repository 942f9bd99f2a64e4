#include "support/simt/device.h"

#include <weft/kernels/shared/plugin.h>

namespace weft::cuda::simt {

CudaBackend& device(int index) {
  static CudaBackend* const devices[] = {new CudaBackend(0), new CudaBackend(1)};  // tensors in static storage may outlive main
  return *devices[index];
}

void install() {
  register_cuda_opener([](const char*, int index, char*, size_t) {
    const int count = runtime::device_count();
    if (index >= 0 && index < count) register_backend(Device(DeviceType::kCuda, index), &device(index));
    return count;
  });
}

}  // namespace weft::cuda::simt
