// The public functions of RPC.
//
//   rpc::init_rpc("worker0", {.rank = 0, .world_size = 2});          // or all from the environment: rpc::init_rpc("worker0")
//   Tensor y = rpc::rpc_sync<my_add>("worker1", a, b);
//   Future<Tensor> f = rpc::rpc_async<my_add>({"worker1", 500ms}, a, b);
//   rpc::shutdown();
//
// They use the agent of the current scope (a handler's own, AgentScope), else the default agent made by init_rpc. Calls to oneself are
// allowed and go through serialisation like any other. A call's storages are not copied before the send: do not write to an argument
// until the call is done (an optimizer step of weft writes elsewhere while a parameter is under way).
// Timeouts are the caller's alone: the callee goes on, its late answer is dropped; what it calls itself without a time of its own ends
// by the same deadline.
// Thread safety: all functions from any thread.
#pragma once

#include <weft/distributed/agent.h>
#include <weft/distributed/builtin.h>
#include <weft/distributed/call_context.h>
#include <weft/distributed/function.h>
#include <weft/distributed/future.h>
#include <weft/distributed/grpc_transport.h>

namespace weft::rpc {

struct InitOptions {
  int rank = -1;              ///< negative: from the environment (RANK, ...)
  int world_size = -1;        ///< negative: from the environment (WORLD_SIZE, ...)
  std::string master_addr{};  ///< empty: MASTER_ADDR
  int master_port = -1;       ///< negative: MASTER_PORT
  /// Where this worker listens, "host:port"; empty: any port of the loopback, or of all interfaces when the master is elsewhere. A unix
  /// socket is there beside it and preferred between workers of one host.
  std::string listen{};
  bool unix_socket = true;      ///< false: TCP also between workers of one host
  int num_worker_threads = 16;  ///< functions that may compute at once; blocked ones do not count
  Duration rpc_timeout = std::chrono::seconds(60);
  Duration init_timeout = std::chrono::seconds(60);
  Duration lease = std::chrono::seconds(10);
  std::optional<TlsOptions> tls{};  ///< for addresses other than loopback and unix sockets
  bool insecure = false;            ///< allows those without TLS
  std::map<std::string, std::vector<std::string>> allow{};  ///< as AgentOptions::allow
  bool deny_unlisted = false;
  /// Where tensors of devices go, by callee; checked across the workers when the group forms (device_map.h).
  DeviceMaps device_maps{};
  std::vector<Device> devices{};  ///< CUDA devices of this worker that maps may name; empty: any
  bool cuda_ipc = false;          ///< as AgentOptions::cuda_ipc

  /// Adds to device_maps. Throws: ValueError unless the map stays one to one.
  InitOptions& set_device_map(const std::string& callee, const DeviceMap& map) {
    device_maps.set(callee, map);
    return *this;
  }
};

/// Joins the group and makes the default agent. Blocks until all `world_size` workers have joined.
/// Throws: RpcError "RPC is already initialized"; ValueError for bad names, ranks, or a name that "is not unique"; Timeout that names the
/// ranks still missing; RpcError for an address in use; on every worker, ValueError for device maps that do not fit the group and DeviceError for a
/// device that is not there.
WEFT_API void init_rpc(const std::string& name, InitOptions options = {});

/// Leaves the group. Graceful: waits for all workers and for all calls. Afterwards every function throws "RPC has not been initialized".
/// Throws: Timeout that names who it waited for (the agent is stopped all the same).
WEFT_API void shutdown(ShutdownOptions options = {});

/// The worker of that name, rank or info; without an argument this worker. Throws: ValueError "could not find destination".
WEFT_API WorkerInfo get_worker_info();
WEFT_API WorkerInfo get_worker_info(const To& who);
WEFT_API std::vector<WorkerInfo> get_worker_infos();

/// Blocks until every named worker (none: all of the group) is here. Zero: the agent's default timeout. Throws: Timeout, PeerLost.
WEFT_API void barrier(std::vector<std::string> names = {}, Duration timeout = std::chrono::seconds(0));
/// Every worker's value by name, on every worker.
template <Wire T>
std::map<std::string, T> all_gather(const T& value, std::vector<std::string> names = {},
                                    Duration timeout = std::chrono::seconds(0));

WEFT_API Duration get_rpc_timeout();
WEFT_API void set_rpc_timeout(Duration timeout);
WEFT_API std::map<std::string, int64_t> debug_info();

/// Runs F(args...) on `to`; gives its result. Throws: what the function threw there (see rpc_error.h), Timeout, PeerLost, UnknownFunction,
/// SignatureMismatch, NotAllowed.
template <auto F, class... Args>
auto rpc_sync(const To& to, Args&&... args) -> typename detail::FunctionTraits<F>::Answer;

/// The same without waiting. Errors of the arguments and of the destination are thrown here, the others by the future.
template <auto F, class... Args>
auto rpc_async(const To& to, Args&&... args) -> Future<typename detail::FunctionTraits<F>::Answer>;

/// Every call made in a WaitAll's life by this thread with rpc_async is waited for by wait(); the first error is thrown, and the set is
/// forgotten whatever happened. The destructor forgets without waiting.
class WEFT_API WaitAll {
 public:
  WaitAll();
  ~WaitAll();
  WaitAll(const WaitAll&) = delete;
  void wait();
  void add(Future<void> done) { futures_.push_back(std::move(done)); }
  static WaitAll* current();

 private:
  std::vector<Future<void>> futures_;
  void* before_;
};

/// Makes a call of a typed function of any kind: `kind` Kind::kCall with [function, arguments], or what a layer above writes.
template <class R>
Future<R> send_call(Agent& agent, WorkerId to, Kind kind, Message message, CallOptions options);

}  // namespace weft::rpc

#include <weft/distributed/rpc_inl.h>
