// Who is in a group: a worker's name and number. Destinations may be given as either, or as a WorkerInfo.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include <weft/distributed/ids.h>
#include <weft/distributed/runtime.h>

namespace weft::rpc {

/// A member of a group. Travels, compares, hashes.
struct WorkerInfo {
  std::string name;
  WorkerId id;
  friend auto operator<=>(const WorkerInfo&, const WorkerInfo&) = default;
};
/// "worker 'ps' (0)".
WEFT_API std::string to_string(const WorkerInfo& info);

/// Throws: ValueError unless `name` is 1 to 127 characters of [A-Za-z0-9-_:].
WEFT_API void check_worker_name(std::string_view name);

/// The largest worker id (ids are int16 on the wire).
inline constexpr int32_t kMaxWorkerId = 32767;

/// Where a call goes, and how long it may take: `"ps"`, `0`, a WorkerInfo, or `{"ps", 500ms}`. Without a time the agent's default
/// holds, cut to what is left of the call being served; zero is no limit; a time given here is taken as it stands.
/// Throws (at the call): ValueError for a worker that is not in the group; ValueError for a negative time.
class WEFT_API To {
 public:
  To(const char* name) : name_(name) {}
  To(std::string name) : name_(std::move(name)) {}
  To(std::string_view name) : name_(name) {}
  To(int rank) : id_{rank}, by_id_(true) {}
  To(WorkerId id) : id_(id), by_id_(true) {}
  To(const WorkerInfo& info) : id_(info.id), by_id_(true) {}
  template <class Where> To(const Where& where, Duration timeout) : To(where) { timeout_ = timeout; }

  bool by_id() const { return by_id_; }
  const std::string& name() const { return name_; }
  WorkerId id() const { return id_; }
  std::optional<Duration> timeout() const { return timeout_; }

 private:
  std::string name_;
  WorkerId id_;
  bool by_id_ = false;
  std::optional<Duration> timeout_;
};

}  // namespace weft::rpc

template <> struct std::hash<weft::rpc::WorkerInfo> {
  size_t operator()(const weft::rpc::WorkerInfo& w) const noexcept {
    return std::hash<std::string>()(w.name) * 31 + std::hash<weft::rpc::WorkerId>()(w.id);
  }
};
