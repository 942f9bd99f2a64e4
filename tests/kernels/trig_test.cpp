// Sine, cosine, tangent and atan2 of floats against the C library's double ones: the error, special values,
// and the bits of a number beside others.
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

std::vector<float> values_of(Unary op, const std::vector<float>& from) {
  Context context;
  const auto n = static_cast<int64_t>(from.size());
  Array<float> x(Shape{n}), y(Shape{n});
  for (int64_t i = 0; i < n; ++i) x[i] = from[static_cast<size_t>(i)];
  cpu().unary(context, op, 0, 0, x.view(), y.view());
  return {y.data(), y.data() + n};
}

double exact(Unary op, float x) {
  const auto wide = static_cast<double>(x);
  return op == Unary::kSin ? std::sin(wide) : op == Unary::kCos ? std::cos(wide) : std::tan(wide);
}

/// The distance in units in the last place of the exact value.
double units_off(float got, double want) {
  int exponent = 0;
  std::frexp(want, &exponent);
  return std::fabs(static_cast<double>(got) - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

/// Numbers of all magnitudes up to 2^21, and those next to multiples of pi / 2.
std::vector<float> numbers() {
  std::vector<float> x;
  std::mt19937 engine(7);
  while (x.size() < 200'000) {
    const float v = std::bit_cast<float>(static_cast<uint32_t>(engine()));
    if (std::fabs(v) <= 0x1p21f) x.push_back(v);
  }
  for (int i = 0; i < 100'000; ++i) {
    const float v = static_cast<float>(static_cast<int>(engine() % 1'400'000) - 700'000) * 0x1.921fb6p+0f;
    for (const float next : {v, std::nextafter(v, 0.0f), std::nextafter(v, 1e9f)}) x.push_back(next);
  }
  for (int i = 0; i < 100'000; ++i) x.push_back(static_cast<float>(engine()) * 0x1p-27f - 16);
  return x;
}

TEST(Trig, the_error_is_below_one_unit_in_the_last_place) {
  const std::vector<float> x = numbers();
  each_isa([&] {
    for (const Unary op : {Unary::kSin, Unary::kCos, Unary::kTan}) {
      const std::vector<float> y = values_of(op, x);
      double worst = 0;
      float at = 0;
      for (size_t i = 0; i < x.size(); ++i)
        if (const double off = units_off(y[i], exact(op, x[i])); !(off <= worst)) worst = off, at = x[i];
      EXPECT_LT(worst, 0.9) << to_string(op) << "(" << at << ")";
    }
  });
}

TEST(Trig, special_values_are_those_of_the_c_library) {
  constexpr float kEndless = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {
      0.0f,  -0.0f, 1e-45f, -1e-45f, kEndless, -kEndless, std::numeric_limits<float>::quiet_NaN(),
      3e38f, 1.0f};
  each_isa([&] {
    for (const Unary op : {Unary::kSin, Unary::kCos, Unary::kTan}) {
      const std::vector<float> y = values_of(op, x);
      for (size_t i = 0; i < x.size(); ++i) {
        const double want = exact(op, x[i]);
        EXPECT_EQ(std::isnan(y[i]), std::isnan(want)) << to_string(op) << "(" << x[i] << ")";
        if (std::isnan(want)) continue;
        EXPECT_EQ(std::signbit(y[i]), std::signbit(want)) << to_string(op) << "(" << x[i] << ")";
        EXPECT_LT(units_off(y[i], want), 0.9) << to_string(op) << "(" << x[i] << ")";
      }
    }
  });
}

TEST(Trig, a_number_has_the_same_bits_at_every_place_and_beside_far_ones) {
  std::vector<float> x = numbers();
  x.resize(700);
  std::vector<float> beside = x;
  for (size_t i = 0; i < x.size(); i += 3) beside[i] = 1e30f;
  each_isa([&] {
    for (const Unary op : {Unary::kSin, Unary::kCos, Unary::kTan}) {
      const std::vector<float> y = values_of(op, x), z = values_of(op, beside);
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(values_of(op, {x[i]})[0]));
        if (i % 3 != 0) {
          EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(z[i]));
        }
      }
    }
  });
}

std::vector<float> angles(const std::vector<float>& y, const std::vector<float>& x) {
  Context context;
  const auto n = static_cast<int64_t>(x.size());
  Array<float> a(Shape{n}), b(Shape{n}), out(Shape{n});
  for (int64_t i = 0; i < n; ++i) a[i] = y[static_cast<size_t>(i)], b[i] = x[static_cast<size_t>(i)];
  cpu().binary(context, Binary::kAtan2, 0, 0, a.view(), b.view(), out.view());
  return {out.data(), out.data() + n};
}

void expect_angle(float got, float y, float x, double units) {
  const double want = std::atan2(static_cast<double>(y), static_cast<double>(x));
  const std::string text = str("atan2(", y, ", ", x, ")");
  EXPECT_EQ(std::isnan(got), std::isnan(want)) << text;
  if (std::isnan(want)) return;
  EXPECT_EQ(std::signbit(got), std::signbit(want)) << text;
  EXPECT_LT(units_off(got, want), units) << text << " is " << got;
}

TEST(Trig, an_angle_is_right_to_about_half_a_unit_in_the_last_place) {
  std::mt19937 engine(9);
  std::vector<float> y, x;
  for (int i = 0; i < 100'000; ++i) {
    y.push_back(std::bit_cast<float>(static_cast<uint32_t>(engine())));
    x.push_back(i % 2 == 0 ? std::bit_cast<float>(static_cast<uint32_t>(engine()))
                           : y.back() * (static_cast<float>(engine()) * 0x1p-30f - 2));
  }
  each_isa([&] {
    const std::vector<float> got = angles(y, x);
    for (size_t i = 0; i < x.size(); ++i) expect_angle(got[i], y[i], x[i], 0.51);
  });
}

TEST(Trig, angles_of_special_points_are_those_of_the_c_library) {
  constexpr float kEndless = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0.0f,
                                     -0.0f,
                                     1.0f,
                                     -1.0f,
                                     1e-45f,
                                     -1e-45f,
                                     3e38f,
                                     -3e38f,
                                     kEndless,
                                     -kEndless,
                                     std::numeric_limits<float>::quiet_NaN()};
  each_isa([&] {
    for (const float y : values) {
      const std::vector<float> got = angles(std::vector<float>(values.size(), y), values);
      for (size_t i = 0; i < values.size(); ++i) expect_angle(got[i], y, values[i], 0.51);
    }
  });
}

}  // namespace
}  // namespace weft
