// Numerical check of gradients: compares the gradient of <y, v> with central differences in float64. The
// cotangent v is random, because the plain sum of the outputs is constant for some functions, such as
// softmax.
#pragma once

#include <string>
#include <vector>

#include <weft/autograd/tape/callback.h>
#include <weft/tensor/tensor.h>

namespace weft {

/// Options of gradcheck and gradgradcheck.
struct GradcheckOptions {
  double eps = 1e-6;  ///< step of the differences
  double atol = 1e-5;
  double rtol = 1e-3;
  uint64_t seed = 1111;  ///< of the cotangents
};

/// Success, or a message about the largest mismatch.
struct GradcheckResult {
  bool ok = true;
  std::string message;  ///< "input 0, element 3 of sizes [2, 3]: backward says 0, differences say 1.5"
  explicit operator bool() const { return ok; }
};

/// The function under test; it must return the same outputs for the same inputs.
using TensorFunction = Callback<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Checks the gradient with respect to every input that requires grad. Inputs are float64 leaves on the CPU
/// with any strides without overlap; they are changed and restored.
/// Throws: DTypeError, DeviceError or AutogradError for inputs that it cannot check, and the exceptions of
/// `f`.
WEFT_API GradcheckResult gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                   const GradcheckOptions& options = {});

/// The same for second derivatives: checks backward under create_graph, with respect to inputs and
/// cotangents.
WEFT_API GradcheckResult gradgradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs,
                                       const GradcheckOptions& options = {});

}  // namespace weft
