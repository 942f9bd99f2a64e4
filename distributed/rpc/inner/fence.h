// The fence of an agent in an elastic group: the time until which the agent may serve and call. Each renewal
// of its lease at the store moves that time. The clock also counts while the machine is suspended. After that
// time, requests are refused and the agent's own calls fail with Fenced, until the next renewal. Once a
// successor has its name, they fail for ever. A static group never sets it.
#pragma once

#include <atomic>
#include <exception>
#include <limits>
#include <string>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/wire/message.h>

namespace weft::rpc {

/// Thread safety: any thread.
class Fence {
 public:
  explicit Fence(Runtime& runtime) : runtime_(runtime) {}
  bool closed() const {
    const int64_t until = until_.load(std::memory_order_relaxed);
    return until != kOpen && runtime_.lease_time().time_since_epoch().count() >= until;
  }
  /// How long it stays open; not positive: it is closed.
  Duration left() const { return TimePoint(Duration(until_.load())) - runtime_.lease_time(); }
  /// The fence is open until then by Runtime::lease_time(), unless it is closed for good.
  void open_until(TimePoint until);
  /// Closes it for good.
  void close(const std::string& why);
  /// The reason why it was not opened further.
  void explain(const std::string& why);
  bool closed_for_good() const;
  /// The error of calls that the fence of `worker` refuses.
  std::exception_ptr error(const std::string& worker) const;

 private:
  static constexpr int64_t kOpen = kNever.time_since_epoch().count();
  Runtime& runtime_;
  std::atomic<int64_t> until_{kOpen};
  mutable Mutex mutex_;
  bool for_good_ WEFT_GUARDED_BY(mutex_) = false;
  std::string why_ WEFT_GUARDED_BY(mutex_);
};

/// Requests that a closed fence refuses with an error. It ignores requests of the layers' protocols, so that
/// their callers resend them when it opens.
inline bool is_refused_by_fence(Kind kind) {
  return kind == Kind::kCall || kind == Kind::kRemote || kind == Kind::kFetch || kind == Kind::kMethod ||
         kind >= Kind::kUser;
}
/// Calls that a worker behind its closed fence does not make.
inline bool is_held_by_fence(Kind kind) {
  return is_refused_by_fence(kind) || kind == Kind::kGather || kind == Kind::kGradients ||
         kind == Kind::kMark;
}

}  // namespace weft::rpc
