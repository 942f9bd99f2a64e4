// The Agent: one worker of a group. It turns one-way messages of a Transport into calls: requests that run at most once, replies that
// come or fail by the deadline, peers that are alive or lost. Several agents may live in one process; rpc.h puts the public functions
// over a default one. The protocol is told at the head of agent.cpp.
//
// Seams for the layers above (references, distributed autograd):
//   agent->handle(Kind::kFork, handler)                    what to do with a request of a kind
//   agent->call(peer, Kind::kFork, message, options)       a request; the reply as a Future<Message>
//   agent->add_interceptor(mine)                           sees every request and reply, sent and received, with its tensors
//   Decoder::await, Encoder::on_settled                    codecs: start the function only when ..., know when it has arrived
//   agent->watch(peer, +1), agent->on_peer_lost(f)         keep a lease on a peer, hear of its end
//   agent->add_shutdown_step(...), agent->add_debug_info(...)
//   agent->slot<T>()                                       one object of a layer per agent
//
// Thread safety: every member from any thread. What handlers and interceptors must keep to is said at each.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <typeindex>
#include <vector>

#include <weft/distributed/codec.h>
#include <weft/distributed/device_map.h>
#include <weft/distributed/function.h>
#include <weft/distributed/member.h>
#include <weft/distributed/rpc_error.h>

namespace weft::rpc {

struct AgentOptions {
  std::string name{};
  WorkerId id{};
  /// Of a call without a time of its own; zero: no limit. Cut to what is left of the call being served.
  Duration rpc_timeout = std::chrono::seconds(60);
  /// A peer that matters (calls outstanding, or watched) and is silent for this long is lost.
  Duration lease = std::chrono::seconds(10);
  /// How long after a request without an answer its callee is first asked; the pause grows to eight times this.
  Duration retry = std::chrono::milliseconds(250);
  /// Replies kept for a peer that has not acknowledged them; a peer beyond this is refused with Overloaded.
  size_t max_served_per_peer = 1 << 20;
  /// Function name -> names of the workers that may call it. A function without an entry may be called by all, unless deny_unlisted.
  std::map<std::string, std::vector<std::string>> allow{};
  bool deny_unlisted = false;
  /// Where tensors of devices go, by callee (device_map.h).
  DeviceMaps device_maps{};
  /// CUDA devices of this worker that maps may name, its own and others'; empty: any.
  std::vector<Device> devices{};
  /// Large tensors go from device to device by CUDA IPC between workers of one host that both allow it, where a trial at the start succeeds.
  bool cuda_ipc = false;
};

struct CallOptions {
  /// Unset: the agent's default, cut to what is left of the call being served. Zero: no limit.
  std::optional<Duration> timeout{};
  /// Names the call in errors and dumps; a literal or text that outlives the call.
  const char* what = nullptr;
};

/// A request as a handler sees it. Inside, current_context() has the agent, the caller's deadline, and what interceptors set.
struct Request {
  WorkerId from;
  Kind kind;
  Message message;
};

/// Answers one request, once, from any thread, now or later. Dropped unused, it answers with an error.
class WEFT_API Responder {
 public:
  Responder() = default;
  Responder(Responder&&) noexcept = default;
  Responder& operator=(Responder&&) noexcept = default;
  ~Responder();
  void reply(Message message) noexcept;
  void fail(std::exception_ptr error) noexcept;
  /// Answers with the outcome of a future.
  void reply_with(const Future<Message>& future);
  /// The context in which the handler runs; not after the answer.
  const CallContext& context() const;
  /// Names what is served, for dumps; a literal or text that outlives the program.
  void describe(const char* what);

  struct Served;  ///< of the agent's own
  const std::shared_ptr<Served>& served() const { return served_; }
  explicit Responder(std::shared_ptr<Served> served) : served_(std::move(served)) {}

