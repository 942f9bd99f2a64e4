// Losses of two tensors of equal sizes, composed of pointwise operations and one reduction.
// binary_cross_entropy_with_logits has one kernel for the loss of an element and one for its gradient.
#include <weft/autograd/ops/inner/formula.h>

namespace weft {

namespace {

void check_pair(const char* name, const Tensor& x, const Tensor& target) {
  launch::check_defined(name, x, target);
  launch::check_floating(name, x);
  launch::check_devices(name, x, target);
  if (!(x.sizes() == target.sizes()))
    throw ShapeError(str(name, ": x is ", x.sizes(), ", target is ", target.sizes()));
}

// g (sigmoid(x) - t), computed from the smaller of sigmoid(x) and sigmoid(-x), because the larger one cancels
// against a target of 1.
Tensor logistic_grad(const Tensor& g, const Tensor& x, const Tensor& t) {
  if (!grad_enabled()) return launch::ternary(Ternary::kLogisticLossGrad, g, x, t);
  return g * where(gt(x, 0), (1 - t) - sigmoid(neg(x)), sigmoid(x) - t);
}

}  // namespace

Tensor mse_loss(Fp32Arg x, Fp32Arg target, Reduction reduction) {
  check_pair("mse_loss", x, target);
  return formula::reduce_loss(square(x.get() - target.get()), reduction);
}

Tensor l1_loss(Fp32Arg x, Fp32Arg target, Reduction reduction) {
  check_pair("l1_loss", x, target);
  return formula::reduce_loss(abs(x.get() - target.get()), reduction);
}

Tensor smooth_l1_loss(Fp32Arg x, Fp32Arg target, double beta, Reduction reduction) {
  check_pair("smooth_l1_loss", x, target);
  if (!(beta >= 0)) throw ValueError(str("smooth_l1_loss: beta must be >= 0, got ", beta));
  const Tensor d = abs(x.get() - target.get());
  launch::check_scalar("smooth_l1_loss", d.dtype(), beta);
  if (beta == 0 || !Scalar(0.5 / beta).fits(accumulate_type(d.dtype())))  // no number is below it
    return formula::reduce_loss(d, reduction);
  // Below beta, low is d and the linear part is 0; above it, the square part is constant.
  return launch::named("smooth_l1_loss", [&] {
    const Tensor low = minimum(d, beta);
    return formula::reduce_loss(square(low) * (0.5 / beta) + (d - low), reduction);
  });
}

Tensor binary_cross_entropy_with_logits(Fp32Arg x, Fp32Arg target, Reduction reduction) {
  check_pair("binary_cross_entropy_with_logits", x, target);
  const Tensor y = launch::binary(Binary::kLogisticLoss, x, target);
  return formula::reduce_loss(record("binary_cross_entropy_with_logits", y, {x, target},
                                     [x = Saved(x), target = formula::saved_for(x, target)](
                                         const Tensor& g, Needs needs) -> GradList {
                                       return {needs[0] ? logistic_grad(g, x.get(), target.get()) : Tensor(),
                                               needs[1] ? neg(g * x.get()) : Tensor()};
                                     }),
                              reduction);
}

}  // namespace weft
