// The calls that GCC makes with -fsanitize=thread, and the observer that gets them. Neither this file nor the
// linker gets that option. A call from host code finds no observer, or an address outside of shared and
// device memory, and does nothing. Atomics of host code do their work here.
#include "support/simt/watch.h"

#include <algorithm>
#include <deque>

#include "support/simt/memory.h"

namespace weft::cuda::simt {

namespace {

constinit thread_local Watcher* running = nullptr;

/// The shadows of the memories, and the time that they share.
struct Shadows {
  Epochs epochs;
  std::deque<Shadow> shared;     // of each of the blocks side by side
  std::optional<Shadow> device;  // made when it is first needed
};
Shadows& shadows() {
  static auto* const all = new Shadows;
  return *all;
}

const char* name_of(Access kind) {
  return kind == Access::kRead ? "read" : kind == Access::kWrite ? "write" : "atomic";
}

}  // namespace

bool sees_accesses() {
#if defined(WEFT_SIMT_WATCHED)
  return true;
#else
  return false;
#endif
}

bool Watcher::wanted(size_t shared_bytes, bool together) {
  const RaceCheck check = settings().race_check;
  return sees_accesses() &&
         (check == RaceCheck::kAll || (check == RaceCheck::kShared && (shared_bytes > 0 || together)) ||
          TrafficCount::current());
}

Watcher::Watcher(const char* kernel, const std::vector<const unsigned char*>& shared, size_t shared_bytes,
                 bool together)
    : device_{reinterpret_cast<uintptr_t>(backing().base), backing().bytes, false,
              settings().race_check >= (together ? RaceCheck::kShared : RaceCheck::kAll)} {
  if (device_.checked && !shadows().device) shadows().device.emplace(device_.bytes);
  while (shadows().shared.size() < shared.size()) shadows().shared.emplace_back(size_t{1} << 20);
  if (TrafficCount* const count = TrafficCount::current()) traffic_ = &count->entry(kernel);
  for (const unsigned char* const each : shared)
    sides_.push_back(
        {{reinterpret_cast<uintptr_t>(each), shared_bytes, true, settings().race_check != RaceCheck::kNone},
         {},
         std::vector<WarpTraffic>(traffic_ ? kMostThreads / kWarp : 0)});
  running = this;
}
Watcher::~Watcher() { running = nullptr; }

void Watcher::begin_blocks() {
  found_.reset();
  new_epochs();
}

void Watcher::new_epochs() {
  Epochs& epochs = shadows().epochs;
  epochs.fence();
  for (size_t i = 0; i < sides_.size(); ++i) sides_[i].clock.epoch = epochs.next(static_cast<int>(i));
}

void Watcher::barrier() {
  Side& side = sides_[block_];
  side.clock.epoch = shadows().epochs.next(static_cast<int>(block_));
  if (traffic_)
    for (WarpTraffic& warp : side.warps) warp.flush(*traffic_);
}

void Watcher::grid_barrier() {
  new_epochs();
  flush_all();
}

void Watcher::warp_operation(size_t warp, WarpOp op) {
  Side& side = sides_[block_];
  if (settings().shuffles_order || op == WarpOp::kSync) ++side.clock.turn[warp];
  if (traffic_) side.warps[warp].flush(*traffic_);
}

void Watcher::flush_all() {
  for (Side& side : sides_)
    for (WarpTraffic& warp : side.warps) warp.flush(*traffic_);
}

std::string Watcher::end_blocks() {
  flush_all();
  if (!found_) return "";
  const auto& [race, shared] = *found_;
  std::string place = str("byte ", race.at, " of shared memory");
  if (!shared) {
    const auto offset = offset_in_block(reinterpret_cast<const void*>(device_.begin + race.at));
    place = offset ? str("byte ", *offset, " of a block of device memory")
                   : str("byte ", race.at, " of the device's memory, in no block");
  }
  const bool apart = race.first_block != race.second_block;
  const auto block = [&](int at) { return apart ? str(" of block ", at) : std::string(); };
  return str("a race of threads ", race.first, block(race.first_block), " (", name_of(race.did_first),
             ") and ", race.second, block(race.second_block), " (", name_of(race.did_second), ") for ", place,
             ", with no barrier ", apart ? "of the grid " : "", "between");
}

void Watcher::access(const void* p, size_t bytes, Access kind, const void* site) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  for (const Memory* const memory : {&sides_[block_].shared, &device_})  // an address before it wraps around
    if (address - memory->begin < memory->bytes)
      return access(*memory, address - memory->begin, bytes, kind, site);
}

