// Comparisons and logic, of dtype bool, and bitwise operations. None is recorded. Comparisons of integers
// with a Scalar use its exact value.
#include <weft/autograd/ops/inner/formula.h>

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

namespace {

void check_bits(const char* name, const Tensor& x) {
  if (is_floating(x.dtype())) throw DTypeError(str(name, ": takes bool and integers, got ", x.dtype()));
}

Tensor bits(const char* name, Binary op, const Tensor& a, const Tensor& b) {
  launch::check_defined(name, a, b);
  check_bits(name, a);
  check_bits(name, b);
  return binary(op, a, b);
}

Tensor bits(const char* name, Binary op, const Tensor& x, Scalar s) {
  launch::check_defined(name, x);
  check_bits(name, x);
  launch::check_scalar(name, x.dtype(), s);
  return binary(op, x, formula::number_like(x, s));
}

}  // namespace

Tensor bitwise_and(In a, In b) { return bits("bitwise_and", Binary::kBitwiseAnd, a, b); }
Tensor bitwise_or(In a, In b) { return bits("bitwise_or", Binary::kBitwiseOr, a, b); }
Tensor bitwise_xor(In a, In b) { return bits("bitwise_xor", Binary::kBitwiseXor, a, b); }
Tensor bitwise_and(In x, Scalar s) { return bits("bitwise_and", Binary::kBitwiseAnd, x, s); }
Tensor bitwise_or(In x, Scalar s) { return bits("bitwise_or", Binary::kBitwiseOr, x, s); }
Tensor bitwise_xor(In x, Scalar s) { return bits("bitwise_xor", Binary::kBitwiseXor, x, s); }
Tensor bitwise_not(In x) {
  launch::check_defined("bitwise_not", x);
  check_bits("bitwise_not", x);
  if (x->dtype() == kBool) return logical_not(x.get());
  // -1 - x flips every bit: -1 has all bits set, so no borrow occurs
  return unary(Unary::kRsubScalar, x, x->dtype() == kUInt8 ? 255 : -1);
}

namespace {

Tensor kind_of_number(const char* name, Unary op, const Tensor& x) {
  launch::check_defined(name, x);
  return unary(op, x);
}

}  // namespace

Tensor isnan(In x) { return kind_of_number("isnan", Unary::kIsNan, x); }
Tensor isinf(In x) { return kind_of_number("isinf", Unary::kIsInf, x); }
Tensor isfinite(In x) { return kind_of_number("isfinite", Unary::kIsFinite, x); }

bool allclose(In a, In b, double rtol, double atol) {
  launch::check_defined("allclose", a, b);
  if (!(a->sizes() == b->sizes())) return false;
  NoGrad no_grad;
  const Tensor x = a->to(kFloat64), y = b->to(kFloat64);
  const Tensor near = le(abs(x - y), abs(y) * rtol + atol);
  return all(logical_or(eq(x, y), logical_and(isfinite(y), near))).item<bool>();
}

bool equal(In a, In b) {
  launch::check_defined("equal", a, b);
  if (!(a->sizes() == b->sizes()) || a->dtype() != b->dtype()) return false;
  return all(eq(a.get(), b.get())).item<bool>();
}

}  // namespace weft
