// Versions of parameters on their owner, counted in steps, and the staleness of a context's gradients.
#include <weft/distributed/optim/inner/step_ledger.h>

#include <algorithm>

#include <weft/distributed/autograd/inner/dist_context.h>
#include <weft/distributed/rpc/step_errors.h>

namespace weft::dist_optim::detail {

using dist_autograd::detail::ContextTable;

namespace {

struct LedgerSlot {
  explicit LedgerSlot(rpc::Agent& agent) : ledger(std::make_shared<StepLedger>(agent)) {}
  const std::shared_ptr<StepLedger> ledger;
};

}  // namespace

StepLedger::StepLedger(rpc::Agent& agent) : agent_(agent.weak_from_this()) {}

std::shared_ptr<StepLedger> StepLedger::of(rpc::Agent& agent) { return agent.slot<LedgerSlot>().ledger; }

std::vector<VersionsPtr> StepLedger::records(const std::vector<Tensor>& params) {
  std::vector<VersionsPtr> out;
  rpc::MutexLock lock(mutex_);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  for (const Tensor& p : params) {
    auto& known = known_[p.body().storage.get()];
    VersionsPtr record = known.lock();
    if (!record) known = record = std::make_shared<ParameterVersions>();
    out.push_back(std::move(record));
  }
  return out;
}

std::vector<int64_t> StepLedger::versions(const std::vector<VersionsPtr>& records) const {
  std::vector<int64_t> out;
  rpc::MutexLock lock(mutex_);
  for (const VersionsPtr& r : records) out.push_back(r->version);
  return out;
}

int64_t StepLedger::since(int64_t context_id) const {
  const auto agent = agent_.lock();
  if (!agent) throw RpcError("distributed optimizer: the agent has ended");
  const auto table = ContextTable::of(*agent);
  return table->get(table->named(context_id))->since;
}

int64_t StepLedger::steps_since(const ParameterVersions& v, int64_t clock) {
  return v.pending + (v.clocks.end() - std::upper_bound(v.clocks.begin(), v.clocks.end(), clock));
}

int64_t StepLedger::staleness(const std::vector<VersionsPtr>& records, int64_t context_id) const {
  const int64_t clock = since(context_id);
  int64_t most = 0;
  rpc::MutexLock lock(mutex_);
  for (const VersionsPtr& r : records) most = std::max(most, steps_since(*r, clock));
  return most;
}

void StepLedger::begin(const std::vector<VersionsPtr>& records, int64_t context_id, int64_t bound,
                       bool prepare) {
  const int64_t clock = since(context_id);
  rpc::MutexLock lock(mutex_);
  for (const VersionsPtr& r : records) {
    if (r->prepared || (prepare && r->pending > 0))
      throw rpc::StepInDoubt(str("step: ", r->prepared ? "a prepared" : "another", " step of a parameter ",
                                 r->prepared ? "awaits its decision" : "is being taken"));
    const int64_t steps = steps_since(*r, clock);
    if (bound >= 0 && steps > bound)
      throw rpc::StaleStep(str("step: its parameters have taken ", steps, steps == 1 ? " step" : " steps",
                               " since context ", context_id, " first reached this worker; the bound is ",
                               bound));
  }
  for (const VersionsPtr& r : records) {
    ++r->pending;
    r->prepared = prepare;
  }
}

void StepLedger::keep_doubt(std::vector<Tensor> params, std::vector<VersionsPtr> records) {
  rpc::MutexLock lock(mutex_);
  doubts_.push_back({std::move(params), std::move(records)});
}

void StepLedger::forget_prepared(const std::vector<VersionsPtr>& records) {
  std::vector<Doubt> ended;  // freed after the lock
  rpc::MutexLock lock(mutex_);
  for (const VersionsPtr& r : records) {
    if (r->prepared) --r->pending;
    r->prepared = false;
  }
  const auto open = [](const Doubt& d) {
    return std::any_of(d.records.begin(), d.records.end(), [](const auto& r) { return r->prepared; });
  };
  for (auto d = doubts_.begin(); d != doubts_.end();) {
    if (open(*d)) {
      ++d;
      continue;
    }
    ended.push_back(std::move(*d));
    d = doubts_.erase(d);
  }
  lock.unlock();
}

void StepLedger::count(const std::vector<VersionsPtr>& records, int64_t clock) {
  for (const VersionsPtr& r : records) {
    ++r->version;
    r->clocks.push_back(clock);
    if (r->clocks.size() > static_cast<size_t>(kMaxBound) + 1) r->clocks.pop_front();
  }
}

void StepLedger::end(const std::vector<VersionsPtr>& records, bool done) {
  const auto agent = agent_.lock();
  const auto table = agent ? ContextTable::of(*agent) : nullptr;
  rpc::MutexLock lock(mutex_);
  for (const VersionsPtr& r : records) {
    --r->pending;
    r->prepared = false;
  }
  if (done && table) count(records, table->tick());
}

void StepLedger::changed(const std::vector<VersionsPtr>& records) {
  const auto agent = agent_.lock();
  const auto table = agent ? ContextTable::of(*agent) : nullptr;
  rpc::MutexLock lock(mutex_);
  if (table) count(records, table->tick());
}

}  // namespace weft::dist_optim::detail
