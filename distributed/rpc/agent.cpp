// The agent: its creation, and the hand-over of calls and messages to its parts (inner/agent_impl.h). The
// protocol between two agents follows the includes; the code of all parts refers to its steps.
#include <weft/distributed/rpc/agent.h>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/rpc/builtin.h>
#include <weft/distributed/rpc/inner/access.h>
#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/inner/put_off.h>
#include <weft/distributed/rpc/inner/services.h>
#include <weft/distributed/runtime/inner/task_state.h>
#include <weft/kernels/inner/replaced_backend.h>
#include <weft/tensor/generator.h>
#include <weft/tensor/inner/tracer.h>

// The protocol between two agents. [G: ...] states a guarantee.
//
//  1. Request ids. Each ordered pair of workers counts a sequence number up. With the sender's incarnation,
//     which the transport verifies, it identifies a request for ever. The caller keeps the sealed message
//     until the call has ended.
//  2. At-most-once execution (Birrell and Nelson). The callee records every request until it may forget it. A
//     duplicate never runs: the callee sends the reply again if it has one, else it drops the duplicate.
//     [G: a function runs at most once]
//  3. The callee keeps a reply (value or error) until the caller has finished the request. If it lacks room
//     for that, the request stays recorded as executed, and the reply becomes ResultDropped (inner/budget.h).
//     A fetch runs no function: without room for its value it counts as never received.
//  4. Acknowledgement. Every message has a floor: all requests of its sender below that number are finished.
//     The callee forgets them, and recognises late copies by their numbers.
//  5. Retransmission. A caller that has waited longer than `retry` sends a status with its open requests;
//     requests not listed are finished. The callee sends the listed replies again and reports the requests
//     that it never received. The caller sends those again. So a lost message delays a call but does not fail
//     it, and a large argument is sent twice only if it was lost. [G: retried until the deadline]
//  6. Deadlines. The caller ends the call with Timeout, and the next floor or status reports it as finished.
//     A later reply goes to the interceptors' discarded() and is dropped. The request carries the remaining
//     time. A cancelled call ends in the same way, and a status notifies the callee at once. The handler's
//     context shows that, and its calls that set no timeout are cancelled too.
//  7. Failure detection by leases. A peer is under lease while calls to it are open, requests of it are not
//     finished, or a layer watches it. After some silence it is asked as in 5. It is lost after a lease of
//     silence, by its goodbye, and when another life answers at its address. A lost incarnation stays lost:
//     its calls fail with PeerLost and the layers get a callback. Its later messages are answered with
//     kFenced, and it then counts this worker as lost. A restarted worker is another life, and joins by
//     add_members.
//     [G: no call outlives its peer by more than a lease]
//     Another worker may know a successor before this one learns of it. Calls to that life then wait, and
//     requests that need it count as never received (put_off.h), both at most for a lease. After that it
//     counts as lost until this worker learns of it.
//  8. Replies are decoded, and futures completed, on the receiving thread, never on a pool thread. So
//     handlers that block in nested calls cannot delay a reply; the pool starts other threads in their place.
//     A message without memory for its tensors fails the call that it belongs to, and no other.
//     [G: nested calls of any depth and number do not hang]
//  9. Graceful shutdown. A worker that shuts down is passive. The first round of rounds.cpp ends when
//     all living members are passive. Then counting rounds detect termination: they repeat until no call is
//     open anywhere and none was begun between two rounds. Then the layers' shutdown steps run, each followed
//     by such rounds, and all leave. Lost members are left out.

