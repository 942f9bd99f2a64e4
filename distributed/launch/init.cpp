// init_rpc, shutdown and serve_until_done: the default agent with its own runtime, over gRPC. The
// rendezvous of a static group ends when all workers have each other's addresses; then its port is free
// again. A worker of an elastic group keeps its Membership (membership.h) as long as its agent.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

#include <weft/distributed/launch/inner/group_certificates.h>
#include <weft/distributed/launch/inner/process_watch.h>
#include <weft/distributed/launch/inner/serving.h>
#include <weft/distributed/launch/inner/sigterm.h>
#include <weft/distributed/launch/inner/store_variable.h>
#include <weft/distributed/launch/launch.h>
#include <weft/distributed/launch/membership.h>
#include <weft/distributed/launch/rendezvous.h>
#include <weft/distributed/launch/store_etcd.h>
#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/inner/unprotected.h>
#include <weft/kernels/cpu_settings.h>

namespace weft::rpc {

namespace {

constexpr char kEtcdScheme[] = "etcd://";

/// The watch of the members' processes on this host, and the product engines that the members have published.
/// The watch of a life ends with its loss.
struct MemberWatch {
  inner::ProcessWatch processes;
  Mutex mutex;
  std::map<Life, uint64_t> numbers WEFT_GUARDED_BY(mutex);
  std::set<std::string> other_engines WEFT_GUARDED_BY(mutex);  ///< that were reported to the user

