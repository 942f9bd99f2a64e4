// The names of the peer states, for errors and traces. The transports are in grpc_transport.cpp and
// sim/sim_transport.cpp.
#include <weft/distributed/transport/transport.h>

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

}  // namespace weft::rpc
