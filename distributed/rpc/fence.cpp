// The fence of an agent: its times and its error. The time of closing is atomic, since every request and call
// reads it; the mutex guards the reason.
#include <weft/distributed/rpc/inner/fence.h>

#include <weft/distributed/rpc/fenced.h>

namespace weft::rpc {

void Fence::open_until(TimePoint until) {
  MutexLock lock(mutex_);
  if (for_good_) return;
  until_ = until.time_since_epoch().count();
  why_.clear();
}

void Fence::close(const std::string& why) {
  MutexLock lock(mutex_);
  if (std::exchange(for_good_, true)) return;
  until_ = std::numeric_limits<int64_t>::min();
  why_ = why;
}

void Fence::explain(const std::string& why) {
  MutexLock lock(mutex_);
  if (!for_good_) why_ = why;
}

bool Fence::closed_for_good() const {
  MutexLock lock(mutex_);
  return for_good_;
}

std::exception_ptr Fence::error(const std::string& worker) const {
  MutexLock lock(mutex_);
  return std::make_exception_ptr(
      Fenced(for_good_ ? str("worker '", worker, "' is fenced and stays out of the group: ", why_)
                       : str("worker '", worker, "' is fenced: its lease at the store has run out",
                             why_.empty() ? "" : "; ", why_)));
}

}  // namespace weft::rpc
