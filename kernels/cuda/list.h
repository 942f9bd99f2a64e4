// Launches over a list of tensors. The elements of each tensor are cut into chunks of equal length; one block takes one chunk, and reads from a
// table which that is.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include <weft/kernels/cuda/cuda_backend.h>
#include <weft/kernels/cuda/pinned.h>
#include <weft/kernels/cuda/recording.h>

namespace weft::cuda {

/// Elements [number * length, ...) of a tensor of the list.
struct Chunk {
  int32_t tensor, number;
};

/// A table of one operation: written by the host into pinned memory, then copied in stream order, so that nobody waits. The device's copy lives as
/// long as this object; while a graph is recorded, as long as the graph.
class Table {
 public:
  Table(CudaBackend& b, Context& c, size_t bytes)
      : backend_(b), context_(c), bytes_(bytes), recording_(b.recording_of(c)) {
    if (recording_) {
      Recording::Table& kept = recording_->tables.emplace_back(nullptr, std::vector<char>(bytes));
      try {  // not the pool's memory: what the graph ran before would write there in each replay
        kept.device = device_ =
            static_cast<char*>(b.allocator().allocate_outside_pool(bytes, recording_->origin));
      } catch (...) {
        recording_->tables.pop_back();
        throw;
      }
      host_ = kept.host.data();
    } else {
      scratch_.emplace(b, c, bytes);
      device_ = scratch_->as<char>();
      host_ = static_cast<char*>(allocate_pinned(bytes));
    }
  }
  ~Table() {
    if (!recording_) deallocate_pinned(host_);
  }
  Table(const Table&) = delete;
  char* host() const { return host_; }
  char* device() const { return device_; }
  void send() {
    if (!recording_) backend_.copy_async(context_, device_, host_, bytes_);
  }
  Recording* recording() const { return recording_; }

 private:
  CudaBackend& backend_;
  Context& context_;
  const size_t bytes_;
  Recording* const recording_;
  std::optional<Scratch> scratch_;
  char* host_ = nullptr;
  char* device_ = nullptr;
};

inline size_t aligned_to_16(size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace weft::cuda
