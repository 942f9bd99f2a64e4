// Operations of models: matrix products, softmax, normalisation, attention, losses, random draws,
// recurrent layers. ops.h has the rules for sizes, dtypes and errors that hold for all operations.
#pragma once

#include <optional>
#include <vector>

#include <weft/autograd/tape/record.h>
#include <weft/kernels/backend.h>
#include <weft/tensor/factories.h>
#include <weft/tensor/tensor.h>

namespace weft {

// ---- matrix products (matmul.cpp, einsum.cpp). Integers are multiplied exactly in their own dtype.
// Throws: ShapeError for tensors of other ranks or sizes than "Shape:" states, DTypeError for bool.

/// Matrix product.
/// Shape: [.., M, K] x [.., K, N] -> [.., M, N], leading dims broadcast. A 1-D a counts as a row and a 1-D b
/// as a column; the result lacks that dim. Grad: da = g b^T, db = a^T g.
/// Throws: ShapeError for a tensor without dims.
WEFT_API Tensor matmul(AutocastArg a, AutocastArg b);
/// matmul of two matrices. Shape: [M, K] x [K, N] -> [M, N]. Grad: as matmul.
WEFT_API Tensor mm(AutocastArg a, AutocastArg b);
/// Matrix times vector. Shape: [M, K] x [K] -> [M]. Grad: as matmul.
WEFT_API Tensor mv(AutocastArg a, AutocastArg x);
/// Inner product of two vectors. Shape: [K] x [K] -> []. Grad: da = g * b, db = g * a.
WEFT_API Tensor dot(AutocastArg a, AutocastArg b);
/// Batch of matrix products. Shape: [B, M, K] x [B, K, N] -> [B, M, N]. Grad: as matmul.
WEFT_API Tensor bmm(AutocastArg a, AutocastArg b);
/// beta * c + alpha * a b; c is not read if beta is 0.
/// Shape: c sizes that broadcast to [M, N], a [M, K], b [K, N] -> [M, N].
/// Grad: dc = beta * g, da = alpha * g b^T, db = alpha * a^T g.
WEFT_API Tensor addmm(AutocastArg c, AutocastArg a, AutocastArg b, Scalar beta = 1, Scalar alpha = 1);
/// x weight^T + bias, added within the product.
/// Shape: x [.., I], weight [O, I], bias [O] or undefined -> [.., O].
/// Grad: dx = g weight, dweight = g^T x, dbias = sum of g over the leading dims.
/// Throws: ShapeError for a bias of other sizes.
WEFT_API Tensor linear(AutocastArg x, AutocastArg weight, AutocastArg bias = Tensor());
/// relu(linear(x, weight, bias)), within the product where the device can. Shape: as linear.
/// Grad: as linear with g where y > 0, else 0. Throws: as linear.
WEFT_API Tensor linear_relu(AutocastArg x, AutocastArg weight, AutocastArg bias = Tensor());
/// gelu_tanh(linear(x, weight, bias)), of integers in float32. In half types, and in float32 where TF32 is
/// allowed, a CUDA device makes gelu and the sums of its gradients within the products. Shape: as linear.
/// Grad: as linear with g times the slope of gelu_tanh. Throws: as linear.
WEFT_API Tensor linear_gelu_tanh(AutocastArg x, AutocastArg weight, AutocastArg bias = Tensor());
/// linear(linear_gelu_tanh(x, weight1, bias1), weight2, bias2), the feed-forward part of a transformer. Its
/// backward makes the slope of gelu within a product, too.
/// Shape: x [.., I], weight1 [H, I], bias1 [H], weight2 [O, H], bias2 [O] -> [.., O]. Biases may be absent.
/// Grad: of the two layers. Throws: as linear.
WEFT_API Tensor feed_forward(AutocastArg x, AutocastArg weight1, AutocastArg bias1, AutocastArg weight2,
                             AutocastArg bias2 = Tensor());
/// a[i] * b[j], in the dtype that mul gives, bool included. Shape: [M] x [N] -> [M, N].
/// Grad: da = g b, db = g^T a. Throws: ShapeError unless both have one dim.
WEFT_API Tensor outer(In a, In b);
/// Sum of products by index letters: `einsum("bij,bjk->bik", {a, b})`. A letter that the output lacks is
/// summed. A letter repeated in a term takes the diagonal. An equation that only permutes a tensor, such as
/// "ij->ji", gives a view. Shape: one dim per letter of the output. Grad: by the products and sums of which
/// it consists.
/// Throws: ValueError for a malformed equation: no "->", characters other than letters, a repeated or unknown
/// output letter. ValueError also if the numbers of terms and tensors differ. ShapeError for a term that does
/// not fit its tensor, or a letter with two sizes.
WEFT_API Tensor einsum(const char* equation, const std::vector<Tensor>& xs);

// ---- softmax and normalisation (softmax.cpp, norm.cpp). Throws: DTypeError for integers.

/// e^x / sum(e^x) along dim. Grad: y * (g - sum(g * y)).
WEFT_API Tensor softmax(Fp32Arg x, Whole dim);
/// log(softmax(x)) along dim. Grad: g - e^y * sum(g).
WEFT_API Tensor log_softmax(Fp32Arg x, Whole dim);
/// (x - mean) / sqrt(var + eps) * weight + bias, with mean and var over the last dims.
/// Shape: x [.., *sizes], weight and bias [*sizes] or undefined -> [.., *sizes].
/// Grad: to x, weight and bias, in one pass. Source: Ba, Kiros and Hinton 2016.
/// Throws: ShapeError for sizes that do not fit, DTypeError for a weight or bias of another dtype than x.
WEFT_API Tensor layer_norm(Fp32Arg x, const Shape& sizes, Fp32Arg weight = Tensor(), Fp32Arg bias = Tensor(),
                           double eps = 1e-5);
/// x / max(norm(x, p) along dim, eps). Grad: by the operations of which it consists. Throws: as norm.
WEFT_API Tensor normalize(Fp32Arg x, double p = 2, Whole dim = 1, double eps = 1e-12);

// ---- losses (loss.cpp, class_loss.cpp, cross_entropy.cpp). Shape: the result is [], or with
// Reduction::kNone has the sizes of the target. Throws: DTypeError for an integer x.

/// kNone keeps one loss per element of the target, kMean takes their mean and kSum their sum.
enum class Reduction : uint8_t { kNone, kMean, kSum };
/// Options of cross_entropy and nll_loss.
struct CrossEntropyOptions {
  Tensor weight = {};           ///< [C], undefined: ones; kMean divides by the sum of the targets' weights
  int64_t ignore_index = -100;  ///< targets of this value give no loss and no gradient
  double label_smoothing = 0;   ///< in [0, 1]: mixes the target with the uniform distribution
  Reduction reduction = Reduction::kMean;
};
/// -weight[t] * x[n, t] for log-probabilities x and target t.
/// Shape: x [N, C], [C] or [N, C, ..], target [N], [] or [N, ..], int64 or int32. Grad: -g * weight[t] at t.
/// Throws: as cross_entropy; ValueError unless label_smoothing is 0.
WEFT_API Tensor nll_loss(Fp32Arg x, In target, const CrossEntropyOptions& options = {});
/// nll_loss of log_softmax in one pass each way. On the CPU, forward also makes the gradient of a recorded
/// mean or sum of float32 or float64, in memory of the logits' size. The first backward takes that memory. It
/// has no pass, or one in place for a multiple of the loss. A later one computes the gradient again.
/// Shape: logits [N, C], [C] or [N, C, ..], target [N], [] or [N, ..], int64 or int32.
/// Grad: g * weight[t] * (softmax - smoothed target).
/// Throws: IndexError for a target outside [0, C) other than ignore_index. ShapeError for a target or weight
/// that does not fit. DTypeError for a target of another dtype. ValueError for label_smoothing outside [0,
/// 1]. AutogradError for a class weight that requires grad.
WEFT_API Tensor cross_entropy(Fp32Arg logits, In target, const CrossEntropyOptions& options = {});
/// cross_entropy(linear(x, weight, bias), target), with the logits of only a part of the rows in memory at a
/// time. For a mean or a sum the forward pass computes the gradients too; with Reduction::kNone, and of
/// float16, the backward computes the logits again. Under an Autocast on the CPU it is the plain composition,
/// with all logits.
/// Shape: x [N, I], weight [C, I], bias [C] or undefined, target [N]. Grad: to x, weight and bias.
/// Throws: as cross_entropy; ShapeError for an x, weight or bias that does not fit.
WEFT_API Tensor linear_cross_entropy(In x, In weight, In bias, In target,
                                     const CrossEntropyOptions& options = {});
/// (x - target)^2. Grad: dx = 2 * g * (x - target), dtarget = -dx.
/// Throws: ShapeError unless x and target have equal sizes.
WEFT_API Tensor mse_loss(Fp32Arg x, Fp32Arg target, Reduction reduction = Reduction::kMean);
/// |x - target|. Grad: dx = g * sign(x - target), dtarget = -dx. Throws: as mse_loss.
WEFT_API Tensor l1_loss(Fp32Arg x, Fp32Arg target, Reduction reduction = Reduction::kMean);
/// d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, with d = x - target.
/// Grad: dx = g * clamp(d / beta, -1, 1), dtarget = -dx. Throws: as mse_loss; ValueError unless beta >= 0.
WEFT_API Tensor smooth_l1_loss(Fp32Arg x, Fp32Arg target, double beta = 1,
                               Reduction reduction = Reduction::kMean);
/// -(target * log s + (1 - target) * log(1 - s)) with s = sigmoid(x). Computed as max(x, 0) - x * target +
/// log(1 + e^-|x|), which neither overflows nor cancels. Grad: dx = g * (s - target), dtarget = -g * x.
/// Throws: as mse_loss.
WEFT_API Tensor binary_cross_entropy_with_logits(Fp32Arg x, Fp32Arg target,
                                                 Reduction reduction = Reduction::kMean);

// ---- attention (attention.cpp)
/// Options of scaled_dot_product_attention.
struct AttentionOptions {
  /// The keys that a row attends to: bool, where false leaves a key out; or floating, added to the products.
  /// Broadcasts to [.., L, S].
  Tensor mask{};
  bool causal = false;             ///< row i attends to keys 0 .. i only
  double dropout = 0;              ///< probability, of the softmax; pass 0 in evaluation
  std::optional<double> scale{};   ///< 1 / sqrt(E) if absent
  Generator* generator = nullptr;  ///< of the dropout; null: default_generator()
};
/// softmax(scale q k^T, masked) v. No matrix of all products is made, unless there is dropout, the mask
/// requires grad, or the backward is recorded. CUDA devices also make that matrix where E or F is above 128,
/// or above 64 in float64. Half types are computed in float32, but CUDA devices round the softmax to the half
/// type before its product with v. A row without a key is 0.
/// Shape: q [.., L, E], k [.., S, E], v [.., S, F] -> [.., L, F]; leading dims broadcast.
/// Grad: to q, k, v, and to a floating mask.
/// Throws: ShapeError for sizes that do not fit; DTypeError for integers; ValueError for dropout outside
/// [0, 1].
WEFT_API Tensor scaled_dot_product_attention(AutocastArg q, AutocastArg k, AutocastArg v,
                                             const AttentionOptions& options = {});

// ---- random draws (random.cpp). A null generator means default_generator().
// Throws: DTypeError for integers.

/// 0 with probability p, else x / (1 - p); x itself if not training or p = 0. The mask is not stored: the
/// backward draws it again. Grad: g through the same mask. Throws: ValueError for p outside [0, 1].
WEFT_API Tensor dropout(In x, double p = 0.5, bool training = true, Generator* generator = nullptr);
/// `count` indices per row, int64, drawn with the row's weights, which need not sum to 1.
/// Shape: [K] -> [count], [R, K] -> [R, count].
/// Throws: ShapeError for other ranks. ValueError for count <= 0, K = 0, a negative or non-finite weight, or
/// a row without a positive weight. ValueError also without replacement, if fewer than `count` weights are
/// positive.
WEFT_API Tensor multinomial(In weights, Whole count, bool replacement = false,
                            Generator* generator = nullptr);
/// 1 with probability p, else 0, for each element. Throws: ValueError for a p outside [0, 1].
WEFT_API Tensor bernoulli(In p, Generator* generator = nullptr);

// ---- recurrent layers (rnn.cpp)
/// The results of rnn_layer.
struct RnnResult {
  Tensor y;   ///< [T, N, H]
  Tensor hn;  ///< of the shape of h0
  Tensor cn;  ///< of the shape of h0; undefined unless LSTM
};
/// One direction of one recurrent layer over the whole sequence as one node; nn/rnn.h has the equations.
/// Shape: x [T, N, I]; h0 [N, H] or [1, N, H], and for LSTM only c0 of the same shape. w_ih [G*H, I], w_hh
/// [G*H, H]; b_ih and b_hh [G*H] or undefined. The G gates have the order i f g o (LSTM) or r z n (GRU).
/// Grad: to every input, fused; under create_graph composed of plain operations.
/// Throws: ShapeError for sizes that do not fit or T = 0; DTypeError for an integer x, or an argument of
/// another dtype than x.
WEFT_API RnnResult rnn_layer(RnnMode mode, DeviceAutocastArg x, DeviceAutocastArg h0, DeviceAutocastArg c0,
                             DeviceAutocastArg w_ih, DeviceAutocastArg w_hh, DeviceAutocastArg b_ih,
                             DeviceAutocastArg b_hh, bool reverse = false);

}  // namespace weft
