// Categorical: the distribution over K classes, with sampling, log-probabilities and entropy.
//   const Categorical policy = Categorical::from_logits(model.forward(state));
//   const Tensor action = policy.sample(), log_prob = policy.log_prob(action);
#pragma once

#include <weft/tensor/generator.h>
#include <weft/tensor/tensor.h>

namespace weft::nn {

/// The distribution over K classes.
class WEFT_API Categorical {
 public:
  /// From weights along the last dim, which are normalised to probabilities. Shape: [.., K].
  /// Throws: ShapeError for a tensor without dims; DTypeError for integers. On the CPU, ValueError for a
  /// weight that is negative or not finite, or a row whose sum is 0 or not finite.
  static Categorical from_probs(const Tensor& probs);
  /// From unnormalised log-probabilities; negative infinity is an impossible class. Shape: [.., K].
  /// Throws: as from_probs; ValueError, on the CPU, for a row with NaN, infinity or only impossible classes.
  static Categorical from_logits(const Tensor& logits);

  /// Draws one class per row, int64. Shape: [..]. Not differentiable.
  /// Throws: ValueError for a row that is no distribution.
  Tensor sample(Generator* generator = nullptr) const;
  /// Log-probability of the given classes, broadcast with the batch: log_prob of [] and of [1] have one value
  /// for each row. Shape: value int64 or int32 [..], the batch [..] -> their broadcast sizes.
  /// Grad: to the log-probabilities.
  /// Throws: ShapeError for a value that does not broadcast, IndexError for a class outside [0, K),
  /// DTypeError for a value of another dtype.
  Tensor log_prob(const Tensor& value) const;
  /// -sum p log p; a class of probability 0 adds 0. Shape: [..].
  Tensor entropy() const;
  const Tensor& probs() const { return probs_; }
  const Tensor& logits() const { return logits_; }  ///< normalised

 private:
  Categorical(Tensor probs, Tensor logits) : probs_(std::move(probs)), logits_(std::move(logits)) {}
  Tensor probs_, logits_;
};

}  // namespace weft::nn
