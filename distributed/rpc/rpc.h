// The public functions of RPC: start and end of a group, remote calls, collective calls.
//
//   rpc::init_rpc("worker0", {.rank = 0, .world_size = 2});   // or rpc::init_rpc("worker0") alone
//   Tensor y = rpc::rpc_sync<my_add>("worker1", a, b);
//   Future<Tensor> f = rpc::rpc_async<my_add>({"worker1", 500ms}, a, b);
//   rpc::shutdown();                     // rpc::serve_until_done() in a worker that only serves
//
// They use the agent of the current scope (that of a handler or an AgentScope), else the default agent made
// by init_rpc. Calls to oneself are allowed and are serialised like any other. A call does not copy the
// storages of its arguments: do not write to an argument until the call is done. Parameters are an exception:
// a leaf is copied, and a concurrent optimizer writes to another storage. A timeout ends only the caller's
// wait: the callee continues and its late reply is dropped. Future::cancel does the same, but notifies the
// callee at once. A long function checks call_context().cancelled() and ends early. Nested calls of the
// callee that set no timeout end with the call that it serves. Thread safety: all functions may be called
// from any thread.
#pragma once

#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/rpc/builtin.h>
#include <weft/distributed/rpc/current_agent.h>
#include <weft/distributed/rpc/function.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/wire/call_context.h>
#include <weft/distributed/wire/future.h>

namespace weft::rpc {

/// Options of init_rpc; durations in nanoseconds or any std::chrono unit.
struct InitOptions {
  int rank = -1;              ///< negative: from the environment (RANK, ...)
  int world_size = -1;        ///< negative: from the environment (WORLD_SIZE, ...)
  std::string master_addr{};  ///< empty: MASTER_ADDR
  int master_port = -1;       ///< negative: MASTER_PORT
  /// An elastic group (launch/membership.h): this worker joins it now, without waiting for others. A `store`
  /// without a world_size means the same. rank, world_size and master are not used then.
  bool elastic = false;
  std::string store{};       ///< address of the store: "host:port", or "etcd://host:port,..." of a cluster
  bool serve_store = false;  ///< this worker serves the store at that address, and leaves last
  std::string store_log{};   ///< with serve_store: the log of the store, as StoreOptions::log
  /// Listening address of this worker, "host:port". Empty: any port of the loopback interface, or of all
  /// interfaces when the master is on another host.
  std::string listen{};
  bool unix_socket = true;     ///< prefer unix sockets between workers of one host; false: TCP only
  bool same_host_lane = true;  ///< as GrpcOptions::same_host_lane
  /// as GrpcOptions::shared_memory_bytes: memory for large tensors between workers of one host and user
  int64_t shared_memory_bytes = int64_t{256} << 20;
  Duration spin = std::chrono::microseconds(-1);  ///< as GrpcOptions::spin
  int num_worker_threads = 16;  ///< functions that may compute at once; blocked functions do not count
  Duration rpc_timeout = std::chrono::seconds(60);   ///< default timeout of calls; zero: no limit
  Duration init_timeout = std::chrono::seconds(60);  ///< limit of init_rpc
  Duration lease = std::chrono::seconds(10);         ///< as AgentOptions::lease
  std::optional<TlsOptions> tls{};                   ///< unset: WEFT_TLS_CA, WEFT_TLS_CERT, WEFT_TLS_KEY
  bool insecure = false;  ///< allows addresses beyond loopback without TLS; standard error lists them
  std::map<std::string, std::vector<std::string>> allow{};  ///< as AgentOptions::allow
  bool deny_unlisted = false;                               ///< as AgentOptions::deny_unlisted
  OutsideContext outside_context = OutsideContext::kThrow;  ///< as AgentOptions::outside_context
  /// Target devices of tensors, by callee; checked across the workers when the group forms (device_map.h).
  DeviceMaps device_maps{};
  std::vector<Device> devices{};  ///< CUDA devices of this worker that maps may name; empty: any
  bool cuda_ipc = false;          ///< as AgentOptions::cuda_ipc
  BudgetLimits budget{};          ///< bytes of requests, results and arriving messages
  WireLimits limits{};            ///< limits of one message and of the queue to one worker
  int max_unproven = 256;         ///< as GrpcOptions::max_unproven: unproven connections at the port

