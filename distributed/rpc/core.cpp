// The epoch that messages carry, and the sending of messages that may be lost: statuses, their answers,
// repeated messages, goodbyes. An error of the transport ends here, because the protocol repeats such
// messages.
#include <weft/distributed/rpc/inner/core.h>

namespace weft::rpc {

void AgentCore::stamp(Message& message, Envelope envelope) const {
  envelope.epoch = epoch_.load(std::memory_order_relaxed);
  rpc::stamp(message, envelope);
}

void AgentCore::set_epoch(uint64_t now) {
  epoch_ = now;
  uint64_t before = heard_epoch_;
  while (before < now && !heard_epoch_.compare_exchange_weak(before, now)) {
  }
}

void AgentCore::hear_later_epoch(uint64_t heard) {
  uint64_t before = heard_epoch_;
  while (before < heard)
    if (heard_epoch_.compare_exchange_weak(before, heard)) {
      for (const auto& f : epoch_callbacks.copies()) f();
      return;
    }
}

void AgentCore::send(WorkerId to, uint8_t kind, std::string bytes, std::vector<Payload> payloads) {
  try {
    transport->send(to, kind, std::move(bytes), std::move(payloads));
  } catch (const std::exception&) {
  }
}

}  // namespace weft::rpc
