// The part of one worker in an elastic group: it joins, renews its lease, follows the list of members and
// removes lost ones. The keys of the store and the protocol follow the includes.
#include <weft/distributed/launch/membership.h>

#include <algorithm>
#include <iostream>

#include <weft/distributed/launch/inner/group_keys.h>
#include <weft/distributed/launch/inner/joining.h>
#include <weft/distributed/launch/inner/member_list.h>
#include <weft/distributed/rpc/inner/agent_impl.h>

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
//     any more, or whose name another life holds, stays out.
//  4. Loss. Each member keeps the next one of the list under its agent's lease. A member that loses another
//     one removes it from the list as soon as its lease at the store has run out. A member that reaches the
//     store stays, since the trouble may be that of the one that lost it.
//  5. A life that leaves the list counts as lost, or as gone, on every member.
// Messages carry no epoch. Each one names the lives of its sender and of its receiver, and a member takes
// those of current lives only. So no message of a past one passes, whichever epochs both ends have seen.
namespace weft::rpc {
namespace {

using inner::Departure;
using inner::kMembersKey;
using inner::life_of;
using inner::MemberList;

// Such texts reach every member, so they do not tell the number of a life: with it, a hello could pose as it.
constexpr char kSucceeded[] = "its successor has its name";
constexpr Duration kReleased = std::chrono::milliseconds(1);  // the last lease of a life that leaves
constexpr Duration kLongestWatch = std::chrono::seconds(1);

/// Finds the membership of an agent.
struct MembershipSlot {
  explicit MembershipSlot(Agent&) {}
  Mutex mutex;
  std::weak_ptr<Membership> membership WEFT_GUARDED_BY(mutex);
};

}  // namespace

struct Membership::State {
  State(std::shared_ptr<Runtime> rt, std::shared_ptr<Store> s, JoinOptions o)
      : runtime(std::move(rt)),
        store(std::move(s)),
        options(std::move(o)),
        life_key(inner::kLifeBegin + options.name),
        changed(*runtime, "a change of the members"),
        ended(*runtime, "the renewals of a lease") {}

  Fence& fence() const { return agent->impl().core.fence; }
  Duration lease() const { return agent->impl().core.options.lease; }
  bool over() const { return stopping || !agent->is_running(); }
  std::string number() const { return to_string(agent->life().incarnation); }

  void take_name();
  void release_name() const;
  void renew();
  bool follow(TimePoint until);
  void apply(const std::string& text);
  void place(const MemberList& now);
  void keep_next(const MemberList& now);
  void remove_lost(const LostPeer& lost);
  void stay_out(const std::string& why);
  void tell_fenced();

