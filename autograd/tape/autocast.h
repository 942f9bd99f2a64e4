// Mixed precision. Inside an Autocast scope, matrix products and recurrent layers cast their float32
// arguments to a half dtype. Operations that are too inaccurate in a half dtype (softmax, losses, norms,
// sums, exponentials) cast half arguments to float32. All other operations run in the wider dtype of their
// arguments, as usual. The argument types in the headers of autograd/ops show the kind of each: AutocastArg,
// Fp32Arg, In. The casts are recorded, so a float32 parameter gets a float32 gradient. float64 arguments are
// never cast.
#pragma once

#include <weft/autograd/tape/grad_mode.h>
#include <weft/kernels/dtype.h>

namespace weft {

class Tensor;

/// Mixed precision on the calling thread for the lifetime of the object; scopes nest. Casts of parameters are
/// cached until the outermost scope ends. float16 has a narrow range of exponents: with it, scale the loss
/// (optim::GradScaler). Backward uses the dtypes of forward, inside the scope or not, and so does the
/// recomputation of a checkpoint.
///   { Autocast mixed(kBFloat16); loss = cross_entropy(model(x), target); }
///   loss.backward();
class WEFT_API Autocast {
 public:
  /// Throws: DTypeError unless `dtype` is float16 or bfloat16.
  explicit Autocast(DType dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 protected:
  struct Off {};
  explicit Autocast(Off);

 private:
  DType before_;
};

/// Switches an enclosing Autocast off for its lifetime.
class NoAutocast : public Autocast {
 public:
  NoAutocast() : Autocast(Off{}) {}
};

namespace detail {
/// Drops the cached cast of x on this thread.
void forget_cast(const Tensor& x);
/// Whether an Autocast or a NoAutocast is open on this thread, so that casts of parameters are cached.
bool keeps_casts();
}  // namespace detail

/// The half dtype of the innermost Autocast of this thread, float32 if there is none.
inline DType autocast_dtype() { return autograd_state().autocast; }

}  // namespace weft
