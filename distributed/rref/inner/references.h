// The references of one agent: its own values, its references to others' values, and those under way.
// Internal to rref.h; references.cpp describes the protocol. The parts:
//   ReferenceContext  agent, runtime, and the one mutex that guards the tables of all parts
//   DeferredWork      messages and destructions that must not happen under the mutex or in a destructor
//   OwnerTable        the values of this worker, with the forks that keep them
//   UserTable         the references to values of other workers, pending ones included
//   ShareTable        the children under way, with the parents that they keep
// A part calls those listed before it; DeferredWork alone calls back, to probe a share. References
// connects the parts.
#pragma once

#include <weft/distributed/rref/inner/share_table.h>
#include <weft/distributed/rref/inner/user_table.h>

namespace weft::rpc::detail {

/// All references of one agent.
class References final : public std::enable_shared_from_this<References> {
 public:
  explicit References(Agent& agent);
  static std::shared_ptr<References> of(Agent& agent);
  /// Registers the steps of the shutdown, the callback for losses and counters; reference_requests.cpp the
  /// handlers of messages.
  void install(Agent& agent);

  /// Throws: RpcError when the agent has ended.
  std::shared_ptr<Agent> agent(const RRefState& used) const;
  const std::shared_ptr<Runtime>& runtime() const { return context_.runtime; }
  const WorkerInfo& self() const { return context_.self; }
  ReferenceContext& context() { return context_; }
  DeferredWork& work() { return work_; }
  OwnerTable& owners() { return owners_; }
  UserTable& users() { return users_; }
  ShareTable& shares() { return shares_; }

  // ---- creation and sharing
  template <class Number> Number next(Agent& agent) {
    return {self().id, agent.transport().incarnation(), counter_.fetch_add(1, std::memory_order_relaxed)};
  }
  void creation_timed_out(RRefState& state, const char* what, Duration limit);
  void abandon_creation(RRefState& state, std::exception_ptr error);
  void encode(Encoder& out, const StatePtr& state);
  StatePtr decode(Decoder& in, const ValueType* type);

  // ---- requests to the owner: its table, and the watches of the workers behind it
  /// As OwnerTable::announce. Throws: NotAllowed for ids that `from` did not make.
  std::shared_ptr<OwnedState> announce(RRefId id, ForkId fork, Life from);
  /// Finds or makes the entry for a request or a child from `from` (steps 3 and 7). Throws: as throw_gone;
  /// RpcError after the end of the agent; ValueError when the id's maker cannot be a worker.
  std::shared_ptr<OwnedState> find(RRefId id, bool confirmed, WorkerId from);
  /// Serves FORK. Throws: as find, and as OwnerTable::add_fork; NotAllowed for a fork that this worker made.
  void add_fork(Agent& agent, RRefId id, ForkId fork, Life holder, bool confirmed);

 private:
  void check_lost(Agent& agent, Life peer);
  std::shared_ptr<OwnedState> take_home(const Decoder& in, const Arrival& arrival);

  // references_end.cpp
  void peer_lost(const LostPeer& peer);
  void shutdown_shares(TimePoint deadline);
  void shutdown_users(TimePoint deadline);
  void shutdown_owners(TimePoint deadline);
  void stop();
  void debug_info(std::map<std::string, int64_t>& into);

  ReferenceContext context_;
  DeferredWork work_;
  OwnerTable owners_;
  UserTable users_;
  ShareTable shares_;
  std::atomic<uint64_t> counter_{1};
};

}  // namespace weft::rpc::detail
