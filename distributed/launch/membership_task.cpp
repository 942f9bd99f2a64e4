// The tasks of a member of an elastic group (membership.cpp, steps 2 to 5). One task renews the lease,
// follows the list and reports new and former members to the agent. For each loss a task removes the lost
// member. A late renewal reads the list before it opens the fence: a successor may have the name.
#include <weft/distributed/launch/inner/membership_state.h>

#include <algorithm>
#include <iostream>

namespace weft::rpc {
namespace {

using inner::Departure;
using inner::kMembersKey;
using inner::life_of;
using inner::MemberList;

constexpr Duration kLongestWatch = std::chrono::seconds(1);
/// Renewals in a row without an answer, each of a quarter of a lease, after which a store that cannot come
/// back counts as ended. So many attempts, and no time: a process that was stopped has made one.
constexpr int kLastRenewals = 24;

}  // namespace

/// Steps 2 and 3, until this worker leaves or stays out.
void Membership::State::run_task() {
  try {
    while (!over() && !fence().closed_for_good()) {
      renew();
      if (fence().closed_for_good()) break;
      const TimePoint until = runtime->now() + lease() / 4;
      while (!over() && !fence().closed() && runtime->now() < until)
        if (!follow(std::min(until, runtime->now() + kLongestWatch))) break;
    }
  } catch (const Error&) {  // the runtime has stopped
  }
  ended.set();
}

/// Steps 2 and 3.
void Membership::State::renew() {
  const TimePoint sent = runtime->lease_time();
  const bool late = fence().closed();
  Duration limit = lease() / 4;
  if (!late) limit = std::min(limit, fence().left());
  const TimePoint deadline = runtime->now() + limit;
  try {
    store->hold(life_key, number(), lease(), deadline);
    unanswered = 0;
    if (late) read_list(deadline);
    fence().open_until(sent + lease());
    if (!fence().closed_for_good()) told = false;
  } catch (const RuntimeStopped&) {
    throw;
  } catch (const ValueError&) {
    stay_out("another life has its name");
  } catch (const HostEnded& e) {
    stay_out(e.what());
  } catch (const Error& e) {
    unanswered = dynamic_cast<const Timeout*>(&e) ? unanswered + 1 : 0;
    if (unanswered >= kLastRenewals && !store->may_come_back())
      return stay_out(
          str("a store without a log has not answered for ", kLastRenewals / 4, " leases; ", e.what()));
    fence().explain(e.what());
    if (fence().closed()) tell_fenced();
    if (runtime->now() < deadline) runtime->sleep_for(lease() / 16);
  }
}

/// Waits for a change of the list. False: the store does not answer.
bool Membership::State::follow(TimePoint until) {
  try {
    std::optional<std::string> before;
    {
      const ListTurn turn_here(*this);
      before = known;
    }
    const uint64_t asked_in = epoch();
    const auto text = store->watch(kMembersKey, before, until);
    if (text) apply(*text, asked_in);
    else stay_out("the store has lost the list of members");
    return true;
  } catch (const RuntimeStopped&) {
    throw;
  } catch (const Timeout&) {  // no change
    return true;
  } catch (const HostEnded& e) {
    stay_out(e.what());
    return false;
  } catch (const Error& e) {
    fence().explain(e.what());
    return false;
  }
}

void Membership::State::read_list(TimePoint deadline) {
  const uint64_t asked_in = epoch();
  apply(store->get(kMembersKey, deadline), asked_in);
}

/// Step 6. The watch goes on beside it.
void Membership::State::catch_up() {
  try {
    if (!over() && !fence().closed_for_good()) read_list(runtime->now() + lease() / 4);
  } catch (const Error&) {  // the watch reports it
  }
  catching_up = false;
}

/// Takes a list that was asked for in epoch `asked_in`. Two readers may bring their answers in either order.
void Membership::State::apply(const std::string& text, uint64_t asked_in) {
  const ListTurn turn_here(*this);
  if (known == text || over()) return;
  const MemberList now = inner::decode_members(text);
  if (now.epoch < asked_in) return stay_out("the store has lost the list of members");
  if (now.epoch < epoch()) return;  // the other reader was faster
  known = text;
  const Life me = agent->life();
  const Member* const mine = now.find(me.id);
  if (mine && life_of(*mine) != me) return stay_out(inner::kSucceeded);
  if (!mine) {
    const Departure* gone = now.departure(me);
    return stay_out(gone ? gone->why : "it is not in the list of members any more");
  }
  place(now);
  keep_next(now);
  changed.set();
}

/// Steps 1 and 5: reports new and former members to the agent. Only this changes the list. The
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
    agent->impl().core.set_epoch(now.epoch);  // before a program can have waited for the list
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
/// that this worker's list has not yet, so only a departure shows that there is nothing to do.
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
  if (over() || fence().closed_for_good()) return;
  fence().close(why);
  told = false;
  tell_fenced();
  changed.set();
}

/// Says once that this worker is fenced, and once that it stays so.
void Membership::State::tell_fenced() {
  if (told.exchange(true)) return;
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

}  // namespace weft::rpc