  void end(Life life) {
    uint64_t number = 0;
    {
      MutexLock lock(mutex);
      const auto found = numbers.find(life);
      if (found == numbers.end()) return;
      number = found->second;
      numbers.erase(found);
    }
    processes.unwatch(number);
  }
};

/// State from init_rpc until shutdown.
struct Session {
  Mutex mutex;
  bool busy WEFT_GUARDED_BY(mutex) = false;  ///< an init or a shutdown is under way
  std::shared_ptr<Runtime> runtime WEFT_GUARDED_BY(mutex);
  std::shared_ptr<MemberWatch> watch WEFT_GUARDED_BY(mutex);
  std::shared_ptr<Membership> membership WEFT_GUARDED_BY(mutex);  ///< of an elastic group
  bool serves_store WEFT_GUARDED_BY(mutex) = false;
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

/// Tells the user that another member computes products by other engines than this worker: once for each
/// text.
void compare_engines(MemberWatch& watch, const Agent& agent, const Member& m) {
  const std::string own = product_engines();
  if (m.engines.empty() || m.engines == own || m.id == agent.self().id) return;
  {
    MutexLock lock(watch.mutex);
    if (!watch.other_engines.insert(m.engines).second) return;
  }
  std::fprintf(
      stderr,
      "weft: worker '%s' computes products by other engines (%s) than worker '%s' (%s), so bits of their "
      "results may differ\n",
      m.name.c_str(), m.engines.c_str(), agent.self().name.c_str(), own.c_str());
}

/// Watches the process of another member, if it is on this host.
void watch_member(MemberWatch& watch, const std::shared_ptr<Agent>& agent, const Member& m) {
  if (m.process.empty() || m.id == agent->self().id) return;
  const Life life(m.id, m.address.incarnation);
  const uint64_t number = watch.processes.watch(m.process, [weak = std::weak_ptr<Agent>(agent), life] {
    if (const auto living = weak.lock())
      living->runtime()->post([weak, life] {
        if (const auto agent = weak.lock()) process_ended(agent, life);
      });
  });
  if (number == 0) return;
  {
    MutexLock lock(watch.mutex);
    watch.numbers[life] = number;
  }
  if (agent->is_lost(life)) watch.end(life);  // its callback came before
}

std::optional<int> given(int value) { return value >= 0 ? std::optional<int>(value) : std::nullopt; }

/// Makes the agent of a worker over gRPC. `host`: where the group meets.
std::shared_ptr<Agent> make_agent(const std::shared_ptr<Runtime>& runtime, const std::string& name,
                                  WorkerId id, const InitOptions& options, const std::string& host) {
  AgentOptions mine;
  mine.name = name;
  mine.id = id;
  mine.rpc_timeout = options.rpc_timeout;
  mine.lease = options.lease;
  mine.allow = options.allow;
  mine.deny_unlisted = options.deny_unlisted;
  mine.outside_context = options.outside_context;
  mine.device_maps = options.device_maps;
  mine.devices = options.devices;
  mine.cuda_ipc = options.cuda_ipc;
  mine.budget = options.budget;
  GrpcOptions wire;
  wire.id = id;
  wire.tls = options.tls;
  wire.insecure = options.insecure;
  wire.unix_socket = options.unix_socket;
  wire.same_host_lane = options.same_host_lane;
  wire.shared_memory_bytes = options.shared_memory_bytes;
  wire.spin = options.spin;
  wire.limits = options.limits;
  wire.max_unproven = options.max_unproven;
  wire.progress_timeout = options.lease;
  if (!options.listen.empty()) wire.listen = options.listen;
  else if (!is_loopback_host(host)) wire.listen = "0.0.0.0:0";
  return Agent::create(runtime, std::move(mine),
                       [&](Receiver& receiver) { return make_grpc_transport(runtime, wire, receiver); });
}

/// The members of etcd in "etcd://host:port,host:port/prefix"; empty: the store is one of weft's own.
std::string etcd_members(const std::string& store) {
  if (store.rfind(kEtcdScheme, 0) != 0) return "";
  const std::string rest = store.substr(std::strlen(kEtcdScheme));
  const std::string members = rest.substr(0, rest.find('/'));
  if (members.empty())
    throw ValueError(str("init_rpc: no member of etcd in the store's address '", store, "'"));
  return members;
}

/// A client of etcd, as etcd_members.
std::shared_ptr<Store> open_etcd(const std::shared_ptr<Runtime>& runtime, const InitOptions& options) {
  const std::string members = etcd_members(options.store);
  if (options.serve_store)
    throw ValueError(str("init_rpc: serve_store is not for a store of etcd, at '", options.store, "'"));
  EtcdOptions etcd{.runtime = runtime, .tls = options.tls, .insecure = options.insecure};
  const std::string prefix = options.store.substr(std::strlen(kEtcdScheme) + members.size());
  if (prefix.size() > 1) etcd.prefix = prefix.substr(1) + "/";
  return make_etcd_store(members, etcd);
}

/// Serves the store of an elastic group, or makes a client of it.
std::shared_ptr<Store> open_store(const std::shared_ptr<Runtime>& runtime, const InitOptions& options) {
  if (!etcd_members(options.store).empty()) return open_etcd(runtime, options);
  if (!options.serve_store) return connect_store(options.store, {runtime, options.tls, options.insecure});
  const HostPort where = parse_host_port(options.store);
  const GrpcOptions grpc{.id = WorkerId{0},
                         .listen = is_loopback_host(where.host) ? options.store : str("0.0.0.0:", where.port),
                         .unix_socket = false,
                         .tls = options.tls,
                         .insecure = options.insecure,
                         .connect_timeout = std::chrono::hours(1),
                         .admit_strangers = true,
                         .shared_poller = false};
  return make_store_server(
      *runtime, [&](Receiver& receiver) { return make_grpc_transport(runtime, grpc, receiver); },
      inner::store_of_group(options.store_log));
}

void join_elastic(const std::string& name, const InitOptions& options) {
  if (options.store.empty())
    throw ValueError(
        "init_rpc: an elastic group needs the address of its store, InitOptions::store or WEFT_STORE");
  const std::shared_ptr<Runtime> runtime = make_threaded_runtime({.threads = options.num_worker_threads});
  const auto watch = std::make_shared<MemberWatch>();
  try {
    JoinOptions joining{.name = name,
                        .process = inner::process_identity(),
                        .engines = product_engines(),
                        .store = options.store,
                        .deadline = runtime->now() + options.init_timeout};
    std::string first = etcd_members(options.store);  // where the others are, this worker is reached too
    first = first.empty() ? options.store : first.substr(0, first.find(','));
    const std::string host = parse_host_port(first).host;
    joining.make_agent = [&](WorkerId id) {
      auto agent = make_agent(runtime, name, id, options, host);
      agent->on_peer_lost([watch](const LostPeer& lost) { watch->end(lost.life()); });
      return agent;
    };
    joining.found = [watch](const std::shared_ptr<Agent>& agent, const Member& member) {
      watch_member(*watch, agent, member);
      compare_engines(*watch, *agent, member);
    };
    const auto membership = Membership::join(runtime, open_store(runtime, options), joining);
    set_default_agent(membership->agent());
    MutexLock lock(session().mutex);
    session().runtime = runtime;
    session().watch = watch;
    session().membership = membership;
    session().serves_store = options.serve_store;
  } catch (...) {
    watch->processes.stop();
    runtime->stop();
    throw;
  }
}

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
  if (!options.tls) options.tls = inner::tls_of_environment();
  inner::tell_unprotected(
      str("worker '", name, "'"), options.tls, options.insecure,
      options.tls ? "speak as any worker" : "read, change and forge them, and speak as any worker");
  const inner::UnprotectedTold told;
  if (options.store.empty() && !options.serve_store && (options.elastic || options.world_size < 0))
    options.store = inner::store_of_environment();
  if (!options.store_log.empty() && !options.serve_store)
    throw ValueError("init_rpc: store_log is for the worker that serves the store, by serve_store");
  if (options.elastic || (!options.store.empty() && options.world_size < 0))
    return join_elastic(name, options);
  if (!options.store.empty() || options.serve_store)
    throw ValueError(
        str("init_rpc: a static group has no store; "
            "for an elastic group give no world_size, or set elastic = true"));
  LaunchOptions asked{.rank = given(options.rank),
                      .world_size = given(options.world_size),
                      .master_port = given(options.master_port)};
  if (!options.master_addr.empty()) asked.master_addr = options.master_addr;
  if (options.world_size == 1 && !asked.rank) asked.rank = 0;
  const LaunchInfo launch = launch_info(asked);

