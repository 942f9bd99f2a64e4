// The functors of the rows of pointwise.h, shared by all backends. Each is a template over the compute type
// (float for the half dtypes), with the scalar parameters of the row as members. A backend creates one object
// per call and applies it to each element. Maximum, minimum, clamp and relu propagate NaN; comparisons follow
// IEEE 754.
#pragma once

#include <limits>
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

/// The type for arithmetic that wraps around: integers are computed as unsigned numbers of at least int's
/// width.
template <class T>
using Ring = std::conditional_t<std::is_floating_point_v<T>, T,
                                std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>;
template <class T> WEFT_HD constexpr Ring<T> ring(T x) { return static_cast<Ring<T>>(x); }

/// a ^ b. For integers by repeated squaring, with wrap-around. A negative exponent gives the truncated
/// quotient: 0 except for a = 1 and -1.
template <class T> WEFT_HD inline T power(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::pow(a, b);
  } else {
    if constexpr (std::is_signed_v<T>)
      if (b < 0) return a == 1 ? T(1) : a == -1 ? static_cast<T>(b & 1 ? -1 : 1) : T(0);
    Ring<T> result = 1, factor = ring(a);
    for (Ring<T> left = ring(b); left != 0; left >>= 1, factor *= factor)
      if (left & 1) result *= factor;
    return static_cast<T>(result);
  }
}

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
WEFT_FUNCTOR1(Gelu, math::normal_cdf(x) * x)
WEFT_FUNCTOR1(Silu, math::sigmoid(x) * x)
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
WEFT_FUNCTOR1(PowScalar, power(x, s))
WEFT_FUNCTOR1(RpowScalar, power(s, x))
WEFT_FUNCTOR1(EqScalar, x == s)
WEFT_FUNCTOR1(NeScalar, x != s)
WEFT_FUNCTOR1(LtScalar, x < s)
WEFT_FUNCTOR1(LeScalar, x <= s)
WEFT_FUNCTOR1(GtScalar, x > s)
WEFT_FUNCTOR1(GeScalar, x >= s)
WEFT_FUNCTOR1(LogicalNot, x == T(0))
WEFT_FUNCTOR1(IsNan, x != x)
WEFT_FUNCTOR1(IsInf, (x == x) & (x - x != T(0)))
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
template <class T> struct NanToNum {
  T s, t;
  WEFT_HD T operator()(T x) const {
    const T low = x < -t ? -t : x, held = low > t ? t : low;
    return x != x ? s : held;
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
WEFT_FUNCTOR2(Pow, a, b, power(a, b))
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
WEFT_FUNCTOR2(BitwiseAnd, a, b, static_cast<T>(T(a) & b))
WEFT_FUNCTOR2(BitwiseOr, a, b, static_cast<T>(a | b))
WEFT_FUNCTOR2(BitwiseXor, a, b, static_cast<T>(a ^ b))

/// std::fmod, which is exact. For the usual floats a CPU computes it in a few instructions instead of a loop
/// over bits. A quotient of two floats below 2^28 is an integer, or at least 2^-24 away from any but 0. So a
/// division in double has the right integer part, and its product with b is exact.
template <class T> WEFT_HD T exact_fmod(T a, T b) {
#if !defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) {
    const double whole = std::trunc(static_cast<double>(a) / static_cast<double>(b));
    if (std::fabs(whole) < 0x1p28 && std::fabs(b) <= std::numeric_limits<float>::max())
      return std::copysign(static_cast<float>(a - whole * static_cast<double>(b)), a);
  }
#endif
  return std::fmod(a, b);
}

template <class T> struct Remainder {
  T s, t;
  WEFT_HD T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      const T r = exact_fmod(a, b);
      const bool other_sign = (r < 0) != (b < 0);
      // A product replaces a branch, which random signs would make slow. It would lose the sign of a zero r.
      if (r != 0 && b * T(0) == 0) return r + b * static_cast<T>(other_sign);  // b is finite
      return r != 0 && other_sign ? r + b : r;
    } else if constexpr (std::is_signed_v<T>) {
      // C++ leaves these undefined: division by 0, and the lowest number by -1
      if (b == 0 || b == T(-1)) return 0;
      const T r = static_cast<T>(a % b);
      return r != 0 && (r < 0) != (b < 0) ? static_cast<T>(r + b) : r;
    } else {
      return b == 0 ? T(0) : static_cast<T>(a % b);
    }
  }
};

