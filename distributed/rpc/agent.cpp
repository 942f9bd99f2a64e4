// The agent: creation, members and peers. The protocol between two agents follows; the code refers to its
// steps. [G: ...] states a guarantee.
//
//  1. Request ids. Each ordered pair of workers counts a sequence number up. With the sender's incarnation,
//     which the transport verifies, it identifies a request for ever. The caller keeps the sealed message
//     until the call has ended.
//  2. At-most-once execution (Birrell and Nelson). The callee records every request until it may forget it. A
//     duplicate never runs: the callee sends the reply again if it has one, else it drops the duplicate.
//     [G: a function runs at most once]
//  3. The callee keeps a reply (value or error) until the caller has finished the request.
//  4. Acknowledgement. Every message has a floor: all requests of its sender below that number are finished.
//     The callee forgets them, and recognises late copies by their numbers.
//  5. Retransmission. A caller that has waited longer than `retry` sends a status with its open requests;
//     requests not listed are finished. The callee sends the listed replies again and reports the requests
//     that it never received. The caller sends those again. So a lost message delays a call but does not fail
//     it, and a large argument is sent twice only if it was lost. [G: retried until the deadline]
//  6. Deadlines. The caller ends the call with Timeout, and the next floor or status reports it as finished.
//     A later reply goes to the interceptors' discarded() and is dropped. The request carries the remaining
//     time.
//  7. Failure detection by leases. A peer is under lease while calls to it are open or a layer watches it.
//     After some silence it is asked as in 5. It is lost after a lease of silence, when the transport reports
//     it as unreachable or rejected, and when it says goodbye. A lost incarnation stays lost: its open calls
//     fail with PeerLost and the layers get a callback. Its later messages are answered with kFenced, and it
//     then counts this worker as lost. A restarted worker is another incarnation and joins by add_members.
//     [G: no call outlives its peer by more than a lease]
//  8. Replies are decoded, and futures completed, on the receiving thread, never on a pool thread. So
//     handlers that block in nested calls cannot delay a reply; the pool starts other threads in their place.
//     [G: nested calls of any depth and number do not hang]
//  9. Graceful shutdown. A worker that shuts down is passive. The first round of agent_rounds.cpp ends when
//     all living members are passive. Then counting rounds detect termination: they repeat until no call is
//     open anywhere and none was begun between two rounds. Then the layers' shutdown steps run, each followed
//     by such rounds, and all leave. Lost members are left out.
#include <weft/distributed/rpc/agent.h>

#include <algorithm>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/rpc/builtin.h>
#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/inner/layers.h>
#include <weft/distributed/runtime/inner/task_state.h>
#include <weft/tensor/generator.h>

namespace weft::rpc {

namespace {

/// Makes the tape's modes and the random number scope follow fibers in a simulation.
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
  if (options.lease.count() <= 0 || options.retry.count() <= 0)
    throw ValueError("lease and retry must be positive");
  register_builtins();
  check_registry();
  const inner::KeepRunning whole;  // the initialisation of function-local statics locks
  register_grad_mode();
  register_stream_states();

