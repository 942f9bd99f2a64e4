// Looks for events for a short time before a thread sleeps. To wake a sleeping thread takes 5 to 50 us,
// longer than a short call. So a thread whose last wait was short looks for the next message some more. If
// both ends of a conversation do so, neither sleeps.
//
// A look costs a processor that others may need. So one thread of the process spins at a time, and lets
// threads that wait for its processor run between two looks. After a longer wait the next poll sleeps at
// once. After a spin during which the thread was without its processor for long, many polls do. Internal to
// the transport.
#pragma once

#include <atomic>
#include <thread>

#include <weft/distributed/runtime/runtime.h>
#include <weft/kernels/macros.h>

namespace weft::rpc::inner {

/// About the time in which a thread is woken, and longer than a short call between threads that are awake.
inline constexpr Duration kDefaultSpin = std::chrono::microseconds(50);

/// Thread safety: one thread at a time.
class WEFT_API Spinner {
 public:
  /// `longest`: of one spin; zero or less: there is none.
  explicit Spinner(Duration longest) : longest_(longest) {}

  /// The events of a poll: those that `look` finds, else those for which `sleep` waits. Both return their
  /// number, and `now` is the clock. Looks if the last wait was short: in four times the longest spin two
  /// threads are woken.
  template <class Look, class Sleep, class Clock> int poll(Look look, Sleep sleep, Clock now) {
    if (longest_ <= Duration::zero()) return sleep();
    const TimePoint begin = now();
    int found = 0;
    if (skips_ > 0) --skips_;
    else if (was_short_) found = spin(look, now, begin);
    if (found == 0) found = sleep();
    was_short_ = found > 0 && now() - begin <= 4 * longest_;
    return found;
  }

 private:
  static constexpr Duration kLostProcessor = std::chrono::microseconds(100);
  static constexpr int kSkipsAfterLoss = 128;

  /// Whether no other thread of the process spins.
  struct Alone {
    Alone() : first(!spins_.exchange(true)) {}
    ~Alone() {
      if (first) spins_.store(false);
    }
    Alone(const Alone&) = delete;
    const bool first;
  };

  template <class Look, class Clock> int spin(Look& look, Clock& now, TimePoint begin) {
    const Alone alone;
    if (!alone.first) return 0;
    for (TimePoint last = begin;;) {
      const int found = look();
      if (found != 0) return found;
      const TimePoint here = now();
      if (here - last > kLostProcessor) return skips_ = kSkipsAfterLoss, 0;
      if (here - begin >= longest_) return 0;
      std::this_thread::yield();
      last = here;
    }
  }

  static inline std::atomic<bool> spins_{false};
  const Duration longest_;
  bool was_short_ = false;  // the last wait
  int skips_ = 0;           // polls that do not spin
};

/// The longest spin by GrpcOptions::spin.
WEFT_API Duration longest_spin(Duration option);

}  // namespace weft::rpc::inner
