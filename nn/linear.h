// Linear, Embedding and LayerNorm. Names and layouts of their parameters as in PyTorch checkpoints. A tensor
// assigned to weight or bias is the layer's parameter from then on. So `decoder.weight = encoder.weight` ties
// both.
#pragma once

#include <weft/nn/module.h>

namespace weft::nn {

/// Options of Linear.
struct LinearOptions {
  bool bias = true;
  DType dtype = kFloat32;
  Generator* generator = nullptr;  ///< for the initial values; null: the process's default
};

/// y = x W^T + b. Shape: x [.., in] -> [.., out]; weight [out, in], bias [out].
/// Init: both U(-1/sqrt(in), 1/sqrt(in)).
class WEFT_API Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, const LinearOptions& options = {});
  /// Throws: ShapeError if x's last dim is not `in`; outside an Autocast, DTypeError if x and weight have
  /// different dtypes.
  Tensor forward(const Tensor& x) const;  // takes one tensor
  void reset_parameters(Generator* generator = nullptr);
  std::string name() const override;
  Tensor weight, bias;
};

/// Options of Embedding.
struct EmbeddingOptions {
  int64_t padding_idx = -1;  ///< a row that stays zero and gets no gradient; -1: none
  DType dtype = kFloat32;
  Generator* generator = nullptr;
  /// the gradient of weight has only the rows that were looked up (RowGrad, autograd/tape/row_grad.h)
  bool sparse = false;
};

/// Rows of a table by id. Shape: ids int64 or int32 [..] -> [.., dim]; weight [count, dim].
/// Init: N(0, 1), the padding row zero.
class WEFT_API Embedding : public Module {
 public:
  Embedding(int64_t count, int64_t dim, const EmbeddingOptions& options = {});
  /// Throws: IndexError for an id outside [0, count).
  Tensor forward(const Tensor& ids) const;  // takes one tensor
  void reset_parameters(Generator* generator = nullptr);
  std::string name() const override;
  Tensor weight;

 private:
  int64_t padding_idx_;
  bool sparse_;
};

/// Normalises over the last dim and scales: y = (x - mean) / sqrt(var + eps) * weight + bias.
/// Shape: x [.., dim] -> [.., dim]; weight and bias [dim]. Init: ones and zeros.
/// Source: Ba, Kiros & Hinton 2016.
class WEFT_API LayerNorm : public Module {
 public:
  explicit LayerNorm(int64_t dim, double eps = 1e-5);
  /// Throws: as Linear.
  Tensor forward(const Tensor& x) const;  // takes one tensor
  std::string name() const override;
  Tensor weight, bias;

 private:
  double eps_;
};

}  // namespace weft::nn
