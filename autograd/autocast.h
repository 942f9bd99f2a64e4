// Mixed precision. While an Autocast lives on a thread, matrix products and recurrent layers take their float32 arguments in a half type, and
// what loses too much in a half type (softmax, losses, norms, sums, exponentials) takes half arguments in float32; everything else runs in the
// wider type of its arguments, as always. Which op does what is said by its argument types in ops.h: Lower, Wide, In. The casts are recorded, so a
// float32 parameter gets a float32 gradient. float64 is left alone.
#pragma once

#include <weft/autograd/grad_mode.h>
#include <weft/kernels/dtype.h>

namespace weft {

/// For a scope, on the calling thread; nests. Casts of parameters are kept until the outermost scope ends. float16 has a narrow range of
/// exponents: with it, scale the loss (optim::GradScaler). Backward runs each formula in the dtypes that forward used, whether or not it is called inside.
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

/// No casts for a scope inside an Autocast.
class NoAutocast : public Autocast {
 public:
  NoAutocast() : Autocast(Off{}) {}
};

/// The half type in force on this thread, float32 when there is none.
inline DType autocast_dtype() { return autograd_state().autocast; }

}  // namespace weft
