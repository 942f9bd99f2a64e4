// The caller's side of a call (agent.cpp, steps 1, 5, 6 and 8): its start, its repetition and its end. A call
// ends by the reply, the deadline, the loss of the peer or the end of the agent.
#pragma once

#include <weft/distributed/rpc/inner/alarm.h>
#include <weft/distributed/rpc/inner/devices.h>

namespace weft::rpc {

class Caller {
 public:
  Caller(AgentCore& core, PeerTable& peers, Devices& devices, Alarm& alarm);

  Duration timeout() const { return Duration(timeout_ns_.load(std::memory_order_relaxed)); }
  void set_timeout(Duration timeout) { timeout_ns_ = timeout.count(); }
  /// As Agent::call.
  CallId start(Life to, Kind kind, Message message, const CallOptions& call_options,
               std::unique_ptr<ReplySink> sink);
  /// As Agent::cancel_call.
  bool cancel(const CallId& call);
  /// Ends the open calls of functions whose caller has given up, and notifies their callees.
  void end_unneeded();
  /// The call that a reply ends.
  struct Answered {
    std::optional<PendingCall> call{};  ///< removed from the table
    bool late = false;                  ///< there is none: it had ended before
    std::string name{};                 ///< of the peer
  };
  /// Takes the call of a reply out of the peer's table. Neither call nor late: nothing waits for the reply.
  Answered take(Peer& p, Kind kind, const Envelope& e) WEFT_REQUIRES(p.mutex);
  /// Passes a reply to the sink of its call.
  void on_reply(Peer& p, Kind kind, const Envelope& e, Answered answered, Inbound message);
  /// The bytes of requests that a peer has room for, as Envelope::window. An error of a call that it starts
  /// ends here.
  void on_window(Peer& p, uint16_t packed) noexcept;
  /// Sends a status with the open calls, which the peer answers (step 5).
  void ask(Peer& p);
  void on_status_reply(Peer& p, const std::string& header, const Envelope& e);
  /// Ends a call that was removed from the peer's table. A null error: its deadline came.
  void end(Peer& p, PendingCall call, std::exception_ptr error);

 private:
  struct Outgoing {
    uint64_t sequence;
    Kind kind;
    TimePoint deadline;
  };
  void transmit(Peer& p, const Outgoing& call, std::string bytes, std::vector<Payload> payloads);
  void record(Peer& p, const PendingCall& call, bool ok);
  void fail(Peer& p, uint64_t sequence, std::exception_ptr error);
  void discard(Peer& p, Kind kind, Message& message);
  void send_status(Peer& p);
  std::exception_ptr timeout_error(Peer& p, const PendingCall& call);
  std::exception_ptr unneeded_error(Peer& p, const PendingCall& call);
  void tell_ended(Peer& p);
  void release(Peer& p, const PendingCall& call, int64_t bytes);
  void start_waiting();
  void start_now(Peer& p, uint64_t sequence);
  /// Prepares an open call for the next time it is sent: its numbers are those of `now`.
  void stamp_again(const Peer& p, uint64_t sequence, PendingCall& call, TimePoint now) WEFT_REQUIRES(p.mutex);
  void send_when_ready(Peer& p, const Outgoing& call, const std::shared_ptr<Staging>& staging);

  AgentCore& core_;
  PeerTable& peers_;
  Devices& devices_;
  Alarm& alarm_;
  std::atomic<int64_t> timeout_ns_;
};

}  // namespace weft::rpc
