// The functors of an update rule and the names of their kernels. kernels/step_cpu.h documents the form of a
// functor.
#pragma once

namespace weft {

/// The functors of a rule with several, each with a separate kernel name.
template <class... F> struct StepFunctors {};

/// The name of a functor's kernel: F::kKernelName, else F::kName, else `otherwise`.
template <class F> constexpr const char* step_kernel_name(const char* otherwise = "") {
  if constexpr (requires { F::kKernelName; }) return F::kKernelName;
  else if constexpr (requires { F::kName; }) return F::kName;
  else return otherwise;
}

}  // namespace weft
