// The shares: references that this worker has written into messages, until their receiver has them or never
// will. Internal to rref.h; share_table.cpp cites the steps of the protocol in references.cpp.
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

#include <weft/distributed/rref/inner/owner_table.h>

namespace weft::rpc::detail {

/// The children of one agent's references that are under way. Thread safety: any thread; the mutex must not
/// be held, except with WEFT_REQUIRES.
class ShareTable {
  /// A child under way: its message is not settled.
  struct PendingChild {
    RRefId rref;
    Life to;
    /// the user's reference, kept for the child; null on the owner, where the fork keeps the value
    StatePtr parent;
    bool in_reply = false;
    bool probing = false;
  };

 public:
  ShareTable(ReferenceContext& context, OwnerTable& owners, DeferredWork& work)
      : context_(context), owners_(owners), work_(work) {}

  /// Records a share of `state` with `to`; on the owner, adds the child's fork (steps 4 to 8). Throws:
  /// RpcError after the end of the agent.
  void begin(ForkId fork, const StatePtr& state, Life to, bool in_reply);
  /// Step 8: ends the share of a child that has arrived on the worker that sent it, its owner. Null: the
  /// value is gone.
  std::shared_ptr<OwnedState> arrive_here(RRefId id, ForkId fork);
  /// The outcome of the message: `received`, or possibly lost (step 9).
  void settle(ForkId fork, bool received);
  /// Serves ACCEPT. Throws: NotAllowed when the child was not sent to `from`.
  void accept(ForkId fork, Life from);
  /// Ends a share: releases the parent; on the owner, `undo` removes the fork.
  void resolve(ForkId fork, bool undo);
  /// Asks the child's worker whether it has the child, once per share. May block.
  void probe(Agent& agent, ForkId fork);
  /// Queues probes of all shares.
  void probe_all();

  // ---- under the mutex, together with other tables
  bool empty() const WEFT_REQUIRES(kTables) { return shares_.empty(); }
  /// The children on their way to a life.
  std::vector<ForkId> sent_to(Life peer) const WEFT_REQUIRES(kTables) { return by_receiver_.of(peer); }
  /// The receivers, one per share.
  std::vector<WorkerId> receivers() const WEFT_REQUIRES(kTables);
  void count(std::map<std::string, int64_t>& into) const WEFT_REQUIRES(kTables);
  using Rest = std::unordered_map<ForkId, PendingChild>;
  /// Empties the table, at the end of the agent. The destructors of shares must not run under the mutex.
  Rest take_all() WEFT_REQUIRES(kTables) {
    by_receiver_.clear();
    return std::exchange(shares_, {});
  }

 private:
  void probe_soon(ForkId fork);
  StatePtr erase(Rest::iterator share) WEFT_REQUIRES(kTables);

  ReferenceContext& context_;
  OwnerTable& owners_;
  DeferredWork& work_;
  std::unordered_map<ForkId, PendingChild> shares_ WEFT_GUARDED_BY(kTables);
  ByLife<ForkId> by_receiver_ WEFT_GUARDED_BY(kTables);
};

}  // namespace weft::rpc::detail
