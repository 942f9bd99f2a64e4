// The owner's side: the values of this worker, each with the forks that other workers hold. Internal to
// rref.h; owner_table.cpp cites the steps of the protocol in references.cpp.
#pragma once

#include <atomic>
#include <map>
#include <unordered_map>
#include <vector>

#include <weft/distributed/rref/inner/by_life.h>
#include <weft/distributed/rref/inner/deferred_work.h>
#include <weft/distributed/rref/inner/reference_states.h>
#include <weft/distributed/rref/inner/refused_numbers.h>
#include <weft/distributed/rref/rref.h>

namespace weft::rpc::detail {

/// The values of one agent with their forks, and the leaks that its shutdown found. Thread safety: any
/// thread; the mutex must not be held, except with WEFT_REQUIRES.
class OwnerTable {
  /// A value of this worker, possibly used before its CREATE arrived.
  struct Entry {
    std::weak_ptr<OwnedState> state;
    std::shared_ptr<OwnedState> kept;        ///< set while there are forks or it is not announced
    bool announced = true;                   ///< false: CREATE has not arrived; its maker is watched
    std::unordered_map<ForkId, Life> forks;  ///< forks with their holders
  };

 public:
  OwnerTable(ReferenceContext& context, DeferredWork& work) : context_(context), work_(work) {}

  // ---- creation
  /// Makes the entry of a value of this worker. `made`: the value is about to be set.
  std::shared_ptr<OwnedState> make(RRefId id, Site site, bool made);
  /// Makes the entry for a remote() to oneself, with the fork of its number (step 8).
  std::shared_ptr<OwnedState> begin_creation(RRefId id, Site site);
  /// Removes that fork: the function has returned.
  void end_creation(RRefId id);
  /// Serves CREATE: adds the fork of the creator `from`. Throws: WireError for an id or a fork that exists,
  /// or an id of this worker that was not begun. RpcError after the end of the agent.
  std::shared_ptr<OwnedState> announce(RRefId id, ForkId fork, Life from);

  // ---- use
  /// The state of a value; null for one that is gone or not made. Throws: RpcError after the end of the
  /// agent.
  std::shared_ptr<OwnedState> find(RRefId id);
  struct Found {
    std::shared_ptr<OwnedState> state;
    bool fresh;  ///< the entry is new
  };
  /// Finds the entry, or makes it before its CREATE has arrived (step 3); the caller watches the maker of
  /// `id` for a new one. Throws: as find; RpcError for a value whose creation was refused.
  Found begin_unannounced(RRefId id);
  /// Counts the use of a destroyed value. Throws: RpcError.
  [[noreturn]] void throw_gone(RRefId id, ForkId fork);
  /// Serves FORK: adds a fork, whose holder the caller watches. Throws: WireError for a fork that exists.
  void add_fork(const std::shared_ptr<OwnedState>& state, ForkId fork, Life holder);
  struct Deleted {
    RRefId rref;
    ForkId fork;
    std::string site;      ///< not empty: the fork was left until the shutdown, and is a leak
    bool refused = false;  ///< the creation of the value was answered by an error
  };
  /// Serves DELETE: removes the forks of `user`, whose life is `holder`. Fails the requests for values whose
  /// creation was refused to it (step 2). Throws: NotAllowed when one of the forks is held by another, and
  /// removes none.
  void delete_forks(std::vector<Deleted> all, const WorkerInfo& user, Life holder,
                    std::vector<DeferredItem>& after);
  /// Called by the destructor of a state.
  void state_gone(RRefId id) noexcept;

  // ---- under the mutex, together with other tables
  /// The state of a value; null for one that is gone.
  std::shared_ptr<OwnedState> live(RRefId id) WEFT_REQUIRES(kTables);
  /// Adds a fork, which keeps the value. False: the fork exists.
  bool keep(const std::shared_ptr<OwnedState>& state, ForkId fork, Life holder) WEFT_REQUIRES(kTables);
  /// Removes a fork; adds the deferred work to `after`. False: there is none.
  bool remove_fork(RRefId id, ForkId fork, std::vector<DeferredItem>& after) WEFT_REQUIRES(kTables);
  /// Step 11: removes the forks of a lost life. Returns the values that will not be made, because it was to
  /// create them.
  std::vector<std::shared_ptr<OwnedState>> lose(Life peer, std::vector<DeferredItem>& after)
      WEFT_REQUIRES(kTables);
  /// True when no other worker holds a reference.
  bool no_forks() const WEFT_REQUIRES(kTables);
  void count(std::map<std::string, int64_t>& into) const WEFT_REQUIRES(kTables);
  /// The contents of the table at the end of the agent. Their destructors must not run under the mutex.
  struct Rest {
    std::unordered_map<RRefId, Entry> entries;
    std::vector<std::shared_ptr<OwnedState>> living;
  };
  Rest take_all() WEFT_REQUIRES(kTables);

  // ---- leaks
  void set_policy(LeakPolicy policy);
  std::vector<LeakedRRef> leaks();
  /// Adds the forks that are left to the leaks. Throws: RpcError with the texts of all leaks under
  /// LeakPolicy::kThrow.
  void report_leaks();

 private:
  /// Ends the wait for a CREATE that does not come. Returns the value that will never be made.
  std::shared_ptr<OwnedState> end_unannounced(RRefId id, std::vector<DeferredItem>& after)
      WEFT_REQUIRES(kTables);

  ReferenceContext& context_;
  DeferredWork& work_;
  /// uses of destroyed values: 0 unless a worker was lost (G2)
  std::atomic<int64_t> gone_{0};
  std::unordered_map<RRefId, Entry> entries_ WEFT_GUARDED_BY(kTables);
  ByLife<std::pair<RRefId, ForkId>> forks_ WEFT_GUARDED_BY(kTables);  ///< of other workers, by holder
  ByLife<RRefId> unannounced_ WEFT_GUARDED_BY(kTables);               ///< by maker
  /// values whose creations were refused, by maker
  std::unordered_map<Life, RefusedNumbers> refused_ WEFT_GUARDED_BY(kTables);
  LeakPolicy policy_ WEFT_GUARDED_BY(kTables) = LeakPolicy::kReport;
  std::vector<LeakedRRef> leaks_ WEFT_GUARDED_BY(kTables);
};

}  // namespace weft::rpc::detail
