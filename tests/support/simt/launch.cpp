// The emulated launch: one fiber for each thread of a block, reused from block to block. A fiber runs until
// it waits at a barrier or a warp operation. When all fibers of the block (of the warp) wait at the same
// one, they continue.
#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <weft/distributed/sim/inner/fiber.h>
#include <weft/kernels/error.h>
#include "support/simt/memory.h"
#include "support/simt/thread.h"
#include "support/simt/watch.h"

namespace weft::cuda::simt {

namespace {
constexpr size_t kStack = 64 << 10, kGuard = 256;
std::atomic<int64_t> launch_count = 0;

enum class State : uint8_t { kReady, kAtBarrier, kAtWarp, kDone };

struct Warp {
  uint64_t slot[2][kWarp];
  Fragments fragments[2][kWarp];
  WarpOp op[kWarp];
  int arrived = 0;
};

struct Unwind {};  // leaves a thread of a block that failed
}  // namespace

struct Block {
  const char* name = "";
  Grid grid;
  const void* body = nullptr;
  ThreadFunction function = nullptr;
  int64_t bx = 0, by = 0;
  std::vector<std::unique_ptr<rpc::inner::Fiber>> fibers;
  std::vector<State> state;
  std::vector<uint8_t> parity;  // which slots the next warp operation of a thread uses
  std::vector<Warp> warps;
  std::vector<unsigned char> shared;
  std::exception_ptr failure;
  bool leaving = false;
  bool plain = false;  // threads run as plain calls and cannot wait
  Watcher* watcher = nullptr;

  Who who(int id) { return {this, id, grid.threads, bx, by, grid.blocks, grid.rows}; }
  unsigned char* shared_begin() { return shared.data() + kGuard; }

  // Shared memory of `bytes` between two guards.
  void give_shared(size_t bytes) {
    unguard(shared.data(), shared.size());
    shared.resize(bytes + 2 * kGuard);
    guard(shared.data(), kGuard);
    guard(shared_begin() + bytes, kGuard);
  }

  void grow(int threads) {
    while (static_cast<int>(fibers.size()) < threads) {
      const int id = static_cast<int>(fibers.size());
      fibers.push_back(std::make_unique<rpc::inner::Fiber>(kStack, [this, id] {
        try {
          function(body, who(id));
        } catch (const Unwind&) {
        } catch (...) {
          if (!failure) failure = std::current_exception();
        }
        state[static_cast<size_t>(id)] = State::kDone;
      }));
    }
  }

  [[noreturn]] void fail(const std::string& what) {
    throw Fault(str("kernel ", name, ", block ", bx, ": ", what));
  }

  void wait_as(int id, State s) {
    if (plain) fail("a body that is kIndependent waits for others");
    state[static_cast<size_t>(id)] = s;
    fibers[static_cast<size_t>(id)]->suspend();
    if (leaving) throw Unwind();
  }

  void run_fibers(const std::vector<int>& order) {
    std::fill(state.begin(), state.end(), State::kReady);
    for (Warp& w : warps) w.arrived = 0;
    for (bool again = true; again;) {
      again = false;
      for (const int id : order) {
        if (state[static_cast<size_t>(id)] != State::kReady) continue;
        if (watcher) watcher->resume(id);
        fibers[static_cast<size_t>(id)]->resume();
        again = true;
        if (failure) return leave(order);
      }
      if (again) {
        for (size_t w = 0; w < warps.size(); ++w) release_warp(w);
        continue;
      }
      const auto waiting = std::count(state.begin(), state.begin() + grid.threads, State::kAtBarrier);
      const auto warp_waiting = std::count(state.begin(), state.begin() + grid.threads, State::kAtWarp);
      if (waiting == 0 && warp_waiting == 0) return;
      if (waiting == grid.threads) {
        std::fill(state.begin(), state.begin() + grid.threads, State::kReady);
        if (watcher) watcher->barrier();
        again = true;
        continue;
      }
      failure =
          std::make_exception_ptr(Fault(str("kernel ", name, ", block ", bx, ": ", waiting, " of ",
                                            grid.threads, " threads wait at a barrier and ", warp_waiting,
                                            " at a warp operation that the others do not reach")));
      return leave(order);
    }
  }

