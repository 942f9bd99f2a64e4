// References: loss of workers (references.cpp, step 11), graceful shutdown (step 12), counters and leak
// reports. Releases of single references are in references_settle.cpp.
#include <weft/distributed/rpc/inner/services.h>
#include <weft/distributed/rref/inner/references.h>

#include <algorithm>
#include <set>

namespace weft::rpc {

namespace detail {

void References::install(Agent& agent) {
  serve(agent);
  const auto weak = weak_from_this();
  agent.on_peer_lost([weak](const WorkerInfo& peer, bool left, const std::string& why) {
    if (const auto self = weak.lock()) self->peer_lost(peer, left, why);
  });
  agent.add_shutdown_step("references on their way", [weak](TimePoint deadline) {
    if (const auto self = weak.lock()) self->shutdown_shares(deadline);
  });
  agent.add_shutdown_step("references held here", [weak](TimePoint deadline) {
    if (const auto self = weak.lock()) self->shutdown_users(deadline);
  });
  agent.add_shutdown_step("references to values here", [weak](TimePoint deadline) {
    if (const auto self = weak.lock()) self->shutdown_owners(deadline);
  });
  agent.on_stop([weak] {
    if (const auto self = weak.lock()) self->stop();
  });
  agent.add_debug_info([weak](std::map<std::string, int64_t>& into) {
    if (const auto self = weak.lock()) self->debug_info(into);
  });
}

void References::peer_lost(const WorkerInfo& peer, bool left, const std::string& why) {
  std::vector<Later> after;
  std::vector<std::shared_ptr<UserState>> users;  // keeps them: none may be destroyed under the lock
  std::vector<std::shared_ptr<OwnedState>> unborn;
  std::vector<ForkId> shares;
  {
    MutexLock lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      Entry& entry = it->second;
      std::vector<ForkId> lost;
      for (const auto& [fork, holder] : entry.forks)
        if (holder == peer.id) lost.push_back(fork);
      if (!entry.announced && entry.creator == peer.id) {
        entry.announced = true;
        if (auto state = entry.state.lock()) unborn.push_back(std::move(state));
        drop_watch(peer.id, after);
        if (entry.forks.empty())
          after.push_back({Later::What::kDrop, {}, it->first, {}, std::move(entry.kept)});
      }
      for (const ForkId fork : lost) remove_fork(it->first, fork, after);
    }
    for (const auto& [fork, weak] : users_)
      if (auto state = weak.lock()) users.push_back(std::move(state));
    for (const auto& [fork, share] : shares_)
      if (share.to == peer.id) shares.push_back(fork);
    std::erase_if(refused_, [&](const ForkId& fork) { return fork.created_on == peer.id; });
  }
  if (tracing()) trace(str("worker ", self_.id.value, " rref: lost ", peer.id.value));
  const std::string reason = str(peer, left ? " has left the group" : " is lost", ": ", why);
  for (const auto& state : unborn)
    state->fail(std::make_exception_ptr(
        PeerLost(peer.name, str(state->id, " was never made: its creator ", reason))));
  for (const auto& state : users) {
    if (state->owner.id != peer.id) continue;
    lose_user(
        state, UserState::Standing::kFailed,
        std::make_exception_ptr(OwnerLost(peer.name, str(describe(state.get()), ": the owner ", reason))));
    std::vector<Responder> probes;
    {
      MutexLock lock(mutex_);
      const auto found = pending_.find(state->fork);
      if (found != pending_.end() && state->parent.id != self_.id) {  // a creation ends with its call
        probes = std::move(found->second.probes);
        if (found->second.accept)
          after.push_back({Later::What::kAccept, state->parent.id, state->id, state->fork});
        pending_.erase(found);
      }
    }
    for (Responder& probe : probes) probe.reply(probe_answer(false));
  }
  for (const ForkId fork : shares) resolve(fork, true);
  later(std::move(after));
  changed();
}

void References::changed() { change_.set(); }

template <class Quiet> bool References::wait_quiet(TimePoint deadline, Quiet quiet) {
  for (;;) {
    change_.reset();
    {
      MutexLock lock(mutex_);
      if (quiet()) return true;
    }
    if (!change_.wait_until(deadline)) {
      MutexLock lock(mutex_);
      return quiet();
    }
  }
}

void References::shutdown_shares(TimePoint deadline) {
  const auto agent = agent_.lock();
  if (!agent) return;
  drain();
  std::vector<Later> probes;
  {
    MutexLock lock(mutex_);
    for (const auto& [fork, share] : shares_) probes.push_back({Later::What::kProbe, {}, {}, fork});
  }
  later(std::move(probes));
  const bool settled = wait_quiet(deadline, [&]() WEFT_REQUIRES(mutex_) {
    return pending_.empty() && shares_.empty() && later_.empty() && draining_ == 0;
  });
  if (!settled) {
    std::set<std::string> names;
    size_t users = 0, children = 0;
    {
      MutexLock lock(mutex_);
      users = pending_.size();
      children = shares_.size();
    }
    std::vector<WorkerId> waited;
    {
      MutexLock lock(mutex_);
      for (const auto& [fork, p] : pending_) waited.push_back(p.state->owner.id);
      for (const auto& [fork, s] : shares_) waited.push_back(s.to);
    }
    for (const WorkerId id : waited) names.insert(to_string(agent->worker_info(id)));
    std::string text = str("shutdown of worker '", self_.name, "': ", users, " references not confirmed and ",
                           children, " on their way; waited for ");
    for (const std::string& name : names) text += name + (name == *names.rbegin() ? "" : ", ");
    throw Timeout(text);
  }
  MutexLock lock(mutex_);
  for (const auto& [fork, weak] : users_)
    if (auto state = weak.lock()) held_.push_back(std::move(state));
}

void References::shutdown_users(TimePoint deadline) {
  std::vector<std::shared_ptr<UserState>> held;
  {
    MutexLock lock(mutex_);
    held.swap(held_);
  }
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) { return a->fork < b->fork; });
  std::vector<Later> items;
  for (const auto& state : held) {
    const bool tell = state->known && state->standing.load() < UserState::Standing::kFailed;
    lose_user(state, UserState::Standing::kDeleted,
              std::make_exception_ptr(RpcError(str(
                  describe(state.get()), " has been deleted by the shutdown of worker '", self_.name, "'"))));
    if (!tell) continue;
    const std::string from = state->parent.id != self_.id ? str(" from ", state->parent) : "";
    items.push_back(
        {Later::What::kDelete, state->owner.id, state->id, state->fork, {}, to_string(state->site) + from});
  }
  later(std::move(items));
  drain();
  wait_quiet(deadline, [&]() WEFT_REQUIRES(mutex_) {
    return later_.empty() && draining_ == 0 && deletes_under_way_.load() == 0;
  });
}

