// Launches over a list of tensors. The elements of each tensor are cut into chunks of equal length; one block takes one chunk, and reads from a
// table which that is.
#pragma once

#include <cstdint>
#include <cstring>

#include <weft/kernels/cuda/cuda_backend.h>
#include <weft/kernels/cuda/pinned.h>
#include <weft/kernels/cuda/runtime.h>

namespace weft::cuda {

/// Elements [number * length, ...) of a tensor of the list.
struct Chunk {
  int32_t tensor, number;
};

/// A table of one operation: written by the host into pinned memory, then copied in stream order, so that nobody waits. The device's copy lives as
/// long as this object. What was sent while a graph is recorded keeps its pinned memory for good: every replay copies from it.
class Table {
 public:
  Table(CudaBackend& b, Context& c, size_t bytes) : backend_(b), context_(c), device_(b, c, bytes), host_(static_cast<char*>(allocate_pinned(bytes))) {}
  ~Table() {
    if (!recorded_) deallocate_pinned(host_);
  }
  Table(const Table&) = delete;
  char* host() const { return host_; }
  const char* send() {
    recorded_ = runtime::capturing(backend_.stream_of(context_));
    backend_.copy_async(context_, device_.as<void>(), host_, device_.bytes());
    return device_.as<const char>();
  }

 private:
  CudaBackend& backend_;
  Context& context_;
  const Scratch device_;
  char* const host_;
  bool recorded_ = false;
};

inline size_t aligned_to_16(size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace weft::cuda
