// The state of an OwnerOptimizer, and its steps. It is shared with steps that wait for their turn and with
// the question to the store about a prepared step (step_decisions.h). They may outlive the OwnerOptimizer:
// with the loss of its caller the reference to it goes. Thread safety: any thread; a step and a shard of a
// checkpoint exclude each other by the mutex.
#pragma once

#include <deque>

#include <weft/distributed/optim/inner/step_decisions.h>
#include <weft/distributed/optim/inner/step_ledger.h>
#include <weft/distributed/optim/owner_optimizer.h>

namespace weft::dist_optim::detail {

/// A local optimizer of a rule over these parameters, group after group. Throws: ValueError for an unknown
/// rule, two rules of that name, or bad options.
std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& rule, const std::vector<Tensor>& params,
                                                 const std::vector<size_t>& sizes,
                                                 const std::vector<std::string>& options);
/// Gives the parameters new blocks with these values. The caller holds their locks. `take`: nothing else uses
/// the blocks of the values, which become those of the parameters where they fit.
void replace_values(const std::vector<Tensor>& params, const std::vector<Tensor>& values, bool take = false);

struct OwnerState : std::enable_shared_from_this<OwnerState> {
  /// A step that awaits its decision.
  struct Prepared {
    int64_t number = 0;
    std::vector<Tensor> values;
    std::vector<size_t> at;                       // parameters with a gradient
    std::unique_ptr<optim::Optimizer> optimizer;  // of the values
    std::vector<VersionsPtr> stepped;
    MadeId context;
    // in an elastic group: where its decision is, and since when it is awaited
    std::string decision;
    std::shared_ptr<rpc::Store> store;
    rpc::TimePoint since;
    rpc::TimerId timer;
    bool asked = false, unanswered = false;
  };

  std::vector<Tensor> gradients(int64_t context_id) const;
  /// The records of the parameters that have a gradient.
  std::vector<VersionsPtr> with_gradient(const std::vector<Tensor>& grads) const;
  // As the members of OwnerOptimizer with these names.
  void step(int64_t context_id);
  rpc::Future<void> step_in_turn(int64_t context_id);
  void prepare(int64_t context_id, int64_t number, std::string decision);
  void decide(int64_t number, bool commit);
  void end_doubt();
  /// The OwnerOptimizer ends.
  void abandon();

  // set once, before other threads see this object
  std::string rule;
  StepOptions how;
  std::shared_ptr<StepLedger> ledger;
  std::vector<VersionsPtr> versions;
  std::vector<Tensor> params;
  std::vector<size_t> group_sizes;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::shared_ptr<rpc::Runtime> runtime;

  rpc::Mutex mutex;
  std::vector<std::string> options WEFT_GUARDED_BY(mutex);  ///< encoded, by group
  std::unique_ptr<Prepared> prepared WEFT_GUARDED_BY(mutex);
  /// steps decided before they were prepared: a message that was late; the latest of them
  std::deque<int64_t> decided WEFT_GUARDED_BY(mutex);
  bool abandoned WEFT_GUARDED_BY(mutex) = false;
  optim::StateDict kept WEFT_GUARDED_BY(mutex), before WEFT_GUARDED_BY(mutex);  ///< shards of checkpoints
  ShardTerms before_terms WEFT_GUARDED_BY(mutex);

 private:
  Prepared shadow(const std::vector<Tensor>& grads) const WEFT_REQUIRES(mutex);
  /// False: no such step is prepared here.
  bool resolve(int64_t number, bool commit);
  void await_decision(int64_t number);
  void doubt(int64_t number);
  void ask(int64_t number);
  void take_step(const std::vector<Tensor>& grads, const std::vector<VersionsPtr>& stepped, MadeId context);
};

}  // namespace weft::dist_optim::detail
