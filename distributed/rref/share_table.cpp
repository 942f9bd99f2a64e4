// The shares of this worker (steps 4, 8 and 9 of references.cpp): recorded, settled by the outcome of their
// message, probed where that is uncertain. On the owner the fork of a child keeps the value, on a user the
// share keeps the parent. A share and its fork begin under one lock.
#include <weft/distributed/rref/inner/share_table.h>

#include <weft/distributed/rref/inner/reference_messages.h>

namespace weft::rpc::detail {

void ShareTable::begin(ForkId fork, const StatePtr& state, WorkerId to, bool in_reply) {
  TablesLock lock(context_);
  context_.check_running();
  if (state->is_owner) owners_.keep(std::static_pointer_cast<OwnedState>(state), fork, to);
  shares_.emplace(fork, Share{state->id, to, state->is_owner ? nullptr : state, in_reply, false});
}

std::shared_ptr<OwnedState> ShareTable::arrive_here(RRefId id, ForkId fork) {
  std::shared_ptr<OwnedState> state;
  std::vector<Later> after;
  {
    TablesLock lock(context_);
    state = owners_.live(id);
    if (state) {
      owners_.remove_fork(id, fork, after);
      shares_.erase(fork);
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
    mine = found->second.to == context_.self.id;
    certain = received && !in_reply;
  }
  if (certain) resolve(fork, mine);  // in a message to this worker, also removes a fork that was not read
  else if (in_reply) probe_soon(fork);
  else work_.add(Later{Later::What::kProbe, {}, {}, fork});
}

void ShareTable::resolve(ForkId fork, bool undo) {
  StatePtr parent;
  std::vector<Later> after;
  {
    TablesLock lock(context_);
    const auto found = shares_.find(fork);
    if (found == shares_.end()) return;
    parent = std::move(found->second.parent);
    if (!parent && undo) owners_.remove_fork(found->second.rref, fork, after);
    shares_.erase(found);
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
                                work_.add(Later{Later::What::kProbe, {}, {}, fork});
                            });
}

void ShareTable::probe_all() {
  std::vector<Later> probes;
  {
    TablesLock lock(context_);
    for (const auto& [fork, share] : shares_) probes.push_back({Later::What::kProbe, {}, {}, fork});
  }
  work_.add(std::move(probes));
}

void ShareTable::probe(Agent& agent, ForkId fork) {
  WorkerId to;
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
  context_.trace("probe ", fork, " at ", to.value);
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

std::vector<ForkId> ShareTable::sent_to(WorkerId peer) const {
  std::vector<ForkId> forks;
  for (const auto& [fork, share] : shares_)
    if (share.to == peer) forks.push_back(fork);
  return forks;
}

std::vector<WorkerId> ShareTable::receivers() const {
  std::vector<WorkerId> workers;
  for (const auto& [fork, share] : shares_) workers.push_back(share.to);
  return workers;
}

void ShareTable::count(std::map<std::string, int64_t>& into) const {
  int64_t children = 0;
  for (const auto& [fork, share] : shares_) children += share.parent != nullptr;
  into["num_pending_children"] = children;
  into["num_shares"] = static_cast<int64_t>(shares_.size());
}

}  // namespace weft::rpc::detail
