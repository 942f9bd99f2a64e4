// Categorical: a choice among K classes, with what policy gradients need of it.
#pragma once

#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>

namespace weft::nn {

class WEFT_API Categorical {
 public:
  /// From probabilities along the last dim (normalised here). Shape: [..., K]. Throws: ShapeError for a scalar, DTypeError.
  static Categorical from_probs(const Tensor& probs);
  /// From unnormalised log-probabilities. Shape: [..., K].
  static Categorical from_logits(const Tensor& logits);

  /// Classes, int64 [...]. Not differentiable. Throws: ValueError when a row has a negative or NaN weight or sums to zero.
  Tensor sample(Generator* generator = nullptr) const;
  /// Log-probability of classes. Shape: value int64 [...] -> [...]. Grad: through the log-probabilities.
  Tensor log_prob(const Tensor& value) const;
  /// -sum p log p. Shape: [...].
  Tensor entropy() const;
  const Tensor& probs() const { return probs_; }
  const Tensor& logits() const { return logits_; }  ///< normalised

 private:
  Categorical(Tensor probs, Tensor logits) : probs_(std::move(probs)), logits_(std::move(logits)) {}
  Tensor probs_, logits_;
};

}  // namespace weft::nn
