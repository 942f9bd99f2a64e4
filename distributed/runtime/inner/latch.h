// A latch on a futex word: one thread sets it, others wait for it. Events, pool threads and polling threads
// sleep on latches. Internal to the threaded runtime. Thread safety: every member from any thread.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <ctime>

#include <weft/distributed/runtime/runtime.h>

namespace weft::rpc::inner {

inline TimePoint clock_now() {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}

/// The word has three bits. They mean that the latch is set; a thread sleeps on the word; a waiting thread
/// polls a completion queue and must be kicked. After its exchange, set() uses only the address of the word.
/// So a latch may be destroyed as soon as a wait has returned.
class Latch {
 public:
  static constexpr uint32_t kSet = 1, kWaited = 2, kPolled = 4;

  /// Sets the latch and wakes sleepers. True if a waiting thread polls and must be kicked.
  bool set() {
    const uint32_t old = word_.exchange(kSet, std::memory_order_seq_cst);
    if ((old & kWaited) != 0) wake_all();
    return (old & kPolled) != 0;
  }
  void reset() {
    uint32_t expected = kSet;
    word_.compare_exchange_strong(expected, 0, std::memory_order_acq_rel);
  }
  bool is_set() const { return (word_.load(std::memory_order_acquire) & kSet) != 0; }

  /// Wakes sleepers without setting the latch. False: there were none.
  bool nudge() {
    uint32_t old = word_.load(std::memory_order_relaxed);
    while ((old & kWaited) != 0 && (old & kSet) == 0) {
      if (!word_.compare_exchange_weak(old, old & ~kWaited, std::memory_order_seq_cst)) continue;
      wake_all();
      return true;
    }
    return false;
  }

  /// Announces a waiter. True: the latch is set already, and no waiter is announced.
  bool announce() { return mark(kWaited); }
  bool announce_poll() { return mark(kPolled); }
  void end_poll() { word_.fetch_and(~kPolled, std::memory_order_acq_rel); }

  /// Sleeps on an announced latch until it changes, at most until `deadline`; may wake spuriously.
  void sleep(TimePoint deadline) {
    const uint32_t now = word_.load(std::memory_order_acquire);
    if ((now & kSet) != 0 || (now & kWaited) == 0) return;
#if defined(__SANITIZE_THREAD__)
    // The thread sanitizer runs the handler of a signal between calls that it knows, and not within this one.
    deadline = std::min(deadline, clock_now() + std::chrono::seconds(1));
#endif
    timespec ts{};
    timespec* limit = nullptr;
    if (deadline != kNever) {
      const auto ns = std::max<int64_t>(0, deadline.time_since_epoch().count());
      ts.tv_sec = ns / 1'000'000'000;
      ts.tv_nsec = ns % 1'000'000'000;
      limit = &ts;
    }
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word_), FUTEX_WAIT_BITSET_PRIVATE, now, limit, nullptr,
            FUTEX_BITSET_MATCH_ANY);
  }

  /// Spins for at most `limit`. True: the latch is set.
  bool spin(Duration limit) const {
    if (is_set()) return true;
    if (limit <= Duration::zero()) return false;
    const TimePoint end = clock_now() + limit;
    do {
      for (int i = 0; i < 16; ++i) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (is_set()) return true;
      }
    } while (clock_now() < end);
    return false;
  }

 private:
  bool mark(uint32_t bit) {
    uint32_t old = word_.load(std::memory_order_acquire);
    while ((old & kSet) == 0) {
      if (word_.compare_exchange_weak(old, old | bit, std::memory_order_seq_cst)) return false;
    }
    return true;
  }
  void wake_all() {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

  std::atomic<uint32_t> word_{0};
};

}  // namespace weft::rpc::inner
