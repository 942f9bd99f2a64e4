// The cut graph of a joined run (inner/batched_graph.h): the node of each caller, and its backward by a pass
// inside the caller's pass.
#include <weft/distributed/rpc/inner/batched_graph.h>

#include <algorithm>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/record.h>
#include <weft/tensor/factories.h>

namespace weft::rpc {

namespace {

/// The node of one caller's rows.
class BatchedRows final : public Node {
 public:
  BatchedRows(std::shared_ptr<const BatchedGraph> graph, int64_t first, int64_t count)
      : Node("BatchedCall"), graph_(std::move(graph)), first_(first), count_(count) {}
  GradList apply(GradList grads, Pass& pass) override {
    const std::shared_ptr<const BatchedGraph> graph = graph_;
    if (!graph) weft::detail::throw_released(name());
    return graph->backward(first_, count_, grads, pass);
  }
  void release_saved() noexcept override { graph_ = nullptr; }

 private:
  std::shared_ptr<const BatchedGraph> graph_;
  const int64_t first_, count_;
};

/// Keeps the gradients of the joined arguments, and passes those of parameters on.
class BatchedSink final : public GradSink {
 public:
  BatchedSink(GradSink& outer, const std::vector<Tensor>& arguments)
      : outer_(outer), arguments_(arguments), gradients(arguments.size()) {}
  void accumulate(const Tensor& leaf, Tensor grad, bool may_steal) override {
    for (size_t k = 0; k < arguments_.size(); ++k)
      if (leaf.is_same(arguments_[k])) {
        gradients[k] = gradients[k].defined() ? gradients[k] + grad : std::move(grad);
        return;
      }
    outer_.accumulate(leaf, std::move(grad), may_steal);
  }
  void accumulate_rows(const Tensor& leaf, RowGrad grad, bool may_steal) override {
    for (const Tensor& argument : arguments_)
      if (leaf.is_same(argument)) return accumulate(leaf, grad.to_dense(), true);
    outer_.accumulate_rows(leaf, std::move(grad), may_steal);
  }

 private:
  GradSink& outer_;
  const std::vector<Tensor>& arguments_;

 public:
  std::vector<Tensor> gradients;
};

}  // namespace

std::vector<Tensor> BatchedGraph::join(const std::vector<const std::vector<Tensor>*>& callers) {
  const NoGrad plain;
  std::vector<Tensor> joined;
  for (size_t k = 0; k < callers.front()->size(); ++k) {
    std::vector<Tensor> parts;
    bool wanted = false;
    for (const std::vector<Tensor>* one : callers) {
      wanted = wanted || (*one)[k].requires_grad();
      parts.push_back((*one)[k].detach());
    }
    joined.push_back(parts.size() == 1 ? parts[0] : cat(parts, 0));
    if (wanted) joined.back().requires_grad_();
  }
  return joined;
}

BatchedGraph::BatchedGraph(std::vector<Tensor> arguments, const std::vector<Tensor>& results)
    : arguments_(std::move(arguments)) {
  for (const Tensor& y : results)
    results_.push_back({y.detach(), y.requires_grad() ? gradient_edge(y) : Edge()});
}

std::vector<Tensor> BatchedGraph::rows(int64_t first, int64_t count, const std::vector<Tensor>& inputs,
                                       bool linked) const {
  std::vector<Tensor> out, with_history;
  for (const Result& y : results_) {
    const NoGrad plain;
    out.push_back(y.value.narrow(0, first, count).clone());  // a reply must not keep the rows of others
    if (linked && y.edge.node) with_history.push_back(out.back());
  }
  if (with_history.empty()) return out;
  auto node = Ref<Node>::adopt(new BatchedRows(shared_from_this(), first, count));
  weft::detail::link(node, with_history, std::span<const Tensor>(inputs));
  return out;  // it has the same tensors
}

GradList BatchedGraph::backward(int64_t first, int64_t count, const GradList& gradients, Pass& pass) const {
  if (pass.options().create_graph)
    throw AutogradError("create_graph: the backward pass of a batched call is not recorded");
  GradSink* const outer = pass.options().sink;
  BatchedSink sink(outer ? *outer : local_sink(), arguments_);
  Pass inner({.retain_graph = true, .create_graph = false, .sink = &sink, .shared = false});
  EdgeList edges;
  std::vector<Tensor> seeds;
  size_t slot = 0;
  for (const Result& y : results_) {
    if (!y.edge.node) continue;
    Tensor seed = slot < gradients.size() ? gradients[slot] : Tensor();
    ++slot;
    if (!seed.defined()) continue;
    if (count != y.value.size(0)) {
      const Tensor whole = zeros_like(y.value);
      whole.narrow(0, first, count).copy_(seed);
      seed = whole;
    }
    edges.push_back(y.edge);
    seeds.push_back(std::move(seed));
  }
  inner.mark(std::span(edges.data(), edges.size()), [](Node&, uint32_t) {
    throw AutogradError("a batched function used a tensor of another worker that was no argument of it");
  });
  for (size_t m = 0; m < seeds.size(); ++m) inner.deliver(edges[m], std::move(seeds[m]));
  inner.run();
  GradList out;
  for (const Tensor& g : sink.gradients)
    out.push_back(g.defined() ? g.narrow(0, first, count).clone() : Tensor());
  return out;
}

}  // namespace weft::rpc