  const std::shared_ptr<Runtime> runtime = make_threaded_runtime({.threads = options.num_worker_threads});
  std::shared_ptr<Agent> agent;
  std::shared_ptr<MemberWatch> watch;
  try {
    const TimePoint deadline = runtime->now() + options.init_timeout;
    const bool alone = launch.world_size == 1;
    const auto meeting =
        alone ? nullptr
              : make_rendezvous(runtime, launch, {.tls = options.tls, .insecure = options.insecure});
    agent = make_agent(runtime, name, WorkerId{launch.rank}, options, launch.master_addr);
    std::exception_ptr refused;
    if (meeting) {
      // an error of the whole group: rank 0 keeps the store for a while, so that later workers get it too
      try {
        Member self = agent->as_member();
        self.process = inner::process_identity();
        self.engines = product_engines();
        const std::vector<Member> members = meeting->join(std::move(self), deadline);
        agent->add_members(members);
        watch = std::make_shared<MemberWatch>();
        for (const Member& m : members) {
          watch_member(*watch, agent, m);
          compare_engines(*watch, *agent, m);
        }
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
    if (watch) watch->processes.stop();
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

/// The worker that serves the store leaves last: it waits until the others have left.
void wait_for_the_others(const Membership& membership, TimePoint deadline, const std::string& caller) {
  Runtime& runtime = *membership.agent()->runtime();
  while (membership.members().size() > 1) {
    if (runtime.now() >= deadline) {
      std::string names;
      for (const WorkerInfo& w : membership.members())
        if (w.id != membership.agent()->self().id) names += str(names.empty() ? "'" : ", '", w.name, "'");
      throw Timeout(str(caller, ": worker '", membership.agent()->self().name,
                        "' serves the store of the group, which still has ", names));
    }
    runtime.sleep_for(std::chrono::milliseconds(5));
  }
}

/// Leaves an elastic group; with `serves`, after a request to stop.
void leave_elastic(Membership& membership, const ShutdownOptions& options, bool serves, bool serves_store) {
  const std::shared_ptr<Agent> agent = membership.agent();
  const TimePoint deadline = options.timeout.count() > 0 ? agent->runtime()->now() + options.timeout : kNever;
  try {
    if (serves) membership.serve(deadline, options.caller);
    if (serves_store) wait_for_the_others(membership, deadline, options.caller);
    membership.leave(deadline, options.caller);
  } catch (...) {
    agent->shutdown({.graceful = false});
    throw;
  }
}

/// Calls `leave`, then ends agent and runtime even if it throws.
template <class Leave> void end_session(const ShutdownOptions& options, bool serves, const Leave& leave) {
  const Busy busy;
  const std::shared_ptr<Agent> agent = default_agent();
  if (!agent) throw RpcError("RPC has not been initialized: call rpc::init_rpc first");
  std::shared_ptr<Membership> membership;
  bool serves_store = false;
  {
    MutexLock lock(session().mutex);
    membership.swap(session().membership);
    serves_store = std::exchange(session().serves_store, false);
  }
  std::exception_ptr failure;
  try {
    leave([&] {
      if (membership && options.graceful) leave_elastic(*membership, options, serves, serves_store);
      else agent->shutdown(options);
    });
  } catch (...) {
    failure = std::current_exception();
  }
  set_default_agent(nullptr);
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<MemberWatch> watch;
  {
    MutexLock lock(session().mutex);
    runtime.swap(session().runtime);
    watch.swap(session().watch);
  }
  if (watch) watch->processes.stop();
  if (membership) membership->stop();
  if (runtime) runtime->stop(std::chrono::seconds(agent->told_to_stop() ? 1 : 10));
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void shutdown(ShutdownOptions options) {
  end_session(options, false, [](const auto& leave) { leave(); });
}

bool serve_until_done(ServeOptions options) { return inner::serve("serve_until_done", options); }

bool inner::serve(const char* caller, const ServeOptions& options) {
  bool told = false;
  end_session({.timeout = options.timeout, .caller = caller}, true, [&](const auto& leave) {
    const std::shared_ptr<Agent> agent = default_agent();
    std::optional<SigtermStops> stops;
    if (options.stop_on_sigterm) stops.emplace(*agent);
    leave();
    told = agent->told_to_stop();
  });
  return !told;
}

void stop_serving() { current_agent()->stop_serving(); }

}  // namespace weft::rpc
