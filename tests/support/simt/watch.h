// The observer of emulated launches. GCC compiles the kernels as for its thread sanitizer, hence with a call
// for each load and store (cmake/simt.cmake). watch.cpp defines these calls, in place of the sanitizer's
// library. So kernels use plain pointers and need no accessors. A program of another compiler, or of a build
// with a sanitizer, sees no access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/simt/shadow.h"
#include "support/simt/thread.h"
#include "support/simt/traffic.h"

namespace weft::cuda::simt {

/// Whether this program sees its kernels' accesses.
bool sees_accesses();

/// Sees the accesses of the calling thread's launch while it lives. It looks for races as
/// Settings::race_check says, and counts for a TrafficCount.
class Watcher {
 public:
  /// Whether a launch with so much shared memory needs one.
  static bool wanted(size_t shared_bytes, bool together);
  /// In the scope of a DeviceAccess: launches share the shadows. `shared` has a memory for each of the blocks
  /// that run `together`; else one, for each block in turn.
  Watcher(const char* kernel, const std::vector<const unsigned char*>& shared, size_t shared_bytes,
          bool together);
  ~Watcher();
  Watcher(const Watcher&) = delete;

  // Told by the launch.
  /// A block begins, or as many as run side by side.
  void begin_blocks();
  /// This one of them runs from now on.
  void enter(size_t block) { block_ = block; }
  /// This thread of the block runs from now on.
  void resume(int thread) { thread_ = thread; }
  void barrier();
  void grid_barrier();
  void warp_operation(size_t warp, WarpOp op);
  /// The first race of these blocks in words; empty: none.
  std::string end_blocks();

  void access(const void* p, size_t bytes, Access kind, const void* site);

 private:
  struct Memory {
    uintptr_t begin;
    size_t bytes;
    bool shared, checked;
  };
  struct Found {
    Race race;
    bool shared;
  };
  /// One of the blocks.
  struct Side {
    Memory shared;
    Clock clock;
    std::vector<WarpTraffic> warps;  // for traffic
  };
  void access(const Memory& memory, size_t at, size_t bytes, Access kind, const void* site);
  void new_epochs();
  void flush_all();

  std::vector<Side> sides_;
  Memory device_;
  size_t block_ = 0;
  int thread_ = 0;
  std::optional<Found> found_;
  KernelTraffic* traffic_ = nullptr;
};

}  // namespace weft::cuda::simt