  void release_warp(size_t w) {
    Warp& warp = warps[w];
    if (warp.arrived < kWarp) return;
    warp.arrived = 0;
    for (int lane = 0; lane < kWarp; ++lane)
      if (warp.op[lane] != warp.op[0] && !failure)
        failure = std::make_exception_ptr(Fault(
            str("kernel ", name, ", block ", bx, ", warp ", w, ": lanes meet in different warp operations")));
    if (watcher) watcher->warp_operation(w, warp.op[0]);
    for (int lane = 0; lane < kWarp; ++lane) state[w * kWarp + static_cast<size_t>(lane)] = State::kReady;
  }

  // Every fiber must leave its body before the next block.
  void leave(const std::vector<int>& order) {
    leaving = true;
    for (const int id : order)
      if (state[static_cast<size_t>(id)] == State::kAtBarrier ||
          state[static_cast<size_t>(id)] == State::kAtWarp)
        fibers[static_cast<size_t>(id)]->resume();
    leaving = false;
  }

  void run_block(const std::vector<int>& order) {
    std::fill_n(shared_begin(), grid.shared, settings().poison);
    if (watcher) watcher->begin_block();
    if (plain) {
      for (const int id : order) {
        if (watcher) watcher->resume(id);
        function(body, who(id));
      }
    } else {
      run_fibers(order);
    }
    const std::string race = watcher ? watcher->end_block() : "";
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
    const size_t before = first_unguarded(shared.data(), kGuard),
                 behind = first_unguarded(shared_begin() + grid.shared, kGuard);
    if (before < kGuard)
      fail(str("a write beyond shared memory, at byte -", kGuard - before, " of ", grid.shared));
    if (behind < kGuard)
      fail(str("a write beyond shared memory, at byte ", grid.shared + behind, " of ", grid.shared));
    if (!race.empty()) fail(race);
  }
};

namespace {

std::vector<int64_t> ordered(int64_t n, uint64_t salt) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (settings().order == Order::kReverse) std::reverse(order.begin(), order.end());
  if (settings().order == Order::kShuffled) {
    uint64_t state = settings().seed * 0x9E3779B97F4A7C15u + salt;
    for (size_t i = order.size(); i > 1; --i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i - 1], order[static_cast<size_t>((state >> 33) % i)]);
    }
  }
  return order;
}

/// The positions below n that run.
std::vector<int64_t> chosen(int64_t n, uint64_t salt) {
  if (settings().chosen.empty()) return ordered(n, salt);
  std::set<int64_t> some;
  for (const int64_t at : settings().chosen) some.insert(at < 0 ? n + at : at);
  std::erase_if(some, [&](int64_t at) { return at < 0 || at >= n; });
  return {some.begin(), some.end()};
}

// Fibers belong to the thread that made them.
Block& block_of_thread() {
  thread_local Block block;
  return block;
}

}  // namespace

Settings settings_of_environment() {
  Settings s;
  if (const char* const order = std::getenv("WEFT_SIMT_ORDER"); order && *order) {
    const std::string name = order;
    if (name == "reverse") s.order = Order::kReverse;
    else if (name == "shuffled") s.order = Order::kShuffled;
    else if (name != "forward")
      throw ValueError(str("WEFT_SIMT_ORDER: takes forward, reverse or shuffled, got ", name));
  }
  if (const char* const poison = std::getenv("WEFT_SIMT_POISON"); poison && *poison) {
    char* end = nullptr;
    const unsigned long byte = std::strtoul(poison, &end, 0);
    if (*end != 0 || byte > 0xFF)
      throw ValueError(str("WEFT_SIMT_POISON: takes a byte such as 0x7F, got ", poison));
    s.poison = static_cast<unsigned char>(byte);
  }
  if (const char* const processors = std::getenv("WEFT_SIMT_PROCESSORS"); processors && *processors) {
    s.processors = std::atoi(processors);
    if (s.processors < 1)
      throw ValueError(str("WEFT_SIMT_PROCESSORS: takes a number of at least 1, got ", processors));
  }
  if (const char* const races = std::getenv("WEFT_SIMT_RACES"); races && *races) {
    const std::string name = races;
    if (name == "none") s.race_check = RaceCheck::kNone;
    else if (name == "all") s.race_check = RaceCheck::kAll;
    else if (name != "shared")
      throw ValueError(str("WEFT_SIMT_RACES: takes none, shared or all, got ", name));
  }
  return s;
}
Settings& settings() {
  static Settings s = settings_of_environment();
  return s;
}
int64_t launches() { return launch_count; }
namespace {
std::deque<Kernel>& kernels() {
  static auto* const all = new std::deque<Kernel>;
  return *all;
}
}  // namespace
Kernel& know(const std::type_info& body, const char* file) {
  int status = 0;
  char* const readable = abi::__cxa_demangle(body.name(), nullptr, nullptr, &status);
  Kernel& kernel = kernels().emplace_back();
  kernel.file = file;
  kernel.file.erase(0, kernel.file.rfind('/') + 1);
  kernel.type = status == 0 ? readable : body.name();
  std::free(readable);
  return kernel;
}
std::vector<std::string> never_launched() {
  std::map<std::string, bool> launched;
  for (const Kernel& kernel : kernels()) {
    const std::string type = kernel.type.substr(0, kernel.type.find('<'));
    const bool local = type.find("(anonymous namespace)") != std::string::npos;
    const bool tests_own = kernel.file.find("_test.cpp") != std::string::npos ||
                           kernel.file.rfind("test_", 0) == 0;  // a batch of a test program's sources
    if (type.rfind("weft::", 0) == 0 && !tests_own)
      launched[local ? kernel.file + ": " + type : type] |= kernel.launched;
  }
  std::vector<std::string> never;
  for (const auto& [name, was] : launched)
    if (!was) never.push_back(name);
  return never;
}
const Grid& last_grid() { return block_of_thread().grid; }

