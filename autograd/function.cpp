#include <weft/autograd/function.h>

#include <weft/autograd/grad_math.h>
#include <weft/autograd/slot.h>

namespace weft {

Tensor FunctionContext::saved(size_t i) const {
  if (i >= places_.size())
    throw IndexError(
        str("saved: tensor ", static_cast<int64_t>(i), " of ", static_cast<int64_t>(places_.size())));
  const auto [output, at] = places_[i];
  return output ? saved_outputs_[at].get() : saved_[at].get();
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
    // Memory shared with an input would carry two histories.
    for (const Tensor& x : inputs)
      if (x.defined() && y.shares_storage(x)) {
        NoGrad off;
        y = detail::copy_of(y);
        break;
      }
  }
  for (const Tensor& t : to_save) {
    size_t output = outputs.size();
    for (size_t i = 0; i < outputs.size(); ++i)
      if (t.defined() && linked[i].defined() && t.is_same(outputs[i])) output = i;
    if (output < outputs.size()) {
      ctx.places_.emplace_back(true, ctx.saved_outputs_.size());
      ctx.saved_outputs_.emplace_back(linked[output], static_cast<uint32_t>(output));
    } else {
      ctx.places_.emplace_back(false, ctx.saved_.size());
      ctx.saved_.emplace_back(t);
    }
  }
  detail::link(node, linked, std::span<const Tensor>(inputs));
  for (size_t i = 0; i < outputs.size(); ++i)
    if (linked[i].defined()) outputs[i] = std::move(linked[i]);
}

namespace detail {

Ref<FunctionNode> begin_function(const char* name, FunctionNode::Backward backward,
                                 const std::vector<Tensor>& inputs) {
  auto node = Ref<FunctionNode>::adopt(new FunctionNode(name, backward));
  node->begin(inputs);
  return node;
}

}  // namespace detail
}  // namespace weft
