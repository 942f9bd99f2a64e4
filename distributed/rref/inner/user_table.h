// The user's side: this worker's references to values of others, those not confirmed yet, and the children
// that must not arrive. Internal to rref.h; user_table.cpp cites the steps of the protocol in references.cpp.
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

#include <weft/distributed/rref/inner/by_life.h>
#include <weft/distributed/rref/inner/deferred_work.h>
#include <weft/distributed/rref/inner/reference_states.h>
#include <weft/distributed/rref/inner/refused_numbers.h>

namespace weft::rpc::detail {

/// A reference as a message brings it. The maker of the fork has sent it.
struct Arrival {
  Life owner;
  RRefId rref;
  ForkId fork;
  bool parent_confirmed = false;
};

/// The references of one agent to values of other workers. Thread safety: any thread; the mutex must not be
/// held, except with WEFT_REQUIRES.
class UserTable {
  /// A reference that the owner has not confirmed.
  struct Pending {
    std::shared_ptr<UserState> state;
    bool accept = false;  ///< send ACCEPT to the parent when the reference is confirmed
    std::vector<Responder> probes;
  };

 public:
  using States = std::vector<std::shared_ptr<UserState>>;
  UserTable(ReferenceContext& context, DeferredWork& work) : context_(context), work_(work) {}

  // ---- creation and arrival
  /// Makes the pending reference of a remote() and watches its owner.
  std::shared_ptr<UserState> begin_creation(RRefId id, ForkId fork, const WorkerInfo& owner, Life owner_life,
                                            Site site);
  /// The answer to CREATE, or its loss. `known`: the owner counts the fork.
  void creation_answered(const std::shared_ptr<UserState>& state, std::exception_ptr error, bool known);
  /// Tells the owner that the creation has ended with an error of the request, so its value is not used. The
  /// owner may count the fork or not.
  void creation_refused(const UserState& state);
  void creation_timed_out(UserState& state, std::exception_ptr error);
  /// Makes the reference that a message brings (steps 5 and 6). Throws: RpcError for a refused child and
  /// after the end of the agent; WireError for a fork that exists.
  StatePtr receive(Agent& agent, Decoder& in, const Arrival& arrival);
  /// Makes a pending reference usable, or fails it for good, and answers all that wait for that.
  void confirm(const std::shared_ptr<UserState>& state, std::exception_ptr error);
  /// Serves PROBE: answers for a child that is here when it is confirmed; refuses one that is not.
  void probe(ForkId fork, Responder responder);

  // ---- the end of a reference
  /// Makes every further use throw `error`.
  void lose(const std::shared_ptr<UserState>& state, UserState::Standing standing, std::exception_ptr error);
  /// Step 11: fails references, whose owner is lost.
  void lose_owner(const States& states, const WorkerInfo& owner, const std::string& reason,
                  std::vector<DeferredItem>& after);
  /// Called by the destructor of a state.
  void release(UserState& state) noexcept;
  /// Step 12: deletes the recorded references at their owners, which report them.
  void delete_recorded();

  // ---- under the mutex, together with other tables
  /// Throws: RpcError for a refused child (step 9).
  void check_refused(RRefId id, ForkId fork) const WEFT_REQUIRES(kTables);
  /// All references, and those to values of one life. They are to be kept beyond the mutex: none may be
  /// destroyed under it.
  States living() const WEFT_REQUIRES(kTables);
  States of_owner(Life owner) const WEFT_REQUIRES(kTables);
  /// Forgets the refused children of a lost life. No message of it is read any more.
  void forget_refused(Life made_by) WEFT_REQUIRES(kTables) { refused_.erase(made_by); }
  /// Records all references for delete_recorded.
  void record() WEFT_REQUIRES(kTables);
  /// The owners that have not answered, one per pending reference.
  std::vector<WorkerId> awaited() const WEFT_REQUIRES(kTables);
  bool all_confirmed() const WEFT_REQUIRES(kTables) { return pending_.empty(); }
  void count(std::map<std::string, int64_t>& into) const WEFT_REQUIRES(kTables);
  /// The contents of the table at the end of the agent. Their destructors must not run under the mutex.
  struct Rest {
    std::unordered_map<ForkId, Pending> pending;
    States living, recorded;
  };
  Rest take_all() WEFT_REQUIRES(kTables);

 private:
  void send_fork(Agent& agent, const std::shared_ptr<UserState>& state, bool parent_confirmed);

  ReferenceContext& context_;
  DeferredWork& work_;
  std::unordered_map<ForkId, std::weak_ptr<UserState>> users_ WEFT_GUARDED_BY(kTables);
  ByLife<ForkId> by_owner_ WEFT_GUARDED_BY(kTables);
  std::unordered_map<ForkId, Pending> pending_ WEFT_GUARDED_BY(kTables);
  /// recorded by a shutdown, which will delete them
  States recorded_ WEFT_GUARDED_BY(kTables);
  /// children that must not arrive, by maker of their forks
  std::unordered_map<Life, RefusedNumbers> refused_ WEFT_GUARDED_BY(kTables);
};

}  // namespace weft::rpc::detail
