// Versions of parameters on their owner, counted in steps, and the staleness of a context's gradients. One
// mutex guards the ledger. Its clock is that of the agent's contexts.
#include <weft/distributed/optim/inner/step_ledger.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include <weft/distributed/autograd/inner/dist_context.h>
#include <weft/distributed/optim/inner/step_decisions.h>
#include <weft/distributed/rpc/step_errors.h>

namespace weft::dist_optim::detail {

using dist_autograd::detail::ContextTable;

namespace {

struct LedgerSlot {
  explicit LedgerSlot(rpc::Agent& agent) : ledger(StepLedger::make(agent)) {}
  const std::shared_ptr<StepLedger> ledger;
};

}  // namespace

StepLedger::StepLedger(rpc::Agent& agent) : agent_(agent.weak_from_this()) {}

std::shared_ptr<StepLedger> StepLedger::make(rpc::Agent& agent) {
  auto made = std::make_shared<StepLedger>(agent);
  made->listen(agent);
  return made;
}

std::shared_ptr<StepLedger> StepLedger::of(rpc::Agent& agent) { return agent.slot<LedgerSlot>().ledger; }

std::vector<VersionsPtr> StepLedger::records(const std::vector<Tensor>& params) {
  std::vector<VersionsPtr> out;
  drop_unused();
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

StepLedger::OpenContext StepLedger::reached(int64_t context_id) const {
  const auto agent = agent_.lock();
  if (!agent) throw RpcError("distributed optimizer: the agent has ended");
  const auto table = ContextTable::of(*agent);
  const auto context = table->get(table->named(context_id));
  return {context->id, context->since};
}

int64_t StepLedger::steps_since(const ParameterVersions& v, int64_t clock) {
  const auto later = std::upper_bound(v.steps.begin(), v.steps.end(), clock,
                                      [](int64_t c, const TakenStep& s) { return c < s.clock; });
  return static_cast<int64_t>(v.pending.size()) + (v.steps.end() - later);
}

int64_t StepLedger::staleness(const std::vector<VersionsPtr>& records, int64_t context_id) const {
  const int64_t clock = reached(context_id).since;
  int64_t most = 0;
  rpc::MutexLock lock(mutex_);
  for (const VersionsPtr& r : records) most = std::max(most, steps_since(*r, clock));
  return most;
}

void StepLedger::check(const std::vector<VersionsPtr>& records, const OpenContext& context, int64_t bound,
                       bool prepare) const {
  for (const VersionsPtr& r : records) {
    if (r->prepared || (prepare && !r->pending.empty()))
      throw rpc::StepInDoubt(str("step: ", r->prepared ? "a prepared" : "another", " step of a parameter ",
                                 r->prepared ? "awaits its decision" : "is being taken"));
    const int64_t steps = steps_since(*r, context.since);
    if (bound >= 0 && steps > bound)
      throw rpc::StaleStep(str("step: its parameters have taken ", steps, steps == 1 ? " step" : " steps",
                               " since context ", context.id.id, " first reached this worker; the bound is ",
                               bound));
  }
}

void StepLedger::start(const std::vector<VersionsPtr>& records, MadeId context, bool prepare) {
  for (const VersionsPtr& r : records) {
    r->pending.push_back(context);
    r->prepared = prepare;
  }
}

MadeId StepLedger::begin(const std::vector<VersionsPtr>& records, int64_t context_id, int64_t bound,
                         bool prepare) {
  const OpenContext context = reached(context_id);
  rpc::MutexLock lock(mutex_);
  check(records, context, bound, prepare);
  start(records, context.id, prepare);
  return context.id;
}

void StepLedger::check_fence() const {
  if (const auto agent = agent_.lock()) detail::check_fence(*agent);
}

bool StepLedger::unused(const Doubt& doubt) {
  return std::all_of(doubt.params.begin(), doubt.params.end(), [](const Tensor& p) {
    return p.body().use_count() == 1 && p.body().storage->use_count() == 1;
  });
}

void StepLedger::drop_unused() {
  std::vector<Doubt> ended;  // freed after the lock
  rpc::MutexLock lock(mutex_);
  const auto rest = std::stable_partition(doubts_.begin(), doubts_.end(), std::not_fn(unused));
  ended.assign(std::make_move_iterator(rest), std::make_move_iterator(doubts_.end()));
  doubts_.erase(rest, doubts_.end());
}

void StepLedger::keep_doubt(std::vector<Tensor> params, std::vector<VersionsPtr> records) {
  drop_unused();
  rpc::MutexLock lock(mutex_);
  doubts_.push_back({std::move(params), std::move(records)});
}

bool StepLedger::claim(const std::vector<VersionsPtr>& records, MadeId context) {
  rpc::MutexLock lock(mutex_);
  for (const VersionsPtr& r : records)
    if (!r->prepared || r->pending != std::vector<MadeId>{context}) return false;
  for (const VersionsPtr& r : records) r->decided = true;
  return true;
}

void StepLedger::unclaim(const std::vector<VersionsPtr>& records) {
  rpc::MutexLock lock(mutex_);
  for (const VersionsPtr& r : records) r->decided = false;
}

void StepLedger::forget_prepared(const std::vector<VersionsPtr>& records) {
  std::vector<Doubt> ended;  // freed after the lock
  rpc::MutexLock lock(mutex_);
  for (const VersionsPtr& r : records) {
    if (r->decided) continue;
    if (r->prepared) r->pending.clear();  // a prepared step is alone
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
  sweep();
}

void StepLedger::count(const std::vector<VersionsPtr>& records, int64_t clock, MadeId context) {
  for (const VersionsPtr& r : records) {
    ++r->version;
    r->steps.push_back({clock, context});
    if (r->steps.size() > static_cast<size_t>(kMaxBound) + 1) r->steps.pop_front();
  }
}

void StepLedger::end(const std::vector<VersionsPtr>& records, MadeId context, bool done) {
  const auto agent = agent_.lock();
  const auto table = agent ? ContextTable::of(*agent) : nullptr;
  {
    rpc::MutexLock lock(mutex_);
    for (const VersionsPtr& r : records) {
      const auto mine = std::find(r->pending.begin(), r->pending.end(), context);
      if (mine != r->pending.end()) r->pending.erase(mine);
      r->prepared = r->decided = false;
    }
    if (done && table) count(records, table->tick(), context);
  }
  sweep();
}

void StepLedger::count_open(std::map<std::string, int64_t>& into) {
  drop_unused();
  rpc::MutexLock lock(mutex_);
  int64_t undecided = 0;
  for (const auto& [storage, known] : known_)
    if (const VersionsPtr record = known.lock()) undecided += record->prepared;
  into["dist_optim.waiting_steps"] = static_cast<int64_t>(waiting_.size());
  into["dist_optim.undecided_parameters"] = undecided;
}

void StepLedger::changed(const std::vector<VersionsPtr>& records) {
  const auto agent = agent_.lock();
  const auto table = agent ? ContextTable::of(*agent) : nullptr;
  {
    rpc::MutexLock lock(mutex_);
    if (table) count(records, table->tick(), MadeId());
  }
  sweep();
}

}  // namespace weft::dist_optim::detail
