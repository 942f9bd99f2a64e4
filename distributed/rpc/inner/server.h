// The callee's side of a call (agent.cpp, steps 2 to 5). It runs each request at most once, and keeps the
// answer until the caller has it.
#pragma once

#include <array>

#include <weft/distributed/rpc/inner/alarm.h>
#include <weft/distributed/rpc/inner/caller.h>
#include <weft/distributed/rpc/served_errors.h>

namespace weft::rpc {

class Server {
 public:
  Server(AgentCore& core, Devices& devices, Caller& caller, Alarm& alarm)
      : core_(core), devices_(devices), caller_(caller), alarm_(alarm) {}

  /// As Agent::handle.
  void handle(Kind kind, RunOn where, Handler handler);
  /// The record of a request that has arrived.
  struct Arrived {
    std::shared_ptr<Served> served{};  ///< null: the agent has ended
    enum class As : uint8_t { kDropped, kAgain, kRefused, kNew } as = As::kDropped;
    bool fenced = false;
    bool first = false;  ///< no other request of the caller is recorded
  };
  Arrived arrive(Life from, Kind kind, const Envelope& e);
  /// Puts the record into the caller's table, unless it is dropped. Without memory it counts as lost.
  void record(Peer& p, const Envelope& e, Arrived& arrived) WEFT_REQUIRES(p.mutex);
  void on_request(Peer& p, const Envelope& e, Arrived arrived, Inbound message);
  void on_status(Peer& p, const std::string& header, const Envelope& e);
  /// Keeps the answer of a request and sends it. A second answer has no effect. Without memory for the answer
  /// a request that was refused is forgotten, and the result of another one counts as dropped.
  void answer(const std::shared_ptr<Served>& served, Message message, bool error) noexcept;
  void answer(const std::shared_ptr<Served>& served, const std::exception_ptr& error) noexcept;
  /// Requests that were removed from their caller's table. The first has a separate place, since often there
  /// is only one.
  struct Dropped {
    std::shared_ptr<Served> first{};
    std::vector<std::shared_ptr<Served>> others{};
    bool gave_up = false;  ///< one was not answered yet
    int64_t freed = 0;
    void add(Peer& p, ServedRequests::iterator of) WEFT_REQUIRES(p.mutex);
  };
  /// Removes the requests that their caller has finished: all below `floor`.
  static void take_finished(Peer& p, uint64_t floor, Dropped& out) WEFT_REQUIRES(p.mutex);
  /// The same by `finished`, which has grown. `out` has room for all.
  static void take_all_finished(Peer& p, Dropped& out) WEFT_REQUIRES(p.mutex);
  /// Frees their replies. Exceptions of the callbacks are dropped here: a newer request may be recorded
  /// already.
  void forget(Peer& p, Dropped dropped) noexcept;
  /// Calls `error_callbacks` for a request that is not answered yet.
  void tell_error(const Served& served, const std::exception_ptr& error) noexcept;

  Callbacks<const ServedError&> error_callbacks;  ///< served_errors.h

 private:
  struct HandlerEntry {
    RunOn where;
    Handler handler;
  };
  void run(HandlerEntry& handler, Responder responder, Message message);
  void put_off(const std::shared_ptr<Served>& served);
  void forget(const std::shared_ptr<Served>& served);
  void give_answer(const std::shared_ptr<Served>& served, Message& message, bool error);
  int64_t end(const std::shared_ptr<Served>& served);
  void lose_answer(const std::shared_ptr<Served>& served, Message& message) noexcept;
  void refuse(Responder responder, const Message& message, const std::exception_ptr& error);
  void resend_reply(Peer& p, uint64_t sequence);
  void transmit(Peer& p, const std::shared_ptr<Served>& served, const Envelope& e, std::string bytes,
                std::vector<Payload> payloads);
  void drop_oldest(Peer& p, const Served& sent);
  bool drop_one(Peer& p, size_t but, bool left);
  Room make_room(Peer& p, int64_t bytes);
  void replace_reply(Peer& p, const std::shared_ptr<Served>& served, Envelope e, std::exception_ptr error);

  AgentCore& core_;
  Devices& devices_;
  Caller& caller_;
  Alarm& alarm_;
  std::atomic<uint64_t> next_served_{1};
  std::array<std::atomic<HandlerEntry*>, 128> handlers_{};
  Mutex mutex_;
  std::vector<std::unique_ptr<HandlerEntry>> handler_list_ WEFT_GUARDED_BY(mutex_);
};

/// True for a request that claims to be finished itself: such a floor counts for nothing.
inline bool finishes_itself(const Envelope& e) { return e.sequence != 0 && e.floor > e.sequence; }
/// Encodes an exception as the message of a reply.
Message error_message(const std::exception_ptr& error);
/// The error of a request whose responder was destroyed without an answer.
std::exception_ptr no_answer();
/// Frees the replies of requests that were removed from a peer's table: they did not arrive.
void drop_replies(Budget& budget, ServedRequests& served);

}  // namespace weft::rpc
