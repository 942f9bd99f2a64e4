// The sending of messages that may be lost: statuses, their answers, repeated messages, goodbyes. An error of
// the transport ends here, because the protocol repeats such messages.
#include <weft/distributed/rpc/inner/core.h>

namespace weft::rpc {

void AgentCore::send(WorkerId to, uint8_t kind, std::string bytes, std::vector<Payload> payloads) {
  try {
    transport->send(to, kind, std::move(bytes), std::move(payloads));
  } catch (const std::exception&) {
  }
}

}  // namespace weft::rpc
