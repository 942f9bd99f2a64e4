// Losses as modules: each calls an operation of autograd/ops/ops_nn.h with stored options.
#pragma once

#include <weft/autograd/ops/ops.h>
#include <weft/nn/module.h>

namespace weft::nn {

/// cross_entropy: log-softmax and negative log-likelihood in one pass.
/// Shape: x [N, C], target [N] -> [], or [N] with Reduction::kNone.
class WEFT_API CrossEntropyLoss : public Module {
 public:
  explicit CrossEntropyLoss(CrossEntropyOptions options = {}) : options_(std::move(options)) {}
  Tensor forward(const Tensor& x, const Tensor& target) const { return cross_entropy(x, target, options_); }
  std::string name() const override { return "CrossEntropyLoss"; }

 private:
  CrossEntropyOptions options_;
};

/// nll_loss: negative log-likelihood of log-probabilities. Shape: as CrossEntropyLoss.
class WEFT_API NLLLoss : public Module {
 public:
  explicit NLLLoss(CrossEntropyOptions options = {}) : options_(std::move(options)) {}
  Tensor forward(const Tensor& log_p, const Tensor& target) const {
    return nll_loss(log_p, target, options_);
  }
  std::string name() const override { return "NLLLoss"; }

 private:
  CrossEntropyOptions options_;
};

/// mse_loss: (x - target)^2, reduced by `reduction`.
class WEFT_API MSELoss : public Module {
 public:
  explicit MSELoss(Reduction reduction = Reduction::kMean) : reduction_(reduction) {}
  Tensor forward(const Tensor& x, const Tensor& target) const { return mse_loss(x, target, reduction_); }
  std::string name() const override { return "MSELoss"; }

 private:
  Reduction reduction_;
};

}  // namespace weft::nn
