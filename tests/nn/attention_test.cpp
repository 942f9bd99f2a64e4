// MultiheadAttention against its formula head by head: layouts, masks, padding, dropout and gradients.
#include <cmath>

#include <weft/autograd/tape/gradcheck.h>
#include <weft/weft.h>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft {
namespace {

using test::error_of;
using testing::close;
using testing::same_bits;

constexpr TensorOptions kDouble{.dtype = kFloat64};

Tensor random(const Shape& sizes) { return randn(sizes, kDouble); }

/// One sequence of q over k and v, one head after the other. `taken` is bool [L, S].
Tensor by_heads(const nn::MultiheadAttention& layer, int64_t heads, const Tensor& q, const Tensor& k,
                const Tensor& v, const Tensor& taken) {
  const auto w = layer.in_proj_weight.chunk(3), b = layer.in_proj_bias.chunk(3);
  const auto a = linear(q, w[0], b[0]).chunk(heads, 1), c = linear(k, w[1], b[1]).chunk(heads, 1),
             d = linear(v, w[2], b[2]).chunk(heads, 1);
  std::vector<Tensor> out;
  for (size_t i = 0; i < a.size(); ++i) {
    const Tensor s = matmul(a[i], c[i].t()) / std::sqrt(static_cast<double>(a[i].size(1)));
    out.push_back(matmul(softmax(s.masked_fill(!taken, -INFINITY), -1), d[i]));
  }
  return layer.out_proj.forward(cat(out, 1));
}

const Tensor kAll = ones({5, 7}, kBool);

TEST(MultiheadAttention, has_the_names_and_sizes_of_pytorch) {
  std::string names;
  for (const auto& [name, p] : nn::MultiheadAttention(6, 2).named_parameters())
    names += str(name, p.sizes(), " ");
  EXPECT_EQ(names, "in_proj_weight[18, 6] in_proj_bias[18] out_proj.weight[6, 6] out_proj.bias[6] ");
  const nn::MultiheadAttention layer(6, 3, {.dropout = 0.1, .bias = false, .batch_first = true});
  EXPECT_EQ(layer.parameters().size(), 2u);
  EXPECT_EQ(layer.name(), "MultiheadAttention(6, heads=3, dropout=0.1, bias=false, batch_first=true)");
  EXPECT_EQ(nn::MultiheadAttention(6, 2).in_proj_bias.abs().sum().item<float>(), 0);
}

TEST(MultiheadAttention, is_attention_of_each_head_in_every_layout) {
  manual_seed(3);
  nn::MultiheadAttention layer(6, 2, {.dtype = kFloat64}),
      first(6, 2, {.batch_first = true, .dtype = kFloat64});
  nn::init::uniform_(layer.in_proj_bias, -1, 1);
  first.load_state_dict(layer.state_dict());
  const Tensor q = random({5, 3, 6}), k = random({7, 3, 6}), v = random({7, 3, 6});
  const Tensor y = layer.forward(q, k, v);
  EXPECT_EQ(y.sizes(), Shape({5, 3, 6}));
  for (int64_t i = 0; i < 3; ++i) {
    const Tensor expected = by_heads(layer, 2, q.select(1, i), k.select(1, i), v.select(1, i), kAll);
    EXPECT_TRUE(close(y.select(1, i), expected, 1e-12, 1e-12)) << i;
    EXPECT_TRUE(close(layer.forward(q.select(1, i), k.select(1, i), v.select(1, i)), expected, 1e-12, 1e-12));
  }
  EXPECT_TRUE(close(first.forward(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)).transpose(0, 1), y,
                    1e-12, 1e-12));
  EXPECT_TRUE(close(layer.forward(q), layer.forward(q, q.clone(), q.clone()), 1e-12, 1e-12));  // one product
}

