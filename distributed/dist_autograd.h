// Distributed autograd: a backward pass over graphs that RPC has spread over workers.
//
//   dist_autograd::Context context;                                // calls made in its life are recorded
//   Tensor loss = decoder.rpc_sync<&Decoder::loss>(lstm.forward(table.rpc_sync<&Table::forward>(ids)).y, target);
//   context.backward({loss});                                      // gradients land in the context, on every worker
//   optimizer.step(context.id());                                  // DistributedOptimizer: each owner steps with its own
//
// Every request and reply sent inside a context whose tensors require grad gets a send node on one side and a recv node on the other.
// Gradients are kept per context and never touch grad(), so several trainers may share parameters. Absent stays absent: a parameter that
// the loss does not depend on has no entry. Leaving the context frees it on all workers it reached.
//   Backward::kFast   assumes, as the published algorithm does, that every recorded send takes part; a send that nothing flows back to is
//                     named by the watchdog after `stall` (peer, function, age) instead of waiting for ever.
//   Backward::kSmart  marks the graph across workers first (two more small messages per hop), and needs no such assumption: unused results,
//                     several losses and failed calls are fine.
// A failure anywhere ends the pass on all workers, with the first error thrown here (its text begins with the worker that failed), and leaves
// nothing behind. A pass may also begin at a value that lives elsewhere: RRef<Tensor>::backward(context.id()).
// Thread safety: contexts of different threads are independent; passes over one context may run at once when their graphs are disjoint.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <weft/autograd/node.h>
#include <weft/distributed/rref.h>

namespace weft::dist_autograd {

WEFT_FIELDS(BackwardOptions, retain_graph, mode, stall, timeout)

/// A leaf and its gradient in a context.
using Gradients = std::vector<std::pair<Tensor, Tensor>>;

/// The context of this thread for a scope. Its id is unique in the group: worker id << 48 | counter.
class WEFT_API Context {
 public:
  /// Throws: RpcError without an agent; AutogradError "already have an autograd context" inside another.
  Context();
  /// Frees the context here and on every worker it reached; does not wait for them.
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int64_t id() const { return id_; }
  void backward(const std::vector<Tensor>& roots, const BackwardOptions& options = {}) const;
  /// The gradient of a leaf of this worker; undefined when it has none.
  Tensor gradient(const Tensor& leaf) const;
  Gradients gradients() const;

 private:
  int64_t id_;
  std::unique_ptr<rpc::CallScope> scope_;
};

/// Gradients of `roots` (scalars of this worker, seeded with ones) into the context. Throws: AutogradError for an unknown context, no roots, a root
/// that is no scalar, does not require grad or has no history; the error of a worker; PeerLost.
WEFT_API void backward(int64_t context_id, const std::vector<Tensor>& roots,
                       const BackwardOptions& options = {});
/// All gradients of a context on this worker. Throws: AutogradError for an unknown context.
WEFT_API Gradients get_gradients(int64_t context_id);
WEFT_API Tensor get_gradient(int64_t context_id, const Tensor& leaf);

/// What a context holds on this worker, for tests and debugging: one line per node, `send #3 -> ps: 2 edges`.
struct GraphNode {
  bool is_send = false;
  int64_t message = 0;  ///< worker id << 48 | counter of who sent it
  rpc::WorkerId peer;
  Ref<Node> node;
};
WEFT_API std::vector<GraphNode> graph(int64_t context_id);
/// Workers that this worker sent recorded calls to in a context.
WEFT_API std::vector<rpc::WorkerId> known_workers(int64_t context_id);
/// True when the context lives on this worker.
WEFT_API bool has_context(int64_t context_id);
/// The id of the current context; -1 outside any.
WEFT_API int64_t current_context_id();

}  // namespace weft::dist_autograd