  /// Adds entries to device_maps. Throws: ValueError unless the map stays one to one.
  InitOptions& set_device_map(const std::string& callee, const DeviceMap& map) {
    device_maps.set(callee, map);
    return *this;
  }
};

/// Joins the group and makes the default agent. Blocks until all `world_size` workers have joined, for at
/// most init_timeout. In an elastic group it waits for no other worker, only for the end of an older life of
/// this name.
/// Throws: RpcError "RPC is already initialized", for an address in use, and at once for a host of master
/// or store that cannot be resolved. ValueError for bad names and ranks, or a name that "is not unique".
/// Timeout that names the missing ranks. On every worker: ValueError for device maps that do not fit the
/// group, DeviceError for a missing device.
WEFT_API void init_rpc(const std::string& name, InitOptions options = {});

/// Leaves the group when all members have finished. This worker becomes passive: it serves requests until
/// every living member is passive, then waits for all calls. It does not wait for lost members. In an elastic
/// group it waits only for its own calls and the requests under way here, and the other members continue.
/// Blocks for at most options.timeout; zero: no limit. Afterwards every function throws "RPC has not been
/// initialized".
/// Throws, with the agent stopped in any case: Timeout that names the awaited workers or calls. PeerLost that
/// names all lost members when the last active member was lost, the same on every survivor.
WEFT_API void shutdown(ShutdownOptions options = {});

/// Options of serve_until_done.
struct ServeOptions {
  Duration timeout = Duration::zero();  ///< zero: no limit
  /// SIGTERM ends the serving, unless the program handles or ignores that signal itself. False: SIGTERM keeps
  /// its usual effect.
  bool stop_on_sigterm = true;
};

/// For a worker that only serves: waits for the other workers like `shutdown` and leaves with them. Returns
/// false if stop_serving or SIGTERM ended it early. It has then answered the requests in progress and left
/// without waiting for the other workers. In an elastic group only stop_serving and SIGTERM end it.
/// Throws: as shutdown; Timeout that names the workers still active; Fenced (rpc/fenced.h).
WEFT_API bool serve_until_done(ServeOptions options = {});

/// Ends this worker's current or next serve_until_done or shutdown. Does not block. Inside a served function
/// it applies to the worker that serves it.
WEFT_API void stop_serving();

/// Name and id of a worker given by name, rank or info; without an argument, of this worker. Throws:
/// ValueError "could not find destination"; RpcError without an agent.
WEFT_API WorkerInfo get_worker_info();
WEFT_API WorkerInfo get_worker_info(const To& who);
/// All workers of the group, by rank.
WEFT_API std::vector<WorkerInfo> get_worker_infos();

/// Blocks until every worker of `names` (empty: all living) has called it. `timeout` zero: the default
/// timeout.
/// Throws: Timeout that names the missing workers; PeerLost; ValueError when this worker is not named.
WEFT_API void barrier(std::vector<std::string> names = {}, Duration timeout = std::chrono::seconds(0));
/// Every worker's value by name, on every worker. Blocks and throws as barrier.
template <Wire T>
std::map<std::string, T> all_gather(const T& value, std::vector<std::string> names = {},
                                    Duration timeout = std::chrono::seconds(0));

/// The default timeout of calls; zero: no limit. Throws (set): ValueError when negative.
WEFT_API Duration get_rpc_timeout();
WEFT_API void set_rpc_timeout(Duration timeout);
/// The agent's counters by name (rpc/agent_debug.cpp lists them).
WEFT_API std::map<std::string, int64_t> debug_info();

/// Runs F(args...) on `to` and returns the result. Blocks until the reply or the call's deadline. Throws: the
/// function's exception (see rpc_error.h), Timeout, PeerLost, UnknownFunction, SignatureMismatch, NotAllowed;
/// ValueError for an unknown worker.
template <auto F, class... Args>
auto rpc_sync(const To& to, Args&&... args) -> typename detail::FunctionTraits<F>::Answer;

/// The same without waiting for the reply. It throws errors of the arguments and of the destination; the
/// future throws all other errors.
template <auto F, class... Args>
auto rpc_async(const To& to, Args&&... args) -> Future<typename detail::FunctionTraits<F>::Answer>;

/// Collects the futures of this thread's rpc_async calls during its lifetime. wait() blocks until all are
/// done and forgets them. It throws their first error at once. The destructor does not wait.
/// Thread safety: one thread.
class WEFT_API WaitAll {
 public:
  WaitAll();
  ~WaitAll();
  WaitAll(const WaitAll&) = delete;
  /// Blocks until all are done, without a deadline; each call has its timeout. Throws: the first error of a
  /// call.
  void wait();
  /// Adds a future to collect.
  void add(Future<void> done) { futures_.push_back(std::move(done)); }
  /// The innermost WaitAll of this thread or fiber; null outside any.
  static WaitAll* current();

 private:
  std::vector<Future<void>> futures_;
  void* before_;
};

/// Sends a request of any kind and decodes its reply as an R. The message of Kind::kCall is [function,
/// arguments]; layers above write their own. Throws: as Agent::call.
template <class R>
Future<R> send_call(Agent& agent, Life to, Kind kind, Message message, CallOptions options);

}  // namespace weft::rpc

#include <weft/distributed/rpc/rpc_inl.h>