  auto impl = std::make_unique<Impl>(std::move(runtime), std::move(options));
  impl->self = {impl->options.name, impl->options.id};
  impl->rpc_timeout_ns = impl->options.rpc_timeout.count();
  std::shared_ptr<Agent> agent(new Agent(std::move(impl)), let_go);
  Impl& s = *agent->impl_;
  s.owner = agent;
  install_layers(*agent);
  s.transport = factory(s);
  s.running = true;  // earlier deliveries of the transport were dropped; their senders send them again
  agent->add_members({agent->as_member()});
  return agent;
}

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Agent::~Agent() {
  try {
    shutdown({.graceful = false});
  } catch (...) {  // a destructor must not throw; shutdown has done its work all the same
  }
}

const WorkerInfo& Agent::self() const { return impl_->self; }
const std::shared_ptr<Runtime>& Agent::runtime() const { return impl_->runtime; }
Transport& Agent::transport() { return *impl_->transport; }
Member Agent::as_member() const {
  return {impl_->self.name, impl_->self.id, impl_->transport->addresses(), impl_->plan()};
}
bool Agent::is_running() const { return impl_->running; }

Peer* Agent::Impl::find_peer(WorkerId id) {
  MutexLock lock(mutex);
  const auto found = peers.find(id.value);
  return found == peers.end() ? nullptr : found->second.get();
}

Peer& Agent::Impl::peer(WorkerId id) {
  if (id.value < 0 || id.value > kMaxWorkerId)
    throw ValueError(str("could not find destination: no worker has the id ", id.value));
  MutexLock lock(mutex);
  auto& p = peers[id.value];
  if (!p) {
    p = std::make_unique<Peer>(id);
    MutexLock inner(p->mutex);
    p->name = str("#", id.value);
  }
  return *p;
}

std::vector<Peer*> Agent::Impl::all_peers() {
  std::vector<Peer*> out;
  {
    MutexLock lock(mutex);
    for (const auto& [id, p] : peers) out.push_back(p.get());
  }
  std::sort(out.begin(), out.end(), [](const Peer* a, const Peer* b) { return a->id < b->id; });
  return out;
}

std::string Agent::Impl::peer_name(Peer& p) {
  MutexLock lock(p.mutex);
  return p.name;
}

void Agent::add_members(const std::vector<Member>& members) {
  Impl& s = *impl_;
  std::map<std::string, int32_t> names;
  std::map<int32_t, std::string> ids;
  {
    MutexLock lock(s.mutex);
    for (const auto& [name, id] : s.ids_by_name) names[name] = id, ids[id] = name;
  }
  for (const Member& m : members) {
    check_worker_name(m.name);
    if (m.id.value < 0 || m.id.value > kMaxWorkerId)
      throw ValueError(str("worker '", m.name, "': bad id ", m.id.value));
    const auto [by_name, fresh_name] = names.emplace(m.name, m.id.value);
    if (!fresh_name && by_name->second != m.id.value)
      throw ValueError(str("worker name '", m.name, "' is not unique: workers ", by_name->second, " and ",
                           m.id.value, " have it"));
    const auto [by_id, fresh_id] = ids.emplace(m.id.value, m.name);
    if (!fresh_id && by_id->second != m.name)
      throw ValueError(
          str("worker id ", m.id.value, " is not unique: '", by_id->second, "' and '", m.name, "' have it"));
  }
  for (const Member& m : members) {
    Peer& p = s.peer(m.id);
    bool restarted = false;
    {
      MutexLock lock(p.mutex);
      restarted = p.incarnation.value != 0 && m.address.incarnation.value != 0 &&
                  p.incarnation != m.address.incarnation;
    }
    if (restarted) s.lose(p, false, "it was restarted");
    {
      MutexLock lock(p.mutex);
      if (restarted) {
        p.lost = p.left = false;
        p.next_sequence = p.told_floor = 1;
        p.finished = {};
        p.given_up.clear();
      }
      if (m.address.incarnation.value != 0) p.incarnation = m.address.incarnation;
      p.name = m.name;
      p.known = true;
    }
    {
      MutexLock lock(s.mutex);
      s.ids_by_name[m.name] = m.id.value;
    }
    s.add_plan(m);
    if (m.id != s.self.id) s.transport->add_peer(m.id, m.address);
  }
}

WorkerId Agent::worker_info_id(const To& who) const {
  Impl& s = *impl_;
  if (who.by_id()) {
    Peer* p = s.find_peer(who.id());
    if (p) {
      MutexLock lock(p->mutex);
      if (p->known) return p->id;
    }
    throw ValueError(str("could not find destination: no worker has the id ", who.id().value));
  }
  MutexLock lock(s.mutex);
  const auto found = s.ids_by_name.find(who.name());
  if (found == s.ids_by_name.end())
    throw ValueError(str("could not find destination: no worker is called '", who.name(), "'"));
  return WorkerId{found->second};
}

WorkerInfo Agent::worker_info(const To& who) const {
  const WorkerId id = worker_info_id(who);
  return {impl_->peer_name(*impl_->find_peer(id)), id};
}

std::vector<WorkerInfo> Agent::worker_infos() const {
  std::vector<WorkerInfo> out;
  for (Peer* p : impl_->all_peers()) {
    MutexLock lock(p->mutex);
    if (p->known) out.push_back({p->name, p->id});
  }
  return out;
}

Duration Agent::rpc_timeout() const { return Duration(impl_->rpc_timeout_ns.load()); }

void Agent::set_rpc_timeout(Duration timeout) {
  if (timeout.count() < 0) throw ValueError(str("rpc_timeout is negative: ", timeout.count(), " ns"));
  impl_->rpc_timeout_ns = timeout.count();
}

void Agent::handle(Kind kind, RunOn where, Handler handler) {
  const int number = static_cast<int>(kind);
  if (number < static_cast<int>(Kind::kCall) || number > 127)
    throw ValueError(str("handle: ", to_string(kind), " is the agent's own"));
  Impl& s = *impl_;
  MutexLock lock(s.mutex);
  if (s.handlers[number].load() != nullptr)
    throw ValueError(str("handle: ", to_string(kind), " has a handler already"));
  s.handler_list.push_back(
      std::make_unique<Impl::HandlerEntry>(Impl::HandlerEntry{where, std::move(handler)}));
  s.handlers[number] = s.handler_list.back().get();
}

void Agent::add_interceptor(std::shared_ptr<Interceptor> interceptor) {
  Impl& s = *impl_;
  MutexLock lock(s.mutex);
  auto list = s.interceptors ? *s.interceptors : std::vector<std::shared_ptr<Interceptor>>();
  list.push_back(std::move(interceptor));
  s.interceptors = std::make_shared<const std::vector<std::shared_ptr<Interceptor>>>(std::move(list));
  s.has_interceptors = true;
}

void Agent::Impl::intercept(const std::function<void(Interceptor&)>& f) {
  std::shared_ptr<const std::vector<std::shared_ptr<Interceptor>>> list;
  {
    MutexLock lock(mutex);
    list = interceptors;
  }
  if (list)
    for (const auto& i : *list) f(*i);
}

void Agent::on_peer_lost(std::function<void(const WorkerInfo&, bool, const std::string&)> f) {
  MutexLock lock(impl_->mutex);
  impl_->lost_callbacks.push_back(std::move(f));
}

void Agent::add_shutdown_step(std::string name, std::function<void(TimePoint)> step) {
  MutexLock lock(impl_->mutex);
  impl_->shutdown_steps.emplace_back(std::move(name), std::move(step));
}

void Agent::on_stop(std::function<void()> f) {
  MutexLock lock(impl_->mutex);
  impl_->stop_callbacks.push_back(std::move(f));
}

void* Agent::slot(std::type_index type, std::shared_ptr<void> (*make)(Agent&)) {
  // recursive: a layer's constructor may request another layer
  const std::lock_guard lock(impl_->slot_mutex);
  const inner::KeepRunning whole;
  std::shared_ptr<void>& kept = impl_->slots[type];
  if (!kept) {
    std::shared_ptr<void> made = make(*this);
    return (impl_->slots[type] = std::move(made)).get();
  }
  return kept.get();
}

}  // namespace weft::rpc