 private:
  std::shared_ptr<Served> served_;
};

/// What a kind of request does. What it throws is the answer.
using Handler = std::function<void(Request request, Responder responder)>;

/// Sends what a function returned as the answer of a request; an error, and a result that does not encode, likewise.
WEFT_API std::unique_ptr<Finisher> answer_with(Responder responder);

/// Where a handler runs.
enum class RunOn : uint8_t {
  kPool,       ///< on the pool: it may block
  kTransport,  ///< on the thread that received it: short, must not block
};

/// Sees every request and reply of kinds >= kCall. All calls must be short and must not block; what they throw fails the call.
class WEFT_API Interceptor {
 public:
  virtual ~Interceptor() = default;
  /// Caller, before the request goes out: in the caller's thread and context. May replace tensors and add extensions. `what` (here and below):
  /// the name of what is called, for people; may be null.
  virtual void request_sending(Agent&, WorkerId to, Kind, const char* what, Message&) {
    (void)to, (void)what;
  }
  /// Callee, before the arguments are decoded. May replace tensors and set parts of `context`, in which the handler will run.
  virtual void request_received(Agent&, WorkerId from, Kind, Message&, CallContext& context) {
    (void)from, (void)context;
  }
  /// Callee, before the answer goes out (not for errors). `context` is that of the handler; not current.
  virtual void reply_sending(Agent&, WorkerId to, Kind, const char* what, Message&,
                             const CallContext& context) {
    (void)to, (void)what, (void)context;
  }
  /// Caller, before the answer is decoded (not for errors). `context`: in which the call was made; not current.
  virtual void reply_received(Agent&, WorkerId from, Kind, Message&, const CallContext& context) {
    (void)from, (void)context;
  }
  /// A message that nobody will decode: a reply after its deadline (at the caller), a reply whose caller gave up or is lost
  /// (`outgoing`, at the callee), a request refused before its arguments were decoded (at the callee).
  virtual void discarded(Agent&, WorkerId peer, Kind, const Message&, bool outgoing) {
    (void)peer, (void)outgoing;
  }
};

/// Takes the answer of a call without a Future between: either function is called, once, by any thread; must not block or throw.
class WEFT_API ReplySink {
 public:
  virtual ~ReplySink() = default;
  virtual void on_reply(Agent& agent, WorkerId from, Message message) noexcept = 0;
  virtual void on_error(std::exception_ptr error) noexcept = 0;
};

/// A call under way, for people: who waits for whom.
struct CallRecord {
  uint64_t sequence = 0;
  WorkerInfo peer;  ///< callee of an outgoing call, caller of a served one
  bool outgoing = true;
  std::string what;  ///< function or kind
  Duration age{};
  uint64_t within = 0;  ///< outgoing: number of the served call that waits for it; 0: none
  uint64_t number = 0;  ///< served: its number here
};

struct ShutdownOptions {
  bool graceful = true;
  /// Of the whole of a graceful shutdown; zero: no limit.
  Duration timeout = std::chrono::seconds(300);
};

class WEFT_API Agent : public std::enable_shared_from_this<Agent> {
 public:
  using TransportFactory = std::function<std::shared_ptr<Transport>(Receiver&)>;

  /// Makes an agent and its transport. It knows no peer until add_members.
  /// Throws: ValueError for a bad name or id, or a function name registered twice; what the factory throws.
  static std::shared_ptr<Agent> create(std::shared_ptr<Runtime> runtime, AgentOptions options,
                                       const TransportFactory& factory);
  /// An immediate shutdown, if none was. Open calls, and requests being served, keep their agent; where the last reference goes with one
  /// of them in a callback, which must not wait for the end of its own transport, the runtime's pool ends the agent soon after (and when
  /// that runtime has been stopped already, nobody does).
  ~Agent();

  // ---- who
  const WorkerInfo& self() const;
  const std::shared_ptr<Runtime>& runtime() const;
  Transport& transport();
  /// How others reach this agent: for the rendezvous.
  Member as_member() const;
  /// Tells of the group. Throws: ValueError when two members share a name ("is not unique") or an id.
  void add_members(const std::vector<Member>& members);
  /// Throws: ValueError "could not find destination" for a worker that is not in the group.
  WorkerInfo worker_info(const To& who) const;
  WorkerId worker_info_id(const To& who) const;
  std::vector<WorkerInfo> worker_infos() const;

