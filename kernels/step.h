// The seam of the fused optimizer steps: a list of parameters, each with its gradient and state tensors, and one functor that is
// the whole update rule. A backend runs the functor over every element of every tensor in one call.
#pragma once

#include <cstdint>
#include <vector>

#include <weft/kernels/view.h>

namespace weft {

inline constexpr int kMaxStepState = 4;

/// One parameter of a fused step: flat, contiguous memory of one dtype.
struct StepTensor {
  void* param = nullptr;       ///< read; written unless `out` is set
  void* out = nullptr;         ///< where the new value goes when the old block must survive (copy on write), else null
  const void* grad = nullptr;  ///< never written
  void* state[kMaxStepState] = {};  ///< read and written
  int64_t numel = 0;
  const void* hyper = nullptr;  ///< the functor instance for this tensor's group and step (type known to the kernel)
};

/// A functor compiled for one backend: runs elements [begin, end) of one tensor. `run` for float32 and float64.
struct StepKernel {
  const char* name = "";
  void (*run_f32)(const StepTensor& t, int64_t begin, int64_t end) = nullptr;
  void (*run_f64)(const StepTensor& t, int64_t begin, int64_t end) = nullptr;
  const void* cuda = nullptr;  ///< the launcher that WEFT_STEP_CUDA registers, null when there is none
  int state_count = 0;
};

}  // namespace weft
