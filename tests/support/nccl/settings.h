// Settings and counts of the emulated NCCL (library/nccl.cpp), which a program that opens it has. Faults are
// those of this process; the other processes of a group see their effects.
#pragma once

#include <atomic>
#include <cstdint>

#include <weft/distributed/collectives/inner/nccl_library.h>

namespace weft::test {

struct NcclSettings {
  /// This process does not come when a communicator forms. It waits in vain, as all others do.
  std::atomic<bool> stays_away{false};
  /// Its collectives end at once and move nothing, so those of the others wait in vain.
  std::atomic<bool> takes_no_part{false};
  /// An error that the library finds beside the calls.
  std::atomic<dist::inner::nccl::Result> error{dist::inner::nccl::Result::kSuccess};
};
NcclSettings& nccl_settings();

struct NcclCounts {
  std::atomic<int64_t> queued{0};  ///< collectives
  std::atomic<int64_t> run{0};     ///< collectives that are done
  /// communicators
  std::atomic<int64_t> formed{0}, destroyed{0}, aborted{0};
};
NcclCounts& nccl_counts();

}  // namespace weft::test
