// Helpers of op bodies: the choice between a fused gradient kernel and its composed formula, and the composed backward of fused ops.
#pragma once

#include <functional>
#include <vector>

#include <weft/autograd/ops.h>
#include <weft/tensor/launch.h>

namespace weft::formula {

/// g combined with x by one kernel, or by `composed` when the backward is itself being recorded (create_graph).
template <class F>
Tensor fused_or(Binary op, const Tensor& g, const Tensor& x, Scalar s, Scalar t, F&& composed) {
  return grad_enabled() ? composed() : launch::binary(op, g, x, s, t);
}
template <class F> Tensor fused_or(Binary op, const Tensor& g, const Tensor& x, F&& composed) {
  return fused_or(op, g, x, 1, 0, std::forward<F>(composed));
}

/// g where y, the result of relu, is positive; 0 elsewhere.
inline Tensor relu_grad(const Tensor& g, const Tensor& y) {
  return fused_or(Binary::kReluGrad, g, y, [&] { return masked_fill(g, le(y.detach(), 0), 0); });
}

/// x saved for the gradient of `user` alone: nothing is kept when that is not wanted.
inline Saved saved_for(const Tensor& user, const Tensor& x) {
  return user.requires_grad() ? Saved(x) : Saved();
}

/// Gradients of a fused op under create_graph: runs `composed` (the same function made of plain ops) on `inputs` and differentiates that,
/// recording. `inputs` are the op's saved inputs, undefined where absent; `gs` match composed's outputs, undefined where absent.
/// An input whose `needs` bit is off gets an undefined gradient.
using Composed = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;
GradList composed_backward(const Composed& composed, const std::vector<Tensor>& inputs,
                           const std::vector<Tensor>& gs, Needs needs);

/// The type that an argument written Lower has under the Autocast in force.
DType lowered(const Tensor& x);

/// What a kernel takes for an input that may be absent.
inline View optional_view(const Tensor& x) { return x.defined() ? x.view_of() : View{}; }

/// x with its own node in front, so that a gradient with respect to it does not run through x's history.
Tensor fork(const Tensor& x);

/// Zeros of `sizes` with g put at positions start, start + step, .. of dim; differentiable. The backward of slice.
Tensor unslice(In g, const Shape& sizes, int dim, int64_t start, int64_t step);
/// Zeros of `sizes` with g added at `index` along dim; differentiable. The backward of gather.
Tensor scatter_zeros(const Tensor& g, const Shape& sizes, int dim, const Tensor& index);
/// g of a reduction over `dims` put back to x's rank: dims of size 1 where they were reduced.
Tensor keep_dims(const Tensor& g, const Shape& sizes, const launch::Dims& dims);
/// Applies the mean or sum of a loss.
Tensor reduce_loss(const Tensor& loss, Reduction reduction);
/// A zero-dim tensor of x's dtype and device.
Tensor number_like(const Tensor& x, Scalar value);

}  // namespace weft::formula
