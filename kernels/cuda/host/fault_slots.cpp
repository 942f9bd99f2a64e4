// The fault records of host threads, and the typed error for each kind of fault. A record is pinned memory
// that kernels write to. When its thread ends, the record goes to the list left_. There of_thread() reuses it
// if it is clean, and raise() throws the fault that it still holds.
#include <weft/kernels/cuda/host/fault_slots.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>

#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/error.h>

namespace weft::cuda {

namespace {

/// The records of one thread, by device.
struct Mine {
  std::array<Fault*, kMaxDevices> of{};
  ~Mine() {
    for (size_t i = 0; i < of.size(); ++i)
      if (of[i]) FaultSlots::of(static_cast<int>(i)).leave(of[i]);
  }
};

int32_t kind_of(Fault& slot) { return std::atomic_ref(slot.kind).load(std::memory_order_acquire); }

void throw_what(Fault& slot) {
  const int32_t kind = kind_of(slot);
  // claimed: a running kernel fills it; a later wait reports it
  if (kind == Fault::kNone || kind == Fault::kClaimed) return;
  const Fault seen = slot;
  std::atomic_ref(slot.kind).store(Fault::kNone, std::memory_order_release);
  switch (kind) {
    case Fault::kIndex:
      throw IndexError(str("index ", seen.value, " at position ", seen.position, " is out of range [0, ",
                           seen.bound, ")"));
    case Fault::kTarget:
      throw IndexError(
          str("target ", seen.value, " in row ", seen.position, " is not in [0, ", seen.bound, ")"));
    case Fault::kWeight:
      throw ValueError(str("multinomial: weight ", seen.number, " of class ", seen.value, " in row ",
                           seen.position, " is negative or not finite"));
    case Fault::kNoWeight:
      throw ValueError(str("multinomial: the weights of row ", seen.position, " sum to ", seen.number));
    case Fault::kChance:
      throw ValueError(
          str("bernoulli: probability ", seen.number, " of element ", seen.position, " is outside [0, 1]"));
    default:
      throw ValueError(str("multinomial: row ", seen.position, " has ", seen.value, " positive weights, ",
                           seen.bound, " draws without replacement"));
  }
}

}  // namespace

FaultSlots& FaultSlots::of(int device) {
  static FaultSlots* const all = new FaultSlots[kMaxDevices];  // never destroyed
  return all[device];
}

Fault* FaultSlots::of_thread() {
  thread_local Mine mine;
  Fault*& slot = mine.of[static_cast<size_t>(this - &of(0))];
  if (slot) return slot;
  const std::lock_guard lock(mutex_);
  const auto clean =
      std::find_if(left_.begin(), left_.end(), [](Fault* f) { return kind_of(*f) == Fault::kNone; });
  if (clean != left_.end()) {
    slot = *clean;
    left_.erase(clean);
    return slot;
  }
  void* const p = runtime::allocate_pinned(sizeof(Fault));
  if (!p) throw OutOfMemoryError("cuda: no pinned memory for the fault record");
  return slot = new (p) Fault;
}

void FaultSlots::raise(Fault* of) {
  if (of) throw_what(*of);
  const std::lock_guard lock(mutex_);
  for (Fault* const f : left_) throw_what(*f);
}

void FaultSlots::leave(Fault* slot) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    left_.push_back(slot);
  } catch (const std::bad_alloc&) {  // the record is leaked
  }
}

}  // namespace weft::cuda