  const std::shared_ptr<Runtime> runtime;
  const std::shared_ptr<Store> store;
  const JoinOptions options;
  const std::string life_key;
  std::shared_ptr<Agent> agent;  // set before others see this object
  Event changed, ended;
  std::atomic<bool> stopping{false};
  std::string why_left = "it was shut down";  // set before the only leave that has another reason
  Callbacks<const WorkerInfo&> joined_callbacks;
  Callbacks<const std::string&> fenced_callbacks;
  // of the task that renews and follows
  std::optional<std::string> known;
  Life next;  // the member that this worker keeps under lease
  bool told = false;
  mutable Mutex mutex;
  MemberList list WEFT_GUARDED_BY(mutex);
};

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
  s.agent->on_peer_lost([weak = std::weak_ptr(self)](const LostPeer& lost) {
    // a task of its own: the callbacks that follow must not wait for a lease
    if (const auto living = weak.lock())
      living->state_->runtime->post([living, lost] { living->state_->remove_lost(lost); });
  });
  try {
    s.take_name();
    Member me = s.agent->as_member();
    me.process = options.process;
    inner::change_members(*s.store, kMembersKey, options.deadline, [&](MemberList& list) {
      inner::check_devices(list, me);
      if (const Member* before = list.find(me.id)) list.remove({life_of(*before), false, kSucceeded});
      list.add(me);
      return true;
    });
    s.apply(s.store->get(kMembersKey, options.deadline));
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
  s.runtime->post([self] {
    State& mine = *self->state_;
    try {
      while (!mine.over()) {
        mine.renew();
        if (mine.fence().closed_for_good()) break;
        const TimePoint until = mine.runtime->now() + mine.lease() / 4;
        while (!mine.over() && !mine.fence().closed(mine.runtime->now()) && mine.runtime->now() < until)
          if (!mine.follow(std::min(until, mine.runtime->now() + kLongestWatch))) break;
      }
    } catch (const Error&) {  // the runtime has stopped
    }
    mine.ended.set();
  });
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
    const TimePoint sent = runtime->now();
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

// ---- the task that renews and follows

/// Steps 2 and 3.
void Membership::State::renew() {
  const TimePoint sent = runtime->now();
  const bool late = fence().closed(sent);
  TimePoint deadline = sent + lease() / 4;
  if (!late) deadline = std::min(deadline, fence().until());
  try {
    store->hold(life_key, number(), lease(), deadline);
    if (late) apply(store->get(kMembersKey, deadline));
    fence().open_until(sent + lease());
    told = told && fence().closed_for_good();
  } catch (const RuntimeStopped&) {
    throw;
  } catch (const ValueError&) {
    stay_out("another life has its name");
  } catch (const Error& e) {
    fence().explain(e.what());
    if (fence().closed(runtime->now())) tell_fenced();
    if (runtime->now() < deadline) runtime->sleep_for(lease() / 16);
  }
}

/// Waits for a change of the list. False: the store does not answer.
bool Membership::State::follow(TimePoint until) {
  try {
    const auto text = store->watch(kMembersKey, known, until);
    if (over()) return true;
    if (text) apply(*text);
    else stay_out("the store has lost the list of members");
    return true;
  } catch (const RuntimeStopped&) {
    throw;
  } catch (const Timeout&) {  // no change
    return true;
  } catch (const Error& e) {
    fence().explain(e.what());
    return false;
  }
}

void Membership::State::apply(const std::string& text) {
  if (known == text) return;
  const MemberList now = inner::decode_members(text);
  known = text;
  const Life me = agent->life();
  const Member* const mine = now.find(me.id);
  bool back = false;
  {
    MutexLock lock(mutex);
    back = now.epoch < list.epoch;
  }
  if (back) return stay_out("the store has lost the list of members");
  if (mine && life_of(*mine) != me) return stay_out(kSucceeded);
  if (!mine) {
    const Departure* gone = now.departure(me);
    return stay_out(gone ? gone->why : "it is not in the list of members any more");
  }
  place(now);
  keep_next(now);
  changed.set();
}

/// Steps 1 and 5: tells the agent of the members that came and went. Only this task changes the list. The
/// agent knows a member before the list has it, so that a program that waited for the member can call it.
void Membership::State::place(const MemberList& now) {
  MemberList before;
  {
    MutexLock lock(mutex);
    before = list;
  }
  std::vector<WorkerInfo> joined;
  for (const Member& m : now.members) {
    const Member* const old = before.find(m.id);
    if (m.id == agent->self().id || (old && life_of(*old) == life_of(m))) continue;
    try {
      agent->add_members({m});
      if (options.found) options.found(agent, m);
    } catch (const Error& e) {  // an address of another kind, or without credentials here
      if (runtime->tracing()) runtime->trace(str("membership: ", e.what()));
      continue;
    }
    joined.push_back({m.name, m.id});
  }
  {
    MutexLock lock(mutex);
    list = now;
  }
  const auto callbacks = joined_callbacks.copies();
  for (const WorkerInfo& info : joined)
    if (!callbacks.empty())
      runtime->post([agent = agent, callbacks, info] {
        const AgentScope scope(agent);
        for (const auto& f : callbacks) f(info);
      });
  for (const Member& m : before.members) {
    if (m.id == agent->self().id || now.find(m.id)) continue;
    Peer* const p = agent->impl().peers.find(life_of(m));
    const Departure* const gone = now.departure(life_of(m));
    if (p)
      agent->impl().liveness.lose(*p, gone && gone->left,
                                  gone ? gone->why : "it is not in the list of members any more");
  }
}

/// Step 4: the next member by id stays under lease.
void Membership::State::keep_next(const MemberList& now) {
  const WorkerId me = agent->self().id;
  const auto& all = now.members;
  auto after = std::find_if(all.begin(), all.end(), [&](const Member& m) { return m.id > me; });
  if (after == all.end()) after = all.begin();
  const Life fresh = after->id == me ? Life() : life_of(*after);
  if (fresh == next) return;
  if (fresh.id.value >= 0) agent->watch(fresh, +1);
  if (next.id.value >= 0) agent->watch(next, -1);
  next = fresh;
}

/// Step 4: waits until the lease of a lost member has run out, and removes it. The agent may lose a member
/// that this worker's list has not yet, so only a departure says that there is nothing to do.
void Membership::State::remove_lost(const LostPeer& lost) {
  const std::string held = to_string(lost.incarnation), key = inner::kLifeBegin + lost.info.name;
  while (!over() && !fence().closed_for_good()) {
    {
      MutexLock lock(mutex);
      if (list.departure(lost.life())) return;
    }
    const TimePoint until = runtime->now() + std::min<Duration>(lease() / 4, kLongestWatch);
    try {
      if (store->peek({key}, until).front() == held) {
        store->watch(key, held, until);
        continue;
      }
      const std::string why =
          lost.left ? lost.why : str("worker '", options.name, "' has lost it: ", lost.why);
      inner::change_members(*store, kMembersKey, until, [&](MemberList& now) {
        return now.remove({lost.life(), lost.left, why});
      });
      return;
    } catch (const RuntimeStopped&) {
      return;
    } catch (const Timeout&) {  // the lease goes on, or the store does not answer
    } catch (const Error&) {
      runtime->sleep_for(lease() / 16);
    }
  }
}

void Membership::State::stay_out(const std::string& why) {
  if (over()) return;
  fence().close(why);
  told = false;
  tell_fenced();
  changed.set();
}

/// Says once that this worker is fenced, and once that it stays so.
void Membership::State::tell_fenced() {
  if (std::exchange(told, true)) return;
  const std::string why = error_text(fence().error(options.name));
  auto callbacks = fenced_callbacks.copies();
  if (runtime->tracing()) runtime->trace(why);
  else if (callbacks.empty()) std::cerr << str("weft: ", why, "\n");
  if (!callbacks.empty())
    runtime->post([agent = agent, callbacks = std::move(callbacks), why] {
      const AgentScope scope(agent);
      for (const auto& f : callbacks) f(why);
    });
}

// ---- the public part

std::shared_ptr<Membership> Membership::of(Agent& agent) {
  auto& slot = agent.slot<MembershipSlot>();
  MutexLock lock(slot.mutex);
  return slot.membership.lock();
}

const std::shared_ptr<Agent>& Membership::agent() const { return state_->agent; }
const std::shared_ptr<Store>& Membership::store() const { return state_->store; }

uint64_t Membership::epoch() const {
  MutexLock lock(state_->mutex);
  return state_->list.epoch;
}

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
    // The list may tell the others sooner than the last answers arrive, and ends their calls.
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
    } catch (const Error&) {  // the others hear the goodbye, and the lease runs out
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
