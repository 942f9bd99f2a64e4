// The settings of cuda_settings.h, as atomics: any thread may change them. The defaults of use_cudnn,
// cudnn_attention, recurrent_wavefront and recurrent_persistent are read from the environment at the first
// use.
#include <weft/kernels/cuda_settings.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include <weft/kernels/str.h>

namespace weft::cuda {

namespace {
std::atomic<bool> tf32{false}, dropout_of_cudnn{false}, ordered{true};
std::atomic<int> waiting{0};

std::atomic<bool>& cudnn() {
  static std::atomic<bool> use = [] {
    const char* const set = std::getenv("WEFT_CUDNN");
    return set && std::string_view(set) == "1";
  }();
  return use;
}

std::atomic<bool>& attention() {
  static std::atomic<bool> use = [] {
    const char* const set = std::getenv("WEFT_CUDNN_ATTENTION");
    return set && std::string_view(set) == "1";
  }();
  return use;
}

std::atomic<int>& wavefront() {
  static std::atomic<int> chunks = [] {
    const char* const set = std::getenv("WEFT_RECURRENT_WAVEFRONT");
    const std::string_view text = set ? set : "";
    int number = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
    return end.ec == std::errc() && end.ptr == text.data() + text.size() && number > 0 ? number : 0;
  }();
  return chunks;
}

std::atomic<bool>& persistent() {
  static std::atomic<bool> use = [] {
    const char* const set = std::getenv("WEFT_RECURRENT_PERSISTENT");
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
bool cudnn_attention() noexcept { return attention().load(std::memory_order_relaxed); }
void set_cudnn_attention(bool use) noexcept { attention().store(use, std::memory_order_relaxed); }
bool ordered_attention() noexcept { return ordered.load(std::memory_order_relaxed); }
void set_ordered_attention(bool on) noexcept { ordered.store(on, std::memory_order_relaxed); }
int recurrent_wavefront() noexcept { return wavefront().load(std::memory_order_relaxed); }
void set_recurrent_wavefront(int chunks) {
  if (chunks < 0)
    throw ValueError(str("set_recurrent_wavefront: takes 0 or a number of chunks, got ", chunks));
  wavefront().store(chunks, std::memory_order_relaxed);
}
bool recurrent_persistent() noexcept { return persistent().load(std::memory_order_relaxed); }
void set_recurrent_persistent(bool use) noexcept { persistent().store(use, std::memory_order_relaxed); }
WaitingKernels::WaitingKernels() noexcept { waiting.fetch_add(1, std::memory_order_relaxed); }
WaitingKernels::~WaitingKernels() { waiting.fetch_sub(1, std::memory_order_relaxed); }
bool WaitingKernels::any() noexcept { return waiting.load(std::memory_order_relaxed) > 0; }

}  // namespace weft::cuda
