// A block of device memory with its version counter. Tensors that are views of each other share one Storage, so an in-place write
// through any of them is seen by all who saved one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <weft/kernels/device.h>
#include <weft/tensor/intrusive.h>

namespace weft {

class WEFT_API Storage : public RefCounted {
 public:
  /// A fresh block from the device's allocator. Contents are undefined.
  static Ref<Storage> allocate(Device device, size_t bytes);
  /// CPU memory that CUDA devices read and write by themselves. Throws: DeviceError without a CUDA device, OutOfMemoryError.
  static Ref<Storage> allocate_pinned(size_t bytes);
  /// Memory of somebody else's; `release(context)` is called when the last tensor lets go.
  static Ref<Storage> borrow(Device device, void* data, size_t bytes, void (*release)(void*), void* context);
  static void destroy(Storage* s) noexcept;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  /// Somebody else's memory (borrow()): never written to unasked.
  bool is_borrowed() const { return release_ != nullptr && !is_pinned(); }
  bool is_pinned() const { return release_ == &pinned; }

  /// Counts in-place writes.
  uint32_t version() const { return version_.load(std::memory_order_acquire); }
  void bump_version() { version_.fetch_add(1, std::memory_order_acq_rel); }

  /// Number of holders that need the bytes unchanged: saved tensors of recorded graphs and reads in flight of concurrent parameters.
  /// An optimizer step writes in place only at zero, otherwise into a fresh block.
  uint32_t saves() const { return saves_.load(std::memory_order_acquire); }
  void add_save() { saves_.fetch_add(1, std::memory_order_acq_rel); }
  void drop_save() { saves_.fetch_sub(1, std::memory_order_acq_rel); }

  /// Which tensor's recorded history describes these bytes: an in-place write through an alias outside that tensor's family of views
  /// (a detached one, say) would leave the history wrong, and is refused while grad mode is on. `leaf`: it is a leaf that requires grad.
  void set_history(const void* body, bool leaf) {
    if (history() && history() != body) return;  // the first to describe them keeps the claim while it lives
    history_.store(reinterpret_cast<uintptr_t>(body) | static_cast<uintptr_t>(leaf),
                   std::memory_order_relaxed);
  }
  void clear_history(const void* body) {
    if ((history_.load(std::memory_order_relaxed) & ~uintptr_t{1}) == reinterpret_cast<uintptr_t>(body))
      history_.store(0, std::memory_order_relaxed);
  }
  const void* history() const {
    return reinterpret_cast<const void*>(history_.load(std::memory_order_relaxed) & ~uintptr_t{1});
  }
  bool history_is_leaf() const { return history_.load(std::memory_order_relaxed) & 1; }

 private:
  static constexpr size_t kInlineBytes = 64;  // small CPU blocks lie behind the header, in one allocation
  bool is_inline() const { return !release_ && !context_; }
  static void pinned(void*);  // never called: marks memory that goes back to the Accelerator in context_
  Storage(Device device, void* data, size_t bytes, void (*release)(void*), void* context)
      : data_(data), bytes_(bytes), release_(release), context_(context), device_(device) {}
  ~Storage() = default;
  void* data_;
  size_t bytes_;
  void (*release_)(void*);
  void* context_;
  std::atomic<uint32_t> version_{0};
  std::atomic<uint32_t> saves_{0};
  std::atomic<uintptr_t> history_{0};
  Device device_;
};

}  // namespace weft
