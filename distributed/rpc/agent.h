// The Agent: one worker of a group. It builds remote calls on the one-way messages of a Transport. Requests
// run at most once, replies arrive or fail by the deadline, and lost peers are detected by leases. Several
// agents may live in one process; the functions of rpc.h use a default agent. agent.cpp describes the
// protocol.
//
// Extension points for the layers above (remote references, distributed autograd):
//   agent->handle(Kind::kFork, handler)                    registers the handler of a request kind
//   agent->call(peer, Kind::kFork, message, options)       sends a request; the reply is a Future<Message>
//   agent->add_interceptor(mine)                           sees every request and reply with its tensors
//   Decoder::await, Encoder::on_settled                    for codecs: delay the function; report arrival
//   agent->watch(peer, +1), agent->on_peer_lost(f)         keeps a lease on a peer; reports its loss
//   agent->add_shutdown_step(...), agent->add_debug_info(...)
//   agent->slot<T>()                                       one object of a layer per agent
//
// Thread safety: every member may be called from any thread. The declarations of handlers and interceptors
// state their rules.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <typeindex>
#include <vector>

#include <weft/distributed/rpc/budget_limits.h>
#include <weft/distributed/rpc/function.h>
#include <weft/distributed/rpc/outside_context.h>
#include <weft/distributed/rpc/rpc_error.h>
#include <weft/distributed/wire/call_context.h>
#include <weft/distributed/wire/codec.h>
#include <weft/distributed/wire/device_map.h>
#include <weft/distributed/wire/member.h>

namespace weft::rpc {

/// Options of an agent. Durations have nanosecond resolution.
struct AgentOptions {
  std::string name{};
  WorkerId id{};
  /// Timeout of calls that set none; zero: no limit. The deadline of a served call caps it.
  Duration rpc_timeout = std::chrono::seconds(60);
  /// A peer with open calls, or a watched peer, counts as lost after this time of silence.
  Duration lease = std::chrono::seconds(10);
  /// Time without an answer after which the caller first asks the callee for the request's status. The pause
  /// between such questions grows up to eight times this value.
  Duration retry = std::chrono::milliseconds(250);
  /// Most requests of one peer that are open or have an unacknowledged reply. The next max(64, this) requests
  /// fail with Overloaded. Any beyond are dropped, and their caller resends them until its deadline.
  size_t max_served_per_peer = 1 << 20;
  BudgetLimits budget{};  ///< bytes of requests, results and arriving messages
  /// Function name -> names of the workers that may call it; "weft::fetch" and other names stand for requests
  /// that run no function (docs/rpc.md). Without an entry all workers may, unless deny_unlisted is set.
  std::map<std::string, std::vector<std::string>> allow{};
  bool deny_unlisted = false;
  /// For tensors with a graph that cross outside an autograd context (outside_context.h).
  OutsideContext outside_context = OutsideContext::kThrow;
  /// Target devices of tensors, by callee (device_map.h).
  DeviceMaps device_maps{};
  /// CUDA devices of this worker that its own and other workers' device maps may name; empty: any.
  std::vector<Device> devices{};
  /// Sends large tensors from device to device by CUDA IPC. Both workers must be on one host and allow it,
  /// and a trial at the start must succeed.
  bool cuda_ipc = false;
};

/// Options of one call.
struct CallOptions {
  /// Unset: the agent's default, capped by the deadline of the served call. Zero: no limit.
  std::optional<Duration> timeout{};
  /// Name of the call in errors and dumps: a text that outlives the call.
  const char* what = nullptr;
  /// A deadline in addition to the timeout; the earlier of both counts.
  TimePoint until = kNever;
};

/// A request for a handler. Inside the handler, current_context() has the agent, the caller's deadline and
/// the values set by interceptors.
struct Request {
  WorkerId from;
  Kind kind;
  Message message;
  Incarnation incarnation{};  ///< of the sender
  Life sender() const { return {from, incarnation}; }
};

/// The loss of a peer. `left`: the peer was shut down.
struct LostPeer {
  WorkerInfo info;
  Incarnation incarnation;
  bool left = false;
  std::string why;
  Life life() const { return {info.id, incarnation}; }
};

/// Answers one request, once, from any thread, during the handler or later. If destroyed without an answer,
/// it answers with an error.
class WEFT_API Responder {
 public:
  Responder() = default;
  Responder(Responder&&) noexcept = default;
  Responder& operator=(Responder&&) noexcept = default;
  ~Responder();
  /// Answers with a value or an error. Does not wait for the caller. A second answer has no effect.
  void reply(Message message) noexcept;
  void fail(std::exception_ptr error) noexcept;
  /// Answers with the outcome of a future when it is done; does not block.
  void reply_with(const Future<Message>& future);
  /// The context in which the handler runs; valid until the answer.
  const CallContext& context() const;
  /// Sets the function's name for dumps: a text that lives as long as the program.
  void describe(const char* what);

