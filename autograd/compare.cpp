// Tests: bool out, never recorded. Comparisons with a number are exact, whatever the tensor's dtype.
#include <weft/autograd/ops.h>
#include <weft/tensor/launch.h>

namespace weft {

using launch::binary;
using launch::unary;

Tensor eq(In a, In b) { return binary(Binary::kEq, a, b); }
Tensor ne(In a, In b) { return binary(Binary::kNe, a, b); }
Tensor lt(In a, In b) { return binary(Binary::kLt, a, b); }
Tensor le(In a, In b) { return binary(Binary::kLe, a, b); }
Tensor gt(In a, In b) { return binary(Binary::kGt, a, b); }
Tensor ge(In a, In b) { return binary(Binary::kGe, a, b); }
Tensor eq(In x, Scalar s) { return unary(Unary::kEqScalar, x, s); }
Tensor ne(In x, Scalar s) { return unary(Unary::kNeScalar, x, s); }
Tensor lt(In x, Scalar s) { return unary(Unary::kLtScalar, x, s); }
Tensor le(In x, Scalar s) { return unary(Unary::kLeScalar, x, s); }
Tensor gt(In x, Scalar s) { return unary(Unary::kGtScalar, x, s); }
Tensor ge(In x, Scalar s) { return unary(Unary::kGeScalar, x, s); }
Tensor logical_and(In a, In b) { return binary(Binary::kLogicalAnd, a, b); }
Tensor logical_or(In a, In b) { return binary(Binary::kLogicalOr, a, b); }
Tensor logical_xor(In a, In b) { return binary(Binary::kLogicalXor, a, b); }
Tensor logical_not(In x) { return unary(Unary::kLogicalNot, x); }
Tensor isnan(In x) { return unary(Unary::kIsNan, x); }
Tensor isfinite(In x) { return unary(Unary::kIsFinite, x); }

bool allclose(In a, In b, double rtol, double atol) {
  if (!(a->sizes() == b->sizes())) return false;
  NoGrad no_grad;
  const Tensor x = a->to(kFloat64), y = b->to(kFloat64);
  const Tensor near = le(abs(x - y), abs(y) * rtol + atol);
  return all(logical_or(eq(x, y), logical_and(isfinite(y), near))).item<bool>();
}

bool equal(In a, In b) {
  if (!(a->sizes() == b->sizes()) || a->dtype() != b->dtype()) return false;
  return all(eq(a.get(), b.get())).item<bool>();
}

}  // namespace weft
