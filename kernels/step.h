// The interface of fused optimizer steps. A step has a list of parameters, each with its gradient and state
// tensors, and a functor that is the whole update rule. A backend applies the functor to all elements of all
// tensors in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <weft/kernels/view.h>

namespace weft {

inline constexpr int kMaxStepState = 4;

/// One parameter of a fused step: flat, contiguous memory of one dtype. A parameter of a half type has a
/// float32 master, which the rule updates, and float32 state. The parameter gets the master's rounded value.
/// If the parameter differs from that value before a step, something else has written it, and its value
/// becomes the master.
struct StepTensor {
  void* param = nullptr;  ///< read; written unless `out` is set
  /// destination of the new value if the old block must be kept (copy on write), else null
  void* out = nullptr;
  const void* grad = nullptr;  ///< never written
  /// null, or a number on the device, the same for a whole list, by which the rule's gradient is multiplied
  const double* factor = nullptr;
  void* master = nullptr;           ///< of a half type: read and written; else null
  void* state[kMaxStepState] = {};  ///< read and written
  int64_t numel = 0;
  /// the functor for this tensor's parameter group and step, of the kernel's type
  const void* hyper = nullptr;
};

/// A functor compiled for the CPU: updates elements [begin, end) of one tensor, of float32 or float64. Other
/// backends look up their own form by name.
struct StepKernel {
  const char* name = "";
  void (*run_f32)(const StepTensor& t, int64_t begin, int64_t end) = nullptr;
  void (*run_f64)(const StepTensor& t, int64_t begin, int64_t end) = nullptr;
  const void* cuda = nullptr;  ///< its StepCuda; null: the form registered under `name`
  int state_count = 0;
};

/// Advances a step that was recorded in a graph. Called before each replay, it constructs the functors of the
/// next step at the given addresses, one per tensor in list order. `replay` is unique to the replay and above
/// 0. If it throws, the replay does not run.
using NextStep = std::function<void(std::span<void* const> functors, uint64_t replay)>;

struct StepTable;  // the list of tensors in device memory: cuda/step_cuda.h

/// A functor compiled for CUDA devices by WEFT_STEP_CUDA (cuda/step_cuda.h): `launch` runs every element of
/// every tensor.
struct StepCuda {
  size_t functor_bytes = 0;
  int state_count = 0;
  void (*launch)(void* stream, const char* name, DType dtype, const StepTable& table) = nullptr;
};
/// Registers `form`, which must outlive the program's last step, under a copy of `name`. Returns true.
WEFT_API bool register_step_cuda(const char* name, const StepCuda* form);
/// The CUDA form of a kernel.
/// Throws: DeviceError that names WEFT_STEP_CUDA if there is none, or if several rules are registered under
/// the name.
WEFT_API const StepCuda& step_cuda_form(const StepKernel& kernel);

}  // namespace weft