  struct Served;  ///< internal to the agent
  const std::shared_ptr<Served>& served() const { return served_; }
  explicit Responder(std::shared_ptr<Served> served) : served_(std::move(served)) {}

 private:
  std::shared_ptr<Served> served_;
};

/// Serves the requests of one kind. An exception of the handler becomes the answer.
using Handler = std::function<void(Request request, Responder responder)>;

/// A Finisher that answers a request with the function's result or error, or with the error of its encoding.
WEFT_API std::unique_ptr<Finisher> answer_with(Responder responder);

/// The thread of a handler.
enum class RunOn : uint8_t {
  kPool,       ///< the handler pool: the handler may block
  kTransport,  ///< the receiving thread: the handler must be short and must not block
};

/// Sees every request and reply of kinds >= kCall, on any thread. All functions must be short and must not
/// block. An exception fails the call.
class WEFT_API Interceptor {
 public:
  virtual ~Interceptor() = default;
  /// At the caller, before the request is sent, in the caller's thread and context. May replace tensors and
  /// add extensions. `what` (here and below): the name of the called function for texts; may be null.
  virtual void request_sending(Agent&, Life to, Kind, const char* what, Message&) { (void)to, (void)what; }
  /// At the callee, before the arguments are decoded. May replace tensors and change `context`, in which the
  /// handler will run.
  virtual void request_received(Agent&, Life from, Kind, Message&, CallContext& context) {
    (void)from, (void)context;
  }
  /// At the callee, before a reply that is not an error is sent. `context` is the handler's context, not the
  /// current one.
  virtual void reply_sending(Agent&, Life to, Kind, const char* what, Message&, const CallContext& context) {
    (void)to, (void)what, (void)context;
  }
  /// At the caller, before a reply that is not an error is decoded. `context` is the call's context, not the
  /// current one.
  virtual void reply_received(Agent&, Life from, Kind, Message&, const CallContext& context) {
    (void)from, (void)context;
  }
  /// A message that will not be decoded. If `outgoing`: at the caller, a request that is not sent. At the
  /// callee, a reply that cannot be sent, or whose caller gave up or is lost. If not: at the caller, a reply
  /// after its deadline. At the callee, a request refused before its arguments were decoded.
  virtual void discarded(Agent&, Life peer, Kind, const Message&, bool outgoing) {
    (void)peer, (void)outgoing;
  }
};

/// Takes the reply of a call in place of a Future. One of its functions is called, once, on any thread. The
/// functions must not block or throw.
class WEFT_API ReplySink {
 public:
  virtual ~ReplySink() = default;
  virtual void on_reply(Agent& agent, WorkerId from, Message message) noexcept = 0;
  virtual void on_error(std::exception_ptr error) noexcept = 0;
  /// An error of a request that the callee had begun to serve, such as an exception of the function.
  virtual void on_thrown(std::exception_ptr error) noexcept { on_error(std::move(error)); }
};

/// An open call for debugging: the waiting worker and the awaited one.
struct CallRecord {
  uint64_t sequence = 0;
  WorkerInfo peer;  ///< callee of an outgoing call, caller of a served call
  bool outgoing = true;
  std::string what;  ///< name of the function, or the kind
  Duration age{};
  uint64_t within = 0;  ///< outgoing: number of the served call that waits for it; 0: none
  uint64_t number = 0;  ///< served: its number on this worker
};

/// Options of shutdown.
struct ShutdownOptions {
  bool graceful = true;  ///< false: leave at once, without waiting for other workers and calls
  /// Limit of a graceful shutdown as a whole; zero: no limit.
  Duration timeout = Duration::zero();
  std::string caller = "shutdown";  ///< the text of a Timeout begins with it
};

/// One worker of a group; see the head of this file.
class WEFT_API Agent : public Endpoint, public std::enable_shared_from_this<Agent> {
 public:
  using TransportFactory = std::function<std::shared_ptr<Transport>(Receiver&)>;

