// The user's table of references (steps 2, 5, 6 and 9 to 12 of references.cpp): creation, arrival,
// confirmation, release and loss. A pending reference is kept until the owner has answered for it. probe()
// remembers the children that it did not find, so that a late message cannot create them.
#include <weft/distributed/rref/inner/user_table.h>

#include <algorithm>

#include <weft/distributed/rref/inner/reference_messages.h>

namespace weft::rpc::detail {

// ---- step 2: creation

std::shared_ptr<UserState> UserTable::begin_creation(RRefId id, ForkId fork, const WorkerInfo& owner,
                                                     Life owner_life, Site site) {
  auto state =
      std::make_shared<UserState>(context_.references(), id, fork, owner, owner_life, context_.self, site,
                                  Future<void>(context_.runtime), Future<void>(context_.runtime));
  {
    TablesLock lock(context_);
    users_[fork] = state;
    by_owner_.add(owner_life, fork);
    pending_[fork].state = state;
  }
  if (const auto agent = context_.agent()) agent->watch(owner_life, +1);
  return state;
}

void UserTable::creation_answered(const std::shared_ptr<UserState>& state, std::exception_ptr error,
                                  bool known) {
  if (known) state->known = true;
  context_.trace("created ", state->id, known ? "" : " not");
  confirm(state, known ? nullptr : error);
  if (error) state->created.state()->try_set_error(error);
  else state->created.state()->try_set();
}

void UserTable::creation_refused(const UserState& state) {
  DeferredItem item{DeferredItem::Kind::kDelete, state.owner_life, state.id, state.fork};
  item.refused = true;
  work_.add(std::move(item));
}

void UserTable::creation_timed_out(UserState& state, std::exception_ptr error) {
  {
    TablesLock lock(context_);  // only confirm() leaves kPending without the lock
    auto expected = UserState::Standing::kPending;
    if (state.standing.load() != expected) return;
    state.error = error;
    if (!state.standing.compare_exchange_strong(expected, UserState::Standing::kTimedOut)) return;
  }
  state.created.state()->try_set_error(error);
}

// ---- steps 5 and 6: arrival

StatePtr UserTable::receive(Agent& agent, Decoder& in, const Arrival& arrival) {
  const auto& [owner, id, fork, parent_confirmed] = arrival;
  const Life from = fork.maker();
  const WorkerInfo owner_info = agent.worker_info(owner.id);
  const WorkerInfo parent = agent.worker_info(from.id);
  const Future<void> confirm_future(context_.runtime);
  const auto state =
      std::make_shared<UserState>(context_.references(), id, fork, owner_info, owner, parent,
                                  Site{"received", nullptr, 0}, confirm_future, confirm_future);
  const bool direct = from == owner;
  {
    TablesLock lock(context_);
    context_.check_running();
    check_refused(id, fork);
    if (!users_.emplace(fork, state).second)
      throw WireError(str("a message brings ", fork, " for the second time"));
    by_owner_.add(owner, fork);
    if (!direct) pending_[fork] = Pending{state, in.is_reply(), {}};
  }
  context_.trace("received ", id, " ", fork, " from ", from.id.value);
  agent.watch(owner, +1);
  if (direct) {  // step 5
    state->known = true;
    state->standing = UserState::Standing::kConfirmed;
    confirm_future.state()->try_set();
    if (in.is_reply()) work_.add(DeferredItem{DeferredItem::Kind::kAccept, from, id, fork});
    return state;
  }
  in.await(confirm_future);  // step 6
  send_fork(agent, state, parent_confirmed);
  return state;
}

/// Step 6: asks the owner to count the child. Its answer confirms the reference.
void UserTable::send_fork(Agent& agent, const std::shared_ptr<UserState>& state, bool parent_confirmed) {
  Message message;
  {
    Encoder out(message, &agent, state->owner_life);
    put(out, state->id);
    put(out, state->fork);
    out.number(static_cast<uint8_t>(parent_confirmed ? kConfirmedParent : 0));
  }
  auto done = [keep = context_.references(), this, state](std::exception_ptr error, const Message*) {
    if (!error) state->known = true;
    confirm(state, error ? Use::translate(*state, error) : nullptr);
  };
  try {
    agent.call(state->owner_life, Kind::kFork, std::move(message), {Duration(0), "a reference's fork"},
               std::make_unique<DoneSink>(done));
  } catch (...) {
    confirm(state, std::current_exception());
  }
}

void UserTable::confirm(const std::shared_ptr<UserState>& state, std::exception_ptr error) {
  Pending pending;
  {
    TablesLock lock(context_);
    const auto found = pending_.find(state->fork);
    if (found != pending_.end()) {
      pending = std::move(found->second);
      pending_.erase(found);
    }
  }
  auto expected = UserState::Standing::kPending;
  if (error) {
    lose(state, UserState::Standing::kFailed, error);
  } else if (state->standing.compare_exchange_strong(expected, UserState::Standing::kConfirmed)) {
    state->confirmed.state()->try_set();
    context_.trace("confirmed ", state->fork);
  } else if (expected == UserState::Standing::kTimedOut) {
    state->confirmed.state()->try_set();
  }
  for (Responder& probe : pending.probes) {
    probe.reply(probe_answer(!error));
  }
  if (pending.accept)
    work_.add(DeferredItem{DeferredItem::Kind::kAccept, state->fork.maker(), state->id, state->fork});
  context_.changed();
}

// ---- step 9: children that must not arrive

void UserTable::probe(ForkId fork, Responder responder) {
  bool there = false;
  {
    TablesLock lock(context_);
    const auto waiting = pending_.find(fork);
    if (waiting != pending_.end()) {
      waiting->second.probes.push_back(std::move(responder));
      return;
    }
    there = users_.count(fork) != 0;
    if (!there) refused_[fork.maker()].add(fork.local);
  }
  responder.reply(probe_answer(there));
}

void UserTable::check_refused(RRefId id, ForkId fork) const {
  const auto found = refused_.find(fork.maker());
  if (found != refused_.end() && found->second.has(fork.local))
    throw RpcError(str(id, " (", fork, ") was taken back: the call that carries it was given up by worker ",
                       fork.created_on.value));
}

// ---- steps 10 to 12: release and loss

void UserTable::release(UserState& state) noexcept {
  std::vector<DeferredItem> items;
  {
    TablesLock lock(context_);
    if (context_.stopped) return;
    const auto found = users_.find(state.fork);
    // Another reference may have this fork: receive() has refused this one then.
    if (found == users_.end() || !found->second.expired()) return;
    users_.erase(found);
    by_owner_.remove(state.owner_life, state.fork);
    drop_watch(state.owner_life, items);
    if (state.known && state.standing.load() < UserState::Standing::kFailed)
      items.push_back({DeferredItem::Kind::kDelete, state.owner_life, state.id, state.fork});
  }
  work_.add(std::move(items));
}

void UserTable::lose(const std::shared_ptr<UserState>& state, UserState::Standing standing,
                     std::exception_ptr error) {
  {
    TablesLock lock(context_);
    const auto before = state->standing.load();
    if (before >= UserState::Standing::kFailed) return;
    if (before != UserState::Standing::kTimedOut) state->error = error;  // other threads may read a set error
    state->standing = standing;
  }
  state->confirmed.state()->try_set_error(error);
  if (standing != UserState::Standing::kDeleted) state->created.state()->try_set_error(error);
}

void UserTable::lose_owner(const States& states, const WorkerInfo& owner, const std::string& reason,
                           std::vector<DeferredItem>& after) {
  for (const auto& state : states) {
    lose(state, UserState::Standing::kFailed,
         std::make_exception_ptr(OwnerLost(owner.name, str(describe(state.get()), ": the owner ", reason))));
    std::vector<Responder> probes;
    {
      TablesLock lock(context_);
      const auto found = pending_.find(state->fork);
      if (found != pending_.end() && state->parent.id != context_.self.id) {  // a creation ends with its call
        probes = std::move(found->second.probes);
        if (found->second.accept)
          after.push_back({DeferredItem::Kind::kAccept, state->fork.maker(), state->id, state->fork});
        pending_.erase(found);
      }
    }
    for (Responder& probe : probes) probe.reply(probe_answer(false));
  }
}

UserTable::States UserTable::living() const {
  States all;
  for (const auto& [fork, weak] : users_)
    if (auto state = weak.lock()) all.push_back(std::move(state));
  return all;
}

UserTable::States UserTable::of_owner(Life owner) const {
  States all;
  for (const ForkId fork : by_owner_.of(owner))
    if (auto state = users_.at(fork).lock()) all.push_back(std::move(state));
  return all;
}

void UserTable::record() {
  for (const auto& [fork, weak] : users_)
    if (auto state = weak.lock()) recorded_.push_back(std::move(state));
}

void UserTable::delete_recorded() {
  States recorded;
  {
    TablesLock lock(context_);
    recorded.swap(recorded_);
  }
  std::sort(recorded.begin(), recorded.end(), [](const auto& a, const auto& b) { return a->fork < b->fork; });
  std::vector<DeferredItem> items;
  for (const auto& state : recorded) {
    const bool tell = state->known && state->standing.load() < UserState::Standing::kFailed;
    lose(state, UserState::Standing::kDeleted,
         std::make_exception_ptr(
             RpcError(str(describe(state.get()), " has been deleted by the shutdown of worker '",
                          context_.self.name, "'"))));
    if (!tell) continue;
    const std::string from = state->parent.id != context_.self.id ? str(" from ", state->parent) : "";
    items.push_back({DeferredItem::Kind::kDelete, state->owner_life, state->id, state->fork});
    items.back().site = to_string(state->site) + from;
  }
  work_.add(std::move(items));
}

std::vector<WorkerId> UserTable::awaited() const {
  std::vector<WorkerId> owners;
  for (const auto& [fork, pending] : pending_) owners.push_back(pending.state->owner.id);
  return owners;
}

UserTable::Rest UserTable::take_all() {
  Rest rest;
  rest.recorded.swap(recorded_);
  rest.living = living();
  users_.clear();
  by_owner_.clear();
  rest.pending.swap(pending_);
  refused_.clear();
  return rest;
}

void UserTable::count(std::map<std::string, int64_t>& into) const {
  into["num_pending_users"] = static_cast<int64_t>(pending_.size());
  into["num_user_rrefs"] = static_cast<int64_t>(users_.size());
}

}  // namespace weft::rpc::detail
