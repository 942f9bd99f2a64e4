// Remote references: distributed reference counting by a reference list at the owner. A value lives exactly
// as long as a worker holds a reference to it. The protocol follows the includes; the code of rref/ refers to
// its steps. This file has the hand-over of references in messages.
#include <weft/distributed/rref/inner/references.h>

#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rref/inner/reference_messages.h>

// The protocol of remote references. The agents below run each request at most once and repeat lost messages
// while both workers live. Every message here is such a request; those of this protocol have no deadline. The
// protocol assumes no order of messages. The design follows PyTorch's RRef protocol.
//
//  1. Ids. An RRefId names a value, a ForkId one worker's reference to it. One life of one worker draws each
//     id, once. The owner keeps the value while its set of forks is not empty or it has a reference of its
//     own. A local RRef that was never sent is not counted. Owners, holders and receivers are lives: a
//     successor under the same id owns, holds and gets nothing of the life before it.
//  2. Creation. remote() draws r and f, keeps the user's reference alive as *pending*, and sends CREATE(r,
//     f). The owner adds f, runs the function, keeps value or error, and answers. The answer confirms the
//     reference. A creation beyond its timeout marks the reference: every use throws Timeout. The request
//     itself continues, so the owner's count stays right. An error in the place of the answer, as of a
//     fenced owner, fails the reference, whether f was added or not. Its user sends DELETE(r, f) with a mark.
//     The owner remembers r and fails requests for it.
//  3. Overtaking. A FETCH, METHOD or FORK through an unconfirmed reference may arrive before CREATE. The
//     owner then makes an unannounced entry and parks the request until the value exists; no thread waits.
//     The entry goes with its last fork, unless a request waits for it; a CREATE after that makes it anew.
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
//  9. The end of a share. A share of a request ends with a reply that is not an error. The callee has read
//     all arguments then, and by 6 they are confirmed. A share of a reply ends by ACCEPT, which the receiver
//     sends when the child is confirmed. Where the message may be lost, the sender PROBEs the receiver. That
//     is so if the caller gave up, the answer was an error, or a reply was not accepted. The receiver answers
//     for a child it has when that is confirmed. A child it does not have is refused for ever, so that a late
//     message cannot bring it. Then the share ends, and the owner removes a refused fork. A child comes only
//     from the maker of its fork. Only that one PROBEs it, and only the receiver of a share ACCEPTs it.
// 10. Release. The last copy of a user's reference sends DELETE(r, f) once it is confirmed. A task sends
//     it, since destructors must not block or call the agent. The owner removes f, which only its holder may
//     DELETE. Without forks the value is destroyed, on the pool.
// 11. Failures. Owners watch the lives that have forks, users watch owners. When a life is lost, its forks
//     are removed, references to its values throw OwnerLost, and shares to it end. Requests that wait for its
//     CREATE fail. The agent fails the open requests, and sends none to a life that has a successor.
// 12. Graceful shutdown. When no call is open in the group, shares are probed and awaited, and each worker
//     records its references. When all have done so, every recorded reference is deleted at its owner. It
//     is a leak, reported there with its origin. The recording comes first, since a deleted value releases
//     references of its own. Then each owner waits until its sets of forks are empty.
//
// G1. The owner learns of the end of every fork it counts: by 10, by 9 for a child that never existed, or
//     by 11.
// G2. No value is destroyed while a child is under way. The share keeps the parent (4) until the child is
//     confirmed (6, 9), so the owner always counts at least one of the two. A use of a destroyed value
//     therefore means that a worker was lost, or that a creation was answered by an error (2).

namespace weft::rpc {

namespace detail {

namespace {

/// Settles the share of a child by the outcome of its message. Destroyed before that: the message
/// was never sent.
class OutcomeGuard {
 public:
  OutcomeGuard(std::shared_ptr<References> refs, ForkId fork) : refs_(std::move(refs)), fork_(fork) {}
  OutcomeGuard(const OutcomeGuard&) = delete;
  ~OutcomeGuard() {
    if (refs_) refs_->shares().resolve(fork_, true);
  }
  void settle(bool received) {
    if (auto refs = std::exchange(refs_, nullptr)) refs->shares().settle(fork_, received);
  }

