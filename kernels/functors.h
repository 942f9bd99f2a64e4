// The arithmetic of the pointwise table (pointwise.h): one functor per row, of the row's name, shared by all devices. s and t are the
// scalar parameters. T is a computing type: float, double or int64 (the half types are converted outside). Sources of constants are named.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define WEFT_HD __host__ __device__ __forceinline__
#else
#define WEFT_HD inline __attribute__((always_inline))
#endif

namespace weft::functors {


#define WEFT_UNARY(Name, expression)                                              \
  struct Name {                                                                   \
    template <class T> WEFT_HD static T run(T x, [[maybe_unused]] T s, [[maybe_unused]] T t) { \
      using std::abs, std::exp, std::expm1, std::log, std::log1p, std::log2, std::sqrt, std::sin, std::cos, std::tan, std::tanh, \
          std::erf, std::floor, std::ceil, std::nearbyint, std::trunc, std::pow; \
      return static_cast<T>(expression);                                          \
    }                                                                             \
  };

/// 1 / (1 + e^-x) without overflow.
template <class T> WEFT_HD T logistic(T x) { return T(1) / (T(1) + std::exp(-x)); }
template <class T> WEFT_HD T softplus_of(T x) { return (x > 0 ? x : T(0)) + std::log1p(std::exp(x > 0 ? -x : x)); }
template <class T> WEFT_HD T normal_cdf(T x) { return T(0.5) * std::erfc(-x * T(0.70710678118654752)); }
template <class T> WEFT_HD T normal_density(T x) { return T(0.39894228040143268) * std::exp(T(-0.5) * x * x); }
/// The inner part of the tanh form of gelu: sqrt(2 / pi) (x + 0.044715 x^3).
template <class T> WEFT_HD T gelu_inner(T x) { return T(0.79788456080286536) * (x + T(0.044715) * x * x * x); }

WEFT_UNARY(Neg, T(0) - x)
WEFT_UNARY(Abs, x < 0 ? T(0) - x : x + T(0))
WEFT_UNARY(Sign, (x > 0) - (x < 0))
WEFT_UNARY(Square, x * x)
WEFT_UNARY(Exp, exp(x))
WEFT_UNARY(Expm1, expm1(x))
WEFT_UNARY(Log, log(x))
WEFT_UNARY(Log1p, log1p(x))
WEFT_UNARY(Log2, log2(x))
WEFT_UNARY(Sqrt, sqrt(x))
WEFT_UNARY(Rsqrt, T(1) / sqrt(x))
WEFT_UNARY(Reciprocal, T(1) / x)
WEFT_UNARY(Sin, sin(x))
WEFT_UNARY(Cos, cos(x))
WEFT_UNARY(Tan, tan(x))
WEFT_UNARY(Tanh, tanh(x))
WEFT_UNARY(Sigmoid, logistic(x))
WEFT_UNARY(LogSigmoid, -softplus_of(-x))
WEFT_UNARY(Erf, erf(x))
WEFT_UNARY(Gelu, x * normal_cdf(x))
WEFT_UNARY(GeluTanh, T(0.5) * x * (T(1) + tanh(gelu_inner(x))))
WEFT_UNARY(Silu, x * logistic(x))
WEFT_UNARY(Softplus, softplus_of(x))
WEFT_UNARY(Relu, x > 0 ? x : (x != x ? x : T(0)))
WEFT_UNARY(LeakyRelu, x > 0 ? x : s * x)
WEFT_UNARY(Elu, x > 0 ? x : s * expm1(x))
WEFT_UNARY(Floor, floor(x))
WEFT_UNARY(Ceil, ceil(x))
WEFT_UNARY(Round, nearbyint(x))
WEFT_UNARY(Trunc, trunc(x))
WEFT_UNARY(AddScalar, x + s)
WEFT_UNARY(MulScalar, x * s)
WEFT_UNARY(DivScalar, x / s)
WEFT_UNARY(RsubScalar, s - x)
WEFT_UNARY(RdivScalar, s / x)
WEFT_UNARY(PowScalar, s == T(2) ? x * x : s == T(1) ? x : s == T(0.5) ? sqrt(x) : s == T(3) ? x * x * x : s == T(-1) ? T(1) / x : s == T(0) ? T(1) : pow(x, s))
WEFT_UNARY(RpowScalar, pow(s, x))
WEFT_UNARY(Clamp, x != x ? x : x < s ? s : x > t ? t : x)
#undef WEFT_UNARY

#define WEFT_TEST(Name, expression)                                                                     \
  struct Name {                                                                                         \
    template <class T> WEFT_HD static bool run(T x, [[maybe_unused]] T s, [[maybe_unused]] T t) { return expression; } \
  };
WEFT_TEST(EqScalar, x == s)
WEFT_TEST(NeScalar, x != s)
WEFT_TEST(LtScalar, x < s)
WEFT_TEST(LeScalar, x <= s)
WEFT_TEST(GtScalar, x > s)
WEFT_TEST(GeScalar, x >= s)
WEFT_TEST(LogicalNot, x == T(0))
WEFT_TEST(IsNan, x != x)
WEFT_TEST(IsFinite, x - x == T(0))
#undef WEFT_TEST

#define WEFT_BINARY(Name, Result, expression)                                                                          \
  struct Name {                                                                                                        \
    template <class T> WEFT_HD static Result run(T a, T b, [[maybe_unused]] T s, [[maybe_unused]] T t) {               \
      return static_cast<Result>(expression);                                                                          \
    }                                                                                                                  \
  };
/// a - b floor(a / b).
template <class T> WEFT_HD T modulo(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == 0) return 0;
    const T r = b == -1 ? 0 : a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  } else {
    const T r = std::fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  }
}

