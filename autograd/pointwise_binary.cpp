// Functions of two and three tensors with broadcasting. Formulas give gradients of the broadcast sizes; the engine sums them back.
#include <weft/autograd/formula.h>

namespace weft {

using formula::number_like;
using formula::saved_for;
using launch::binary;

Tensor add(In a, In b, Scalar alpha) {
  return record("add", binary(Binary::kAdd, a, b, alpha), {a, b},
                [alpha](const Tensor& g, Needs needs) -> GradList {
                  return {g, !needs[1] ? Tensor() : alpha.d == 1 ? g : g * alpha};
                });
}

Tensor sub(In a, In b, Scalar alpha) {
  if (alpha.d != 1) {  // the checks of add, in the name of this
    launch::check_devices("sub", a, b);
    launch::check_scalar("sub", promote(a->dtype(), b->dtype()), alpha);
    broadcast("sub", a->sizes(), b->sizes());
    return add(a.get(), b.get(), alpha.integral ? Scalar(-alpha.i) : Scalar(-alpha.d));
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

Tensor pow(Wide a, Wide b) {
  return record("pow", binary(Binary::kPow, a, b), {a, b},
                [a = Saved(a), b = Saved(b)](const Tensor& g, Needs needs) -> GradList {
                  const Tensor x = a.get(), e = b.get();
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

// The larger or smaller takes g, a tie halves it.
GradList split_by_order(const Tensor& g, const Tensor& winner_is_a, const Tensor& tie) {
  const Tensor share = winner_is_a.to(g.dtype()) + tie.to(g.dtype()) * 0.5;
  const Tensor da = g * share;
  return {da, g - da};
}

}  // namespace

Tensor maximum(In a, In b) {
  return record("maximum", binary(Binary::kMaximum, a, b), {a, b},
                [a = Saved(a), b = Saved(b)](const Tensor& g, Needs) {
                  return split_by_order(g, gt(a.get(), b.get()), eq(a.get(), b.get()));
                });
}

Tensor minimum(In a, In b) {
  return record("minimum", binary(Binary::kMinimum, a, b), {a, b},
                [a = Saved(a), b = Saved(b)](const Tensor& g, Needs) {
                  return split_by_order(g, lt(a.get(), b.get()), eq(a.get(), b.get()));
                });
}

Tensor remainder(In a, In b) {
  return record("remainder", binary(Binary::kRemainder, a, b), {a, b},
                [a = saved_for(b, a), b = saved_for(b, b)](const Tensor& g, Needs needs) -> GradList {
                  return {g, needs[1] ? neg(g * floor(a.get() / b.get())) : Tensor()};
                });
}

Tensor atan2(In a, In b) {
  return record("atan2", binary(Binary::kAtan2, a, b), {a, b},
                [a = Saved(a), b = Saved(b)](const Tensor& g, Needs) -> GradList {
                  const Tensor y = a.get(), x = b.get(), scaled = g / (square(y) + square(x));
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

Tensor masked_fill(In x, In mask, Scalar value) {
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
        const Tensor db = g * w.get();
        return {g - db, db, needs[2] ? g * (b.get() - a.get()) : Tensor()};
      });
}

Tensor lerp(In a, In b, Scalar w) {
  const DType t = launch::compute_dtype(OpClass::kFloat, promote(a->dtype(), b->dtype()));
  Tensor y = launch::ternary(Ternary::kLerp, a, b, scalar_tensor(w, {.dtype = t, .device = a->device()}));
  return record("lerp", y, {a, b}, [w](const Tensor& g, Needs) -> GradList {
    const Tensor db = g * w;
    return {g - db, db};
  });
}

}  // namespace weft
