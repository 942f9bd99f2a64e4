// scaled_dot_product_attention on a device. Several blocks of queries and keys, masks, heads as views, half
// types and the sizes beyond the kernels, against products and a softmax in float64 on the CPU. Rows of the
// op table have one block.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include <weft/weft.h>
#include "cuda/shared/device_test.h"

namespace weft::test {
namespace {

struct Heads {
  Tensor q, k, v;
  std::vector<Tensor> all() const { return {q, k, v}; }
};

Heads random_heads(Device device, const Shape& lead, int64_t rows, int64_t keys, int64_t width,
                   int64_t values, DType t = kFloat32) {
  Generator numbers(5);
  const auto make = [&](int64_t n, int64_t m) {
    Shape sizes = lead;
    sizes.push_back(n), sizes.push_back(m);
    return randn(sizes, {}, &numbers).to(t).to(device).requires_grad_();
  };
  const Tensor q = make(rows, width), k = make(keys, width), v = make(keys, values);
  return {q, k, v};
}

Tensor wide(const Tensor& x) { return x.defined() ? x.detach().to(kCpu).to(kFloat64) : x; }
Heads wide(const Heads& h) {
  return {wide(h.q).requires_grad_(), wide(h.k).requires_grad_(), wide(h.v).requires_grad_()};
}

// In float64; a row without a key is 0.
Tensor by_parts(const Heads& h, const Tensor& mask, bool causal) {
  Tensor s = matmul(h.q, h.k.transpose(-2, -1)) / std::sqrt(static_cast<double>(h.q.size(-1)));
  if (mask.defined()) s = mask.dtype() == kBool ? s.masked_fill(!mask, -INFINITY) : s + mask;
  if (causal) s = s.masked_fill(!tril(ones({s.size(-2), s.size(-1)}, kBool)), -INFINITY);
  const Tensor none = all(eq(s.detach(), -INFINITY), {-1}, true);
  return matmul(softmax(s.masked_fill(none, 0), -1).masked_fill(none, 0), h.v);
}

struct Tolerance {
  double y, gradient;
};

// Values and all gradients of one call.
void expect_as_by_parts(const Heads& h, const Tensor& mask, bool causal, const Tolerance& close) {
  const Heads plain = wide(h);
  const Tensor y = scaled_dot_product_attention(h.q, h.k, h.v, {.mask = mask, .causal = causal}),
               expected = by_parts(
                   plain, mask.defined() && mask.dtype() == kBool ? mask.to(kCpu) : wide(mask), causal);
  ASSERT_EQ(y.dtype(), h.q.dtype());
  EXPECT_TRUE(allclose(wide(y), expected, close.y, close.y));
  Generator numbers(6);
  const Tensor g = randn(y.sizes(), {}, &numbers).to(y.dtype());
  const auto d = grad({y}, h.all(), {g.to(y.device())}),
             wanted = grad({expected}, plain.all(), {g.to(kFloat64)});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(d[i].dtype(), h.q.dtype());
    EXPECT_TRUE(allclose(wide(d[i]), wanted[i], close.gradient, close.gradient)) << "gradient " << i;
  }
}

struct Case {
  int64_t rows, keys, width, values;
};

}  // namespace

DEVICE_TEST(Attention, blocks_of_queries_and_keys_give_the_softmax_over_all_keys) {
  const Case cases[] = {{70, 150, 16, 8},    // whole packs
                        {150, 70, 5, 33},    // none
                        {65, 129, 64, 36},   // one number more than whole blocks
                        {40, 140, 72, 128},  // heads of more than 64
                        {129, 33, 101, 3}};
  for (const Case& c : cases)
    for (const bool causal : {false, true})
      for (const int kind : {0, 1, 2}) {
        SCOPED_TRACE(str(c.rows, " rows, ", c.keys, " keys, widths ", c.width, " and ", c.values, ", causal ",
                         causal, ", mask ", kind));
        Generator numbers(3);
        Tensor mask;
        if (kind == 1) mask = (rand({c.rows, c.keys}, {}, &numbers) > 0.3).to(gpu);
        if (kind == 2) mask = (randn({2, 1, c.keys}, {}, &numbers) * 3).to(gpu);
        expect_as_by_parts(random_heads(gpu, {2}, c.rows, c.keys, c.width, c.values), mask, causal,
                           {1e-5, 1e-4});
      }
}

