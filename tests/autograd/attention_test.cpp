// scaled_dot_product_attention: several blocks against the composed form, rows without a key, masks that
// learn, dropout. Also half types, strided heads and a mask that changes before the backward.
#include <cmath>

#include <gtest/gtest.h>
#include <weft/weft.h>

#include "support/errors.h"

using namespace weft;
using test::error_of;
using test::has;

namespace {

struct Heads {
  Tensor q, k, v;
};

Heads random_heads(const Shape& lead, int64_t rows, int64_t keys, int64_t width, DType t = kFloat32) {
  manual_seed(5);
  const auto make = [&](int64_t n) {
    Shape sizes = lead;
    sizes.push_back(n), sizes.push_back(width);
    return randn(sizes, {.dtype = t}).requires_grad_();
  };
  return {make(rows), make(keys), make(keys)};
}

// By products and a softmax, in float64.
Tensor by_parts(const Heads& h, const Tensor& mask, bool causal) {
  const Tensor q = h.q.to(kFloat64), k = h.k.to(kFloat64), v = h.v.to(kFloat64);
  Tensor s = matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
  if (mask.defined()) s = mask.dtype() == kBool ? s.masked_fill(!mask, -INFINITY) : s + mask;
  if (causal) s = s.masked_fill(!tril(ones({s.size(-2), s.size(-1)}, kBool)), -INFINITY);
  return matmul(softmax(s, -1), v);
}

}  // namespace

TEST(Attention, blocks_of_rows_and_keys_give_the_softmax_over_all_keys) {
  for (const bool causal : {false, true})
    for (const int kind : {0, 1, 2})
      for (const auto& [rows, keys] : {std::pair<int64_t, int64_t>{150, 600}, {600, 150}, {257, 257}}) {
        SCOPED_TRACE(str(rows, " rows, ", keys, " keys, causal ", causal, ", mask ", kind));
        const Heads h = random_heads({2}, rows, keys, 16);
        Tensor mask;
        if (kind == 1) mask = (rand({rows, keys}) > 0.3) | (arange(keys) == 0);
        if (kind == 2) mask = randn({2, 1, keys}) * 3;
        const Tensor y = scaled_dot_product_attention(h.q, h.k, h.v, {.mask = mask, .causal = causal}),
                     expected = by_parts(h, mask, causal), g = randn(y.sizes());
        EXPECT_TRUE(allclose(y.to(kFloat64), expected, 1e-5, 1e-5));
        const auto d = grad({y}, {h.q, h.k, h.v}, {g}, {.retain_graph = true}),
                   wanted = grad({expected}, {h.q, h.k, h.v}, {g.to(kFloat64)});
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(allclose(d[i], wanted[i], 1e-4, 1e-4)) << i;
        EXPECT_TRUE(grad({y}, {h.k}, {g}, {.retain_graph = true})[0].equal(d[1]));  // without the others
        EXPECT_TRUE(grad({y}, {h.q}, {g}, {.retain_graph = true})[0].equal(d[0]));
      }
}

TEST(Attention, scores_far_apart_leave_the_largest) {
  const Tensor q = tensor({{1., 0.}, {0., 1.}}), k = tensor({{3000., -3000.}, {-3000., 3000.}}),
               v = tensor({{1., 2.}, {3., 4.}});
  EXPECT_TRUE(scaled_dot_product_attention(q, k, v).equal(v));
  EXPECT_TRUE(scaled_dot_product_attention(q, k * -1, v).equal(flip(v, {0})));
}

TEST(Attention, a_row_without_a_key_is_zero_and_has_no_gradient) {
  for (const bool learns : {false, true}) {  // by the kernel, and composed
    const Heads h = random_heads({}, 3, 4, 5);
    Tensor mask = zeros({3, 4});
    mask[1] = -INFINITY;
    const Tensor y = scaled_dot_product_attention(h.q, h.k, h.v, {.mask = mask.requires_grad_(learns)});
    EXPECT_FALSE(any(y[1]).item<bool>());
    EXPECT_TRUE(all(isfinite(y)).item<bool>());
    const auto d = grad({y.sum()}, {h.q, h.k, h.v});
    EXPECT_FALSE(any(d[0][1]).item<bool>());
    for (const Tensor& each : d) EXPECT_TRUE(all(isfinite(each)).item<bool>());
    const Tensor none = scaled_dot_product_attention(h.q, h.k, h.v, {.mask = zeros({3, 4}, kBool)});
    EXPECT_FALSE(any(none).item<bool>());
  }
}

TEST(Attention, a_mask_learns) {
  const Heads h = random_heads({2}, 3, 4, 5, kFloat64);
  const Tensor mask = randn({3, 4}, {.dtype = kFloat64}).requires_grad_();
  EXPECT_TRUE(gradcheck(
                  [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
                    return {scaled_dot_product_attention(x[0], x[1], x[2], {.mask = x[3]})};
                  },
                  {h.q, h.k, h.v, mask})
                  .ok);
}

