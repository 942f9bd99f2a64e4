// Allocations of other processes that this process has opened (CUDA IPC). Blocks in use at the same time
// share one opening of their allocation, and the end of the last block closes it. For CUDA, freeing an
// allocation that another process has open is undefined behaviour. Internal to the backend. Thread safety:
// any thread; the caller has made the device current.
#pragma once

#include <list>
#include <map>
#include <mutex>

#include <weft/kernels/accelerator.h>

namespace weft::cuda {

class OpenedSegments {
 public:
  OpenedSegments() = default;
  OpenedSegments(const OpenedSegments&) = delete;

  /// The block's address here, until close. Throws: CudaError for one that cannot be opened.
  void* open(const SharedBlock& block);
  void close(void* p) noexcept;

 private:
  struct Segment {
    SharedBlock first;  ///< the block that it was opened for
    void* memory;
    int users = 0;
  };
  using Position = std::list<Segment>::iterator;

  std::mutex mutex_;
  std::list<Segment> segments_;
  std::multimap<void*, Position> blocks_;  // opened ones by address
};

}  // namespace weft::cuda
