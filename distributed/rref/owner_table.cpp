// The owner's table of values and forks (steps 2, 3, 5, 7, 8 and 10 to 12 of references.cpp). An entry keeps
// its value while it has forks, and while a request waits for its creation. Otherwise the value lives with
// the references of this worker.
#include <weft/distributed/rref/inner/owner_table.h>

#include <algorithm>

namespace weft::rpc::detail {

namespace {
/// The fork that keeps a value until its creation has ended.
ForkId own_fork(RRefId id) { return {id.created_on, id.life, id.local}; }

std::exception_ptr refused_error(RRefId id) {
  return std::make_exception_ptr(RpcError(str(id, " cannot be used: its creation was answered by an error")));
}
}  // namespace

// ---- steps 1 to 3: creation

std::shared_ptr<OwnedState> OwnerTable::make(RRefId id, Site site, bool made) {
  auto state = std::make_shared<OwnedState>(context_.references(), id, context_.self, site, made);
  TablesLock lock(context_);
  entries_[id].state = state;
  return state;
}

std::shared_ptr<OwnedState> OwnerTable::begin_creation(RRefId id, Site site) {
  auto state = make(id, site, false);
  TablesLock lock(context_);
  keep(state, own_fork(id), context_.self.id);
  return state;
}

void OwnerTable::end_creation(RRefId id) {
  std::vector<DeferredItem> after;
  {
    TablesLock lock(context_);
    remove_fork(id, own_fork(id), after);
  }
  work_.add(std::move(after));
}

std::shared_ptr<OwnedState> OwnerTable::announce(RRefId id, ForkId fork, Life from) {
  auto fresh = std::make_shared<OwnedState>(context_.references(), id, context_.self,
                                            Site{"remote", nullptr, 0}, false);
  std::shared_ptr<OwnedState> state;
  std::vector<DeferredItem> after;
  {
    TablesLock lock(context_);
    context_.check_running();
    const auto found = entries_.find(id);
    if (found != entries_.end()) state = found->second.state.lock();
    if (from.id == context_.self.id) {
      if (!state) throw WireError(str(id, " was not begun here"));
    } else {
      if (state && found->second.announced) throw WireError(str(id, " is created for the second time"));
      if (state && found->second.forks.count(fork) != 0)
        throw WireError(str(fork, " of ", id, " is known already"));
      if (!state) {
        state = std::exchange(fresh, nullptr);
        entries_[id].state = state;
      } else {
        found->second.announced = true;
        unannounced_.remove(id.maker(), id);
        drop_watch(id.maker(), after);
      }
      keep(state, fork, from);
    }
  }
  work_.add(std::move(after));
  return state;
}

// ---- use

std::shared_ptr<OwnedState> OwnerTable::find(RRefId id) {
  TablesLock lock(context_);
  context_.check_running();
  return live(id);
}

OwnerTable::Found OwnerTable::begin_unannounced(RRefId id) {
  auto state = std::make_shared<OwnedState>(context_.references(), id, context_.self,
                                            Site{"remote", nullptr, 0}, false);
  {
    TablesLock lock(context_);
    context_.check_running();
    if (const auto at = refused_.find(id.maker()); at != refused_.end() && at->second.has(id.local))
      std::rethrow_exception(refused_error(id));
    Entry& entry = entries_[id];
    if (auto there = entry.state.lock()) return {std::move(there), false};
    entry.state = entry.kept = state;
    entry.announced = false;
    unannounced_.add(id.maker(), id);
  }
  context_.trace("used before creation ", id);
  return {std::move(state), true};
}

void OwnerTable::throw_gone(RRefId id, ForkId fork) {
  gone_.fetch_add(1, std::memory_order_relaxed);
  throw RpcError(str(id, fork.local != 0 ? str(" (", fork, ")") : "", " is gone from its owner, worker '",
                     context_.self.name,
                     "': the workers that held it were lost, or gave up on the call that brought it"));
}

std::shared_ptr<OwnedState> OwnerTable::live(RRefId id) {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : found->second.state.lock();
}

// ---- forks

bool OwnerTable::keep(const std::shared_ptr<OwnedState>& state, ForkId fork, Life holder) {
  Entry& entry = entries_[state->id];
  entry.kept = state;
  if (!entry.forks.emplace(fork, holder).second) return false;
  if (holder.id != context_.self.id) forks_.add(holder, {state->id, fork});
  return true;
}

void OwnerTable::add_fork(const std::shared_ptr<OwnedState>& state, ForkId fork, Life holder) {
  {
    TablesLock lock(context_);
    if (!keep(state, fork, holder)) throw WireError(str(fork, " of ", state->id, " is known already"));
  }
  context_.trace("fork ", fork, " of ", state->id, " for ", holder.id.value);
}

bool OwnerTable::remove_fork(RRefId id, ForkId fork, std::vector<DeferredItem>& after) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return false;
  Entry& entry = found->second;
  const auto at = entry.forks.find(fork);
  if (at == entry.forks.end()) return false;
  if (at->second.id != context_.self.id) {
    forks_.remove(at->second, {id, fork});
    drop_watch(at->second, after);
  }
  entry.forks.erase(at);
  if (!entry.forks.empty() || !entry.kept) return true;
  if (entry.announced) {
    after.push_back({DeferredItem::Kind::kDrop, {}, id, fork, std::move(entry.kept)});
  } else if (entry.kept.use_count() == 1) {  // no request waits for it; a late CREATE makes it anew
    unannounced_.remove(id.maker(), id);
    drop_watch(id.maker(), after);
    after.push_back({DeferredItem::Kind::kDrop, {}, id, fork, std::move(entry.kept)});
    entries_.erase(found);
  }
  return true;
}

