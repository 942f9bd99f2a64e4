// Losses of pairs of numbers, made of pointwise ops and one reduction.
#include <weft/autograd/formula.h>

namespace weft {

namespace {

void check_pair(const char* name, const Tensor& x, const Tensor& target) {
  launch::check_floating(name, x);
  launch::check_devices(name, x, target);
  if (!(x.sizes() == target.sizes()))
    throw ShapeError(str(name, ": x is ", x.sizes(), ", target is ", target.sizes()));
}

}  // namespace

Tensor mse_loss(Wide x, Wide target, Reduction reduction) {
  check_pair("mse_loss", x, target);
  return formula::reduce_loss(square(x.get() - target.get()), reduction);
}

Tensor l1_loss(Wide x, Wide target, Reduction reduction) {
  check_pair("l1_loss", x, target);
  return formula::reduce_loss(abs(x.get() - target.get()), reduction);
}

Tensor smooth_l1_loss(Wide x, Wide target, double beta, Reduction reduction) {
  check_pair("smooth_l1_loss", x, target);
  if (!(beta >= 0)) throw ValueError(str("smooth_l1_loss: beta must be >= 0, got ", beta));
  const Tensor d = abs(x.get() - target.get());
  if (beta == 0) return formula::reduce_loss(d, reduction);
  // Below beta the clamp passes d through and the rest vanishes; above it the square part stands still.
  const Tensor low = minimum(d, beta);
  return formula::reduce_loss(square(low) * (0.5 / beta) + (d - low), reduction);
}

Tensor binary_cross_entropy_with_logits(Wide x, Wide target, Reduction reduction) {
  check_pair("binary_cross_entropy_with_logits", x, target);
  return formula::reduce_loss(softplus(x.get()) - x.get() * target.get(), reduction);
}

}  // namespace weft
