// References: the end of shares, settled, probed or refused (references.cpp, step 9), and the release of
// the last copy of a reference (step 10). Destructors queue their messages here; drain() sends them.
#include <weft/distributed/rref/inner/references.h>

namespace weft::rpc::detail {

// ---- step 9: a share ends

void References::settle(ForkId fork, bool received) {
  bool certain = false, in_reply = false, mine = false;
  {
    MutexLock lock(mutex_);
    const auto found = shares_.find(fork);
    if (found == shares_.end()) return;
    in_reply = found->second.in_reply;
    mine = found->second.to == self_.id;
    certain = received && !in_reply;
  }
  if (certain) resolve(fork, mine);  // in a message to this worker, also removes a fork that was not read
  else if (in_reply) probe_soon(fork);
  else later(Later{Later::What::kProbe, {}, {}, fork});
}

void References::never_sent(ForkId fork) { resolve(fork, true); }

void References::resolve(ForkId fork, bool undo) {
  StatePtr parent;
  std::vector<Later> after;
  {
    MutexLock lock(mutex_);
    const auto found = shares_.find(fork);
    if (found == shares_.end()) return;
    parent = std::move(found->second.parent);
    if (!parent && undo) remove_fork(found->second.rref, fork, after);
    shares_.erase(found);
  }
  later(std::move(after));
  changed();
}

bool References::remove_fork(RRefId id, ForkId fork, std::vector<Later>& after) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return false;
  Entry& entry = found->second;
  const auto at = entry.forks.find(fork);
  if (at == entry.forks.end()) return false;
  if (at->second != self_.id) drop_watch(at->second, after);
  entry.forks.erase(at);
  if (entry.forks.empty() && entry.announced && entry.kept)
    after.push_back({Later::What::kDrop, {}, id, fork, std::move(entry.kept)});
  return true;
}

void References::drop_watch(WorkerId peer, std::vector<Later>& after) {
  after.push_back({Later::What::kUnwatch, peer, {}, {}});
}

void References::refuse(ForkId fork) {
  constexpr size_t kMost = 1 << 16;
  if (!refused_.insert(fork).second) return;
  refused_order_.push_back(fork);
  if (refused_order_.size() > kMost) {
    refused_.erase(refused_order_.front());
    refused_order_.pop_front();
  }
}

/// Probes after a delay: the receiver of a reply may be reading it now and then accepts.
void References::probe_soon(ForkId fork) {
  runtime_->call_at(runtime_->now() + std::chrono::seconds(1), [self = weak_from_this(), fork] {
    if (const auto refs = self.lock()) refs->later(Later{Later::What::kProbe, {}, {}, fork});
  });
}

// ---- step 10: release

void References::owned_gone(RRefId id) noexcept {
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found != entries_.end() && found->second.state.expired()) entries_.erase(found);
}

UserState::~UserState() { references->user_gone(*this); }

void References::user_gone(UserState& state) noexcept {
  std::vector<Later> items;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    if (users_.erase(state.fork) == 0) return;
    drop_watch(state.owner.id, items);
    if (state.known && state.standing.load() < UserState::Standing::kFailed)
      items.push_back({Later::What::kDelete, state.owner.id, state.id, state.fork});
  }
  later(std::move(items));
}

void References::later(Later item) noexcept {
  std::vector<Later> items;
  items.push_back(std::move(item));
  later(std::move(items));
}

void References::later(std::vector<Later> items) noexcept {
  if (items.empty()) return;
  bool post = false;
  {
    MutexLock lock(mutex_);
    if (!stopped_) {
      for (Later& item : items) later_.push_back(std::move(item));
      post = !std::exchange(drain_posted_, true);
    }
  }
  if (post) runtime_->post([self = shared_from_this()] { self->drain(); });
}

