// The part of one worker in an elastic group: it joins, waits, serves and leaves. membership_task.cpp renews
// its lease, follows the list of members and removes lost ones. The keys of the store and the protocol follow
// the includes.
#include <weft/distributed/launch/membership.h>

#include <algorithm>

#include <weft/distributed/launch/inner/joining.h>
#include <weft/distributed/launch/inner/membership_state.h>
#include <weft/distributed/rpc/inner/trace_functions.h>

// Keys of the store:
//   group/ids, group/id/<name>   the ids given so far; the id of a name, which all its lives have
//   group/life/<name>            the incarnation of the life that has the name, under its lease
//   group/members                the list of members (inner/member_list.h)
// Steps of optimizers keep their decisions beside them (optim/step_decisions.cpp). Under TLS the store
// takes a change that acts for a name from the certificate of that name only (store_names.cpp).
//  1. Join. A worker takes the id of its name, makes its agent and takes the lease of the name. It waits
//     until an older life's lease has run out. Then it enters the list.
//  2. One task renews the lease every quarter of it, and follows the list in between. The fence of the agent
//     is open for a lease from the time when the last answered renewal was sent. The store counts from its
//     arrival, which is later: this worker stops before the store gives its name away.
//     [G: no two lives of a name serve at one time]
//  3. A renewal that comes too late reads the list before it opens the fence. A life that is not in the list
//     any more, or whose name another life holds, stays out. So do all when the store has ended for good.
//  4. Loss. Each member keeps the next one of the list under its agent's lease. A member that loses another
//     one removes it from the list as soon as its lease at the store has run out. A member that reaches the
//     store stays, since the trouble may be that of the one that lost it.
//  5. A life that leaves the list counts as lost, or as gone, on every member.
//  6. Each message carries its sender's epoch. A member that learns of a later epoch than its own reads the
//     list at once, and waits no longer for its watch. The epoch does not decide which messages are taken:
//     each one names the lives of its sender and of its receiver, and a member takes those of current lives
//     only. So no message of a past life passes, whichever epochs both ends have seen.
namespace weft::rpc {
namespace {

using inner::kMembersKey;
using inner::life_of;
using inner::MemberList;

constexpr Duration kReleased = std::chrono::milliseconds(1);  // the last lease of a life that leaves

/// Finds the membership of an agent.
struct MembershipSlot {
  explicit MembershipSlot(Agent&) {}
  Mutex mutex;
  std::weak_ptr<Membership> membership WEFT_GUARDED_BY(mutex);
};

}  // namespace

// ---- joining

Membership::Membership(std::shared_ptr<Runtime> runtime, std::shared_ptr<Store> store, JoinOptions options)
    : state_(std::make_unique<State>(std::move(runtime), std::move(store), std::move(options))) {}

Membership::~Membership() = default;

std::shared_ptr<Membership> Membership::join(std::shared_ptr<Runtime> runtime, std::shared_ptr<Store> store,
                                             const JoinOptions& options) {
  check_worker_name(options.name);
  const auto self = std::make_shared<Membership>(std::move(runtime), std::move(store), options);
  State& s = *self->state_;
  inner::check_store_kind(*s.store, options);
  s.agent = options.make_agent(inner::claim_id(*s.store, options.name, options.deadline));
  s.agent->on_stop([weak = std::weak_ptr(self)] {
    if (const auto living = weak.lock()) living->stop();
  });
  s.agent->impl().core.epoch_callbacks.add([weak = std::weak_ptr(self)] {
    const auto living = weak.lock();
    if (living && !living->state_->catching_up.exchange(true))
      living->state_->runtime->post([living] { living->state_->catch_up(); });
  });
  s.agent->on_peer_lost([weak = std::weak_ptr(self)](const LostPeer& lost) {
    // a task of its own: the callbacks that follow must not wait for a lease
    if (const auto living = weak.lock())
      living->state_->runtime->post([living, lost] { living->state_->remove_lost(lost); });
  });
  try {
    s.take_name();
    Member me = s.agent->as_member();
    me.process = options.process;
    me.engines = options.engines;
    inner::change_members(*s.store, kMembersKey, options.deadline, [&](MemberList& list) {
      inner::check_devices(list, me);
      if (const Member* before = list.find(me.id)) list.remove({life_of(*before), false, inner::kSucceeded});
      list.add(me);
      return true;
    });
    s.read_list(options.deadline);
    if (s.fence().closed_for_good()) std::rethrow_exception(s.fence().error(options.name));
  } catch (...) {
    s.release_name();
    s.agent->shutdown({.graceful = false});
    throw;
  }
  {
    auto& slot = s.agent->slot<MembershipSlot>();
    MutexLock lock(slot.mutex);
    slot.membership = self;
  }
  self->on_joined(inner::trace_joined);
  s.runtime->post([self] { self->state_->run_task(); });
  try {
    inner::ask_for_devices(s.agent, options.deadline);
  } catch (const Error& e) {
    s.why_left = str("it was refused: ", e.what());
    try {
      self->leave(s.runtime->now() + s.lease());
    } catch (const Error&) {  // the agent has ended all the same
    }
    throw;
  }
  return self;
}

/// Lets the lease of the name run out at once, as far as this life has it.
void Membership::State::release_name() const {
  try {
    const TimePoint until = runtime->now() + lease() / 4;
    if (store->peek({life_key}, until).front() == number()) store->hold(life_key, number(), kReleased, until);
  } catch (const Error&) {  // it runs out by itself
  }
}

/// Step 1: holds the lease of the name.
void Membership::State::take_name() {
  for (;;) {
    const TimePoint sent = runtime->lease_time();
    try {
      store->hold(life_key, number(), lease(), options.deadline);
      return fence().open_until(sent + lease());
    } catch (const ValueError&) {  // another life holds it
    }
    const auto holder = store->peek({life_key}, options.deadline).front();
    if (!holder) continue;
    try {
      store->watch(life_key, holder, options.deadline);
    } catch (const Timeout&) {
      std::string where;
      const auto members = store->peek({kMembersKey}, runtime->now() + std::chrono::seconds(2)).front();
      if (members) {
        const MemberList now = inner::decode_members(*members);
        const Member* old = now.find(options.name);
        if (old && !old->address.addresses.empty()) where = " at " + old->address.addresses.front();
      }
      throw Timeout(str("init: another life of worker '", options.name, "'", where,
                        " holds the lease of the name; a successor waits until it has left, or has not "
                        "renewed the lease for its whole time"));
    }
  }
}

// ---- the public part

std::shared_ptr<Membership> Membership::of(Agent& agent) {
  auto& slot = agent.slot<MembershipSlot>();
  MutexLock lock(slot.mutex);
  return slot.membership.lock();
}

const std::shared_ptr<Agent>& Membership::agent() const { return state_->agent; }
const std::shared_ptr<Store>& Membership::store() const { return state_->store; }

uint64_t Membership::epoch() const { return state_->epoch(); }

std::vector<WorkerInfo> Membership::members() const {
  std::vector<WorkerInfo> out;
  MutexLock lock(state_->mutex);
  for (const Member& m : state_->list.members) out.push_back({m.name, m.id});
  return out;
}

void Membership::wait_for(const std::vector<std::string>& names, TimePoint deadline) const {
  State& s = *state_;
  for (;;) {
    s.changed.reset();
    std::string missing;
    {
      MutexLock lock(s.mutex);
      for (const std::string& name : names)
        if (!s.list.find(name)) missing += str(missing.empty() ? "'" : ", '", name, "'");
    }
    if (s.fence().closed_for_good()) std::rethrow_exception(s.fence().error(s.options.name));
    if (missing.empty()) return;
    if (s.runtime->now() >= deadline) throw Timeout(str("wait_for_members: not in the group: ", missing));
    // another wait may have reset the event meanwhile
    s.changed.wait_until(std::min(deadline, s.runtime->now() + s.lease() / 4));
  }
}

void Membership::on_joined(std::function<void(const WorkerInfo&)> f) {
  state_->joined_callbacks.add(std::move(f));
}

void Membership::on_fenced(std::function<void(const std::string&)> f) {
  state_->fenced_callbacks.add(std::move(f));
}

void Membership::serve(TimePoint deadline, const std::string& caller) const {
  State& s = *state_;
  while (!s.agent->told_to_stop() && s.agent->is_running()) {
    if (s.fence().closed_for_good()) std::rethrow_exception(s.fence().error(s.options.name));
    if (s.runtime->now() >= deadline)
      throw Timeout(str(caller, ": worker '", s.options.name,
                        "' serves an elastic group until stop_serving, and was not told to stop in time"));
    s.agent->impl().rounds.woken.wait_until(std::min(deadline, s.runtime->now() + s.lease() / 4));
  }
}

void Membership::leave(TimePoint deadline, const std::string& caller) {
  State& s = *state_;
  const Counters& open = s.agent->impl().core.counters;
  std::exception_ptr failure;
  try {
    while ((open.active_client > 0 || open.active_server > 0) && !s.over() && !s.fence().closed_for_good()) {
      if (s.runtime->now() >= deadline)
        throw Timeout(
            str(caller, ": worker '", s.options.name, "' still has calls under way:\n", s.agent->dump()));
      s.runtime->sleep_for(std::chrono::milliseconds(1));
    }
    // The list may reach the others before the last answers, and then ends their calls.
    if (!s.over() && !s.fence().closed_for_good())
      answer_the_last(*s.agent, std::min<TimePoint>(deadline, s.runtime->now() + s.lease()));
  } catch (...) {
    failure = std::current_exception();
  }
  const bool member = !s.over() && !s.fence().closed_for_good();
  stop();
  if (member) {
    const TimePoint until = s.runtime->now() + s.lease();
    try {
      inner::change_members(*s.store, kMembersKey, until, [&](MemberList& list) {
        return list.remove({s.agent->life(), true, s.why_left});
      });
      if (s.ended.wait_until(until)) s.store->hold(s.life_key, s.number(), kReleased, until);
    } catch (const Error&) {  // the others get the goodbye, and the lease runs out
    }
  }
  s.agent->shutdown({.graceful = false});
  if (failure) std::rethrow_exception(failure);
}

void Membership::stop() { state_->stopping = true; }

void on_member_joined(std::function<void(const WorkerInfo&)> f) {
  if (const auto membership = Membership::of(*current_agent())) membership->on_joined(std::move(f));
}

void on_member_lost(std::function<void(const LostPeer&)> f) {
  const std::shared_ptr<Agent> agent = current_agent();
  agent->on_peer_lost([weak = std::weak_ptr(agent), f = std::move(f)](const LostPeer& lost) {
    const auto living = weak.lock();
    if (living && living->impl().peers.told(lost.life())) f(lost);
  });
}

void on_fenced(std::function<void(const std::string&)> f) {
  if (const auto membership = Membership::of(*current_agent())) membership->on_fenced(std::move(f));
}

uint64_t epoch() {
  const auto membership = Membership::of(*current_agent());
  return membership ? membership->epoch() : 0;
}

void wait_for_members(const std::vector<std::string>& names, Duration timeout) {
  const std::shared_ptr<Agent> agent = current_agent();
  if (const auto membership = Membership::of(*agent))
    return membership->wait_for(names, agent->runtime()->now() + timeout);
  for (const std::string& name : names) agent->worker_info(name);
}

}  // namespace weft::rpc
