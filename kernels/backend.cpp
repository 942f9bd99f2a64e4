// The registry of backends: the CPU's is always there, a CUDA library registers its devices when it is opened.
#include <weft/kernels/backend.h>

#include <array>
#include <atomic>
#include <string>

#include <weft/kernels/cpu/cpu_backend.h>

namespace weft {

namespace {
constexpr int kMaxCuda = 128;
std::array<std::atomic<Backend*>, kMaxCuda>& cuda_backends() {
  static std::array<std::atomic<Backend*>, kMaxCuda> table{};
  return table;
}
}  // namespace

Shape Backend::rnn_reserve(Context&, const RnnLayer& layer, const RnnInputs& in) {
  return {in.x.size(0), in.x.size(1), layer.reserve_width() * in.w_hh.size(1)};
}

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
}

}  // namespace weft
