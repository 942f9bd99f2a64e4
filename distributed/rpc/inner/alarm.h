// The one timer of an agent, and the peers in the order of their next deadline, status or end of a lease.
#pragma once

#include <weft/distributed/rpc/inner/core.h>
#include <weft/distributed/rpc/inner/peers.h>

namespace weft::rpc {

class Alarm {
 public:
  /// At each ring `ring` runs with the delay since the time set, then `tend` for each peer whose time has
  /// come. It returns the next time of that peer.
  Alarm(AgentCore& core, std::function<void(Duration late)> ring, std::function<TimePoint(Peer&)> tend)
      : core_(core), ring_(std::move(ring)), tend_(std::move(tend)) {}
  /// Sets the time of a peer to `when`, unless it is earlier. It is never tended too late, and at most once
  /// too often.
  void set(Peer& p, TimePoint when);
  void cancel();

 private:
  void due();
  Peer* take(DueTimes& now_due);
  void queue(Peer& p, TimePoint when) WEFT_REQUIRES(mutex_);
  void start_timer() WEFT_REQUIRES(mutex_);
  AgentCore& core_;
  const std::function<void(Duration late)> ring_;
  const std::function<TimePoint(Peer&)> tend_;
  Mutex mutex_;
  DueTimes times_ WEFT_GUARDED_BY(mutex_);
  TimerId timer_ WEFT_GUARDED_BY(mutex_);
  std::atomic<TimePoint> at_{kNever};  ///< of the timer; written under the mutex
};

}  // namespace weft::rpc
