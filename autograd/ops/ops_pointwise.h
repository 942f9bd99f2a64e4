// Elementwise operations: arithmetic, functions, comparisons and operators. ops.h has the rules for sizes,
// dtypes and errors that hold for all of them. No line has a "Shape:": the result has the broadcast sizes of
// the tensor arguments.
#pragma once

#include <concepts>
#include <optional>

#include <weft/autograd/tape/record.h>
#include <weft/kernels/scalar.h>
#include <weft/tensor/tensor.h>

namespace weft {

// ---- arithmetic of two or three tensors (pointwise_binary.cpp)

/// a + alpha * b. Grad: da = g, db = alpha * g.
WEFT_API Tensor add(In a, In b, Scalar alpha = 1);
/// a - alpha * b. Grad: da = g, db = -alpha * g.
WEFT_API Tensor sub(In a, In b, Scalar alpha = 1);
/// a * b. Grad: da = g * b, db = g * a.
WEFT_API Tensor mul(In a, In b);
/// a / b; integers give float32. Grad: da = g / b, db = -g * a / b^2.
WEFT_API Tensor div(In a, In b);
/// a ^ b. Powers of integers are exact and wrap around; a negative exponent gives 0 unless a is 1 or -1.
/// Grad: da = g * b * a^(b-1), db = g * y * log(a) (0 where a = 0 and b >= 0).
WEFT_API Tensor pow(Fp32Arg a, Fp32Arg b);
/// The larger of a and b; NaN if either is NaN.
/// Grad: g to the larger, g / 2 to each of two equal elements, g to both if one is NaN.
WEFT_API Tensor maximum(In a, In b);
/// The smaller of a and b; NaN if either is NaN.
/// Grad: g to the smaller, g / 2 to each of two equal elements, g to both if one is NaN.
WEFT_API Tensor minimum(In a, In b);
/// a - b * floor(a / b), which has the sign of b, as Python's %. Grad: da = g, db = -g * floor(a / b).
/// Throws: ValueError for a zero among integer divisors on the CPU; a CUDA device returns 0 there.
WEFT_API Tensor remainder(In a, In b);
/// a - b * trunc(a / b), which has the sign of a, as C's %. Grad: da = g, db = -g * trunc(a / b).
/// Throws: as remainder.
WEFT_API Tensor fmod(In a, In b);
/// floor(a / b); integers stay integers. Not differentiable. Throws: as remainder.
WEFT_API Tensor floor_divide(In a, In b);
/// The angle of the point (b, a), in (-pi, pi].
/// Grad: da = g * b / (a^2 + b^2), db = -g * a / (a^2 + b^2); 0 at the origin.
WEFT_API Tensor atan2(In a, In b);
/// cond ? a : b. Grad: da = g where cond, db = g elsewhere. Throws: DTypeError unless cond is bool.
WEFT_API Tensor where(In cond, In a, In b);
/// The same with a number, converted to the dtype of a.
/// Throws: DTypeError also for a number that does not fit that dtype.
WEFT_API Tensor where(In cond, In a, Scalar b);
/// The same, with the number where cond is true.
WEFT_API Tensor where(In cond, Scalar a, In b);
/// Of two numbers: int64 if both are of integer types, else float32; bool of two bool.
/// Throws: DTypeError unless cond is bool.
WEFT_API Tensor where(In cond, Scalar a, Scalar b);
template <std::same_as<bool> T> Tensor where(const Tensor& cond, T a, T b) {
  return where(cond, Scalar(a), Scalar(b)).to(kBool);
}
/// x with `value` where mask is true. Grad: g where mask is false, else 0.
/// Throws: DTypeError unless mask is bool.
WEFT_API Tensor masked_fill(In x, In mask, Scalar value);
/// x + value * a * b. Grad: dx = g, da = value * g * b, db = value * g * a.
WEFT_API Tensor addcmul(In x, In a, In b, Scalar value = 1);
/// x + value * a / b. Grad: dx = g, da = value * g / b, db = -value * g * a / b^2.
WEFT_API Tensor addcdiv(In x, In a, In b, Scalar value = 1);
/// a + w * (b - a). Grad: da = g * (1 - w), db = g * w, dw = g * (b - a).
WEFT_API Tensor lerp(In a, In b, In w);
/// The same with one weight for all elements. Grad: da = g * (1 - w), db = g * w.
WEFT_API Tensor lerp(In a, In b, Scalar w);

// ---- arithmetic of a tensor and a Scalar (scalar.cpp, pointwise_binary.cpp)

/// x + s. Grad: g.
WEFT_API Tensor add(In x, Scalar s);
/// s + x. Grad: g.
inline Tensor add(Scalar s, In x) { return add(x.get(), s); }
/// x - s. Grad: g.
WEFT_API Tensor sub(In x, Scalar s);
/// s - x. Grad: -g.
WEFT_API Tensor sub(Scalar s, In x);
/// x * s. Grad: g * s.
WEFT_API Tensor mul(In x, Scalar s);
/// s * x. Grad: g * s.
inline Tensor mul(Scalar s, In x) { return mul(x.get(), s); }
/// x / s. Grad: g / s.
WEFT_API Tensor div(In x, Scalar s);
/// s / x. Grad: -g * y / x.
WEFT_API Tensor div(Scalar s, In x);
/// x ^ s. Integers stay integers if s has an integer type, and become float32 otherwise.
/// Grad: g * s * x^(s-1). Throws: ValueError for integers to a negative integer power.
WEFT_API Tensor pow(Fp32Arg x, Scalar s);
/// s ^ x; an integer result if both are integers. Grad: g * y * log(s); 0 where s = 0 and y is finite.
WEFT_API Tensor pow(Scalar s, Fp32Arg x);
/// x - s * trunc(x / s). Grad: g. Throws: ValueError for integers x and s = 0, on every device.
WEFT_API Tensor fmod(In x, Scalar s);
/// floor(x / s). Not differentiable. Throws: as fmod.
WEFT_API Tensor floor_divide(In x, Scalar s);
/// floor(s / x). Not differentiable. Throws: as remainder of two tensors.
WEFT_API Tensor floor_divide(Scalar s, In x);
/// x - s * floor(x / s). Grad: g. Throws: as fmod.
WEFT_API Tensor remainder(In x, Scalar s);
/// s - x * floor(s / x). Grad: -g * floor(s / x). Throws: as remainder of two tensors.
WEFT_API Tensor remainder(Scalar s, In x);
/// maximum(a, b).
inline Tensor max(In a, In b) { return maximum(a.get(), b.get()); }
/// minimum(a, b).
inline Tensor min(In a, In b) { return minimum(a.get(), b.get()); }
/// The larger of x and s. Grad: g where x >= s, else 0.
WEFT_API Tensor maximum(In x, Scalar s);
/// maximum(x, s).
WEFT_API Tensor maximum(Scalar s, In x);
/// The smaller of x and s. Grad: g where x <= s, else 0.
WEFT_API Tensor minimum(In x, Scalar s);
/// minimum(x, s).
WEFT_API Tensor minimum(Scalar s, In x);
/// min(max(x, low), high); all NaN if a bound is NaN. A bound may be absent, as in clamp(x, {}, 1).
/// Grad: g where low <= x <= high, else 0. Throws: ValueError for low > high, or for neither bound.
WEFT_API Tensor clamp(In x, std::optional<Scalar> low, std::optional<Scalar> high = {});
/// minimum(maximum(x, low), high): `high` where low > high.
/// Grad: by minimum and maximum, so g / 2 to each of two equal elements.
WEFT_API Tensor clamp(In x, In low, In high);

// ---- functions of one tensor (pointwise.cpp)

/// -x. Grad: -g.
WEFT_API Tensor neg(In x);
/// |x|. Grad: g * sign(x).
WEFT_API Tensor abs(In x);
/// -1, 0 or 1; NaN of NaN. Grad: 0.
WEFT_API Tensor sign(In x);
/// x * x. Grad: 2 * g * x.
WEFT_API Tensor square(In x);
/// e^x. Grad: g * y.
WEFT_API Tensor exp(Fp32Arg x);
/// e^x - 1 without cancellation near 0. Grad: g * (y + 1).
WEFT_API Tensor expm1(Fp32Arg x);
/// Natural logarithm. Grad: g / x.
WEFT_API Tensor log(Fp32Arg x);
/// log(1 + x) without cancellation near 0. Grad: g / (1 + x).
WEFT_API Tensor log1p(Fp32Arg x);
/// Logarithm to base 2. Grad: g / (x * log 2).
WEFT_API Tensor log2(Fp32Arg x);
/// Square root. Grad: g / (2 * y).
WEFT_API Tensor sqrt(In x);
/// 1 / sqrt(x). Grad: -g * y^3 / 2.
WEFT_API Tensor rsqrt(Fp32Arg x);
/// 1 / x. Grad: -g * y^2.
WEFT_API Tensor reciprocal(Fp32Arg x);
/// Sine of x in radians. Grad: g * cos(x).
WEFT_API Tensor sin(In x);
/// Cosine of x in radians. Grad: -g * sin(x).
WEFT_API Tensor cos(In x);
/// Tangent of x in radians. Grad: g * (1 + y^2).
WEFT_API Tensor tan(Fp32Arg x);
/// Hyperbolic tangent. Grad: g * (1 - y^2).
WEFT_API Tensor tanh(In x);
/// 1 / (1 + e^-x). Grad: g * y * (1 - y).
WEFT_API Tensor sigmoid(In x);
/// log(sigmoid(x)) without overflow. Grad: g * sigmoid(-x).
WEFT_API Tensor log_sigmoid(Fp32Arg x);
/// Error function. Grad: g * 2 / sqrt(pi) * e^(-x^2).
WEFT_API Tensor erf(In x);
/// max(x, 0). Grad: g where x > 0.
WEFT_API Tensor relu(In x);
/// x > 0 ? x : slope * x. Grad: x > 0 ? g : slope * g.
WEFT_API Tensor leaky_relu(In x, double slope = 0.01);
/// x > 0 ? x : alpha * (e^x - 1). Grad: x > 0 ? g : g * alpha * e^x.
WEFT_API Tensor elu(In x, double alpha = 1);
/// x * Phi(x), Phi and phi being the normal distribution function and density.
/// Grad: g * (Phi(x) + x * phi(x)). Source: Hendrycks and Gimpel 2016.
WEFT_API Tensor gelu(In x);
/// The tanh approximation of gelu: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))).
/// Grad: g times the derivative of this approximation.
WEFT_API Tensor gelu_tanh(In x);
/// x * sigmoid(x). Grad: g * s * (1 + x * (1 - s)), s = sigmoid(x).
WEFT_API Tensor silu(In x);
/// log(1 + e^x) without overflow. Grad: g * sigmoid(x).
WEFT_API Tensor softplus(Fp32Arg x);
/// The largest integer <= x; integers are copied. Grad: 0.
WEFT_API Tensor floor(In x);
/// The smallest integer >= x; integers are copied. Grad: 0.
WEFT_API Tensor ceil(In x);
/// The nearest integer, halves to even; integers are copied. Grad: 0.
WEFT_API Tensor round(In x);
/// x without its fraction; integers are copied. Grad: 0.
WEFT_API Tensor trunc(In x);

/// x with NaN replaced by `nan`, and infinities by `posinf` and `neginf`. The defaults are the largest and
/// lowest finite numbers of x's dtype. Integers are copied. Grad: g where x is finite, else 0.
WEFT_API Tensor nan_to_num(In x, Scalar nan = 0, std::optional<Scalar> posinf = {},
                           std::optional<Scalar> neginf = {});

// ---- comparisons and logic, of dtype bool (compare.cpp). Integers are compared with the exact value of a
// Scalar, floating tensors with the Scalar rounded to their dtype.

/// a == b.
WEFT_API Tensor eq(In a, In b);
/// a != b.
WEFT_API Tensor ne(In a, In b);
/// a < b.
WEFT_API Tensor lt(In a, In b);
/// a <= b.
WEFT_API Tensor le(In a, In b);
/// a > b.
WEFT_API Tensor gt(In a, In b);
/// a >= b.
WEFT_API Tensor ge(In a, In b);
/// x == s.
WEFT_API Tensor eq(In x, Scalar s);
/// x != s.
WEFT_API Tensor ne(In x, Scalar s);
/// x < s.
WEFT_API Tensor lt(In x, Scalar s);
/// x <= s.
WEFT_API Tensor le(In x, Scalar s);
/// x > s.
WEFT_API Tensor gt(In x, Scalar s);
/// x >= s.
WEFT_API Tensor ge(In x, Scalar s);
/// Both a and b are non-zero.
WEFT_API Tensor logical_and(In a, In b);
/// a, b or both are non-zero.
WEFT_API Tensor logical_or(In a, In b);
/// Exactly one of a and b is non-zero.
WEFT_API Tensor logical_xor(In a, In b);
/// x is zero.
WEFT_API Tensor logical_not(In x);
/// a & b on the bits of integers; logical and of bool. Throws: DTypeError for floating dtypes.
WEFT_API Tensor bitwise_and(In a, In b);
/// a | b on the bits of integers; logical or of bool. Throws: DTypeError for floating dtypes.
WEFT_API Tensor bitwise_or(In a, In b);
/// a ^ b on the bits of integers; exclusive or of bool. Throws: DTypeError for floating dtypes.
WEFT_API Tensor bitwise_xor(In a, In b);
/// x & s on the bits of integers; logical and of bool. Throws: DTypeError for a floating x.
WEFT_API Tensor bitwise_and(In x, Scalar s);
/// x | s on the bits of integers; logical or of bool. Throws: DTypeError for a floating x.
WEFT_API Tensor bitwise_or(In x, Scalar s);
/// x ^ s on the bits of integers; exclusive or of bool. Throws: DTypeError for a floating x.
WEFT_API Tensor bitwise_xor(In x, Scalar s);
/// ~x on the bits of integers; logical not of bool. Throws: DTypeError for floating dtypes.
WEFT_API Tensor bitwise_not(In x);
/// x is NaN.
WEFT_API Tensor isnan(In x);
/// x is infinite, of either sign.
WEFT_API Tensor isinf(In x);
/// x is neither NaN nor infinite.
WEFT_API Tensor isfinite(In x);
/// True if the sizes agree and every |a - b| <= atol + rtol * |b|; equal infinities agree, NaN never does.
WEFT_API bool allclose(In a, In b, double rtol = 1e-5, double atol = 1e-8);
/// True if sizes, dtypes and all elements agree; NaN never does.
WEFT_API bool equal(In a, In b);

// ---- operators
inline Tensor operator-(const Tensor& x) { return neg(x); }
inline Tensor operator!(const Tensor& x) { return logical_not(x); }
inline Tensor operator~(const Tensor& x) { return bitwise_not(x); }
#define WEFT_OPERATOR(symbol, name, reversed)                                            \
  inline Tensor operator symbol(const Tensor& a, const Tensor& b) { return name(a, b); } \
  inline Tensor operator symbol(const Tensor& a, Scalar b) { return name(a, b); }        \
  inline Tensor operator symbol(Scalar a, const Tensor& b) { return reversed; }
WEFT_OPERATOR(+, add, add(b, a))
WEFT_OPERATOR(-, sub, sub(a, b))
WEFT_OPERATOR(*, mul, mul(b, a))
WEFT_OPERATOR(/, div, div(a, b))
WEFT_OPERATOR(%, remainder, remainder(a, b))
WEFT_OPERATOR(==, eq, eq(b, a))
WEFT_OPERATOR(!=, ne, ne(b, a))
WEFT_OPERATOR(<, lt, gt(b, a))
WEFT_OPERATOR(<=, le, ge(b, a))
WEFT_OPERATOR(>, gt, lt(b, a))
WEFT_OPERATOR(>=, ge, le(b, a))
WEFT_OPERATOR(&, bitwise_and, bitwise_and(b, a))
WEFT_OPERATOR(|, bitwise_or, bitwise_or(b, a))
WEFT_OPERATOR(^, bitwise_xor, bitwise_xor(b, a))
#undef WEFT_OPERATOR

}  // namespace weft