 private:
  std::shared_ptr<References> refs_;
  const ForkId fork_;
};

/// A watch that is taken back at the end of its scope, unless something was recorded that takes it back.
class FreshWatch {
 public:
  /// Throws: ValueError for an id that no worker can have.
  FreshWatch(Agent& agent, Life peer) : agent_(agent), peer_(peer) { agent.watch(peer, +1); }
  FreshWatch(const FreshWatch&) = delete;
  ~FreshWatch() {
    if (!kept_) agent_.watch(peer_, -1);
  }
  void keep() { kept_ = true; }

 private:
  Agent& agent_;
  const Life peer_;
  bool kept_ = false;
};

struct Slot {
  explicit Slot(Agent& agent) : references(std::make_shared<References>(agent)) {}
  std::shared_ptr<References> references;
};

}  // namespace

std::shared_ptr<References> ReferenceContext::references() const { return whole_.shared_from_this(); }

References::References(Agent& agent)
    : context_(agent, *this),
      work_(context_, [this](Agent& a, ForkId fork) { shares_.probe(a, fork); }),
      owners_(context_, work_),
      users_(context_, work_),
      shares_(context_, owners_, work_) {}

std::shared_ptr<References> References::of(Agent& agent) { return agent.slot<Slot>().references; }

void References::install(Agent& agent) {
  const auto weak = weak_from_this();
  agent.on_peer_lost([weak](const LostPeer& peer) {
    if (const auto self = weak.lock()) self->peer_lost(peer);
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

std::shared_ptr<Agent> References::agent(const RRefState& used) const {
  auto agent = context_.agent();
  if (!agent || !agent->is_running())
    throw RpcError(str("RPC has not been initialized: ", describe(&used), " was used after worker '",
                       self().name, "' was shut down"));
  return agent;
}

// ---- step 2: creation

void References::creation_timed_out(RRefState& state, const char* what, Duration limit) {
  const double ms = std::chrono::duration<double, std::milli>(limit).count();
  std::string text = str("RRef creation via rpc.remote() timed out: '", what, "' on ", state.owner,
                         " took more than ", ms, " ms (", describe(&state), ")");
  if (state.is_owner) {
    auto& owned = static_cast<OwnedState&>(state);
    if (owned.created.done()) return;
    owned.late = std::move(text);
    owned.timed_out = true;
    return;
  }
  const auto agent = context_.agent();
  Peer* const owner = agent ? agent->impl().peers.find(owner_life(state)) : nullptr;
  if (owner) text += PeerTable::trouble(*owner);
  users_.creation_timed_out(static_cast<UserState&>(state), std::make_exception_ptr(Timeout(text)));
}

void References::abandon_creation(RRefState& state, std::exception_ptr error) {
  if (state.is_owner) {
    static_cast<OwnedState&>(state).fail(error);
    owners_.end_creation(state.id);
  } else {
    users_.creation_answered(std::static_pointer_cast<UserState>(state.shared_from_this()), error, false);
  }
}

// ---- requests to the owner

std::shared_ptr<OwnedState> References::announce(RRefId id, ForkId fork, Life from) {
  const bool mine = from.id == self().id;
  if (id.maker() != from || (!mine && fork.maker() != from))
    throw NotAllowed(
        str("worker ", from.id.value, " cannot create ", id, " as ", fork, ", which it did not make"));
  const auto agent = context_.agent();
  if (mine || !agent) return owners_.announce(id, fork, from);
  FreshWatch watch(*agent, from);
  auto state = owners_.announce(id, fork, from);
  watch.keep();
  check_lost(*agent, from);
  return state;
}

std::shared_ptr<OwnedState> References::find(RRefId id, bool confirmed, WorkerId from) {
  if (auto state = owners_.find(id)) return state;
  const Life maker = id.maker();
  const auto agent = context_.agent();
  if (!agent) throw RpcError(str("worker '", self().name, "' has been shut down"));
  if (confirmed || from == self().id || maker.id == self().id) owners_.throw_gone(id, {});
  FreshWatch watch(*agent, maker);
  auto found = owners_.begin_unannounced(id);
  if (found.fresh) {
    watch.keep();
    check_lost(*agent, maker);
  }
  return std::move(found.state);
}

void References::add_fork(Agent& agent, RRefId id, ForkId fork, Life holder, bool confirmed) {
  if (fork.maker() == agent.life())
    throw NotAllowed(str("worker ", holder.id.value, " cannot add ", fork, ", which the owner made"));
  FreshWatch watch(agent, holder);
  owners_.add_fork(find(id, confirmed, holder.id), fork, holder);
  watch.keep();
  check_lost(agent, holder);
}

/// Loses a life that was just watched, if step 11 has run for it before.
void References::check_lost(Agent& agent, Life peer) {
  if (!agent.is_lost(peer)) return;
  peer_lost({info_of(agent, peer.id), peer.incarnation, false, "it was lost before"});
}

// ---- steps 4 to 8: sharing

void References::encode(Encoder& out, const StatePtr& state) {
  if (!out.endpoint() || out.to().value < 0)
    throw RpcError(str(describe(state.get()),
                       " cannot be encoded here: a reference travels only in a call or its reply, since its "
                       "receiver must be known"));
  const auto agent = this->agent(*state);
  if (agent.get() != out.endpoint())
    throw RpcError(str(describe(state.get()), " belongs to worker '", self().name,
                       "' and cannot be sent by '", agent_of(out.endpoint())->self().name, "'"));
  check_usable(*state);
  const Life to = out.receiver().incarnation.value != 0 ? out.receiver() : agent->life_of(out.to());
  const Life owner = state->is_owner ? agent->life() : owner_life(*state);
  const ForkId fork = next<ForkId>(*agent);
  const bool confirmed = is_confirmed(*state);
  auto guard = std::make_shared<OutcomeGuard>(shared_from_this(), fork);
  if (state->is_owner && to.id != self().id) {
    FreshWatch watch(*agent, to);
    shares_.begin(fork, state, to, out.is_reply());
    watch.keep();
  } else {
    shares_.begin(fork, state, to, out.is_reply());
  }
  out.on_settled([guard](bool received) { guard->settle(received); });
  context_.trace("share ", state->id, " ", fork, " with ", to.id.value);
  out.number(owner.id.value);
  out.number(owner.incarnation.value);
  put(out, state->id);
  put(out, fork);
  out.number(static_cast<uint8_t>(confirmed ? kConfirmedParent : 0));
}

StatePtr References::decode(Decoder& in, const ValueType* type) {
  Arrival arrival;
  arrival.owner.id.value = in.number<int32_t>();
  arrival.owner.incarnation.value = in.number<uint64_t>();
  arrival.rref = get_rref(in);
  arrival.fork = get_fork(in);
  arrival.parent_confirmed = in.number<uint8_t>() & kConfirmedParent;
  const auto agent = context_.agent();
  if (!agent || in.from().value < 0) throw RpcError("a reference travels only in a call or its reply");
  const Life maker = arrival.fork.maker();
  if (!means(in.sender(), maker))
    throw NotAllowed(str("worker ", in.from().value, " cannot share ", arrival.rref, " as ", arrival.fork,
                         ", which it did not make"));
  if (arrival.owner.incarnation.value == 0) arrival.owner = agent->life_of(arrival.owner.id);
  if (arrival.owner != agent->life()) return users_.receive(*agent, in, arrival);
  const auto state = take_home(in, arrival);
  if (state->created.done() && !state->created.has_error() && state->type != type &&
      state->type->name() != type->name())
    throw ValueError(str(arrival.rref, " refers to a ", state->type->name(), ", not to a ", type->name()));
  return state;
}

/// The owner's own reference, in place of a child that came back to it (steps 7 and 8).
std::shared_ptr<OwnedState> References::take_home(const Decoder& in, const Arrival& arrival) {
  const WorkerId from = in.from();
  {
    TablesLock lock(context_);
    users_.check_refused(arrival.rref, arrival.fork);
  }
  if (from == self().id) {  // step 8
    if (auto state = shares_.arrive_here(arrival.rref, arrival.fork)) return state;
    owners_.throw_gone(arrival.rref, arrival.fork);
  }
  auto state = find(arrival.rref, arrival.parent_confirmed, from);  // step 7
  if (in.is_reply())
    work_.add(DeferredItem{DeferredItem::Kind::kAccept, arrival.fork.maker(), arrival.rref, arrival.fork});
  return state;
}

}  // namespace detail

std::string to_string(const LeakedRRef& leak) {
  return str(leak.rref, " of ", leak.owner, " is held by ", leak.user, " as ", leak.fork, " (", leak.site,
             ")");
}
void set_leak_policy(Agent& agent, LeakPolicy policy) {
  detail::References::of(agent)->owners().set_policy(policy);
}
std::vector<LeakedRRef> leaked_rrefs(Agent& agent) { return detail::References::of(agent)->owners().leaks(); }

}  // namespace weft::rpc
