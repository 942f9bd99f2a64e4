// Operations along a dim whose elements lie far apart, which run over many neighbouring lines at once. They
// are compared with the same along the last dim of a copy. Also sine and cosine of near and far numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>

namespace weft {
namespace {

/// Few different values, so that there are equal extremes, and a NaN in one line.
Tensor many_equal(const Shape& sizes, DType t) {
  Tensor x = randint(0, 7, sizes);
  if (t == kUInt8 || t == kBool) return x.to(t);
  x = (x - 3).to(t);
  if (is_floating(t)) x.view({-1}).slice(0, x.numel() / 2, x.numel() / 2 + 1).fill_(std::nan(""));
  return x;
}

/// The layouts of x: as it is, with the first two dims swapped, and every second element of the last dim.
std::vector<Tensor> layouts(const Tensor& x) {
  const int64_t last = x.dim() - 1, n = x.size(last);
  return {x, x.transpose(0, 1).contiguous().transpose(0, 1), cat({x, x}, last).slice(last, 0, 2 * n, 2)};
}

bool same(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() &&
         equal(nan_to_num(a.to(kFloat64), 1e300), nan_to_num(b.to(kFloat64), 1e300));
}

template <class F> void expect_as_along_the_last_dim(const F& f) {
  manual_seed(3);
  for (const DType t : {kFloat32, kFloat64, kBFloat16, kInt32, kInt64, kUInt8, kBool})
    for (const Shape& sizes : {Shape{5, 37}, Shape{6, 4, 9}, Shape{3, 70, 300}, Shape{2, 3, 5, 8}})
      for (const Tensor& x : layouts(many_equal(sizes, t)))
        for (int64_t d = 0; d < x.dim(); ++d) {
          const Tensor moved = x.transpose(d, -1).contiguous();
          ASSERT_TRUE(same(f(x, d), f(moved, x.dim() - 1).transpose(d, -1)))
              << t << " " << x.sizes() << " dim " << d;
        }
}

TEST(OuterDims, of_sums_and_products) {
  expect_as_along_the_last_dim([](const Tensor& x, int64_t d) { return cumsum(x, d); });
  expect_as_along_the_last_dim([](const Tensor& x, int64_t d) { return cumprod(x, d); });
}

TEST(OuterDims, of_extremes_and_their_places) {
  expect_as_along_the_last_dim([](const Tensor& x, int64_t d) { return argmax(x, d, true); });
  expect_as_along_the_last_dim([](const Tensor& x, int64_t d) { return argmin(x, d, true); });
  expect_as_along_the_last_dim([](const Tensor& x, int64_t d) { return max(x, d, true).values; });
  expect_as_along_the_last_dim([](const Tensor& x, int64_t d) { return min(x, d, true).values; });
}

TEST(OuterDims, of_selections) {
  expect_as_along_the_last_dim([](const Tensor& x, int64_t d) { return flip(x, {d}); });
  for (const DType t : {kInt64, kInt32})
    expect_as_along_the_last_dim([t](const Tensor& x, int64_t d) {
      return index_select(x, d, tensor({1, 0, 0, 1, 1}).to(t));
    });
  expect_as_along_the_last_dim(
      [](const Tensor& x, int64_t d) { return index_select(x, d, zeros({0}, {.dtype = kInt64})); });
}

TEST(OuterDims, of_the_gradient_of_a_selection) {
  const Tensor x = randn({3, 5, 4}, {.dtype = kFloat64}).requires_grad_(), at = tensor({4, 0, 4}).to(kInt64);
  const Tensor g = randn({3, 3, 4}, {.dtype = kFloat64}).requires_grad_();
  const Tensor dx = grad({index_select(x, 1, at)}, {x}, {g}, {.create_graph = true})[0];
  Tensor expected = zeros({3, 5, 4}, {.dtype = kFloat64});
  expected.slice(1, 4, 5).copy_(g.detach().slice(1, 0, 1) + g.detach().slice(1, 2, 3));
  expected.slice(1, 0, 1).copy_(g.detach().slice(1, 1, 2));
  EXPECT_TRUE(equal(dx.detach(), expected));
  const Tensor weight = randn({3, 5, 4}, {.dtype = kFloat64});
  EXPECT_TRUE(equal(grad({(dx * weight).sum()}, {g})[0], index_select(weight, 1, at)));
}

TEST(OuterDims, of_a_selection_refuse_indices_out_of_range) {
  const Tensor x = zeros({3, 5, 4});
  EXPECT_THROW(index_select(x, 1, tensor({0, 5}).to(kInt64)), IndexError);
  EXPECT_THROW(index_select(x, 2, tensor({-1}).to(kInt64)), IndexError);
  EXPECT_THROW(index_select(zeros({0, 5, 4}), 1, tensor({5}).to(kInt64)), IndexError);
}

/// The largest error of y in units in the last place of the exact value.
double error_in_units(const Tensor& x, const Tensor& y, double (*exact)(double)) {
  double worst = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double expected = exact(static_cast<double>(x[i].item<float>()));
    const float near = static_cast<float>(expected);
    const double unit = static_cast<double>(std::nextafter(std::fabs(near), 2.0f)) - std::fabs(near);
    worst = std::max(worst, std::fabs(static_cast<double>(y[i].item<float>()) - expected) / unit);
  }
  return worst;
}

TEST(Trigonometry, of_near_and_far_floats_is_exact_to_a_unit) {
  manual_seed(9);
  const Tensor near = randn({3000}) * 3;
  const Tensor x =
      cat({near, near * 1e3, near * 1e5, near * 1e9, near * 1e30, arange(2000).to(kFloat32) * 1.5707964});
  EXPECT_LE(error_in_units(x, sin(x), std::sin), 1);
  EXPECT_LE(error_in_units(x, cos(x), std::cos), 1);
  for (const int64_t step : {1, 3}) {  // alone and among others: the same bits
    const Tensor part = x.slice(0, 5, x.size(0), step);
    EXPECT_TRUE(equal(sin(part), sin(x).slice(0, 5, x.size(0), step)));
  }
  Tensor y = x.clone();
  y.copy_(cos(y));
  EXPECT_TRUE(equal(y, cos(x)));
}

TEST(Trigonometry, of_zeros_infinities_and_nan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Tensor y = sin(tensor({0.0, -0.0, kInfinity, -kInfinity, std::nan("")}));
  EXPECT_FALSE(std::signbit(y[0].item<float>()));
  EXPECT_TRUE(std::signbit(y[1].item<float>()));
  for (int64_t i = 2; i < 5; ++i) EXPECT_TRUE(std::isnan(y[i].item<float>())) << i;
  EXPECT_EQ(cos(tensor({0.0, -0.0}))[1].item<float>(), 1);
}

}  // namespace
}  // namespace weft