WEFT_BINARY(Add, T, a + s * b)
WEFT_BINARY(Sub, T, a - b)
WEFT_BINARY(Mul, T, a * b)
WEFT_BINARY(Div, T, a / b)
WEFT_BINARY(Pow, T, std::pow(a, b))
WEFT_BINARY(Maximum, T, (a > b || a != a) ? a : b)
WEFT_BINARY(Minimum, T, (a < b || a != a) ? a : b)
WEFT_BINARY(Remainder, T, modulo(a, b))
WEFT_BINARY(Atan2, T, std::atan2(a, b))
WEFT_BINARY(Eq, bool, a == b)
WEFT_BINARY(Ne, bool, a != b)
WEFT_BINARY(Lt, bool, a < b)
WEFT_BINARY(Le, bool, a <= b)
WEFT_BINARY(Gt, bool, a > b)
WEFT_BINARY(Ge, bool, a >= b)
WEFT_BINARY(LogicalAnd, bool, a != T(0) && b != T(0))
WEFT_BINARY(LogicalOr, bool, a != T(0) || b != T(0))
WEFT_BINARY(LogicalXor, bool, (a != T(0)) != (b != T(0)))
// a is the incoming gradient, b the output (Tanh, Sigmoid) or the input.
WEFT_BINARY(TanhGrad, T, a * (T(1) - b * b))
WEFT_BINARY(SigmoidGrad, T, a * b * (T(1) - b))
WEFT_BINARY(ReluGrad, T, b > 0 ? a : T(0))
WEFT_BINARY(LeakyReluGrad, T, b > 0 ? a : s * a)
WEFT_BINARY(EluGrad, T, b > 0 ? a : a * s * std::exp(b))
WEFT_BINARY(GeluGrad, T, a * (normal_cdf(b) + b * normal_density(b)))
WEFT_BINARY(SiluGrad, T, a * logistic(b) * (T(1) + b * (T(1) - logistic(b))))
WEFT_BINARY(SoftplusGrad, T, a * logistic(b))
WEFT_BINARY(AbsGrad, T, b > 0 ? a : b < 0 ? -a : T(0))
WEFT_BINARY(ClampGrad, T, b >= s && b <= t ? a : T(0))
struct GeluTanhGrad {
  template <class T> WEFT_HD static T run(T g, T x, T, T) {
    const T y = std::tanh(gelu_inner(x)), inner = T(0.79788456080286536) * (T(1) + T(3 * 0.044715) * x * x);
    return g * (T(0.5) * (T(1) + y) + T(0.5) * x * (T(1) - y * y) * inner);
  }
};
#undef WEFT_BINARY

#define WEFT_TERNARY(Name, expression) \
  struct Name { template <class T> WEFT_HD static T run(T a, T b, T c, [[maybe_unused]] T s) { return expression; } };
WEFT_TERNARY(Addcmul, a + s * b * c)
WEFT_TERNARY(Addcdiv, a + s * b / c)
WEFT_TERNARY(Lerp, a + c * (b - a))
#undef WEFT_TERNARY

}  // namespace weft::functors
