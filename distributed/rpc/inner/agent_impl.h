// The implementation of Agent, shared by agent.cpp (creation, peers), agent_call.cpp (caller's side),
// agent_serve.cpp (callee's side), agent_liveness.cpp (time), agent_devices.cpp, agent_gather.cpp,
// agent_rounds.cpp, agent_shutdown.cpp and agent_debug.cpp. agent.cpp describes the protocol. Locks: `mutex`
// (members and lists) and one `Peer::mutex` per peer. A thread holds one of them at a time, and none while it
// calls sinks, handlers, interceptors or the transport.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <unordered_map>

#include <weft/distributed/rpc/agent.h>
#include <weft/distributed/rpc/served_errors.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/distributed/wire/inner/lending.h>
#include <weft/distributed/wire/inner/staging.h>
#include <weft/distributed/wire/inner/streams.h>
#include <weft/distributed/wire/inner/wire_format.h>

namespace weft::rpc {

/// The set of finished requests of one caller: all below `horizon` except those in `open`. It only grows.
class FinishedSet {
 public:
  bool contains(uint64_t sequence) const {
    return sequence < horizon_ && !std::binary_search(open_.begin(), open_.end(), sequence);
  }
  /// The lowest number not known to be finished.
  uint64_t floor() const { return open_.empty() ? horizon_ : open_.front(); }
  /// Adds the contents of a status: all below `upto` are finished except `open` (sorted).
  void add(uint64_t upto, const std::vector<uint64_t>& open);
  /// Adds all below `floor`. True when the set grew.
  bool add_floor(uint64_t floor);

 private:
  uint64_t horizon_ = 1;
  std::vector<uint64_t> open_;
};

/// An open call at its caller.
struct PendingCall {
  Kind kind{};
  Message message;  ///< sealed, kept for resending
  CallContext context;
  Streams streams;  ///< current streams of the calling thread; the reply's tensors arrive in their order
  std::unique_ptr<ReplySink> sink;
  const char* what = nullptr;
  Duration timeout{};
  TimePoint deadline = kNever, started, sent;  ///< sent: time of the last transmission
};

/// A request at its callee, from its arrival until its caller has finished it.
struct Responder::Served {
  std::weak_ptr<Agent> agent;
  WorkerId from;
  uint64_t sequence = 0;
  Kind kind{};
  CallContext context;
  TimePoint started;
  std::atomic<bool> answered{false};
  std::atomic<const char*> what{nullptr};  ///< name of the function, for dumps
  std::atomic<bool> in_handler{false};     ///< false while unanswered: an asynchronous function has returned
  std::atomic<bool> abandoned{false};      ///< its responder was destroyed without an answer
  // guarded by the peer's mutex
  bool replied = false;   ///< `reply` is set
  bool finished = false;  ///< the caller needs no answer
  Message reply;
  TimePoint sent;
};
using Served = Responder::Served;

/// A worker of the group as this agent sees it.
struct Peer {
  explicit Peer(WorkerId peer_id) : id(peer_id) {}
  const WorkerId id;
  Mutex mutex;
  std::string name WEFT_GUARDED_BY(mutex);
  Incarnation incarnation WEFT_GUARDED_BY(mutex);
  bool known WEFT_GUARDED_BY(mutex) = false;  ///< a member, added by add_members
  bool lost WEFT_GUARDED_BY(mutex) = false;
  bool left WEFT_GUARDED_BY(mutex) = false;
  TimePoint last_heard WEFT_GUARDED_BY(mutex);  ///< time of its last message; of the loss, if there was none
  std::string why WEFT_GUARDED_BY(mutex);
  DevicePlan plan WEFT_GUARDED_BY(mutex);
  std::string host_key WEFT_GUARDED_BY(mutex);
  /// device of this worker -> device of the peer
  DeviceMap for_arguments WEFT_GUARDED_BY(mutex), for_results WEFT_GUARDED_BY(mutex);
  // as caller
  uint64_t next_sequence WEFT_GUARDED_BY(mutex) = 1;
  std::map<uint64_t, PendingCall> pending WEFT_GUARDED_BY(mutex);
  /// calls ended by their deadline; interceptors get their late replies
  std::set<uint64_t> given_up WEFT_GUARDED_BY(mutex);
  /// the floor that the peer has acknowledged by its answer to a status
  uint64_t told_floor WEFT_GUARDED_BY(mutex) = 1;
  uint64_t asked_floor WEFT_GUARDED_BY(mutex) = 1;  ///< the floor in the last status
  int tells WEFT_GUARDED_BY(mutex) = 0;             ///< unanswered statuses while no call was open
  // as callee
  std::unordered_map<uint64_t, std::shared_ptr<Served>> served WEFT_GUARDED_BY(mutex);
  FinishedSet finished WEFT_GUARDED_BY(mutex);
  // liveness
  int watchers WEFT_GUARDED_BY(mutex) = 0;
  TimePoint heard WEFT_GUARDED_BY(mutex), asked WEFT_GUARDED_BY(mutex);
  bool ask_now WEFT_GUARDED_BY(mutex) = false;
  Duration pause WEFT_GUARDED_BY(mutex){};

