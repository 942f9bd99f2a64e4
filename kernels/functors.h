// The functor of every row of pointwise.h, shared by all backends. Each is a template over the type it computes in (float for the
// half types) with the scalar parameters of the row as members; a backend makes one object per call and applies it to each element.
// Maximum, minimum, clamp and relu hand a NaN on; comparisons follow IEEE.
#pragma once

#include <type_traits>

#include <weft/kernels/math.h>

namespace weft::kernels::functors {

#define WEFT_FUNCTOR1(Name, expression)                       \
  template <class T> struct Name {                            \
    T s, t;                                                   \
    WEFT_HD auto operator()(T x) const { return expression; } \
  };
#define WEFT_FUNCTOR2(Name, x, y, expression)                      \
  template <class T> struct Name {                                 \
    T s, t;                                                        \
    WEFT_HD auto operator()(T x, T y) const { return expression; } \
  };
#define WEFT_FUNCTOR3(Name, expression)                                 \
  template <class T> struct Name {                                      \
    T s, t;                                                             \
    WEFT_HD auto operator()(T a, T b, T c) const { return expression; } \
  };

/// The type arithmetic is done in: integers wrap around, so they are added as unsigned numbers of at least int's width.
template <class T>
using Ring = std::conditional_t<std::is_floating_point_v<T>, T,
                                std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>;
template <class T> WEFT_HD constexpr Ring<T> ring(T x) { return static_cast<Ring<T>>(x); }

// Unary.
WEFT_FUNCTOR1(Neg, static_cast<T>(-ring(x)))
WEFT_FUNCTOR1(Square, static_cast<T>(ring(x) * ring(x)))
WEFT_FUNCTOR1(Exp, math::exp(x))
WEFT_FUNCTOR1(Expm1, math::expm1(x))
WEFT_FUNCTOR1(Log, math::log(x))
WEFT_FUNCTOR1(Log1p, math::log1p(x))
WEFT_FUNCTOR1(Log2, math::log2(x))
WEFT_FUNCTOR1(Sqrt, std::sqrt(x))
WEFT_FUNCTOR1(Rsqrt, T(1) / std::sqrt(x))
WEFT_FUNCTOR1(Reciprocal, T(1) / x)
WEFT_FUNCTOR1(Sin, std::sin(x))
WEFT_FUNCTOR1(Cos, std::cos(x))
WEFT_FUNCTOR1(Tan, std::tan(x))
WEFT_FUNCTOR1(Tanh, math::tanh(x))
WEFT_FUNCTOR1(Sigmoid, math::sigmoid(x))
WEFT_FUNCTOR1(LogSigmoid, -math::softplus(-x))
WEFT_FUNCTOR1(Erf, math::erf(x))
WEFT_FUNCTOR1(Gelu, x* math::normal_cdf(x))
WEFT_FUNCTOR1(Silu, x* math::sigmoid(x))
WEFT_FUNCTOR1(Softplus, math::softplus(x))
WEFT_FUNCTOR1(Relu, static_cast<T>(x <= 0 ? T(0) : x))
WEFT_FUNCTOR1(LeakyRelu, x > 0 ? x : s * x)
WEFT_FUNCTOR1(Floor, std::floor(x))
WEFT_FUNCTOR1(Ceil, std::ceil(x))
WEFT_FUNCTOR1(Round, std::nearbyint(x))  // halves to even
WEFT_FUNCTOR1(Trunc, std::trunc(x))
WEFT_FUNCTOR1(AddScalar, static_cast<T>(ring(x) + ring(s)))
WEFT_FUNCTOR1(MulScalar, static_cast<T>(ring(x) * ring(s)))
WEFT_FUNCTOR1(DivScalar, x / s)
WEFT_FUNCTOR1(RsubScalar, static_cast<T>(ring(s) - ring(x)))
WEFT_FUNCTOR1(RdivScalar, s / x)
WEFT_FUNCTOR1(PowScalar, std::pow(x, s))
WEFT_FUNCTOR1(RpowScalar, std::pow(s, x))
WEFT_FUNCTOR1(EqScalar, x == s)
WEFT_FUNCTOR1(NeScalar, x != s)
WEFT_FUNCTOR1(LtScalar, x < s)
WEFT_FUNCTOR1(LeScalar, x <= s)
WEFT_FUNCTOR1(GtScalar, x > s)
WEFT_FUNCTOR1(GeScalar, x >= s)
WEFT_FUNCTOR1(LogicalNot, x == T(0))
WEFT_FUNCTOR1(IsNan, x != x)
WEFT_FUNCTOR1(IsFinite, x - x == T(0))  // inf - inf and NaN are not

template <class T> struct Abs {
  T s, t;
  WEFT_HD T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
    else if constexpr (std::is_unsigned_v<T>) return x;
    else return x < T(0) ? static_cast<T>(-ring(x)) : x;
  }
};
template <class T> struct Sign {
  T s, t;
  WEFT_HD T operator()(T x) const {
    if constexpr (std::is_unsigned_v<T>) return x != 0;
    else return static_cast<T>(x != x ? x : T(x > 0) - T(x < 0));
  }
};
template <class T> struct Clamp {
  T s, t;
  WEFT_HD T operator()(T x) const {
    const T low = x < s ? s : x;
    return low > t ? t : low;
  }
};
template <class T> struct Elu {
  T s, t;
  WEFT_HD T operator()(T x) const {
    const T below = s * math::expm1(x);
    return x > 0 ? x : below;
  }
};

