// The table of pointwise operations: one row per operation and one functor of the same name in functors.h. A row says which
// input types it takes and what comes out; backends instantiate exactly the rows, so a new operation is a row and a functor.
//   kFloat  floating types only, same type out      kNumeric  all but bool, same type out
//   kAny    every type, same type out               kTest     every type, bool out
#pragma once

#include <cstdint>

#include <weft/kernels/dtype.h>

namespace weft {

enum class OpClass : uint8_t { kFloat, kNumeric, kAny, kTest };

// y = f(x; s, t) with up to two scalar parameters.
#define WEFT_UNARY_OPS(X)                                                                                    \
  X(Neg, kNumeric)                                                                                           \
  X(Abs, kNumeric) X(Sign, kNumeric) X(Square, kNumeric) X(Exp, kFloat) X(Expm1, kFloat) X(Log, kFloat)      \
      X(Log1p, kFloat) X(Log2, kFloat) X(Sqrt, kFloat) X(Rsqrt, kFloat) X(Reciprocal, kFloat) X(Sin, kFloat) \
          X(Cos, kFloat) X(Tan, kFloat) X(Tanh, kFloat) X(Sigmoid, kFloat) X(LogSigmoid, kFloat)             \
              X(Erf, kFloat) X(Gelu, kFloat) X(GeluTanh, kFloat) X(Silu, kFloat) X(Softplus, kFloat)         \
                  X(Relu, kNumeric) X(LeakyRelu, kFloat) X(Elu, kFloat) X(Floor, kFloat) X(Ceil, kFloat)     \
                      X(Round, kFloat) X(Trunc, kFloat) X(AddScalar, kNumeric) /* x + s */                   \
      X(MulScalar, kNumeric)                                                   /* x * s */                   \
      X(DivScalar, kFloat)                                                     /* x / s */                   \
      X(RsubScalar, kNumeric)                                                  /* s - x */                   \
      X(RdivScalar, kFloat)                                                    /* s / x */                   \
      X(PowScalar, kFloat)                                                     /* x ^ s */                   \
      X(RpowScalar, kFloat)                                                    /* s ^ x */                   \
      X(Clamp, kNumeric)                                                       /* min(max(x, s), t) */       \
      X(EqScalar, kTest) X(NeScalar, kTest) X(LtScalar, kTest) X(LeScalar, kTest) X(GtScalar, kTest)         \
          X(GeScalar, kTest) X(LogicalNot, kTest) X(IsNan, kTest) X(IsFinite, kTest)

// y = f(a, b; s); sizes already equal (broadcast dims have stride 0).
#define WEFT_BINARY_OPS(X)                                                                               \
  X(Add, kNumeric) /* a + s * b */                                                                       \
  X(Sub, kNumeric)                                                                                       \
  X(Mul, kNumeric) X(Div, kFloat) X(Pow, kFloat) X(Maximum, kNumeric) X(Minimum, kNumeric)               \
      X(Remainder, kNumeric) /* sign of b, as Python's % */                                              \
      X(Atan2, kFloat) X(Eq, kTest) X(Ne, kTest) X(Lt, kTest) X(Le, kTest) X(Gt, kTest) X(Ge, kTest)     \
          X(LogicalAnd, kTest) X(LogicalOr, kTest)                                                       \
              X(LogicalXor, kTest) /* gradients in one pass; the first argument is g */                  \
      X(TanhGrad, kFloat)          /* g * (1 - y*y) */                                                   \
      X(SigmoidGrad, kFloat)       /* g * y * (1 - y) */                                                 \
      X(ReluGrad, kFloat)          /* y > 0 ? g : 0 */                                                   \
      X(LeakyReluGrad, kFloat)     /* x > 0 ? g : s * g */                                               \
      X(EluGrad, kFloat)           /* x > 0 ? g : g * s * exp(x) */                                      \
      X(GeluGrad, kFloat) X(GeluTanhGrad, kFloat) X(SiluGrad, kFloat) X(SoftplusGrad, kFloat) /* of x */ \
      X(AbsGrad, kFloat)   /* g * sign(x) */                                                             \
      X(ClampGrad, kFloat) /* s <= x <= t ? g : 0 */

// y = f(a, b, c; s).
#define WEFT_TERNARY_OPS(X)                \
  X(Addcmul, kNumeric) /* a + s * b * c */ \
  X(Addcdiv, kFloat)   /* a + s * b / c */ \
  X(Lerp, kFloat)      /* a + c * (b - a) */

#define WEFT_ENUMERATOR(name, cls) k##name,
enum class Unary : uint8_t { WEFT_UNARY_OPS(WEFT_ENUMERATOR) kCount };
enum class Binary : uint8_t { WEFT_BINARY_OPS(WEFT_ENUMERATOR) kCount };
enum class Ternary : uint8_t { WEFT_TERNARY_OPS(WEFT_ENUMERATOR) kCount };
#undef WEFT_ENUMERATOR

#define WEFT_CLASS(name, cls) OpClass::cls,
constexpr OpClass op_class(Unary op) {
  constexpr OpClass t[] = {WEFT_UNARY_OPS(WEFT_CLASS)};
  return t[static_cast<int>(op)];
}
constexpr OpClass op_class(Binary op) {
  constexpr OpClass t[] = {WEFT_BINARY_OPS(WEFT_CLASS)};
  return t[static_cast<int>(op)];
}
constexpr OpClass op_class(Ternary op) {
  constexpr OpClass t[] = {WEFT_TERNARY_OPS(WEFT_CLASS)};
  return t[static_cast<int>(op)];
}
#undef WEFT_CLASS
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
