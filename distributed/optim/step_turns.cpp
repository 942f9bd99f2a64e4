// Steps that wait for their turn, so that no open context falls behind the bound. The slack of a context is
// the number of steps that others may still take before its own. A step is taken when the contexts that have
// not stepped can still all step in the order of their arrival. The first context never waits, so some step
// can always be taken. With at most bound + 1 contexts at a time no step is refused.
// A waiting step holds no thread. It is checked again when a step or a context ends, and at its deadline.
// Contexts are distinguished by the life that made them: a successor is not behind with the contexts of the
// previous life. The loss of a life that a step waits for ends the wait with that error.
#include <algorithm>

#include <weft/distributed/autograd/inner/dist_context.h>
#include <weft/distributed/optim/inner/step_ledger.h>
#include <weft/distributed/rpc/inner/agent_impl.h>

namespace weft::dist_optim::detail {

using dist_autograd::detail::ContextTable;

namespace {

constexpr size_t kMostNamed = 8;  // contexts in a text

/// Ends before the deadline of the call, so that the caller gets the reason.
rpc::TimePoint end_of_wait(rpc::TimePoint now, rpc::TimePoint deadline) {
  if (deadline == rpc::kNever) return deadline;
  return deadline - std::min<rpc::Duration>(std::chrono::seconds(1), (deadline - now) / 16);
}

}  // namespace

void StepLedger::listen(rpc::Agent& agent) {
  ContextTable::of(agent)->on_ended([weak = weak_from_this()](MadeId id, const rpc::LostPeer* lost) {
    if (const auto living = weak.lock()) living->context_ended(id, lost);
  });
  agent.on_stop([weak = weak_from_this()] {
    if (const auto living = weak.lock()) living->stop();
  });
  agent.add_debug_info([weak = weak_from_this()](std::map<std::string, int64_t>& into) {
    if (const auto living = weak.lock()) living->count_open(into);
  });
}

std::vector<StepLedger::OpenContext> StepLedger::open() const {
  std::vector<OpenContext> out;
  if (const auto agent = agent_.lock())
    for (const auto& context : ContextTable::of(*agent)->open()) out.push_back({context->id, context->since});
  return out;
}

bool StepLedger::has_stepped(const ParameterVersions& v, const OpenContext& context) {
  if (std::find(v.pending.begin(), v.pending.end(), context.id) != v.pending.end()) return true;
  for (auto step = v.steps.rbegin(); step != v.steps.rend() && step->clock > context.since; ++step)
    if (step->context == context.id) return true;
  return false;
}

/// The contexts that would fall behind; none: the step may be taken.
std::vector<MadeId> StepLedger::in_the_way(const Waiter& waiter, const std::vector<OpenContext>& open) const {
  std::vector<MadeId> out;
  for (const VersionsPtr& r : waiter.records) {
    std::vector<MadeId> before;
    bool first = true, late = false;
    for (const OpenContext& c : open) {  // by the time when they came, so with growing slack
      const int64_t slack = waiter.bound - steps_since(*r, c.since);
      if (c.id == waiter.context.id || slack < 0 || has_stepped(*r, c)) continue;
      first = first && c.since >= waiter.context.since;
      if (late) continue;
      before.push_back(c.id);
      late = slack < static_cast<int64_t>(before.size());
    }
    if (first || !late) continue;
    for (const MadeId id : before)
      if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
  }
  return out;
}

bool StepLedger::may_go(Waiter& waiter, const std::vector<OpenContext>& open) {
  check(waiter.records, waiter.context, waiter.bound, false);
  waiter.behind = in_the_way(waiter, open);
  if (!waiter.behind.empty()) return false;
  start(waiter.records, waiter.context.id, false);
  return true;
}

void StepLedger::begin_in_turn(std::vector<VersionsPtr> records, int64_t context_id, int64_t bound,
                               std::function<void(MadeId, std::exception_ptr)> run) {
  const auto waiter = std::make_shared<Waiter>();
  waiter->context = reached(context_id);
  const auto agent = agent_.lock();
  if (!agent) throw RpcError("distributed optimizer: the agent has ended");
  waiter->records = std::move(records);
  waiter->bound = bound;
  waiter->call = rpc::capture_context();
  waiter->run = std::move(run);
  const std::vector<OpenContext> now_open = open();
  bool waits = false;
  {
    rpc::MutexLock lock(mutex_);
    waits = !may_go(*waiter, now_open);
    if (waits) {
      const auto later = std::find_if(waiting_.begin(), waiting_.end(), [&](const WaiterPtr& w) {
        return w->context.since > waiter->context.since;
      });
      waiting_.insert(later, waiter);
    }
  }
  if (!waits) return waiter->run(waiter->context.id, nullptr);
  rpc::Runtime& runtime = *agent->runtime();
  if (const rpc::TimePoint until = end_of_wait(runtime.now(), waiter->call.deadline); until != rpc::kNever) {
    const rpc::TimerId timer =
        runtime.call_at(until, [weak = weak_from_this(), late = std::weak_ptr(waiter)] {
          const auto living = weak.lock();
          if (const auto found = late.lock(); living && found) living->give_up(found);
        });
    rpc::MutexLock lock(mutex_);
    waiter->timer = timer;
    const bool over = waiter->over;
    lock.unlock();
    if (over) runtime.cancel(timer);
  }
  sweep();  // the steps before it may have ended meanwhile
}

void StepLedger::sweep() {
  {
    rpc::MutexLock lock(mutex_);
    if (waiting_.empty()) return;
  }
  const auto agent = agent_.lock();
  if (!agent) return;
  const rpc::Fence& fence = agent->impl().core.fence;
  const bool fenced = fence.closed();
  const std::exception_ptr fenced_error = fenced ? fence.error(agent->self().name) : nullptr;
  const std::vector<OpenContext> now_open = open();
  const auto is_open = [&](MadeId id) {
    return std::any_of(now_open.begin(), now_open.end(), [&](const OpenContext& c) { return c.id == id; });
  };
  std::vector<std::pair<WaiterPtr, std::exception_ptr>> ended;
  {
    rpc::MutexLock lock(mutex_);
    for (auto w = waiting_.begin(); w != waiting_.end();) {
      Waiter& waiter = **w;
      std::exception_ptr error = fenced_error;
      bool over = fenced;
      try {
        if (!over && waiter.call.cancelled()) throw Cancelled("step: its caller has given up");
        if (!over && !is_open(waiter.context.id))
          throw AutogradError(
              str("step: autograd context ", waiter.context.id.id, " ended while its step waited"));
        over = over || may_go(waiter, now_open);
      } catch (const Error&) {
        over = true;
        error = std::current_exception();
      }
      if (!over) {
        ++w;
        continue;
      }
      waiter.over = true;
      ended.emplace_back(*w, error);
      w = waiting_.erase(w);
    }
  }
  for (auto& [waiter, error] : ended) finish(waiter, error);
}

/// Runs a waiter that has been taken from the list, on the pool.
void StepLedger::finish(const WaiterPtr& waiter, std::exception_ptr error) {
  const auto agent = agent_.lock();
  if (!agent) return waiter->run(waiter->context.id, std::move(error));
  rpc::TimerId timer;
  {
    rpc::MutexLock lock(mutex_);
    timer = waiter->timer;
  }
  if (timer.value != 0) agent->runtime()->cancel(timer);
  agent->runtime()->post([waiter, error] {
    const rpc::CallScope scope(waiter->call);
    waiter->run(waiter->context.id, error);
  });
}

bool StepLedger::take(const WaiterPtr& waiter) {
  if (waiter->over) return false;
  waiter->over = true;
  waiting_.remove(waiter);
  return true;
}

void StepLedger::give_up(const WaiterPtr& waiter) {
  const auto agent = agent_.lock();
  if (!agent) return;
  std::vector<MadeId> behind;
  {
    rpc::MutexLock lock(mutex_);
    if (!take(waiter)) return;
    behind = waiter->behind;
  }
  const auto table = ContextTable::of(*agent);
  std::string text = str("step: waited until its deadline, since it would take others beyond the bound of ",
                         waiter->bound, "; not stepped have");
  for (size_t i = 0; i < behind.size() && i < kMostNamed; ++i)
    text +=
        str(i == 0 ? " " : ", ", "context ", behind[i].id, " of ", table->worker_text(behind[i].maker().id));
  if (behind.size() > kMostNamed) text += str(" and ", behind.size() - kMostNamed, " more");
  finish(waiter, std::make_exception_ptr(Timeout(text)));
}

void StepLedger::context_ended(MadeId id, const rpc::LostPeer* lost) {
  drop_unused();
  std::vector<WaiterPtr> ended;
  if (lost != nullptr) {
    rpc::MutexLock lock(mutex_);
    for (const WaiterPtr& w : waiting_)
      if (std::find(w->behind.begin(), w->behind.end(), id) != w->behind.end()) ended.push_back(w);
    for (const WaiterPtr& w : ended) take(w);
  }
  for (const WaiterPtr& w : ended)
    finish(w, std::make_exception_ptr(
                  PeerLost(lost->info.name, str("step: waited for context ", id.id, " of worker '",
                                                lost->info.name, "', which was lost: ", lost->why))));
  sweep();
}

void StepLedger::stop() {
  std::list<WaiterPtr> ended;
  {
    rpc::MutexLock lock(mutex_);
    ended.swap(waiting_);
    for (const WaiterPtr& w : ended) w->over = true;
  }
  for (const WaiterPtr& w : ended)
    finish(w, std::make_exception_ptr(RpcError("step: the agent ended while it waited")));
}

}  // namespace weft::dist_optim::detail