  uint64_t floor() const WEFT_REQUIRES(mutex) {
    return pending.empty() ? next_sequence : pending.begin()->first;
  }
};

struct GatherState;
struct RoundState;

/// Calls by which workers wait for each other. They do not count as open calls.
inline bool is_round(Kind kind) { return kind == Kind::kGather || kind == Kind::kRound; }

struct Counters {
  std::atomic<int64_t> calls{0}, served{0}, resent_requests{0}, resent_replies{0}, duplicates{0},
      late_replies{0}, asks{0}, lost_peers{0}, malformed{0}, timeouts{0}, active_client{0}, active_server{0},
      served_errors{0};
};

struct Agent::Impl final : Receiver {
  struct HandlerEntry {
    RunOn where;
    Handler handler;
  };

  Impl(std::shared_ptr<Runtime> rt, AgentOptions o)
      : runtime(std::move(rt)),
        options(std::move(o)),
        courier(std::make_shared<Courier>(runtime)),
        lending(options.cuda_ipc ? std::make_shared<Lending>() : nullptr),
        ended(*runtime, "the shutdown of a worker under way in another thread"),
        woken(*runtime, "the others, who are still active") {}

  // Receiver
  Block allocate(WorkerId from, uint8_t kind, const std::string& header, int64_t bytes,
                 int32_t device) override;
  void on_message(Inbound message) override;
  void on_peer(WorkerId peer, Incarnation incarnation, PeerState state, const std::string& reason) override;

  // agent.cpp
  Peer& peer(WorkerId id);  ///< creates it when missing. Throws: ValueError for an id out of range.
  Peer* find_peer(WorkerId id);
  std::vector<Peer*> all_peers();
  std::string peer_name(Peer& p);

  // agent_call.cpp
  void start(Agent& agent, Peer& p, Kind kind, Message message, const CallOptions& call_options,
             std::unique_ptr<ReplySink> sink);
  struct Outgoing {
    uint64_t sequence;
    Kind kind;
    TimePoint deadline;
  };
  void transmit(Peer& p, const Outgoing& call, std::string bytes, std::vector<Payload> payloads);
  void fail(Peer& p, uint64_t sequence, std::exception_ptr error);
  void discard(Peer& p, Kind kind, Message& message);
  void send(Peer& p, uint8_t kind, std::string bytes, std::vector<Payload> payloads = {});
  void on_reply(Peer& p, Kind kind, const Envelope& e, Inbound message);
  void end(Peer& p, PendingCall call, std::exception_ptr error);

  // agent_serve.cpp
  void on_request(Peer& p, Kind kind, const Envelope& e, Inbound message);
  void run(HandlerEntry& handler, Responder responder, Message message);
  void resend_reply(Peer& p, uint64_t sequence);
  void answer(const std::shared_ptr<Served>& served, Message message, bool error);
  void transmit(Peer& p, const std::shared_ptr<Served>& served, const Envelope& e, std::string bytes,
                std::vector<Payload> payloads);
  void replace_reply(Peer& p, const std::shared_ptr<Served>& served, Envelope e, std::exception_ptr error);
  void on_status(Peer& p, const std::string& header, const Envelope& e);
  void drop_finished(Peer& p, uint64_t upto, const std::vector<uint64_t>* open);

  // agent_liveness.cpp
  void schedule(TimePoint when);
  void tick();
  TimePoint tend(Peer& p, TimePoint now);
  void ask(Peer& p);
  void on_status_reply(Peer& p, const std::string& header, const Envelope& e);
  void lose(Peer& p, bool left_group, const std::string& reason);
  void fence(Peer& p);
  void on_fenced(Peer& p, const std::string& header, const Envelope& e);

  // agent_devices.cpp
  /// unseal(), and starts the completion of the arrival of device tensors.
  Message receive(Inbound inbound, const Envelope& e);
  /// seal(), with tensors lent to the peer where possible.
  void seal_for(Peer& p, Message& message);
  void add_plan(const Member& member);
  void agree_on_lending(Agent& agent, Duration timeout);
  DevicePlan plan() const { return {options.device_maps, options.devices, options.cuda_ipc}; }