TEST(MultiheadAttention, leaves_out_masked_and_padded_keys) {
  manual_seed(4);
  const nn::MultiheadAttention layer(6, 2, {.dtype = kFloat64});
  const Tensor q = random({5, 2, 6}), k = random({7, 2, 6});
  const Tensor mask = (rand({5, 7}) > 0.4) | (arange(7) == 0), added = random({5, 7});
  const Tensor padding = stack({arange(7) > 4, arange(7) > 6});  // [N, S]: two keys of the first sequence
  const Tensor y = layer.forward(q, k, k, {.mask = mask, .key_padding = padding});
  const Tensor z = layer.forward(q, k, k, {.mask = added, .key_padding = padding});
  for (int64_t i = 0; i < 2; ++i) {
    const Tensor a = q.select(1, i), b = k.select(1, i), taken = mask & !padding[i];
    EXPECT_TRUE(close(y.select(1, i), by_heads(layer, 2, a, b, b, taken), 1e-12, 1e-12)) << i;
    EXPECT_TRUE(close(layer.forward(a, b, b, {.mask = mask, .key_padding = padding[i]}), y.select(1, i),
                      1e-12, 1e-12));
    const Tensor kept = b.narrow(0, 0, i == 0 ? 5 : 7);
    EXPECT_TRUE(close(z.select(1, i),
                      layer.forward(a, kept, kept, {.mask = added.narrow(1, 0, kept.size(0))}), 1e-12,
                      1e-12));
  }
  EXPECT_TRUE(close(layer.forward(q, {.causal = true}),
                    layer.forward(q, q, q, {.mask = tril(ones({5, 5}, kBool))}), 1e-12, 1e-12));
}

TEST(MultiheadAttention, drops_in_training_by_the_generator_of_the_module) {
  nn::MultiheadAttention layer(4, 2, {.dropout = 0.5});
  const Tensor x = randn({6, 2, 4});
  layer.seed(7);
  const Tensor a = layer.forward(x), b = layer.forward(x);
  layer.seed(7);
  EXPECT_TRUE(same_bits(layer.forward(x), a));
  EXPECT_FALSE(same_bits(a, b));
  layer.eval();
  EXPECT_TRUE(same_bits(layer.forward(x), layer.forward(x)));
}

TEST(MultiheadAttention, gradients_pass_the_finite_differences) {
  const nn::MultiheadAttention layer(4, 2, {.dtype = kFloat64});
  std::vector<Tensor> inputs = {random({3, 2, 4}).requires_grad_(), random({5, 2, 4}).requires_grad_()};
  EXPECT_TRUE(gradcheck([&](const std::vector<Tensor>& in)
                            -> std::vector<Tensor> { return {layer.forward(in[0], in[1], in[1])}; },
                        inputs));
  layer.forward(inputs[0]).sum().backward();
  for (const auto& [name, p] : layer.named_parameters()) EXPECT_TRUE(p.grad().defined()) << name;
}

TEST(MultiheadAttention, stands_in_a_sequential_and_takes_half_types_under_autocast) {
  nn::Sequential net;
  net.append<nn::Linear>(3, 4);
  net.append<nn::MultiheadAttention>(4, 2);
  EXPECT_EQ(net.forward(randn({5, 2, 3})).sizes(), Shape({5, 2, 4}));
  const Autocast half(kBFloat16);
  EXPECT_EQ(net.forward(randn({5, 2, 3})).dtype(), kBFloat16);
}

TEST(MultiheadAttention, rejects_wrong_sizes_and_types) {
  EXPECT_EQ(error_of<ValueError>([] { nn::MultiheadAttention(6, 4); }),
            "MultiheadAttention: heads must divide dim, got dim 6 and 4 heads");
  EXPECT_THROW(nn::MultiheadAttention(6, 2, {.dropout = 1.5}), ValueError);
  const nn::MultiheadAttention layer(4, 2);
  const Tensor q = zeros({5, 2, 4});
  EXPECT_EQ(error_of<ShapeError>([&] {
              layer.forward(q, zeros({7, 2, 3}), q);
            }),
            "MultiheadAttention: takes sequences of two or three dims, the last of 4; k is [7, 2, 3]");
  EXPECT_THROW(layer.forward(q, zeros({7, 4}), zeros({7, 4})), ShapeError);
  EXPECT_THROW(layer.forward(q, zeros({7, 2, 4}), zeros({6, 2, 4})), ShapeError);
  EXPECT_EQ(error_of<ShapeError>([&] {
              layer.forward(q, {.key_padding = zeros({5, 2}, kBool)});
            }),
            "MultiheadAttention: key_padding is [5, 2], k has keys of [2, 5]");
  EXPECT_EQ(error_of<DTypeError>([&] {
              layer.forward(q, {.key_padding = zeros({2, 5})});
            }),
            "MultiheadAttention: key_padding must be bool, is float32");
  EXPECT_THROW(layer.forward(zeros({5, 2, 4}, kFloat64)), DTypeError);
}

}  // namespace
}  // namespace weft
