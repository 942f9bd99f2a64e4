// The services of every agent, lowest first. inner/services.h declares them; each is defined in the file of
// its own protocol.
#include <weft/distributed/rpc/inner/services.h>

namespace weft::rpc {

void install_services(Agent& agent) {
  install_calls(agent);
  install_batches(agent);
  install_gather(agent);
  install_rounds(agent);
  install_devices(agent);
  install_references(agent);
  install_dist_autograd(agent);
}

}  // namespace weft::rpc
