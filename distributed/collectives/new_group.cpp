// new_group: the processes of a group find each other over an agent's all_gather or over a store, and
// the engine connects them. A store keeps keys of processes that gave up. So the meeting there has rounds:
//   1. Rank 0 draws a number that no round had, and sets the group's key to "<number> <size> open".
//   2. Each other rank that sees an open round sets a key of that number.
//   3. When all have done so, rank 0 sets the group's key to "... go", and all meet under the number.
// A rank continues only in a round that it has joined in this call, and removes its keys at the end. A group
// with devices passes the name of NCCL's communicator in the same way.
#include <algorithm>
#include <map>
#include <sstream>

#include <weft/distributed/collectives/inner/engine.h>
#include <weft/distributed/collectives/inner/process_group_impl.h>
#include <weft/distributed/launch/store.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/inner/unprotected.h>

namespace weft::dist {
namespace {

using rpc::Duration;
using rpc::TimePoint;

/// Every set is an all_gather, so all values are here when it returns.
class AgentMeeting final : public inner::Meeting {
 public:
  AgentMeeting(std::shared_ptr<rpc::Agent> agent, std::vector<std::string> workers, std::string group,
               Duration timeout)
      : agent_(std::move(agent)),
        workers_(std::move(workers)),
        group_(std::move(group)),
        end_(agent_->runtime()->now() + timeout) {}
  void set(const std::string& key, const std::string& value) override {
    const rpc::AgentScope as(agent_);
    const Duration left = std::max<Duration>(end_ - agent_->runtime()->now(), std::chrono::milliseconds(1));
    const std::vector<std::string> mine{group_, key, value};
    for (const auto& [worker, its] : rpc::all_gather(mine, workers_, left)) {
      if (its.size() != mine.size()) throw RpcError(str("new_group: ", worker, " gathers something else"));
      if (its[0] != group_)
        throw ValueError(str("new_group: ", worker, " makes the group '", its[0], "' where ",
                             agent_->self().name, " makes '", group_, "'"));
      values_[its[1]] = its[2];
    }
  }
  std::string get(const std::string& key) override {
    const auto at = values_.find(key);
    if (at == values_.end()) throw RpcError(str("new_group: no worker has told '", key, "'"));
    return at->second;
  }

 private:
  const std::shared_ptr<rpc::Agent> agent_;
  const std::vector<std::string> workers_;
  const std::string group_;
  const TimePoint end_;
  std::map<std::string, std::string> values_;
};

class StoreMeeting final : public inner::Meeting {
 public:
  StoreMeeting(std::shared_ptr<rpc::Store> store, const std::string& group, int rank, int size, TimePoint end)
      : store_(std::move(store)),
        all_(str("collectives/", group, "/")),
        rank_(rank),
        size_(size),
        end_(end) {}
  ~StoreMeeting() override {
    try {  // after an error; the store may be gone
      clear(std::chrono::steady_clock::now() + std::chrono::seconds(1));
    } catch (const std::exception&) {
    }
  }

  void begin() override {
    if (rank_ == 0) lead();
    else follow();
  }
  void set(const std::string& key, const std::string& value) override { set_mine(begin_ + key, value); }
  std::string get(const std::string& key) override { return store_->get(begin_ + key, end_); }
  /// Removes the keys of this process. In a meeting that succeeded, all have read them.
  void clear(TimePoint end) {
    for (; !mine_.empty(); mine_.pop_back()) store_->unset(mine_.back(), end);
  }
  TimePoint end() const { return end_; }

 private:
  std::string round() const { return str(all_, "round"); }
  void set_mine(const std::string& key, const std::string& value) {
    mine_.push_back(key);
    store_->set(key, value, end_);
  }

  void lead() {
    const std::string number = std::to_string(store_->add(str(all_, "rounds"), 1, end_));
    begin_ = str(all_, number, "/");
    set_mine(round(), str(number, " ", size_, " open"));
    std::vector<std::string> here;
    for (int r = 1; r < size_; ++r) here.push_back(str(begin_, "here/", r));
    store_->wait(here, "", end_);
    store_->set(round(), str(number, " ", size_, " go"), end_);
  }

