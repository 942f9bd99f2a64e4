// Storage: a block of device memory with a version counter. Views of each other share one Storage, so an
// in-place write through one of them is detected by every graph that saved another view. The storage of a
// parameter marked concurrent (share()) points at a block, itself a Storage, which an optimizer step may
// replace. All handles then use the new block, and a graph that holds the old block keeps it
// (autograd/tape/concurrent_parameter.h). Parameters that a kernel wants side by side are parts of one
// block, each with a Storage of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <weft/kernels/device.h>
#include <weft/tensor/intrusive.h>

namespace weft {

struct ParameterLock;  // tensor/inner/parameter_lock.h
class Arrears;         // tensor/inner/arrears.h

namespace detail {
/// Number of threads that record (tensor/inner/tracer.h).
extern WEFT_API std::atomic<int> tracing_threads;
}  // namespace detail

/// A block of device memory with a version counter, shared by all views of it.
class WEFT_API Storage : public RefCounted {
 public:
  /// A new block from the device's allocator, uninitialised.
  static Ref<Storage> allocate(Device device, size_t bytes);
  /// Pinned CPU memory, which CUDA devices access directly.
  /// Throws: DeviceError without a CUDA device, OutOfMemoryError.
  static Ref<Storage> allocate_pinned(size_t bytes);
  /// Memory of the caller; `release(context)` is called when the last tensor is destroyed. `read_only`:
  /// in-place operations refuse it.
  static Ref<Storage> borrow(Device device, void* data, size_t bytes, void (*release)(void*), void* context,
                             bool read_only = false);
  /// The same for memory that nothing else uses from now on, such as that of a received message. It does not
  /// count as the caller's memory (is_borrowed()).
  static Ref<Storage> take_over(Device device, void* data, size_t bytes, void (*release)(void*),
                                void* context);
  /// `bytes` at `offset` of `whole` as a storage of its own, whose version, saves and marks concern that part
  /// alone. The memory is freed after its last part. No tensor uses `whole` itself.
  static Ref<Storage> part(const Ref<Storage>& whole, size_t offset, size_t bytes);
  static void destroy(Storage* s) noexcept;

  /// The address of the first byte. A storage in arrears is settled first (tensor/inner/arrears.h).
  [[gnu::always_inline]] void* data() const {
    void* const p = data_.load(std::memory_order_acquire);
    if (p && detail::tracing_threads.load(std::memory_order_relaxed) == 0) [[likely]]
      return p;
    return watched_data();
  }
  /// The same for an operation run by a PointwiseRow (Backend::row). A backend that records
  /// (autograd/tape/compile.h) has no rows, so this use needs no report to the recording.
  [[gnu::always_inline]] void* data_for_row() const {
    void* const p = data_.load(std::memory_order_acquire);
    return p ? p : watched_data();
  }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  /// Memory of the caller (borrow()), which only explicit in-place operations write to.
  bool is_borrowed() const { return release_ && !is_pinned() && !taken_over_ && release_ != &end_part; }
  /// The memory of which this is a part(). Null for other storages, and where steps replace memory (share()).
  const Storage* whole() const {
    return release_ == &end_part && !lock() ? static_cast<const Storage*>(context_) : nullptr;
  }
  /// The address that the device's allocator gave for this memory; data() except in a part. The allocator
  /// finds the block at once by it.
  void* allocation() const;
  bool is_pinned() const { return release_ == &pinned; }
  /// Writes through weft are refused.
  bool is_read_only() const { return read_only_ || has(kFrozen); }
  /// The reason, as part of an error text: "is frozen", or "lies in memory ...".
  const char* read_only_reason() const;

  /// kMadeInTrace, kCaptured: a recording observes the end of the block (tensor/inner/tracer.h). kExposed:
  /// the program has, or had, an address by which it can write. kFrozen: writes are refused. kWatched: the
  /// CPU may keep packs of operands in this block (kernels/cpu/packs.h).
  enum Mark : uint8_t { kMadeInTrace = 1, kCaptured = 2, kExposed = 4, kFrozen = 8, kWatched = 16 };
  void mark(Mark m) const { marks_.fetch_or(m, std::memory_order_relaxed); }
  bool has(Mark m) const { return (marks_.load(std::memory_order_relaxed) & m) != 0; }

