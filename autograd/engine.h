// A backward is a Pass: the nodes it marked, its own in-degrees, a ready queue. It knows nothing of RPC: gradients from elsewhere come in
// through deliver(), and what happens to leaf gradients is the GradSink's business. Several passes may run at once over one graph
// as long as all but the last retain it.
//   1. mark(edges) walks the graph once; every edge met raises the in-degree of its node. It may be called again (SMART marking).
//   2. deliver(edge, g) adds a gradient to a slot and lowers the in-degree; at zero the node is ready. Each marked root edge is owed
//      exactly one delivery (an undefined gradient counts).
//   3. run() executes ready nodes on the calling thread until none is left; the pass is finished when every marked node has run.
#pragma once

#include <exception>
#include <memory>
#include <span>

#include <weft/autograd/callback.h>
#include <weft/autograd/node.h>

namespace weft {

/// Told of every leaf gradient, at accumulation.
class WEFT_API GradSink {
 public:
  virtual ~GradSink() = default;
  /// `grad` has the leaf's sizes and dtype; the sink may keep it without a copy when `may_steal`.
  virtual void accumulate(const Tensor& leaf, Tensor grad, bool may_steal) = 0;
};

/// Adds to leaf.grad(), under the leaf's own lock.
WEFT_API GradSink& local_sink();

class WEFT_API Pass {
 public:
  struct Options {
    bool retain_graph = false;
    bool create_graph = false;
    GradSink* sink = nullptr;  ///< null: local_sink()
    bool shared = true;  ///< other threads may call in; false saves the locks of a pass that one thread owns
  };
  /// Called for each slot of a boundary node (recv) that marking reaches the first time.
  using Boundary = Callback<void(Node& node, uint32_t slot)>;

  explicit Pass(Options options);
  ~Pass();
  Pass(const Pass&) = delete;

  const Options& options() const;
  /// Step 1. Thread safe; null edges are ignored.
  void mark(std::span<const Edge> edges, const Boundary& boundary = {});
  /// Only gradients of these edges are wanted (for grad()): call before mark(); results by capture().
  void capture(std::span<const Edge> wanted);
  const std::vector<Tensor>& captured() const;
  /// Step 2. Thread safe. Throws: AutogradError when nothing is awaited there.
  void deliver(const Edge& edge, Tensor grad);
  /// Step 3. Thread safe: one thread executes at a time, a second caller returns at once and its deliveries are run by the first.
  /// An exception of a node ends the pass: it is kept, and thrown here and by every later call.
  void run();
  /// Nodes marked and not yet executed.
  size_t pending() const;
  bool finished() const { return pending() == 0; }
  /// Ends the pass from outside: buffers are dropped, run() throws `why`.
  void fail(std::exception_ptr why);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Gradients of `roots` (seeded with `gradients`, ones for scalars when empty) into the leaves' grad(). Throws: AutogradError, ShapeError.
WEFT_API void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients = {},
                       bool retain_graph = false, bool create_graph = false);

struct GradOptions {
  bool retain_graph = false;
  bool create_graph = false;  ///< implies retain_graph
  bool allow_unused =
      false;  ///< an input that was not reached gives an undefined gradient instead of an error
};
/// Gradients of `outputs` with respect to `inputs`, returned; no grad() is touched.
WEFT_API std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                  const std::vector<Tensor>& grad_outputs = {},
                                  const GradOptions& options = {});

}  // namespace weft
