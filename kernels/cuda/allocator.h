// The stream-ordered caching allocator of one device. A block belongs to the stream it was allocated for: freed, it can be handed out again on that
// stream at once, since what is issued later runs later. A block that other streams have used (record_stream) waits until they are past the
// point of the free. Sizes are rounded to 512 bytes. Requests of up to 1 MiB are cut from segments of 2 MiB, those of up to 8 MiB from segments of
// 32 MiB, larger ones have segments of their own; free neighbours are merged. When the device is full or the limit reached, the cache is emptied
// once and the request repeated, unless it is a recording's; then OutOfMemoryError says what was asked for, reserved, in use and free on the
// device. Never managed memory.
// Thread safety: every call may come from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <weft/kernels/memory.h>

namespace weft::cuda {

class Allocator {
 public:
  /// Whether blocks are kept for reuse when nothing else is said: not with WEFT_NO_CACHE=1, and not under the emulation, whose guard zones then
  /// surround each block as it was asked for.
  static bool caches_by_default();

  explicit Allocator(int device, bool caching = caches_by_default());
  ~Allocator();

  /// At least `bytes`, 512-byte aligned, for work on `stream`. Throws: OutOfMemoryError.
  void* allocate(size_t bytes, void* stream);
  /// The same, but from the ordinary cache even where a recording has a pool: a block that none of its kernels has had before.
  void* allocate_outside_pool(size_t bytes, void* stream);
  void deallocate(void* p) noexcept;
  /// Says that work on `stream` uses the block as well.
  void record_stream(void* p, void* stream);
  MemoryStats stats() const;
  /// Waits for what keeps free blocks from reuse and returns segments without a used block to the device; not in a thread that records a graph.
  void empty_cache();
  /// Throws: ValueError when more than that is in use.
  void set_limit(size_t bytes);
  /// Start of the segment that holds p. Throws: ValueError for a pointer that is not of this allocator.
  void* segment_of(void* p) const;

  /// Until end_pool, requests for `stream` and requests of the calling thread come from a pool of their own, kept until release_pool: a recorded
  /// graph writes to the same addresses at each replay. Throws: CudaError while another graph is recorded.
  void begin_pool(void* stream);
  void* end_pool();
  /// Hands the pool's memory to the ordinary cache; its blocks in use stay valid, and are used by the streams of the replays too. What was issued to
  /// those so far must be done.
  void release_pool(void* pool, std::span<void* const> replayed_on = {}) noexcept;

 private:
  struct Impl;
  void* allocate(size_t bytes, void* stream, bool from_pool);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::cuda
