// MultiheadAttention. Names and layouts of its parameters as in PyTorch checkpoints.
#pragma once

#include <weft/nn/linear.h>

namespace weft::nn {

/// Options of MultiheadAttention.
struct MultiheadAttentionOptions {
  double dropout = 0;  ///< probability, of the softmax in training; draws from the module's generator()
  bool bias = true;
  bool batch_first = false;  ///< sequences are [N, L, E] in place of [L, N, E]
  DType dtype = kFloat32;
  Generator* generator = nullptr;  ///< for the initial values; null: the process's default
};

/// The keys that a row attends to. As in scaled_dot_product_attention, false in a bool mask leaves a key out.
struct AttentionMasks {
  Tensor mask{};         ///< bool, or floating to be added; [L, S], or broadcasts to [N, heads, L, S]
  Tensor key_padding{};  ///< bool [N, S], or [S] without a batch; true where the key is padding: left out
  bool causal = false;   ///< row i attends to keys 0 .. i only
};

/// Attention by `heads` slices of E / heads numbers. Each row of q takes a mean of the rows of v, weighted by
/// the softmax of its products with the rows of k. q, k and v go through in_proj, the result through
/// out_proj.
/// Shape: q [L, N, E], k and v [S, N, E] -> [L, N, E]; or without N.
/// Init: in_proj_weight xavier_uniform_, out_proj.weight as Linear, biases zero.
/// Source: Vaswani et al. 2017.
class WEFT_API MultiheadAttention : public Module {
 public:
  /// Throws: ValueError unless `heads` divides `dim`, and for dropout outside [0, 1].
  MultiheadAttention(int64_t dim, int64_t heads, const MultiheadAttentionOptions& options = {});
  /// Throws: ShapeError for sizes that do not fit. DTypeError if q, k or v and the weights have different
  /// dtypes outside an Autocast, and for a key_padding that is not bool.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMasks& masks = {}) const;
  /// Self-attention of x. One product makes q, k and v.
  Tensor forward(const Tensor& x, const AttentionMasks& masks = {}) const { return forward(x, x, x, masks); }
  void reset_parameters(Generator* generator = nullptr);
  std::string name() const override;
  Tensor in_proj_weight;  ///< [3 E, E]: for q, k and v
  Tensor in_proj_bias;    ///< [3 E]; undefined without biases
  Linear out_proj;

 private:
  Tensor mask_of(const Tensor& k, const AttentionMasks& masks) const;
  int64_t dim_, heads_;
  double dropout_;
  bool batch_first_;
};

}  // namespace weft::nn
