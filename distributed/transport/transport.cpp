// The names of the peer states, for errors and traces, and the copy of a shared payload. The transports are
// in grpc_transport.cpp and sim/sim_transport.cpp.
#include <weft/distributed/transport/transport.h>

#include <cstring>

namespace weft::rpc {

const char* to_string(PeerState state) {
  switch (state) {
    case PeerState::kUp: return "up";
    case PeerState::kBroken: return "broken";
    case PeerState::kUnreachable: return "unreachable";
    case PeerState::kRejected: return "rejected";
  }
  return "unknown";
}

Block Receiver::take(WorkerId from, uint8_t kind, const std::string& header, Block lent, int32_t device) {
  Block own = allocate(from, kind, header, lent.bytes, device);
  if (own.data == nullptr || own.bytes < lent.bytes)
    throw WireError("wire: the receiver gave no memory for a payload");
  own.bytes = lent.bytes;
  std::memcpy(own.data, lent.data, static_cast<size_t>(lent.bytes));
  return own;
}

}  // namespace weft::rpc
