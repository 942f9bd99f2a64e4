// init_rpc, shutdown and serve_until_done: the default agent with its own runtime, over gRPC. The
// rendezvous ends when all workers have each other's addresses; its port is free again then.
#include <algorithm>

#include <weft/distributed/launch/inner/process_watch.h>
#include <weft/distributed/launch/inner/sigterm.h>
#include <weft/distributed/launch/launch.h>
#include <weft/distributed/launch/rendezvous.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/address.h>

namespace weft::rpc {

namespace {

/// State from init_rpc until shutdown.
struct Session {
  Mutex mutex;
  bool busy WEFT_GUARDED_BY(mutex) = false;  ///< an init or a shutdown is under way
  std::shared_ptr<Runtime> runtime WEFT_GUARDED_BY(mutex);
  std::shared_ptr<inner::ProcessWatch> watch WEFT_GUARDED_BY(mutex);
};
Session& session() {
  static auto* s = new Session;
  return *s;
}

/// Refuses a second init or shutdown while one is running.
class Busy {
 public:
  Busy() {
    MutexLock lock(session().mutex);
    if (session().busy) throw RpcError("RPC is being initialized or shut down by another thread");
    session().busy = true;
  }
  ~Busy() {
    MutexLock lock(session().mutex);
    session().busy = false;
  }
  Busy(const Busy&) = delete;
};

constexpr Duration kLastMessages = std::chrono::milliseconds(800);

/// Tells the agent that the process of a peer has ended. The peer's last messages, perhaps a goodbye, are
/// read first: until its connection has ended, at most for kLastMessages.
void process_ended(const std::shared_ptr<Agent>& agent, Life peer) {
  const TimePoint until = agent->runtime()->now() + kLastMessages;
  try {
    while (!agent->is_lost(peer) && agent->transport().counters(peer.id).connected &&
           agent->runtime()->now() < until)
      agent->runtime()->sleep_for(std::chrono::milliseconds(5));
  } catch (const Error&) {  // the runtime has stopped
    return;
  }
  agent->process_ended(peer);
}

/// Watches the processes of all other members on this host.
std::shared_ptr<inner::ProcessWatch> watch_members(const std::shared_ptr<Agent>& agent,
                                                   const std::vector<Member>& members) {
  auto watch = std::make_shared<inner::ProcessWatch>();
  for (const Member& m : members) {
    if (m.process.empty() || m.id == agent->self().id) continue;
    const Life life(m.id, m.address.incarnation);
    watch->watch(m.process, [weak = std::weak_ptr<Agent>(agent), life] {
      if (const auto living = weak.lock())
        living->runtime()->post([weak, life] {
          if (const auto agent = weak.lock()) process_ended(agent, life);
        });
    });
  }
  return watch;
}

std::optional<int> given(int value) { return value >= 0 ? std::optional<int>(value) : std::nullopt; }

}  // namespace

void init_rpc(const std::string& name, InitOptions options) {
  const Busy busy;
  if (default_agent())
    throw RpcError(str("RPC is already initialized: this is worker '", default_agent()->self().name, "'"));
  check_worker_name(name);
  if (options.num_worker_threads < 1)
    throw ValueError(str("num_worker_threads is ", options.num_worker_threads, ", it must be at least 1"));
  if (options.rpc_timeout.count() < 0)
    throw ValueError(str("rpc_timeout is negative: ", options.rpc_timeout.count(), " ns"));
  LaunchOptions asked{.rank = given(options.rank),
                      .world_size = given(options.world_size),
                      .master_port = given(options.master_port)};
  if (!options.master_addr.empty()) asked.master_addr = options.master_addr;
  if (options.world_size == 1 && !asked.rank) asked.rank = 0;
  const LaunchInfo launch = launch_info(asked);

  const std::shared_ptr<Runtime> runtime = make_threaded_runtime({.threads = options.num_worker_threads});
  std::shared_ptr<Agent> agent;
  std::shared_ptr<inner::ProcessWatch> watch;
  try {
    const TimePoint deadline = runtime->now() + options.init_timeout;
    const bool alone = launch.world_size == 1;
    const auto meeting =
        alone ? nullptr
              : make_rendezvous(runtime, launch, {.tls = options.tls, .insecure = options.insecure});
    AgentOptions mine;
    mine.name = name;
    mine.id = WorkerId{launch.rank};
    mine.rpc_timeout = options.rpc_timeout;
    mine.lease = options.lease;
    mine.allow = std::move(options.allow);
    mine.deny_unlisted = options.deny_unlisted;
    mine.device_maps = std::move(options.device_maps);
    mine.devices = std::move(options.devices);
    mine.cuda_ipc = options.cuda_ipc;
    GrpcOptions wire;
    wire.id = mine.id;
    wire.tls = options.tls;
    wire.insecure = options.insecure;
    wire.unix_socket = options.unix_socket;
    wire.limits = options.limits;
    if (!options.listen.empty()) wire.listen = options.listen;
    else if (!is_loopback_host(launch.master_addr)) wire.listen = "0.0.0.0:0";
    agent = Agent::create(runtime, std::move(mine),
                          [&](Receiver& receiver) { return make_grpc_transport(runtime, wire, receiver); });
    std::exception_ptr refused;
    if (meeting) {
      // an error of the whole group: rank 0 keeps the store for a while, so that later workers get it too
      try {
        Member self = agent->as_member();
        self.process = inner::process_identity();
        const std::vector<Member> members = meeting->join(std::move(self), deadline);
        agent->add_members(members);
        watch = watch_members(agent, members);
      } catch (const ValueError&) {
        meeting->leave(std::min<TimePoint>(deadline, runtime->now() + std::chrono::seconds(30)));
        throw;
      } catch (const PeerLost&) {
        meeting->leave(std::min<TimePoint>(deadline, runtime->now() + std::chrono::seconds(5)));
        throw;
      }
    }
    try {
      agent->agree_on_devices(deadline - runtime->now());
    } catch (const Timeout&) {
      throw;
    } catch (const PeerLost&) {
      throw;
    } catch (...) {  // thrown after the barrier: every worker finds the same error before one of them leaves
      refused = std::current_exception();
    }
    if (meeting) {
      meeting->barrier("start", deadline);
      meeting->leave(deadline);
    }
    if (refused) std::rethrow_exception(refused);
  } catch (...) {
    if (watch) watch->stop();
    if (agent) agent->shutdown({.graceful = false});
    agent.reset();
    runtime->stop();
    throw;
  }
  {
    MutexLock lock(session().mutex);
    session().runtime = runtime;
    session().watch = watch;
  }
  set_default_agent(agent);
}

namespace {

/// Calls `leave`, then ends agent and runtime even if it throws.
template <class Leave> void end_session(const Leave& leave) {
  const Busy busy;
  const std::shared_ptr<Agent> agent = default_agent();
  if (!agent) throw RpcError("RPC has not been initialized: call rpc::init_rpc first");
  std::exception_ptr failure;
  try {
    leave(*agent);
  } catch (...) {
    failure = std::current_exception();
  }
  set_default_agent(nullptr);
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<inner::ProcessWatch> watch;
  {
    MutexLock lock(session().mutex);
    runtime.swap(session().runtime);
    watch.swap(session().watch);
  }
  if (watch) watch->stop();
  if (runtime) runtime->stop(std::chrono::seconds(agent->told_to_stop() ? 1 : 10));
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void shutdown(ShutdownOptions options) {
  end_session([&](Agent& agent) { agent.shutdown(options); });
}

bool serve_until_done(ServeOptions options) {
  bool told = false;
  end_session([&](Agent& agent) {
    std::optional<SigtermStops> stops;
    if (options.stop_on_sigterm) stops.emplace(agent);
    agent.shutdown({.timeout = options.timeout});
    told = agent.told_to_stop();
  });
  return !told;
}

void stop_serving() { current_agent()->stop_serving(); }

}  // namespace weft::rpc
