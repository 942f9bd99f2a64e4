// Rules across operations: types and promotion, numbers, randomness, in-place rules, views, fused forms
// against their parts.
#include <gtest/gtest.h>

#include <cmath>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include "support/golden.h"

namespace weft {
namespace {

using testing::close;
using testing::same_bits;

Tensor of(DType t) { return ones({2, 3}, {.dtype = t}); }

TEST(Promotion, two_tensors_meet_in_the_wider_type) {
  const DType order[] = {kBool, kUInt8, kInt32, kInt64, kBFloat16, kFloat32, kFloat64};
  for (const DType a : order)
    for (const DType b : order) {
      const DType wider = a > b ? a : b, expected = wider == kBool ? kInt64 : wider;
      EXPECT_EQ((of(a) * of(b)).dtype(), expected) << to_string(a) << " " << to_string(b);
      EXPECT_EQ(maximum(of(a), of(b)).dtype(), expected);
      EXPECT_EQ((of(a) / of(b)).dtype(), is_floating(wider) ? wider : kFloat32);
      EXPECT_EQ((of(a) < of(b)).dtype(), kBool);
      EXPECT_EQ(where(ones({3}, {.dtype = kBool}), of(a), of(b)).dtype(), wider);
      EXPECT_EQ(cat({of(a), of(b)}).dtype(), wider);
    }
  EXPECT_EQ((of(kFloat16) + of(kBFloat16)).dtype(), kFloat32);
  EXPECT_EQ((of(kFloat16) + of(kInt64)).dtype(), kFloat16);
}

TEST(Promotion, a_number_never_promotes_a_tensor) {
  for (const DType t : {kFloat16, kBFloat16, kFloat32, kFloat64}) EXPECT_EQ((of(t) * 2.5 + 1).dtype(), t);
  for (const DType t : {kUInt8, kInt32, kInt64}) {
    EXPECT_EQ((of(t) * 2 + 1.0).dtype(), t);
    EXPECT_THROW(of(t) + 0.5, DTypeError);
    EXPECT_THROW(clamp(of(t), 0.5, 2), DTypeError);
    EXPECT_THROW(maximum(of(t), 0.5), DTypeError);
    EXPECT_THROW(masked_fill(of(t), of(kBool), 0.5), DTypeError);
  }
  EXPECT_EQ((of(kBool) + 1).dtype(), kInt64);
}

TEST(Promotion, functions_of_real_numbers_take_integers_as_float32) {
  EXPECT_EQ(exp(of(kInt64)).dtype(), kFloat32);
  EXPECT_EQ(sqrt(of(kBool)).dtype(), kFloat32);
  EXPECT_EQ((of(kInt32) / 2).dtype(), kFloat32);
  EXPECT_EQ(pow(of(kInt64), 2.0).dtype(), kFloat32);
  EXPECT_FLOAT_EQ(lerp(of(kInt64), of(kInt64) * 3, 0.25)[0][0].item<float>(), 1.5f);
  EXPECT_FLOAT_EQ((of(kInt64) / 4)[0][0].item<float>(), 0.25f);
}

TEST(Promotion, sums_of_integers_are_int64_and_means_are_refused) {
  for (const DType t : {kBool, kUInt8, kInt32, kInt64}) {
    EXPECT_EQ(sum(of(t)).dtype(), kInt64);
    EXPECT_EQ(prod(of(t)).dtype(), kInt64);
    EXPECT_EQ(max(of(t)).dtype(), t);
    EXPECT_THROW(mean(of(t)), DTypeError);
    EXPECT_THROW(var(of(t)), DTypeError);
    EXPECT_THROW(softmax(of(t), 0), DTypeError);
    EXPECT_THROW(norm(of(t)), DTypeError);
  }
}

TEST(Promotion, the_mean_of_large_halves_stays_in_range) {
  EXPECT_FLOAT_EQ(mean(full({3, 40000}, 2, {.dtype = kFloat16})).item<float>(), 2);
}

TEST(Promotion, comparisons_with_a_number_are_exact) {
  const Tensor bytes = from_vector<uint8_t>({0, 44, 255}, {3});
  EXPECT_TRUE(all(bytes < 300).item<bool>());
  EXPECT_FALSE(any(bytes == 300).item<bool>());
  EXPECT_TRUE(all(bytes > -1).item<bool>());
  EXPECT_EQ(sum(from_vector<int64_t>({1, 2, 3}, {3}) > 1.5).item<int64_t>(), 2);
}

TEST(Promotion, a_gradient_has_its_inputs_type) {
  Tensor x = of(kFloat32).requires_grad_();
  sum(x * of(kFloat64) * of(kInt64)).backward();
  EXPECT_EQ(x.grad().dtype(), kFloat32);
}

TEST(Promotion, the_gradient_of_a_sum_is_memory_of_its_own) {
  Tensor x = ones({3, 5}).requires_grad_();
  sum(x).backward();
  EXPECT_TRUE(x.grad().is_contiguous());
  x.grad().add_(ones({3, 5}));
  EXPECT_TRUE(equal(x.grad(), full({3, 5}, 2)));
}

TEST(Operators, tensors_and_numbers_mix_on_both_sides) {
  const Tensor x = tensor({1, 2, 4});
  EXPECT_TRUE(equal(2 + x, x + 2));
  EXPECT_TRUE(equal(8 / x, tensor({8, 4, 2})));
  EXPECT_TRUE(equal(1 - x, -(x - 1)));
  EXPECT_TRUE(equal(2 == x, x == 2));
  EXPECT_TRUE(equal(2 != x, logical_not(x == 2)));
  EXPECT_TRUE(equal(x >= 2, x > tensor({1.5})));
  EXPECT_TRUE(allclose(x, x + 1e-9));
  EXPECT_FALSE(allclose(x, x + 1e-3));
  EXPECT_FALSE(allclose(x, tensor({1, 2})));
  EXPECT_FALSE(allclose(tensor({NAN}), tensor({NAN})));
  EXPECT_TRUE(allclose(tensor({INFINITY}), tensor({INFINITY})));
  EXPECT_FALSE(equal(x, x.to(kFloat64)));
}

TEST(Views, share_storage_and_copies_do_not) {
  const Tensor x = arange(30).to(kFloat32).view({2, 3, 5});
  for (const Tensor& y : {x.view({6, 5}), x.transpose(0, 2), x.permute({1, 2, 0}), x[1], x.narrow(2, 1, 3),
                          x.unsqueeze(0), x.expand({7, 2, 3, 5}), x.flatten(), diagonal(x[0])})
    EXPECT_TRUE(y.shares_storage(x));
  EXPECT_FALSE(x.transpose(0, 2).reshape({-1}).shares_storage(x));
  EXPECT_FALSE(x.clone().shares_storage(x));
  EXPECT_TRUE(x.contiguous().is_same(x));
  EXPECT_TRUE(x.to(kFloat32).is_same(x));
}

TEST(Views, a_view_of_strided_memory_exists_where_strides_allow) {
  const Tensor x = arange(60).view({3, 4, 5});
  EXPECT_TRUE(equal(x.slice(0, 0, 3, 2).view({2, 20}), cat({x[0].view({1, 20}), x[2].view({1, 20})})));
  EXPECT_TRUE(equal(x.transpose(0, 1).view({2, 2, 3, 5}), x.transpose(0, 1).clone().view({2, 2, 3, 5})));
  EXPECT_THROW(x.transpose(1, 2).view({60}), ShapeError);
  EXPECT_EQ(to_string(zeros({0, 3}).view({3, 0}).sizes()), "[3, 0]");
}

TEST(InPlace, a_leaf_that_requires_grad_is_refused_and_unchanged) {
  Tensor x = ones({3}).requires_grad_();
  const auto refuse = [&](const char* name, auto&& write) {
    try {
      write();
      ADD_FAILURE() << name << " was not refused";
    } catch (const AutogradError& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  };
  refuse("add_", [&] { x.add_(ones({3})); });
  refuse("mul_", [&] { x.mul_(2); });
  refuse("zero_", [&] { x.zero_(); });
  refuse("uniform_", [&] { x.uniform_(); });
  refuse("copy_", [&] { x.copy_(zeros({3})); });
  EXPECT_TRUE(equal(x.detach(), ones({3})));
  NoGrad off;
  x.mul_(2);
  EXPECT_TRUE(equal(x.detach(), full({3}, 2)));
}

TEST(InPlace, a_saved_tensor_written_later_is_an_error_that_names_the_op) {
  Tensor x = ones({3}).requires_grad_(), b = ones({3});
  const Tensor y = x * b;
  b.add_(1);
  try {
    sum(y).backward();
    ADD_FAILURE() << "no error";
  } catch (const AutogradError& e) {
    EXPECT_NE(std::string(e.what()).find("mul"), std::string::npos) << e.what();
  }
}

TEST(InPlace, a_tensor_that_no_gradient_needs_may_be_written) {
  Tensor x = ones({3}).requires_grad_(), b = ones({3}), c = ones({3});
  const Tensor y = x * b + c;
  Tensor z = x.detach() * 3;
  c.add_(1);
  z.add_(1);
  sum(y).backward();
  EXPECT_TRUE(equal(x.grad(), ones({3})));
}

TEST(Chance, a_seed_gives_the_same_numbers) {
  const auto draw = [] {
    manual_seed(5);
    Tensor u = zeros({37}), n = zeros({37}, {.dtype = kFloat64}), b = zeros({37});
    u.uniform_(-3, 2);
    n.normal_(1, 0.5);
    b.bernoulli_(0.3);
    return std::vector<Tensor>{u, n, b, dropout(ones({37}), 0.5), multinomial(ones({3, 7}), 5)};
  };
  const auto first = draw(), second = draw();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(same_bits(first[i], second[i])) << i;
  EXPECT_TRUE(all(logical_and(first[0] >= -3, first[0] < 2)).item<bool>());
  EXPECT_TRUE(all(logical_or(first[2] == 0, first[2] == 1)).item<bool>());
}

TEST(Chance, draws_have_the_moments_they_should) {
  manual_seed(11);
  Tensor u = zeros({20011}), n = zeros({20011}), b = zeros({20011});
  u.uniform_(-3, 2);
  n.normal_(1, 0.5);
  b.bernoulli_(0.3);
  EXPECT_NEAR(mean(u).item<double>(), -0.5, 0.05);
  EXPECT_NEAR(mean(n).item<double>(), 1, 0.02);
  EXPECT_NEAR(weft::std(n).item<double>(), 0.5, 0.02);
  EXPECT_NEAR(mean(b).item<double>(), 0.3, 0.02);
  const Tensor kept = dropout(ones({20011}), 0.25);
  EXPECT_NEAR(mean((kept != 0).to(kFloat32)).item<double>(), 0.75, 0.02);
  EXPECT_FLOAT_EQ(max(kept).item<float>(), 1 / 0.75f);
  const Tensor picks = multinomial(tensor({1, 2, 1}), 20011, true);
  EXPECT_NEAR(mean((picks == 1).to(kFloat32)).item<double>(), 0.5, 0.02);
}

TEST(Chance, dropout_backward_draws_the_mask_of_its_forward) {
  manual_seed(3);
  Tensor x = ones({7, 11}).requires_grad_();
  const Tensor y = dropout(x, 0.4);
  dropout(x, 0.4);  // moves the generator on
  sum(y).backward();
  EXPECT_TRUE(same_bits(x.grad(), y.detach()));
}

TEST(Embedding, the_padding_row_has_no_gradient_and_repeats_add_up) {
  Tensor w = ones({5, 3}).requires_grad_();
  const Tensor ids = from_vector<int64_t>({1, 2, 1, 4}, {2, 2});
  sum(embedding(w, ids, 2)).backward();
  EXPECT_TRUE(equal(w.grad(), expand(tensor({0, 2, 0, 0, 1}).view({5, 1}), {5, 3})));
}

// Fused and in parts: the same loss and gradients, over several blocks of rows.
TEST(Embedding, a_table_without_rows_takes_padding_0) {
  const Tensor none = zeros({2, 0}, {.dtype = kInt64});
  EXPECT_EQ(embedding(zeros({0, 3}), none, 0).sizes(), (Shape{2, 0, 3}));
  EXPECT_THROW(embedding(zeros({0, 3}), none, 1), IndexError);
  EXPECT_THROW(embedding(zeros({0, 3}), zeros({1}, {.dtype = kInt64}), 0), IndexError);
}

TEST(LinearRelu, of_integers_is_the_positive_part_of_their_product) {
  const Tensor x = arange(6).view({2, 3}) - 3, w = arange(9).view({3, 3}) - 2, b = arange(3);
  EXPECT_TRUE(equal(linear_relu(x, w, b), relu(linear(x, w, b))));
}

TEST(LinearGelu, is_gelu_of_the_product_in_every_mix_of_types) {
  manual_seed(3);
  const Tensor x = randn({4, 5}), w = randn({8, 5}), b = randn({8}), v = randn({3, 8}), c = randn({3});
  EXPECT_TRUE(same_bits(linear_gelu_tanh(x, w, b), gelu_tanh(linear(x, w, b))));
  EXPECT_TRUE(same_bits(feed_forward(x, w, b, v, c), linear(gelu_tanh(linear(x, w, b)), v, c)));
  EXPECT_TRUE(same_bits(feed_forward(x, w, Tensor(), v), linear(gelu_tanh(linear(x, w)), v)));
  const Tensor whole = arange(6, {.dtype = kUInt8}).view({2, 3}) * 50, real = whole.to(kFloat32);
  EXPECT_TRUE(equal(linear_gelu_tanh(whole, whole), gelu_tanh(linear(real, real))));
  const Tensor wide = v.to(kFloat64).requires_grad_(), h = x.to(kFloat16).requires_grad_(),
               u = w.to(kFloat16).requires_grad_();
  const auto grads = [&](const Tensor& y) {
    y.sum().backward();
    const std::vector<Tensor> all = {h.grad(), u.grad(), wide.grad()};
    h.zero_grad(), u.zero_grad(), wide.zero_grad();
    return all;
  };
  const auto joined = grads(feed_forward(h, u, Tensor(), wide, c)),
             apart = grads(linear(gelu_tanh(linear(h, u)), wide, c));
  for (size_t i = 0; i < joined.size(); ++i) {
    EXPECT_EQ(joined[i].dtype(), apart[i].dtype());
    EXPECT_TRUE(allclose(joined[i], apart[i], 4e-3, 4e-3)) << i;
  }
}

TEST(LinearGelu, keeps_its_argument_only_for_a_gradient) {
  const Tensor x = randn({4, 5}), w = randn({8, 5}).requires_grad_(), v = randn({3, 8}).requires_grad_();
  EXPECT_TRUE(linear_gelu_tanh(x, w).requires_grad());
  EXPECT_TRUE(feed_forward(x, w.detach(), Tensor(), v).requires_grad());
  const NoGrad off;
  EXPECT_FALSE(linear_gelu_tanh(x, w).requires_grad());
  EXPECT_FALSE(feed_forward(x, w, Tensor(), v).requires_grad());
}

TEST(RnnLayer, runs_without_biases_and_without_a_tape) {
  manual_seed(4);
  const Tensor x = randn({3, 2, 5}), h = randn({2, 7}), c = randn({2, 7}), w = randn({28, 5}),
               u = randn({28, 7}), zero = zeros({28});
  const RnnResult with = rnn_layer(RnnMode::kLstm, x, h, c, w, u, zero, zero),
                  without = rnn_layer(RnnMode::kLstm, x, h, c, w, u, Tensor(), Tensor());
  EXPECT_TRUE(close(with.y, without.y));
  EXPECT_FALSE(with.y.requires_grad());
  EXPECT_TRUE(same_bits(with.y[2].contiguous(), with.hn));
  EXPECT_FALSE(
      rnn_layer(RnnMode::kGru, x, h, Tensor(), w.narrow(0, 0, 21), u.narrow(0, 0, 21), Tensor(), Tensor())
          .cn.defined());
}

/// y, hn, cn, and the gradients of h0 and w_hh of a sum of their squares, by the kernel or composed.
std::vector<Tensor> layer_results(RnnMode mode, const Shape& state, bool composed) {
  manual_seed(5);
  const int64_t rows = (mode == RnnMode::kLstm ? 4 : mode == RnnMode::kGru ? 3 : 1) * 7;
  const Tensor x = randn({3, 2, 5}), w = randn({rows, 5}), u = randn({rows, 7}).requires_grad_(),
               b = randn({rows}), h = randn({2, 7}).view(state).requires_grad_(),
               c = mode == RnnMode::kLstm ? randn({2, 7}).view(state).requires_grad_() : Tensor();
  const RnnResult out = rnn_layer(mode, x, h, c, w, u, b, b);
  Tensor loss = sum(square(out.y)) + sum(square(out.hn));
  if (c.defined()) loss = loss + sum(square(out.cn));
  std::vector<Tensor> all{out.y, out.hn, c.defined() ? out.cn : out.hn};
  for (const Tensor& g : grad({loss}, {h, u}, {}, {.create_graph = composed})) all.push_back(g);
  return all;
}

TEST(RnnLayer, states_may_have_a_leading_dim_of_one) {
  for (const RnnMode mode : {RnnMode::kLstm, RnnMode::kGru, RnnMode::kTanh, RnnMode::kRelu})
    for (const bool composed : {false, true}) {
      const auto flat = layer_results(mode, {2, 7}, composed), led = layer_results(mode, {1, 2, 7}, composed);
      for (size_t i : {1, 2, 3}) EXPECT_EQ(led[i].sizes(), Shape({1, 2, 7}));
      for (size_t i = 0; i < flat.size(); ++i)
        EXPECT_TRUE(same_bits(flat[i].reshape({-1}), led[i].reshape({-1}))) << i;
    }
  const Tensor x = zeros({3, 2, 5}), w = zeros({28, 5}), u = zeros({28, 7}), flat = zeros({2, 7}),
               led = zeros({1, 2, 7});
  EXPECT_THROW(rnn_layer(RnnMode::kLstm, x, led, flat, w, u, Tensor(), Tensor()), ShapeError);
  EXPECT_THROW(rnn_layer(RnnMode::kLstm, x, flat, led, w, u, Tensor(), Tensor()), ShapeError);
  EXPECT_THROW(rnn_layer(RnnMode::kTanh, x, zeros({2, 2, 7}), Tensor(), zeros({7, 5}), zeros({7, 7}),
                         Tensor(), Tensor()),
               ShapeError);
}

TEST(Softmax, survives_numbers_far_out) {
  const Tensor x = tensor({{1000, 1001, -1000}, {-INFINITY, 0, 0}});
  const Tensor p = softmax(x, 1);
  EXPECT_TRUE(all(isfinite(p)).item<bool>());
  EXPECT_TRUE(close(sum(p, {1}), ones({2})));
  EXPECT_NEAR(cross_entropy(x, from_vector<int64_t>({1, 2}, {2})).item<double>(),
              (std::log1p(std::exp(-1)) + std::log(2)) / 2, 1e-4);
}

TEST(CrossEntropy, the_mean_over_nothing_but_ignored_targets_is_nan) {
  EXPECT_TRUE(std::isnan(cross_entropy(zeros({2, 3}), full({2}, -100, {.dtype = kInt64})).item<double>()));
}

}  // namespace
}  // namespace weft
