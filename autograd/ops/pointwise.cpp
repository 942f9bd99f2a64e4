// Functions of one tensor: launch, record and gradient formula. A fused gradient kernel is used if there is
// one, except while the backward is recorded.
#include <limits>
#include <numbers>

#include <weft/autograd/ops/inner/formula.h>

namespace weft {

using formula::fused_or;
using launch::unary;

Tensor neg(In x) {
  return record("neg", unary(Unary::kNeg, x), {x},
                [](const Tensor& g, Needs) -> GradList { return {neg(g)}; });
}

Tensor abs(In x) {
  return record("abs", unary(Unary::kAbs, x), {x}, [x = Saved(x)](const Tensor& g, Needs) -> GradList {
    const Tensor v = x.get();
    return {fused_or(Binary::kAbsGrad, g, v, [&] { return g * sign(v); })};
  });
}

Tensor square(In x) {
  return record("square", unary(Unary::kSquare, x), {x},
                [x = Saved(x)](const Tensor& g, Needs) -> GradList { return {g * x.get() * 2}; });
}

Tensor exp(Fp32Arg x) {
  Tensor y = unary(Unary::kExp, x);
  return record("exp", y, {x},
                [y = SavedOutput(y)](const Tensor& g, Needs) -> GradList { return {g * y.get()}; });
}

Tensor expm1(Fp32Arg x) {
  Tensor y = unary(Unary::kExpm1, x);
  return record("expm1", y, {x},
                [y = SavedOutput(y)](const Tensor& g, Needs) -> GradList { return {g * (y.get() + 1)}; });
}

Tensor log(Fp32Arg x) {
  return record("log", unary(Unary::kLog, x), {x},
                [x = Saved(x)](const Tensor& g, Needs) -> GradList { return {g / x.get()}; });
}

Tensor log1p(Fp32Arg x) {
  return record("log1p", unary(Unary::kLog1p, x), {x},
                [x = Saved(x)](const Tensor& g, Needs) -> GradList { return {g / (x.get() + 1)}; });
}

Tensor log2(Fp32Arg x) {
  return record("log2", unary(Unary::kLog2, x), {x}, [x = Saved(x)](const Tensor& g, Needs) -> GradList {
    return {g / (x.get() * std::numbers::ln2)};
  });
}

Tensor sqrt(In x) {
  Tensor y = unary(Unary::kSqrt, x);
  return record("sqrt", y, {x},
                [y = SavedOutput(y)](const Tensor& g, Needs) -> GradList { return {g / (y.get() * 2)}; });
}

Tensor rsqrt(Fp32Arg x) {
  Tensor y = unary(Unary::kRsqrt, x);
  return record("rsqrt", y, {x}, [y = SavedOutput(y)](const Tensor& g, Needs) -> GradList {
    const Tensor r = y.get();
    return {g * (r * square(r)) * -0.5};
  });
}

Tensor reciprocal(Fp32Arg x) {
  Tensor y = unary(Unary::kReciprocal, x);
  return record("reciprocal", y, {x}, [y = SavedOutput(y)](const Tensor& g, Needs) -> GradList {
    return {neg(g * square(y.get()))};
  });
}

Tensor sin(In x) {
  return record("sin", unary(Unary::kSin, x), {x},
                [x = Saved(x)](const Tensor& g, Needs) -> GradList { return {g * cos(x.get())}; });
}

Tensor cos(In x) {
  return record("cos", unary(Unary::kCos, x), {x},
                [x = Saved(x)](const Tensor& g, Needs) -> GradList { return {neg(g * sin(x.get()))}; });
}

Tensor tan(Fp32Arg x) {
  Tensor y = unary(Unary::kTan, x);
  return record("tan", y, {x}, [y = SavedOutput(y)](const Tensor& g, Needs) -> GradList {
    return {g * (square(y.get()) + 1)};
  });
}

Tensor tanh(In x) {
  Tensor y = unary(Unary::kTanh, x);
  return record("tanh", y, {x}, [y = SavedOutput(y)](const Tensor& g, Needs) -> GradList {
    const Tensor v = y.get();
    return {fused_or(Binary::kTanhGrad, g, v, [&] { return g * (1 - square(v)); })};
  });
}

Tensor sigmoid(In x) {
  Tensor y = unary(Unary::kSigmoid, x);
  return record("sigmoid", y, {x}, [y = SavedOutput(y)](const Tensor& g, Needs) -> GradList {
    const Tensor v = y.get();
    return {fused_or(Binary::kSigmoidGrad, g, v, [&] { return g * v * (1 - v); })};
  });
}

Tensor log_sigmoid(Fp32Arg x) {
  return record("log_sigmoid", unary(Unary::kLogSigmoid, x), {x},
                [x = Saved(x)](const Tensor& g, Needs) -> GradList { return {g * sigmoid(neg(x.get()))}; });
}

Tensor erf(In x) {
  return record("erf", unary(Unary::kErf, x), {x}, [x = Saved(x)](const Tensor& g, Needs) -> GradList {
    return {g * exp(neg(square(x.get()))) * (2 * std::numbers::inv_sqrtpi)};
  });
}

Tensor relu(In x) {
  Tensor y = unary(Unary::kRelu, x);
  return record("relu", y, {x}, [y = SavedOutput(y)](const Tensor& g, Needs) -> GradList {
    return {formula::relu_grad(g, y.get())};
  });
}

Tensor leaky_relu(In x, double slope) {
  return record("leaky_relu", unary(Unary::kLeakyRelu, x, slope), {x},
                [x = Saved(x), slope](const Tensor& g, Needs) -> GradList {
                  const Tensor v = x.get();
                  return {fused_or(Binary::kLeakyReluGrad, g, v, slope, 0,
                                   [&] { return where(gt(v, 0), g, g * slope); })};
                });
}

Tensor elu(In x, double alpha) {
  return record("elu", unary(Unary::kElu, x, alpha), {x},
                [x = Saved(x), alpha](const Tensor& g, Needs) -> GradList {
                  const Tensor v = x.get();
                  return {fused_or(Binary::kEluGrad, g, v, alpha, 0,
                                   [&] { return where(gt(v, 0), g, g * exp(minimum(v, 0)) * alpha); })};
                });
}

Tensor gelu(In x) {
  return record("gelu", unary(Unary::kGelu, x), {x}, [x = Saved(x)](const Tensor& g, Needs) -> GradList {
    const Tensor v = x.get();
    return {fused_or(Binary::kGeluGrad, g, v, [&] {
      const Tensor below = (erf(v * (1 / std::numbers::sqrt2)) + 1) * 0.5;  // Phi
      const Tensor density = exp(square(v) * -0.5) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
      return g * (below + v * density);
    })};
  });
}

Tensor formula::gelu_tanh_grad(const Tensor& g, const Tensor& x) {
  return fused_or(Binary::kGeluTanhGrad, g, x, [&] {
    constexpr double k = std::numbers::sqrt2 * std::numbers::inv_sqrtpi, c = 0.044715;
    const Tensor th = tanh((x + x * square(x) * c) * k);
    const Tensor inner = (square(x) * (3 * c) + 1) * k;
    return g * ((th + 1) * 0.5 + x * 0.5 * (1 - square(th)) * inner);
  });
}

Tensor gelu_tanh(In x) {
  return record(
      "gelu_tanh", unary(Unary::kGeluTanh, x), {x},
      [x = Saved(x)](const Tensor& g, Needs) -> GradList { return {formula::gelu_tanh_grad(g, x.get())}; });
}

Tensor silu(In x) {
  return record("silu", unary(Unary::kSilu, x), {x}, [x = Saved(x)](const Tensor& g, Needs) -> GradList {
    const Tensor v = x.get();
    return {fused_or(Binary::kSiluGrad, g, v, [&] {
      const Tensor s = sigmoid(v);
      return g * s * (v * (1 - s) + 1);
    })};
  });
}

Tensor softplus(Fp32Arg x) {
  return record("softplus", unary(Unary::kSoftplus, x), {x},
                [x = Saved(x)](const Tensor& g, Needs) -> GradList {
                  const Tensor v = x.get();
                  return {fused_or(Binary::kSoftplusGrad, g, v, [&] { return g * sigmoid(v); })};
                });
}

namespace {

double largest_finite(DType t) {
  switch (t) {
    case kFloat16: return 65504;
    case kBFloat16: return 0x1.FEp127;
    case kFloat32: return std::numeric_limits<float>::max();
    default: return std::numeric_limits<double>::max();
  }
}

}  // namespace

Tensor nan_to_num(In x, Scalar nan, std::optional<Scalar> posinf, std::optional<Scalar> neginf) {
  launch::check_defined("nan_to_num", x);
  if (!is_floating(x->dtype())) return launch::clone(x);
  for (const auto& number : {std::optional(nan), posinf, neginf})
    if (number) launch::check_scalar("nan_to_num", x->dtype(), *number);
  constexpr double inf = std::numeric_limits<double>::infinity();
  Tensor y = unary(Unary::kNanToNum, x, nan, largest_finite(x->dtype()));
  if (posinf || neginf) {
    NoGrad quiet;  // the whole op is one node
    if (posinf) y = masked_fill(y, eq(x.get(), inf), *posinf);
    if (neginf) y = masked_fill(y, eq(x.get(), -inf), *neginf);
  }
  return record("nan_to_num", y, {x}, [x = Saved(x)](const Tensor& g, Needs) -> GradList {
    return {masked_fill(g, logical_not(isfinite(x.get())), 0)};
  });
}

// Step functions: their gradient is zero almost everywhere. floor, ceil, round and trunc of integers are
// copies.
#define WEFT_FLAT_OP(name, row)                                                                       \
  Tensor name(In x) {                                                                                 \
    launch::check_defined(#name, x);                                                                  \
    if (op_class(Unary::row) == OpClass::kFloat && !is_floating(x->dtype())) return launch::clone(x); \
    return record(#name, unary(Unary::row, x), {x},                                                   \
                  [](const Tensor& g, Needs) -> GradList { return {zeros_like(g)}; });                \
  }
WEFT_FLAT_OP(sign, kSign)
WEFT_FLAT_OP(floor, kFloor)
WEFT_FLAT_OP(ceil, kCeil)
WEFT_FLAT_OP(round, kRound)
WEFT_FLAT_OP(trunc, kTrunc)
#undef WEFT_FLAT_OP

}  // namespace weft
