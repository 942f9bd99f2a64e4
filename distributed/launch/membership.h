// An elastic group: workers join and leave at any time. A store has the list of members and orders its
// changes, each of which counts the epoch up by one.
//
//   rpc::init_rpc("worker7", {.elastic = true, .store = "10.0.0.1:29600"});   // waits for nobody
//   // or .store = "etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/run7", a cluster of etcd and a prefix
//   rpc::on_member_joined([](const rpc::WorkerInfo& w) { ... });
//   rpc::on_member_lost([](const rpc::LostPeer& w) { ... });
//   rpc::wait_for_members({"ps"}, 30s);
//   rpc::shutdown();                                                          // leaves; the others go on
//
// Each life of a worker holds a lease at the store under its name. A life that cannot renew it in time is
// fenced: it serves nothing, and its calls fail with Fenced. It continues if it renews before a successor has
// its name. A successor gets the name once that lease has run out or the old life has left. So no two lives
// of a name serve at the same time. A lost member leaves the list when its lease has run out. membership.cpp
// describes the keys of the store.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/launch/store.h>
#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/rpc/fenced.h>

namespace weft::rpc {

/// How a worker joins an elastic group.
struct JoinOptions {
  std::string name{};
  std::string process{};        ///< as Member::process
  std::string engines{};        ///< as Member::engines
  std::string store{};          ///< the address of the store, for errors
  TimePoint deadline = kNever;  ///< of the join
  /// Makes the agent of this worker with the id that the group gives to the name.
  std::function<std::shared_ptr<Agent>(WorkerId id)> make_agent{};
  /// Called with each other member after the agent knows it: during the join, and later on the pool.
  std::function<void(const std::shared_ptr<Agent>& agent, const Member& member)> found{};
};

/// One worker's part in an elastic group. It works until stop, leave or the end of its agent.
/// Thread safety: every member may be called from any thread.
class WEFT_API Membership : public std::enable_shared_from_this<Membership> {
 public:
  /// Joins the group of `store` and reads the list of members. Blocks while another life holds the lease of
  /// the name. Throws: Timeout that names the holder. ValueError for a bad name, a group without free ids, or
  /// a store that is a rendezvous. ValueError or DeviceError for device maps that do not fit the members
  /// (joining.cpp). The errors of make_agent and of the store.
  static std::shared_ptr<Membership> join(std::shared_ptr<Runtime> runtime, std::shared_ptr<Store> store,
                                          const JoinOptions& options);
  /// The membership of an agent; null in a static group.
  static std::shared_ptr<Membership> of(Agent& agent);
  Membership(std::shared_ptr<Runtime> runtime, std::shared_ptr<Store> store, JoinOptions options);
  ~Membership();

  const std::shared_ptr<Agent>& agent() const;
  /// The store of the group. Other layers keep their own keys there.
  const std::shared_ptr<Store>& store() const;
  /// Number of the newest change of the list that this worker knows.
  uint64_t epoch() const;
  /// The members of that epoch by id, this worker included.
  std::vector<WorkerInfo> members() const;
  /// Blocks until all of these workers are members. Throws: Timeout that names the missing workers; Fenced
  /// when this worker has lost its place.
  void wait_for(const std::vector<std::string>& names, TimePoint deadline) const;
  /// Registers a callback for lives that join later. It runs on the pool and may block.
  void on_joined(std::function<void(const WorkerInfo& member)> f);
  /// Registers a callback for the closing of the fence, with the reason. It runs on the pool. Without one,
  /// the reason goes to standard error.
  void on_fenced(std::function<void(const std::string& why)> f);

  /// Blocks until stop_serving. Throws: Fenced when this worker has lost its place; Timeout, whose text
  /// begins with `caller`.
  void serve(TimePoint deadline, const std::string& caller = "serve_until_done") const;
  /// Leaves the group. It waits until the calls of this worker have ended and the requests under way are
  /// answered. Then it gives up the name and ends the agent. Throws, after that: Timeout that names the calls
  /// under way. The text begins with `caller`.
  void leave(TimePoint deadline, const std::string& caller = "shutdown");
  /// Ends the renewals without telling the other members. Does not block.
  void stop();

 private:
  struct State;
  class ListTurn;
  const std::unique_ptr<State> state_;
};

/// Registers a callback for workers that join the group of the current agent later, successors included. It
/// runs on the pool and may block. A static group never calls it.
/// Throws (all functions here): RpcError without an agent. Thread safety: any thread.
WEFT_API void on_member_joined(std::function<void(const WorkerInfo& member)> f);
/// Registers a callback for lives of members that are lost or have left, as Agent::on_peer_lost.
WEFT_API void on_member_lost(std::function<void(const LostPeer& member)> f);
/// Registers a callback for the fencing of this worker, as Membership::on_fenced.
WEFT_API void on_fenced(std::function<void(const std::string& why)> f);
/// Number of the newest change of the member list that this worker knows; 0 in a static group.
WEFT_API uint64_t epoch();
/// Blocks until all of these workers are members of the elastic group; a static group has all its members.
/// Throws: Timeout that names the missing workers; ValueError for a name outside a static group.
WEFT_API void wait_for_members(const std::vector<std::string>& names, Duration timeout);

}  // namespace weft::rpc
