// The emulated launch: one fiber for each thread of a block, reused from block to block. A fiber runs until
// it waits at a barrier or a warp operation. When all fibers of the block (of the warp) wait at the same
// one, they continue. The blocks of launch_together() have fibers each, and continue from a barrier of the
// grid when all of them wait there.
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
constexpr size_t kKept = 16;  // blocks of a thread, with their fibers
std::atomic<int64_t> launch_count = 0;

enum class State : uint8_t { kReady, kAtBarrier, kAtWarp, kAtGrid, kDone };

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
  std::vector<uint8_t> inside;  // the body: the fiber has begun it, and not left it
  std::vector<uint8_t> parity;  // which slots the next warp operation of a thread uses
  std::vector<Warp> warps;
  std::vector<unsigned char> shared;
  std::exception_ptr failure;
  bool leaving = false;
  Waits waits = Waits::kForBlock;  // kForNone: threads run as plain calls
  Watcher* watcher = nullptr;
  size_t place = 0;  // among the blocks side by side

  Who who(int id) { return {this, id, grid.threads, bx, by, grid.blocks, grid.rows}; }
  unsigned char* shared_begin() { return shared.data() + kGuard; }
  bool plain() const { return waits == Waits::kForNone; }

  void prepare(const char* kernel, const Grid& g, Waits w, const void* b, ThreadFunction f) {
    name = kernel, grid = g, waits = w, body = b, function = f;
    give_shared(g.shared);
    state.resize(1024), inside.resize(1024), parity.assign(1024, 0),
        warps.resize(static_cast<size_t>(g.threads / kWarp));
    if (!plain()) grow(g.threads);
  }

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
        inside[static_cast<size_t>(id)] = 1;
        try {
          function(body, who(id));
        } catch (const Unwind&) {
        } catch (...) {
          if (!failure) failure = std::current_exception();
        }
        inside[static_cast<size_t>(id)] = 0;
        state[static_cast<size_t>(id)] = State::kDone;
      }));
    }
  }

  [[noreturn]] void fail(const std::string& what) {
    throw Fault(str("kernel ", name, ", block ", bx, ": ", what));
  }

  void wait_as(int id, State s) {
    if (plain()) fail("a body that is kIndependent waits for others");
    state[static_cast<size_t>(id)] = s;
    fibers[static_cast<size_t>(id)]->suspend();
    if (leaving) throw Unwind();
  }

  int64_t count(State s) const { return std::count(state.begin(), state.begin() + grid.threads, s); }
  bool done() const { return count(State::kDone) == grid.threads; }
  void proceed() { std::fill(state.begin(), state.begin() + grid.threads, State::kReady); }

  void begin() {
    std::fill_n(shared_begin(), grid.shared, settings().poison);
    std::fill(state.begin(), state.end(), State::kReady);
    for (Warp& w : warps) w.arrived = 0;
  }

  // Runs the fibers until all have ended, all wait for the grid, or one has failed.
  void run_fibers(const std::vector<int>& order) {
    if (watcher) watcher->enter(place);
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
      if (done() || count(State::kAtGrid) == grid.threads) return;
      if (count(State::kAtBarrier) == grid.threads) {
        proceed();
        if (watcher) watcher->barrier();
        again = true;
        continue;
      }
      const int64_t at_grid = count(State::kAtGrid);
      failure = std::make_exception_ptr(Fault(
          str("kernel ", name, ", block ", bx, ": ", count(State::kAtBarrier), " of ", grid.threads,
              " threads wait at a barrier", at_grid > 0 ? str(", ", at_grid, " at one of the grid") : "",
              " and ", count(State::kAtWarp), " at a warp operation that the others do not reach")));
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
      if (inside[static_cast<size_t>(id)]) fibers[static_cast<size_t>(id)]->resume();
    leaving = false;
  }

  void run_block(const std::vector<int>& order) {
    begin();
    if (watcher) watcher->begin_blocks();
    if (plain()) {
      for (const int id : order) {
        if (watcher) watcher->resume(id);
        function(body, who(id));
      }
    } else {
      run_fibers(order);
    }
    end(watcher ? watcher->end_blocks() : "");
  }

  // Throws: the failure of a thread, or a fault, `race` if there is no other.
  void end(const std::string& race) {
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

// Fibers belong to the thread that made them. The first block runs the launches whose blocks come one after
// another.
std::deque<Block>& blocks_of_thread() {
  thread_local std::deque<Block> blocks(1);
  return blocks;
}

// Runs blocks side by side, each up to the next barrier of the grid before the others.
void run_together(const std::vector<Block*>& blocks, const std::vector<int>& threads, Watcher* watcher) {
  for (Block* const b : blocks) b->begin();
  if (watcher) watcher->begin_blocks();
  for (size_t waiting = blocks.size(); waiting > 0;) {
    waiting = 0;
    Block* failed = nullptr;
    for (Block* const b : blocks) {
      if (!b->done()) b->run_fibers(threads);
      if (b->failure) {
        failed = b;
        break;
      }
      if (!b->done()) ++waiting;
    }
    if (!failed && waiting > 0 && waiting < blocks.size()) {
      failed = *std::find_if(blocks.begin(), blocks.end(), [](Block* b) { return !b->done(); });
      failed->failure = std::make_exception_ptr(
          Fault(str("kernel ", failed->name, ": ", waiting, " of ", blocks.size(),
                    " blocks wait at a barrier of the grid that the others do not reach")));
    }
    if (failed) {
      for (Block* const b : blocks) b->leave(threads);
      std::rethrow_exception(std::exchange(failed->failure, nullptr));
    }
    if (waiting > 0 && watcher) watcher->grid_barrier();
    if (waiting > 0)
      for (Block* const b : blocks) b->proceed();
  }
  const std::string race = watcher ? watcher->end_blocks() : "";
  for (Block* const b : blocks) b->end("");
  if (!race.empty()) throw Fault(str("kernel ", blocks[0]->name, ": ", race));
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
const Grid& last_grid() { return blocks_of_thread()[0].grid; }
int64_t blocks_of_processor(int threads, size_t shared) {
  const Settings& s = settings();
  if (shared > s.shared_memory) return 0;
  constexpr size_t kOfSystem = 1 << 10;  // in each block
  return std::min({int64_t{32}, int64_t{2048 / threads}, int64_t{65536 / (s.registers * threads)},
                   static_cast<int64_t>((s.shared_memory + kOfSystem) / (shared + kOfSystem))});
}
int64_t blocks_together(int threads, size_t shared) {
  return settings().together ? settings().processors * blocks_of_processor(threads, shared) : 0;
}

void barrier(const Who& who) { who.block->wait_as(who.id, State::kAtBarrier); }
void grid_barrier(const Who& who) {
  if (who.block->waits != Waits::kForGrid)
    who.block->fail("a barrier of the grid in a launch whose blocks do not run together");
  who.block->wait_as(who.id, State::kAtGrid);
}

uint64_t exchange(const Who& who, WarpOp op, uint64_t value, int from) {
  Block& b = *who.block;
  const auto id = static_cast<size_t>(who.id);
  if (b.plain()) b.fail("a body that is kIndependent uses a warp operation");
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
  const uint8_t parity = b.plain() ? 0 : b.parity[id];
  exchange(who, WarpOp::kBallot, p ? 1 : 0, 0);
  uint32_t bits = 0;
  for (int lane = 0; lane < kWarp; ++lane)
    bits |= static_cast<uint32_t>(b.warps[id / kWarp].slot[parity][lane]) << lane;
  return bits;
}

const Fragments* share(const Who& who, const Fragments& mine) {
  Block& b = *who.block;
  const auto id = static_cast<size_t>(who.id);
  const uint8_t parity = b.plain() ? 0 : b.parity[id];
  if (!b.plain()) b.warps[id / kWarp].fragments[parity][id % kWarp] = mine;
  exchange(who, WarpOp::kMultiply, 0, 0);
  return b.warps[id / kWarp].fragments[parity];
}

unsigned char* shared_memory(const Who& who) { return who.block->shared_begin(); }

void run(const char* name, const Grid& grid, Waits waits, const void* body, ThreadFunction f) {
  if (grid.blocks <= 0 || grid.rows <= 0) return;
  if (grid.threads <= 0 || grid.threads > 1024 || grid.threads % kWarp != 0 ||
      grid.shared > settings().shared_memory || grid.blocks > 0x7FFFFFFF || grid.rows > 65535)
    throw Fault(str("kernel ", name, ": a grid of ", grid.blocks, " x ", grid.rows, " blocks of ",
                    grid.threads, " threads with ", grid.shared, " bytes is not possible"));
  const bool together = waits == Waits::kForGrid;
  if (const int64_t most = blocks_together(grid.threads, grid.shared);
      together && grid.blocks * grid.rows > most)
    throw Fault(str("kernel ", name, ": ", grid.blocks * grid.rows,
                    " blocks cannot run together, the device holds ", most));
  ++launch_count;
  std::deque<Block>& blocks = blocks_of_thread();
  const auto alive = together ? static_cast<size_t>(grid.blocks * grid.rows) : 1;
  while (blocks.size() < alive) blocks.emplace_back();
  while (blocks.size() > std::max(alive, kKept)) blocks.pop_back();
  std::vector<const unsigned char*> shared;
  for (size_t i = 0; i < alive; ++i) {
    blocks[i].prepare(name, grid, waits, body, f);
    blocks[i].place = i;
    shared.push_back(blocks[i].shared_begin());
  }
  const DeviceAccess open;
  std::optional<Watcher> watcher;
  if (Watcher::wanted(grid.shared, together)) watcher.emplace(name, shared, grid.shared, together);
  for (size_t i = 0; i < alive; ++i) blocks[i].watcher = watcher ? &*watcher : nullptr;
  std::vector<int> threads;
  for (const int64_t id : ordered(grid.threads, 7)) threads.push_back(static_cast<int>(id));
  if (together) {
    std::vector<Block*> order;
    for (const int64_t at : ordered(static_cast<int64_t>(alive), 13)) {
      Block& b = *order.emplace_back(&blocks[static_cast<size_t>(at)]);
      b.bx = at % grid.blocks, b.by = at / grid.blocks;
    }
    run_together(order, threads, watcher ? &*watcher : nullptr);
  } else {
    for (const int64_t row : chosen(grid.rows, 11))
      for (const int64_t block : chosen(grid.blocks, 13)) {
        blocks[0].bx = block, blocks[0].by = row;
        blocks[0].run_block(threads);
      }
  }
  check_guards(name);
}

}  // namespace weft::cuda::simt