  void follow() {
    std::string joined;
    std::optional<std::string> seen;
    while (true) {
      seen = store_->watch(round(), seen, end_);
      std::istringstream text(seen.value_or(""));
      std::string number, state;
      int size = 0;
      text >> number >> size >> state;
      if (state == "open" && number != joined) {
        if (size != size_)
          throw ValueError(
              str("new_group: rank 0 makes a group of ", size, ", and rank ", rank_, " one of ", size_));
        joined = number;
        begin_ = str(all_, number, "/");
        set("here/" + std::to_string(rank_), "");
      } else if (state == "go" && number == joined) {
        return;
      }
    }
  }

  const std::shared_ptr<rpc::Store> store_;
  const std::string all_;  ///< begin of the group's keys
  const int rank_, size_;
  const TimePoint end_;
  std::string begin_;  ///< of the round's keys
  std::vector<std::string> mine_;
};

/// Checks before any process is waited for. `names`: of all processes, by rank.
void check(const ProcessGroupOptions& options, int rank, const std::vector<std::string>& names) {
  const int size = static_cast<int>(names.size());
  if (rank < 0 || rank >= size) throw ValueError(str("new_group: rank ", rank, " is not in 0..", size - 1));
  if (options.timeout.count() <= 0 || options.init_timeout.count() <= 0)
    throw ValueError("new_group: the timeouts must be positive");
  if (!options.device.is_cpu() && options.device.index < 0)
    throw DeviceError(str("new_group: no device ", options.device));
  if (rpc::is_wildcard_host(options.host))
    throw ValueError(str("new_group: the host '", options.host, "' is no address that others can reach"));
  if (size > 1 && !is_gloo_available())
    throw RpcError("new_group: this weft was built without Gloo (Debian: libgloo-dev)");
  if (rpc::is_loopback_host(options.host)) return;
  if (!options.insecure)
    throw ValueError(str("new_group: Gloo's connections are neither encrypted nor checked; the host '",
                         options.host, "' needs insecure = true"));
  if (const std::string why = rpc::why_unresolved(options.host); !why.empty())
    throw RpcError(str("new_group: the host '", options.host, "': ", why));
  rpc::inner::tell_unprotected(str("group '", options.name, "'"), std::nullopt, true,
                               "read and change tensors, and take the place of a process");
}

/// Timeouts that a clock can add to its time.
ProcessGroupOptions limited(ProcessGroupOptions options) {
  constexpr Duration kLongest = std::chrono::hours(24 * 365);
  options.timeout = std::min(options.timeout, kLongest);
  options.init_timeout = std::min(options.init_timeout, kLongest);
  return options;
}

/// Loopback addresses reach processes of one machine only.
void check_machines(const ProcessGroupOptions& options, int rank, const std::vector<std::string>& names,
                    inner::Meeting& meeting) {
  const bool local = rpc::is_loopback_host(options.host);
  meeting.set(str("machine/", rank), local ? rpc::host_key() : std::string());
  for (size_t r = 0; r < names.size(); ++r) {
    const std::string key = meeting.get(str("machine/", r));
    if (local == key.empty() || (local && key != rpc::host_key()))
      throw ValueError(str("new_group: ", names[r], " is on another machine, or not at a loopback address; ",
                           "give all processes the option `host`, an address that the others reach, and ",
                           "insecure = true"));
  }
}

/// A group has a device in each process or in none.
void check_devices(const ProcessGroupOptions& options, int rank, const std::vector<std::string>& names,
                   inner::Meeting& meeting) {
  const auto kind = [](bool cpu) { return cpu ? "no device" : "a device"; };
  const std::string mine = kind(options.device.is_cpu());
  meeting.set(str("device/", rank), mine);
  for (size_t r = 0; r < names.size(); ++r)
    if (const std::string its = meeting.get(str("device/", r)); its != mine)
      throw ValueError(str("new_group: ", names[r], " has ", kind(!options.device.is_cpu()), ", and ",
                           names[static_cast<size_t>(rank)], " has ", mine,
                           "; give all processes the option `device`, or none"));
}

std::shared_ptr<ProcessGroup> form(const ProcessGroupOptions& options, int rank,
                                   std::vector<std::string> names, inner::Meeting* meeting) {
  const int size = static_cast<int>(names.size());
  auto impl = std::make_unique<ProcessGroup::Impl>(rank, std::move(names), options.name);
  ProcessGroup::Impl& group = *impl;
  const TimePoint end = group.runtime->now() + options.init_timeout;
  const auto connect = [&] {
    if (size > 1) {
      meeting->begin();
      check_machines(options, rank, group.names, *meeting);
      check_devices(options, rank, group.names, *meeting);
    }
    const auto left = [&] {
      return std::max<Duration>(end - group.runtime->now(), std::chrono::milliseconds(1));
    };
    inner::EngineOptions with{rank, size, options.host, left(), options.timeout, group.runtime.get()};
    if (size > 1) group.engine = inner::make_gloo(with, *meeting);
    if (options.device.is_cpu()) return;
    const std::string id =
        inner::meet_for_nccl(with, options.device, group.names, size > 1 ? meeting : nullptr);
    with.init_timeout = left();
    group.devices = std::make_unique<inner::DeviceCalls>(group, with, options.device, id);
  };
  if (size > 1 || !options.device.is_cpu())
    group
        .push([&] {  // the threads of the engines begin in that of the group
          try {
            connect();
          } catch (const inner::ConnectionLost& e) {
            throw PeerLost(
                "", str("new_group: another process has ended while the group formed (", e.what(), ")"));
          } catch (const Timeout& e) {
            throw Timeout(str("new_group: group '", options.name, "', ",
                              group.names[static_cast<size_t>(rank)], ": ", e.what()));
          }
        })
        .wait();
  return std::make_shared<ProcessGroup>(std::move(impl));
}

}  // namespace

std::shared_ptr<ProcessGroup> new_group(std::vector<std::string> workers, const ProcessGroupOptions& given) {
  const ProcessGroupOptions options = limited(given);
  const std::shared_ptr<rpc::Agent> agent = rpc::current_agent();
  std::vector<rpc::WorkerInfo> infos;
  if (workers.empty()) infos = rpc::get_worker_infos();
  for (const std::string& worker : workers) infos.push_back(rpc::get_worker_info(worker));
  const auto by_id = [](const rpc::WorkerInfo& a, const rpc::WorkerInfo& b) { return a.id < b.id; };
  std::sort(infos.begin(), infos.end(), by_id);
  std::vector<std::string> names;
  int rank = -1;
  for (const rpc::WorkerInfo& info : infos) {
    if (!names.empty() && names.back() == info.name)
      throw ValueError(str("new_group: worker '", info.name, "' is named twice"));
    if (info.id == agent->self().id) rank = static_cast<int>(names.size());
    names.push_back(info.name);
  }
  if (rank < 0)
    throw ValueError(str("new_group: this worker, '", agent->self().name, "', is not one of the group's"));
  check(options, rank, names);
  AgentMeeting meeting(agent, names, options.name, options.init_timeout);
  return form(options, rank, names, &meeting);
}

std::shared_ptr<ProcessGroup> new_group(std::shared_ptr<rpc::Store> store, int rank, int world_size,
                                        const ProcessGroupOptions& given) {
  if (!store) throw ValueError("new_group: no store");
  const ProcessGroupOptions options = limited(given);
  std::vector<std::string> names;
  for (int r = 0; r < world_size; ++r) names.push_back(str("rank ", r));
  check(options, rank, names);
  if (world_size == 1) return form(options, rank, names, nullptr);
  StoreMeeting meeting(std::move(store), options.name, rank, world_size,
                       std::chrono::steady_clock::now() + options.init_timeout);
  auto group = form(options, rank, names, &meeting);
  group->barrier();
  meeting.clear(meeting.end());
  return group;
}

}  // namespace weft::dist
