// An elastic group of agents in one simulation: a store, and workers that join, leave, die and are cut off.
//
//   ElasticGroup g({.seed = 7});
//   auto& a = g.join("a");   g.run(a, [] { ... });   g.kill(a);   g.cut_store(a);
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/launch/membership.h>
#include <weft/distributed/sim/sim_runtime.h>
#include <weft/distributed/sim/sim_transport.h>

namespace weft::test {

struct ElasticOptions {
  uint64_t seed = 1;  ///< the environment's WEFT_TEST_SEED is added
  rpc::SimNetOptions net{};
  rpc::Duration lease = std::chrono::seconds(10);
  rpc::Duration init_timeout = std::chrono::minutes(1);
  bool keep_log = true;     ///< keep the lines of the trace
  std::string store_log{};  ///< a file of its own for the store's log; empty: none
  /// puts something around the store client of a worker
  std::function<std::shared_ptr<rpc::Store>(const std::string& name, std::shared_ptr<rpc::Store>)> around{};
  decltype(rpc::JoinOptions::found) found{};  ///< of every worker
};

class ElasticGroup {
 public:
  /// One life of a worker.
  struct Worker {
    std::string name;
    std::shared_ptr<rpc::Membership> membership;
    rpc::WorkerId client;  ///< network id of its store client
    std::string address{};
    const std::shared_ptr<rpc::Agent>& agent() const { return membership->agent(); }
    rpc::WorkerId id() const { return agent()->self().id; }
  };

  explicit ElasticGroup(ElasticOptions options = {});
  ~ElasticGroup();
  ElasticGroup(const ElasticGroup&) = delete;

  /// Blocks until it has joined. Throws: as Membership::join.
  Worker& join(const std::string& name, const std::function<void(rpc::AgentOptions&)>& change = {});
  /// Runs f as that worker on the calling fiber.
  void run(const Worker& worker, const std::function<void()>& f) const;
  /// Its messages vanish, those to the store too. The life itself goes on and knows nothing of that.
  void kill(const Worker& worker);
  /// The store's process ends. A store that was made with a log may come back.
  void kill_store();
  void start_store();
  /// Cuts it off from the store, until net().heal().
  void cut_store(const Worker& worker);
  /// Cuts it off from all that have joined.
  void cut_members(const Worker& worker);
  /// Cuts it off from all that have joined and from the store.
  void cut_all(const Worker& worker);

  rpc::SimRuntime& sim() { return *sim_; }
  rpc::SimNetwork& net() { return *net_; }

 private:
  ElasticOptions options_;
  std::shared_ptr<rpc::SimRuntime> sim_;
  std::unique_ptr<rpc::SimNetwork> net_;
  std::shared_ptr<rpc::Store> server_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace weft::test
