// How a value that lives on one worker is shared by many, and known to be alive exactly as long as somebody can reach it. Agents below
// make each request run at most once and repeat what is lost, as long as both workers live; every message here is such a request, and
// those of the protocol itself have no deadline. No order between messages is assumed.
//
//  1. Numbers. An RRefId names a value, a ForkId one worker's hold on it. Each is drawn by one worker in one life and never again.
//     The owner keeps the value while its set of forks is not empty or it holds a reference itself. A local RRef that was never sent is
//     not counted.
//  2. Creation: remote() draws r and f, keeps the user's reference alive as *pending*, and sends CREATE(r, f). The owner adds f, runs
//     the function, keeps value or error, and answers; the answer confirms the reference. A creation that takes longer than its limit
//     marks the reference (every use throws Timeout); the request itself goes on, so the owner's count stays right.
//  3. Overtaking: FETCH, METHOD and FORK through a reference that was not confirmed when they were sent may arrive before CREATE. The
//     owner then makes an unannounced entry and the request waits for the value; no thread does.
//  4. Sharing: writing a reference into a message draws a fork number for the child, and notes a *share* until the child is known.
//     The parent of a child cannot be let go of while its share is there.
//  5. Owner to user: the owner adds the fork while it writes the message. The child is confirmed on arrival.
//  6. User to user: the child is pending and sends FORK to the owner; its answer confirms it. A function whose arguments hold pending
//     references starts, and a reply completes its future, when all are confirmed (Decoder::await).
//  7. User to owner: the message carries a fork number that the owner never counts; on arrival the reference becomes the owner's own.
//  8. Owner to itself: as 5, and the fork is taken out again on arrival. remote() to oneself: the entry holds the fork numbered as r
//     itself until the function has returned.
//  9. A share ends: of a request, when an answer came that is no error (the callee has read all arguments, and by 6 they are
//     confirmed); of a reply, by ACCEPT, which the receiver sends when the child is confirmed. Where a message may have been lost (its
//     caller gave up, the answer was an error, a reply was not accepted), the sender PROBEs the receiver: it answers for a child it has
//     when that is confirmed, and refuses one it does not have for ever, so that a late message cannot bring it. Then the share ends,
//     and the owner takes a refused fork out.
// 10. Letting go: the last copy of a user's reference sends DELETE(r, f) once it is confirmed, from a task, since destructors neither
//     block nor call the agent. The owner takes f out, and when no fork is left the value goes, on the pool.
// 11. Losses: owners watch the workers that hold forks, users watch owners. A lost worker's forks are taken out; references to values of
//     a lost worker throw OwnerLost; shares to it end; requests that wait for its CREATE fail. Requests under way fail by the agent.
// 12. Graceful shutdown: when no call is under way anywhere, shares are probed and awaited, and each worker notes what it holds; when all
//     have, every reference noted is deleted at its owner (a leak, reported there with the place where it was made; noting comes first
//     since a deleted value lets go of references of its own); then each owner waits for its forks to be empty.
//
// G1. The owner is told of the end of every fork it counts: by 10, or by 9 when the child never existed, or by 11.
// G2. A value is not let go of while a child is on its way: the parent is held by its share (4) until the child is confirmed (6, 9), so
//     at any time the owner counts at least one of the two. It follows that a use of a value that is gone means a lost worker.
#include <weft/distributed/references.h>

#include <algorithm>

namespace weft::rpc {

template <class Tag> static std::string number_text(const char* name, const ReferenceNumber<Tag>& n) {
  return str(name, "(created_on=", n.created_on.value, ", local_id=", n.local, ")");
}
std::string to_string(const RRefId& id) { return number_text("RRefId", id); }
std::string to_string(const ForkId& id) { return number_text("ForkId", id); }

namespace detail {

namespace {

enum Flags : uint8_t { kConfirmedParent = 1 };

/// Told how the message that carries a child ended; unless told, it was never sent.
class Settler {
 public:
  Settler(std::shared_ptr<References> refs, ForkId fork) : refs_(std::move(refs)), fork_(fork) {}
  Settler(const Settler&) = delete;
  ~Settler() {
    if (refs_) refs_->never_sent(fork_);
  }
  void settle(bool received) {
    if (auto refs = std::exchange(refs_, nullptr)) refs->settle(fork_, received);
  }

