// A group of agents in one test process, over the simulated network (one thread, virtual time, faults by
// seed) or over gRPC.
//
//   Cluster c({.over = Over::kSim, .size = 4, .seed = 7});
//   c.run(0, [&] { EXPECT_EQ(rpc_sync<twice>("worker1", 2), 4); });   // as worker 0, on the calling thread
//   c.run_all([&](int rank) { rpc::barrier(); });                      // all at once; throws the first error
//   c.shutdown();                           // graceful; the destructor stops at once
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/sim/sim_runtime.h>
#include <weft/distributed/sim/sim_transport.h>

#include "support/hang.h"

namespace weft::test {

enum class Over { kSim, kGrpc };

struct ClusterOptions {
  Over over = Over::kSim;
  int size = 4;
  /// the environment's WEFT_TEST_SEED is added, for other interleavings of the same tests
  uint64_t seed = 1;
  /// simulation: faults and latency; gRPC: its connect_timeout is the time to reconnect
  rpc::SimNetOptions net{};
  int threads = 4;          ///< gRPC: pool threads of each worker's runtime
  int max_threads = 8192;   ///< gRPC: its limit, blocked threads included
  bool unix_socket = true;  ///< gRPC: its workers talk over the same-host lane; false: over TCP
  rpc::Duration spin = std::chrono::microseconds(-1);  ///< gRPC: as GrpcOptions::spin
  rpc::AgentOptions agent{};  ///< the cluster sets name and id: "worker0", "worker1", ...
  std::function<void(int rank, rpc::AgentOptions&)> each{};  ///< changes the options of one worker
  /// simulation: a receiver that gets a worker's messages in place of its agent, and outlives the cluster
  std::function<rpc::Receiver&(int rank, rpc::Receiver& agent)> before{};
  bool keep_log = true;  ///< simulation: keep the lines of the trace
};

class Cluster {
 public:
  explicit Cluster(ClusterOptions options = {});
  ~Cluster();
  Cluster(const Cluster&) = delete;

  int size() const { return static_cast<int>(agents_.size()); }
  bool dead(int rank) const { return dead_.at(static_cast<size_t>(rank)); }
  const std::shared_ptr<rpc::Agent>& agent(int rank) const { return agents_.at(static_cast<size_t>(rank)); }
  rpc::Runtime& runtime(int rank = 0) { return *runtimes_.at(static_cast<size_t>(sim_ ? 0 : rank)); }
  /// Simulation only.
  rpc::SimRuntime& sim() { return *sim_; }
  rpc::SimNetwork& net() { return *net_; }
  bool simulated() const { return sim_ != nullptr; }

  /// Runs f as that worker on the calling thread. Throws: f's exception.
  void run(int rank, const std::function<void()>& f);
  /// Runs f(rank) for all workers concurrently, each on its runtime, and waits for all. Throws:
  /// the first error.
  void run_all(const std::function<void(int rank)>& f);
  /// Stops one worker without a goodbye (simulation: its messages vanish).
  void kill(int rank);
  /// Kills a worker unless it is dead, and starts another life of it. `keep_old`, simulation only: the old
  /// life goes on and knows nothing of that. The living learn of the new one at once or, in the simulation,
  /// each at a time of its own `within` a duration.
  void restart(int rank, bool keep_old = false, rpc::Duration within = {});
  /// Shuts all workers down gracefully, concurrently.
  void shutdown(rpc::Duration timeout = std::chrono::seconds(60));

 private:
  void stop();
  std::shared_ptr<rpc::Agent> start(int rank, const std::string& address = {});
  void introduce(int rank, rpc::Duration within);
  ClusterOptions options_;
  std::shared_ptr<rpc::SimRuntime> sim_;
  std::unique_ptr<rpc::SimNetwork> net_;
  std::vector<std::shared_ptr<rpc::Runtime>> runtimes_;
  std::vector<std::shared_ptr<rpc::Agent>> agents_;
  std::vector<std::shared_ptr<rpc::Agent>> past_;  // lives that have a successor
  std::vector<bool> dead_;
  std::optional<HangReport> report_;
};

/// A gate for served functions: they wait until the test opens it. For calls that must last long enough on a
/// machine of any speed.
struct Gate {
  std::atomic<int> reached{0};  ///< number of functions that have reached the gate
  std::atomic<bool> open{true};

  void close() { reached = 0, open = false; }
  /// Blocks, as a task of the current runtime, until the gate is open, at most for a minute.
  void pass();
};

/// Waits until `holds()` is true. False: it was not after a minute.
inline bool eventually(Cluster& c, const std::function<bool()>& holds) {
  for (int i = 0; i < 20000; ++i) {
    if (holds()) return true;
    c.runtime().sleep_for(std::chrono::milliseconds(3));
  }
  return holds();
}

/// For INSTANTIATE_TEST_SUITE_P.
inline std::string to_string(Over over) { return over == Over::kSim ? "sim" : "grpc"; }

}  // namespace weft::test
