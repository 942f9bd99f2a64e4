// A worker's name and id, and To, the destination of a call.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include <weft/distributed/runtime/runtime.h>
#include <weft/distributed/transport/ids.h>

namespace weft::rpc {

/// Name and id of a worker. It has a codec, comparisons and a hash.
struct WorkerInfo {
  std::string name;
  WorkerId id;
  friend auto operator<=>(const WorkerInfo&, const WorkerInfo&) = default;
};
/// "worker 'ps' (0)".
WEFT_API std::string to_string(const WorkerInfo& info);

/// Checks a worker's name. Throws: ValueError unless it has 1 to 127 characters of [A-Za-z0-9-_:].
WEFT_API void check_worker_name(std::string_view name);

/// How a call of an idempotent function is repeated (with_retry).
struct RetryPolicy {
  int attempts = 5;  ///< in all
  Duration first_pause = std::chrono::milliseconds(100);
  double factor = 2;    ///< ratio of each pause to the previous pause
  double jitter = 0.5;  ///< each pause is shortened by a random part, at most this part
  uint64_t seed = 0;    ///< of the jitter; 0: from the runtime
};

/// Destination and timeout of a call: `"ps"`, `0`, a WorkerInfo, a Life, or `{"ps", 500ms}`. A timeout given
/// here is used unchanged; zero: no limit. Without one the agent's default applies, capped by the deadline of
/// the served call. A call to a Life that has a successor fails with PeerLost. Throws (at the call):
/// ValueError for a worker outside the group or a negative timeout.
class WEFT_API To {
 public:
  To(const char* name) : name_(name) {}
  To(std::string name) : name_(std::move(name)) {}
  To(std::string_view name) : name_(name) {}
  To(int rank) : id_{rank}, by_id_(true) {}
  To(WorkerId id) : id_(id), by_id_(true) {}
  To(const WorkerInfo& info) : id_(info.id), by_id_(true) {}
  explicit To(Life life) : id_(life.id), incarnation_(life.incarnation), by_id_(true) {}
  template <class Where> To(const Where& where, Duration timeout) : To(where) { timeout_ = timeout; }

  bool by_id() const { return by_id_; }
  const std::string& name() const { return name_; }
  WorkerId id() const { return id_; }
  Incarnation incarnation() const { return incarnation_; }  ///< 0: the current life's
  std::optional<Duration> timeout() const { return timeout_; }
  const std::optional<RetryPolicy>& retry() const { return retry_; }

 private:
  friend To with_retry(To to, const RetryPolicy& policy);
  std::string name_;
  WorkerId id_;
  Incarnation incarnation_;
  bool by_id_ = false;
  std::optional<Duration> timeout_;
  std::optional<RetryPolicy> retry_;
};

/// A destination for calls that are repeated, `with_retry({"ps", 5s}, {.attempts = 3})`. A call is repeated
/// when its callee is lost, since a successor may come. It is also repeated when the callee had no room
/// (Overloaded) and did not begin the function. A call is never repeated for an error that the function
/// throws. The timeout limits all attempts together. When no attempt is left, the call fails with the last
/// error. Throws (at the call): ValueError for a function not registered by WEFT_RPC_IDEMPOTENT, a creation
/// by remote(), or a policy out of range.
inline To with_retry(To to, const RetryPolicy& policy = {}) {
  to.retry_ = policy;
  return to;
}

}  // namespace weft::rpc

template <> struct std::hash<weft::rpc::WorkerInfo> {
  size_t operator()(const weft::rpc::WorkerInfo& w) const noexcept {
    return std::hash<std::string>()(w.name) * 31 + std::hash<weft::rpc::WorkerId>()(w.id);
  }
};
