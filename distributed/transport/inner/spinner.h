// Looks for events for a short time before a thread sleeps. To wake a sleeping thread takes 5 to 50 us,
// longer than a short call. So a thread that expects the next message soon looks for it some more.
//
// A look costs a processor that others may need. So one thread of the process spins at a time. After a spin
// without an event the next polls sleep at once: one, then two, four, at most 256. A spin with an event
// halves that number. One during which the thread has lost its processor counts as eight without: others wait
// for the processor. Internal to the same-host lane.
#pragma once

#include <algorithm>
#include <atomic>

#include <weft/distributed/runtime/runtime.h>
#include <weft/kernels/macros.h>

namespace weft::rpc::inner {

/// Thread safety: one thread at a time.
class WEFT_API Spinner {
 public:
  /// `longest`: of one spin; zero or less: there is none.
  explicit Spinner(Duration longest) : longest_(longest) {}

  /// Calls `look` until it returns other than 0, or for the longest time by the clock `now`. Returns its last
  /// result, or 0 where it was not called.
  template <class Look, class Clock> int spin(Look look, Clock now) {
    if (longest_ <= Duration::zero()) return 0;
    if (skips_ > 0) return --skips_, 0;
    const Alone alone;
    if (!alone.first) return 0;
    const TimePoint begin = now();
    for (TimePoint last = begin;;) {
      const int found = look();
      const TimePoint here = now();
      if (found != 0) return failures_ = std::max(0, failures_ - 1), found;
      const bool lost = here - last > kLostProcessor;
      if (lost || here - begin >= longest_) return fail(lost ? kLostCounts : 1), 0;
      last = here;
    }
  }

 private:
  static constexpr Duration kLostProcessor = std::chrono::microseconds(100);
  static constexpr int kLostCounts = 8, kMostFailures = 9;

  /// Whether no other thread of the process spins.
  struct Alone {
    Alone() : first(!spins_.exchange(true)) {}
    ~Alone() {
      if (first) spins_.store(false);
    }
    Alone(const Alone&) = delete;
    const bool first;
  };

  void fail(int count) {
    failures_ = std::min(failures_ + count, kMostFailures);
    skips_ = 1 << (failures_ - 1);
  }

  static inline std::atomic<bool> spins_{false};
  const Duration longest_;
  int failures_ = 0;  // less the spins that found an event since
  int skips_ = 0;     // polls that do not spin
};

}  // namespace weft::rpc::inner