/// The inner function of the tanh form of gelu: sqrt(2 / pi) (x + 0.044715 x^3), and its slope.
template <class T> WEFT_HD inline T gelu_inner(T x) {
  return T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
}
template <class T> WEFT_HD inline T gelu_slope(T x) {
  return T(0.79788456080286535588) * (T(1) + T(0.134145) * x * x);
}
WEFT_FUNCTOR1(GeluTanh, T(0.5) * x * (T(1) + math::tanh(gelu_inner(x))))

// Binary.
WEFT_FUNCTOR2(Add, a, b, static_cast<T>(ring(a) + ring(s) * ring(b)))
WEFT_FUNCTOR2(Sub, a, b, static_cast<T>(ring(a) - ring(b)))
WEFT_FUNCTOR2(Mul, a, b, static_cast<T>(ring(a) * ring(b)))
WEFT_FUNCTOR2(Div, a, b, a / b)
WEFT_FUNCTOR2(Pow, a, b, std::pow(a, b))
WEFT_FUNCTOR2(Maximum, a, b, static_cast<T>(a > b || a != a ? a : b))
WEFT_FUNCTOR2(Minimum, a, b, static_cast<T>(a < b || a != a ? a : b))
WEFT_FUNCTOR2(Atan2, a, b, std::atan2(a, b))
WEFT_FUNCTOR2(Eq, a, b, a == b)
WEFT_FUNCTOR2(Ne, a, b, a != b)
WEFT_FUNCTOR2(Lt, a, b, a < b)
WEFT_FUNCTOR2(Le, a, b, a <= b)
WEFT_FUNCTOR2(Gt, a, b, a > b)
WEFT_FUNCTOR2(Ge, a, b, a >= b)
WEFT_FUNCTOR2(LogicalAnd, a, b, (a != T(0)) & (b != T(0)))
WEFT_FUNCTOR2(LogicalOr, a, b, (a != T(0)) | (b != T(0)))
WEFT_FUNCTOR2(LogicalXor, a, b, (a != T(0)) != (b != T(0)))

template <class T> struct Remainder {
  T s, t;
  WEFT_HD T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      const T r = std::fmod(a, b);
      return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    } else if constexpr (std::is_signed_v<T>) {
      if (b == 0 || b == T(-1))
        return 0;  // undefined, and an overflow for the lowest number, in the language
      const T r = static_cast<T>(a % b);
      return r != 0 && (r < 0) != (b < 0) ? static_cast<T>(r + b) : r;
    } else {
      return b == 0 ? T(0) : static_cast<T>(a % b);
    }
  }
};

// Gradients.
WEFT_FUNCTOR2(TanhGrad, g, y, g*(T(1) - y * y))
WEFT_FUNCTOR2(SigmoidGrad, g, y, g* y*(T(1) - y))
WEFT_FUNCTOR2(ReluGrad, g, y, y > 0 ? g : T(0))
WEFT_FUNCTOR2(LeakyReluGrad, g, x, x > 0 ? g : s * g)
WEFT_FUNCTOR2(AbsGrad, g, x, g*(x != x ? x : T(x > 0) - T(x < 0)))
WEFT_FUNCTOR2(ClampGrad, g, x, (x >= s) & (x <= t) ? g : T(0))
WEFT_FUNCTOR2(SoftplusGrad, g, x, g* math::sigmoid(x))

template <class T> struct EluGrad {
  T s, t;
  WEFT_HD T operator()(T g, T x) const {
    const T below = g * s * math::exp(x);
    return x > 0 ? g : below;
  }
};
template <class T> struct GeluGrad {
  T s, t;
  WEFT_HD T operator()(T g, T x) const {
    const T density = T(0.39894228040143267794) * math::exp(T(-0.5) * x * x);
    return g * (math::normal_cdf(x) + x * density);
  }
};
template <class T> struct GeluTanhGrad {
  T s, t;
  WEFT_HD T operator()(T g, T x) const {
    const T h = math::tanh(gelu_inner(x));
    return g * (T(0.5) * (T(1) + h) + T(0.5) * x * (T(1) - h * h) * gelu_slope(x));
  }
};
template <class T> struct SiluGrad {
  T s, t;
  WEFT_HD T operator()(T g, T x) const {
    const T y = math::sigmoid(x);
    return g * y * (T(1) + x * (T(1) - y));
  }
};

// Ternary.
WEFT_FUNCTOR3(Addcmul, static_cast<T>(ring(a) + ring(s) * ring(b) * ring(c)))
WEFT_FUNCTOR3(Addcdiv, a + s * b / c)
WEFT_FUNCTOR3(Lerp, a + c * (b - a))

#undef WEFT_FUNCTOR1
#undef WEFT_FUNCTOR2
#undef WEFT_FUNCTOR3

}  // namespace weft::kernels::functors
