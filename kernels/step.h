// The seam of the fused optimizer steps: a list of parameters, each with its gradient and state tensors, and one functor that is
// the whole update rule. A backend runs the functor over every element of every tensor in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <weft/kernels/view.h>

namespace weft {

inline constexpr int kMaxStepState = 4;

/// One parameter of a fused step: flat, contiguous memory of one dtype.
struct StepTensor {
  void* param = nullptr;  ///< read; written unless `out` is set
  void* out =
      nullptr;  ///< where the new value goes when the old block must survive (copy on write), else null
  const void* grad = nullptr;       ///< never written
  void* state[kMaxStepState] = {};  ///< read and written
  int64_t numel = 0;
  const void* hyper =
      nullptr;  ///< the functor instance for this tensor's group and step (type known to the kernel)
};

/// A functor compiled for the CPU: runs elements [begin, end) of one tensor, of float32 or float64. Other backends find theirs by the name.
struct StepKernel {
  const char* name = "";
  void (*run_f32)(const StepTensor& t, int64_t begin, int64_t end) = nullptr;
  void (*run_f64)(const StepTensor& t, int64_t begin, int64_t end) = nullptr;
  const void* cuda = nullptr;  ///< its StepCuda; null: the one that is registered under `name`
  int state_count = 0;
};

/// How a step that a graph recorded goes on: called before each replay, constructs the functors of the next step at these places, one per tensor of
/// the list in its order. `replay` is a number of that replay's own, above 0. What it throws keeps the replay from running.
using NextStep = std::function<void(std::span<void* const> functors, uint64_t replay)>;

struct StepTable;  // of the whole list in device memory: cuda/step_cuda.h

/// A functor compiled for CUDA devices by WEFT_STEP_CUDA (cuda/step_cuda.h): `launch` runs every element of every tensor.
struct StepCuda {
  size_t functor_bytes = 0;
  int state_count = 0;
  void (*launch)(void* stream, const char* name, DType dtype, const StepTable& table) = nullptr;
};
/// Remembers `form`, which lives as long as the program, under a copy of `name`. Returns true.
WEFT_API bool register_step_cuda(const char* name, const StepCuda* form);
/// The form of a kernel. Throws: DeviceError that names WEFT_STEP_CUDA when there is none, or when several rules go by the name.
WEFT_API const StepCuda& step_cuda_form(const StepKernel& kernel);

}  // namespace weft
