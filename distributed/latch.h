// A futex word that is set by one side and waited for by others: what an Event, a pool thread and a polling thread sleep on. Inner part
// of the threaded runtime. Thread safety: every member from any thread.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <ctime>

#include <weft/distributed/runtime.h>

namespace weft::rpc::inner {

inline TimePoint clock_now() {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}

/// Three bits: set; somebody sleeps on the word; somebody polls a completion queue meanwhile and must be kicked.
/// set() touches nothing after its exchange but the address it wakes, so a latch may be destroyed as soon as a wait returned.
class Latch {
 public:
  static constexpr uint32_t kSet = 1, kWaited = 2, kPolled = 4;

  /// Sets it and wakes sleepers. True if somebody polls for it.
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

  /// Wakes sleepers without setting it. False: there were none.
  bool nudge() {
    uint32_t old = word_.load(std::memory_order_relaxed);
    while ((old & kWaited) != 0 && (old & kSet) == 0) {
      if (!word_.compare_exchange_weak(old, old & ~kWaited, std::memory_order_seq_cst)) continue;
      wake_all();
      return true;
    }
    return false;
  }

  /// Marks it as waited for; true if it is set already, and then not marked.
  bool announce() { return mark(kWaited); }
  bool announce_poll() { return mark(kPolled); }
  void end_poll() { word_.fetch_and(~kPolled, std::memory_order_acq_rel); }

  /// Sleeps until something happens to an announced latch, until `deadline` at most; may return for no reason.
  void sleep(TimePoint deadline) {
    const uint32_t now = word_.load(std::memory_order_acquire);
    if ((now & kSet) != 0 || (now & kWaited) == 0) return;
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

  /// Looks at it for `limit` without sleeping.
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
