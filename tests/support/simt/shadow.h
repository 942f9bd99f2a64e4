// Races between the threads of a block. The shadow of a memory has for each word its last accesses, with
// their threads and times. A time counts the block's barriers and the warp's operations so far. All
// synchronisation of simt.h is by whole blocks or whole warps, so these numbers tell all that vector clocks
// would. Two accesses of a block with no barrier between are in order only if one warp makes both, with an
// operation between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <weft/kernels/cuda/simt.h>

namespace weft::cuda::simt {

/// kAtomic: an atomic or a volatile access. Two of them do not race.
enum class Access : uint8_t { kRead, kWrite, kAtomic };

inline constexpr int kMostThreads = 1024;  // of a block

/// The time of a block's threads. It goes on from block to block, so no shadow is ever cleared.
struct Clock {
  uint32_t epoch = 0;                        ///< begun blocks and barriers
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
  int first, second;
  Access did_first, did_second;
};

class Shadow {
 public:
  /// Takes address space for a memory of so many bytes, and memory for the touched part only.
  explicit Shadow(size_t bytes);
  Shadow(const Shadow&) = delete;
  /// Notes an access to bytes [at, at + bytes). Returns a race with an earlier access.
  std::optional<Race> access(size_t at, size_t bytes, Access kind, const Mark& now);

 private:
  struct Word;
  struct Cell;
  Word* words_;
  Cell* bytes_;  // for accesses to a part of a word
};

}  // namespace weft::cuda::simt
