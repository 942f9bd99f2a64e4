// The stream-ordered caching allocator of one device. A block belongs to the stream for which it was
// allocated. Once freed, it can be reused on that stream at once, because later work runs later. A block that
// other streams have used (record_stream) is reused only when they have passed the point of the free. Sizes
// are rounded to 512 bytes. Requests of up to 1 MiB are cut from segments of 2 MiB, those of up to 8 MiB from
// 32 MiB. Each larger one has a separate segment. Free neighbours are merged. If the device is full or the
// limit is reached, a request outside of a recording empties the cache once and is repeated. Then it throws
// OutOfMemoryError with the bytes requested, reserved, in use and free on the device. It never uses managed
// memory. Thread safety: every call may come from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <weft/kernels/memory.h>

namespace weft::cuda {

class Allocator {
 public:
  /// The default for `caching`: false with WEFT_NO_CACHE=1, and under the emulation, whose guard zones then
  /// surround each requested block.
  static bool caches_by_default();

  explicit Allocator(int device, bool caching = caches_by_default());
  ~Allocator();

  /// At least `bytes`, 512-byte aligned, for work on `stream`. Throws: OutOfMemoryError.
  void* allocate(size_t bytes, void* stream);
  /// The same, but never from the pool of a recording: a block that no kernel of the recording has used
  /// before.
  void* allocate_outside_pool(size_t bytes, void* stream);
  void deallocate(void* p) noexcept;
  /// Marks the block in use that contains p as used by work on `stream` too. It is found at once by its first
  /// address, else by a search. Does nothing for memory from elsewhere.
  void record_stream(void* p, void* stream);
  MemoryStats stats() const;
  /// Waits for the work that still uses freed blocks, then returns unused segments to the device. Must not be
  /// called on a thread that records a graph.
  void empty_cache();
  /// Throws: ValueError if more is in use.
  void set_limit(size_t bytes);
  /// An allocation of the device, from which blocks are cut.
  struct Segment {
    char* begin;
    size_t bytes;
    uint64_t number;  ///< no other segment has it, in any process; not 0
  };
  /// The segment that contains p. Throws: ValueError for a pointer from elsewhere.
  Segment segment_of(void* p) const;

  /// Until end_pool, requests for `stream` and requests of the calling thread are served from a separate
  /// pool. It is kept until release_pool: a graph writes to the same addresses at each replay. Throws:
  /// CudaError while another graph is recorded.
  void begin_pool(void* stream);
  void* end_pool();
  /// Moves the pool's memory to the ordinary cache. Its blocks in use stay valid, and count as used by the
  /// streams of the replays. All work issued to these streams must be done.
  void release_pool(void* pool, std::span<void* const> replayed_on = {}) noexcept;

 private:
  struct Impl;
  void* allocate(size_t bytes, void* stream, bool from_pool);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::cuda
