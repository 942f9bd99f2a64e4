// Does a backward formula match its function? Compares the gradient of <y, v> with central differences, in float64, for a random
// cotangent v: the plain sum of the outputs would not notice a softmax whose backward is zero.
#pragma once

#include <string>
#include <vector>

#include <weft/autograd/callback.h>
#include <weft/tensor/tensor.h>

namespace weft {

struct GradcheckOptions {
  double eps = 1e-6;  ///< step of the differences
  double atol = 1e-5;
  double rtol = 1e-3;
  uint64_t seed = 1111;  ///< of the cotangents
};

/// Passed, or the first worst mismatch in words.
struct GradcheckResult {
  bool ok = true;
  std::string message;  ///< "input 0, element 3 of sizes [2, 3]: backward says 0, differences say 1.5"
  explicit operator bool() const { return ok; }
};

/// The function under test: tensors in, tensors out, the same for the same inputs.
using TensorFunction = Callback<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Checks the gradient with respect to every input that requires grad. Inputs: float64 leaves on the CPU, any strides without overlap; they are
/// changed and restored. Throws: DTypeError, DeviceError, AutogradError for inputs it cannot check, and what `f` throws.
WEFT_API GradcheckResult gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                   const GradcheckOptions& options = {});

/// The same for the gradient itself: backward under create_graph, with respect to inputs and cotangents.
WEFT_API GradcheckResult gradgradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                       const GradcheckOptions& options = {});

}  // namespace weft
