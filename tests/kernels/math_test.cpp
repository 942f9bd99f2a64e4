// The float functions of kernels/math.h against the C library's double ones, over their whole range and at
// its ends.
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include <weft/kernels/math.h>

namespace weft {
namespace {

namespace math = kernels::math;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// The largest error in units of the last place of the right answer, over x = low + i * step.
double worst_ulp(const std::function<float(float)>& f, const std::function<double(double)>& right, double low,
                 double high, int steps = 200'003) {
  double worst = 0;
  for (int i = 0; i <= steps; ++i) {
    const auto x = static_cast<float>(low + (high - low) * i / steps);
    const double want = right(x);
    const double size = std::max(std::fabs(want), 0x1p-126);
    const double ulp = std::ldexp(1.0, std::ilogb(size) - 23);
    worst = std::max(worst, std::fabs(static_cast<double>(f(x)) - want) / ulp);
  }
  return worst;
}

TEST(Math, exp_is_within_two_units) {
  const auto f = [](float x) { return math::exp(x); };
  const auto right = [](double x) { return std::exp(x); };
  EXPECT_LT(worst_ulp(f, right, -87, 88.7), 2);
  EXPECT_LT(worst_ulp(f, right, -1, 1), 2);
  EXPECT_EQ(math::exp(0.0f), 1.0f);
  EXPECT_EQ(math::exp(-kInf), 0.0f);
  EXPECT_EQ(math::exp(kInf), kInf);
  EXPECT_EQ(math::exp(100.0f), kInf);
  EXPECT_TRUE(std::isnan(math::exp(NAN)));
}

TEST(Math, expm1_keeps_small_numbers) {
  const auto f = [](float x) { return math::expm1(x); };
  const auto right = [](double x) { return std::expm1(x); };
  EXPECT_LT(worst_ulp(f, right, -0.5, 0.5), 2.5);
  EXPECT_LT(worst_ulp(f, right, -20, 88.7), 2.5);
  EXPECT_EQ(math::expm1(0.0f), 0.0f);
  EXPECT_EQ(math::expm1(1e-20f), 1e-20f);
  EXPECT_EQ(math::expm1(-kInf), -1.0f);
  EXPECT_EQ(math::expm1(kInf), kInf);
  EXPECT_TRUE(std::isnan(math::expm1(NAN)));
}

TEST(Math, logarithms_are_within_two_units) {
  EXPECT_LT(worst_ulp([](float x) { return math::log(x); }, [](double x) { return std::log(x); }, 1e-3, 4),
            2);
  EXPECT_LT(worst_ulp([](float x) { return math::log(x); }, [](double x) { return std::log(x); }, 1, 3e38),
            2);
  EXPECT_LT(
      worst_ulp([](float x) { return math::log2(x); }, [](double x) { return std::log2(x); }, 1e-3, 100), 3);
  EXPECT_LT(
      worst_ulp([](float x) { return math::log1p(x); }, [](double x) { return std::log1p(x); }, -0.99, 3), 3);
  EXPECT_EQ(math::log1p(1e-20f), 1e-20f);
  EXPECT_EQ(math::log(1.0f), 0.0f);
  EXPECT_NEAR(math::log(1e-44f), std::log(static_cast<double>(1e-44f)), 1e-4);  // below the normal range
  EXPECT_EQ(math::log2(8.0f), 3.0f);
  for (const auto& f : {+[](float x) { return math::log(x); }, +[](float x) { return math::log2(x); }}) {
    EXPECT_EQ(f(0.0f), -kInf);
    EXPECT_EQ(f(kInf), kInf);
    EXPECT_TRUE(std::isnan(f(-1.0f)));
    EXPECT_TRUE(std::isnan(f(NAN)));
  }
  EXPECT_EQ(math::log1p(-1.0f), -kInf);
  EXPECT_EQ(math::log1p(kInf), kInf);
  EXPECT_TRUE(std::isnan(math::log1p(-2.0f)));
}

TEST(Math, tanh_and_sigmoid_are_within_three_units) {
  EXPECT_LT(worst_ulp([](float x) { return math::tanh(x); }, [](double x) { return std::tanh(x); }, -10, 10),
            3);
  EXPECT_LT(
      worst_ulp([](float x) { return math::tanh(x); }, [](double x) { return std::tanh(x); }, -0.01, 0.01),
      3);
  EXPECT_LT(worst_ulp([](float x) { return math::sigmoid(x); },
                      [](double x) { return 1 / (1 + std::exp(-x)); }, -80, 30),
            3);
  EXPECT_EQ(math::tanh(kInf), 1.0f);
  EXPECT_EQ(math::tanh(-kInf), -1.0f);
  EXPECT_TRUE(std::signbit(math::tanh(-0.0f)));
  EXPECT_TRUE(std::isnan(math::tanh(NAN)));
  EXPECT_EQ(math::sigmoid(-kInf), 0.0f);
  EXPECT_EQ(math::sigmoid(kInf), 1.0f);
}

TEST(Math, erf_and_the_normal_distribution_are_accurate_in_the_tails) {
  EXPECT_LT(worst_ulp([](float x) { return math::erf(x); }, [](double x) { return std::erf(x); }, -5, 5), 3);
  EXPECT_LT(
      worst_ulp([](float x) { return math::erf(x); }, [](double x) { return std::erf(x); }, -0.001, 0.001),
      3);
  const auto cdf = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  EXPECT_LT(worst_ulp([](float x) { return math::normal_cdf(x); }, cdf, -2, 6), 20);
  // the exponent's rounding, about x^2 / 2 units
  EXPECT_LT(worst_ulp([](float x) { return math::normal_cdf(x); }, cdf, -8, -2), 100);
  EXPECT_EQ(math::erf(kInf), 1.0f);
  EXPECT_EQ(math::erf(-kInf), -1.0f);
  EXPECT_TRUE(std::isnan(math::erf(NAN)));
  EXPECT_TRUE(std::isnan(math::normal_cdf(NAN)));
}

TEST(Math, forms_for_devices_are_within_three_units_before_their_instructions_round) {
  const auto tanh = [](float x) { return math::detail::short_tanh(x); };
  EXPECT_LT(worst_ulp(
                tanh, [](double x) { return std::tanh(x); }, -10, 10),
            3);
  EXPECT_LT(worst_ulp(
                tanh, [](double x) { return std::tanh(x); }, -0.01, 0.01),
            3);
  EXPECT_EQ(tanh(kInf), 1.0f);
  EXPECT_EQ(tanh(-kInf), -1.0f);
  EXPECT_TRUE(std::signbit(tanh(-0.0f)));
  EXPECT_TRUE(std::isnan(tanh(NAN)));
  const auto log1p = [](float x) { return math::detail::short_log1p(x); };
  EXPECT_LT(worst_ulp(
                log1p, [](double x) { return std::log1p(x); }, 0, 1),
            3);
  EXPECT_LT(worst_ulp(
                log1p, [](double x) { return std::log1p(x); }, 0, 1e-3),
            3);
  EXPECT_EQ(log1p(0.0f), 0.0f);
  EXPECT_EQ(log1p(1e-30f), 1e-30f);
  EXPECT_TRUE(std::isnan(log1p(NAN)));
}

TEST(Math, the_normal_distribution_for_devices_is_accurate_to_its_exponent) {
  const auto cdf = [](float x) { return math::detail::short_normal_cdf(x); };
  const auto expected = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  EXPECT_LT(worst_ulp(cdf, expected, 0, 12), 9);
  EXPECT_LT(worst_ulp(cdf, expected, -1, 0), 9);
  EXPECT_LT(worst_ulp(cdf, expected, -5, -1), 36);  // half a square of up to 25, rounded, is an exponent
  EXPECT_EQ(cdf(kInf), 1.0f);
  EXPECT_EQ(cdf(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(cdf(NAN)));
}

TEST(Math, odd_functions_keep_the_sign_of_zero) {
  for (const auto& f : {+[](float x) { return math::expm1(x); }, +[](float x) { return math::log1p(x); },
                        +[](float x) { return math::tanh(x); }, +[](float x) { return math::erf(x); },
                        +[](float x) { return math::detail::short_tanh(x); }}) {
    EXPECT_EQ(f(-0.0f), 0.0f);
    EXPECT_TRUE(std::signbit(f(-0.0f)));
    EXPECT_FALSE(std::signbit(f(0.0f)));
  }
}

TEST(Math, softplus_neither_overflows_nor_loses_small_results) {
  EXPECT_LT(
      worst_ulp([](float x) { return math::softplus(x); },
                [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }, -80, 200),
      3);
  EXPECT_EQ(math::softplus(kInf), kInf);
  EXPECT_EQ(math::softplus(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(math::softplus(NAN)));
}

}  // namespace
}  // namespace weft
