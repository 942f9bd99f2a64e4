// Linear, Embedding and LayerNorm: checks of sizes at construction, initial values, and forward. Each forward
// checks the dtype of x and calls one operation of autograd/ops.
#include <weft/nn/linear.h>

#include <cmath>

#include <weft/autograd/ops/ops.h>
#include <weft/nn/init.h>
#include <weft/nn/inner/type_of_x.h>
#include <weft/tensor/factories.h>

namespace weft::nn {
namespace {

void check_positive(const char* layer, const char* what, int64_t n) {
  if (n < 1) throw ValueError(str(layer, ": ", what, " must be at least 1, got ", n));
}

}  // namespace

Linear::Linear(int64_t in, int64_t out, const LinearOptions& options) {
  check_positive("Linear", "in", in);
  check_positive("Linear", "out", out);
  add("weight", &Linear::weight, empty({out, in}, {.dtype = options.dtype}));
  add("bias", &Linear::bias, options.bias ? empty({out}, {.dtype = options.dtype}) : Tensor());
  reset_parameters(options.generator);
}

void Linear::reset_parameters(Generator* generator) {
  const double bound = 1 / std::sqrt(static_cast<double>(weight.size(1)));
  init::uniform_(weight, -bound, bound, generator);
  if (bias.defined()) init::uniform_(bias, -bound, bound, generator);
}

Tensor Linear::forward(const Tensor& x) const {
  check_type_of_x("Linear", "x", x, "weight", weight);
  return linear(x, weight, bias);
}

std::string Linear::name() const {
  return str("Linear(in=", weight.size(1), ", out=", weight.size(0), bias.defined() ? ")" : ", bias=false)");
}

Embedding::Embedding(int64_t count, int64_t dim, const EmbeddingOptions& options)
    : padding_idx_(options.padding_idx), sparse_(options.sparse) {
  check_positive("Embedding", "count", count);
  check_positive("Embedding", "dim", dim);
  if (padding_idx_ < -1 || padding_idx_ >= count)
    throw IndexError(str("Embedding: padding_idx ", padding_idx_, " is outside [0, ", count, ")"));
  add("weight", &Embedding::weight, empty({count, dim}, {.dtype = options.dtype}));
  reset_parameters(options.generator);
}

void Embedding::reset_parameters(Generator* generator) {
  init::normal_(weight, 0, 1, generator);
  if (padding_idx_ >= 0) init::zeros_(weight.detach().select(0, padding_idx_));
}

Tensor Embedding::forward(const Tensor& ids) const { return embedding(weight, ids, padding_idx_, sparse_); }

std::string Embedding::name() const {
  return str("Embedding(", weight.size(0), ", ", weight.size(1),
             padding_idx_ >= 0 ? str(", padding_idx=", padding_idx_) : "", sparse_ ? ", sparse=true)" : ")");
}

LayerNorm::LayerNorm(int64_t dim, double eps) : eps_(eps) {
  check_positive("LayerNorm", "dim", dim);
  if (!(eps > 0)) throw ValueError(str("LayerNorm: eps must be positive, got ", eps));
  add("weight", &LayerNorm::weight, ones({dim}));
  add("bias", &LayerNorm::bias, zeros({dim}));
}

Tensor LayerNorm::forward(const Tensor& x) const {
  check_type_of_x("LayerNorm", "x", x, "weight", weight);
  return layer_norm(x, weight.sizes(), weight, bias, eps_);
}

std::string LayerNorm::name() const { return str("LayerNorm(", weight.size(0), ", eps=", eps_, ")"); }

}  // namespace weft::nn
