// Custom functions (function.h): the node that calls the user's backward, and the bookkeeping of saved
// tensors. A saved tensor is an output, an input, or an intermediate result of forward. The last has no
// history, so backward under create_graph may not read it.
#include <weft/autograd/tape/function.h>

#include <algorithm>

#include <weft/autograd/tape/inner/grad_math.h>
#include <weft/autograd/tape/inner/slot.h>

namespace weft {

Tensor FunctionContext::saved(size_t i) const {
  if (i >= places_.size())
    throw IndexError(
        str("saved: tensor ", static_cast<int64_t>(i), " of ", static_cast<int64_t>(places_.size())));
  const auto [kind, at] = places_[i];
  if (kind == Kind::kIntermediate && grad_enabled())
    throw AutogradError(
        str(autograd_state().current->name(), ": backward under create_graph reads saved tensor ",
            static_cast<int64_t>(i), " of sizes ", saved_[at].get().sizes(),
            ", which forward computed without a record: the second derivative would miss its part. Compute "
            "it again from saved inputs in backward, or return it as an output; "
            "keep a constant with put()"));
  return kind == Kind::kOutput ? saved_outputs_[at].get() : saved_[at].get();
}

GradList FunctionNode::apply(GradList grads, Pass&) {
  if (released_) detail::throw_released(name());
  GradList out = backward_(context, grads);
  if (out.size() != edges().size())
    throw AutogradError(str(name(), ": backward returned ", static_cast<int64_t>(out.size()),
                            " gradients for ", static_cast<int64_t>(edges().size()), " tensor inputs"));
  return out;
}

void FunctionNode::release_saved() noexcept {
  released_ = true;
  context.saved_.clear();
  context.saved_outputs_.clear();
  context.places_.clear();
  context.data_.reset();
}

void FunctionNode::begin(const std::vector<Tensor>& inputs) {
  for (const Tensor& x : inputs) context.needs_.push_back(grad_enabled() && x.defined() && x.requires_grad());
}

void FunctionNode::finish(Ref<FunctionNode> node, std::vector<Tensor>& outputs,
                          const std::vector<Tensor>& inputs) {
  FunctionContext& ctx = node->context;
  const bool wanted = detail::wants_record(std::span<const Tensor>(inputs));
  const std::vector<Tensor> to_save = std::exchange(ctx.to_save_, {});
  const std::vector<Tensor> constant = std::exchange(ctx.constant_, {});
  if (!wanted) return;
  std::vector<Tensor> linked = outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor& y = linked[i];
    if (!y.defined()) continue;
    bool differentiable = true;
    for (const Tensor& c : constant) differentiable = differentiable && !c.is_same(y);
    if (!differentiable) {
      y = Tensor();
      continue;
    }
    // Memory shared with an input would have two histories.
    for (const Tensor& x : inputs)
      if (x.defined() && y.shares_storage(x)) {
        NoGrad off;
        y = detail::copy_of(y);
        break;
      }
  }
  using Kind = FunctionContext::Kind;
  const auto place = [](const std::vector<Tensor>& in, const Tensor& t) {
    return static_cast<size_t>(
        std::find_if(in.begin(), in.end(),
                     [&](const Tensor& x) { return x.defined() && t.defined() && x.is_same(t); }) -
        in.begin());
  };
  for (const Tensor& t : to_save) {
    const size_t output = place(outputs, t);
    if (output < outputs.size() && linked[output].defined()) {
      ctx.places_.emplace_back(Kind::kOutput, ctx.saved_outputs_.size());
      ctx.saved_outputs_.emplace_back(linked[output], static_cast<uint32_t>(output));
      continue;
    }
    // An intermediate result has no history, so its dependence on the inputs is not recorded.
    const bool hides = t.defined() && t.is_floating_point() && !t.requires_grad() &&
                       output == outputs.size() && place(inputs, t) == inputs.size();
    ctx.places_.emplace_back(hides ? Kind::kIntermediate : Kind::kInput, ctx.saved_.size());
    ctx.saved_.emplace_back(t);
  }
  detail::link(node, linked, std::span<const Tensor>(inputs));
  for (size_t i = 0; i < outputs.size(); ++i)
    if (linked[i].defined()) outputs[i] = std::move(linked[i]);
}

namespace detail {

Tensor pinned(const Tensor& argument) { return In(argument).get(); }
std::vector<Tensor> pinned(const std::vector<Tensor>& argument) {
  std::vector<Tensor> out;
  for (const Tensor& x : argument) out.push_back(pinned(x));
  return out;
}

Ref<FunctionNode> begin_function(const char* name, FunctionNode::Backward backward,
                                 const std::vector<Tensor>& inputs) {
  auto node = Ref<FunctionNode>::adopt(new FunctionNode(name, backward));
  node->begin(inputs);
  return node;
}

}  // namespace detail
}  // namespace weft