  /// Makes an agent and its transport. It knows no peer until add_members.
  /// Throws: ValueError for a bad name, id, timeout, lease or retry, and for a function name registered
  /// twice; the factory's error.
  static std::shared_ptr<Agent> create(std::shared_ptr<Runtime> runtime, AgentOptions options,
                                       const TransportFactory& factory);
  /// Shuts down immediately, if there was no shutdown. Open calls and served requests hold a reference to
  /// their agent. If the last reference is dropped inside a callback, destruction moves to the pool; if the
  /// runtime has stopped, the agent leaks.
  ~Agent() override;

  // ---- members
  /// Name and id of this worker.
  const WorkerInfo& self() const;
  const std::shared_ptr<Runtime>& runtime() const override;
  Transport& transport();
  /// Name, id and addresses of this agent, for the rendezvous.
  Member as_member() const;
  /// Adds members of the group. A member with a new incarnation replaces the old member, which counts as
  /// lost.
  /// Throws: ValueError when two members share a name ("is not unique") or an id, or a name is
  /// bad; as Transport::add_peer.
  void add_members(const std::vector<Member>& members);
  /// Name and id of a member. Throws: ValueError "could not find destination" for a worker outside the group.
  WorkerInfo worker_info(const To& who) const;
  WorkerId worker_info_id(const To& who) const;
  /// All members, this worker included, by id.
  std::vector<WorkerInfo> worker_infos() const;

  // ---- calls
  /// The default timeout of calls; zero: no limit.
  Duration rpc_timeout() const;
  /// Sets the timeout of later calls; zero: no limit. Throws: ValueError when negative.
  void set_rpc_timeout(Duration timeout);
  /// Sends a request. It blocks only while the send queue of `to` is full, until the call's deadline. A
  /// request from outside a handler may first wait for credit, without blocking the thread (BudgetLimits).
  /// Throws: ValueError for an id out of range or a negative timeout. RpcError when the agent has stopped.
  /// Errors of the interceptors and of copies from devices. The future fails with the callee's error,
  /// Timeout, PeerLost, Cancelled, WireError for a message over the limits, or RpcError when this agent
  /// stops. A call to a life that has a successor fails with PeerLost and is not sent. A handler's call that
  /// sets no timeout is cancelled when the handler's caller has given up.
  Future<Message> call(Life to, Kind kind, Message message, CallOptions options = {});
  /// The same with a sink in place of the future. If it throws, the sink is not used. Returns the call's id,
  /// for cancel_call.
  CallId call(Life to, Kind kind, Message message, CallOptions options, std::unique_ptr<ReplySink> sink);
  bool cancel_call(const CallId& call) override;
  /// Registers the handler of a kind. Throws: ValueError for a kind that the agent uses itself, and for a
  /// kind that has a handler.
  void handle(Kind kind, RunOn where, Handler handler);
  /// Checks the allow list. Throws: NotAllowed.
  void check_allowed(const FunctionEntry& function, WorkerId caller) const;
  /// Calls `run` with the first error of `awaited`, or null, when all are done. If `awaited` is empty it is
  /// called at once, else on the pool, in the current context.
  static void run_when(std::vector<Future<void>> awaited, std::function<void(std::exception_ptr error)> run);
  /// Adds an interceptor. Requests pass the interceptors in the order of their registration.
  void add_interceptor(std::shared_ptr<Interceptor> interceptor);

  // ---- devices
  /// Checks the device maps of all members against each other and against the machines of the members.
  /// Every member calls it after add_members. It does nothing if no member has a map. Blocks for at
  /// most `timeout` per gather; zero: the default timeout. Throws, the same on every worker: ValueError
  /// for maps that do not fit the group; DeviceError for a missing device. Both name the workers and
  /// devices. Also throws as gather.
  void agree_on_devices(Duration timeout = std::chrono::seconds(0));
  /// The device of `to` for a tensor on `source`. Arguments follow this worker's map, results the reversed
  /// map of the caller. `unmapped_to_cpu`: as Encoder::unmapped_to_cpu. Throws: DeviceError that names the
  /// device and the worker, and shows the missing entry.
  Device target_device(WorkerId to, bool reply, Device source, bool unmapped_to_cpu = false) const override;

