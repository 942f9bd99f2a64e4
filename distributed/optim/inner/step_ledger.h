// The versions of parameters on one owner. It counts the steps that each has taken, by any optimizer, and
// those after a context first reached this worker. A step counts as pending from its check on and as done
// once its values are visible. So a context that reads old values counts it. The clock is that of the
// contexts (autograd/inner/dist_context.h). A step may wait for its turn, without a thread (step_turns.cpp).
// Thread safety: any thread.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <weft/distributed/autograd/inner/dist_nodes.h>
#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/tensor/tensor.h>

namespace weft::dist_optim::detail {

using dist_autograd::detail::MadeId;

/// A step that was taken: the clock then, and the context of its gradients; no context: a loaded checkpoint.
struct TakenStep {
  int64_t clock = 0;
  MadeId context;
};

/// The versions of one parameter, guarded by the ledger's mutex.
struct ParameterVersions {
  int64_t version = 0;          ///< steps taken
  std::vector<MadeId> pending;  ///< contexts of the steps that are being taken
  bool prepared = false;        ///< one of these awaits its decision
  bool decided = false;         ///< the prepared one takes its values: no doubt is left to end
  std::deque<TakenStep> steps;  ///< its latest ones
};
using VersionsPtr = std::shared_ptr<ParameterVersions>;

class StepLedger : public std::enable_shared_from_this<StepLedger> {
 public:
  /// The largest bound: the ledger remembers as many steps of a parameter.
  static constexpr int64_t kMaxBound = 1023;

  explicit StepLedger(rpc::Agent& agent);
  static std::shared_ptr<StepLedger> make(rpc::Agent& agent);
  static std::shared_ptr<StepLedger> of(rpc::Agent& agent);

  /// The records of parameters, which all optimizers of this owner share.
  std::vector<VersionsPtr> records(const std::vector<Tensor>& params);
  std::vector<int64_t> versions(const std::vector<VersionsPtr>& records) const;
  /// The most steps that one of the records has taken or begun since the context reached this worker. Throws:
  /// AutogradError for an unknown context.
  int64_t staleness(const std::vector<VersionsPtr>& records, int64_t context_id) const;
  /// Begins a step from a context's gradients; a negative bound is none. `prepare`: alone, until its end.
  /// Returns the context, for end. Throws: StaleStep; StepInDoubt when a prepared step of a parameter awaits
  /// its decision, or when a step to be prepared would not be alone.
  MadeId begin(const std::vector<VersionsPtr>& records, int64_t context_id, int64_t bound,
               bool prepare = false);
  /// Begins a step when no other open context would fall behind its bound by it (step_turns.cpp). Runs it at
  /// once or later, on the pool. Does not block. Ends a wait by Timeout shortly before the deadline of the
  /// call. Throws: as begin.
  void begin_in_turn(std::vector<VersionsPtr> records, int64_t context_id, int64_t bound,
                     std::function<void(MadeId context, std::exception_ptr error)> run);
  /// Before values become visible. Throws: Fenced if this worker is.
  void check_fence() const;
  /// Ends a step that was begun; `done`: its values are visible.
  void end(const std::vector<VersionsPtr>& records, MadeId context, bool done);
  /// Keeps the records of an undecided step whose optimizer ends, so that others still meet it. They go with
  /// the last other user of the parameters.
  void keep_doubt(std::vector<Tensor> params, std::vector<VersionsPtr> records);
  /// The decision about a prepared step has come. False: its doubt was ended. True: the step cannot be
  /// forgotten any more, until its end or `unclaim`.
  bool claim(const std::vector<VersionsPtr>& records, MadeId context);
  void unclaim(const std::vector<VersionsPtr>& records);
  /// Forgets prepared steps that will never be decided.
  void forget_prepared(const std::vector<VersionsPtr>& records);
  /// Counts a change that is no step of a context, such as a loaded checkpoint.
  void changed(const std::vector<VersionsPtr>& records);

 private:
  /// An open context, and the clock when it reached this worker.
  struct OpenContext {
    MadeId id;
    int64_t since = 0;
  };
  /// A step that waits for its turn.
  struct Waiter {
    std::vector<VersionsPtr> records;
    OpenContext context;
    int64_t bound = 0;
    rpc::CallContext call;  ///< in which it runs
    std::function<void(MadeId context, std::exception_ptr error)> run;
    std::vector<MadeId> behind;  ///< contexts for which it waits
    rpc::TimerId timer;
    bool over = false;
  };
  using WaiterPtr = std::shared_ptr<Waiter>;

  OpenContext reached(int64_t context_id) const;
  static int64_t steps_since(const ParameterVersions& v, int64_t clock);
  static bool has_stepped(const ParameterVersions& v, const OpenContext& context);
  void check(const std::vector<VersionsPtr>& records, const OpenContext& context, int64_t bound,
             bool prepare) const WEFT_REQUIRES(mutex_);
  void start(const std::vector<VersionsPtr>& records, MadeId context, bool prepare) WEFT_REQUIRES(mutex_);
  void count(const std::vector<VersionsPtr>& records, int64_t clock, MadeId context) WEFT_REQUIRES(mutex_);
  /// Counters for debug_info.
  void count_open(std::map<std::string, int64_t>& into);
  // ---- turns
  void listen(rpc::Agent& agent);
  std::vector<OpenContext> open() const;
  std::vector<MadeId> in_the_way(const Waiter& waiter, const std::vector<OpenContext>& open) const
      WEFT_REQUIRES(mutex_);
  bool may_go(Waiter& waiter, const std::vector<OpenContext>& open) WEFT_REQUIRES(mutex_);
  /// False: another thread has ended its wait.
  bool take(const WaiterPtr& waiter) WEFT_REQUIRES(mutex_);
  void sweep();
  void give_up(const WaiterPtr& waiter);
  void context_ended(MadeId id, const rpc::LostPeer* lost);
  void stop();
  void finish(const WaiterPtr& waiter, std::exception_ptr error);
  const std::weak_ptr<rpc::Agent> agent_;
  mutable rpc::Mutex mutex_;
  // by storage; a record lives as long as an optimizer of the parameter
  std::map<const Storage*, std::weak_ptr<ParameterVersions>> known_ WEFT_GUARDED_BY(mutex_);
  // undecided steps without an optimizer; the parameters keep their addresses
  struct Doubt {
    std::vector<Tensor> params;
    std::vector<VersionsPtr> records;
  };
  static bool unused(const Doubt& doubt);
  /// Drops the doubts about parameters that nothing else uses.
  void drop_unused();
  std::vector<Doubt> doubts_ WEFT_GUARDED_BY(mutex_);
  std::list<WaiterPtr> waiting_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_optim::detail
