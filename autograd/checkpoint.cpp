#include <weft/autograd/checkpoint.h>

#include <weft/autograd/engine.h>
#include <weft/autograd/record.h>
#include <weft/autograd/slot.h>

namespace weft {
namespace {

/// Puts generators at an offset for a scope.
class Rewind {
 public:
  Rewind(Generator* g, const Generator& to) : g_(g), before_(*g) { *g_ = to; }
  Rewind(const Rewind&) = delete;
  ~Rewind() { *g_ = before_; }

 private:
  Generator* g_;
  Generator before_;
};

/// Keeps the gradients of our own leaves, passes the rest on.
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

 private:
  const std::vector<Tensor>& leaves_;
  GradSink& rest_;

 public:
  GradList grads;
};

class CheckpointNode final : public Node {
 public:
  CheckpointNode(TensorFunction f, const std::vector<Tensor>& inputs, Generator* generator)
      : Node("checkpoint"),
        f_(std::move(f)),
        default_(default_generator()),
        generator_(generator),
        given_(generator ? *generator : Generator()) {
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
      EnableGrad on;
      const Rewind first(&default_generator(), default_);
      Generator unused;
      const Rewind second(generator_ ? generator_ : &unused, given_);
      outputs = f_(inputs);
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

  void release_saved() noexcept override {
    released_ = true;
    saved_.clear();
    f_ = nullptr;
  }

 private:
  TensorFunction f_;
  std::vector<Saved> saved_;
  std::vector<bool> wants_;
  Generator default_;
  Generator* generator_;
  Generator given_;
  bool released_ = false;
};

}  // namespace

std::vector<Tensor> checkpoint(const TensorFunction& f, const std::vector<Tensor>& inputs,
                               Generator* generator) {
  if (!f) throw ValueError("checkpoint: no function");
  if (!grad_enabled()) return f(inputs);
  Ref<Node> node = Ref<Node>::adopt(new CheckpointNode(f, inputs, generator));
  default_generator().renew();  // as the recomputation begins
  if (generator) generator->renew();
  std::vector<Tensor> outputs;
  {
    NoGrad off;
    outputs = f(inputs);
    for (Tensor& y :
         outputs)  // an output that is an input or a view of one must not receive a second history
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