  // ---- calls
  Duration rpc_timeout() const;
  /// For calls made from now on. Throws: ValueError when negative.
  void set_rpc_timeout(Duration timeout);
  Future<Message> call(WorkerId to, Kind kind, Message message, CallOptions options = {});
  /// The same with the answer going to `sink`; a lost peer too is told to the sink. Throws, and leaves the sink unused: ValueError for an
  /// unknown worker or a negative time, RpcError when the agent has stopped, what an interceptor throws.
  void call(WorkerId to, Kind kind, Message message, CallOptions options, std::unique_ptr<ReplySink> sink);
  /// Throws: ValueError for a kind of the agent's own, or one that has a handler.
  void handle(Kind kind, RunOn where, Handler handler);
  /// Throws: NotAllowed by the allow list.
  void check_allowed(const FunctionEntry& function, WorkerId caller) const;
  /// Runs `run` here and now when nothing is awaited, else on the pool, in this context, once all are done; then with the first error or null.
  static void run_when(std::vector<Future<void>> awaited, std::function<void(std::exception_ptr error)> run);
  void add_interceptor(std::shared_ptr<Interceptor> interceptor);

  // ---- devices
  /// Checks the device maps of all members against each other and against the machines they run on. Every member calls it, after add_members; it does
  /// nothing when nobody has a map. Throws, the same on every worker: ValueError for maps that do not fit the group, DeviceError for a device
  /// that is not there; both name the workers and devices. Timeout, PeerLost as gather.
  void agree_on_devices(Duration timeout = std::chrono::seconds(0));
  /// The device of `to` for a tensor on `source`: for an argument by our map, for a result by the reversed one of the caller; `unmapped_to_cpu` as
  /// Encoder's. Throws: DeviceError that names the device, the worker and how to add the entry.
  Device target_device(WorkerId to, bool reply, Device source, bool unmapped_to_cpu = false) const;

  // ---- life
  /// While the count of a peer is above zero it is kept under lease even when nothing is outstanding.
  void watch(WorkerId peer, int delta);
  bool is_lost(WorkerId peer) const;
  /// Called on the pool, once per lost life of a peer; also for one that left by shutdown (`left`).
  void on_peer_lost(std::function<void(const WorkerInfo& peer, bool left, const std::string& why)> f);
  /// Counts a peer as gone, as if its lease had ended.
  void declare_lost(WorkerId peer, const std::string& why);

  // ---- together
  /// Blocks until every worker of `names` (empty: all) is here. Throws: Timeout naming who is missing; PeerLost.
  void barrier(std::vector<std::string> names = {}, Duration timeout = std::chrono::seconds(0));
  /// Every worker's message by name.
  std::map<std::string, Message> gather(Message mine, std::vector<std::string> names = {},
                                        Duration timeout = std::chrono::seconds(0));

  // ---- end
  /// Graceful: waits for all workers, all calls under way and the shutdown steps of the layers, then leaves; throws Timeout naming who or
  /// what it waited for, after having left all the same; beside one that is under way already it waits for that and has its outcome. Immediate: leaves now.
  /// Every open call fails; later ones throw. Idempotent. Not from a handler or a shutdown step, which it would wait for.
  void shutdown(ShutdownOptions options = {});
  bool is_running() const;
  /// Runs inside a graceful shutdown when every worker has come to it and no call is under way, in order of registration, then the group
  /// waits again. The context is that of the agent; may block until `deadline`.
  void add_shutdown_step(std::string name, std::function<void(TimePoint deadline)> step);
  /// Runs when the agent ends, graceful or not, after its calls have failed. Must not block.
  void on_stop(std::function<void()> f);

  // ---- looking in
  /// Counters, "agent.client_active_calls" and so on; see agent_debug.cpp for the list.
  std::map<std::string, int64_t> debug_info() const;
  void add_debug_info(std::function<void(std::map<std::string, int64_t>&)> f);
  std::vector<CallRecord> calls() const;
  /// Every call under way, one per line: "waits 120 ms for 'f' on worker 'b' (inside 'g' called by worker 'a')".
  std::string dump() const;

  /// The agent's object of type T, made by T(Agent&) when first asked for; destroyed with the agent.
  template <class T> T& slot() {
    return *static_cast<T*>(
        slot(typeid(T), [](Agent& a) -> std::shared_ptr<void> { return std::make_shared<T>(a); }));
  }

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit Agent(std::unique_ptr<Impl> impl);
  template <class T> std::map<std::string, T> gather_values(const T& mine, Duration timeout);
  void* slot(std::type_index type, std::shared_ptr<void> (*make)(Agent&));
  std::exception_ptr leave_together(TimePoint deadline);
  std::exception_ptr join_shutdown(TimePoint deadline);
  void linger(TimePoint deadline);
  void stop();
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::rpc
