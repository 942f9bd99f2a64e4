// Launches over a list of tensors. Each tensor is cut into chunks of equal length. One block processes one
// chunk, which it reads from a table.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/host/pinned.h>
#include <weft/kernels/cuda/host/recording.h>

namespace weft::cuda {

/// Elements [number * length, ...) of a tensor of the list.
struct Chunk {
  int32_t tensor, number;
};

/// The table of one operation. The host writes it to pinned memory and copies it in stream order, without
/// waiting. The copy on the device lives as long as this object, or as long as the graph that is recorded.
class Table {
 public:
  Table(CudaBackend& b, Context& c, size_t bytes)
      : backend_(b), context_(c), bytes_(bytes), recording_(b.recording_of(c)) {
    if (recording_) {
      Recording::Table& kept = recording_->tables.emplace_back(nullptr, std::vector<char>(bytes));
      try {  // not from the pool: earlier kernels of the graph would overwrite it in each replay
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
