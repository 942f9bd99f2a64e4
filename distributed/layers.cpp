// The layers in order.
#include <weft/distributed/layers.h>

namespace weft::rpc {

void install_layers(Agent& agent) {
  install_calls(agent);
  install_gather(agent);
  install_devices(agent);
  install_references(agent);
  install_dist_autograd(agent);
}

}  // namespace weft::rpc
