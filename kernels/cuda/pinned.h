// Pinned host memory: pages that a device reads and writes by itself, so that a copy needs no staging and no waiting. Getting it from the driver
// costs milliseconds, so freed blocks are kept for reuse; a block that a copy still reads or writes is handed out only after that copy. One pool
// serves all devices of the process. Thread safety: every call may come from any thread.
#pragma once

#include <cstddef>
#include <memory>

namespace weft::cuda {

/// What each call does stands at the functions below, which are those of the process's pool.
class PinnedPool {
 public:
  /// `caching`: freed blocks are kept for reuse.
  explicit PinnedPool(bool caching);
  ~PinnedPool();
  void* allocate(size_t bytes);
  void deallocate(void* p);
  void use(const void* p, int device, void* stream);
  void empty_cache();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// At least `bytes`, 64-byte aligned. Throws: OutOfMemoryError.
void* allocate_pinned(size_t bytes);
void deallocate_pinned(void* p) noexcept;
/// Says that `stream` of `device` copies to or from the block that p points into; nothing when p is not pinned memory of this pool.
void use_pinned(const void* p, int device, void* stream);
/// Returns free blocks to the operating system.
void empty_pinned_cache();

}  // namespace weft::cuda
