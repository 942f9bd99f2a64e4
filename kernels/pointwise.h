// The table of pointwise operations: one row per operation, and a functor of the same name in
// inner/functors.h. The class in a row determines the input and result dtypes. Backends instantiate exactly
// these rows, so a new operation needs a row and a functor.
//   kFloat  floating types only, same type out      kNumeric  all but bool, same type out
//   kAny    every type, same type out               kTest     every type, bool out
//   kBits   bool and integers, same type out
#pragma once

#include <cstdint>

#include <weft/kernels/dtype.h>

namespace weft {

/// The dtypes of a pointwise operation, by the classes at the head of this file.
enum class OpClass : uint8_t { kFloat, kNumeric, kAny, kTest, kBits };

// y = f(x; s, t) with up to two scalar parameters.
#define WEFT_UNARY_OPS(ROW)                                                          \
  ROW(Neg, kNumeric)                                                                 \
  ROW(Abs, kNumeric)                                                                 \
  ROW(Sign, kNumeric)                                                                \
  ROW(Square, kNumeric)                                                              \
  ROW(Exp, kFloat)                                                                   \
  ROW(Expm1, kFloat)                                                                 \
  ROW(Log, kFloat)                                                                   \
  ROW(Log1p, kFloat)                                                                 \
  ROW(Log2, kFloat)                                                                  \
  ROW(Sqrt, kFloat)                                                                  \
  ROW(Rsqrt, kFloat)                                                                 \
  ROW(Reciprocal, kFloat)                                                            \
  ROW(Sin, kFloat)                                                                   \
  ROW(Cos, kFloat)                                                                   \
  ROW(Tan, kFloat)                                                                   \
  ROW(Tanh, kFloat)                                                                  \
  ROW(Sigmoid, kFloat)                                                               \
  ROW(LogSigmoid, kFloat)                                                            \
  ROW(Erf, kFloat)                                                                   \
  ROW(Gelu, kFloat)                                                                  \
  ROW(GeluTanh, kFloat)                                                              \
  ROW(Silu, kFloat)                                                                  \
  ROW(Softplus, kFloat)                                                              \
  ROW(Relu, kNumeric)                                                                \
  ROW(LeakyRelu, kFloat)                                                             \
  ROW(Elu, kFloat)                                                                   \
  ROW(Floor, kFloat)                                                                 \
  ROW(Ceil, kFloat)                                                                  \
  ROW(Round, kFloat)                                                                 \
  ROW(Trunc, kFloat)                                                                 \
  ROW(AddScalar, kNumeric)  /* x + s */                                              \
  ROW(MulScalar, kNumeric)  /* x * s */                                              \
  ROW(DivScalar, kFloat)    /* x / s */                                              \
  ROW(RsubScalar, kNumeric) /* s - x */                                              \
  ROW(RdivScalar, kFloat)   /* s / x */                                              \
  ROW(PowScalar, kNumeric)  /* x ^ s */                                              \
  ROW(RpowScalar, kNumeric) /* s ^ x */                                              \
  ROW(Clamp, kNumeric)      /* min(max(x, s), t) */                                  \
  ROW(EqScalar, kTest)                                                               \
  ROW(NeScalar, kTest)                                                               \
  ROW(LtScalar, kTest)                                                               \
  ROW(LeScalar, kTest)                                                               \
  ROW(GtScalar, kTest)                                                               \
  ROW(GeScalar, kTest)                                                               \
  ROW(NanToNum, kFloat) /* NaN becomes s; all other values are clamped to [-t, t] */ \
  ROW(LogicalNot, kTest)                                                             \
  ROW(IsNan, kTest)                                                                  \
  ROW(IsInf, kTest)                                                                  \
  ROW(IsFinite, kTest)

// y = f(a, b; s, t) of operands of equal sizes (broadcast dims have stride 0).
#define WEFT_BINARY_OPS(ROW)                                  \
  ROW(Add, kNumeric) /* a + s * b */                          \
  ROW(Sub, kNumeric)                                          \
  ROW(Mul, kNumeric)                                          \
  ROW(Div, kFloat)                                            \
  ROW(Pow, kNumeric)                                          \
  ROW(Maximum, kNumeric)                                      \
  ROW(Minimum, kNumeric)                                      \
  ROW(Remainder, kNumeric) /* sign of b, as Python's % */     \
  ROW(Fmod, kNumeric)      /* sign of a, as C's % */          \
  ROW(FloorDivide, kNumeric)                                  \
  ROW(Atan2, kFloat)                                          \
  ROW(Eq, kTest)                                              \
  ROW(Ne, kTest)                                              \
  ROW(Lt, kTest)                                              \
  ROW(Le, kTest)                                              \
  ROW(Gt, kTest)                                              \
  ROW(Ge, kTest)                                              \
  ROW(LogicalAnd, kTest)                                      \
  ROW(LogicalOr, kTest)                                       \
  ROW(LogicalXor, kTest)                                      \
  ROW(BitwiseAnd, kBits)                                      \
  ROW(BitwiseOr, kBits)                                       \
  ROW(BitwiseXor, kBits)                                      \
  /* gradients in one pass; the first argument is g */        \
  ROW(TanhGrad, kFloat)      /* g * (1 - y*y) */              \
  ROW(SigmoidGrad, kFloat)   /* g * y * (1 - y) */            \
  ROW(ReluGrad, kFloat)      /* y <= 0 ? 0 : g */             \
  ROW(LeakyReluGrad, kFloat) /* x > 0 ? g : s * g */          \
  ROW(EluGrad, kFloat)       /* x > 0 ? g : g * s * exp(x) */ \
  ROW(GeluGrad, kFloat)                                       \
  ROW(GeluTanhGrad, kFloat)                                   \
  ROW(SiluGrad, kFloat)                                       \
  ROW(SoftplusGrad, kFloat) /* of x */                        \
  ROW(AbsGrad, kFloat)      /* g * sign(x) */                 \
  ROW(ClampGrad, kFloat)    /* s <= x <= t ? g : 0 */         \
  ROW(LogisticLoss, kFloat) /* -(t log p + (1 - t) log(1 - p)), p = sigmoid(x), of (x, t) */

// y = f(a, b, c; s).
#define WEFT_TERNARY_OPS(ROW)                         \
  ROW(Addcmul, kNumeric)        /* a + s * b * c */   \
  ROW(Addcdiv, kFloat)          /* a + s * b / c */   \
  ROW(Lerp, kFloat)             /* a + c * (b - a) */ \
  ROW(LogisticLossGrad, kFloat) /* g * (sigmoid(x) - t) of (g, x, t) */

/// Whether operations of class c compute in dtype t.
constexpr bool takes(OpClass c, DType t) {
  switch (c) {
    case OpClass::kFloat: return is_floating(t);
    case OpClass::kNumeric: return t != kBool;
    case OpClass::kBits: return !is_floating(t);
    case OpClass::kAny:
    case OpClass::kTest: return true;
  }
  return false;
}

#define WEFT_ENUMERATOR(name, cls) k##name,
/// The operations of the table, by number of operands.
enum class Unary : uint8_t { WEFT_UNARY_OPS(WEFT_ENUMERATOR) kCount };
enum class Binary : uint8_t { WEFT_BINARY_OPS(WEFT_ENUMERATOR) kCount };
enum class Ternary : uint8_t { WEFT_TERNARY_OPS(WEFT_ENUMERATOR) kCount };
#undef WEFT_ENUMERATOR

namespace detail {  // not in the functions, which would build them on the stack
#define WEFT_CLASS(name, cls) OpClass::cls,
inline constexpr OpClass unary_classes[] = {WEFT_UNARY_OPS(WEFT_CLASS)};
inline constexpr OpClass binary_classes[] = {WEFT_BINARY_OPS(WEFT_CLASS)};
inline constexpr OpClass ternary_classes[] = {WEFT_TERNARY_OPS(WEFT_CLASS)};
#undef WEFT_CLASS
}  // namespace detail
constexpr OpClass op_class(Unary op) { return detail::unary_classes[static_cast<int>(op)]; }
constexpr OpClass op_class(Binary op) { return detail::binary_classes[static_cast<int>(op)]; }
constexpr OpClass op_class(Ternary op) { return detail::ternary_classes[static_cast<int>(op)]; }
#define WEFT_NAME(name, cls) #name,
constexpr const char* to_string(Unary op) {
  constexpr const char* t[] = {WEFT_UNARY_OPS(WEFT_NAME)};
  return t[static_cast<int>(op)];
}
constexpr const char* to_string(Binary op) {
  constexpr const char* t[] = {WEFT_BINARY_OPS(WEFT_NAME)};
  return t[static_cast<int>(op)];
}
constexpr const char* to_string(Ternary op) {
  constexpr const char* t[] = {WEFT_TERNARY_OPS(WEFT_NAME)};
  return t[static_cast<int>(op)];
}
#undef WEFT_NAME

}  // namespace weft