template <class T> struct Fmod {
  T s, t;
  WEFT_HD T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return exact_fmod(a, b);
    else if constexpr (std::is_signed_v<T>) return b == 0 || b == T(-1) ? T(0) : static_cast<T>(a % b);
    else return b == 0 ? T(0) : static_cast<T>(a % b);
  }
};
/// The quotient of floating numbers comes from an exact multiple of b, so that it agrees with remainder. For
/// the usual floats, the floor of a division in double is that quotient (exact_fmod says why; near 0 the
/// division keeps its sign). From 2^22 on the multiple rounds, and the formula decides.
template <class T> struct FloorDivide {
  T s, t;
  WEFT_HD T operator()(T a, T b) const {
#if !defined(__CUDA_ARCH__)
    if constexpr (std::is_same_v<T, float>) {
      const double q = std::floor(static_cast<double>(a) / static_cast<double>(b));
      if (std::fabs(q) < 0x1p22 && std::fabs(b) <= std::numeric_limits<float>::max())
        return static_cast<float>(q);
    }
#endif
    if constexpr (std::is_floating_point_v<T>) {
      if (b == 0) return a / b;
      const T r = exact_fmod(a, b);
      T q = (a - r) / b;
      if (r != 0 && (r < 0) != (b < 0)) q -= 1;
      if (q == 0) return std::copysign(T(0), a / b);
      const T below = std::floor(q);
      return q - below > T(0.5) ? below + 1 : below;
    } else if constexpr (std::is_signed_v<T>) {
      if (b == 0) return 0;
      if (b == T(-1)) return static_cast<T>(-ring(a));
      const T q = static_cast<T>(a / b);
      return a % b != 0 && (a < 0) != (b < 0) ? static_cast<T>(q - 1) : q;
    } else {
      return b == 0 ? T(0) : static_cast<T>(a / b);
    }
  }
};

// Gradients.
WEFT_FUNCTOR2(TanhGrad, g, y, (T(1) - y * y) * g)
WEFT_FUNCTOR2(SigmoidGrad, g, y, (T(1) - y) * (g * y))
WEFT_FUNCTOR2(ReluGrad, g, y, y <= 0 ? T(0) : g)
WEFT_FUNCTOR2(LeakyReluGrad, g, x, x > 0 ? g : s * g)
WEFT_FUNCTOR2(AbsGrad, g, x, (x != x ? x : T(x > 0) - T(x < 0)) * g)
WEFT_FUNCTOR2(ClampGrad, g, x, ((x >= s) & (x <= t)) ? g : T(0))
WEFT_FUNCTOR2(SoftplusGrad, g, x, math::sigmoid(x) * g)

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

/// max(x, 0) - x t + log(1 + e^-|x|). The last term keeps its digits where the first two cancel. These are
/// computed as a product, so that they cancel for an infinite x too.
template <class T> struct LogisticLoss {
  T s, t;
  WEFT_HD T operator()(T x, T target) const {
    const T lead = x > 0 ? x * (T(1) - target) : -(x * target);
    return lead + math::log1p_exp(-std::fabs(x));
  }
};

// Ternary.
WEFT_FUNCTOR3(Addcmul, static_cast<T>(ring(a) + ring(s) * ring(b) * ring(c)))
WEFT_FUNCTOR3(Addcdiv, a + s * b / c)
/// Computed from the nearer end, so that c = 1 gives exactly b.
WEFT_FUNCTOR3(Lerp, std::fabs(c) < T(0.5) ? a + c * (b - a) : b - (b - a) * (T(1) - c))

/// sigmoid(x) - target, from the smaller of sigmoid(x) and 1 - sigmoid(x) = sigmoid(-x), which does not
/// cancel.
template <class T> struct LogisticLossGrad {
  T s, t;
  WEFT_HD T operator()(T g, T x, T target) const {
    const T small = math::sigmoid(-std::fabs(x));
    return g * (x > 0 ? (T(1) - target) - small : small - target);
  }
};

#undef WEFT_FUNCTOR1
#undef WEFT_FUNCTOR2
#undef WEFT_FUNCTOR3

}  // namespace weft::kernels::functors
