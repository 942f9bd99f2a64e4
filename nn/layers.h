// Layers without parameters, and Sequential. Each is a name for one op, so that models can be built from a list and printed.
#pragma once

#include <memory>

#include <weft/autograd/callback.h>
#include <weft/nn/module.h>

namespace weft::nn {

/// Zeroes each element with probability p in training and scales the rest by 1 / (1 - p); the identity in eval.
/// Source: Srivastava et al. 2014. Draws come from the module's generator().
class WEFT_API Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x);
  std::string name() const override;

 private:
  double p_;
};

#define WEFT_ACTIVATION(Name, doc_expression)           \
  class WEFT_API Name : public Module {                 \
   public:                                              \
    Tensor forward(const Tensor& x) const;              \
    std::string name() const override { return #Name; } \
  };
WEFT_ACTIVATION(ReLU, max(x, 0))
WEFT_ACTIVATION(Tanh, tanh(x))
WEFT_ACTIVATION(Sigmoid, 1 / (1 + exp(-x)))
WEFT_ACTIVATION(GELU, x* Phi(x))
WEFT_ACTIVATION(SiLU, x* sigmoid(x))
#undef WEFT_ACTIVATION

/// Probabilities along `dim`.
class WEFT_API Softmax : public Module {
 public:
  explicit Softmax(int64_t dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const;
  std::string name() const override { return str("Softmax(dim=", dim_, ")"); }

 private:
  int64_t dim_;
};

/// Log-probabilities along `dim`.
class WEFT_API LogSoftmax : public Module {
 public:
  explicit LogSoftmax(int64_t dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const;
  std::string name() const override { return str("LogSoftmax(dim=", dim_, ")"); }

 private:
  int64_t dim_;
};

/// Modules one after another, named "0", "1", ...: `Sequential net; net.append<Linear>(4, 8); net.append<ReLU>();`
class WEFT_API Sequential : public Module {
 public:
  /// Constructs M(args...) in place and returns it. M needs `Tensor forward(const Tensor&)`.
  template <class M, class... Args> M& append(Args&&... args) {
    auto module = std::make_unique<M>(std::forward<Args>(args)...);
    M& made = *module;
    add(std::to_string(steps_.size()), made);
    steps_.push_back({std::move(module), [&made](const Tensor& x) { return made.forward(x); }});
    return made;
  }
  Tensor forward(const Tensor& x) const {
    Tensor y = x;
    for (const Step& step : steps_) y = step.run(y);
    return y;
  }
  size_t size() const { return steps_.size(); }
  std::string name() const override { return "Sequential"; }

 private:
  struct Step {
    std::unique_ptr<Module> module;
    Callback<Tensor(const Tensor&)> run;
  };
  std::vector<Step> steps_;
};

}  // namespace weft::nn
