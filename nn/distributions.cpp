// Categorical. log_prob gathers from normalised log-probabilities; probabilities are clamped away from 0 and
// 1 before the logarithm, so that it and its gradient stay finite.
#include <weft/nn/distributions.h>

#include <cmath>
#include <limits>

#include <weft/autograd/ops/ops.h>

namespace weft::nn {
namespace {

void check(const char* what, const Tensor& t) {
  if (!t.is_floating_point())
    throw DTypeError(str("Categorical: ", what, " must be floating, got ", t.dtype()));
  if (t.dim() < 1 || t.size(-1) < 1)
    throw ShapeError(str("Categorical: ", what, " needs a last dim of at least 1, got ", t.sizes()));
}

}  // namespace

Categorical Categorical::from_probs(const Tensor& probs) {
  check("probs", probs);
  const Tensor p = probs / probs.sum({-1}, true);
  // Clamped away from 0 and 1 so that the logarithm and its gradient stay finite.
  const double eps = probs.dtype() == kFloat64 ? std::numeric_limits<double>::epsilon()
                                               : std::numeric_limits<float>::epsilon();
  return {p, p.clamp(eps, 1 - eps).log()};
}

Categorical Categorical::from_logits(const Tensor& logits) {
  check("logits", logits);
  const Tensor log_p = logits.log_softmax(-1);
  return {log_p.exp(), log_p};
}

Tensor Categorical::sample(Generator* generator) const {
  const int64_t k = probs_.size(-1);
  Shape sizes = probs_.sizes();
  sizes.resize(sizes.size() - 1);
  return multinomial(probs_.detach().reshape({sizes.numel(), k}), 1, true, generator).reshape(sizes);
}

Tensor Categorical::log_prob(const Tensor& value) const {
  if (value.dtype() != kInt64 && value.dtype() != kInt32)
    throw DTypeError(str("Categorical: values must be int64 or int32, got ", value.dtype()));
  return logits_.gather(-1, value.unsqueeze(-1)).squeeze(-1);
}

Tensor Categorical::entropy() const { return (probs_ * logits_).sum({-1}).neg(); }

}  // namespace weft::nn
