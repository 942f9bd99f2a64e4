// Arithmetic of a tensor and a Scalar. The Scalar never changes the tensor's dtype, but functions of real
// numbers take integers as float32.
#include <cmath>

#include <weft/autograd/ops/inner/formula.h>

namespace weft {

using launch::unary;

Tensor add(In x, Scalar s) {
  return record("add", unary(Unary::kAddScalar, x, s), {x},
                [](const Tensor& g, Needs) -> GradList { return {g}; });
}

Tensor sub(In x, Scalar s) {
  launch::check_defined("sub", x);
  launch::check_factor("sub", x->dtype(), s);
  return record("sub", unary(Unary::kAddScalar, x, launch::minus(s, x->dtype())), {x},
                [](const Tensor& g, Needs) -> GradList { return {g}; });
}

Tensor sub(Scalar s, In x) {
  launch::check_defined("sub", x);
  launch::check_factor("sub", x->dtype(), s);
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
  launch::check_defined("div", x);
  return record(
      "div", unary(Unary::kRdivScalar, x, s), {x},
      [x = Saved(x), s](const Tensor& g, Needs) -> GradList { return {neg(g * div(s, square(x.get())))}; });
}

namespace {

// Checks an integer power of an integer tensor, whose result is an integer tensor.
void check_power(const Tensor& x, Scalar s) {
  if (is_floating(x.dtype()) || !s.integral) return;
  launch::check_factor("pow", x.dtype(), s);
  if (s.i < 0)
    throw ValueError(str("pow: ", x.dtype(), " to the negative power ", s,
                         " is a fraction; convert it with to(kFloat32)"));
}

}  // namespace

Tensor pow(Fp32Arg x, Scalar s) {
  launch::check_defined("pow", x);
  check_power(x, s);
  return record("pow", unary(Unary::kPowScalar, x, s), {x},
                [x = Saved(x), s](const Tensor& g, Needs) -> GradList {
                  if (s.d == 0) return {zeros_like(g)};
                  if (s.d == 1) return {g};
                  if (s.d == 2) return {g * x.get() * 2};
                  return {g * (pow(x.get(), s.d - 1) * s.d)};
                });
}

Tensor pow(Scalar s, Fp32Arg x) {
  launch::check_defined("pow", x);
  Tensor y = unary(Unary::kRpowScalar, x, s);
  return record("pow", y, {x}, [y = SavedOutput(y), s](const Tensor& g, Needs) -> GradList {
    const Tensor power = y.get();
    // 0 ^ x is constant except where it is infinite
    if (s.d == 0) return {masked_fill(g * power * std::log(0.0), isfinite(power), 0)};
    return {g * power * std::log(s.d)};
  });
}

std::pair<Scalar, Scalar> formula::clamp_bounds(const char* name, DType t, std::optional<Scalar> low,
                                                std::optional<Scalar> high) {
  if (!low && !high) throw ValueError(str(name, ": give a low bound, a high one or both"));
  for (const auto& bound : {low, high})
    if (bound) launch::check_factor(name, t, *bound);
  const auto above = [name, t](Scalar a, Scalar b) {  // whole numbers by all their digits
    const bool whole = !is_floating(t) || (a.integral && b.integral);
    return whole ? a.to<int64_t>(name) > b.to<int64_t>(name) : a.d > b.d;
  };
  if (low && high && above(*low, *high))
    throw ValueError(str(name, ": low ", *low, " is above high ", *high));
  const auto ends = dispatch(t, [](auto tag) -> std::pair<Scalar, Scalar> {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>)
      return {std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max()};
    else return {-INFINITY, INFINITY};
  });
  return {low.value_or(ends.first), high.value_or(ends.second)};
}

Tensor clamp(In x, std::optional<Scalar> from, std::optional<Scalar> to) {
  launch::check_defined("clamp", x);
  const auto [low, high] = formula::clamp_bounds("clamp", x->dtype(), from, to);
  const bool held = low.d <= high.d;  // a NaN bound makes every element NaN
  return record("clamp", held ? unary(Unary::kClamp, x, low, high) : unary(Unary::kMulScalar, x, NAN), {x},
                [x = Saved(x), low = low, high = high](const Tensor& g, Needs) -> GradList {
                  const Tensor v = x.get();
                  return {formula::fused_or(Binary::kClampGrad, g, v, low, high, [&] {
                    return masked_fill(g, logical_not(logical_and(ge(v, low), le(v, high))), 0);
                  })};
                });
}

Tensor clamp(In x, In low, In high) {
  launch::check_defined("clamp", x, low, high);
  for (const In* bound : {&low, &high}) launch::check_devices("clamp", x, *bound);
  broadcast("clamp", broadcast("clamp", x->sizes(), low->sizes()), high->sizes());
  const DType t = promote(promote(x->dtype(), low->dtype()), high->dtype());
  return minimum(maximum(to(x.get(), t), low.get()), high.get());
}

namespace {

// op(x, s) in the compute dtype of x.
Tensor larger_or_smaller(const char* name, Binary op, const Tensor& x, Scalar s) {
  const DType t = launch::compute_dtype(OpClass::kNumeric, x.dtype());
  launch::check_scalar(name, t, s);
  return launch::binary(op, x, scalar_tensor(s, {.dtype = t, .device = x.device()}));
}

}  // namespace

Tensor maximum(In x, Scalar s) {
  launch::check_defined("maximum", x);
  return record("maximum", larger_or_smaller("maximum", Binary::kMaximum, x, s), {x},
                [x = Saved(x), s](const Tensor& g, Needs) -> GradList {
                  return {masked_fill(g, logical_not(ge(x.get(), s)), 0)};
                });
}

Tensor maximum(Scalar s, In x) { return maximum(x.get(), s); }

Tensor minimum(In x, Scalar s) {
  launch::check_defined("minimum", x);
  return record("minimum", larger_or_smaller("minimum", Binary::kMinimum, x, s), {x},
                [x = Saved(x), s](const Tensor& g, Needs) -> GradList {
                  return {masked_fill(g, logical_not(le(x.get(), s)), 0)};
                });
}

Tensor minimum(Scalar s, In x) { return minimum(x.get(), s); }

}  // namespace weft
