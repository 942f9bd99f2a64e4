// Categorical: the distribution over K classes, with sampling, log-probabilities and entropy.
#pragma once

#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>

namespace weft::nn {

class WEFT_API Categorical {
 public:
  /// From weights along the last dim, which are normalised to probabilities. Shape: [.., K].
  /// Throws: ShapeError for a tensor without dims, DTypeError.
  static Categorical from_probs(const Tensor& probs);
  /// From unnormalised log-probabilities. Shape: [.., K].
  static Categorical from_logits(const Tensor& logits);

  /// Draws one class per row, int64. Shape: [..]. Not differentiable.
  /// Throws: ValueError for a row with a negative or NaN weight, or a sum of zero.
  Tensor sample(Generator* generator = nullptr) const;
  /// Log-probability of the given classes. Shape: value int64 or int32 [..] -> [..].
  /// Grad: to the log-probabilities.
  Tensor log_prob(const Tensor& value) const;
  /// -sum p log p. Shape: [..].
  Tensor entropy() const;
  const Tensor& probs() const { return probs_; }
  const Tensor& logits() const { return logits_; }  ///< normalised

 private:
  Categorical(Tensor probs, Tensor logits) : probs_(std::move(probs)), logits_(std::move(logits)) {}
  Tensor probs_, logits_;
};

}  // namespace weft::nn
