// The progress of the incomplete messages on a connection: the times since when each waits for its next byte.
// The reader notes it after each frame, and a timer asks when the longest wait is over. At most one timer is
// set per connection. Internal to the gRPC transport.
#pragma once

#include <algorithm>
#include <array>

#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/inner/frame.h>

namespace weft::rpc::inner {

/// Thread safety: note() by the reader of the connection, due() by the timer.
class Progress {
 public:
  explicit Progress(Duration limit) : limit_(limit) {}

  /// After a frame. True: an incomplete message waits, and the timer is to be set for `limit` from now.
  bool note(const Decoder& decoder, TimePoint now) {
    const bool partial = decoder.is_partial(0) || decoder.is_partial(1);
    if (!std::exchange(was_partial_, partial) && !partial) return false;
    MutexLock lock(mutex_);
    for (size_t channel = 0; channel < waits_since_.size(); ++channel) {
      const uint64_t before = std::exchange(seen_[channel], decoder.progress(channel));
      if (!decoder.is_partial(channel)) {
        waits_since_[channel] = kNever;
        continue;
      }
      if (before != seen_[channel]) waits_since_[channel] = now;
    }
    return partial && !std::exchange(timed_, true);
  }

  /// The timer, which was set for `when`, runs. Returns the time to set it for: kNever, no message waits; 0,
  /// one has waited too long.
  TimePoint due(TimePoint now, TimePoint when) {
    MutexLock lock(mutex_);
    const TimePoint first = *std::min_element(waits_since_.begin(), waits_since_.end());
    timed_ = first != kNever;
    if (!timed_) return kNever;
    if (now < first + limit_) return first + limit_;
    // this process was suspended, and has not yet read the bytes that came meanwhile
    return now - when > limit_ / 4 ? now + limit_ : TimePoint();
  }

 private:
  const Duration limit_;
  std::array<uint64_t, kChannels> seen_{};  // used by the reader only, like the next one
  bool was_partial_ = false;
  Mutex mutex_;
  std::array<TimePoint, kChannels> waits_since_ WEFT_GUARDED_BY(mutex_){kNever, kNever};
  bool timed_ WEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::rpc::inner
