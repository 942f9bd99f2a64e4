// The timer of an agent. It keeps no reference to the agent: a timer that rings after the end does nothing.
// set() only makes the time of a peer earlier. due() tends the peers without the mutex. One ring costs the
// peers that are due, and not all peers.
//
// Most calls of set() find an earlier time and take no lock. Their caller has put its work where tend() looks
// for it. If such a set() did not see that due() has taken the peer, that due() tends it later and finds the
// work.
#include <weft/distributed/rpc/inner/alarm.h>

#include <utility>

namespace weft::rpc {

namespace {
constexpr TimePoint kRinging = TimePoint::min();  ///< of a peer that due() is going to tend
}

void Alarm::set(Peer& p, TimePoint when) {
  if (when == kNever || (p.place.due_.load() <= when && at_.load() <= when) || !core_.running) return;
  MutexLock lock(mutex_);
  queue(p, when);
  start_timer();
}

/// Makes the time of a peer earlier. This needs no memory.
void Alarm::queue(Peer& p, TimePoint when) {
  DuePlace& place = p.place;
  const TimePoint before = place.due_.load();
  if (before <= when) return;
  if (before != kNever) place.node_ = times_.extract(place.at_);
  place.node_.key() = when;
  place.at_ = times_.insert(std::move(place.node_));
  place.due_ = when;
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

/// The next peer to tend; null: all have had their turn. From now on it may get another time.
Peer* Alarm::take(DueTimes& now_due) {
  if (now_due.empty()) return nullptr;
  Peer* const p = now_due.begin()->second;
  MutexLock lock(mutex_);
  p->place.node_ = now_due.extract(now_due.begin());
  p->place.due_ = kNever;
  return p;
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
      times_.begin()->second->place.due_ = kRinging;
      now_due.insert(now_due.end(), times_.extract(times_.begin()));
    }
  }
  if (!core_.running) return;
  Peer* p = nullptr;
  try {
    ring_(late);
    while ((p = take(now_due)) != nullptr) {
      const TimePoint next = tend_(*p);
      MutexLock lock(mutex_);
      queue(*p, next);
    }
    MutexLock lock(mutex_);
    start_timer();
  } catch (...) {  // no memory: this peer and the rest of the due work have their turn soon
    const TimePoint soon = core_.runtime->now() + core_.options.retry;
    if (p == nullptr) p = take(now_due);
    for (; p != nullptr; p = take(now_due)) {
      MutexLock lock(mutex_);
      queue(*p, soon);
    }
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
