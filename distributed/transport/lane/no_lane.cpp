// A build without the same-host lane (WEFT_LANE=OFF): this file takes the place of the others in its folder,
// and gRPC carries all messages.
#include <weft/distributed/transport/inner/same_host.h>

namespace weft::rpc {

bool has_same_host_lane() { return false; }

std::unique_ptr<inner::Lane> inner::make_lane(Runtime&, const GrpcOptions&, LinkEvents&, const std::string&) {
  return nullptr;
}

}  // namespace weft::rpc
