// The agent: its life and its peers. The protocol between two agents, each step cited by the code that does it:
//
//  1. A request has a sequence number, counted up per ordered pair of workers; with the incarnation that the transport vouches for it
//     names the request for ever. The caller keeps the sealed message until the call has ended.
//  2. The callee notes every request it has seen and has not been told to forget. A second copy never runs: if the answer is there it is
//     sent again, else the copy is dropped. So a function runs at most once, whatever the network does. [G: at most once]
//  3. An answer (value or error) is kept until its caller says that it has finished the request.
//  4. Every message tells a floor: all of the sender's own requests below it are finished. What is below can be forgotten by the callee,
//     and a late copy of it is recognised by its number.
//  5. A caller that has waited longer than `retry` asks: a status lists the requests that are open (what is not listed is finished).
//     The callee sends again the answers it has, and replies with the list of requests it never saw; those the caller sends again. So no
//     loss is fatal while both live, and a large argument is sent again only if it was really lost. [G: retried until the deadline]
//  6. Deadlines are the caller's: it ends the call with Timeout, and says with the next floor or status that it is finished. A reply that
//     comes later is given to the interceptors' discarded() and dropped. What is left of the deadline travels with the request.
//  7. A peer is under lease while calls are open to it or a layer watches it: after silence it is asked as in 5, and when nothing was
//     heard for a lease it is lost; also at once when the transport says that it cannot be reached any more, and when it says goodbye.
//     A lost life stays lost: its messages are ignored, its open calls fail with PeerLost, the layers are told. [G: no call outlives
//     its peer by more than a lease] A restarted worker is another incarnation and joins by add_members.
//  8. Answers are decoded and futures completed on the thread that received them, never on a pool thread. So handlers that block in
//     nested calls cannot keep an answer from arriving; the pool makes up for blocked handlers. [G: depth x width cannot hang]
//  9. A graceful shutdown gathers from all workers (number of calls begun, number under way) until nothing is under way anywhere and no
//     call was begun between two rounds; then the layers' steps run, each followed by such rounds; then everyone leaves.
#include <weft/distributed/agent.h>

#include <algorithm>

#include <weft/autograd/grad_mode.h>
#include <weft/distributed/agent_impl.h>
#include <weft/distributed/builtin.h>
#include <weft/distributed/layers.h>
#include <weft/distributed/task_state.h>

namespace weft::rpc {

namespace {

/// Grad mode follows fibers in a simulation.
void register_grad_mode() {
  static const bool once = [] {
    register_thread_state({[] {
                             const AutogradState& s = autograd_state();
                             return static_cast<uint64_t>(s.grad_enabled) |
                                    static_cast<uint64_t>(s.inference) << 1 |
                                    static_cast<uint64_t>(s.anomaly) << 2;
                           },
                           [](uint64_t v) {
                             AutogradState& s = autograd_state();
                             s.grad_enabled = v & 1, s.inference = v & 2, s.anomaly = v & 4;
                           },
                           1});
    register_thread_state({[] { return reinterpret_cast<uint64_t>(autograd_state().current); },
                           [](uint64_t v) { autograd_state().current = reinterpret_cast<Node*>(v); }, 0});
    return true;
  }();
  (void)once;
}

bool in_callback() { return inner::current_state()->no_block != nullptr; }

/// Ends an agent on the pool; if the runtime stops first, where the task is dropped, unless that is a callback again.
struct Ending {
  explicit Ending(Agent* a) : agent(a) {}
  Ending(Ending&& other) noexcept : agent(std::exchange(other.agent, nullptr)) {}
  ~Ending() {
    if (!in_callback()) delete agent;
  }
  void operator()() { delete std::exchange(agent, nullptr); }
  Agent* agent;
};

/// The last reference to an agent has gone.
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
  const inner::KeepRunning whole;  // what is done once is done under locks of the language
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
  s.running = true;  // what the transport delivered before was dropped, and is asked for again
  agent->add_members({agent->as_member()});
  return agent;
}

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Agent::~Agent() {
  try {
    shutdown({.graceful = false});
  } catch (...) {  // a destructor never throws; everything that can end has ended
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
  const std::lock_guard lock(
      impl_->slot_mutex);  // recursive: a layer's constructor may ask for another layer
  const inner::KeepRunning whole;
  std::shared_ptr<void>& kept = impl_->slots[type];
  if (!kept) {
    std::shared_ptr<void> made = make(*this);
    return (impl_->slots[type] = std::move(made)).get();
  }
  return kept.get();
}

}  // namespace weft::rpc
