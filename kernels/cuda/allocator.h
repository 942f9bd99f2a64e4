// The stream-ordered caching allocator of one device. A block belongs to the stream it was allocated for: freed, it can be handed out again on that
// stream at once, since what is issued later runs later. A block that other streams have used (record_stream) waits until they are past the
// point of the free. Sizes are rounded to 512 bytes; small requests are cut from segments of 2 MiB, large ones from segments of their own,
// and free neighbours are merged. When the device is full, the cache is emptied once and the request repeated; then OutOfMemoryError
// says what was asked for, reserved, in use and free on the device. Never managed memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <weft/kernels/memory.h>

namespace weft::cuda {

class Allocator {
 public:
  explicit Allocator(int device);
  ~Allocator();

  /// At least `bytes`, 512-byte aligned, for work on `stream`. Throws: OutOfMemoryError.
  void* allocate(size_t bytes, void* stream);
  void deallocate(void* p) noexcept;
  void record_stream(void* p, void* stream);
  MemoryStats stats() const;
  void empty_cache();
  void set_limit(size_t bytes);
  /// Start of the segment that holds p.
  void* segment_of(void* p) const;

  /// While a graph is recorded its blocks come from a pool of its own, kept until release_pool: a replay writes to the same addresses.
  void begin_pool(void* stream);
  void* end_pool();
  void release_pool(void* pool) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::cuda
