// RRef<Tensor>::backward: the backward pass from a remote value runs on the owner of that value. A pass in a
// context reaches the owner by a call of backward_on_owner; a local pass runs here and on the owner only.
#include <weft/distributed/autograd/dist_autograd.h>

namespace weft::dist_autograd {

/// Runs on the owner of a root.
void backward_on_owner(const rpc::RRef<Tensor>& root, int64_t context_id, const BackwardOptions& options) {
  backward(context_id, {root.local_value()}, options);
}
WEFT_RPC(backward_on_owner);

}  // namespace weft::dist_autograd

namespace weft::rpc {

void backward_from(const RRef<Tensor>& root, std::optional<int64_t> context_id,
                   const dist_autograd::BackwardOptions& options) {
  const bool mine = root.is_owner();  // throws for the empty reference
  if (!context_id) {
    if (!mine)
      throw AutogradError(str("RRef::backward: ", root, " has its value on ", root.owner(),
                              ": give the id of an autograd context, whose pass reaches it there"));
    root.local_value().backward({}, options.retain_graph, options.create_graph);
  } else if (mine) {
    dist_autograd::backward_on_owner(root, *context_id, options);
  } else {
    rpc_sync<dist_autograd::backward_on_owner>({root.owner_life(), Duration::zero()}, root, *context_id,
                                               options);
  }
}

}  // namespace weft::rpc
