// A receiver between the network and an agent, from which the planted faults and a check of the runs derive.
#pragma once

#include <weft/distributed/rpc/function.h>
#include <weft/distributed/wire/inner/wire_format.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "explore/explore.h"

namespace weft::explore {

using rpc::Envelope;
using rpc::Inbound;
using rpc::Kind;

/// Hands all on to the agent.
class Between : public rpc::Receiver {
 public:
  Between(rpc::Receiver& agent, Send send) : agent_(agent), send_(std::move(send)) {}
  rpc::Block allocate(rpc::WorkerId from, uint8_t kind, const std::string& header, int64_t bytes,
                      int32_t device) override {
    return agent_.allocate(from, kind, header, bytes, device);
  }
  rpc::Block take(rpc::WorkerId from, uint8_t kind, const std::string& header, rpc::Block lent,
                  int32_t device) override {
    return agent_.take(from, kind, header, std::move(lent), device);
  }
  void on_part(uint8_t kind, int64_t held, int64_t bytes) override { agent_.on_part(kind, held, bytes); }
  void on_part_end(uint8_t kind, int64_t held) override { agent_.on_part_end(kind, held); }
  void on_message(Inbound message) override { agent_.on_message(std::move(message)); }
  void on_unread(Inbound message) override { agent_.on_unread(std::move(message)); }
  void on_peer(rpc::WorkerId peer, rpc::Incarnation incarnation, rpc::PeerState state,
               const std::string& reason) override {
    agent_.on_peer(peer, incarnation, state, reason);
  }
  void on_failed_attempt(rpc::WorkerId peer, rpc::Incarnation incarnation,
                         const std::string& reason) override {
    agent_.on_failed_attempt(peer, incarnation, reason);
  }

 protected:
  static bool is(const Inbound& message, Kind kind) { return message.kind == static_cast<uint8_t>(kind); }
  static bool is_request(const Inbound& message) {
    return message.kind >= static_cast<uint8_t>(Kind::kCall) && (message.kind & rpc::kReplyBit) == 0;
  }
  static Envelope envelope(const Inbound& message) { return rpc::open_envelope(message.header); }
  static void set_envelope(Inbound& message, const Envelope& e) {
    std::memcpy(message.header.data(), &e, sizeof e);
  }
  /// A call of that function, or of that method.
  static bool runs(const Inbound& message, const char* function) {
    if (!is(message, Kind::kCall) && !is(message, Kind::kMethod)) return false;
    const uint64_t id = rpc::find_function(function)->id;
    return message.header.find(std::string(reinterpret_cast<const char*>(&id), sizeof id)) !=
           std::string::npos;
  }
  /// The contents of a status.
  struct Status {
    uint8_t wants_answer = 0;
    uint64_t upto = 0;
    std::vector<uint64_t> open{};
  };
  static Status status(const Inbound& message) {
    const rpc::Message m = rpc::unseal(message.header, {}, envelope(message));
    rpc::Decoder in(m);
    Status out;
    out.wants_answer = in.number<uint8_t>();
    out.upto = in.number<uint64_t>();
    out.open = in.get<std::vector<uint64_t>>();
    return out;
  }
  /// Answers a request that the agent does not get.
  void pretend(const Inbound& message) {
    rpc::Message answer;
    {
      rpc::Encoder out(answer);
      out.finish();
    }
    rpc::seal(answer);
    Envelope e;
    e.sequence = envelope(message).sequence;
    rpc::stamp(answer, e);
    send_(message.from, static_cast<uint8_t>(message.kind | rpc::kReplyBit), std::move(answer.bytes));
  }
  /// The same message under a number that was never used.
  static Inbound again(const Inbound& message) {
    Inbound copy{message.from, message.incarnation, message.kind, message.header, {}, {}};
    Envelope e = envelope(message);
    e.sequence += uint64_t{1} << 40;
    set_envelope(copy, e);
    return copy;
  }
  rpc::Receiver& agent_;
  const Send send_;
};

template <class T> std::unique_ptr<rpc::Receiver> make_receiver(rpc::Receiver& agent, Send send) {
  return std::make_unique<T>(agent, std::move(send));
}
template <class T> std::shared_ptr<rpc::Store> make_store(std::shared_ptr<rpc::Store> client) {
  return std::make_shared<T>(std::move(client));
}

/// The planted faults of guarantees about the lives of a worker (planted_lives.cpp).
std::vector<Planted> planted_lives();

}  // namespace weft::explore
