// The parts of an Agent, in the order of their dependence. Each part has its header and its state; Agent
// hands the calls and messages to them. Locks: one mutex per Peer, and one in each table. A thread holds one
// of them at a time, and none while it calls sinks, handlers, interceptors or the transport. Two exceptions:
// PeerTable names a new peer under its own mutex, and Slots makes a layer's object under its mutex.
#pragma once

#include <weft/distributed/rpc/inner/gathers.h>
#include <weft/distributed/rpc/inner/liveness.h>
#include <weft/distributed/rpc/inner/rounds.h>

namespace weft::rpc {

/// The state of an agent's shutdown (agent_shutdown.cpp).
struct ShutdownState {
  explicit ShutdownState(Runtime& runtime)
      : ended(runtime, "the shutdown of a worker under way in another thread") {}
  std::atomic<bool> closing{false};  ///< a shutdown has begun
  Event ended;                       ///< the shutdown is done
  Registered<std::pair<std::string, std::function<void(TimePoint)>>> steps;
  Callbacks<> stop_callbacks;
  Mutex mutex;
  std::exception_ptr failure WEFT_GUARDED_BY(mutex);  ///< of the graceful shutdown
};

/// One object per type, made at its first use.
class Slots {
 public:
  void* get(Agent& agent, std::type_index type, std::shared_ptr<void> (*make)(Agent&));

 private:
  std::recursive_mutex mutex_;  ///< recursive: a layer's constructor may request another layer
  std::map<std::type_index, std::shared_ptr<void>> kept_;
};

struct Agent::Impl final : Receiver {
  Impl(Agent& agent, std::shared_ptr<Runtime> runtime, AgentOptions options);

  // Receiver
  Block allocate(WorkerId from, uint8_t kind, const std::string& header, int64_t bytes,
                 int32_t device) override;
  Block take(WorkerId from, uint8_t kind, const std::string& header, Block lent, int32_t device) override;
  void on_part(uint8_t kind, int64_t held, int64_t bytes) override;
  void on_part_end(uint8_t kind, int64_t held) override;
  void on_message(Inbound message) override;
  void on_unread(Inbound message) override;
  void on_peer(WorkerId peer, Incarnation incarnation, PeerState state, const std::string& reason) override;
  void on_failed_attempt(WorkerId peer, Incarnation incarnation, const std::string& reason) override;

  AgentCore core;
  PeerTable peers;
  Alarm alarm;
  Devices devices;
  Caller caller;
  Server server;
  Liveness liveness;
  Gathers gathers;
  RoundTable rounds;
  ShutdownState ending;
  Callbacks<std::map<std::string, int64_t>&> debug_callbacks;
  Slots slots;
};

// ---- agent_debug.cpp

/// All counters, those of add_debug_info() among them.
std::map<std::string, int64_t> counters_of(Agent::Impl& agent);
std::vector<CallRecord> open_calls(Agent::Impl& agent);
/// The open calls of the worker `name`, a line each.
std::string text_of(const std::vector<CallRecord>& all, const std::string& name);

// ---- agent_shutdown.cpp

/// Waits, at most until then, until the callers have the answers to all requests now being served. The call
/// that asked this worker to stop is one of them.
void answer_the_last(Agent& agent, TimePoint until);

}  // namespace weft::rpc