namespace weft::rpc {

namespace {

/// Makes the tape's modes, the scope of random numbers and a recording of compile() follow simulated fibers.
void register_grad_mode() {
  static const bool once = [] {
    register_thread_state({[] {
                             const AutogradState& s = autograd_state();
                             return static_cast<uint64_t>(s.grad_enabled) |
                                    static_cast<uint64_t>(s.inference) << 1 |
                                    static_cast<uint64_t>(s.anomaly) << 2 |
                                    static_cast<uint64_t>(s.autocast) << 3;
                           },
                           [](uint64_t v) {
                             AutogradState& s = autograd_state();
                             s.grad_enabled = v & 1, s.inference = v & 2, s.anomaly = v & 4,
                             s.autocast = static_cast<DType>(v >> 3);
                           },
                           1 | static_cast<uint64_t>(kFloat32) << 3});
    register_thread_state(
        {[] { return reinterpret_cast<uint64_t>(autograd_state().saved_hooks); },
         [](uint64_t v) { autograd_state().saved_hooks = reinterpret_cast<const SavedTensorHooks*>(v); }, 0});
    register_thread_state({[] { return reinterpret_cast<uint64_t>(draw_scope()); },
                           [](uint64_t v) { draw_scope() = reinterpret_cast<DrawScope*>(v); }, 0});
    register_thread_state({[] { return reinterpret_cast<uint64_t>(autograd_state().current); },
                           [](uint64_t v) { autograd_state().current = reinterpret_cast<Node*>(v); }, 0});
    register_thread_state({[] { return reinterpret_cast<uint64_t>(weft::detail::t_tracer); },
                           [](uint64_t v) { weft::detail::t_tracer = reinterpret_cast<weft::Tracer*>(v); },
                           0});
    register_thread_state({[] { return reinterpret_cast<uint64_t>(kernels::replaced_cpu_backend); },
                           [](uint64_t v) { kernels::replaced_cpu_backend = reinterpret_cast<Backend*>(v); },
                           0});
    return true;
  }();
  (void)once;
}

bool in_callback() { return inner::current_state()->no_block != nullptr; }

/// A pool task that destroys an agent. If the runtime drops the task, its destructor does so, except
/// inside a callback.
struct Ending {
  explicit Ending(Agent* a) : agent(a) {}
  Ending(Ending&& other) noexcept : agent(std::exchange(other.agent, nullptr)) {}
  ~Ending() {
    if (!in_callback()) delete agent;
  }
  void operator()() { delete std::exchange(agent, nullptr); }
  Agent* agent;
};

/// The deleter of the last reference to an agent.
void let_go(Agent* agent) {
  if (!in_callback()) {
    delete agent;
    return;
  }
  const std::shared_ptr<Runtime> runtime = agent->runtime();
  runtime->post(Ending(agent));
}

}  // namespace

std::shared_ptr<Agent> Agent::create(std::shared_ptr<Runtime> runtime, AgentOptions options,
                                     const TransportFactory& factory) {
  check_worker_name(options.name);
  if (options.id.value < 0 || options.id.value > kMaxWorkerId)
    throw ValueError(
        str("worker '", options.name, "': the id ", options.id.value, " is not in 0 to ", kMaxWorkerId));
  if (options.rpc_timeout.count() < 0)
    throw ValueError(str("rpc_timeout is negative: ", options.rpc_timeout.count(), " ns"));
  if (options.budget.per_peer < 1 || options.budget.in_all < 1)
    throw ValueError(str("the budgets must be positive: ", options.budget.per_peer, " bytes per peer, ",
                         options.budget.in_all, " in all"));
  if (options.budget.reserve < 0)
    throw ValueError(str("the reserve of the budget is negative: ", options.budget.reserve, " bytes"));
  if (options.lease.count() <= 0 || options.retry.count() <= 0)
    throw ValueError("lease and retry must be positive");
  register_builtins();
  check_registry();
  const inner::KeepRunning whole;  // the initialisation of function-local statics locks
  register_grad_mode();
  register_stream_states();

  std::shared_ptr<Agent> agent(new Agent(std::move(runtime), std::move(options)), let_go);
  Impl& s = *agent->impl_;
  install_services(*agent);
  s.core.transport = factory(s);
  s.core.running = true;  // earlier deliveries of the transport were dropped; their senders send them again
  agent->add_members({agent->as_member()});
  return agent;
}

Agent::Agent(std::shared_ptr<Runtime> runtime, AgentOptions options)
    : impl_(std::make_unique<Impl>(*this, std::move(runtime), std::move(options))) {}

Agent::~Agent() {
  try {
    shutdown({.graceful = false});
  } catch (...) {  // a destructor must not throw; shutdown has done its work all the same
  }
}

Agent::Impl::Impl(Agent& agent, std::shared_ptr<Runtime> runtime, AgentOptions options)
    : core(agent, std::move(runtime), std::move(options)),
      alarm(
          core, [this](Duration late) { liveness.on_ring(late); },
          [this](Peer& p) { return liveness.tend(p); }),
      devices(core, peers),
      caller(core, peers, devices, alarm),
      server(core, devices, caller, alarm),
      liveness(core, peers, caller, alarm,
               [this](const LostPeer& peer) {
                 devices.peer_lost(peer.info.id);
                 if (const auto living = core.agent()) gathers.peer_lost(*living, peer);
                 rounds.decide();
               }),
      gathers(core, peers),
      rounds(core, peers, alarm),
      ending(*core.runtime) {}

// ---- messages

namespace {
bool is_charged_request(uint8_t kind) { return !(kind & kReplyBit) && is_charged(static_cast<Kind>(kind)); }
/// A message of the agent itself, which is no request.
bool is_own(Kind kind) {
  return kind == Kind::kStatus || kind == Kind::kStatusReply || kind == Kind::kGoodbye ||
         kind == Kind::kFenced;
}
Reserved reserved(uint8_t kind) { return kind & kReplyBit ? Reserved::kReply : Reserved::kOther; }

bool is_put_off(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const PutOff&) {
    return true;
  } catch (...) {
  }
  return false;
}
}  // namespace