void OwnerTable::delete_forks(std::vector<Deleted> all, const WorkerInfo& user, Life holder,
                              std::vector<DeferredItem>& after) {
  std::vector<std::shared_ptr<OwnedState>> unborn;
  {
    TablesLock lock(context_);
    for (const auto& [id, fork, site, refused] : all) {
      const auto entry = entries_.find(id);
      if (entry == entries_.end()) continue;
      const auto at = entry->second.forks.find(fork);
      if (at != entry->second.forks.end() && !means(at->second, holder))
        throw NotAllowed(
            str(user, " cannot delete ", fork, " of ", id, ", which worker ", at->second.id.value, " holds"));
    }
    std::erase_if(all, [&](Deleted& one) WEFT_REQUIRES(kTables) {
      if (one.refused && one.rref.maker() == holder) {
        refused_[holder].add(one.rref.local);
        if (const auto entry = entries_.find(one.rref); entry != entries_.end() && !entry->second.announced)
          if (auto state = end_unannounced(one.rref, after)) unborn.push_back(std::move(state));
      }
      if (!remove_fork(one.rref, one.fork, after)) return true;
      if (!one.site.empty()) leaks_.push_back({one.rref, one.fork, context_.self, user, std::move(one.site)});
      return false;
    });
  }
  for (const auto& state : unborn) state->fail(refused_error(state->id));
  for (const auto& [id, fork, site, refused] : all) context_.trace("deleted ", fork, " of ", id);
}

void OwnerTable::state_gone(RRefId id) noexcept {
  TablesLock lock(context_);
  const auto found = entries_.find(id);
  if (found != entries_.end() && found->second.state.expired()) entries_.erase(found);
}

// ---- steps 11 and 12: losses and the end

std::shared_ptr<OwnedState> OwnerTable::end_unannounced(RRefId id, std::vector<DeferredItem>& after) {
  Entry& entry = entries_.at(id);
  entry.announced = true;
  unannounced_.remove(id.maker(), id);
  drop_watch(id.maker(), after);
  auto state = entry.state.lock();
  if (entry.forks.empty()) after.push_back({DeferredItem::Kind::kDrop, {}, id, {}, std::move(entry.kept)});
  return state;
}

std::vector<std::shared_ptr<OwnedState>> OwnerTable::lose(Life peer, std::vector<DeferredItem>& after) {
  std::vector<std::shared_ptr<OwnedState>> unborn;
  for (const RRefId id : unannounced_.of(peer))
    if (auto state = end_unannounced(id, after)) unborn.push_back(std::move(state));
  refused_.erase(peer);
  for (const auto& [id, fork] : forks_.of(peer)) remove_fork(id, fork, after);
  return unborn;
}

bool OwnerTable::no_forks() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const auto& e) { return e.second.forks.empty(); });
}

OwnerTable::Rest OwnerTable::take_all() {
  Rest rest;
  for (const auto& [id, entry] : entries_)
    if (auto state = entry.state.lock()) rest.living.push_back(std::move(state));
  rest.entries.swap(entries_);
  forks_.clear();
  unannounced_.clear();
  refused_.clear();
  return rest;
}

void OwnerTable::count(std::map<std::string, int64_t>& into) const {
  int64_t owners = 0, forks = 0, unmade = 0;
  for (const auto& [id, entry] : entries_) {
    owners += entry.kept != nullptr;
    unmade += entry.kept && !entry.kept->created.done();
    forks += static_cast<int64_t>(entry.forks.size());
  }
  into["num_owner_rrefs"] = owners;
  into["num_forks"] = forks;
  into["num_pending_futures"] = unmade;
  into["num_gone_rrefs"] = gone_.load();
}

// ---- leaks

void OwnerTable::set_policy(LeakPolicy policy) {
  TablesLock lock(context_);
  policy_ = policy;
}

std::vector<LeakedRRef> OwnerTable::leaks() {
  TablesLock lock(context_);
  return leaks_;
}

void OwnerTable::report_leaks() {
  LeakPolicy policy;
  std::vector<LeakedRRef> all;
  const auto agent = context_.agent();
  {
    TablesLock lock(context_);
    policy = policy_;
    if (agent)
      for (const auto& [id, entry] : entries_)
        for (const auto& [fork, holder] : entry.forks)
          leaks_.push_back({id, fork, context_.self, {"", holder.id}, "unknown: its holder never said so"});
    std::sort(leaks_.begin(), leaks_.end(),
              [](const LeakedRRef& a, const LeakedRRef& b) { return a.fork < b.fork; });
    all = leaks_;
  }
  if (policy != LeakPolicy::kThrow || all.empty()) return;
  std::string text = str("Leaking RRefs: at shutdown other workers still held ", all.size(),
                         " references to values of worker '", context_.self.name, "': ");
  for (size_t i = 0; i < all.size() && i < 20; ++i) text += (i == 0 ? "" : "; ") + to_string(all[i]);
  throw RpcError(text);
}

}  // namespace weft::rpc::detail
