// The autograd engine. A Pass is one backward: the nodes that it marked, their in-degrees and a ready queue.
// It knows nothing of RPC: gradients from other processes arrive through deliver(), and a GradSink takes the
// gradients of leaves. Several passes may run at once over one graph if all but the last retain it.
//   1. mark(edges) walks the graph once; every edge increments the in-degree of its node. It may be called
//      again (SMART marking).
//   2. deliver(edge, g) adds a gradient to a slot and decrements the in-degree; at zero the node is ready.
//      Each marked root edge must get exactly one delivery (an undefined gradient counts).
//   3. run() executes ready nodes on the calling thread until none is left. The pass is finished when every
//      marked node has run.
#pragma once

#include <exception>
#include <memory>
#include <span>

#include <weft/autograd/tape/callback.h>
#include <weft/autograd/tape/node.h>
#include <weft/autograd/tape/row_grad.h>

namespace weft {

/// Receives every leaf gradient.
class WEFT_API GradSink {
 public:
  virtual ~GradSink() = default;
  /// `grad` has the leaf's sizes and dtype; if `may_steal`, the sink may keep that tensor without a copy.
  virtual void accumulate(const Tensor& leaf, Tensor grad, bool may_steal) = 0;
  /// The same for a row-wise gradient; the default calls accumulate() with the dense gradient.
  virtual void accumulate_rows(const Tensor& leaf, RowGrad grad, bool may_steal);
};

/// The sink that adds to leaf.grad(), under the leaf's lock.
WEFT_API GradSink& local_sink();

/// One backward: marked nodes, their in-degrees and a ready queue. The head of this file has the steps.
class WEFT_API Pass {
 public:
  /// Options of a pass.
  struct Options {
    bool retain_graph = false;
    bool create_graph = false;
    GradSink* sink = nullptr;  ///< null: local_sink()
    /// other threads may call the pass; false avoids the locks if only one thread uses it
    bool shared = true;
  };
  /// Called for each slot of a boundary node (recv) when marking first reaches it.
  using Boundary = Callback<void(Node& node, uint32_t slot)>;

  explicit Pass(Options options);
  ~Pass();
  Pass(const Pass&) = delete;

  const Options& options() const;
  /// Step 1. Thread safe; null edges are ignored.
  void mark(std::span<const Edge> edges, const Boundary& boundary = {});
  /// Computes the gradients of these edges only (for grad()). Call it before mark(); captured() has the
  /// results.
  void capture(std::span<const Edge> wanted);
  const std::vector<Tensor>& captured() const;
  /// Step 2. Thread safe. Throws: AutogradError if no gradient is expected there.
  void deliver(const Edge& edge, Tensor grad);
  /// Step 3. Thread safe: one thread executes at a time. A second caller returns at once, and the first runs
  /// its deliveries. An exception from a node ends the pass: this and every later call throw it.
  void run();
  /// Nodes marked and not yet executed.
  size_t pending() const;
  bool finished() const { return pending() == 0; }
  /// Ends the pass from outside: drops the buffers; run() then throws `why`.
  void fail(std::exception_ptr why);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Adds the gradients of `roots` to the leaves' grad(). `gradients` seeds the roots; if it is empty, roots
/// with one element get 1. Throws: AutogradError, ShapeError.
WEFT_API void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients = {},
                       bool retain_graph = false, bool create_graph = false);

/// Options of grad().
struct GradOptions {
  bool retain_graph = false;
  bool create_graph = false;  ///< implies retain_graph
  /// an input that no output depends on gets an undefined gradient instead of an error
  bool allow_unused = false;
};
/// Returns the gradients of `outputs` with respect to `inputs`; no grad() changes.
/// Throws: AutogradError, ShapeError.
WEFT_API std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                  const std::vector<Tensor>& grad_outputs = {},
                                  const GradOptions& options = {});
/// The same with 1 as the gradient of each output: grad({y}, {x}, {.create_graph = true}).
inline std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                const GradOptions& options) {
  return grad(outputs, inputs, std::vector<Tensor>(), options);
}

}  // namespace weft