 private:
  std::shared_ptr<References> refs_;
  const ForkId fork_;
};

}  // namespace

References::References(Agent& agent)
    : agent_(agent.weak_from_this()),
      runtime_(agent.runtime()),
      self_(agent.self()),
      change_(*runtime_, "references to settle") {}

namespace {
struct Slot {
  explicit Slot(Agent& agent) : references(std::make_shared<References>(agent)) {}
  std::shared_ptr<References> references;
};
}  // namespace

std::shared_ptr<References> References::of(Agent& agent) { return agent.slot<Slot>().references; }

std::shared_ptr<Agent> References::agent(const RRefState& used) const {
  auto agent = agent_.lock();
  if (!agent || !agent->is_running())
    throw RpcError(str("RPC has not been initialized: ", describe(&used), " was used after worker '",
                       self_.name, "' was shut down"));
  return agent;
}

void References::check_usable(const RRefState& state) const {
  if (state.is_owner) {
    const auto& owned = static_cast<const OwnedState&>(state);
    if (owned.timed_out) throw Timeout(owned.late);
    return;
  }
  const auto& user = static_cast<const UserState&>(state);
  if (user.standing.load() > UserState::Standing::kConfirmed) std::rethrow_exception(user.error);
}

// ---- steps 1 to 3: making

OwnedState::OwnedState(std::shared_ptr<References> refs, RRefId rref, WorkerInfo self, Site from, bool made)
    : RRefState(refs, rref, std::move(self), true, from, Future<void>(refs->runtime())), gate(made) {}

OwnedState::~OwnedState() { references->owned_gone(id); }

void OwnedState::set(std::shared_ptr<void> made, const ValueType* of) {
  value = std::move(made);
  type = of;
  if (!created.state()->try_set()) return;
  gate.leave(*references->runtime());
}

void OwnedState::fail(std::exception_ptr error) {
  if (created.state()->try_set_error(std::move(error))) gate.leave(*references->runtime());
}

std::shared_ptr<OwnedState> References::make_owned(RRefId id, Site site, bool made) {
  auto state = std::make_shared<OwnedState>(shared_from_this(), id, self_, site, made);
  MutexLock lock(mutex_);
  entries_[id].state = state;
  return state;
}

std::shared_ptr<OwnedState> References::begin_own_creation(RRefId id, Site site) {
  auto state = make_owned(id, site, false);
  MutexLock lock(mutex_);
  Entry& entry = entries_[id];
  entry.kept = state;
  entry.forks.emplace(ForkId{id.created_on, id.life, id.local}, self_.id);  // step 8
  return state;
}

std::shared_ptr<UserState> References::begin_creation(RRefId id, ForkId fork, const WorkerInfo& owner,
                                                      Site site) {
  auto state = std::make_shared<UserState>(shared_from_this(), id, fork, owner, self_, site,
                                           Future<void>(runtime_), Future<void>(runtime_));
  {
    MutexLock lock(mutex_);
    users_[fork] = state;
    pending_[fork].state = state;
  }
  if (const auto agent = agent_.lock()) agent->watch(owner.id, +1);
  return state;
}

void References::creation_answered(const std::shared_ptr<UserState>& state, std::exception_ptr error,
                                   bool known) {
  if (known) state->known = true;
  if (tracing()) trace(str("worker ", self_.id.value, " rref: created ", state->id, known ? "" : " not"));
  confirm(state, known ? nullptr : error);
  if (error) state->created.state()->try_set_error(error);
  else state->created.state()->try_set();
}

void References::creation_timed_out(RRefState& state, const char* what, Duration limit) {
  const double ms = std::chrono::duration<double, std::milli>(limit).count();
  std::string text = str("RRef creation via rpc.remote() timed out: '", what, "' on ", state.owner,
                         " took more than ", ms, " ms (", describe(&state), ")");
  const auto error = std::make_exception_ptr(Timeout(text));
  if (state.is_owner) {
    auto& owned = static_cast<OwnedState&>(state);
    if (owned.created.done()) return;
    owned.late = std::move(text);
    owned.timed_out = true;
    return;
  }
  auto& user = static_cast<UserState&>(state);
  {
    MutexLock lock(mutex_);  // from kPending only confirm() moves on without the lock
    auto expected = UserState::Standing::kPending;
    if (user.standing.load() != expected) return;
    user.error = error;
    if (!user.standing.compare_exchange_strong(expected, UserState::Standing::kTimedOut)) return;
  }
  user.created.state()->try_set_error(error);
}

/// The function of a creation on ourselves has returned: its own fork goes (step 8).
void References::creation_ended(RRefId id) {
  std::vector<Later> after;
  {
    MutexLock lock(mutex_);
    remove_fork(id, ForkId{id.created_on, id.life, id.local}, after);
  }
  later(std::move(after));
}

void References::abandon_creation(RRefState& state, std::exception_ptr error) {
  if (state.is_owner) {
    static_cast<OwnedState&>(state).fail(error);
    creation_ended(state.id);
  } else {
    creation_answered(std::static_pointer_cast<UserState>(state.shared_from_this()), error, false);
  }
}

/// The owner's value, for a request from `creator` or a child (steps 3 and 7).
std::shared_ptr<OwnedState> References::find(RRefId id, bool confirmed, WorkerId from) {
  {
    MutexLock lock(mutex_);
    if (stopped_) throw RpcError(str("worker '", self_.name, "' has been shut down"));
    const auto found = entries_.find(id);
    if (found != entries_.end())
      if (auto state = found->second.state.lock()) return state;
  }
  if (confirmed || from == self_.id) gone(id, {});
  auto state = std::make_shared<OwnedState>(shared_from_this(), id, self_, Site{"remote", nullptr, 0}, false);
  {
    MutexLock lock(mutex_);
    Entry& entry = entries_[id];
    if (auto there = entry.state.lock()) {
      lock.unlock();
      return there;
    }
    entry.state = entry.kept = state;
    entry.announced = false;
    entry.creator = id.created_on;
  }
  if (tracing()) trace(str("worker ", self_.id.value, " rref: used before creation ", id));
  if (const auto agent = agent_.lock()) {
    agent->watch(id.created_on, +1);
    if (agent->is_lost(id.created_on))
      peer_lost(agent->worker_info(id.created_on), false, "it was lost before");
  }
  return state;
}

void References::gone(RRefId id, ForkId fork) {
  gone_.fetch_add(1, std::memory_order_relaxed);
  throw RpcError(str(id, fork.local != 0 ? str(" (", fork, ")") : "", " is gone from its owner, worker '",
                     self_.name,
                     "': the workers that held it were lost, or gave up on the call that brought it"));
}

// ---- steps 4 to 8: sharing

void References::encode(Encoder& out, const StatePtr& state) {
  if (!out.agent() || out.to().value < 0)
    throw RpcError(str(describe(state.get()),
                       " cannot be encoded here: a reference travels only in a call or its reply, since its "
                       "receiver must be known"));
  const auto agent = this->agent(*state);
  if (agent.get() != out.agent())
    throw RpcError(str(describe(state.get()), " belongs to worker '", self_.name, "' and cannot be sent by '",
                       out.agent()->self().name, "'"));
  check_usable(*state);
  const ForkId fork = next<ForkId>(*agent);
  const bool owned = state->is_owner;
  const bool confirmed =
      owned || static_cast<const UserState&>(*state).standing.load() == UserState::Standing::kConfirmed;
  auto settler = std::make_shared<Settler>(shared_from_this(), fork);
  {
    MutexLock lock(mutex_);
    if (stopped_) throw RpcError(str("worker '", self_.name, "' has been shut down"));
    if (owned) {
      Entry& entry = entries_[state->id];
      entry.kept = std::static_pointer_cast<OwnedState>(state);
      entry.forks.emplace(fork, out.to());
    }
    shares_.emplace(fork, Share{state->id, out.to(), owned ? nullptr : state, out.is_reply(), false});
  }
  if (owned && out.to() != self_.id) agent->watch(out.to(), +1);
  out.on_settled([settler](bool received) { settler->settle(received); });
  if (tracing())
    trace(str("worker ", self_.id.value, " rref: share ", state->id, " ", fork, " with ", out.to().value));
  out.number(state->owner.id.value);
  put(out, state->id);
  put(out, fork);
  out.number(static_cast<uint8_t>(confirmed ? kConfirmedParent : 0));
}

StatePtr References::decode(Decoder& in, const ValueType* type) {
  const WorkerId owner{in.number<int32_t>()};
  const RRefId id = get_rref(in);
  const ForkId fork = get_fork(in);
  const bool confirmed = in.number<uint8_t>() & kConfirmedParent;
  const WorkerId from = in.from();
  const auto agent = agent_.lock();
  if (!agent || from.value < 0) throw RpcError("a reference travels only in a call or its reply");
  const auto check_refused = [&] {  // step 9; under the mutex
    if (refused_.erase(fork) != 0)
      throw RpcError(str(id, " (", fork, ") was taken back: the call that carries it was given up by worker ",
                         from.value));
  };
  if (owner == self_.id) {
    std::shared_ptr<OwnedState> state;
    {
      MutexLock lock(mutex_);
      check_refused();
    }
    if (from == self_.id) {  // step 8
      std::vector<Later> after;
      {
        MutexLock lock(mutex_);
        const auto found = entries_.find(id);
        if (found != entries_.end()) state = found->second.state.lock();
        if (state) remove_fork(id, fork, after), shares_.erase(fork);
      }
      later(std::move(after));
      if (!state) gone(id, fork);
    } else {  // step 7
      state = find(id, confirmed, from);
      if (in.is_reply()) later(Later{Later::What::kAccept, from, id, fork});
    }
    if (state->created.done() && !state->created.has_error() && state->type != type &&
        state->type->name() != type->name())
      throw ValueError(str(id, " refers to a ", state->type->name(), ", not to a ", type->name()));
    return state;
  }
  const WorkerInfo owner_info = agent->worker_info(owner);
  const WorkerInfo parent = agent->worker_info(from);
  const Future<void> confirm_future(runtime_);
  const auto state =
      std::make_shared<UserState>(shared_from_this(), id, fork, owner_info, parent,
                                  Site{"received", nullptr, 0}, confirm_future, confirm_future);
  const bool direct = from == owner;
  {
    MutexLock lock(mutex_);
    if (stopped_) throw RpcError(str("worker '", self_.name, "' has been shut down"));
    check_refused();
    if (!users_.emplace(fork, state).second)
      throw WireError(str("a message brings ", fork, " for the second time"));
    if (!direct) pending_[fork] = Pending{state, in.is_reply(), {}};
  }
  if (tracing())
    trace(str("worker ", self_.id.value, " rref: received ", id, " ", fork, " from ", from.value));
  agent->watch(owner, +1);
  if (direct) {  // step 5
    state->known = true;
    state->standing = UserState::Standing::kConfirmed;
    confirm_future.state()->try_set();
    if (in.is_reply()) later(Later{Later::What::kAccept, from, id, fork});
    return state;
  }
  in.await(confirm_future);  // step 6
  Message message;
  {
    Encoder out(message, agent.get(), owner);
    put(out, id);
    put(out, fork);
    out.number(static_cast<uint8_t>(confirmed ? kConfirmedParent : 0));
  }
  auto done = [self = shared_from_this(), state](std::exception_ptr error, const Message*) {
    if (!error) state->known = true;
    self->confirm(state, error ? Use::translate(*state, error) : nullptr);
  };
  try {
    agent->call(owner, Kind::kFork, std::move(message), {Duration(0), "a reference's fork"},
                std::make_unique<DoneSink>(done));
  } catch (...) {
    confirm(state, std::current_exception());
  }
  return state;
}

/// A pending reference becomes usable, or fails for good; whoever waits for that is told.
void References::confirm(const std::shared_ptr<UserState>& state, std::exception_ptr error) {
  Pending pending;
  {
    MutexLock lock(mutex_);
    const auto found = pending_.find(state->fork);
    if (found != pending_.end()) {
      pending = std::move(found->second);
      pending_.erase(found);
    }
  }
  auto expected = UserState::Standing::kPending;
  if (error) {
    lose_user(state, UserState::Standing::kFailed, error);
  } else if (state->standing.compare_exchange_strong(expected, UserState::Standing::kConfirmed)) {
    state->confirmed.state()->try_set();
    if (tracing()) trace(str("worker ", self_.id.value, " rref: confirmed ", state->fork));
  } else if (expected == UserState::Standing::kTimedOut) {
    state->confirmed.state()->try_set();
  }
  for (Responder& probe : pending.probes) {
    probe.reply(probe_answer(!error));
  }
  if (pending.accept) later(Later{Later::What::kAccept, state->parent.id, state->id, state->fork});
  changed();
}

void References::lose_user(const std::shared_ptr<UserState>& state, UserState::Standing standing,
                           std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    const auto before = state->standing.load();
    if (before >= UserState::Standing::kFailed) return;
    if (before != UserState::Standing::kTimedOut) state->error = error;  // others may be reading that one
    state->standing = standing;
  }
  state->confirmed.state()->try_set_error(error);
  if (standing != UserState::Standing::kDeleted) state->created.state()->try_set_error(error);
}

}  // namespace detail
}  // namespace weft::rpc