void References::shutdown_owners(TimePoint deadline) {
  const auto limit = std::min(deadline, runtime_->now() + std::chrono::seconds(10));
  wait_quiet(limit, [&]() WEFT_REQUIRES(mutex_) {
    return later_.empty() && draining_ == 0 &&
           std::all_of(entries_.begin(), entries_.end(),
                       [](const auto& e) { return e.second.forks.empty(); });
  });
  LeakPolicy policy;
  std::vector<LeakedRRef> all;
  {
    MutexLock lock(mutex_);
    policy = policy_;
    if (const auto agent = agent_.lock())
      for (const auto& [id, entry] : entries_)
        for (const auto& [fork, holder] : entry.forks)
          leaks_.push_back({id, fork, self_, {"", holder}, "unknown: its holder never said so"});
    std::sort(leaks_.begin(), leaks_.end(),
              [](const LeakedRRef& a, const LeakedRRef& b) { return a.fork < b.fork; });
    all = leaks_;
  }
  if (policy != LeakPolicy::kThrow || all.empty()) return;
  std::string text = str("Leaking RRefs: at shutdown other workers still held ", all.size(),
                         " references to values of worker '", self_.name, "': ");
  for (size_t i = 0; i < all.size() && i < 20; ++i) text += (i == 0 ? "" : "; ") + to_string(all[i]);
  throw RpcError(text);
}

/// Releases everything after the end of the agent, without messages.
void References::stop() {
  decltype(entries_) entries;
  decltype(pending_) pending;
  decltype(shares_) shares;
  std::vector<Later> items;
  std::vector<std::shared_ptr<UserState>> users, held;
  std::vector<std::shared_ptr<OwnedState>> owned;
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    held.swap(held_);
    for (const auto& [fork, weak] : users_)
      if (auto state = weak.lock()) users.push_back(std::move(state));
    for (const auto& [id, entry] : entries_)
      if (auto state = entry.state.lock()) owned.push_back(std::move(state));
    users_.clear();
    entries.swap(entries_);
    pending.swap(pending_);
    shares.swap(shares_);
    items.swap(later_);
    refused_.clear();
    refused_order_.clear();
  }
  for (const auto& state : users)
    lose_user(
        state, UserState::Standing::kDeleted,
        std::make_exception_ptr(RpcError(str("RPC has not been initialized: ", describe(state.get()),
                                             " was used after worker '", self_.name, "' was shut down"))));
  for (const auto& state : owned)
    if (!state->created.done())
      state->fail(std::make_exception_ptr(
          RpcError(str("worker '", self_.name, "' was shut down before ", state->id, " was made"))));
}

void References::debug_info(std::map<std::string, int64_t>& into) {
  MutexLock lock(mutex_);
  int64_t owners = 0, forks = 0, children = 0, unmade = 0;
  for (const auto& [id, entry] : entries_) {
    owners += entry.kept != nullptr;
    unmade += entry.kept && !entry.kept->created.done();
    forks += static_cast<int64_t>(entry.forks.size());
  }
  for (const auto& [fork, share] : shares_) children += share.parent != nullptr;
  into["num_owner_rrefs"] = owners;
  into["num_forks"] = forks;
  into["num_pending_futures"] = unmade;
  into["num_pending_users"] = static_cast<int64_t>(pending_.size());
  into["num_pending_children"] = children;
  into["num_user_rrefs"] = static_cast<int64_t>(users_.size());
  into["num_shares"] = static_cast<int64_t>(shares_.size());
  into["num_gone_rrefs"] = gone_.load();
}

void References::set_policy(LeakPolicy policy) {
  MutexLock lock(mutex_);
  policy_ = policy;
}

std::vector<LeakedRRef> References::leaks() {
  MutexLock lock(mutex_);
  return leaks_;
}

}  // namespace detail

void install_references(Agent& agent) { detail::References::of(agent)->install(agent); }

std::string to_string(const LeakedRRef& leak) {
  return str(leak.rref, " of ", leak.owner, " is held by ", leak.user, " as ", leak.fork, " (", leak.site,
             ")");
}
void set_leak_policy(Agent& agent, LeakPolicy policy) { detail::References::of(agent)->set_policy(policy); }
std::vector<LeakedRRef> leaked_rrefs(Agent& agent) { return detail::References::of(agent)->leaks(); }

}  // namespace weft::rpc
