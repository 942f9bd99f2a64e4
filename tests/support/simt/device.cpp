// Registration of the emulated GPUs as devices of the engine (device.h).
#include "support/simt/device.h"

#include <map>
#include <tuple>
#include <utility>

#include <weft/kernels/plugin/plugin.h>

#include "support/simt/thread.h"

namespace weft::cuda::simt {

namespace {
/// A device with the processors of the environment, also if a test has changed the settings.
CudaBackend* made(int index) {
  const Settings before = std::exchange(settings(), settings_of_environment());
  auto* const device = new CudaBackend(index);
  settings() = before;
  return device;
}
}  // namespace

CudaBackend& device(int index) {
  // tensors in static storage may outlive main
  static CudaBackend* const devices[] = {made(0), made(1)};
  return *devices[index];
}

CudaBackend& device_of(int processors) {
  static auto* const devices = new std::map<std::tuple<int, size_t, int>, CudaBackend*>;
  CudaBackend*& found = (*devices)[{processors, settings().shared_memory, settings().major}];
  if (!found) {
    const int before = std::exchange(settings().processors, processors);
    found = new CudaBackend(0);
    settings().processors = before;
  }
  return *found;
}

void install() {
  register_cuda_opener([](const char*, int index, char*, size_t) {
    const int count = runtime::device_count();
    if (index >= 0 && index < count) register_backend(Device(DeviceType::kCuda, index), &device(index));
    return count;
  });
}

}  // namespace weft::cuda::simt
