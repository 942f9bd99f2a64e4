// Helpers of operation bodies (inner/formula.h). composed_backward differentiates the composed form of a
// fused operation through an inner grad() with create_graph, from forks of the saved inputs.
#include <weft/autograd/ops/inner/formula.h>

#include <weft/autograd/tape/engine.h>

namespace weft::formula {

bool overflowed(const Tensor& from, const Tensor& to) {
  if (from.dtype() == to.dtype() || !is_floating(to.dtype())) return false;
  const NoGrad guard;
  const Tensor x = from.detach(), y = to.detach();
  return any(logical_and(isfinite(x), logical_not(isfinite(y)))).item<bool>();
}

Tensor fork(const Tensor& x) {
  if (!x.defined()) return x;
  return record("fork", alias(x, x.sizes(), x.strides(), x.storage_offset()), {x},
                [](const Tensor& g, Needs) -> GradList { return {g}; });
}

GradList composed_backward(const Composed& composed, const std::vector<Tensor>& inputs,
                           const std::vector<Tensor>& gs, Needs needs) {
  EnableGrad on;
  std::vector<Tensor> forks, wanted;
  for (size_t i = 0; i < inputs.size(); ++i) {
    forks.push_back(fork(inputs[i]));
    if (inputs[i].defined() && inputs[i].requires_grad() && needs[static_cast<int>(i)])
      wanted.push_back(forks.back());
  }
  std::vector<Tensor> outputs, cotangents;
  const std::vector<Tensor> all = composed(forks);
  for (size_t i = 0; i < all.size(); ++i) {
    if (!gs[i].defined() || !all[i].defined() || !all[i].requires_grad()) continue;
    outputs.push_back(all[i]);
    cotangents.push_back(gs[i]);
  }
  GradList result(inputs.size());
  if (outputs.empty() || wanted.empty()) return result;
  const std::vector<Tensor> gradients =
      grad(outputs, wanted, cotangents, {.create_graph = true, .allow_unused = true});
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].defined() && inputs[i].requires_grad() && needs[static_cast<int>(i)])
      result[i] = gradients[next++];
  return result;
}

Tensor unslice(In g, const Shape& sizes, int dim, int64_t start, int64_t step) {
  Tensor y = launch::zeros(sizes, g->dtype(), g->device());
  const int64_t length = g->sizes()[dim];
  Shape strides = y.strides();
  const int64_t offset = start * strides[dim];
  strides[dim] *= step;
  if (g->numel() != 0) launch::copy_into(alias(y, g->sizes(), strides, offset), g);
  return record("slice_backward", y, {g}, [dim, start, length, step](const Tensor& gg, Needs) -> GradList {
    return {slice(gg, dim, start, start + length * step, step)};
  });
}

Tensor scatter_zeros(const Tensor& g, const Shape& sizes, int dim, const Tensor& index) {
  return scatter_add(launch::zeros(sizes, g.dtype(), g.device()), dim, index, g);
}

Tensor keep_dims(const Tensor& g, const Shape& sizes, const launch::Dims& dims) {
  if (g.dim() == sizes.size()) return g;
  Shape kept = sizes;
  for (int d = 0; d < kept.size(); ++d)
    if (dims.on[d]) kept[d] = 1;
  return reshape(g, kept);
}

Tensor reduce_loss(const Tensor& loss, Reduction reduction) {
  if (reduction == Reduction::kSum) return sum(loss);
  return reduction == Reduction::kMean ? mean(loss) : loss;
}

Tensor number_like(const Tensor& x, Scalar value) {
  Tensor y = empty({}, {.dtype = x.dtype(), .device = x.device()});
  launch::fill_into(y, value);
  return y;
}

}  // namespace weft::formula
