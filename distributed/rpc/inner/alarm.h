// The one timer of an agent, set to the next deadline, status or end of a lease of any peer.
#pragma once

#include <weft/distributed/rpc/inner/core.h>

namespace weft::rpc {

class Alarm {
 public:
  /// `ring` runs at the time set, with the delay since then, while the agent runs.
  Alarm(AgentCore& core, std::function<void(Duration late)> ring) : core_(core), ring_(std::move(ring)) {}
  /// Sets it to `when`, unless it rings earlier. It never rings too late, and at most once too often.
  void set(TimePoint when);
  void cancel();

 private:
  void due();
  AgentCore& core_;
  const std::function<void(Duration late)> ring_;
  Mutex mutex_;
  TimerId timer_ WEFT_GUARDED_BY(mutex_);
  std::atomic<TimePoint> at_{kNever};  ///< written under the mutex
};

}  // namespace weft::rpc
