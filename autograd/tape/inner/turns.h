// The turns of the threads that call one compiled function. One call at a time has the turn: it may record or
// replay. All others are guests, and run f. While a call is exclusive, guests wait. A replay that writes does
// not take the locks that f takes, so it must not meet f. An exclusive call runs kernels alone, so the wait
// is short, and it cannot wait for a guest.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft::trace {

class Turns {
 public:
  /// Takes the turn, or enters as a guest (false). Waits for the end of an exclusive call.
  bool enter() {
    for (uint32_t now = state_.load(std::memory_order_acquire);;) {
      if (now & kExclusive) {
        state_.wait(now, std::memory_order_acquire);
        now = state_.load(std::memory_order_acquire);
      } else if (now & kTaken) {
        if (!state_.compare_exchange_weak(now, now + kGuest, std::memory_order_acq_rel)) continue;
        guests_.fetch_add(1, std::memory_order_relaxed);
        return false;
      } else if (state_.compare_exchange_weak(now, now | kTaken, std::memory_order_acq_rel)) {
        return true;
      }
    }
  }
  /// Makes the call that has the turn a guest.
  void yield() {
    guests_.fetch_add(1, std::memory_order_relaxed);
    state_.fetch_add(kGuest - kTaken, std::memory_order_acq_rel);
  }
  void leave(bool has_turn) { state_.fetch_sub(has_turn ? kTaken : kGuest, std::memory_order_acq_rel); }

  /// Makes the call that has the turn exclusive. False if there are guests.
  bool exclude() {
    uint32_t now = state_.load(std::memory_order_acquire);
    while (now < kGuest)
      if (state_.compare_exchange_weak(now, now | kExclusive, std::memory_order_acq_rel)) return true;
    return false;
  }
  void admit() {
    state_.fetch_and(~kExclusive, std::memory_order_acq_rel);
    state_.notify_all();
  }
  /// The guests so far.
  uint64_t guests() const { return guests_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kTaken = 1, kExclusive = 2, kGuest = 4;
  std::atomic<uint32_t> state_{0};  // the flags, and the number of guests times kGuest
  std::atomic<uint64_t> guests_{0};
};

/// Makes the call that has the turn exclusive for its lifetime, if it is the only one.
class Exclusive {
 public:
  explicit Exclusive(Turns& turns) : turns_(turns), alone_(turns.exclude()) {}
  ~Exclusive() {
    if (alone_) turns_.admit();
  }
  Exclusive(const Exclusive&) = delete;
  explicit operator bool() const { return alone_; }

 private:
  Turns& turns_;
  const bool alone_;
};

}  // namespace weft::trace
