// Functions of two and three tensors with broadcasting. Formulas return gradients of the broadcast sizes; the
// engine sums them to the sizes of the inputs.
#include <weft/autograd/ops/inner/formula.h>

namespace weft {

using formula::number_like;
using formula::saved_for;
using launch::binary;

Tensor add(In a, In b, Scalar alpha) {
  return record("add", binary(Binary::kAdd, a, b, alpha), {a, b}, [alpha](Tensor g, Needs needs) -> GradList {
    Tensor db = !needs[1] ? Tensor() : alpha.d == 1 ? g : g * alpha;
    return {std::move(g), std::move(db)};
  });
}

Tensor sub(In a, In b, Scalar alpha) {
  launch::check_defined("sub", a, b);
  if (alpha.d != 1) {  // the checks of add, in the name of this
    launch::check_devices("sub", a, b);
    const DType t = promote(a->dtype(), b->dtype());
    launch::check_factor("sub", t, alpha);
    broadcast("sub", a->sizes(), b->sizes());
    Tensor y = binary(Binary::kAdd, a, b, launch::minus(alpha, t));
    return record("sub", y, {a, b}, [alpha](const Tensor& g, Needs needs) -> GradList {
      return {g, needs[1] ? g * launch::minus(alpha, g.dtype()) : Tensor()};
    });
  }
  return record("sub", binary(Binary::kSub, a, b), {a, b}, [](const Tensor& g, Needs needs) -> GradList {
    return {g, needs[1] ? neg(g) : Tensor()};
  });
}

Tensor mul(In a, In b) {
  return record("mul", binary(Binary::kMul, a, b), {a, b},
                [a = saved_for(b, a), b = saved_for(a, b)](const Tensor& g, Needs needs) -> GradList {
                  return {needs[0] ? g * b.get() : Tensor(), needs[1] ? g * a.get() : Tensor()};
                });
}

Tensor div(In a, In b) {
  return record("div", binary(Binary::kDiv, a, b), {a, b},
                [a = saved_for(b, a), b = Saved(b)](const Tensor& g, Needs needs) -> GradList {
                  const Tensor d = b.get(), da = g / d;
                  return {da, needs[1] ? neg(da * (a.get() / d)) : Tensor()};
                });
}

Tensor pow(Fp32Arg a, Fp32Arg b) {
  return record("pow", binary(Binary::kPow, a, b), {a, b},
                [a = Saved(a), b = Saved(b)](const Tensor& g, Needs needs) -> GradList {
                  const Tensor x = to(a.get(), g.dtype()), e = to(b.get(), g.dtype());
                  Tensor da, db;
                  if (needs[0]) {  // at e = 0 the factor e wins over an infinite power
                    const Tensor base = where(eq(e, 0), number_like(x, 1), x);
                    da = g * e * pow(base, e - 1);
                  }
                  if (needs[1]) {  // 0 to a power >= 0 is flat in the power
                    const Tensor flat = logical_and(eq(x, 0), ge(e, 0));
                    const Tensor base = where(flat, number_like(x, 1), x);
                    db = g * pow(x, e) * log(base);
                  }
                  return {da, db};
                });
}

namespace {

// The chosen element gets g, a tie halves it. If one is NaN, both get g.
GradList split_by_order(const Tensor& g, const Tensor& a_loses, const Tensor& b_loses, const Tensor& tie) {
  const Tensor share = where(tie, g * 0.5, g);
  return {masked_fill(share, a_loses, 0), masked_fill(share, b_loses, 0)};
}

}  // namespace

Tensor maximum(In a, In b) {
  return record("maximum", binary(Binary::kMaximum, a, b), {a, b},
                [a = Saved(a), b = Saved(b)](const Tensor& g, Needs) {
                  return split_by_order(g, lt(a.get(), b.get()), gt(a.get(), b.get()), eq(a.get(), b.get()));
                });
}

Tensor minimum(In a, In b) {
  return record("minimum", binary(Binary::kMinimum, a, b), {a, b},
                [a = Saved(a), b = Saved(b)](const Tensor& g, Needs) {
                  return split_by_order(g, gt(a.get(), b.get()), lt(a.get(), b.get()), eq(a.get(), b.get()));
                });
}

namespace {

[[noreturn]] void refuse_zero(const char* name) {
  throw ValueError(str(name, ": a divisor is 0 (integers have no infinity)"));
}

// Throws: ValueError for an integer division by zero on the CPU. On a device the check would have to wait.
void check_divisor(const char* name, const Tensor& a, const Tensor& b) {
  if (is_floating(a.dtype()) || is_floating(b.dtype()) || !b.device().is_cpu()) return;
  if (any(logical_not(b)).item<bool>()) refuse_zero(name);
}

}  // namespace

Tensor remainder(In a, In b) {
  launch::check_defined("remainder", a, b);
  launch::check_devices("remainder", a, b);
  check_divisor("remainder", a, b);
  return record("remainder", binary(Binary::kRemainder, a, b), {a, b},
                [a = saved_for(b, a), b = saved_for(b, b)](const Tensor& g, Needs needs) -> GradList {
                  return {g, needs[1] ? neg(g * floor_divide(a.get(), b.get())) : Tensor()};
                });
}

Tensor fmod(In a, In b) {
  launch::check_defined("fmod", a, b);
  launch::check_devices("fmod", a, b);
  check_divisor("fmod", a, b);
  return record("fmod", binary(Binary::kFmod, a, b), {a, b},
                [a = saved_for(b, a), b = saved_for(b, b)](const Tensor& g, Needs needs) -> GradList {
                  if (!needs[1]) return {g, Tensor()};
                  const Tensor x = a.get(), d = b.get();
                  return {g, neg(g * (floor_divide(abs(x), abs(d)) * sign(x / d)))};
                });
}

Tensor floor_divide(In a, In b) {
  launch::check_defined("floor_divide", a, b);
  launch::check_devices("floor_divide", a, b);
  check_divisor("floor_divide", a, b);
  return binary(Binary::kFloorDivide, a, b);
}

namespace {

// op(x, s) with s as a tensor of the compute dtype: int64 for bool, float32 for the half dtypes.
template <class F> Tensor with_number(const char* name, const Tensor& x, Scalar s, F&& op) {
  launch::check_defined(name, x);
  launch::check_factor(name, x.dtype(), s);
  if (is_half(x.dtype()))
    return formula::in_float(x, [&](const Tensor& v) { return with_number(name, v, s, op); });
  return op(x, scalar_tensor(
                   s, {.dtype = launch::compute_dtype(OpClass::kNumeric, x.dtype()), .device = x.device()}));
}

// The same with s as the divisor, which no device has to be waited for.
template <class F> Tensor by_number(const char* name, const Tensor& x, Scalar s, F&& op) {
  launch::check_defined(name, x);
  if (!is_floating(x.dtype()) && s.d == 0) refuse_zero(name);
  return with_number(name, x, s, op);
}

}  // namespace

Tensor remainder(In x, Scalar s) {
  return by_number("remainder", x, s, [](const Tensor& v, const Tensor& n) { return remainder(v, n); });
}

Tensor remainder(Scalar s, In x) {
  return with_number("remainder", x, s, [](const Tensor& v, const Tensor& n) { return remainder(n, v); });
}

Tensor fmod(In x, Scalar s) {
  return by_number("fmod", x, s, [](const Tensor& v, const Tensor& n) { return fmod(v, n); });
}

Tensor floor_divide(In x, Scalar s) {
  return by_number("floor_divide", x, s, [](const Tensor& v, const Tensor& n) { return floor_divide(v, n); });
}

Tensor floor_divide(Scalar s, In x) {
  return with_number("floor_divide", x, s,
                     [](const Tensor& v, const Tensor& n) { return floor_divide(n, v); });
}

Tensor atan2(In a, In b) {
  return record("atan2", binary(Binary::kAtan2, a, b), {a, b},
                [a = Saved(a), b = Saved(b)](const Tensor& g, Needs) -> GradList {
                  const Tensor y = to(a.get(), g.dtype()), x = to(b.get(), g.dtype()),
                               length = square(y) + square(x);
                  const Tensor scaled = g / masked_fill(length, eq(length, 0), 1);  // 0 at the origin
                  return {scaled * x, neg(scaled * y)};
                });
}

Tensor where(In cond, In a, In b) {
  return record(
      "where", launch::where(cond, a, b), {cond, a, b},
      [cond = Saved(cond)](const Tensor& g, Needs needs) -> GradList {
        const Tensor c = cond.get(), zero = number_like(g, 0);
        return {Tensor(), needs[1] ? where(c, g, zero) : Tensor(), needs[2] ? where(c, zero, g) : Tensor()};
      });
}

namespace {

Tensor number_of(const Tensor& cond, const Tensor& x, Scalar value) {
  launch::check_defined("where", cond, x);
  launch::check_scalar("where", x.dtype(), value);
  return number_like(x, value);
}

}  // namespace

Tensor where(In cond, In a, Scalar b) { return where(cond.get(), a.get(), number_of(cond, a, b)); }
Tensor where(In cond, Scalar a, In b) { return where(cond.get(), number_of(cond, b, a), b.get()); }
Tensor where(In cond, Scalar a, Scalar b) {
  launch::check_defined("where", cond);
  const TensorOptions type{.dtype = a.integral && b.integral ? kInt64 : kFloat32, .device = cond->device()};
  for (const Scalar s : {a, b}) launch::check_scalar("where", type.dtype, s);
  return where(cond.get(), scalar_tensor(a, type), scalar_tensor(b, type));
}

Tensor masked_fill(In x, In mask, Scalar value) {
  launch::check_defined("masked_fill", x, mask);
  if (mask->dtype() != kBool)
    throw DTypeError(str("masked_fill: the mask must be bool, got ", mask->dtype()));
  launch::check_scalar("masked_fill", x->dtype(), value);
  broadcast("masked_fill", x->sizes(), mask->sizes());
  return record(
      "masked_fill", launch::where(mask, number_like(x, value), x), {x},
      [mask = Saved(mask)](const Tensor& g, Needs) -> GradList { return {masked_fill(g, mask.get(), 0)}; });
}

Tensor addcmul(In x, In a, In b, Scalar value) {
  return record(
      "addcmul", launch::ternary(Ternary::kAddcmul, x, a, b, value), {x, a, b},
      [a = saved_for(b, a), b = saved_for(a, b), value](const Tensor& g, Needs needs) -> GradList {
        return {g, needs[1] ? g * b.get() * value : Tensor(), needs[2] ? g * a.get() * value : Tensor()};
      });
}

Tensor addcdiv(In x, In a, In b, Scalar value) {
  return record("addcdiv", launch::ternary(Ternary::kAddcdiv, x, a, b, value), {x, a, b},
                [a = saved_for(b, a), b = Saved(b), value](const Tensor& g, Needs needs) -> GradList {
                  const Tensor d = b.get(), da = g / d * value;
                  return {g, da, needs[2] ? neg(da * (a.get() / d)) : Tensor()};
                });
}

Tensor lerp(In a, In b, In w) {
  return record(
      "lerp", launch::ternary(Ternary::kLerp, a, b, w), {a, b, w},
      [a = saved_for(w, a), b = saved_for(w, b), w = Saved(w)](const Tensor& g, Needs needs) -> GradList {
        return {needs[0] ? g * (1 - w.get()) : Tensor(), needs[1] ? g * w.get() : Tensor(),
                needs[2] ? g * (b.get() - a.get()) : Tensor()};
      });
}

Tensor lerp(In a, In b, Scalar w) {
  launch::check_defined("lerp", a, b);
  const DType t = launch::compute_dtype(OpClass::kFloat, promote(a->dtype(), b->dtype()));
  launch::check_factor("lerp", t, w);
  const Tensor weight = scalar_tensor(w, {.dtype = accumulate_type(t), .device = a->device()});
  Tensor y = launch::cast(launch::ternary(Ternary::kLerp, a, b, weight), t);
  return record("lerp", y, {a, b}, [w](const Tensor& g, Needs needs) -> GradList {
    return {needs[0] ? g * (1 - w.d) : Tensor(), needs[1] ? g * w : Tensor()};
  });
}

}  // namespace weft