  // ---- liveness
  /// The life of this worker.
  Life life() const;
  /// The current life of a peer; its incarnation is 0 until it is known.
  Life life_of(WorkerId peer) const;
  /// Adds `delta` to the watch count of a life. A peer with a count above zero stays under lease even
  /// without open calls. Does nothing for a life that has a successor.
  void watch(Life peer, int delta);
  /// True after the loss of this life, or after it has left.
  bool is_lost(Life peer) const;
  /// Registers a callback for lost peers and for peers that left by shutdown. It runs on the pool, once per
  /// life of a peer, and may block.
  void on_peer_lost(std::function<void(const LostPeer& peer)> f);
  /// Counts a peer as lost, as if its lease had expired.
  void declare_lost(WorkerId peer, const std::string& why);
  /// Reports that the process of a life has ended. The life counts as lost at once, if this agent has heard
  /// from it or holds anything for it. Does nothing for a life that is lost already.
  void process_ended(Life peer);

  // ---- collective calls
  /// Blocks until every worker of `names` (empty: all living) has called it, for at most `timeout`; zero: the
  /// default timeout. Throws: Timeout that names the missing workers; PeerLost; RpcError after shutdown.
  /// ValueError for a name outside the group, or when this worker is not named.
  void barrier(std::vector<std::string> names = {}, Duration timeout = std::chrono::seconds(0));
  /// The same; returns every worker's message by name.
  std::map<std::string, Message> gather(Message mine, std::vector<std::string> names = {},
                                        Duration timeout = std::chrono::seconds(0));

  // ---- shutdown
  /// Graceful: this worker becomes passive. It blocks until every living member is passive, all calls have
  /// ended and the layers' shutdown steps have run; then it leaves. If another thread is in shutdown, it
  /// waits for that shutdown and has the same outcome. Immediate: leaves now. Every open call fails; later
  /// calls throw. Idempotent. A handler or a shutdown step must not call it: it would wait for itself.
  /// Throws, after having left: Timeout that names the awaited workers or calls. PeerLost that names all lost
  /// members when the last active member was lost, with the same text on every survivor.
  void shutdown(ShutdownOptions options = {});
  /// Ends the current or next graceful shutdown without waiting for the other workers. Does not block. May be
  /// called from any thread and from handlers.
  void stop_serving();
  /// True after stop_serving.
  bool told_to_stop() const;
  /// False after shutdown has ended the agent.
  bool is_running() const;
  /// Adds a step of the graceful shutdown. Steps run in the order of registration, when every worker is
  /// passive and no call is open; after each step the group waits again. A step runs in the agent's context
  /// and may block until `deadline`.
  void add_shutdown_step(std::string name, std::function<void(TimePoint deadline)> step);
  /// Registers a callback for the end of the agent, graceful or not. It runs after the open calls have failed
  /// and must not block.
  void on_stop(std::function<void()> f);

  // ---- debugging
  /// Counters such as "agent.client_active_calls"; agent_debug.cpp lists them.
  std::map<std::string, int64_t> debug_info() const;
  /// Registers a function that adds counters to debug_info.
  void add_debug_info(std::function<void(std::map<std::string, int64_t>&)> f);
  /// Every open call, outgoing and served.
  std::vector<CallRecord> calls() const;
  /// The open calls as text, one per line: "waits 120 ms for 'f' on worker 'b' (inside 'g' called
  /// by worker 'a')".
  std::string dump() const;

  /// The agent's object of type T, made by T(Agent&) at the first request and destroyed with the agent.
  template <class T> T& slot() {
    return *static_cast<T*>(
        slot(typeid(T), [](Agent& a) -> std::shared_ptr<void> { return std::make_shared<T>(a); }));
  }

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  Agent(std::shared_ptr<Runtime> runtime, AgentOptions options);
  void* slot(std::type_index type, std::shared_ptr<void> (*make)(Agent&));
  std::exception_ptr leave_together(TimePoint deadline, const std::string& caller);
  std::exception_ptr join_shutdown(TimePoint deadline, const std::string& caller);
  void linger(TimePoint deadline);
  void stop();
  std::unique_ptr<Impl> impl_;
};

/// The agent of an Encoder or Decoder; null without one.
inline Agent* agent_of(Endpoint* endpoint) { return static_cast<Agent*>(endpoint); }

}  // namespace weft::rpc
