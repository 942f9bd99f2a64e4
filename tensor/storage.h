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
  /// Memory of somebody else's; `release(context)` is called when the last tensor lets go.
  static Ref<Storage> borrow(Device device, void* data, size_t bytes, void (*release)(void*), void* context);
  static void destroy(Storage* s) noexcept;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  /// Counts in-place writes.
  uint32_t version() const { return version_.load(std::memory_order_acquire); }
  void bump_version() { version_.fetch_add(1, std::memory_order_acq_rel); }

  /// Number of holders that need the bytes unchanged: saved tensors of recorded graphs and reads in flight of concurrent parameters.
  /// An optimizer step writes in place only at zero, otherwise into a fresh block.
  uint32_t saves() const { return saves_.load(std::memory_order_acquire); }
  void add_save() { saves_.fetch_add(1, std::memory_order_acq_rel); }
  void drop_save() { saves_.fetch_sub(1, std::memory_order_acq_rel); }

 private:
  Storage(Device device, void* data, size_t bytes, void (*release)(void*), void* context)
      : data_(data), bytes_(bytes), release_(release), context_(context), device_(device) {}
  ~Storage() = default;
  void* data_;
  size_t bytes_;
  void (*release_)(void*);
  void* context_;
  std::atomic<uint32_t> version_{0};
  std::atomic<uint32_t> saves_{0};
  Device device_;
};

}  // namespace weft
