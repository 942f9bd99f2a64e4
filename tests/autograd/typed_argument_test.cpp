// Arguments that users of PyTorch leave out or add: a bound of a clamp, a dtype of a `_like`, sizes of eye.
#include <cmath>

#include <gtest/gtest.h>
#include <weft/weft.h>

#include "support/errors.h"

using namespace weft;
using test::error_of;
using test::has;

namespace {

// Equal elements, NaN of NaN.
bool same_or_nan(const Tensor& a, const Tensor& b) {
  return all(eq(a, b) | (isnan(a) & isnan(b))).item<bool>();
}

}  // namespace

TEST(TypedArguments, a_clamp_may_have_one_bound) {
  const Tensor x = tensor({-2., 0.5, NAN, INFINITY}, kFloat64);
  EXPECT_TRUE(same_or_nan(clamp(x, 0), maximum(x, 0)));
  EXPECT_TRUE(same_or_nan(x.clamp({}, 0), minimum(x, 0)));
  for (const DType t : {kUInt8, kInt32, kInt64}) {
    const Tensor n = tensor({0, 7, 100}, t);
    EXPECT_TRUE(n.clamp(8).equal(tensor({8, 8, 100}, t)));
    EXPECT_TRUE(n.clamp({}, 8).equal(tensor({0, 7, 8}, t)));
  }
  EXPECT_TRUE(has(error_of<ValueError>([&] { clamp(x, {}, {}); }), "clamp: give a low bound"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { clamp(tensor({1}, kUInt8), {}, 300); }), "clamp: "));
}

TEST(TypedArguments, a_clamp_may_have_a_bound_for_each_element) {
  const Tensor x = tensor({-2., 0.5, 9., NAN, 1., 1.}, kFloat64),
               low = tensor({0., 0., 0., 0., NAN, 3.}, kFloat64),
               high = tensor({1., 1., 1., 1., 2., 2.}, kFloat64);
  EXPECT_TRUE(same_or_nan(clamp(x, low, high), tensor({0., 0.5, 1., NAN, NAN, 2.}, kFloat64)));
  EXPECT_TRUE(
      tensor({5, 7}, kInt64).clamp(tensor({6, 0}, kInt32), tensor(6, kInt64)).equal(tensor({6, 6}, kInt64)));
  Tensor v = tensor({-2., 0., 0.5, 3.}).requires_grad_(), from = zeros({}).requires_grad_(),
         to = ones({}).requires_grad_();
  clamp(v, from, to).sum().backward();
  EXPECT_TRUE(v.grad().equal(tensor({0., 0.5, 1., 0.})));
  EXPECT_EQ(from.grad().item<float>(), 1.5);
  EXPECT_EQ(to.grad().item<float>(), 1);
  EXPECT_TRUE(has(error_of<ValueError>([] { clamp(Tensor(), zeros(1), zeros(1)); }), "clamp: "));
}

TEST(TypedArguments, a_tensor_rolls_over_all_its_elements_without_a_dim) {
  EXPECT_TRUE(tensor({{1, 2, 3}, {4, 5, 6}}).roll(1).equal(tensor({{6, 1, 2}, {3, 4, 5}})));
  EXPECT_TRUE(roll(tensor(7), -2).equal(tensor(7)));
  EXPECT_TRUE(roll(zeros({0, 2}), 1).sizes() == Shape({0, 2}));
}

TEST(TypedArguments, a_tensor_registers_a_hook) {
  const Tensor x = ones(2).requires_grad_();
  const HookHandle handle = x.register_hook([](const Tensor& g) { return g * 5; });
  (x * 3).sum().backward();
  EXPECT_TRUE(x.grad().equal(full({2}, 15)));
}

TEST(TypedArguments, sizes_and_dtypes_of_factories) {
  EXPECT_TRUE(eye(2, 3).equal(tensor({{1, 0, 0}, {0, 1, 0}})));
  EXPECT_TRUE(eye(3, 1, kInt64).equal(tensor({{1}, {0}, {0}}, kInt64)));
  EXPECT_TRUE(eye(0, 2).sizes() == Shape({0, 2}));
  EXPECT_TRUE(has(error_of<ValueError>([] { eye(2, -1); }), "eye: the sizes are [2, -1]"));
  const Tensor x = rand({2, 2});
  EXPECT_TRUE(zeros_like(x, kInt64).equal(zeros({2, 2}, kInt64)));
  EXPECT_TRUE(ones_like(x, kBool).equal(ones({2, 2}, kBool)));
  EXPECT_TRUE(full_like(x, 3, kUInt8).equal(full({2, 2}, 3, kUInt8)));
  EXPECT_EQ(empty_like(x, kFloat64).dtype(), kFloat64);
  const Tensor y = rand({2, 2});
  EXPECT_TRUE(max(x, y).equal(maximum(x, y)) && x.min(y).equal(minimum(x, y)));
}

TEST(TypedArguments, the_gradient_of_a_remainder_counts_the_quotient_of_its_value) {
  const Tensor x = tensor({-1.7265625, 1.7265625}, kBFloat16);  // 10.98 divisors, which the type rounds to 11
  Tensor d = tensor({-0.1572265625, -0.1572265625}, kBFloat16);
  d.requires_grad_();
  sum(remainder(x, d)).backward();
  EXPECT_TRUE(d.grad().equal(tensor({-10, 11}, kBFloat16)));
  d.zero_grad();
  sum(fmod(x, d)).backward();
  EXPECT_TRUE(d.grad().equal(tensor({-10, 10}, kBFloat16)));
}
