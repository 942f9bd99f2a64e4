// Distributed autograd: a backward pass over a graph that RPC has spread over several workers.
//
//   dist_autograd::Context context;                                // records calls during its lifetime
//   Tensor x = table.rpc_sync<&Table::forward>(ids);
//   Tensor loss = decoder.rpc_sync<&Decoder::loss>(lstm.forward(x).y, target);
//   context.backward({loss});        // gradients land in the context, on every worker
//   optimizer.step(context.id());    // DistributedOptimizer: each owner steps with its own gradients
//
// A request or reply sent inside a context may carry tensors that require grad. Then it gets a send node at
// its sender and a recv node at its receiver. Gradients are kept per context, not in grad(), so several
// trainers may share parameters. A parameter that the loss does not depend on has no entry. The context's
// destructor frees the context on all workers that it reached.
//   Backward::kSmart  is the default. It is the SMART mode of PyTorch's design, which PyTorch does not
//                     implement. It first marks the reachable graph across the workers, with two more small
//                     messages per hop. Replies already carry the marks, so workers that called no other need
//                     no mark messages. Unused results, several losses and failed calls are allowed.
//   Backward::kFast   is PyTorch's FAST mode: it assumes that every recorded send takes part in the pass. The
//                     watchdog names a send without a gradient, with peer, function and age, after `stall`.
// With create_graph a SMART pass records itself. Its gradients have graphs over the workers, and a later pass
// of the context may begin at a scalar made of them. The gradients of the later pass are added to the first
// gradients.
// A failure on any worker ends the pass on all workers and frees its state and gradients. The gradients of
// earlier passes stay. The initiator throws the first error; its text begins with the failed worker. Without
// retain_graph, a failed pass has freed the saved tensors of the nodes that ran, so another pass over the
// same graph throws. A context and its passes belong to one life of a worker. The loss of that life ends both
// everywhere, and a successor under the same name begins with new contexts. A pass may also begin at a remote
// value: RRef<Tensor>::backward(context.id()). Thread safety: contexts of different threads are independent;
// passes over one context may run concurrently when their graphs are disjoint. All functions: any thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <weft/autograd/tape/node.h>
#include <weft/autograd/tape/row_grad.h>
#include <weft/distributed/rref/rref.h>

namespace weft::dist_autograd {

WEFT_FIELDS(BackwardOptions, retain_graph, create_graph, mode, stall, timeout)

/// Pairs of a leaf and its gradient, of the leaf's sizes and dtype.
using Gradients = std::vector<std::pair<Tensor, Tensor>>;

/// Makes an autograd context current on this thread for a scope. Its id is worker id << 48 | counter, unique
/// among the living workers of the group. Each life of a worker counts from 0.
class WEFT_API Context {
 public:
  /// Throws: RpcError without an agent; AutogradError "already have an autograd context" inside another.
  Context();
  /// Frees the context on this worker and on every worker it reached, without waiting for them.
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int64_t id() const { return id_; }
  /// As dist_autograd::backward with this context.
  void backward(const std::vector<Tensor>& roots, const BackwardOptions& options = {}) const;
  /// The gradient of a leaf of this worker; undefined if there is none. A row-wise gradient is returned as a
  /// dense copy that refuses writes, also by gradients().
  Tensor gradient(const Tensor& leaf) const;
  /// A row-wise gradient (autograd/tape/row_grad.h); undefined if the gradient is dense or absent.
  RowGrad row_gradient(const Tensor& leaf) const;
  /// All gradients of this worker.
  Gradients gradients() const;

 private:
  int64_t id_;
  std::unique_ptr<rpc::CallScope> scope_;
};

/// Computes the gradients of `roots`, scalars of this worker, and adds them to the context on every worker
/// that the graph reaches. Blocks until all workers are done, at most for options.timeout. Throws:
/// AutogradError for an unknown context, a stalled pass or empty `roots`. AutogradError for a root that is
/// not a scalar, is a leaf or does not require grad. AutogradError for create_graph in kFast, and for kFast
/// in a context that has had a pass with create_graph. Timeout; PeerLost; the first error of a worker.
WEFT_API void backward(int64_t context_id, const std::vector<Tensor>& roots,
                       const BackwardOptions& options = {});
/// All gradients of a context on this worker, or the gradient of one leaf (undefined if there is none).
/// Throws: AutogradError for an unknown context.
WEFT_API Gradients get_gradients(int64_t context_id);
WEFT_API Tensor get_gradient(int64_t context_id, const Tensor& leaf);
WEFT_API RowGrad get_row_gradient(int64_t context_id, const Tensor& leaf);

/// A send or recv node of a context on this worker, for tests and debugging.
struct GraphNode {
  bool is_send = false;
  int64_t message = 0;  ///< message id: id of the sending worker << 48 | its counter
  rpc::WorkerId peer;
  Ref<Node> node;
};
/// The nodes of a context on this worker, send nodes first. Throws: AutogradError for an unknown context.
WEFT_API std::vector<GraphNode> graph(int64_t context_id);
/// Workers to which this worker sent recorded calls in a context. Throws: as graph.
WEFT_API std::vector<rpc::WorkerId> known_workers(int64_t context_id);
/// True when this worker has state of the context.
WEFT_API bool has_context(int64_t context_id);
/// The id of the current context; -1 outside any context.
WEFT_API int64_t current_context_id();

}  // namespace weft::dist_autograd