TEST(Attention, dropout_thins_the_softmax) {
  const Heads h = random_heads({4}, 64, 64, 8);
  manual_seed(3);
  const Tensor y = scaled_dot_product_attention(h.q, h.k, ones({4, 64, 8}), {.dropout = 0.5});
  EXPECT_NEAR(y.mean().item<double>(), 1, 0.05);
  EXPECT_GT(y.std().item<double>(), 0.1);
  EXPECT_FALSE(any(scaled_dot_product_attention(h.q, h.k, h.v, {.dropout = 1})).item<bool>());
}

TEST(Attention, half_types_are_computed_in_float32) {
  for (const DType t : {kFloat16, kBFloat16}) {
    const Heads h = random_heads({2}, 20, 30, 8, t);
    const Tensor y = scaled_dot_product_attention(h.q, h.k, h.v);
    EXPECT_EQ(y.dtype(), t);
    const auto wide = [](const Tensor& x) { return x.detach().to(kFloat32); };
    EXPECT_TRUE(y.equal(scaled_dot_product_attention(wide(h.q), wide(h.k), wide(h.v)).to(t)));
    EXPECT_EQ(grad({y.sum()}, {h.q})[0].dtype(), t);
  }
  const Heads h = random_heads({2}, 4, 4, 8);
  const Autocast mixed(kBFloat16);
  EXPECT_EQ(scaled_dot_product_attention(h.q, h.k, h.v).dtype(), kBFloat16);
}

TEST(Attention, heads_that_are_views_of_one_product_need_no_copy_of_their_own) {
  manual_seed(2);
  const Tensor all = randn({2, 9, 96}).requires_grad_();
  const auto head = [&](int64_t which) {  // [2, 4, 9, 8]
    return all.narrow(2, 32 * which, 32).view({2, 9, 4, 8}).transpose(1, 2);
  };
  const Heads h{head(0), head(1), head(2)};
  const Tensor y = scaled_dot_product_attention(h.q, h.k, h.v, {.causal = true});
  const Tensor expected =
      scaled_dot_product_attention(h.q.contiguous(), h.k.contiguous(), h.v.contiguous(), {.causal = true});
  EXPECT_TRUE(y.equal(expected));
  EXPECT_TRUE(grad({y.sum()}, {all})[0].equal(grad({expected.sum()}, {all})[0]));
}

TEST(Attention, a_mask_of_many_leading_dims_keeps_the_sizes_that_it_repeats) {
  const Heads h = random_heads({2, 2, 2}, 300, 290, 8);
  const Tensor padding = (rand({2, 1, 1, 1, 290}) > 0.3) | (arange(290) == 0);
  for (const Tensor& mask : {padding, randn({2, 1, 1, 290}), randn({2, 1, 1, 300, 1})}) {
    const int64_t before = memory_stats().in_use;
    const Tensor y = scaled_dot_product_attention(h.q, h.k, h.v, {.mask = mask});
    EXPECT_LT(memory_stats().in_use - before, 8 * 300 * 290) << "fewer bytes than all products of a mask";
    const Tensor expected = by_parts(h, mask, false);
    EXPECT_TRUE(allclose(y.to(kFloat64), expected, 1e-5, 1e-5)) << mask.sizes();
    const auto d = grad({y.sum()}, {h.q, h.v}), wanted = grad({expected.sum()}, {h.q, h.v});
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(allclose(d[i], wanted[i], 1e-4, 1e-4)) << i;
  }
  const Tensor learns = randn({2, 1, 1, 1, 290}).requires_grad_();
  const auto d = [&](const Tensor& y) { return grad({y.square().sum()}, {learns})[0].to(kFloat64); };
  EXPECT_TRUE(allclose(d(scaled_dot_product_attention(h.q, h.k, h.v, {.mask = learns})),
                       d(by_parts(h, learns, false)), 1e-4, 1e-4));
}

TEST(Attention, needs_less_memory_than_the_matrix_of_all_products) {
  const Heads h = random_heads({}, 2048, 2048, 16);
  const int64_t matrix = 2048 * 2048 * int64_t{sizeof(float)};
  const ThreadScope threads(2);  // each has blocks of its own
  // The bytes that the forward and the backward of f take from the system; what they free stays in the cache.
  const auto most = [&](const auto& f) {
    empty_cache();
    const int64_t before = memory_stats().reserved;
    const Tensor y = f();
    grad({y}, {h.q, h.k, h.v}, {ones_like(y)});
    return memory_stats().reserved - before;
  };
  const auto composed = most([&] { return matmul(softmax(matmul(h.q, h.k.t()), -1), h.v); });
  if (composed <= matrix) GTEST_SKIP() << "the allocator keeps no free blocks, so their sum is unknown";
  for (const bool causal : {false, true})
    EXPECT_LT(most([&] { return scaled_dot_product_attention(h.q, h.k, h.v, {.causal = causal}); }),
              matrix / 4);
}

TEST(Attention, a_mask_that_changes_before_the_backward_is_refused) {
  const Heads h = random_heads({}, 3, 4, 5);
  Tensor mask = zeros({3, 4});
  const Tensor y = scaled_dot_product_attention(h.q, h.k, h.v, {.mask = mask});
  mask += 1;
  EXPECT_TRUE(has(error_of<AutogradError>([&] { y.sum().backward(); }), "scaled_dot_product_attention"));
}
