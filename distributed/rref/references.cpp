// Remote references: distributed reference counting by a reference list at the owner. A value lives
// exactly as long as a worker holds a reference to it. The agents below run each request at most once and
// repeat lost messages while both workers live. Every message here is such a request; those of this
// protocol have no deadline. The protocol assumes no order of messages. The design follows PyTorch's RRef
// protocol. The code refers to the steps.
//
//  1. Ids. An RRefId names a value, a ForkId one worker's reference to it. One incarnation of one worker
//     draws each id, once. The owner keeps the value while its set of forks is not empty or it has a
//     reference of its own. A local RRef that was never sent is not counted.
//  2. Creation. remote() draws r and f, keeps the user's reference alive as *pending*, and sends CREATE(r,
//     f). The owner adds f, runs the function, keeps value or error, and answers. The answer confirms the
//     reference. A creation beyond its timeout marks the reference: every use throws Timeout. The request
//     itself continues, so the owner's count stays right.
//  3. Overtaking. A FETCH, METHOD or FORK through an unconfirmed reference may arrive before CREATE. The
//     owner then makes an unannounced entry and parks the request until the value exists; no thread waits.
//  4. Sharing. Writing a reference into a message draws a fork id for the child and records a *share*
//     until the child is known. The share keeps the parent of the child alive.
//  5. Owner to user. The owner adds the fork when it writes the message. The child is confirmed on arrival.
//  6. User to user. The child is pending and sends FORK to the owner; the answer confirms it. A function
//     whose arguments have pending references starts when all are confirmed (Decoder::await). So does the
//     completion of a reply's future.
//  7. User to owner. The message carries a fork id that the owner never counts. On arrival the reference
//     becomes the owner's own.
//  8. Owner to itself. As 5; on arrival the fork is removed again. In a remote() to oneself the entry has
//     the fork with r's number until the function has returned.
//  9. The end of a share. A share of a request ends with a reply that is not an error: the callee has read
//     all arguments, and by 6 they are confirmed. A share of a reply ends by ACCEPT, which the receiver
//     sends when the child is confirmed. Where the message may be lost, the sender PROBEs the receiver:
//     the caller gave up, the answer was an error, or a reply was not accepted. The receiver answers for a
//     child it has when that is confirmed. A child it does not have is refused for ever, so that a late
//     message cannot bring it. Then the share ends, and the owner removes a refused fork.
// 10. Release. The last copy of a user's reference sends DELETE(r, f) once it is confirmed. A task sends
//     it, since destructors must not block or call the agent. The owner removes f. Without forks the value
//     is destroyed, on the pool.
// 11. Failures. Owners watch the workers that have forks, users watch owners. When a worker is lost, its
//     forks are removed, references to its values throw OwnerLost, and shares to it end. Requests that
//     wait for its CREATE fail. The agent fails the open requests.
// 12. Graceful shutdown. When no call is open in the group, shares are probed and awaited, and each worker
//     records its references. When all have done so, every recorded reference is deleted at its owner. It
//     is a leak, reported there with its origin. The recording comes first, since a deleted value releases
//     references of its own. Then each owner waits until its sets of forks are empty.
//
// G1. The owner learns of the end of every fork it counts: by 10, by 9 for a child that never existed, or
//     by 11.
// G2. No value is destroyed while a child is under way. The share keeps the parent (4) until the child is
//     confirmed (6, 9), so the owner always counts at least one of the two. A use of a destroyed value
//     therefore means that a worker was lost.
#include <weft/distributed/rref/inner/references.h>

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

/// Settles the share of a child by the outcome of its message. Destroyed before that: the message
/// was never sent.
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

// ---- steps 1 to 3: creation

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
    MutexLock lock(mutex_);  // only confirm() leaves kPending without the lock
    auto expected = UserState::Standing::kPending;
    if (user.standing.load() != expected) return;
    user.error = error;
    if (!user.standing.compare_exchange_strong(expected, UserState::Standing::kTimedOut)) return;
  }
  user.created.state()->try_set_error(error);
}

/// Removes the fork of a remote() to oneself after its function has returned (step 8).
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

/// Finds or makes the owner's entry, for a request or a child from `from` (steps 3 and 7).
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
  if (!out.endpoint() || out.to().value < 0)
    throw RpcError(str(describe(state.get()),
                       " cannot be encoded here: a reference travels only in a call or its reply, since its "
                       "receiver must be known"));
  const auto agent = this->agent(*state);
  if (agent.get() != out.endpoint())
    throw RpcError(str(describe(state.get()), " belongs to worker '", self_.name, "' and cannot be sent by '",
                       agent_of(out.endpoint())->self().name, "'"));
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
  const auto check_refused = [&]() WEFT_REQUIRES(mutex_) {  // step 9
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

/// Makes a pending reference usable, or fails it for good, and answers all that wait for that.
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
    if (before != UserState::Standing::kTimedOut) state->error = error;  // other threads may read a set error
    state->standing = standing;
  }
  state->confirmed.state()->try_set_error(error);
  if (standing != UserState::Standing::kDeleted) state->created.state()->try_set_error(error);
}

}  // namespace detail
}  // namespace weft::rpc
