// The graph of a joined run, cut for its callers. The run works on detached arguments, so its graph reaches
// no caller. Each caller's result has a node of its own, whose backward runs the graph with zeros for the
// rows of others. The graph is freed with the last such node, or when all have run without retain_graph.
#pragma once

#include <memory>
#include <vector>

#include <weft/autograd/tape/engine.h>

namespace weft::rpc {

/// One joined run.
class BatchedGraph : public std::enable_shared_from_this<BatchedGraph> {
 public:
  /// The arguments of a joined run, for `callers` with one list of tensors each. They have no history, and
  /// require grad where those of a caller do.
  static std::vector<Tensor> join(const std::vector<const std::vector<Tensor>*>& callers);

  BatchedGraph(std::vector<Tensor> arguments, const std::vector<Tensor>& results);
  /// The rows [first, first + count) of the results. `inputs`: the caller's own arguments, to which its
  /// gradients go. `linked`: whether the rows take part in a backward pass of the caller.
  std::vector<Tensor> rows(int64_t first, int64_t count, const std::vector<Tensor>& inputs,
                           bool linked) const;
  /// Computes the gradients of the arguments' rows, and gives those of parameters to the pass. `gradients`:
  /// one for each result with history. Throws: AutogradError under create_graph, or where the function used
  /// tensors that another worker sent.
  GradList backward(int64_t first, int64_t count, const GradList& gradients, Pass& pass) const;

 private:
  struct Result {
    Tensor value;  ///< without history
    Edge edge;     ///< null: it has no history
  };
  std::vector<Tensor> arguments_;
  std::vector<Result> results_;
};

}  // namespace weft::rpc
