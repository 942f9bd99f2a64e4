// The timer of an agent. It keeps no reference to the agent: a timer that rings after the end does nothing.
// set() only makes the time earlier. due() rings without the mutex.
//
// Most calls of set() find an earlier time and take no lock. Their caller has put its work where the ring
// looks for it. If such a set() did not see a due(), that due() rings later and finds the work.
#include <weft/distributed/rpc/inner/alarm.h>

#include <new>
#include <utility>

namespace weft::rpc {

void Alarm::set(TimePoint when) {
  if (when == kNever || at_.load() <= when || !core_.running) return;
  MutexLock lock(mutex_);
  if (at_.load() <= when) return;
  if (timer_.value != 0) core_.runtime->cancel(std::exchange(timer_, {}));
  at_ = kNever;  // if there is no memory for a timer
  timer_ = core_.runtime->call_at(when, [this, weak = core_.owner.weak_from_this()] {
    if (const auto agent = weak.lock()) due();
  });
  at_ = std::max(when, core_.runtime->now());  // due() measures its delay against this
}

void Alarm::due() {
  Duration late;
  {
    MutexLock lock(mutex_);
    late = core_.runtime->now() - at_.load();
    timer_ = {};
    at_ = kNever;
  }
  if (!core_.running) return;
  try {
    ring_(late);
  } catch (const std::bad_alloc&) {  // the rest of the due work has its turn soon
    set(core_.runtime->now() + core_.options.retry);
  }
}

void Alarm::cancel() {
  MutexLock lock(mutex_);
  if (timer_.value != 0) core_.runtime->cancel(timer_);
  timer_ = {};
  at_ = kNever;
}

}  // namespace weft::rpc