  void intercept(const std::function<void(Interceptor&)>& f);

  const std::shared_ptr<Runtime> runtime;
  const AgentOptions options;
  const std::shared_ptr<Courier> courier;
  const std::shared_ptr<Lending> lending;  ///< null without AgentOptions::cuda_ipc
  WorkerInfo self;
  std::weak_ptr<Agent> owner;
  std::shared_ptr<Transport> transport;
  std::atomic<int64_t> rpc_timeout_ns{0};
  std::atomic<bool> running{false};
  std::atomic<bool> closing{false};       ///< a shutdown has begun
  Event ended;                            ///< the shutdown is done
  std::atomic<bool> told_to_stop{false};  ///< stop_serving was called
  Event woken;                            ///< set by stop_serving and by the answer of a round
  std::atomic<uint64_t> next_served{1};
  Counters counters;

  std::array<std::atomic<HandlerEntry*>, 128> handlers{};
  std::atomic<bool> has_interceptors{false};
  std::atomic<bool> has_device_maps{false};  ///< a device map concerns this worker

  Mutex mutex;
  std::unordered_map<int32_t, std::unique_ptr<Peer>> peers WEFT_GUARDED_BY(mutex);
  std::unordered_map<std::string, int32_t> ids_by_name WEFT_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<HandlerEntry>> handler_list WEFT_GUARDED_BY(mutex);
  std::shared_ptr<const std::vector<std::shared_ptr<Interceptor>>> interceptors WEFT_GUARDED_BY(mutex);
  std::vector<std::function<void(const WorkerInfo&, bool, const std::string&)>> lost_callbacks
      WEFT_GUARDED_BY(mutex);
  std::vector<std::pair<std::string, std::function<void(TimePoint)>>> shutdown_steps WEFT_GUARDED_BY(mutex);
  std::vector<std::function<void()>> stop_callbacks WEFT_GUARDED_BY(mutex);
  std::vector<std::function<void(const ServedError&)>> served_error_callbacks WEFT_GUARDED_BY(mutex);
  std::exception_ptr shutdown_failure WEFT_GUARDED_BY(mutex);  ///< of the graceful shutdown
  std::vector<std::function<void(std::map<std::string, int64_t>&)>> debug_callbacks WEFT_GUARDED_BY(mutex);
  std::recursive_mutex slot_mutex;
  std::map<std::type_index, std::shared_ptr<void>> slots;  ///< under slot_mutex
  std::shared_ptr<GatherState> gathers;
  std::shared_ptr<RoundState> rounds;

  Mutex timer_mutex;
  TimerId timer WEFT_GUARDED_BY(timer_mutex);
  TimePoint timer_at WEFT_GUARDED_BY(timer_mutex) = kNever;
};

/// Encodes an exception as the message of a reply.
Message error_message(const std::exception_ptr& error);
/// agent_gather.cpp: fails the gathers that wait for a lost peer.
void gather_peer_lost(Agent::Impl& impl, const WorkerInfo& peer, bool left, const std::string& why);

void stop_gathers(Agent::Impl& impl);

/// The leader's answer to a round, the same for every worker (agent_rounds.cpp).
struct RoundAnswer {
  bool failed = false;            ///< first round: the last active member was lost
  std::string peer{}, text{};     ///< then: the name of that member, and the text with all lost members
  int64_t begun = 0, active = 0;  ///< sums over all workers in the round: calls begun, calls open
};
WEFT_FIELDS(RoundAnswer, failed, peer, text, begun, active)

/// Thrown when stop_serving ends a wait for the other workers; never leaves Agent::shutdown.
struct ToldToStop {};

/// The rounds of one passive worker.
class Rounds {
 public:
  Rounds(Agent& agent, TimePoint deadline);
  /// Blocks until every living member is in this round. Throws: Timeout that names the
  /// missing ones; ToldToStop.
  const RoundAnswer& next();

 private:
  Message request(bool asks) const;
  std::string waits_for(WorkerId leader);
  Agent& agent_;
  const TimePoint deadline_, passive_;
  uint64_t number_ = 0;
  RoundAnswer last_;
};

/// Leader: answers the current round if every living member has requested it.
void decide_round(Agent::Impl& impl);
void stop_rounds(Agent::Impl& impl);
/// Number of workers that this one, as the leader, has heard to be passive.
size_t count_passive(Agent::Impl& impl);

}  // namespace weft::rpc