Block Agent::Impl::allocate(WorkerId, uint8_t kind, const std::string&, int64_t bytes, int32_t device) {
  if (is_charged_request(kind) && !core.budget.has_room(bytes))
    std::rethrow_exception(core.budget.no_room(bytes));
  try {
    return allocate_payload(bytes, device);
  } catch (const std::bad_alloc&) {
    throw OutOfMemoryError(str("no memory for ", bytes, " bytes of a message"));
  }
}

/// Tensors of the cpu use the memory in place. Copies to devices start from pinned memory.
Block Agent::Impl::take(WorkerId from, uint8_t kind, const std::string& header, Block lent, int32_t device) {
  if (device != kHostDevice) return Receiver::take(from, kind, header, std::move(lent), device);
  if (is_charged_request(kind) && !core.budget.has_room(lent.bytes))
    std::rethrow_exception(core.budget.no_room(lent.bytes));
  return lent;
}

void Agent::Impl::on_part(uint8_t kind, int64_t held, int64_t bytes) {
  if (!is_charged_request(kind)) {
    if (!core.budget.arrive(reserved(kind), held, bytes))
      throw PutOff(str("no room for a message of ", held + bytes, " bytes: ", core.budget.in_use()));
  } else if (!core.budget.arrive(held, bytes)) {
    std::rethrow_exception(core.budget.no_room(held + bytes));
  }
}

void Agent::Impl::on_part_end(uint8_t kind, int64_t held) {
  if (is_charged_request(kind)) core.budget.arrived(held);
  else core.budget.arrived(reserved(kind), held);
}

/// As any message: its request, or the call that it answers, fails with the error (Devices::receive). One
/// without room in the reserve counts as lost on the way: a status makes its sender send it again (step 5).
void Agent::Impl::on_unread(Inbound message) {
  if (is_put_off(message.unread)) return core.budget.count_put_off();
  on_message(std::move(message));
}

