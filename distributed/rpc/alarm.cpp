// The timer of an agent. It keeps no reference to the agent: a timer that rings after the end does nothing.
// set() only makes the time of a peer earlier. due() tends the peers without the mutex. One ring costs the
// peers that are due, and not all peers.
//
// Most calls of set() find an earlier time and take no lock. Their caller has put its work where tend() looks
// for it. If such a set() did not see that due() has taken the peer, that due() tends it later and finds the
// work.
#include <weft/distributed/rpc/inner/alarm.h>

#include <new>
#include <utility>

namespace weft::rpc {

void Alarm::set(Peer& p, TimePoint when) {
  if (when == kNever || (p.due.load() <= when && at_.load() <= when) || !core_.running) return;
  MutexLock lock(mutex_);
  const TimePoint before = p.due.load();
  if (before > when) {
    DueTimes::node_type place;
    if (before != kNever) place = times_.extract(p.place);
    else place = DueTimes{{when, &p}}.extract(when);
    queue(std::move(place), when);
  }
  start_timer();
}

/// Gives a peer that has no time a place in the order.
void Alarm::queue(DueTimes::node_type place, TimePoint when) {
  Peer& p = *place.mapped();
  place.key() = when;
  p.place = times_.insert(std::move(place));
  p.due = when;
}

/// Sets the timer to the first time, unless it rings earlier.
void Alarm::start_timer() {
  const TimePoint when = times_.empty() ? kNever : times_.begin()->first;
  if (at_.load() <= when || !core_.running) return;
  if (timer_.value != 0) core_.runtime->cancel(std::exchange(timer_, {}));
  at_ = kNever;  // if there is no memory for a timer
  timer_ = core_.runtime->call_at(when, [this, weak = core_.owner.weak_from_this()] {
    if (const auto agent = weak.lock()) due();
  });
  at_ = std::max(when, core_.runtime->now());  // due() measures its delay against this
}

void Alarm::due() {
  Duration late;
  DueTimes now_due;
  {
    MutexLock lock(mutex_);
    const TimePoint now = core_.runtime->now();
    late = now - at_.load();
    timer_ = {};
    at_ = kNever;
    while (!times_.empty() && times_.begin()->first <= now) {
      times_.begin()->second->due = kNever;
      now_due.insert(now_due.end(), times_.extract(times_.begin()));
    }
  }
  if (!core_.running) return;
  const auto next = [&](TimePoint when) {
    auto place = now_due.extract(now_due.begin());
    MutexLock lock(mutex_);
    const TimePoint other = place.mapped()->due.load();  // set meanwhile
    if (other <= when) return;
    if (other != kNever) times_.erase(place.mapped()->place);
    queue(std::move(place), when);
  };
  try {
    ring_(late);
    while (!now_due.empty()) next(tend_(*now_due.begin()->second));
    MutexLock lock(mutex_);
    start_timer();
  } catch (const std::bad_alloc&) {  // the rest of the due work has its turn soon
    const TimePoint soon = core_.runtime->now() + core_.options.retry;
    while (!now_due.empty()) next(soon);
    MutexLock lock(mutex_);
    start_timer();
  }
}

void Alarm::cancel() {
  MutexLock lock(mutex_);
  if (timer_.value != 0) core_.runtime->cancel(timer_);
  timer_ = {};
  at_ = kNever;
}

}  // namespace weft::rpc
