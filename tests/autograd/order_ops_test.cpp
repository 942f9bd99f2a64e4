// Special values and corners of the operations of ops_order.h and their kin, beside their rows in the op
// table.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <weft/weft.h>

namespace weft {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(),
                 kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor numbers(const std::vector<double>& v, DType dtype = kFloat64) {
  return from_vector(v, {static_cast<int64_t>(v.size())}).to(dtype);
}
std::vector<double> list(const Tensor& x) { return x.to_vector<double>(); }
Tensor int64s(const std::vector<int64_t>& v) { return from_vector(v, {static_cast<int64_t>(v.size())}); }

TEST(OrderOps, infinities_are_told_from_nan) {
  for (const DType t : {kFloat32, kFloat64, kFloat16, kBFloat16})
    EXPECT_EQ(list(isinf(numbers({1, kInfinity, -kInfinity, kNaN, 0}, t))),
              (std::vector<double>{0, 1, 1, 0, 0}))
        << to_string(t);
  EXPECT_EQ(list(isinf(int64s({1, 0}))), (std::vector<double>{0, 0}));
}

TEST(OrderOps, nan_to_num_takes_the_largest_numbers_of_the_dtype) {
  const std::vector<double> special = {kNaN, kInfinity, -kInfinity, -1.5};
  EXPECT_EQ(list(nan_to_num(numbers(special, kFloat16))), (std::vector<double>{0, 65504, -65504, -1.5}));
  const double f = std::numeric_limits<float>::max(), b = 0x1.FEp127;
  EXPECT_EQ(list(nan_to_num(numbers(special, kFloat32), 2)), (std::vector<double>{2, f, -f, -1.5}));
  EXPECT_EQ(list(nan_to_num(numbers(special, kBFloat16))), (std::vector<double>{0, b, -b, -1.5}));
  EXPECT_EQ(list(nan_to_num(numbers(special), 1, 2, 3)), (std::vector<double>{1, 2, 3, -1.5}));
  EXPECT_THROW(nan_to_num(numbers(special, kFloat16), 1e6), DTypeError);
}

TEST(OrderOps, nan_to_num_asks_the_numbers_of_x_alone) {
  const std::vector<double> special = {kNaN, kInfinity, -kInfinity, 2};
  for (const DType t : {kFloat16, kBFloat16, kFloat32, kFloat64}) {
    const Tensor x = numbers(special, t);
    EXPECT_EQ(list(nan_to_num(x, 0, kInfinity, -kInfinity)),
              (std::vector<double>{0, kInfinity, -kInfinity, 2}));
    EXPECT_EQ(list(nan_to_num(x, 7, -kInfinity, 5)), (std::vector<double>{7, -kInfinity, 5, 2}));
    EXPECT_EQ(list(nan_to_num(x, kInfinity, 1, 5)), (std::vector<double>{kInfinity, 1, 5, 2}));
    const std::vector<double> found = list(nan_to_num(x, 0, kNaN, 5));
    EXPECT_TRUE(std::isnan(found[1]));
    EXPECT_EQ(found[0], 0);
  }
  EXPECT_THROW(nan_to_num(numbers(special, kFloat32), 0, 1e300), DTypeError);
}

TEST(OrderOps, nan_to_num_stops_the_gradient_where_x_is_not_finite) {
  const Tensor x = numbers({kNaN, kInfinity, -kInfinity, -1.5}).requires_grad_();
  nan_to_num(x, 0, 7).sum().backward();
  EXPECT_EQ(list(x.grad()), (std::vector<double>{0, 0, 0, 1}));
}

TEST(OrderOps, quotients_and_remainders_fit_together) {
  const Tensor a = int64s({7, -7, 7, -7}), b = int64s({2, 2, -2, -2});
  EXPECT_EQ(list(floor_divide(a, b)), (std::vector<double>{3, -4, -4, 3}));
  EXPECT_EQ(list(fmod(a, b)), (std::vector<double>{1, -1, 1, -1}));
  EXPECT_TRUE(equal(floor_divide(a, b) * b + remainder(a, b), a));
  EXPECT_EQ(list(floor_divide(numbers({1, -1, 0}), numbers({0, 0, 5}))),
            (std::vector<double>{kInfinity, -kInfinity, 0}));
  // 0.1 is a little more than a tenth
  EXPECT_EQ(floor_divide(numbers({1}), numbers({0.1})).item<double>(), 9);
  EXPECT_THROW(floor_divide(a, int64s({1, 0, 1, 1})), ValueError);
  EXPECT_THROW(fmod(a, int64s({1, 0, 1, 1})), ValueError);
}

TEST(OrderOps, a_median_is_nan_where_a_number_is) {
  EXPECT_TRUE(std::isnan(median(numbers({1, kNaN, 3})).item<double>()));
  const auto [values, at] = median(from_vector<double>({5, 1, 3, 1, kNaN, 3}, {2, 3}), 1);
  EXPECT_EQ(values[0].item<double>(), 3);
  EXPECT_TRUE(std::isnan(values[1].item<double>()));
  EXPECT_EQ(list(at), (std::vector<double>{2, 1}));
}

TEST(OrderOps, the_gradient_of_a_median_is_shared_by_equals) {
  const Tensor x = numbers({2, 1, 2, 5}).requires_grad_();
  median(x).backward();
  EXPECT_EQ(list(x.grad()), (std::vector<double>{0.5, 0, 0.5, 0}));
}

TEST(OrderOps, unique_keeps_bools_and_counts_each_nan) {
  const UniqueResult flags = unique(numbers({1, 0, 1}, kBool), {.counts = true});
  EXPECT_EQ(flags.values.dtype(), kBool);
  EXPECT_EQ(list(flags.counts), (std::vector<double>{1, 2}));
  EXPECT_FALSE(flags.inverse.defined());
  EXPECT_EQ(unique(numbers({kNaN, 1, kNaN})).values.numel(), 3);
  EXPECT_EQ(unique(numbers({0.0, -0.0})).values.numel(), 1);
}

TEST(OrderOps, integer_weights_are_counted_in_float64) {
  EXPECT_EQ(bincount(int64s({0, 2}), int64s({3, 4})).dtype(), kFloat64);
  EXPECT_EQ(list(bincount(int64s({0, 2, 2}), int64s({3, 4, 5}))), (std::vector<double>{3, 0, 9}));
  EXPECT_EQ(bincount(int64s({}), Tensor(), 2).numel(), 2);
}

TEST(OrderOps, diagonals_are_put_and_taken) {
  const Tensor v = numbers({1, 2});
  EXPECT_EQ(list(diag(v, 1)), (std::vector<double>{0, 1, 0, 0, 0, 2, 0, 0, 0}));
  EXPECT_EQ(list(diag(v, -1)), (std::vector<double>{0, 0, 0, 1, 0, 0, 0, 2, 0}));
  for (const int64_t k : {-2, 0, 1}) EXPECT_TRUE(equal(diag(diag(v, k), k), v)) << k;
  EXPECT_FALSE(diag(diag(v)).shares_storage(v));
}

TEST(OrderOps, the_gradient_of_a_product_goes_to_its_only_zero) {
  const Tensor x = numbers({2, 0}).requires_grad_(), src = numbers({0, 3, 0, 5}).requires_grad_();
  scatter_reduce(x, 0, int64s({0, 0, 1, 1}), src, ScatterReduce::kProd).sum().backward();
  EXPECT_EQ(list(x.grad()), (std::vector<double>{0, 0}));
  EXPECT_EQ(list(src.grad()), (std::vector<double>{6, 0, 0, 0}));
  const Tensor y = scatter_reduce(x, 0, int64s({0, 0, 1, 1}), src, ScatterReduce::kProd).sum();
  EXPECT_THROW(y.backward({}, false, true), AutogradError);
}

TEST(OrderOps, an_extreme_takes_nan_and_shares_among_equals) {
  const Tensor x = numbers({1, 2}).requires_grad_(), src = numbers({1, 1, kNaN}).requires_grad_();
  const Tensor y = scatter_reduce(x, 0, int64s({0, 0, 1}), src, ScatterReduce::kAmax);
  EXPECT_EQ(y[0].item<double>(), 1);
  EXPECT_TRUE(std::isnan(y[1].item<double>()));
  y[0].backward();
  EXPECT_EQ(x.grad()[0].item<double>(), 1.0 / 3);
  EXPECT_EQ(src.grad()[1].item<double>(), 1.0 / 3);
}

TEST(OrderOps, means_of_integers_are_rounded_down) {
  const Tensor y =
      scatter_reduce(int64s({0, 5}), 0, int64s({0, 0}), int64s({-3, -4}), ScatterReduce::kMean, false);
  EXPECT_EQ(list(y), (std::vector<double>{-4, 5}));
  EXPECT_EQ(y.dtype(), kInt64);
  const Tensor bools = ones({2}, {.dtype = kBool});
  EXPECT_THROW(scatter_reduce(bools, 0, int64s({0, 1}), bools, ScatterReduce::kMean), DTypeError);
}

}  // namespace
}  // namespace weft
