// A tensor and a number. The number never changes the tensor's dtype, save that functions of real numbers take integers as float32.
#include <cmath>

#include <weft/autograd/formula.h>

namespace weft {

using launch::unary;

namespace {

Scalar minus(Scalar s) { return s.integral ? Scalar(-s.i) : Scalar(-s.d); }

}  // namespace

Tensor add(In x, Scalar s) {
  return record("add", unary(Unary::kAddScalar, x, s), {x},
                [](const Tensor& g, Needs) -> GradList { return {g}; });
}

Tensor sub(In x, Scalar s) {
  launch::check_scalar("sub", x->dtype(), s);
  return record("sub", unary(Unary::kAddScalar, x, minus(s)), {x},
                [](const Tensor& g, Needs) -> GradList { return {g}; });
}

Tensor sub(Scalar s, In x) {
  launch::check_scalar("sub", x->dtype(), s);
  return record("sub", unary(Unary::kRsubScalar, x, s), {x},
                [](const Tensor& g, Needs) -> GradList { return {neg(g)}; });
}

Tensor mul(In x, Scalar s) {
  return record("mul", unary(Unary::kMulScalar, x, s), {x},
                [s](const Tensor& g, Needs) -> GradList { return {g * s}; });
}

Tensor div(In x, Scalar s) {
  return record("div", unary(Unary::kDivScalar, x, s), {x},
                [s](const Tensor& g, Needs) -> GradList { return {g / s}; });
}

Tensor div(Scalar s, In x) {
  return record(
      "div", unary(Unary::kRdivScalar, x, s), {x},
      [x = Saved(x), s](const Tensor& g, Needs) -> GradList { return {neg(g * div(s, square(x.get())))}; });
}

Tensor pow(Wide x, Scalar s) {
  return record("pow", unary(Unary::kPowScalar, x, s), {x},
                [x = Saved(x), s](const Tensor& g, Needs) -> GradList {
                  if (s.d == 0) return {zeros_like(g)};
                  if (s.d == 1) return {g};
                  if (s.d == 2) return {g * x.get() * 2};
                  return {g * (pow(x.get(), s.d - 1) * s.d)};
                });
}

Tensor pow(Scalar s, Wide x) {
  Tensor y = unary(Unary::kRpowScalar, x, s);
  return record("pow", y, {x}, [y = SavedOutput(y), s](const Tensor& g, Needs) -> GradList {
    if (s.d == 0) return {zeros_like(g)};
    return {g * y.get() * std::log(s.d)};
  });
}

Tensor clamp(In x, Scalar low, Scalar high) {
  if (!(low.d <= high.d)) throw ValueError(str("clamp: low ", low.d, " is above high ", high.d));
  return record("clamp", unary(Unary::kClamp, x, low, high), {x},
                [x = Saved(x), low, high](const Tensor& g, Needs) -> GradList {
                  const Tensor v = x.get();
                  return {formula::fused_or(Binary::kClampGrad, g, v, low, high, [&] {
                    return masked_fill(g, logical_or(lt(v, low), gt(v, high)), 0);
                  })};
                });
}

Tensor maximum(In x, Scalar s) {
  launch::check_scalar("maximum", x->dtype(), s);
  return record(
      "maximum", launch::binary(Binary::kMaximum, x, formula::number_like(x, s)), {x},
      [x = Saved(x), s](const Tensor& g, Needs) -> GradList { return {masked_fill(g, lt(x.get(), s), 0)}; });
}

Tensor minimum(In x, Scalar s) {
  launch::check_scalar("minimum", x->dtype(), s);
  return record(
      "minimum", launch::binary(Binary::kMinimum, x, formula::number_like(x, s)), {x},
      [x = Saved(x), s](const Tensor& g, Needs) -> GradList { return {masked_fill(g, gt(x.get(), s), 0)}; });
}

Tensor Tensor::pow(Scalar exponent) const { return weft::pow(*this, exponent); }
Tensor Tensor::clamp(Scalar low, Scalar high) const { return weft::clamp(*this, low, high); }

}  // namespace weft
