// The versions of parameters on one owner: how many steps each has taken, by any optimizer, and which of them
// came after a context first reached this worker. A step counts as pending from its check on and as done once
// its values are visible. So a context that reads old values counts it. The clock is that of the contexts
// (autograd/inner/dist_context.h). Thread safety: any thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/tensor/tensor.h>

namespace weft::dist_optim::detail {

/// The versions of one parameter, guarded by the ledger's mutex.
struct ParameterVersions {
  int64_t version = 0;         ///< steps taken
  int64_t pending = 0;         ///< steps that are being taken
  bool prepared = false;       ///< one of these awaits its decision
  std::deque<int64_t> clocks;  ///< of its latest steps
};
using VersionsPtr = std::shared_ptr<ParameterVersions>;

class StepLedger {
 public:
  /// The largest bound: the ledger remembers as many steps of a parameter.
  static constexpr int64_t kMaxBound = 1023;

  explicit StepLedger(rpc::Agent& agent);
  static std::shared_ptr<StepLedger> of(rpc::Agent& agent);

  /// The records of parameters, which all optimizers of this owner share.
  std::vector<VersionsPtr> records(const std::vector<Tensor>& params);
  std::vector<int64_t> versions(const std::vector<VersionsPtr>& records) const;
  /// The most steps that one of the records has taken or begun since the context reached this worker. Throws:
  /// AutogradError for an unknown context.
  int64_t staleness(const std::vector<VersionsPtr>& records, int64_t context_id) const;
  /// Begins a step from a context's gradients; a negative bound is none. `prepare`: alone, until its end.
  /// Throws: StaleStep; StepInDoubt when a prepared step of a parameter awaits its decision, or when a step
  /// to be prepared would not be alone.
  void begin(const std::vector<VersionsPtr>& records, int64_t context_id, int64_t bound,
             bool prepare = false);
  /// Ends a step that was begun; `done`: its values are visible.
  void end(const std::vector<VersionsPtr>& records, bool done);
  /// Keeps the records of an undecided step whose optimizer ends, so that others still meet it.
  void keep_doubt(std::vector<Tensor> params, std::vector<VersionsPtr> records);
  /// Forgets prepared steps that nobody will decide.
  void forget_prepared(const std::vector<VersionsPtr>& records);
  /// Counts a change that is no step of a context, such as a loaded checkpoint.
  void changed(const std::vector<VersionsPtr>& records);

 private:
  int64_t since(int64_t context_id) const;
  static int64_t steps_since(const ParameterVersions& v, int64_t clock);
  void count(const std::vector<VersionsPtr>& records, int64_t clock) WEFT_REQUIRES(mutex_);
  const std::weak_ptr<rpc::Agent> agent_;
  mutable rpc::Mutex mutex_;
  // by storage; a record lives as long as an optimizer of the parameter
  std::map<const Storage*, std::weak_ptr<ParameterVersions>> known_ WEFT_GUARDED_BY(mutex_);
  // undecided steps without an optimizer; the parameters keep their addresses
  struct Doubt {
    std::vector<Tensor> params;
    std::vector<VersionsPtr> records;
  };
  std::vector<Doubt> doubts_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_optim::detail
