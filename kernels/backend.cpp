// The registry of backends: the CPU's is always there, a CUDA library registers its devices when it is opened.
#include <weft/kernels/backend.h>

#include <array>
#include <atomic>
#include <string>

#include <weft/kernels/accelerator.h>
#include <weft/kernels/cpu/cpu_backend.h>

namespace weft {

namespace {
constexpr int kMaxCuda = 128;
std::array<std::atomic<Backend*>, kMaxCuda>& cuda_backends() {
  static std::array<std::atomic<Backend*>, kMaxCuda> table{};
  return table;
}
/// Those of the table that are accelerators, and 1 + the highest index among them.
std::array<std::atomic<Accelerator*>, kMaxCuda> accelerators{};
std::atomic<int> accelerator_count{0};
}  // namespace

Backend& backend(Device device) {
  if (device.is_cpu()) return kernels::cpu_backend();
  if (device.index < 0) throw DeviceError(str("backend: no device ", device));
  if (Backend* found = cuda_backends()[static_cast<size_t>(device.index)].load(std::memory_order_acquire)) return *found;
  throw DeviceError(str("backend: ", device, " is not available: no CUDA backend library has been opened in this program"));
}

void register_backend(Device device, Backend* object) {
  if (device.is_cpu()) throw DeviceError("register_backend: the CPU backend is built in");
  if (device.index < 0) throw DeviceError(str("register_backend: no device ", device));
  cuda_backends()[static_cast<size_t>(device.index)].store(object, std::memory_order_release);
  auto* const found = dynamic_cast<Accelerator*>(object);
  accelerators[static_cast<size_t>(device.index)].store(found, std::memory_order_release);
  int count = accelerator_count.load();
  while (found && count <= device.index && !accelerator_count.compare_exchange_weak(count, device.index + 1)) {
  }
}

int open_accelerators() noexcept { return accelerator_count.load(std::memory_order_acquire); }
Accelerator* open_accelerator(int index) noexcept {
  return index < 0 || index >= open_accelerators() ? nullptr : accelerators[static_cast<size_t>(index)].load(std::memory_order_acquire);
}

}  // namespace weft
