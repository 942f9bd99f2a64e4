// The settings of cuda_settings.h, as atomics: any thread may change them. The default of use_cudnn is read
// from WEFT_CUDNN at the first use.
#include <weft/kernels/cuda_settings.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace weft::cuda {

namespace {
std::atomic<bool> tf32{false}, dropout_of_cudnn{false};

std::atomic<bool>& cudnn() {
  static std::atomic<bool> use = [] {
    const char* const set = std::getenv("WEFT_CUDNN");
    return set && std::string_view(set) == "1";
  }();
  return use;
}
}  // namespace

bool allow_tf32() noexcept { return tf32.load(std::memory_order_relaxed); }
void set_allow_tf32(bool allow) noexcept { tf32.store(allow, std::memory_order_relaxed); }
bool use_cudnn() noexcept { return cudnn().load(std::memory_order_relaxed); }
void set_use_cudnn(bool use) noexcept { cudnn().store(use, std::memory_order_relaxed); }
bool cudnn_dropout() noexcept { return dropout_of_cudnn.load(std::memory_order_relaxed); }
void set_cudnn_dropout(bool use) noexcept { dropout_of_cudnn.store(use, std::memory_order_relaxed); }

}  // namespace weft::cuda
