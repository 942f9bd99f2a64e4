// The emulated side of kernels/cuda/simt.h: blocks, warps, shared memory and atomics on one CPU thread. The
// threads of a block are fibers that run one after another from barrier to barrier, in an order chosen by the
// test. A body without a needed barrier reads unwritten values in one of the orders, and is a race in each
// (watch.h). CUDA's undefined behaviour is an error here. Cases are a barrier that some threads of the block
// do not reach, and a warp operation that some lanes skip. So is a write outside of shared memory or of all
// blocks of device memory. The blocks of a launch_together() are alive side by side. Each runs from one
// barrier of the grid to the next before the other blocks do.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include <weft/kernels/cuda/simt.h>
#include "support/simt/graph.h"
#include "support/simt/streams.h"

namespace weft::cuda {

namespace simt {

/// The order of the threads between barriers, and of the blocks.
enum class Order { kForward, kReverse, kShuffled };
/// The memory in which races of a block's threads are faults (watch.h): none, shared memory, or device memory
/// too. Blocks of a launch_together() are checked in both, unless it is none. Where the program does not see
/// accesses, it is none.
enum class RaceCheck { kNone, kShared, kAll };
/// Settings of the calls that follow. `seed` is for kShuffled; `poison` fills shared and new device memory.
struct Settings {
  Order order = Order::kForward;
  uint64_t seed = 1;
  unsigned char poison = 0xFF;
  int processors = 4;  ///< of later devices, and for launch_together
  /// shared memory of a block in bytes, on later devices and in launches; a processor has 1 KiB more
  size_t shared_memory = 227 << 10;
  /// of a thread, in all kernels; they limit the blocks that a processor holds
  int registers = 32;
  bool together = true;        ///< the device has launch_together
  bool hold_events = false;    ///< events and streams are not done before a wait for them
  bool shares_memory = false;  ///< a process may open its own memory like another process's (CUDA IPC)
  size_t device_bytes = 0;     ///< capacity of the device; 0: the whole range
  bool no_pinned = false;      ///< allocations of pinned host memory fail
  int major = 9;               ///< compute capability of later devices
  RaceCheck race_check = RaceCheck::kShared;
  /// Whether every warp operation orders the lanes' accesses. CUDA promises it of sync_warp() alone.
  bool shuffles_order = true;
  /// If not empty, launches run only these of their blocks, and of their rows of blocks: -1 is the last one.
  /// launch_together() runs all.
  std::vector<int64_t> chosen = {};
};
Settings& settings();
/// The initial settings, from WEFT_SIMT_ORDER (forward, reverse, shuffled), WEFT_SIMT_POISON (a byte such as
/// 0x7F), WEFT_SIMT_PROCESSORS and WEFT_SIMT_RACES (none, shared, all).
Settings settings_of_environment();
/// A launch broke the rules of simt.h; launch() throws it after it has left the block.
class Fault : public Error {
 public:
  using Error::Error;
};
/// The number of launches, and the grid of the calling thread's last one.
int64_t launches();
const Grid& last_grid();
/// The number of events that were asked whether they have passed.
int64_t event_queries();

/// The NVTX ranges of the calling thread since the last call: the name of each at its begin, then "end".
std::vector<std::string> take_ranges();

/// A kernel body for which the program has a launch.
struct Kernel {
  std::string file, type;
  std::atomic<bool> launched = false;
};
/// Registers a body before main. The entry lives as long as the program.
Kernel& know(const std::type_info& body, const char* file);
/// weft's kernel bodies that never ran in any instantiation: their types without template arguments, with the
/// file for types in unnamed namespaces.
std::vector<std::string> never_launched();

struct Block;
enum class WarpOp : uint8_t { kShuffle, kXor, kUp, kDown, kBallot, kSync, kMultiply };
struct Who {
  Block* block;
  int id, count;
  int64_t bx, by, nx, ny;
};
void barrier(const Who& who);
void grid_barrier(const Who& who);
/// Gives `value` to the warp and returns the value of lane `from`.
uint64_t exchange(const Who& who, WarpOp op, uint64_t value, int from);
uint32_t vote(const Who& who, bool p);
/// Tells the launch's observer of an atomic access. The access itself must not be seen (WEFT_SIMT_UNSEEN).
void note_atomic(const void* p, size_t bytes);
#define WEFT_SIMT_UNSEEN __attribute__((no_sanitize("thread")))
/// A lane's part of the operands of Thread::multiply_add.
struct Fragments {
  uint32_t a[4], b[2];
};
/// Gives the lane's part to the warp and returns the parts of all lanes.
const Fragments* share(const Who& who, const Fragments& mine);
unsigned char* shared_memory(const Who& who);
using ThreadFunction = void (*)(const void* body, const Who& who);
/// The threads for which those of a launch may wait.
enum class Waits : uint8_t { kForNone, kForBlock, kForGrid };
void run(const char* name, const Grid& grid, Waits waits, const void* body, ThreadFunction f);
/// The blocks that a processor holds at once: by shared memory, 65536 registers, 2048 threads and 32 blocks.
int64_t blocks_of_processor(int threads, size_t shared);
/// The same for the device; 0 if it starts no blocks together.
int64_t blocks_together(int threads, size_t shared);

}  // namespace simt

class Thread {
 public:
  explicit Thread(const simt::Who& who) : who_(who) {}
  int id() const { return who_.id; }
  int count() const { return who_.count; }
  int lane() const { return who_.id % kWarp; }
  int warp() const { return who_.id / kWarp; }
  int64_t block() const { return who_.bx; }
  int64_t blocks() const { return who_.nx; }
  int64_t row() const { return who_.by; }
  int64_t rows() const { return who_.ny; }
  int64_t global() const { return who_.bx * who_.count + who_.id; }
  int64_t globals() const { return who_.nx * who_.count; }

