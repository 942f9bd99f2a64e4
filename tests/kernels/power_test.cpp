// Powers of floats against the C library's double ones: special values, and the error over all bit patterns.
// Also the bits of a number beside unusual ones.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "arrays.h"

namespace weft {
namespace {

using test::Array;
using test::cpu;
using test::each_isa;

constexpr float kEndless = std::numeric_limits<float>::infinity(),
                kNoNumber = std::numeric_limits<float>::quiet_NaN();

/// The kernel of two tensors, of a number as the exponent, or of a number as the base.
enum class Form { kTensors, kExponent, kBase };

std::vector<float> powers(Form form, const std::vector<float>& a, const std::vector<float>& b) {
  Context context;
  const auto n = static_cast<int64_t>(a.size());
  Array<float> x(Shape{n}), y(Shape{n}), z(Shape{n});
  for (int64_t i = 0; i < n; ++i) x[i] = a[static_cast<size_t>(i)], y[i] = b[static_cast<size_t>(i)];
  if (form == Form::kTensors) cpu().binary(context, Binary::kPow, 0, 0, x.view(), y.view(), z.view());
  else if (form == Form::kExponent) cpu().unary(context, Unary::kPowScalar, b[0], 0, x.view(), z.view());
  else cpu().unary(context, Unary::kRpowScalar, a[0], 0, y.view(), z.view());
  return {z.data(), z.data() + n};
}

TEST(Power, special_values_are_those_of_the_c_library) {
  const std::vector<float> values = {
      0.0f,        -0.0f,      1.0f,        -1.0f,        2.0f,        -2.0f,    3.0f,
      -3.0f,       0.5f,       -0.5f,       1.5f,         -1.5f,       2.5f,     -7.0f,
      33.3f,       1e-45f,     -1e-45f,     1e-30f,       1e30f,       -1e30f,   3e38f,
      -3e38f,      kEndless,   -kEndless,   kNoNumber,    0x1p24f,     -0x1p24f, 0x1p24f - 1,
      1 - 0x1p24f, 8388607.5f, 0x1p23f + 1, 1 - 0x1p-24f, 1 + 0x1p-23f};
  each_isa([&] {
    for (const float b : values) {
      const std::vector<float> exponents(values.size(), b);
      for (const Form form : {Form::kTensors, Form::kExponent, Form::kBase}) {
        // the first number is the one that does not change
        const std::vector<float> got =
            form == Form::kBase ? powers(form, exponents, values) : powers(form, values, exponents);
        for (size_t i = 0; i < values.size(); ++i) {
          const float x = form == Form::kBase ? b : values[i], y = form == Form::kBase ? values[i] : b;
          const auto want = static_cast<float>(std::pow(static_cast<double>(x), static_cast<double>(y)));
          const std::string text = str("pow(", x, ", ", y, ")");
          if (std::isnan(want)) {
            EXPECT_TRUE(std::isnan(got[i])) << text << " is " << got[i];
          } else {
            EXPECT_EQ(std::signbit(got[i]), std::signbit(want)) << text << " is " << got[i];
            const bool same = got[i] == want || std::fabs(got[i] / want - 1) < 3e-7f;
            EXPECT_TRUE(same) << text << " is " << got[i] << ", not " << want;
          }
        }
      }
    }
  });
}

TEST(Power, the_error_is_about_half_a_unit_in_the_last_place) {
  std::mt19937 engine(7);
  std::vector<float> a, b;
  for (int i = 0; i < 200'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(engine()) & 0x7FFFFFFFu);
    if (!(x > 0 && x < kEndless)) continue;
    const double log = std::log2(static_cast<double>(x));
    const double target = static_cast<double>(engine()) / 0x1p32 * 290 - 155;  // of the power's logarithm
    a.push_back(i % 3 == 0 && log < 0 ? -x : x);
    b.push_back(i % 3 == 0   ? static_cast<float>(static_cast<int>(engine() % 41) - 20)
                : log == 0.0 ? 1.0f
                             : static_cast<float>(target / log));
  }
  each_isa([&] {
    const std::vector<float> got = powers(Form::kTensors, a, b);
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double want = std::pow(static_cast<double>(a[i]), static_cast<double>(b[i]));
      if (std::fabs(want) > static_cast<double>(std::numeric_limits<float>::max())) {
        EXPECT_FALSE(std::fabs(got[i]) < std::numeric_limits<float>::max()) << a[i] << " " << b[i];
        continue;
      }
      const double size = std::max(std::fabs(want), 0x1p-126);
      const double ulp = std::ldexp(1.0, std::ilogb(size) - 23);
      worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - want) / ulp);
    }
    EXPECT_LT(worst, 0.51);
  });
}

TEST(Power, unusual_neighbours_do_not_change_the_bits_of_a_number) {
  std::mt19937 engine(3);
  std::uniform_real_distribution<float> base(0.01f, 30.0f), exponent(-9.0f, 9.0f);
  std::vector<float> a(1000), b(1000);
  for (size_t i = 0; i < a.size(); ++i) a[i] = base(engine), b[i] = exponent(engine);
  each_isa([&] {
    const std::vector<float> alone = powers(Form::kTensors, a, b);
    for (const float unusual : {kNoNumber, kEndless, -2.0f, 0.0f}) {
      std::vector<float> beside = a;
      for (size_t i = 0; i < a.size(); i += 7) beside[i] = unusual;
      const std::vector<float> got = powers(Form::kTensors, beside, b);
      for (size_t i = 0; i < a.size(); ++i)
        if (i % 7 != 0) {
          EXPECT_EQ(got[i], alone[i]) << a[i] << " " << b[i];
        }
    }
  });
}

TEST(Power, a_cube_is_two_products) {
  each_isa([] {
    const std::vector<float> x = {-2.0f, 0.3f, -0.0f, 1e20f, kEndless, kNoNumber};
    const std::vector<float> got = powers(Form::kExponent, x, std::vector<float>(x.size(), 3.0f));
    for (size_t i = 0; i + 1 < x.size(); ++i) EXPECT_EQ(got[i], x[i] * x[i] * x[i]);
    EXPECT_TRUE(std::signbit(got[2]));
    EXPECT_TRUE(std::isnan(got[5]));
  });
}

}  // namespace
}  // namespace weft
