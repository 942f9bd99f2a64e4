// Races between the threads of a block, and between blocks that run side by side. The shadow of a memory
// has for each word its last accesses, with their threads and times. A time counts the barriers of all blocks
// and the warp's operations so far. All synchronisation of simt.h is by whole grids, blocks or warps, so
// these numbers tell all that vector clocks would. Two accesses of a block with no barrier between are in
// order only if one warp makes both, with an operation between. Two accesses of different blocks are in order
// only if there is a barrier of the grid between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <weft/kernels/cuda/simt.h>

namespace weft::cuda::simt {

/// kAtomic: an atomic or a volatile access. Two of them do not race.
enum class Access : uint8_t { kRead, kWrite, kAtomic };

inline constexpr int kMostThreads = 1024;  // of a block

/// The epochs of all blocks. An epoch is one block's time from its begin or a barrier to its next barrier.
/// They are counted on from launch to launch, so no shadow is ever cleared.
class Epochs {
 public:
  /// Orders all so far before all that follows: another launch, another block that does not run side by side
  /// with the one before, or a barrier of the grid.
  void fence() { fence_ = last_, blocks_.clear(); }
  /// A new epoch of a block.
  uint32_t next(int block) {
    blocks_.push_back(block);
    return ++last_;
  }
  /// Whether two epochs belong to different blocks, both behind the last fence.
  bool side_by_side(uint32_t a, uint32_t b) const {
    return a > fence_ && b > fence_ && block_of(a) != block_of(b);
  }
  bool is_behind_fence(uint32_t epoch) const { return epoch > fence_; }
  /// The block of an epoch behind the last fence.
  int block_of(uint32_t epoch) const { return blocks_[epoch - fence_ - 1]; }

 private:
  uint32_t last_ = 0, fence_ = 0;
  std::vector<int> blocks_;
};

/// The time of a block's threads.
struct Clock {
  uint32_t epoch = 0;
  uint32_t turn[kMostThreads / kWarp] = {};  ///< operations of each warp
};

/// A thread at a point of time. Zeros: none.
struct Mark {
  uint32_t epoch, place;
  static Mark of(const Clock& clock, int thread) {
    return {clock.epoch, clock.turn[thread / kWarp] * kMostThreads + static_cast<uint32_t>(thread)};
  }
  int thread() const { return static_cast<int>(place % kMostThreads); }
  int warp() const { return thread() / kWarp; }
  uint32_t turn() const { return place / kMostThreads; }
};

struct Race {
  size_t at;  ///< the byte
  int first, second, first_block, second_block;
  Access did_first, did_second;
};

class Shadow {
 public:
  /// Takes address space for a memory of so many bytes, and memory for the touched part only.
  explicit Shadow(size_t bytes);
  Shadow(const Shadow&) = delete;
  /// Notes an access to bytes [at, at + bytes). Returns a race with an earlier access.
  std::optional<Race> access(size_t at, size_t bytes, Access kind, const Mark& now, const Epochs& epochs);

 private:
  struct Word;
  struct Cell;
  Word* words_;
  Cell* bytes_;  // for accesses to a part of a word
};

}  // namespace weft::cuda::simt