void barrier(const Who& who) { who.block->wait_as(who.id, State::kAtBarrier); }

uint64_t exchange(const Who& who, WarpOp op, uint64_t value, int from) {
  Block& b = *who.block;
  const auto id = static_cast<size_t>(who.id);
  if (b.plain) b.fail("a body that is kIndependent uses a warp operation");
  Warp& warp = b.warps[id / kWarp];
  const uint8_t parity = b.parity[id];
  b.parity[id] ^= 1;
  warp.slot[parity][id % kWarp] = value;
  warp.op[id % kWarp] = op;
  ++warp.arrived;
  b.wait_as(who.id, State::kAtWarp);
  return warp.slot[parity][from];
}

uint32_t vote(const Who& who, bool p) {
  Block& b = *who.block;
  const auto id = static_cast<size_t>(who.id);
  const uint8_t parity = b.plain ? 0 : b.parity[id];
  exchange(who, WarpOp::kBallot, p ? 1 : 0, 0);
  uint32_t bits = 0;
  for (int lane = 0; lane < kWarp; ++lane)
    bits |= static_cast<uint32_t>(b.warps[id / kWarp].slot[parity][lane]) << lane;
  return bits;
}

const Fragments* share(const Who& who, const Fragments& mine) {
  Block& b = *who.block;
  const auto id = static_cast<size_t>(who.id);
  const uint8_t parity = b.plain ? 0 : b.parity[id];
  if (!b.plain) b.warps[id / kWarp].fragments[parity][id % kWarp] = mine;
  exchange(who, WarpOp::kMultiply, 0, 0);
  return b.warps[id / kWarp].fragments[parity];
}

unsigned char* shared_memory(const Who& who) { return who.block->shared_begin(); }

void run(void*, const char* name, const Grid& grid, bool independent, const void* body, ThreadFunction f) {
  if (grid.blocks <= 0 || grid.rows <= 0) return;
  if (grid.threads <= 0 || grid.threads > 1024 || grid.threads % kWarp != 0 ||
      grid.shared > settings().shared_memory || grid.blocks > 0x7FFFFFFF || grid.rows > 65535)
    throw Fault(str("kernel ", name, ": a grid of ", grid.blocks, " x ", grid.rows, " blocks of ",
                    grid.threads, " threads with ", grid.shared, " bytes is not possible"));
  ++launch_count;
  Block& b = block_of_thread();
  b.name = name, b.grid = grid, b.body = body, b.function = f, b.plain = independent;
  b.give_shared(grid.shared);
  b.state.resize(1024), b.parity.assign(1024, 0), b.warps.resize(static_cast<size_t>(grid.threads / kWarp));
  if (!independent) b.grow(grid.threads);
  const DeviceAccess open;
  std::optional<Watcher> watcher;
  if (Watcher::wanted(grid.shared)) watcher.emplace(name, b.shared_begin(), grid.shared);
  b.watcher = watcher ? &*watcher : nullptr;
  std::vector<int> threads;
  for (const int64_t id : ordered(grid.threads, 7)) threads.push_back(static_cast<int>(id));
  for (const int64_t row : chosen(grid.rows, 11))
    for (const int64_t block : chosen(grid.blocks, 13)) {
      b.bx = block, b.by = row;
      b.run_block(threads);
    }
  check_guards(name);
}

}  // namespace weft::cuda::simt
