// The registry of backends. The CPU's backend is always registered; a CUDA device's backend is registered at
// the first request. A failure is not remembered: the next call tries again, at the cost of a few file
// lookups or one driver call.
#include <weft/kernels/backend.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include <weft/kernels/accelerator.h>
#include <weft/kernels/cpu/cpu_backend.h>
#include <weft/kernels/inner/replaced_backend.h>
#include <weft/kernels/plugin/abi_stamp.h>
#include <weft/kernels/plugin/plugin.h>

namespace weft {

namespace {
constexpr int kMaxCuda = 128;
std::array<std::atomic<Backend*>, kMaxCuda>& cuda_backends() {
  static std::array<std::atomic<Backend*>, kMaxCuda> table{};
  return table;
}
/// The accelerators among the registered backends, and 1 + their highest index.
std::array<std::atomic<Accelerator*>, kMaxCuda> accelerators{};
std::atomic<int> accelerator_count{0};
std::atomic<CudaOpener*>& cuda_opener() {
  static std::atomic<CudaOpener*> opener{nullptr};
  return opener;
}
std::mutex& opening() {
  static std::mutex mutex;
  return mutex;
}

/// Registers the device's backend unless `device` is negative. Returns the number of devices. Throws:
/// DeviceError.
int open_cuda(int device) {
  const std::lock_guard lock(opening());
  CudaOpener* const open = cuda_opener().load(std::memory_order_acquire);
  if (!open)
    throw DeviceError(
        "cuda: the CUDA library is missing: this program was linked without weft::cuda. Link it "
        "(target_link_libraries(... weft::cuda), from a weft configured "
        "with WEFT_CUDA=ON), or use the device cpu");
  char error[2048] = "";
  const int count = open(abi_stamp().c_str(), device, error, sizeof error);
  if (count < 0) throw DeviceError(str("cuda: the CUDA library does not fit this program: ", error));
  return count;
}
}  // namespace

void Backend::matmul_gelu(Context& context, View a, View b, View bias, View before, View c) {
  const View& to = before.defined() ? before : c;
  matmul(context, 1, a, b, 0, bias, to);
  unary(context, Unary::kGeluTanh, 0, 0, to, c);
}
void Backend::matmul_gelu_grad(Context& context, View a, View b, View before, View c) {
  matmul(context, 1, a, b, 0, {}, c);
  binary(context, Binary::kGeluTanhGrad, 1, 0, c, before, c);
}
void Backend::matmul_sums(Context& context, View a, View b, View c, View sums) {
  matmul(context, 1, a, b, 0, {}, c);
  reduce(context, Reduce::kSum, a, {sums.data, sums.dtype, {a.size(0), 1}, {sums.stride(0), 1}});
}

Shape Backend::rnn_reserve(Context&, const RnnLayer& layer, const RnnInputs& in) {
  return {in.x.size(0), in.x.size(1), layer.reserve_width() * in.w_hh.size(1)};
}

void Backend::rnn_stack_forward(Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&) {
  throw DeviceError(str("rnn_stack: ", device(), " runs recurrent layers one by one"));
}
void Backend::rnn_stack_backward(Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&,
                                 View, View, View, const RnnStackGrads&) {
  throw DeviceError(str("rnn_stack: ", device(), " runs recurrent layers one by one"));
}

constinit thread_local Backend* kernels::replaced_cpu_backend = nullptr;

namespace {
/// Apart from backend(), so that the CPU's path saves no registers.
[[gnu::noinline]] Backend& cuda_backend(Device device) {
  if (device.index < 0) throw DeviceError(str("backend: no device ", device));
  auto& slot = cuda_backends()[static_cast<size_t>(device.index)];
  if (Backend* const found = slot.load(std::memory_order_acquire)) [[likely]]
    return *found;
  const int count = open_cuda(device.index);
  if (Backend* const found = slot.load(std::memory_order_acquire)) return *found;
  throw DeviceError(str(device, ": no such device: the driver shows ", count,
                        count == 1 ? " device, cuda:0" : str(" devices, cuda:0 to cuda:", count - 1)));
}
}  // namespace

Backend& backend(Device device) {
  if (!device.is_cpu()) [[unlikely]]
    return cuda_backend(device);
  if (kernels::replaced_cpu_backend) [[unlikely]]
    return *kernels::replaced_cpu_backend;
  return kernels::cpu_backend();
}

Accelerator& accelerator(Device device) {
  if (device.is_cpu()) throw DeviceError("the CPU has no streams, events or graphs; give a CUDA device");
  if (auto* const found = dynamic_cast<Accelerator*>(&backend(device))) return *found;
  throw DeviceError(str(device, ": its backend has no streams"));
}

void register_backend(Device device, Backend* object) {
  if (device.is_cpu()) throw DeviceError("register_backend: the CPU backend is built in");
  if (device.index < 0) throw DeviceError(str("register_backend: no device ", device));
  cuda_backends()[static_cast<size_t>(device.index)].store(object, std::memory_order_release);
  auto* const found = dynamic_cast<Accelerator*>(object);
  accelerators[static_cast<size_t>(device.index)].store(found, std::memory_order_release);
  int count = accelerator_count.load();
  while (found && count <= device.index &&
         !accelerator_count.compare_exchange_weak(count, device.index + 1)) {
  }
}

int open_accelerators() noexcept { return accelerator_count.load(std::memory_order_acquire); }
Accelerator* open_accelerator(int index) noexcept {
  return index < 0 || index >= open_accelerators()
             ? nullptr
             : accelerators[static_cast<size_t>(index)].load(std::memory_order_acquire);
}

void register_cuda_opener(CudaOpener* opener) { cuda_opener().store(opener, std::memory_order_release); }

namespace cuda {

int device_count() noexcept {
  try {
    return open_cuda(-1);
  } catch (...) {  // no CUDA: 0 devices
    return 0;
  }
}
bool is_available() noexcept { return device_count() > 0; }

}  // namespace cuda

}  // namespace weft
