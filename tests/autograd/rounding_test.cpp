// Numbers near the ends of a type: a result of several steps is rounded once, in its own type.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include "support/golden.h"

namespace weft {
namespace {

using testing::close;

TEST(Rounding, norms_and_variances_of_halves_stay_in_range) {
  for (const DType t : {kFloat16, kBFloat16}) {
    const Tensor x = tensor({0, -376}, {.dtype = t}).requires_grad_();
    const Tensor deviation = std(x, {}, 0), length = norm(x), third = norm(x, 3),
                 spread = var(x, {0}, 0, true);
    EXPECT_EQ(deviation.dtype(), t);
    EXPECT_EQ(deviation.item<double>(), 188);
    EXPECT_EQ(length.item<double>(), 376);
    EXPECT_NEAR(third.item<double>(), 376, 3);
    EXPECT_NEAR(spread.item<double>(), 35344, 200);
    deviation.backward();
    EXPECT_EQ(x.grad().dtype(), t);
    EXPECT_TRUE(close(x.grad(), tensor({0.5, -0.5}, {.dtype = t})));
  }
}

TEST(Rounding, gradients_of_variances_far_from_zero_are_right_recorded_or_not) {
  manual_seed(3);
  for (const auto& dims : {Shape{}, Shape{0}, Shape{1}, Shape{0, 2}}) {
    const Tensor x = (randn({6, 7, 5}) * 1e-2 + 1000).requires_grad_(), wide = x.detach().to(kFloat64);
    const Tensor scale = var(x, dims, 1, true).reciprocal(), exact = wide - mean(wide, dims, true);
    const double n = static_cast<double>(x.numel()) / static_cast<double>(scale.numel()) - 1;
    for (const bool recorded : {false, true}) {
      const Tensor y = var(x, dims, 1, true), s = std(x, dims, 1, true);
      const Tensor dy = grad({y}, {x}, {scale.detach()}, {.create_graph = recorded})[0],
                   ds = grad({s}, {x}, {ones(s.sizes())}, {.create_graph = recorded})[0];
      EXPECT_TRUE(allclose(dy.to(kFloat64), 2 / n * exact * scale.detach().to(kFloat64), 1e-5, 1e-6));
      EXPECT_TRUE(allclose(ds.to(kFloat64), exact / n * sqrt(scale.detach().to(kFloat64)), 1e-5, 1e-8));
    }
  }
}

TEST(Rounding, a_power_differentiates_in_the_type_of_its_result) {
  const Tensor base = full({}, 5, {.dtype = kInt32}),
               exponent = full({}, 0.5, {.dtype = kFloat64, .requires_grad = true});
  pow(base, exponent).backward();
  EXPECT_DOUBLE_EQ(exponent.grad().item<double>(), std::sqrt(5.0) * std::log(5.0));
  const Tensor angle = full({}, 3, {.dtype = kFloat64, .requires_grad = true});
  atan2(angle, full({}, 0.1f, {.dtype = kFloat32})).backward();
  EXPECT_DOUBLE_EQ(angle.grad().item<double>(), 0.1f / (9 + static_cast<double>(0.1f) * 0.1f));
}

TEST(Rounding, a_write_in_place_of_a_wider_tensor_rounds_once) {
  const Tensor wide = tensor({1.1235443353652954});
  for (const DType t : {kFloat16, kBFloat16}) {
    Tensor x = tensor({1.1904296875}, {.dtype = t});
    const Tensor expected = (x - wide).to(t);
    x.sub_(wide);
    EXPECT_TRUE(equal(x, expected));
  }
}

TEST(Rounding, equal_numbers_have_no_spread) {
  for (const DType t : {kFloat16, kBFloat16, kFloat32, kFloat64})
    for (const double value : {0.1, -0.7, 1234.567})
      for (const int64_t n : {3, 7, 100, 1001}) {
        const Tensor x = full({2, n}, value, {.dtype = t, .requires_grad = true});
        EXPECT_FALSE(any(layer_norm(x, {n}, Tensor(), Tensor(), 1e-12)).item<bool>())
            << t << " " << value << " " << n;
        for (const Tensor& y : {var(x), weft::std(x), var(x, {1}), weft::std(x, {1}, 0, true)}) {
          EXPECT_FALSE(any(y).item<bool>()) << t << " " << value << " " << n;
          EXPECT_FALSE(any(grad({sum(y)}, {x})[0]).item<bool>()) << t << " " << value << " " << n;
        }
      }
}

TEST(Rounding, a_number_meets_a_half_in_float32) {
  const auto expect_rounded_once = [](DType t, auto&& op) {
    const Tensor x = tensor({1000, 77, -3.25, 0.5}, {.dtype = t}).requires_grad_(),
                 wide = x.detach().to(kFloat32).requires_grad_();
    const Tensor y = op(x), expected = op(wide);
    EXPECT_EQ(y.dtype(), t);
    EXPECT_TRUE(equal(y, expected.to(t)));
    if (!y.requires_grad()) return;
    EXPECT_TRUE(equal(grad({sum(y)}, {x})[0], grad({sum(expected)}, {wide})[0].to(t)));
  };
  for (const DType t : {kFloat16, kBFloat16}) {
    expect_rounded_once(t, [](const Tensor& x) { return fmod(x, 0.1); });
    expect_rounded_once(t, [](const Tensor& x) { return remainder(x, 0.1); });
    expect_rounded_once(t, [](const Tensor& x) { return remainder(1000.1, x); });
    expect_rounded_once(t, [](const Tensor& x) { return floor_divide(x, 0.1); });
    expect_rounded_once(t, [](const Tensor& x) { return lerp(x.detach(), flip(x.detach(), {0}), 0.1); });
    expect_rounded_once(t, [](const Tensor& x) { return normalize(x.detach() * 0, 2, 0); });
  }
}

TEST(Rounding, the_start_of_a_lerp_gets_its_share_of_the_gradient_at_once) {
  const Tensor a = zeros({2}, kBFloat16).requires_grad_(), g = full({2}, 1.0078125, {.dtype = kBFloat16});
  for (const Tensor& y :
       {lerp(a, ones({2}, kBFloat16), 1.5), lerp(a, ones({2}, kBFloat16), full({2}, 1.5, kBFloat16))})
    EXPECT_TRUE(grad({y}, {a}, {g})[0].equal(g * -0.5));
}

TEST(Rounding, class_losses_of_large_logits_keep_their_digits) {
  for (const DType t : {kFloat32, kFloat64}) {
    const double offset = t == kFloat32 ? 1e6 : 1e12;
    const Tensor differences = (arange(60) * 7 % 11).view({4, 15}).to(t), target = arange(4) * 3;
    const Tensor x = (differences + offset).requires_grad_(), near = differences.clone().requires_grad_();
    const Tensor weight = eye(15, {.dtype = t});
    for (const double smoothing : {0.0, 0.2}) {
      const CrossEntropyOptions options{.label_smoothing = smoothing};
      const Tensor expected = cross_entropy(near, target, options), d_expected = grad({expected}, {near})[0];
      const double close = t == kFloat32 ? 1e-6 : 1e-14;
      for (const Tensor& y :
           {cross_entropy(x, target, options), linear_cross_entropy(x, weight, Tensor(), target, options)}) {
        EXPECT_NEAR(y.item<double>(), expected.item<double>(), 8 * close);
        EXPECT_TRUE(allclose(grad({y}, {x})[0], d_expected, 0, close));
      }
    }
    EXPECT_TRUE(allclose(log_softmax(x, 1), log_softmax(near, 1), 0, t == kFloat32 ? 1e-5 : 1e-13));
  }
}

TEST(Gradients, of_an_angle_at_the_origin_are_zero) {
  const Tensor y = zeros({1}, {.requires_grad = true}), x = zeros({1}, {.requires_grad = true});
  atan2(y, x).backward();
  EXPECT_EQ(y.grad().item<double>(), 0);
  EXPECT_EQ(x.grad().item<double>(), 0);
}

TEST(Gradients, of_zero_to_a_power_are_flat_where_the_power_is) {
  const Tensor x = tensor({-1, 0, 2}).requires_grad_();
  pow(0, x).sum().backward();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{-infinity, 0, 0}));
}

TEST(Promotion, a_bool_tensor_is_divided_by_a_number_as_int64) {
  const Tensor x = ones({1}, {.dtype = kBool});
  EXPECT_EQ(fmod(x, 300).item<int64_t>(), 1);
  EXPECT_EQ(floor_divide(x, 2).item<int64_t>(), 0);
}

TEST(Promotion, sum_to_of_integers_is_int64_whatever_is_summed) {
  const Tensor x = ones({2, 1}, {.dtype = kInt32});
  EXPECT_EQ(sum_to(x, {2, 1}).dtype(), kInt64);
  EXPECT_EQ(sum_to(x, {1, 1}).dtype(), kInt64);
  EXPECT_EQ(sum_to(x.unsqueeze(0), {2, 1}).dtype(), kInt64);
}

}  // namespace
}  // namespace weft
