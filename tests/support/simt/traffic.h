// The memory transactions of emulated kernels. An access of a warp consists of its lanes' accesses by one
// instruction: the n-th ones of each lane since the warp's last operation or barrier. So the numbers are
// exact where the lanes take the same way in between. Atomic accesses are not counted.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include <weft/kernels/cuda/simt.h>

namespace weft::cuda::simt {

/// Accesses to device memory.
struct DeviceTraffic {
  int64_t accesses = 0;  ///< of warps
  int64_t bytes = 0;     ///< that the lanes asked for
  int64_t sectors = 0;   ///< of 32 bytes, each counted once per access
};
/// Accesses to shared memory. A turn serves one 4-byte word of each of 32 banks. An access takes lanes of 128
/// bytes together: all of them at up to 4 bytes, 16 lanes at 8 and 8 lanes at 16.
struct SharedTraffic {
  int64_t accesses = 0;
  int64_t bytes = 0;
  int64_t turns = 0;
  int64_t conflicts = 0;  ///< turns beyond one for each 128 bytes
};
struct KernelTraffic {
  DeviceTraffic read, written;
  SharedTraffic loaded, stored;
};

/// Counts while it lives, by the names of kernels. One at a time.
class TrafficCount {
 public:
  TrafficCount();
  ~TrafficCount();
  TrafficCount(const TrafficCount&) = delete;
  /// The sum over the launches of a kernel; zeros if there was none.
  KernelTraffic of(const std::string& kernel) const;
  static TrafficCount* current();
  KernelTraffic& entry(const std::string& kernel) { return kernels_[kernel]; }

 private:
  std::map<std::string, KernelTraffic> kernels_;
};

/// An access of a lane to up to 16 bytes.
struct LaneAccess {
  const void* site;  ///< the instruction
  bool shared, write;
  uint64_t at;
  uint32_t bytes;
};

/// Joins the accesses of a warp's lanes.
class WarpTraffic {
 public:
  void access(int lane, const LaneAccess& access);
  /// Adds the accesses since the last call.
  void flush(KernelTraffic& to);

 private:
  struct Joined {
    uint64_t at[kWarp];
    uint32_t lanes, bytes;
  };
  struct Site {
    bool shared, write;
    uint32_t count[kWarp];
    std::vector<Joined> accesses;
  };
  static void add(DeviceTraffic& to, const Joined& access);
  static void add(SharedTraffic& to, const Joined& access);

  std::unordered_map<uint64_t, Site> sites_;
};

}  // namespace weft::cuda::simt
