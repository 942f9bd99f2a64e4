// The shares of this worker (steps 4, 8 and 9 of references.cpp). They are recorded, settled by the outcome
// of their message, and probed where that is uncertain. On the owner the fork of a child keeps the value, on
// a user the share keeps the parent. A share and its fork begin under one lock.
#include <weft/distributed/rref/inner/share_table.h>

#include <weft/distributed/rref/inner/reference_messages.h>

namespace weft::rpc::detail {

void ShareTable::begin(ForkId fork, const StatePtr& state, Life to, bool in_reply) {
  TablesLock lock(context_);
  context_.check_running();
  if (state->is_owner) owners_.keep(std::static_pointer_cast<OwnedState>(state), fork, to);
  shares_.emplace(fork, PendingChild{state->id, to, state->is_owner ? nullptr : state, in_reply, false});
  by_receiver_.add(to, fork);
}

std::shared_ptr<OwnedState> ShareTable::arrive_here(RRefId id, ForkId fork) {
  std::shared_ptr<OwnedState> state;
  std::vector<DeferredItem> after;
  {
    TablesLock lock(context_);
    state = owners_.live(id);
    if (state) {
      owners_.remove_fork(id, fork, after);
      const auto found = shares_.find(fork);
      if (found != shares_.end()) erase(found);
    }
  }
  work_.add(std::move(after));
  return state;
}

void ShareTable::settle(ForkId fork, bool received) {
  bool certain = false, in_reply = false, mine = false;
  {
    TablesLock lock(context_);
    const auto found = shares_.find(fork);
    if (found == shares_.end()) return;
    in_reply = found->second.in_reply;
    mine = found->second.to.id == context_.self.id;
    certain = received && !in_reply;
  }
  if (certain) resolve(fork, mine);  // in a message to this worker, also removes a fork that was not read
  else if (in_reply) probe_soon(fork);
  else work_.add(DeferredItem{DeferredItem::Kind::kProbe, {}, {}, fork});
}

void ShareTable::accept(ForkId fork, Life from) {
  {
    TablesLock lock(context_);
    const auto found = shares_.find(fork);
    if (found != shares_.end() && !means(found->second.to, from))
      throw NotAllowed(str("worker ", from.id.value, " cannot accept ", fork, ", which was sent to worker ",
                           found->second.to.id.value));
  }
  resolve(fork, false);
}

/// Returns the parent, which must not be destroyed under the mutex.
StatePtr ShareTable::erase(Rest::iterator share) {
  StatePtr parent = std::move(share->second.parent);
  by_receiver_.remove(share->second.to, share->first);
  shares_.erase(share);
  return parent;
}

void ShareTable::resolve(ForkId fork, bool undo) {
  StatePtr parent;
  std::vector<DeferredItem> after;
  {
    TablesLock lock(context_);
    const auto found = shares_.find(fork);
    if (found == shares_.end()) return;
    const RRefId rref = found->second.rref;
    parent = erase(found);
    if (!parent && undo) owners_.remove_fork(rref, fork, after);
  }
  work_.add(std::move(after));
  context_.changed();
}

// ---- probes

/// Probes after a delay: the receiver of a reply may be reading it now and then accepts.
void ShareTable::probe_soon(ForkId fork) {
  context_.runtime->call_at(context_.runtime->now() + std::chrono::seconds(1),
                            [whole = std::weak_ptr<References>(context_.references()), this, fork] {
                              if (const auto keep = whole.lock())
                                work_.add(DeferredItem{DeferredItem::Kind::kProbe, {}, {}, fork});
                            });
}

void ShareTable::probe_all() {
  std::vector<DeferredItem> probes;
  {
    TablesLock lock(context_);
    for (const auto& [fork, share] : shares_) probes.push_back({DeferredItem::Kind::kProbe, {}, {}, fork});
  }
  work_.add(std::move(probes));
}

void ShareTable::probe(Agent& agent, ForkId fork) {
  Life to;
  {
    TablesLock lock(context_);
    const auto found = shares_.find(fork);
    if (found == shares_.end() || std::exchange(found->second.probing, true)) return;
    to = found->second.to;
  }
  Message message;
  {
    Encoder out(message, &agent, to);
    out.number(kProbeByte);
    put(out, fork);
  }
  context_.trace("probe ", fork, " at ", to.id.value);
  auto done = [keep = context_.references(), this, fork](std::exception_ptr error, const Message* answer) {
    bool there = false;
    if (!error && answer) there = Decoder(*answer).number<uint8_t>() != 0;
    resolve(fork, !there);
  };
  try {
    agent.call(to, Kind::kAccept, std::move(message), {Duration(0), "a reference's probe"},
               std::make_unique<DoneSink>(done));
  } catch (const std::exception&) {
    resolve(fork, true);
  }
}

// ---- under the mutex

std::vector<WorkerId> ShareTable::receivers() const {
  std::vector<WorkerId> workers;
  for (const auto& [fork, share] : shares_) workers.push_back(share.to.id);
  return workers;
}

void ShareTable::count(std::map<std::string, int64_t>& into) const {
  int64_t children = 0;
  for (const auto& [fork, share] : shares_) children += share.parent != nullptr;
  into["num_pending_children"] = children;
  into["num_shares"] = static_cast<int64_t>(shares_.size());
}

}  // namespace weft::rpc::detail