void Agent::Impl::on_message(Inbound inbound) {
  if (!core.running) return;  // during the start or after the end; the caller will send a status
  Envelope e;
  try {
    e = open_envelope(inbound.header);
  } catch (const std::exception&) {
    core.counters.malformed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  core.hear_epoch(e.epoch);
  const bool is_reply = inbound.kind & kReplyBit;
  const auto kind = static_cast<Kind>(inbound.kind & ~kReplyBit);
  Peer& p = peers.at(inbound.from);
  const bool is_request = !is_reply && !is_own(kind);
  Server::Arrived arrived;
  if (is_request) arrived = server.arrive({inbound.from, inbound.incarnation}, kind, e);
  Caller::Answered answered;
  Server::Dropped finished;
  bool fenced = false;
  {  // all that a message changes in the tables of its sender
    MutexLock lock(p.mutex);
    if (p.incarnation.load().value == 0) p.incarnation = inbound.incarnation;
    if (p.incarnation.load() != inbound.incarnation || (p.lost && (p.left || is_reply))) return;  // step 7
    if (e.to_incarnation != 0 && e.to_incarnation != core.transport->incarnation().value) return;
    fenced = p.lost;
    if (!fenced) p.heard = core.runtime->now();
    if (is_reply) {
      answered = caller.take(p, kind, e);
    } else if (!fenced) {
      if (kind != Kind::kStatus && !finishes_itself(e)) server.take_finished(p, e.floor, finished);
      if (is_request) server.record(p, e, arrived);
    }
  }
  if (fenced) {
    if (kind != Kind::kFenced && kind != Kind::kGoodbye) liveness.fence(p);
    return;
  }
  if (e.window != 0) caller.on_window(p, e.window);
  if (is_reply) return caller.on_reply(p, kind, e, std::move(answered), std::move(inbound));
  server.forget(p, std::move(finished));
  switch (kind) {
    case Kind::kStatus: return server.on_status(p, inbound.header, e);
    case Kind::kStatusReply: return caller.on_status_reply(p, inbound.header, e);
    case Kind::kGoodbye: return liveness.lose(p, true, "it was shut down");
    case Kind::kFenced: return liveness.on_fenced(p, inbound.header, e);
    default: return server.on_request(p, e, std::move(arrived), std::move(inbound));
  }
}

void Agent::Impl::on_peer(WorkerId id, Incarnation incarnation, PeerState state, const std::string& reason) {
  if (core.running) liveness.on_peer(id, incarnation, state, reason);
}

void Agent::Impl::on_failed_attempt(WorkerId id, Incarnation incarnation, const std::string& reason) {
  if (core.running) liveness.on_failed_attempt(id, incarnation, reason);
}

// ---- members

const WorkerInfo& Agent::self() const { return impl_->core.self; }
const std::shared_ptr<Runtime>& Agent::runtime() const { return impl_->core.runtime; }
Transport& Agent::transport() { return *impl_->core.transport; }
bool Agent::is_running() const { return impl_->core.running; }
WorkerId Agent::worker_info_id(const To& who) const { return impl_->peers.id_of(who); }

Member Agent::as_member() const {
  return {self().name, self().id, impl_->core.transport->addresses(), impl_->devices.plan()};
}

void Agent::add_members(const std::vector<Member>& members) {
  Impl& s = *impl_;
  s.peers.check(members);
  for (const Member& m : members) {
    const Incarnation told = m.address.incarnation;
    Peer& p = s.liveness.live(s.peers.at(m.id), told);
    bool joins = false;
    {
      MutexLock lock(p.mutex);
      if (told.value != 0 && p.incarnation.load().value == 0) p.incarnation = told;
      p.name = m.name;
      joins = !p.known.exchange(true) && !p.lost;
    }
    s.peers.add_name(m.name, m.id);
    s.devices.add_plan(p, m);
    if (m.id == s.core.self.id) continue;
    PeerAddress address = m.address;
    address.name = m.name;
    s.core.transport->add_peer(m.id, std::move(address));
    if (joins) s.gathers.joined(*this, p.life());
    bool waits = false;  // calls to it
    {
      MutexLock lock(p.mutex);
      waits = p.wanted();
    }
    if (waits) s.alarm.set(p, s.core.runtime->now());
  }
  s.rounds.joined(*this);
}

WorkerInfo Agent::worker_info(const To& who) const {
  const WorkerId id = worker_info_id(who);
  return {impl_->peers.name(id), id};
}

std::vector<WorkerInfo> Agent::worker_infos() const {
  std::vector<WorkerInfo> out;
  for (Peer* p : impl_->peers.all()) {
    MutexLock lock(p->mutex);
    if (p->known) out.push_back({p->name, p->id});
  }
  return out;
}

// ---- calls

namespace {
/// The reply as a Future<Message>.
class MessageSink final : public ReplySink {
 public:
  explicit MessageSink(std::shared_ptr<detail::FutureState<Message>> state) : state_(std::move(state)) {}
  void on_reply(Agent&, WorkerId, Message message) noexcept override { state_->try_set(std::move(message)); }
  void on_error(std::exception_ptr error) noexcept override { state_->try_set_error(std::move(error)); }

 private:
  std::shared_ptr<detail::FutureState<Message>> state_;
};
}  // namespace

Future<Message> Agent::call(Life to, Kind kind, Message message, CallOptions options) {
  auto state = std::make_shared<detail::FutureState<Message>>(runtime());
  state->set_call(weak_from_this(),
                  call(to, kind, std::move(message), options, std::make_unique<MessageSink>(state)));
  return Future<Message>(std::move(state));
}

CallId Agent::call(Life to, Kind kind, Message message, CallOptions options,
                   std::unique_ptr<ReplySink> sink) {
  return impl_->caller.start(to, kind, std::move(message), options, std::move(sink));
}

bool Agent::cancel_call(const CallId& call) { return impl_->caller.cancel(call); }

Duration Agent::rpc_timeout() const { return impl_->caller.timeout(); }

void Agent::set_rpc_timeout(Duration timeout) {
  if (timeout.count() < 0) throw ValueError(str("rpc_timeout is negative: ", timeout.count(), " ns"));
  impl_->caller.set_timeout(timeout);
}

void Agent::run_when(std::vector<Future<void>> awaited, std::function<void(std::exception_ptr)> run) {
  if (awaited.empty()) return run(nullptr);
  collect(awaited).add_done_callback([run = std::move(run)](const Future<void>& all) { run(all.error()); });
}

void Agent::check_allowed(const FunctionEntry& function, WorkerId caller) const {
  const AgentOptions& o = impl_->core.options;
  if (caller == impl_->core.self.id || (o.allow.empty() && !o.deny_unlisted)) return;
  const std::string name = impl_->peers.name(caller);
  if (may_use(o, function.name, name, o.deny_unlisted)) return;
  throw NotAllowed(str("worker '", name, "' may not call '", function.name, "'"));
}

void Agent::handle(Kind kind, RunOn where, Handler handler) {
  impl_->server.handle(kind, where, std::move(handler));
}

void Agent::add_interceptor(std::shared_ptr<Interceptor> interceptor) {
  impl_->core.interceptors.add(std::move(interceptor));
}

// ---- devices, liveness, collective calls

void Agent::agree_on_devices(Duration timeout) { impl_->devices.agree(*this, timeout); }

Device Agent::target_device(WorkerId to, bool reply, Device source, bool unmapped_to_cpu) const {
  return impl_->devices.target(to, reply, source, unmapped_to_cpu);
}

Life Agent::life() const { return {self().id, impl_->core.transport->incarnation()}; }

Life Agent::life_of(WorkerId peer) const {
  const Peer* p = impl_->peers.find(peer);
  return p ? p->life() : Life(peer);
}

void Agent::watch(Life peer, int delta) { impl_->liveness.watch(peer, delta); }
void check_told(Agent& agent, Life life) { agent.impl().liveness.check_told(life); }
bool Agent::is_lost(Life peer) const { return impl_->liveness.is_lost(peer); }

void Agent::on_peer_lost(std::function<void(const LostPeer&)> f) {
  impl_->liveness.lost_callbacks.add(std::move(f));
}

void Agent::declare_lost(WorkerId peer, const std::string& why) {
  impl_->liveness.lose(impl_->peers.at(peer), false, why);
}

void Agent::process_ended(Life peer) { impl_->liveness.process_ended(peer); }

void Agent::barrier(std::vector<std::string> names, Duration timeout) {
  impl_->gathers.gather(*this, {}, names, timeout, false);
}

std::map<std::string, Message> Agent::gather(Message mine, std::vector<std::string> names, Duration timeout) {
  return impl_->gathers.gather(*this, std::move(mine), names, timeout, true);
}

// ---- debug information

std::map<std::string, int64_t> Agent::debug_info() const { return counters_of(*impl_); }
std::vector<CallRecord> Agent::calls() const { return open_calls(*impl_); }
std::string Agent::dump() const { return text_of(calls(), self().name); }
void Agent::add_debug_info(std::function<void(std::map<std::string, int64_t>&)> f) {
  impl_->debug_callbacks.add(std::move(f));
}

// ---- layers

void* Agent::slot(std::type_index type, std::shared_ptr<void> (*make)(Agent&)) {
  return impl_->slots.get(*this, type, make);
}

void* Slots::get(Agent& agent, std::type_index type, std::shared_ptr<void> (*make)(Agent&)) {
  const std::lock_guard lock(mutex_);
  const inner::KeepRunning whole;
  std::shared_ptr<void>& kept = kept_[type];
  if (!kept) {
    std::shared_ptr<void> made = make(agent);
    return (kept_[type] = std::move(made)).get();
  }
  return kept.get();
}

}  // namespace weft::rpc
