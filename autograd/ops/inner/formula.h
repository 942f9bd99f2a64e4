// Helpers of operation bodies: the choice between a fused gradient kernel and its composed formula, and the
// composed backward of fused operations.
#pragma once

#include <functional>
#include <vector>

#include <weft/autograd/ops/ops.h>
#include <weft/tensor/inner/launch.h>

namespace weft::formula {

/// g combined with x by one kernel, or by `composed` while the backward is recorded (create_graph).
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

/// g times the slope of gelu_tanh at x.
Tensor gelu_tanh_grad(const Tensor& g, const Tensor& x);

/// x saved for the gradient of `user` only: empty if that gradient is not wanted.
inline Saved saved_for(const Tensor& user, const Tensor& x) {
  return user.defined() && user.requires_grad() ? Saved(x) : Saved();
}

/// Gradients of a fused operation under create_graph: runs `composed`, the same function made of plain
/// operations, on `inputs` and differentiates it with recording. `inputs` are the saved inputs, `gs` the
/// gradients of composed's outputs; absent ones are undefined. An input whose `needs` bit is off gets an
/// undefined gradient.
using Composed = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;
GradList composed_backward(const Composed& composed, const std::vector<Tensor>& inputs,
                           const std::vector<Tensor>& gs, Needs needs);

/// The dtype of an argument declared AutocastArg under the current Autocast.
DType lowered(const Tensor& x);

/// The View of x, or the absent View if x is undefined.
inline View optional_view(const Tensor& x) { return x.defined() ? x.view_of() : View{}; }

/// Whether a finite element of `from` is infinite in `to`, its cast to another type.
bool overflowed(const Tensor& from, const Tensor& to);

/// An alias of x with a new node, so that a gradient with respect to it does not propagate into x's history.
Tensor fork(const Tensor& x);

/// Zeros of `sizes` with g at positions start, start + step, .. of dim; differentiable. The backward of
/// slice.
Tensor unslice(In g, const Shape& sizes, int dim, int64_t start, int64_t step);
/// Zeros of `sizes` with g added at `index` along dim; differentiable. The backward of gather.
Tensor scatter_zeros(const Tensor& g, const Shape& sizes, int dim, const Tensor& index);
/// Adds src to x at `index` along dim and records that; the errors begin with `name`. As scatter_add.
Tensor& add_at(const char* name, Tensor& x, Whole dim, const Tensor& index, const Tensor& src);
/// The bounds of a clamp, checked, with the ends of the dtype's range for those that are not given.
std::pair<Scalar, Scalar> clamp_bounds(const char* name, DType t, std::optional<Scalar> low,
                                       std::optional<Scalar> high);
/// The gradient g of a reduction over `dims`, reshaped to x's rank with size 1 in the reduced dims.
Tensor keep_dims(const Tensor& g, const Shape& sizes, const launch::Dims& dims);
/// x, reshaped to [1] if it has no dims.
inline Tensor as_line(const Tensor& x) { return x.dim() == 0 ? reshape(x, {1}) : x; }
/// op(x) computed in float32 for x of a half dtype, whose range may hold the result but not intermediate
/// values.
template <class F> Tensor in_float(const Tensor& x, F&& op) { return to(op(to(x, kFloat32)), x.dtype()); }
/// The loss reduced by `reduction`.
Tensor reduce_loss(const Tensor& loss, Reduction reduction);
/// Dropout with the mask of `key`; p in [0, 1).
Tensor dropout_of(const Tensor& x, double p, PhiloxKey key);
/// `value` as a tensor [] of x's dtype and device.
Tensor number_like(const Tensor& x, Scalar value);

}  // namespace weft::formula
