// Layers without parameters, each a module around one operation, and Sequential, a list of modules.
#pragma once

#include <concepts>
#include <memory>

#include <weft/autograd/tape/callback.h>
#include <weft/nn/module.h>

namespace weft::nn {

/// In training, zeroes each element with probability p and scales the others by 1 / (1 - p); in evaluation
/// the identity. Draws from the module's generator(). Source: Srivastava et al. 2014.
class WEFT_API Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) const;  // takes one tensor
  std::string name() const override;

 private:
  double p_;
};

// The compiler shows a declaration, with its comment, for a call of forward with other arguments.
#define WEFT_ACTIVATION(Name, doc_expression)                     \
  class WEFT_API Name : public Module {                           \
   public:                                                        \
    Tensor forward(const Tensor& x) const; /* takes one tensor */ \
    std::string name() const override { return #Name; }           \
  };
WEFT_ACTIVATION(ReLU, max(x, 0))
WEFT_ACTIVATION(Tanh, tanh(x))
WEFT_ACTIVATION(Sigmoid, 1 / (1 + exp(-x)))
WEFT_ACTIVATION(GELU, Phi(x) * x)
WEFT_ACTIVATION(SiLU, sigmoid(x) * x)
#undef WEFT_ACTIVATION

/// softmax along `dim`.
class WEFT_API Softmax : public Module {
 public:
  explicit Softmax(int64_t dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const;  // takes one tensor
  std::string name() const override { return str("Softmax(dim=", dim_, ")"); }

 private:
  int64_t dim_;
};

/// log_softmax along `dim`.
class WEFT_API LogSoftmax : public Module {
 public:
  explicit LogSoftmax(int64_t dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const;  // takes one tensor
  std::string name() const override { return str("LogSoftmax(dim=", dim_, ")"); }

 private:
  int64_t dim_;
};

/// A module that Sequential can call.
template <class M>
concept ForwardsTensor = requires(M& m, const Tensor& x) {
  { m.forward(x) } -> std::convertible_to<Tensor>;
};

/// Modules applied one after another, named "0", "1", ..:
///   Sequential net;
///   net.append<Linear>(4, 8);
///   net.append<ReLU>();
class WEFT_API Sequential : public Module {
 public:
  /// Constructs M(args...) in place and returns it. M needs `Tensor forward(const Tensor&)`.
  template <class M, class... Args> M& append(Args&&... args) {
    static_assert(std::is_base_of_v<Module, M>, "Sequential::append<M>: M must derive from nn::Module");
    static_assert(std::is_constructible_v<M, Args...>,
                  "Sequential::append<M>(args...): M has no constructor that takes these arguments");
    static_assert(ForwardsTensor<M>,
                  "Sequential::append<M>: M needs `Tensor forward(const Tensor&)`; a recurrent layer returns "
                  "a struct, so put it into a module whose forward returns its y");
    auto module = std::make_unique<M>(std::forward<Args>(args)...);
    M& made = *module;
    add(std::to_string(steps_.size()), made);
    steps_.push_back({std::move(module), [&made](const Tensor& x) { return made.forward(x); }});
    return made;
  }
  Tensor forward(const Tensor& x) const {  // takes one tensor
    Tensor y = x;
    for (const Step& step : steps_) y = step.run(y);
    return y;
  }
  size_t size() const { return steps_.size(); }
  /// `for (nn::Module& module : net)` visits the modules in order.
  ModuleIterator<Sequential> begin() const { return {this, 0}; }
  ModuleIterator<Sequential> end() const { return {this, static_cast<int64_t>(size())}; }
  /// Module `index`, counted from the end if negative. Throws: IndexError.
  Module& operator[](int64_t index) const;
  /// The same as an M. Throws: IndexError, ValueError if it has another type.
  template <class M> M& at(int64_t index) const {
    if (auto* module = dynamic_cast<M*>(&(*this)[index])) return *module;
    throw ValueError(str("Sequential: module ", index, " is of another type, a ", (*this)[index].name()));
  }
  std::string name() const override { return "Sequential"; }

 private:
  struct Step {
    std::unique_ptr<Module> module;
    Callback<Tensor(const Tensor&)> run;
  };
  std::vector<Step> steps_;
};

}  // namespace weft::nn
