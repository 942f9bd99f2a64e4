// Categorical. log_prob broadcasts the value with the batch and gathers from normalised log-probabilities.
// Probabilities are clamped away from 0 and 1 before the logarithm, so that it and its gradient stay finite.
#include <weft/nn/distributions.h>

#include <cmath>
#include <limits>

#include <weft/autograd/ops/ops.h>
#include <weft/tensor/inner/launch.h>

namespace weft::nn {
namespace {

void check(const char* what, const Tensor& t) {
  if (!t.defined()) launch::throw_undefined("Categorical", what);
  if (!t.is_floating_point())
    throw DTypeError(str("Categorical: ", what, " must be floating, got ", t.dtype()));
  if (t.dim() < 1 || t.size(-1) < 1)
    throw ShapeError(str("Categorical: ", what, " needs a last dim of at least 1, got ", t.sizes()));
}

/// Throws unless every row has finite weights >= 0 and a finite sum above 0. A device is not waited for.
void check_weights(const Tensor& weights, const Tensor& sums) {
  if (!weights.device().is_cpu() || sums.numel() == 0) return;
  const NoGrad quiet;
  const Tensor good = logical_and(sums > 0, isfinite(sums));
  if (all(good).item<bool>() && min(weights).item<double>() >= 0) return;
  const int64_t width = weights.size(-1);
  const Tensor w = weights.to(kFloat64).reshape({-1}), bad = logical_not(logical_and(w >= 0, isfinite(w)));
  if (any(bad).item<bool>()) {
    const int64_t at = nonzero(bad)[0][0].item<int64_t>();
    throw ValueError(str("Categorical: weight ", w[at].item<double>(), " of class ", at % width, " in row ",
                         at / width, " is negative or not finite"));
  }
  const int64_t row = nonzero(logical_not(good).reshape({-1}))[0][0].item<int64_t>();
  throw ValueError(str("Categorical: the weights of row ", row, " sum to ",
                       sums.reshape({-1})[row].item<double>(), ", which is no positive finite number"));
}

/// Throws for a row with NaN, positive infinity, or negative infinities alone. A device is not waited for.
void check_logits(const Tensor& log_p) {
  if (!log_p.device().is_cpu() || log_p.numel() == 0) return;
  const NoGrad quiet;
  if (!std::isnan(min(log_p).item<double>())) return;
  const int64_t at = nonzero(isnan(log_p).reshape({-1}))[0][0].item<int64_t>();
  throw ValueError(str("Categorical: the logits of row ", at / log_p.size(-1), " give no probabilities"));
}

/// `dims` without the last one.
Shape batch_of(Shape dims) {
  dims.resize(dims.size() - 1);
  return dims;
}

}  // namespace

Categorical Categorical::from_probs(const Tensor& probs) {
  check("probs", probs);
  const Tensor sums = probs.sum({-1}, true);
  check_weights(probs, sums);
  const Tensor p = probs / sums;
  // Clamped away from 0 and 1 so that the logarithm and its gradient stay finite.
  const double eps = probs.dtype() == kFloat64 ? std::numeric_limits<double>::epsilon()
                                               : std::numeric_limits<float>::epsilon();
  return {p, p.clamp(eps, 1 - eps).log()};
}

Categorical Categorical::from_logits(const Tensor& logits) {
  check("logits", logits);
  const Tensor log_p = logits.log_softmax(-1);
  check_logits(log_p);
  return {log_p.exp(), log_p};
}

Tensor Categorical::sample(Generator* generator) const {
  const int64_t k = probs_.size(-1);
  const Shape sizes = batch_of(probs_.sizes());
  return multinomial(probs_.detach().reshape({sizes.numel(), k}), 1, true, generator).reshape(sizes);
}

Tensor Categorical::log_prob(const Tensor& value) const {
  if (!value.defined()) launch::throw_undefined("Categorical", "value");
  if (value.dtype() != kInt64 && value.dtype() != kInt32)
    throw DTypeError(str("Categorical: values must be int64 or int32, got ", value.dtype()));
  const Shape batch = batch_of(logits_.sizes()), sizes = broadcast("Categorical", value.sizes(), batch);
  Shape wide = sizes;
  wide.push_back(logits_.size(-1));
  return launch::named("Categorical", [&] {
    return logits_.expand(wide).gather(-1, value.expand(sizes).unsqueeze(-1)).squeeze(-1);
  });
}

Tensor Categorical::entropy() const {
  // A class of probability 0 adds 0, also where its logarithm is -infinity.
  const double lowest = logits_.dtype() == kFloat64   ? std::numeric_limits<double>::lowest()
                        : logits_.dtype() == kFloat16 ? -65504.0
                                                      : -3e38;
  return (probs_ * logits_.maximum(lowest)).sum({-1}).neg();
}

}  // namespace weft::nn
