// MultiheadAttention: products, scaled_dot_product_attention over views of them as [N, heads, L, E / heads],
// and the product of the result.
#include <weft/nn/attention.h>

#include <cmath>

#include <weft/autograd/ops/ops.h>
#include <weft/nn/init.h>
#include <weft/nn/inner/type_of_x.h>
#include <weft/tensor/factories.h>

namespace weft::nn {

namespace {

constexpr const char* kLayer = "MultiheadAttention";

int64_t checked(int64_t dim, int64_t heads) {
  if (dim < 1 || heads < 1 || dim % heads != 0)
    throw ValueError(str(kLayer, ": heads must divide dim, got dim ", dim, " and ", heads, " heads"));
  return dim;
}

}  // namespace

MultiheadAttention::MultiheadAttention(int64_t dim, int64_t heads, const MultiheadAttentionOptions& options)
    : out_proj(checked(dim, heads), dim,
               {.bias = options.bias, .dtype = options.dtype, .generator = options.generator}),
      dim_(dim),
      heads_(heads),
      dropout_(options.dropout),
      batch_first_(options.batch_first) {
  if (!(dropout_ >= 0 && dropout_ <= 1))
    throw ValueError(str(kLayer, ": dropout must be in [0, 1], is ", dropout_));
  const TensorOptions like{.dtype = options.dtype};
  add("in_proj_weight", &MultiheadAttention::in_proj_weight, empty({3 * dim, dim}, like));
  add("in_proj_bias", &MultiheadAttention::in_proj_bias, options.bias ? empty({3 * dim}, like) : Tensor());
  add("out_proj", out_proj);
  reset_parameters(options.generator);
}

void MultiheadAttention::reset_parameters(Generator* generator) {
  init::xavier_uniform_(in_proj_weight, 1, generator);
  out_proj.reset_parameters(generator);
  for (const Tensor& bias : {in_proj_bias, out_proj.bias})
    if (bias.defined()) init::zeros_(bias);
}

// The mask of scaled_dot_product_attention: [.., L, S] with the padding of k's rows.
Tensor MultiheadAttention::mask_of(const Tensor& k, const AttentionMasks& masks) const {
  const Tensor& padding = masks.key_padding;
  if (!padding.defined()) return masks.mask;
  if (padding.dtype() != kBool)
    throw DTypeError(str(kLayer, ": key_padding must be bool, is ", padding.dtype()));
  const bool batched = k.dim() == 3;
  const Shape sizes =
      batched ? Shape{k.size(batch_first_ ? 0 : 1), k.size(batch_first_ ? 1 : 0)} : Shape{k.size(0)};
  if (!(padding.sizes() == sizes))
    throw ShapeError(str(kLayer, ": key_padding is ", padding.sizes(), ", k has keys of ", sizes));
  const Tensor taken = logical_not(batched ? padding.reshape({sizes[0], 1, 1, sizes[1]}) : padding);
  if (!masks.mask.defined()) return taken;
  if (masks.mask.dtype() == kBool) return logical_and(masks.mask, taken);
  return masked_fill(masks.mask, logical_not(taken), -INFINITY);
}

Tensor MultiheadAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionMasks& masks) const {
  const std::pair<const char*, const Tensor&> inputs[] = {{"q", q}, {"k", k}, {"v", v}};
  for (const auto& [what, x] : inputs) {
    check_type_of_x(kLayer, what, x, "in_proj_weight", in_proj_weight);
    if ((x.dim() != 2 && x.dim() != 3) || x.dim() != q.dim() || x.size(-1) != dim_)
      throw ShapeError(str(kLayer, ": takes sequences of two or three dims, the last of ", dim_, "; ", what,
                           " is ", x.sizes()));
  }
  // [L, N, E] or [N, L, E] as [N, heads, L, E / heads], [L, E] as [heads, L, E / heads]: views
  const auto order = [&](Tensor x) {
    return batch_first_ ? x.permute({0, 2, 1, 3}) : x.permute({1, 2, 0, 3});
  };
  const auto split = [&](const Tensor& x) {
    Shape sizes = x.sizes();
    sizes[x.dim() - 1] = heads_;
    sizes.push_back(dim_ / heads_);
    return x.dim() == 2 ? x.reshape(sizes).transpose(0, 1) : order(x.reshape(sizes));
  };
  std::vector<Tensor> parts;
  if (q.is_same(k) && k.is_same(v)) {
    parts = linear(q, in_proj_weight, in_proj_bias).chunk(3, -1);
  } else {
    const std::vector<Tensor> weights = in_proj_weight.chunk(3);
    std::vector<Tensor> biases(3);
    if (in_proj_bias.defined()) biases = in_proj_bias.chunk(3);
    parts = {linear(q, weights[0], biases[0]), linear(k, weights[1], biases[1]),
             linear(v, weights[2], biases[2])};
  }
  const Tensor y = scaled_dot_product_attention(split(parts[0]), split(parts[1]), split(parts[2]),
                                                {.mask = mask_of(k, masks),
                                                 .causal = masks.causal,
                                                 .dropout = is_training() ? dropout_ : 0,
                                                 .generator = &generator()});
  if (q.dim() == 2) return out_proj.forward(y.transpose(0, 1).reshape(q.sizes()));
  return out_proj.forward(
      (batch_first_ ? y.permute({0, 2, 1, 3}) : y.permute({2, 0, 1, 3})).reshape(q.sizes()));
}

std::string MultiheadAttention::name() const {
  return str(kLayer, "(", dim_, ", heads=", heads_, dropout_ > 0 ? str(", dropout=", dropout_) : "",
             in_proj_bias.defined() ? "" : ", bias=false", batch_first_ ? ", batch_first=true)" : ")");
}

}  // namespace weft::nn
