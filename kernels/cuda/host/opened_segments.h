// Allocations of other processes that this process has opened (CUDA IPC). Opening one and closing it cost
// more than a copy of some megabytes. So an allocation stays open after its last use, and the next block of
// it costs nothing. Internal to the backend. Thread safety: any thread; the caller has made the device
// current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>

#include <weft/kernels/accelerator.h>

namespace weft::cuda {

class OpenedSegments {
 public:
  /// Of the allocations without a user stay open the latest `most`, with at most `most_bytes` together. A
  /// process that has freed an allocation misses its memory as long as another one has it open.
  explicit OpenedSegments(size_t most = 32, int64_t most_bytes = int64_t{1} << 30)
      : most_(most), most_bytes_(most_bytes) {}
  ~OpenedSegments() { close_idle(); }
  OpenedSegments(const OpenedSegments&) = delete;

  /// The block's address here, until close. Throws: CudaError for one that cannot be opened.
  void* open(const SharedBlock& block);
  void close(void* p) noexcept;
  /// Closes the allocations without a user.
  void close_idle() noexcept;

 private:
  struct Segment {
    SharedBlock first;  ///< the block that it was opened for
    void* memory;
    int users = 0;
  };
  using Position = std::list<Segment>::iterator;
  Position release(Position at) noexcept;
  void close_idle(size_t most, int64_t most_bytes) noexcept;

  const size_t most_;
  const int64_t most_bytes_;
  std::mutex mutex_;
  std::list<Segment> segments_;            // those without a user in the order of their last use
  std::multimap<void*, Position> blocks_;  // opened ones by address
};

}  // namespace weft::cuda
