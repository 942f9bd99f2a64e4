// Every differentiable operation as a free function; tensor.h has the usual ones as methods too, and both are one definition, in the
// .cpp file of this folder that the section names. An operation checks its arguments, launches kernels, and records itself.
//
// Shapes broadcast from the right, as everywhere: [3, 1] with [4] gives [3, 4].
// Types. Two tensors meet in the wider type: bool < uint8 < int32 < int64 < float16, bfloat16 < float32 < float64 (float16 with
// bfloat16 gives float32). A Scalar never promotes a tensor; a fractional one with an integer tensor is a DTypeError, not a
// truncation. Functions of real numbers (exp, div, sqrt, mean of floats ...) take integers as float32; div of integers is float32.
// bool enters arithmetic and sums as int64. Sums and products of integers are int64. mean, var, std, softmax of integers: DTypeError.
// Under an Autocast (autocast.h) an argument written Lower is taken in the half type, one written Wide in float32, one written In as it is.
// Gradients flow through floating tensors only. "Grad:" gives dx from g; an operation without that line is not differentiable.
#pragma once

#include <vector>

#include <weft/autograd/record.h>
#include <weft/kernels/backend.h>
#include <weft/kernels/scalar.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/tensor.h>

namespace weft {

// ---- arithmetic of two tensors, broadcast (pointwise_binary.cpp)
/// a + alpha * b. Grad: da = g, db = alpha * g.
WEFT_API Tensor add(In a, In b, Scalar alpha = 1);
/// a - alpha * b. Grad: da = g, db = -alpha * g.
WEFT_API Tensor sub(In a, In b, Scalar alpha = 1);
/// a * b. Grad: da = g * b, db = g * a.
WEFT_API Tensor mul(In a, In b);
/// a / b; integers give float32. Grad: da = g / b, db = -g * a / b^2.
WEFT_API Tensor div(In a, In b);
/// a ^ b. Grad: da = g * b * a^(b-1), db = g * y * log(a) (0 where a = 0 and b >= 0).
WEFT_API Tensor pow(Wide a, Wide b);
/// The larger of each pair; NaN if either is. Grad: to the larger, half to each of a tie.
WEFT_API Tensor maximum(In a, In b);
/// The smaller of each pair; NaN if either is. Grad: to the smaller, half to each of a tie.
WEFT_API Tensor minimum(In a, In b);
/// a - b * floor(a / b), which has the sign of b. Grad: da = g, db = -g * floor(a / b).
WEFT_API Tensor remainder(In a, In b);
/// The angle of the point (b, a), in (-pi, pi]. Grad: da = g * b / (a^2 + b^2), db = -g * a / (a^2 + b^2).
WEFT_API Tensor atan2(In a, In b);
/// cond ? a : b; cond is bool. Grad: da = g where cond, db = g elsewhere.
WEFT_API Tensor where(In cond, In a, In b);
/// x with `value` where mask is true. Grad: g where mask is false.
WEFT_API Tensor masked_fill(In x, In mask, Scalar value);
/// x + value * a * b. Grad: dx = g, da = value * g * b, db = value * g * a.
WEFT_API Tensor addcmul(In x, In a, In b, Scalar value = 1);
/// x + value * a / b. Grad: dx = g, da = value * g / b, db = -value * g * a / b^2.
WEFT_API Tensor addcdiv(In x, In a, In b, Scalar value = 1);
/// a + w * (b - a). Grad: da = g * (1 - w), db = g * w, dw = g * (b - a).
WEFT_API Tensor lerp(In a, In b, In w);
/// a + w * (b - a) with a number w. Grad: da = g * (1 - w), db = g * w.
WEFT_API Tensor lerp(In a, In b, Scalar w);

// ---- with a number (scalar.cpp)
/// x + s. Grad: g.
WEFT_API Tensor add(In x, Scalar s);
/// x - s. Grad: g.
WEFT_API Tensor sub(In x, Scalar s);
/// s - x. Grad: -g.
WEFT_API Tensor sub(Scalar s, In x);
/// x * s. Grad: g * s.
WEFT_API Tensor mul(In x, Scalar s);
/// x / s. Grad: g / s.
WEFT_API Tensor div(In x, Scalar s);
/// s / x. Grad: -g * y / x.
WEFT_API Tensor div(Scalar s, In x);
/// x ^ s. Grad: g * s * x^(s-1).
WEFT_API Tensor pow(Wide x, Scalar s);
/// s ^ x. Grad: g * y * log(s).
WEFT_API Tensor pow(Scalar s, Wide x);
/// The larger of x and s. Grad: g where x >= s.
WEFT_API Tensor maximum(In x, Scalar s);
/// The smaller of x and s. Grad: g where x <= s.
WEFT_API Tensor minimum(In x, Scalar s);
/// x held to [low, high]. Grad: g where low <= x <= high. Throws: ValueError when low > high.
WEFT_API Tensor clamp(In x, Scalar low, Scalar high);

// ---- functions of one tensor (pointwise.cpp)
/// -x. Grad: -g.
WEFT_API Tensor neg(In x);
/// |x|. Grad: g * sign(x).
WEFT_API Tensor abs(In x);
/// -1, 0 or 1. Grad: 0.
WEFT_API Tensor sign(In x);
/// x * x. Grad: 2 * g * x.
WEFT_API Tensor square(In x);
/// e^x. Grad: g * y.
WEFT_API Tensor exp(Wide x);
/// e^x - 1 without cancellation near 0. Grad: g * (y + 1).
WEFT_API Tensor expm1(Wide x);
/// Natural logarithm. Grad: g / x.
WEFT_API Tensor log(Wide x);
/// log(1 + x) without cancellation near 0. Grad: g / (1 + x).
WEFT_API Tensor log1p(Wide x);
/// Logarithm to base 2. Grad: g / (x * log 2).
WEFT_API Tensor log2(Wide x);
/// Square root. Grad: g / (2 * y).
WEFT_API Tensor sqrt(In x);
/// 1 / sqrt(x). Grad: -g * y^3 / 2.
WEFT_API Tensor rsqrt(Wide x);
/// 1 / x. Grad: -g * y^2.
WEFT_API Tensor reciprocal(Wide x);
/// Sine of x in radians. Grad: g * cos(x).
WEFT_API Tensor sin(In x);
/// Cosine of x in radians. Grad: -g * sin(x).
WEFT_API Tensor cos(In x);
/// Tangent of x in radians. Grad: g * (1 + y^2).
WEFT_API Tensor tan(Wide x);
/// Hyperbolic tangent. Grad: g * (1 - y^2).
WEFT_API Tensor tanh(In x);
/// 1 / (1 + e^-x). Grad: g * y * (1 - y).
WEFT_API Tensor sigmoid(In x);
/// log(sigmoid(x)) without overflow. Grad: g * sigmoid(-x).
WEFT_API Tensor log_sigmoid(Wide x);
/// Error function. Grad: g * 2 / sqrt(pi) * e^(-x^2).
WEFT_API Tensor erf(In x);
/// max(x, 0). Grad: g where x > 0.
WEFT_API Tensor relu(In x);
/// x > 0 ? x : slope * x. Grad: x > 0 ? g : slope * g.
WEFT_API Tensor leaky_relu(In x, double slope = 0.01);
/// x > 0 ? x : alpha * (e^x - 1). Grad: x > 0 ? g : g * alpha * e^x.
WEFT_API Tensor elu(In x, double alpha = 1);
/// x * Phi(x) with the normal distribution function. Grad: g * (Phi(x) + x * phi(x)). Source: Hendrycks and Gimpel 2016.
WEFT_API Tensor gelu(In x);
/// The tanh form of gelu: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))). Grad: its derivative.
WEFT_API Tensor gelu_tanh(In x);
/// x * sigmoid(x). Grad: g * s * (1 + x * (1 - s)), s = sigmoid(x).
WEFT_API Tensor silu(In x);
/// log(1 + e^x) without overflow. Grad: g * sigmoid(x).
WEFT_API Tensor softplus(Wide x);
/// The largest integer <= x. Grad: 0.
WEFT_API Tensor floor(In x);
/// The smallest integer >= x. Grad: 0.
WEFT_API Tensor ceil(In x);
/// The nearest integer, halves to even. Grad: 0.
WEFT_API Tensor round(In x);
/// x without its fraction. Grad: 0.
WEFT_API Tensor trunc(In x);

// ---- tests, bool out (compare.cpp)
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
/// Both non-zero.
WEFT_API Tensor logical_and(In a, In b);
/// Either non-zero.
WEFT_API Tensor logical_or(In a, In b);
/// Exactly one non-zero.
WEFT_API Tensor logical_xor(In a, In b);
/// x is zero.
WEFT_API Tensor logical_not(In x);
/// x is NaN.
WEFT_API Tensor isnan(In x);
/// x is neither NaN nor infinite.
WEFT_API Tensor isfinite(In x);
/// True when sizes agree and every |a - b| <= atol + rtol * |b|; NaN equals nothing.
WEFT_API bool allclose(In a, In b, double rtol = 1e-5, double atol = 1e-8);
/// True when sizes, dtypes and every element agree.
WEFT_API bool equal(In a, In b);

// ---- reductions (reduce.cpp, extremes.cpp). `dims` counts from the end when negative; empty dims mean all. keepdim leaves size 1.
/// Values and their positions.
struct MaxResult {
  Tensor values, indices;
};
/// Sum of all elements. Shape: []. Grad: g everywhere.
WEFT_API Tensor sum(Wide x);
/// Sum over dims. Grad: g along them.
WEFT_API Tensor sum(Wide x, const Shape& dims, bool keepdim = false);
/// x summed to `sizes`, which broadcast to x's sizes: the inverse of expand. Grad: g expanded.
WEFT_API Tensor sum_to(In x, const Shape& sizes);
/// Mean of all elements. Shape: []. Grad: g / n. Throws: DTypeError for integers.
WEFT_API Tensor mean(In x);
/// Mean over dims. Grad: g / n along them. Throws: DTypeError for integers.
WEFT_API Tensor mean(In x, const Shape& dims, bool keepdim = false);
/// Product of all elements. Grad: g * (product of the others), zeros handled.
WEFT_API Tensor prod(Wide x);
/// Product over one dim. Grad: g * (product of the others), zeros handled.
WEFT_API Tensor prod(Wide x, int64_t dim, bool keepdim = false);
/// Largest of all elements. Grad: shared evenly by the largest ones. Throws: ShapeError when x is empty.
WEFT_API Tensor max(In x);
/// Largest along dim and where (the first of equals). Grad: to that element.
WEFT_API MaxResult max(In x, int64_t dim, bool keepdim = false);
/// Smallest of all elements. Grad: shared evenly by the smallest ones. Throws: ShapeError when x is empty.
WEFT_API Tensor min(In x);
/// Smallest along dim and where (the first of equals). Grad: to that element.
WEFT_API MaxResult min(In x, int64_t dim, bool keepdim = false);
/// Largest over dims. Grad: shared evenly by the largest ones.
WEFT_API Tensor amax(In x, const Shape& dims, bool keepdim = false);
/// Smallest over dims. Grad: shared evenly by the smallest ones.
WEFT_API Tensor amin(In x, const Shape& dims, bool keepdim = false);
/// Position of the largest along dim, int64; the first of equals.
WEFT_API Tensor argmax(In x, int64_t dim = -1, bool keepdim = false);
/// Position of the smallest along dim, int64; the first of equals.
WEFT_API Tensor argmin(In x, int64_t dim = -1, bool keepdim = false);
/// Whether any element is non-zero.
WEFT_API Tensor any(In x);
/// Whether any element along dims is non-zero.
WEFT_API Tensor any(In x, const Shape& dims, bool keepdim = false);
/// Whether all elements are non-zero.
WEFT_API Tensor all(In x);
/// Whether all elements along dims are non-zero.
WEFT_API Tensor all(In x, const Shape& dims, bool keepdim = false);
/// Variance of all elements, divided by n - correction. Grad: g * 2 * (x - mean) / (n - correction).
WEFT_API Tensor var(Wide x, int64_t correction = 1);
/// Variance over dims. Grad: as above along them.
WEFT_API Tensor var(Wide x, const Shape& dims, int64_t correction = 1, bool keepdim = false);
/// Standard deviation of all elements. Grad: g * (x - mean) / ((n - correction) * y); 0 where y = 0.
WEFT_API Tensor std(Wide x, int64_t correction = 1);
/// Standard deviation over dims. Grad: as above along them.
WEFT_API Tensor std(Wide x, const Shape& dims, int64_t correction = 1, bool keepdim = false);
/// (sum |x|^p)^(1/p) of all elements; p may be 0 (count of non-zeros), 1, 2, infinity. Grad: g * sign(x) * (|x| / y)^(p-1); 0 at y = 0.
WEFT_API Tensor norm(Wide x, double p = 2);
/// The same over dims.
WEFT_API Tensor norm(Wide x, double p, const Shape& dims, bool keepdim = false);
/// log(sum(e^x)) along dim without overflow. Grad: g * softmax(x).
WEFT_API Tensor logsumexp(Wide x, int64_t dim, bool keepdim = false);
/// Running sum along dim. Grad: running sum of g from the end.
WEFT_API Tensor cumsum(Wide x, int64_t dim);
/// Running product along dim. Grad: by the product rule, zeros handled.
WEFT_API Tensor cumprod(Wide x, int64_t dim);

// ---- matrix products (matmul.cpp); integers are multiplied exactly in their own type, bool is a DTypeError
/// Matrix product. Shape: [.., M, K] x [.., K, N] -> [.., M, N], leading dims broadcast; a 1-D a is a row, a 1-D b a column, and the added dim
/// goes again. Grad: da = g b^T, db = a^T g. Throws: ShapeError when the inner sizes differ.
WEFT_API Tensor matmul(Lower a, Lower b);
/// matmul of two matrices. Shape: [M, K] x [K, N] -> [M, N]. Grad: as matmul.
WEFT_API Tensor mm(Lower a, Lower b);
/// Matrix times vector. Shape: [M, K] x [K] -> [M]. Grad: as matmul.
WEFT_API Tensor mv(Lower a, Lower x);
/// Inner product of two vectors. Shape: [K] x [K] -> []. Grad: da = g * b, db = g * a.
WEFT_API Tensor dot(Lower a, Lower b);
/// Batch of matrix products. Shape: [B, M, K] x [B, K, N] -> [B, M, N]. Grad: as matmul.
WEFT_API Tensor bmm(Lower a, Lower b);
/// beta * c + alpha * a b; c broadcasts. Shape: [M, K] x [K, N] -> [M, N]. Grad: dc = beta * g, da = alpha * g b^T, db = alpha * a^T g.
WEFT_API Tensor addmm(Lower c, Lower a, Lower b, Scalar beta = 1, Scalar alpha = 1);
/// x weight^T + bias, the bias added inside the product. Shape: [.., I] x [O, I] (+ [O]) -> [.., O]. Grad: dx = g weight, dweight = g^T x,
/// dbias = sum of g.
WEFT_API Tensor linear(Lower x, Lower weight, Lower bias = Tensor());
/// max(linear(x, weight, bias), 0), within the product where the device can. Grad: as linear's, of g where the result is positive.
WEFT_API Tensor linear_relu(Lower x, Lower weight, Lower bias = Tensor());
/// Every product of two vectors. Shape: [M] x [N] -> [M, N]. Grad: da = g b, db = g^T a.
WEFT_API Tensor outer(In a, In b);
/// Sum of products by index letters, `einsum("bij,bjk->bik", {a, b})`. Grad: by its parts. Throws: ValueError for a malformed equation.
WEFT_API Tensor einsum(const char* equation, const std::vector<Tensor>& xs);

// ---- softmax and normalisation (softmax.cpp, norm.cpp)
/// e^x / sum(e^x) along dim. Grad: y * (g - sum(g * y)).
WEFT_API Tensor softmax(Wide x, int64_t dim);
/// log(softmax(x)) along dim. Grad: g - e^y * sum(g).
WEFT_API Tensor log_softmax(Wide x, int64_t dim);
/// (x - mean) / sqrt(var + eps) * weight + bias over the last dims `sizes`; weight and bias have those sizes or are undefined.
/// Grad: to x, weight and bias, in one pass. Source: Ba, Kiros and Hinton 2016.
WEFT_API Tensor layer_norm(Wide x, const Shape& sizes, Wide weight = Tensor(), Wide bias = Tensor(),
                           double eps = 1e-5);

// ---- losses (loss.cpp, cross_entropy.cpp)
/// What becomes of a loss per element.
enum class Reduction : uint8_t { kNone, kMean, kSum };
struct CrossEntropyOptions {
  Tensor weight = {};           ///< [C], undefined: ones; a mean divides by the weights of the targets met
  int64_t ignore_index = -100;  ///< targets of this value give no loss and no gradient
  double label_smoothing = 0;   ///< in [0, 1]: mixes the target with the uniform distribution
  Reduction reduction = Reduction::kMean;
};
/// -weight[t] * x[n, t] of log-probabilities. Shape: x [N, C] or [C] or [N, C, ..], target int64 without the C. Grad: -weight[t] at t. label_smoothing must be 0.
WEFT_API Tensor nll_loss(Wide x, In target, const CrossEntropyOptions& options = {});
/// nll_loss of log_softmax, fused: one pass each way. Shape: logits [N, C] or [C] or [N, C, ..], target int64 without the C; the class dim is
/// dim 1. Grad: g * weight[t] * (softmax - smoothed target). Throws: IndexError for a target outside [0, C).
WEFT_API Tensor cross_entropy(Wide logits, In target, const CrossEntropyOptions& options = {});
/// cross_entropy(linear(x, weight, bias), target) without keeping the logits: only a block of rows exists at a time, and under the tape its share of
/// the gradients is made at once (with Reduction::kNone: in backward, from logits made again). Shape: x [N, I], weight [C, I], bias [C] or
/// undefined, target [N]. Grad: to x, weight and bias.
WEFT_API Tensor linear_cross_entropy(In x, In weight, In bias, In target,
                                     const CrossEntropyOptions& options = {});
/// (x - target)^2. Grad: dx = 2 * g * (x - target), dtarget = -dx.
WEFT_API Tensor mse_loss(Wide x, Wide target, Reduction reduction = Reduction::kMean);
/// |x - target|. Grad: dx = g * sign(x - target), dtarget = -dx.
WEFT_API Tensor l1_loss(Wide x, Wide target, Reduction reduction = Reduction::kMean);
/// d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, d = x - target. Grad: g * clamp(d / beta, -1, 1).
WEFT_API Tensor smooth_l1_loss(Wide x, Wide target, double beta = 1, Reduction reduction = Reduction::kMean);
/// -(target * log s + (1 - target) * log(1 - s)), s = sigmoid(x), without overflow. Grad: dx = g * (s - target), dtarget = -g * x.
WEFT_API Tensor binary_cross_entropy_with_logits(Wide x, Wide target, Reduction reduction = Reduction::kMean);

// ---- indexing (index.cpp, scatter.cpp). Indices are int64 or int32. Throws: IndexError for an index out of range.
/// Rows of weight. Shape: weight [V, H], ids [..] -> [.., H]. Grad: rows of g summed by id, none to padding_idx (-1: no padding).
WEFT_API Tensor embedding(In weight, In ids, int64_t padding_idx = -1);
/// x at `index` (1-D) along dim. Grad: g added at index.
WEFT_API Tensor index_select(In x, int64_t dim, In index);
/// y[.., i, ..] = x[.., index[.., i, ..], ..]; index has x's rank. Shape: index's. Grad: g added at index.
WEFT_API Tensor gather(In x, int64_t dim, In index);
/// gather whose index is broadcast to x outside dim. Grad: g added at index.
WEFT_API Tensor take_along(In x, In index, int64_t dim);
/// x with x[.., index[.., i, ..], ..] = src (the last of equal indices wins). Grad: dx = g, 0 at index; dsrc = g at index (indices distinct).
WEFT_API Tensor scatter(In x, int64_t dim, In index, In src);
/// x with x[.., index[.., i, ..], ..] += src, in order of i. Grad: dx = g, dsrc = g at index.
WEFT_API Tensor scatter_add(In x, int64_t dim, In index, In src);
/// x with src added to its slices at `index` (1-D) along dim, in order. Grad: dx = g, dsrc = g at index.
WEFT_API Tensor index_add(In x, int64_t dim, In index, In src);
/// The elements of x where mask is true, in row-major order; both broadcast. Shape: [count]. Grad: g put back at mask.
WEFT_API Tensor masked_select(In x, In mask);
/// Positions of the non-zero elements in row-major order. Shape: [count, x.dim()], int64.
WEFT_API Tensor nonzero(In x);
/// 1 at each id, 0 elsewhere, int64. Shape: [..] -> [.., classes]. Throws: IndexError for an id outside [0, classes).
WEFT_API Tensor one_hot(In ids, int64_t classes);
/// Sorted along dim, stable. Grad: to where each value came from.
WEFT_API MaxResult sort(In x, int64_t dim = -1, bool descending = false);
/// The k largest (or smallest) along dim, in order. Grad: to where each value came from.
WEFT_API MaxResult topk(In x, int64_t k, int64_t dim = -1, bool largest = true);

// ---- views: they share storage with x (shape.cpp). Grad: the same step backwards.
/// x with other sizes over the same memory; one size may be -1. Throws: ShapeError when counts differ or strides do not allow it.
WEFT_API Tensor view(In x, const Shape& sizes);
/// view where strides allow, else a copy.
WEFT_API Tensor reshape(In x, const Shape& sizes);
/// Dims start..end made one.
WEFT_API Tensor flatten(In x, int64_t start = 0, int64_t end = -1);
/// Two dims exchanged.
WEFT_API Tensor transpose(In x, int64_t d0, int64_t d1);
/// Dims in another order.
WEFT_API Tensor permute(In x, const Shape& dims);
/// Dims of size 1 repeated without a copy (stride 0); new dims go in front; -1 keeps a size.
WEFT_API Tensor expand(In x, const Shape& sizes);
/// Without the dims of size 1.
WEFT_API Tensor squeeze(In x);
/// Without dim d when its size is 1.
WEFT_API Tensor squeeze(In x, int64_t d);
/// With a dim of size 1 put in at d.
WEFT_API Tensor unsqueeze(In x, int64_t d);
/// `length` elements of dim d from `start`.
WEFT_API Tensor narrow(In x, int64_t d, int64_t start, int64_t length);
/// Element `index` of dim d, which goes.
WEFT_API Tensor select(In x, int64_t d, int64_t index);
/// Elements start, start + step, .. below end of dim d; start and end count from the end when negative and are held to the size.
WEFT_API Tensor slice(In x, int64_t d, int64_t start, int64_t end, int64_t step = 1);
/// Pieces of `length` along d, the last one shorter.
WEFT_API std::vector<Tensor> split(In x, int64_t length, int64_t d = 0);
/// Pieces of the given lengths along d.
WEFT_API std::vector<Tensor> split(In x, const Shape& lengths, int64_t d);
/// At most `parts` pieces of equal length along d, the last one shorter.
WEFT_API std::vector<Tensor> chunk(In x, int64_t parts, int64_t d = 0);
/// One tensor per element of dim d, which goes.
WEFT_API std::vector<Tensor> unbind(In x, int64_t d = 0);
/// Any sizes and strides (in elements) from `offset` elements after x's first. Elements may overlap: g is summed. Throws: ShapeError outside x's span.
WEFT_API Tensor as_strided(In x, const Shape& sizes, const Shape& strides, int64_t offset = 0);
/// The diagonal of dims d0 and d1 put last. Shape: [.., M, N] -> [.., min(M, N)].
WEFT_API Tensor diagonal(In x, int64_t offset = 0, int64_t d0 = 0, int64_t d1 = 1);

// ---- copies and arrangements (arrange.cpp)
/// x row-major: x itself where it is, else a copy. Grad: g.
WEFT_API Tensor contiguous(In x);
/// A row-major copy. Grad: g.
WEFT_API Tensor clone(In x);
/// x in another dtype (x itself when it has it). Grad: g in x's dtype.
WEFT_API Tensor to(In x, DType dtype);
/// x on another device (x itself when it is there). Grad: g on x's device.
WEFT_API Tensor to(In x, Device device, bool non_blocking = false);
/// Tensors joined along a dim they have. Grad: its pieces.
WEFT_API Tensor cat(const std::vector<Tensor>& xs, int64_t dim = 0);
/// Tensors of equal sizes joined along a new dim. Grad: its slices.
WEFT_API Tensor stack(const std::vector<Tensor>& xs, int64_t dim = 0);
/// x laid out times[d] times along each dim. Grad: g summed over the repetitions.
WEFT_API Tensor repeat(In x, const Shape& times);
/// Order reversed along dims. Grad: g reversed.
WEFT_API Tensor flip(In x, const Shape& dims);
/// Elements moved by `shift` along dim, those pushed out coming in at the other end. Grad: g rolled back.
WEFT_API Tensor roll(In x, int64_t shift, int64_t dim);
/// The lower triangle of the last two dims up to diagonal k, 0 above. Grad: tril of g.
WEFT_API Tensor tril(In x, int64_t k = 0);
/// The upper triangle of the last two dims from diagonal k, 0 below. Grad: triu of g.
WEFT_API Tensor triu(In x, int64_t k = 0);
/// x with `value` around it: pads holds {before, after} of the last dim, then of the one before it, and so on. Grad: the inner part of g.
WEFT_API Tensor pad(In x, const Shape& pads, Scalar value = 0);

// ---- chance (random.cpp). A null generator means default_generator().
/// x / (1 - p) or 0 with probability p; x itself when not training or p = 0. The mask is drawn again in backward, never stored.
/// Grad: g through the same mask. Throws: ValueError for p outside [0, 1].
WEFT_API Tensor dropout(In x, double p = 0.5, bool training = true, Generator* generator = nullptr);
/// `count` positions per row drawn with the row's weights (not necessarily normalised). Shape: [K] or [R, K] -> [count] or [R, count], int64.
/// Throws: ValueError for negative, non-finite or all-zero weights.
WEFT_API Tensor multinomial(In weights, int64_t count, bool replacement = false,
                            Generator* generator = nullptr);
/// 1 with probability p per element, else 0.
WEFT_API Tensor bernoulli(In p, Generator* generator = nullptr);

// ---- recurrent layers (rnn.cpp)
struct RnnResult {
  Tensor y;   ///< [T, N, H]
  Tensor hn;  ///< [N, H]
  Tensor cn;  ///< [N, H]; undefined unless LSTM
};
/// One direction of one recurrent layer over the whole sequence, fused. Shape: x [T, N, I], h0 and c0 [N, H] (c0 LSTM only, else undefined), w_ih
/// [G*H, I], w_hh [G*H, H], b_ih and b_hh [G*H] or undefined. Gates: LSTM i f g o, GRU r z n. Grad: to every input, fused; composed under create_graph.
WEFT_API RnnResult rnn_layer(RnnMode mode, LowerOnDevice x, LowerOnDevice h0, LowerOnDevice c0,
                             LowerOnDevice w_ih, LowerOnDevice w_hh, LowerOnDevice b_ih, LowerOnDevice b_hh,
                             bool reverse = false);

// ---- operators
inline Tensor operator-(const Tensor& x) { return neg(x); }
#define WEFT_OPERATOR(symbol, name)                                                      \
  inline Tensor operator symbol(const Tensor& a, const Tensor& b) { return name(a, b); } \
  inline Tensor operator symbol(const Tensor& a, Scalar b) { return name(a, b); }
WEFT_OPERATOR(+, add)
WEFT_OPERATOR(-, sub)
WEFT_OPERATOR(*, mul)
WEFT_OPERATOR(/, div)
WEFT_OPERATOR(==, eq)
WEFT_OPERATOR(!=, ne)
WEFT_OPERATOR(<, lt)
WEFT_OPERATOR(<=, le)
WEFT_OPERATOR(>, gt)
WEFT_OPERATOR(>=, ge)
#undef WEFT_OPERATOR
inline Tensor operator+(Scalar a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(Scalar a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(Scalar a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(Scalar a, const Tensor& b) { return div(a, b); }
inline Tensor operator==(Scalar a, const Tensor& b) { return eq(b, a); }
inline Tensor operator!=(Scalar a, const Tensor& b) { return ne(b, a); }

}  // namespace weft