void References::drain() {
  for (;;) {
    std::vector<Later> items;
    {
      MutexLock lock(mutex_);
      drain_posted_ = false;
      if (later_.empty()) break;
      items = std::move(later_);
      later_.clear();
      ++draining_;
    }
    const auto agent = agent_.lock();
    std::map<WorkerId, std::vector<Later>> deletes;
    for (Later& item : items) {
      switch (item.what) {
        case Later::What::kDelete: deletes[item.peer].push_back(std::move(item)); break;
        case Later::What::kUnwatch:
          if (agent) agent->watch(item.peer, -1);
          break;
        case Later::What::kAccept:
          if (agent) send_accept(*agent, item.peer, item.fork);
          break;
        case Later::What::kProbe: {
          WorkerId to;
          {
            MutexLock lock(mutex_);
            const auto found = shares_.find(item.fork);
            if (found != shares_.end() && !std::exchange(found->second.probing, true)) to = found->second.to;
          }
          if (agent && to.value >= 0) probe(*agent, item.fork, to);
          break;
        }
        case Later::What::kDrop:
          if (tracing()) trace(str("worker ", self_.id.value, " rref: let go of ", item.rref));
          item.drop.reset();
          break;
      }
    }
    if (agent)
      for (const auto& [peer, list] : deletes) send_deletes(*agent, peer, list);
    MutexLock lock(mutex_);
    --draining_;
  }
  changed();
}

// ---- the messages

void References::send_deletes(Agent& agent, WorkerId to, const std::vector<Later>& items) {
  Message message;
  {
    Encoder out(message, &agent, to);
    out.size(items.size());
    for (const Later& item : items) {
      put(out, item.rref);
      put(out, item.fork);
      out.put(item.site);
      if (tracing()) trace(str("worker ", self_.id.value, " rref: delete ", item.rref, " ", item.fork));
    }
  }
  ++deletes_under_way_;
  auto done = [self = shared_from_this()](std::exception_ptr, const Message*) {
    --self->deletes_under_way_;
    self->changed();
  };
  try {
    agent.call(to, Kind::kDelete, std::move(message), {Duration(0), "a reference's end"},
               std::make_unique<DoneSink>(done));
  } catch (const std::exception&) {  // the agent has ended; the owner removes its forks
    --deletes_under_way_;
  }
}

/// Tells the parent's worker that its child is confirmed or has failed.
void References::send_accept(Agent& agent, WorkerId to, ForkId fork) {
  Message message;
  {
    Encoder out(message, &agent, to);
    out.number(uint8_t{0});
    put(out, fork);
  }
  try {
    agent.call(to, Kind::kAccept, std::move(message), {Duration(0), "a reference's arrival"},
               std::make_unique<DoneSink>([](std::exception_ptr, const Message*) {}));
  } catch (const std::exception&) {  // as above
  }
}

/// Asks the child's worker whether it has the child.
void References::probe(Agent& agent, ForkId fork, WorkerId to) {
  Message message;
  {
    Encoder out(message, &agent, to);
    out.number(uint8_t{1});
    put(out, fork);
  }
  if (tracing()) trace(str("worker ", self_.id.value, " rref: probe ", fork, " at ", to.value));
  auto done = [self = shared_from_this(), fork](std::exception_ptr error, const Message* answer) {
    bool there = false;
    if (!error && answer) there = Decoder(*answer).number<uint8_t>() != 0;
    self->resolve(fork, !there);
  };
  try {
    agent.call(to, Kind::kAccept, std::move(message), {Duration(0), "a reference's probe"},
               std::make_unique<DoneSink>(done));
  } catch (const std::exception&) {
    resolve(fork, true);
  }
}

void DoneSink::on_reply(Agent&, WorkerId, Message message) noexcept {
  try {
    f_(nullptr, &message);
  } catch (...) {
    on_error(std::current_exception());
  }
}

void DoneSink::on_error(std::exception_ptr error) noexcept {
  try {
    f_(std::move(error), nullptr);
  } catch (...) {  // a sink must not throw
  }
}

}  // namespace weft::rpc::detail