  void sync() const { simt::barrier(who_); }
  void sync_grid() const { simt::grid_barrier(who_); }
  void sync_warp() const { exchange(simt::WarpOp::kSync, 0, lane()); }
  template <class T> T* shared() const { return reinterpret_cast<T*>(simt::shared_memory(who_)); }

  template <class T> T shuffle(T v, int lane) const {
    return exchange(simt::WarpOp::kShuffle, v, lane % kWarp);
  }
  template <class T> T shuffle_xor(T v, int mask) const {
    return exchange(simt::WarpOp::kXor, v, lane() ^ mask);
  }
  template <class T> T shuffle_up(T v, int by) const {
    return exchange(simt::WarpOp::kUp, v, lane() >= by ? lane() - by : lane());
  }
  template <class T> T shuffle_down(T v, int by) const {
    return exchange(simt::WarpOp::kDown, v, lane() + by < kWarp ? lane() + by : lane());
  }
  uint32_t ballot(bool p) const { return simt::vote(who_, p); }

  template <class H> void multiply_add(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&d)[4]) const {
    const simt::Fragments* const all = simt::share(who_, {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    const auto number = [](uint32_t word, int k) {
      H h;
      h.bits = static_cast<uint16_t>(word >> (k % 2 * 16));
      return static_cast<float>(h);
    };
    for (int i = 0; i < 4; ++i) {
      const int high = i / 2, column = lane() % 4 * 2 + i % 2;  // row lane / 4, or with `high` 8 more
      float sum = d[i];
      for (int k = 0; k < 16; ++k)
        sum += number(all[lane() / 4 * 4 + k % 8 / 2].a[high + k / 8 * 2], k) *
               number(all[column * 4 + k % 8 / 2].b[k / 8], k);
      d[i] = sum;
    }
  }

  template <class T> WEFT_SIMT_UNSEEN T atomic_add(T* p, T v) const {
    simt::note_atomic(p, sizeof *p);
    const T before = *p;
    *p = static_cast<T>(before + v);
    return before;
  }
  template <class T> WEFT_SIMT_UNSEEN T atomic_max(T* p, T v) const {
    simt::note_atomic(p, sizeof *p);
    const T before = *p;
    if (v > before) *p = v;
    return before;
  }
  template <class T> WEFT_SIMT_UNSEEN T atomic_cas(T* p, T expected, T v) const {
    simt::note_atomic(p, sizeof *p);
    const T before = *p;
    if (before == expected) *p = v;
    return before;
  }

 private:
  template <class T> T exchange(simt::WarpOp op, T v, int from) const {
    static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                  "a warp passes 4 or 8 bytes on");
    uint64_t bits = 0;
    std::memcpy(&bits, &v, sizeof v);
    bits = simt::exchange(who_, op, bits, from);
    std::memcpy(&v, &bits, sizeof v);
    return v;
  }
  simt::Who who_;
};

namespace inner {
template <class Body> constexpr bool independent() {
  if constexpr (requires { Body::kIndependent; }) return Body::kIndependent;
  else return false;
}
template <class Body> inline simt::Kernel& kernel = simt::know(typeid(Body), __BASE_FILE__);

template <class Body>
void launch(void* stream, const char* name, const Grid& grid, simt::Waits waits, const Body& body) {
  if constexpr (requires { Body::kThreads; })
    if (grid.threads > Body::kThreads)
      throw simt::Fault(
          str("kernel ", name, ": ", grid.threads, " threads in a block, it takes up to ", Body::kThreads));
  static_assert(std::is_trivially_copyable_v<Body> && sizeof(Body) <= 32764,
                "a kernel's arguments are plain data of at most 32764 bytes");
  const simt::ThreadFunction function = [](const void* b, const simt::Who& who) {
    (*static_cast<const Body*>(b))(Thread(who));
  };
  if (grid.blocks <= 0 || grid.rows <= 0) return;
  const TraceSpan span(name, stream);
  const auto run = [=] {
    simt::run(name, grid, waits, &body, function);
    kernel<Body>.launched = true;
  };
  if (const auto recording = simt::recording_of(stream)) simt::record(*recording, stream, run);
  else if (simt::deferring()) simt::issue(simt::current_device(), stream, run);
  else run();
}
}  // namespace inner

template <class Body> void launch(void* stream, const char* name, const Grid& grid, const Body& body) {
  inner::launch(stream, name, grid,
                inner::independent<Body>() ? simt::Waits::kForNone : simt::Waits::kForBlock, body);
}
template <class Body> int64_t blocks_of_processor(const char*, int threads, size_t shared) {
  return simt::blocks_of_processor(threads, shared);
}
template <class Body> int64_t blocks_together(const char*, int threads, size_t shared) {
  return simt::blocks_together(threads, shared);
}
template <class Body>
void launch_together(void* stream, const char* name, const Grid& grid, const Body& body) {
  inner::launch(stream, name, grid, simt::Waits::kForGrid, body);
}

}  // namespace weft::cuda
