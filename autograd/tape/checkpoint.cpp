// checkpoint(): one node for a whole part of the forward pass. Its backward runs the function again with the
// same random draws, and an inner Pass propagates through the new tape. Gradients of the inputs go to the
// outer pass, gradients of captured parameters to its sink.
#include <weft/autograd/tape/checkpoint.h>

#include <optional>

#include <weft/autograd/tape/autocast.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/inner/slot.h>
#include <weft/autograd/tape/record.h>
#include <weft/tensor/generator.h>

namespace weft {
namespace {

/// Keeps the gradients of `leaves` and passes all others to `rest`.
class InputSink final : public GradSink {
 public:
  InputSink(const std::vector<Tensor>& leaves, GradSink& rest)
      : leaves_(leaves), rest_(rest), grads(leaves.size()) {}
  void accumulate(const Tensor& leaf, Tensor grad, bool may_steal) override {
    for (size_t i = 0; i < leaves_.size(); ++i)
      if (leaves_[i].defined() && leaves_[i].is_same(leaf)) {
        grads[i] = std::move(grad);
        return;
      }
    rest_.accumulate(leaf, std::move(grad), may_steal);
  }
  void accumulate_rows(const Tensor& leaf, RowGrad grad, bool may_steal) override {
    for (const Tensor& own : leaves_)
      if (own.defined() && own.is_same(leaf)) return accumulate(leaf, detail::pack_rows(grad), may_steal);
    rest_.accumulate_rows(leaf, std::move(grad), may_steal);
  }

 private:
  const std::vector<Tensor>& leaves_;
  GradSink& rest_;

 public:
  GradList grads;
};

class CheckpointNode final : public Node {
 public:
  CheckpointNode(TensorFunction f, const std::vector<Tensor>& inputs)
      : Node("checkpoint"), f_(std::move(f)), autocast_(autocast_dtype()) {
    for (const Tensor& x : inputs) {
      saved_.emplace_back(x);
      wants_.push_back(x.defined() && x.requires_grad());
    }
  }

  GradList apply(GradList grads, Pass& pass) override {
    if (released_) detail::throw_released(name());
    if (pass.options().create_graph)
      throw AutogradError(
          "checkpoint: backward under create_graph is not possible through a checkpoint; compute this part "
          "without it");
    std::vector<Tensor> inputs, outputs;
    for (size_t i = 0; i < saved_.size(); ++i) {
      Tensor x = saved_[i].get();
      if (wants_[i]) x = x.detach().requires_grad_();
      inputs.push_back(std::move(x));
    }
    {
      const EnableGrad on;
      const DrawScope again(draws, DrawScope::Mode::kRepeat);
      std::optional<Autocast> mixed;
      if (autocast_ != kFloat32) mixed.emplace(autocast_);
      outputs = f_(inputs);
      if (!again.complete())
        throw AutogradError(
            "checkpoint: the function drew random numbers another number of times than in forward; it must "
            "do the same each time");
      for (const Tensor& x : inputs) detail::forget_cast(x);
    }
    GradSink* sink = pass.options().sink;
    InputSink own(inputs, sink ? *sink : local_sink());
    std::vector<Edge> edges;
    std::vector<Tensor> seeds;
    for (size_t i = 0; i < outputs.size() && i < grads.size(); ++i) {
      if (!grads[i].defined() || !outputs[i].defined() || !outputs[i].requires_grad()) continue;
      edges.push_back(gradient_edge(outputs[i]));
      seeds.push_back(grads[i]);
    }
    Pass inner({.retain_graph = false, .create_graph = false, .sink = &own, .shared = false});
    inner.mark(edges);
    for (size_t i = 0; i < edges.size(); ++i) inner.deliver(edges[i], std::move(seeds[i]));
    inner.run();
    return std::move(own.grads);
  }

  Draws draws;

  void release_saved() noexcept override {
    released_ = true;
    saved_.clear();
    f_ = nullptr;
  }

 private:
  TensorFunction f_;
  std::vector<Saved> saved_;
  std::vector<bool> wants_;
  const DType autocast_;
  bool released_ = false;
};

}  // namespace

std::vector<Tensor> checkpoint(const TensorFunction& f, const std::vector<Tensor>& inputs) {
  if (!f) throw ValueError("checkpoint: no function");
  if (!grad_enabled()) return f(inputs);
  auto node = Ref<CheckpointNode>::adopt(new CheckpointNode(f, inputs));
  std::vector<Tensor> outputs;
  {
    const NoGrad off;
    const DrawScope noted(node->draws, DrawScope::Mode::kNote);
    outputs = f(inputs);
    // an output that is an input, or a view of one, must not get a second history
    for (Tensor& y : outputs)
      for (const Tensor& x : inputs)
        if (y.defined() && x.defined() && y.shares_storage(x)) {
          y = y.clone();
          break;
        }
  }
  detail::link(std::move(node), outputs, std::span<const Tensor>(inputs));
  return outputs;
}

}  // namespace weft