void Watcher::access(const Memory& memory, size_t at, size_t bytes, Access kind, const void* site) {
  bytes = std::min(bytes, memory.bytes - at);
  Side& side = sides_[block_];
  if (memory.checked && !found_) {
    Shadows& all = shadows();
    Shadow& shadow = memory.shared ? all.shared[block_] : *all.device;
    if (const auto race = shadow.access(at, bytes, kind, Mark::of(side.clock, thread_), all.epochs))
      found_ = Found{*race, memory.shared};
  }
  if (!traffic_ || kind == Access::kAtomic) return;
  for (size_t done = 0; done < bytes; done += 16)
    side.warps[static_cast<size_t>(thread_ / kWarp)].access(
        thread_ % kWarp, {site, memory.shared, kind == Access::kWrite, at + done,
                          static_cast<uint32_t>(std::min<size_t>(16, bytes - done))});
}

void note_atomic(const void* p, size_t bytes) {
  if (running) running->access(p, bytes, Access::kAtomic, nullptr);
}

}  // namespace weft::cuda::simt

#if defined(WEFT_SIMT_WATCHED)

using weft::cuda::simt::Access;

namespace {
inline void see(const void* p, size_t bytes, Access kind, const void* site) {
  if (weft::cuda::simt::running) weft::cuda::simt::running->access(p, bytes, kind, site);
}
}  // namespace

#define WEFT_SITE __builtin_return_address(0)
#define WEFT_SEE(bytes)                                                                    \
  void __tsan_read##bytes(void* p) { see(p, bytes, Access::kRead, WEFT_SITE); }            \
  void __tsan_write##bytes(void* p) { see(p, bytes, Access::kWrite, WEFT_SITE); }          \
  void __tsan_volatile_read##bytes(void* p) { see(p, bytes, Access::kAtomic, WEFT_SITE); } \
  void __tsan_volatile_write##bytes(void* p) { see(p, bytes, Access::kAtomic, WEFT_SITE); }

#define WEFT_UPDATE(bits, T, name) \
  T __tsan_atomic##bits##_##name(volatile T* p, T v, int) { return __atomic_##name(p, v, __ATOMIC_SEQ_CST); }
#define WEFT_REPLACE(bits, T, strength)                                                               \
  bool __tsan_atomic##bits##_compare_exchange_##strength(volatile T* p, T* expected, T v, int, int) { \
    return __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
  }
#define WEFT_ATOMICS(bits, T)                                                                             \
  T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) {                                             \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                   \
  }                                                                                                       \
  WEFT_UPDATE(bits, T, fetch_add)                                                                         \
  WEFT_UPDATE(bits, T, fetch_sub)                                                                         \
  WEFT_UPDATE(bits, T, fetch_and)                                                                         \
  WEFT_UPDATE(bits, T, fetch_or)                                                                          \
  WEFT_UPDATE(bits, T, fetch_xor)                                                                         \
  WEFT_REPLACE(bits, T, strong)                                                                           \
  WEFT_REPLACE(bits, T, weak)

extern "C" {

void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void* p, size_t bytes) { see(p, bytes, Access::kRead, WEFT_SITE); }
void __tsan_write_range(void* p, size_t bytes) { see(p, bytes, Access::kWrite, WEFT_SITE); }
WEFT_SEE(1)
WEFT_SEE(2)
WEFT_SEE(4)
WEFT_SEE(8)
WEFT_SEE(16)
WEFT_ATOMICS(8, uint8_t)
WEFT_ATOMICS(16, uint16_t)
WEFT_ATOMICS(32, uint32_t)
WEFT_ATOMICS(64, uint64_t)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

}  // extern "C"

#endif