DEVICE_TEST(Attention, is_as_exact_in_float64) {
  for (const bool causal : {false, true})
    expect_as_by_parts(random_heads(gpu, {2}, 70, 75, 10, 64, kFloat64), Tensor(), causal, {1e-12, 1e-12});
}

DEVICE_TEST(Attention, sizes_beyond_the_kernels_are_composed) {
  expect_as_by_parts(random_heads(gpu, {2}, 5, 6, 130, 7), Tensor(), true, {1e-5, 1e-4});
  expect_as_by_parts(random_heads(gpu, {2}, 5, 6, 7, 130, kBFloat16), Tensor(), true, {2e-2, 5e-2});
  expect_as_by_parts(random_heads(gpu, {2}, 5, 6, 66, 7, kFloat64), Tensor(), false, {1e-12, 1e-12});
}

DEVICE_TEST(Attention, takes_half_types) {
  const Case cases[] = {{70, 90, 24, 16},   // whole packs
                        {33, 70, 7, 5},     // none
                        {65, 129, 64, 40},  // one number more than whole blocks
                        {33, 70, 80, 72},   // heads of more than 64
                        {100, 36, 19, 122}};
  for (const DType t : {kFloat16, kBFloat16})
    for (const Case& c : cases)
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(str(t, ", ", c.rows, " rows, ", c.keys, " keys, widths ", c.width, " and ", c.values,
                         ", causal ", causal));
        Generator numbers(3);
        const Tensor mask = causal ? randn({c.rows, c.keys}, {}, &numbers).to(t).to(gpu)
                                   : (rand({2, 1, c.keys}, {}, &numbers) > 0.2).to(gpu);
        const double close = t == kFloat16 ? 4e-3 : 3e-2;
        expect_as_by_parts(random_heads(gpu, {2}, c.rows, c.keys, c.width, c.values, t), mask, causal,
                           {close, 3 * close});
      }
}

DEVICE_TEST(Attention, a_call_repeats_its_bits_and_heads_do_not_depend_on_others) {
  for (const DType t : {kFloat32, kBFloat16}) {
    const Heads h = random_heads(gpu, {3}, 100, 140, 20, 12, t);
    Generator numbers(4);
    const Tensor g = randn({3, 100, 12}, {}, &numbers).to(t).to(gpu);
    const auto run = [&](const std::vector<Tensor>& x, const Tensor& seed) {
      const Tensor y = scaled_dot_product_attention(x[0], x[1], x[2], {.causal = true});
      std::vector<Tensor> out = grad({y}, x, {seed});
      out.push_back(y);
      return out;
    };
    const auto once = run(h.all(), g), again = run(h.all(), g);
    std::vector<Tensor> last;
    for (const Tensor& x : h.all()) last.push_back(x.detach().narrow(0, 2, 1).requires_grad_());
    const auto alone = run(last, g.narrow(0, 2, 1));
    for (size_t i = 0; i < once.size(); ++i) {
      EXPECT_TRUE(equal(once[i], again[i])) << i;
      EXPECT_TRUE(equal(once[i].detach().narrow(0, 2, 1), alone[i].detach())) << i;
    }
    const Tensor y = scaled_dot_product_attention(h.q, h.k, h.v, {.causal = true});
    for (size_t i = 0; i < 3; ++i)  // without the others
      EXPECT_TRUE(equal(grad({y}, {h.all()[i]}, {g}, {.retain_graph = true})[0], once[i])) << i;
  }
}

DEVICE_TEST(Attention, takes_heads_that_are_views_of_one_product) {
  Generator numbers(2);
  const Tensor all = randn({2, 9, 96}, {}, &numbers).to(gpu).requires_grad_();
  const auto head = [&](int64_t which) {  // [2, 4, 9, 8]
    return all.narrow(2, 32 * which, 32).view({2, 9, 4, 8}).transpose(1, 2);
  };
  const Tensor y = scaled_dot_product_attention(head(0), head(1), head(2), {.causal = true}),
               expected = scaled_dot_product_attention(head(0).contiguous(), head(1).contiguous(),
                                                       head(2).contiguous(), {.causal = true});
  EXPECT_TRUE(equal(y, expected));
  EXPECT_TRUE(equal(grad({y.sum()}, {all})[0], grad({expected.sum()}, {all})[0]));
  // keys and values that all heads share, and a mask of each head
  const Heads h = random_heads(gpu, {}, 1, 70, 8, 8);
  const Tensor q = randn({2, 3, 20, 8}, {}, &numbers).to(gpu).requires_grad_(),
               mask = (rand({3, 1, 70}, {}, &numbers) > 0.3).to(gpu);
  expect_as_by_parts({q, h.k, h.v}, mask, false, {1e-5, 1e-4});
}

