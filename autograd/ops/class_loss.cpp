// Shared parts of the class losses, and nll_loss, which is their composed form. The checks move the class dim
// to the end and join the others, so the losses work on rows [R, C].
#include <weft/autograd/ops/inner/class_loss.h>

namespace weft {
namespace formula {

void check_class_options(const char* name, int64_t classes, const Tensor& x,
                         const CrossEntropyOptions& options) {
  if (options.weight.defined()) {
    if (!(options.weight.sizes() == Shape{classes}))
      throw ShapeError(str(name, ": weight must be [", classes, "], is ", options.weight.sizes()));
    launch::check_devices(name, x, options.weight);
    if (grad_enabled() && options.weight.requires_grad())
      throw AutogradError(str(name, ": no gradient goes to the class weights of sizes ",
                              options.weight.sizes(), ", which require grad; detach() them"));
  }
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    throw ValueError(str(name, ": label_smoothing must be in [0, 1], is ", options.label_smoothing));
}

ClassRows class_rows(const char* name, const Tensor& x, const Tensor& target,
                     const CrossEntropyOptions& options) {
  launch::check_defined(name, x, target);
  launch::check_floating(name, x);
  launch::check_index(name, target);
  launch::check_devices(name, x, target);
  if (x.dim() == 0) throw ShapeError(str(name, ": x must have a class dim, is ", x.sizes()));
  const int class_dim = x.dim() == 1 ? 0 : 1;
  const int64_t classes = x.sizes()[class_dim];
  Shape expected = x.sizes();
  expected.erase(class_dim);
  if (!(target.sizes() == expected))
    throw ShapeError(str(name, ": target must be ", expected, " for x ", x.sizes(), ", is ", target.sizes()));
  check_class_options(name, classes, x, options);
  ClassRows r;
  r.sizes = expected;
  Tensor last = x;
  if (x.dim() > 2) {
    Shape order;
    for (int d = 0; d < x.dim(); ++d)
      if (d != 1) order.push_back(d);
    order.push_back(1);
    last = permute(x, order);
  }
  const int64_t count = target.numel();
  r.x = reshape(last, {count, classes});
  r.target = launch::reshaped(launch::contiguous(launch::cast(target, kInt64)), {count});
  return r;
}

Tensor loss_divisor(const Tensor& target, const CrossEntropyOptions& options, DType t) {
  NoGrad quiet;
  const Tensor kept = ne(target, options.ignore_index);
  if (!options.weight.defined()) return launch::cast(sum(kept), t);
  const Tensor safe = where(kept, target, number_like(target, 0));
  const Tensor weights = options.weight.detach().to(t);
  return sum(masked_fill(index_select(weights, 0, safe), logical_not(kept), 0));
}

Tensor composed_class_loss(const Tensor& logp, const Tensor& target, const CrossEntropyOptions& options) {
  const Tensor ignored = eq(target, options.ignore_index);
  const Tensor safe = where(ignored, number_like(target, 0), target);
  const Tensor weights = options.weight.defined() ? options.weight.detach().to(logp.dtype()) : Tensor();
  Tensor hit = neg(squeeze(gather(logp, 1, unsqueeze(safe, 1)), 1));
  if (weights.defined()) hit = hit * index_select(weights, 0, safe);
  if (options.label_smoothing > 0) {
    const Tensor all = weights.defined() ? logp * weights : logp;
    const double smooth = options.label_smoothing;
    hit = hit * (1 - smooth) - sum(all, {1}) * (smooth / static_cast<double>(logp.sizes()[1]));
  }
  return masked_fill(hit, ignored, 0);
}

Tensor reduce_rows(const Tensor& losses, const Tensor& target, const Shape& sizes,
                   const CrossEntropyOptions& options) {
  if (options.reduction == Reduction::kNone) return reshape(losses, sizes);
  const Tensor total = sum(losses);
  return options.reduction == Reduction::kSum ? total : total / loss_divisor(target, options, losses.dtype());
}

}  // namespace formula

Tensor nll_loss(Fp32Arg x, In target, const CrossEntropyOptions& options) {
  if (options.label_smoothing != 0)
    throw ValueError(str("nll_loss: label_smoothing belongs to cross_entropy, is ", options.label_smoothing));
  const formula::ClassRows r = formula::class_rows("nll_loss", x, target, options);
  return launch::named("nll_loss", [&] {
    return formula::reduce_rows(formula::composed_class_loss(r.x, r.target, options), r.target, r.sizes,
                                options);
  });
}

}  // namespace weft
