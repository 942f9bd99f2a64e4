// The backward functions of send and recv nodes. A recv node gives its gradients to the sink of a distributed
// pass. A send node never runs: the pass delivers to its edges when the gradients have arrived.
#include <weft/distributed/autograd/inner/dist_nodes.h>

namespace weft::dist_autograd::detail {

GradList SendNode::apply(GradList, Pass&) {
  throw AutogradError("a send node takes part in distributed backward passes only");
}

GradList RecvNode::apply(GradList grads, Pass& pass) {
  auto* sink = dynamic_cast<RemoteSink*>(pass.options().sink);
  if (!sink)
    throw AutogradError(str("backward: the graph goes on at worker ", from.id.value,
                            "; use dist_autograd::backward inside the context of the call"));
  sink->send_back(*this, std::move(grads));
  return {};
}

}  // namespace weft::dist_autograd::detail
