// new_group: the processes of a group find each other over an agent's all_gather or over a store, and the
// engine connects them. The keys of a store begin with the group's name and a number, which counts the groups
// that a rank has made under it. So a group that is made again does not read addresses of the one before.
#include <algorithm>
#include <map>

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
  AgentMeeting(std::shared_ptr<rpc::Agent> agent, std::vector<std::string> workers, Duration timeout)
      : agent_(std::move(agent)), workers_(std::move(workers)), end_(agent_->runtime()->now() + timeout) {}
  void set(const std::string& key, const std::string& value) override {
    const rpc::AgentScope as(agent_);
    const Duration left = std::max<Duration>(end_ - agent_->runtime()->now(), std::chrono::milliseconds(1));
    const std::vector<std::string> mine{key, value};
    for (const auto& [worker, pair] : rpc::all_gather(mine, workers_, left))
      if (pair.size() == 2) values_[pair[0]] = pair[1];
  }
  std::string get(const std::string& key) override {
    const auto at = values_.find(key);
    if (at == values_.end()) throw RpcError(str("new_group: no worker has told '", key, "'"));
    return at->second;
  }

 private:
  const std::shared_ptr<rpc::Agent> agent_;
  const std::vector<std::string> workers_;
  const TimePoint end_;
  std::map<std::string, std::string> values_;
};

class StoreMeeting final : public inner::Meeting {
 public:
  StoreMeeting(std::shared_ptr<rpc::Store> store, const std::string& group, int rank, TimePoint end)
      : store_(std::move(store)), end_(end) {
    const std::string begin = str("collectives/", group, "/");
    begin_ = str(begin, store_->add(str(begin, "made/", rank), 1, end_), "/");
  }
  void set(const std::string& key, const std::string& value) override {
    store_->set(begin_ + key, value, end_);
    mine_.push_back(begin_ + key);
  }
  std::string get(const std::string& key) override { return store_->get(begin_ + key, end_); }
  /// Removes the keys of this process, once all have read them.
  void clear() {
    for (const std::string& key : mine_) store_->unset(key, end_);
  }

 private:
  const std::shared_ptr<rpc::Store> store_;
  const TimePoint end_;
  std::string begin_;
  std::vector<std::string> mine_;
};

/// Checks before any process is waited for. `names`: of all processes, by rank.
void check(const ProcessGroupOptions& options, int rank, const std::vector<std::string>& names) {
  const int size = static_cast<int>(names.size());
  if (rank < 0 || rank >= size) throw ValueError(str("new_group: rank ", rank, " is not in 0..", size - 1));
  if (options.timeout.count() <= 0 || options.init_timeout.count() <= 0)
    throw ValueError("new_group: the timeouts must be positive");
  if (size > 1 && !is_gloo_available())
    throw RpcError("new_group: this weft was built without Gloo (Debian: libgloo-dev)");
  if (rpc::is_loopback_host(options.host)) return;
  if (!options.insecure)
    throw ValueError(str("new_group: Gloo's connections are neither encrypted nor checked; the host '",
                         options.host, "' needs insecure = true"));
  rpc::inner::tell_unprotected(str("group '", options.name, "'"), std::nullopt, true,
                               "read and change tensors, and take the place of a process");
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

std::shared_ptr<ProcessGroup> form(const ProcessGroupOptions& options, int rank,
                                   std::vector<std::string> names, inner::Meeting* meeting) {
  const int size = static_cast<int>(names.size());
  auto impl = std::make_unique<ProcessGroup::Impl>(rank, std::move(names), options.name);
  if (size > 1) {
    ProcessGroup::Impl& group = *impl;
    group
        .push([&] {  // the threads of the engine begin in that of the group
          try {
            check_machines(options, rank, group.names, *meeting);
            group.engine =
                inner::make_gloo({rank, size, options.host, options.init_timeout, options.timeout}, *meeting);
          } catch (const inner::ConnectionLost& e) {
            throw PeerLost(
                "", str("new_group: another process has ended while the group formed (", e.what(), ")"));
          } catch (const Timeout& e) {
            throw Timeout(str("new_group: group '", options.name, "', ",
                              group.names[static_cast<size_t>(rank)], ": ", e.what()));
          }
        })
        .wait();
  }
  return std::make_shared<ProcessGroup>(std::move(impl));
}

}  // namespace

std::shared_ptr<ProcessGroup> new_group(std::vector<std::string> workers,
                                        const ProcessGroupOptions& options) {
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
  AgentMeeting meeting(agent, names, options.init_timeout);
  return form(options, rank, names, &meeting);
}

std::shared_ptr<ProcessGroup> new_group(std::shared_ptr<rpc::Store> store, int rank, int world_size,
                                        const ProcessGroupOptions& options) {
  if (!store) throw ValueError("new_group: no store");
  std::vector<std::string> names;
  for (int r = 0; r < world_size; ++r) names.push_back(str("rank ", r));
  check(options, rank, names);
  if (world_size == 1) return form(options, rank, names, nullptr);
  StoreMeeting meeting(std::move(store), options.name, rank,
                       std::chrono::steady_clock::now() + options.init_timeout);
  auto group = form(options, rank, names, &meeting);
  group->barrier();
  meeting.clear();
  return group;
}

}  // namespace weft::dist
