// The functors of an update rule, the names of their kernels, and their hyper-parameters.
// kernels/step_cpu.h documents the form of a functor.
#pragma once

#include <type_traits>

#include <weft/kernels/macros.h>

namespace weft {

/// The functors of a rule that has several, each with a separate kernel name.
template <class... F> struct StepFunctors {};

/// The name of a functor's kernel: F::kKernelName, else F::kName, else `otherwise`.
template <class F> constexpr const char* step_kernel_name(const char* otherwise = "") {
  if constexpr (requires { F::kKernelName; }) return F::kKernelName;
  else if constexpr (requires { F::kName; }) return F::kName;
  else return otherwise;
}

/// A hyper-parameter of a functor: a double, and that number rounded to float. Both are made on the host,
/// once per step. Used in a formula in place of a double, it spares a device kernel over floats all
/// arithmetic in double. It has no operators: a functor's constructor computes 1 - beta.
class Hyper {
 public:
  Hyper(double x = 0) : wide_(x), narrow_(static_cast<float>(x)) {}
  template <class T> WEFT_HD T as() const {
    if constexpr (std::is_same_v<T, double>) return wide_;
    else return narrow_;
  }

 private:
  double wide_;
  float narrow_;
};

}  // namespace weft