DEVICE_TEST(Attention, a_row_without_a_key_is_zero_and_has_no_gradient) {
  const Heads h = random_heads(gpu, {}, 70, 80, 5, 6);
  Tensor mask = zeros({70, 80});
  mask[1] = -INFINITY;
  const Tensor y = scaled_dot_product_attention(h.q, h.k, h.v, {.mask = mask.to(gpu)});
  EXPECT_FALSE(any(y[1]).item<bool>());
  const auto d = grad({y.sum()}, h.all());
  EXPECT_FALSE(any(d[0][1]).item<bool>());
  for (const Tensor& each : d) EXPECT_TRUE(all(isfinite(each)).item<bool>());
  const Tensor none =
      scaled_dot_product_attention(h.q, h.k, h.v, {.mask = zeros({70, 80}, {.dtype = kBool, .device = gpu})});
  EXPECT_FALSE(any(none).item<bool>());
}

DEVICE_TEST(Attention, scores_far_apart_leave_the_largest) {
  const Tensor q = tensor({{1., 0.}, {0., 1.}}).to(gpu), v = tensor({{1., 2.}, {3., 4.}}).to(gpu),
               k = tensor({{3000., -3000.}, {-3000., 3000.}}).to(gpu);
  EXPECT_TRUE(equal(scaled_dot_product_attention(q, k, v), v));
  EXPECT_TRUE(equal(scaled_dot_product_attention(q, k * -1, v), flip(v, {0})));
  // the largest one in the last of several blocks, and in the first
  for (const bool last : {true, false}) {
    Tensor far = full({200, 2}, -3000.0);
    far[last ? 199 : 0] = 3000;
    const Tensor values = arange(200, {.dtype = kFloat32}).reshape({200, 1});
    const Tensor y = scaled_dot_product_attention(ones({1, 2}).to(gpu), far.to(gpu), values.to(gpu));
    EXPECT_EQ(y.item<float>(), last ? 199 : 0);
  }
}

DEVICE_TEST(Attention, gradients_of_gradients_are_those_of_the_composed_form) {
  for (const DType t : {kFloat32, kFloat16}) {
    const Heads h = random_heads(gpu, {2}, 5, 6, 4, 3, t), plain = wide(h);
    const auto second = [](const Heads& x, const Tensor& y) {
      const auto first = grad({y.square().sum()}, {x.q}, {}, {.create_graph = true});
      return grad({first[0].sum()}, {x.k})[0];
    };
    const double close = t == kFloat16 ? 3e-2 : 1e-4;
    EXPECT_TRUE(allclose(wide(second(h, scaled_dot_product_attention(h.q, h.k, h.v))),
                         second(plain, by_parts(plain, Tensor(), false)).detach(), close, close))
        << t;
  }
}

DEVICE_TEST(Attention, of_a_layer_is_that_of_the_cpu) {
  Generator numbers(8);
  nn::MultiheadAttention here(12, 3, {.batch_first = true, .generator = &numbers}),
      there(12, 3, {.batch_first = true});
  there.load_state_dict(here.state_dict());
  there.to(gpu);
  const Tensor x = randn({2, 7, 12}, {}, &numbers), padding = rand({2, 7}, {}, &numbers) > 0.7;
  const Tensor y = here.forward(x, {.key_padding = padding, .causal = true}),
               z = there.forward(x.to(gpu), {.key_padding = padding.to(gpu), .causal = true});
  EXPECT_TRUE(allclose(z.to(kCpu), y, 1e-5, 1e-5));
  y.square().sum().backward(), z.square().sum().backward();
  for (size_t i = 0; i < here.parameters().size(); ++i)
    EXPECT_TRUE(allclose(there.parameters()[i].grad().to(kCpu), here.parameters()[i].grad(), 1e-4, 1e-4))
        << i;
}

}  // namespace weft::test
