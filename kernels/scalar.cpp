// Scalar: the check whether a dtype can hold it, its text, and the error for a number that does not fit. The
// header has the conversions to C++ types.
#include <weft/kernels/scalar.h>

namespace weft {

bool Scalar::fits(DType t) const {
  return dispatch(t, [&]<class T>(TypeTag<T>) { return fits<T>(); });
}

void Scalar::refuse(const char* name, const char* type) const {
  throw DTypeError(str(name, ": the number ", *this, " does not fit ", type));
}

std::string to_string(const Scalar& s) { return s.integral ? str(s.i) : str(s.d); }

}  // namespace weft
