// Pinned host memory: pages that a device accesses directly, so that a copy needs no staging and no waiting.
// The driver takes milliseconds to allocate it, so freed blocks are kept for reuse. A block that a copy still
// uses is reused only after that copy. One pool serves all devices of the process. Thread safety: every call
// may come from any thread.
#pragma once

#include <cstddef>
#include <memory>

namespace weft::cuda {

/// A pool of pinned memory; the functions below are those of the process's pool and document its calls.
class PinnedPool {
 public:
  /// `caching`: keeps freed blocks for reuse.
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
/// Marks the block that contains p as used by a copy on `stream` of `device`. Does nothing if p is not from
/// this pool.
void use_pinned(const void* p, int device, void* stream);
/// Returns free blocks to the operating system.
void empty_pinned_cache();

}  // namespace weft::cuda