  /// Called before the program gets an address by which it can write. From then on the block keeps no packs.
  /// Throws: ValueError for a frozen block.
  [[gnu::always_inline]] void expose() {
    if ((marks_.load(std::memory_order_relaxed) & (kExposed | kFrozen)) != kExposed) [[unlikely]]
      expose_now();
  }
  /// Throws: ValueError if several threads use the memory (share()).
  void freeze();
  /// States that `operand`, an address in this block, is the right operand of products. The CPU may keep
  /// packs of it if all writes count in version().
  void watch_packs(const void* operand);
  /// Drops the packs after a write that version() did not count.
  void forget_packs() noexcept {
    if (has(kWatched)) [[unlikely]]
      end_packs();
  }
  /// Between the two calls, products neither use nor keep packs: version() counts the writes only later.
  void pause_packs() const;
  void resume_packs() const noexcept;

  /// The number of in-place writes so far.
  uint32_t version() const { return version_.load(std::memory_order_acquire); }
  void bump_version() {
    count_write();
    if (lock()) bump_block();
  }
  /// bump_version() for a step on shared memory, which never writes to a held block.
  void count_write() { version_.fetch_add(1, std::memory_order_acq_rel); }

  /// Number of holders that need the bytes unchanged: saved tensors of graphs, messages being sent, and
  /// pending reads of shared blocks.
  uint32_t saves() const { return saves_.load(std::memory_order_acquire); }
  void add_save() { saves_.fetch_add(1, std::memory_order_acq_rel); }
  void drop_save() { saves_.fetch_sub(1, std::memory_order_acq_rel); }

  /// Hides the address until the next data(), which first lets `arrears` bring the memory up to date.
  void owe(std::shared_ptr<Arrears> arrears);
  /// Shows the address again: nothing is in arrears.
  void settled();

  /// Marks the memory as used by several threads: a step may replace its block. Idempotent.
  void share();
  /// Null until share().
  ParameterLock* lock() const { return lock_.load(std::memory_order_acquire); }
  /// Shared storage, with the lock held: whether anything needs the bytes of the block unchanged.
  bool is_held() const;
  /// Shared storage, with the lock held: replaces the block by a block of the same size.
  void replace_block(Ref<Storage> fresh);

  /// Sets the tensor whose recorded history describes these bytes. An in-place write through a tensor that is
  /// not a view of it (a detached alias) would make the history wrong. Such a write is refused while grad
  /// mode is on. `leaf`: the tensor is a leaf that requires grad.
  void set_history(const void* body, bool leaf) {
    if (history() && history() != body) {  // the first such tensor keeps its claim for its lifetime
      if (has(kCaptured)) [[unlikely]]
        end_watches(false);
      return;
    }
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
  static constexpr size_t kInlineBytes = 64;  // small CPU blocks follow the header in one allocation
  bool is_inline() const { return !release_ && !context_; }
  static void end_part(void* whole);
  static void pinned(void*);  // never called: marks memory that goes back to the Accelerator in context_
  Storage(Device device, void* data, size_t bytes, void (*release)(void*), void* context)
      : device_(device), data_(data), bytes_(bytes), release_(release), context_(context) {}
  ~Storage() = default;
  void bump_block();
  bool may_keep_packs() const;
  [[gnu::cold]] void expose_now();
  [[gnu::cold]] void end_packs() noexcept;
  [[gnu::cold]] void* watched_data() const;
  [[gnu::cold]] void* settled_data() const;
  [[gnu::cold]] void tell_made() const;
  [[gnu::cold]] void tell_end() const noexcept;
  [[gnu::cold]] void end_watches(bool destroyed) const noexcept;
  void end_arrears() noexcept;
  Device device_;
  bool read_only_ : 1 = false, taken_over_ : 1 = false;  // set where the storage is made
  mutable std::atomic<uint8_t> marks_{0};
  std::atomic<void*> data_;
  size_t bytes_;
  void (*release_)(void*);
  void* context_;
  std::atomic<uint32_t> version_{0};
  std::atomic<uint32_t> saves_{0};
  std::atomic<uintptr_t> history_{0};
  std::atomic<ParameterLock*> lock_{nullptr};  // owned
};

}  // namespace weft
