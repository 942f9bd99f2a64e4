// The backward pass that begins at a remote reference: it runs on the owner of the value.
#include <weft/distributed/dist_autograd.h>

namespace weft::dist_autograd {

/// Runs on the owner of a root.
void backward_on_owner(const rpc::RRef<Tensor>& root, int64_t context_id, bool retain_graph) {
  backward(context_id, {root.local_value()}, {.retain_graph = retain_graph, .mode = Backward::kFast});
}
WEFT_RPC(backward_on_owner);

}  // namespace weft::dist_autograd

namespace weft::rpc {

void backward_from(const RRef<Tensor>& root, int64_t context_id, bool retain_graph) {
  if (context_id < 0) {
    if (!root.is_owner()) throw AutogradError("RRef::backward of a user reference needs an autograd context id");
    root.local_value().backward({}, retain_graph);
    return;
  }
  if (root.is_owner()) dist_autograd::backward_on_owner(root, context_id, retain_graph);
  else rpc_sync<dist_autograd::backward_on_owner>({root.owner(), Duration::zero()}, root, context_id, retain_graph);
}

}  // namespace weft::rpc
