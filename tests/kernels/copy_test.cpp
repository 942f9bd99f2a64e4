// Copies between layouts and dtypes, selection, filling; the half types over all their patterns.
#include <bit>
#include <cmath>
#include <limits>

#include "arrays.h"

namespace weft {
namespace {

using test::Array;
using test::cpu;
using test::each_isa;

/// Half to float by the definition of the format.
double half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31)
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

TEST(Copy, every_half_pattern_converts_to_float_and_back) {
  each_isa([] {
    Context context;
    Array<Half> h(Shape{65536}), back(Shape{65536});
    Array<float> f(Shape{65536});
    for (int i = 0; i < 65536; ++i) h[i].bits = static_cast<uint16_t>(i);
    cpu().copy(context, h.view(), f.view());
    cpu().copy(context, f.view(), back.view());
    for (int i = 0; i < 65536; ++i) {
      const double want = half_value(static_cast<uint16_t>(i));
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(f[i]) && std::isnan(static_cast<float>(back[i]))) << i;
      } else {
        ASSERT_EQ(f[i], want) << i;
        ASSERT_EQ(std::signbit(f[i]), i >= 32768);
        ASSERT_EQ(back[i].bits, i);
      }
      ASSERT_TRUE(f[i] == static_cast<float>(h[i]) || std::isnan(want));  // the scalar form agrees
    }
  });
}

TEST(Copy, every_bfloat16_pattern_converts_to_float_and_back) {
  each_isa([] {
    Context context;
    Array<BFloat16> h(Shape{65536}), back(Shape{65536});
    Array<float> f(Shape{65536});
    for (int i = 0; i < 65536; ++i) h[i].bits = static_cast<uint16_t>(i);
    cpu().copy(context, h.view(), f.view());
    cpu().copy(context, f.view(), back.view());
    for (int i = 0; i < 65536; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(f[i]) >> 16, static_cast<uint32_t>(i));
      if (!std::isnan(f[i])) ASSERT_EQ(back[i].bits, i);
      else ASSERT_TRUE(std::isnan(static_cast<float>(back[i])));
    }
  });
}

TEST(Copy, float_rounds_to_the_nearest_even_half_everywhere) {
  each_isa([] {
    Context context;
    // Around every boundary between two neighbours: below, on and above the middle.
    Array<float> f(Shape{3 * 31743});
    Array<Half> h(Shape{3 * 31743});
    for (int i = 0; i < 31743; ++i) {
      const double low = half_value(static_cast<uint16_t>(i)),
                   high = half_value(static_cast<uint16_t>(i + 1));
      const double end = i + 1 == 31744 ? 65536.0 : high;
      const auto middle = static_cast<float>((low + end) / 2);
      f[3 * i] = std::nextafter(middle, 0.0f), f[3 * i + 1] = middle,
            f[3 * i + 2] = std::nextafter(middle, 1e9f);
    }
    cpu().copy(context, f.view(), h.view());
    for (int i = 0; i < 31743; ++i) {
      ASSERT_EQ(h[3 * i].bits, i);
      ASSERT_EQ(h[3 * i + 1].bits, i % 2 ? i + 1 : i);
      ASSERT_EQ(h[3 * i + 2].bits, i + 1);
      for (int k = 0; k < 3; ++k) ASSERT_EQ(Half(f[3 * i + k]).bits, h[3 * i + k].bits);
      ASSERT_EQ(Half(-f[3 * i + 1]).bits, h[3 * i + 1].bits | 0x8000);
    }
  });
  EXPECT_EQ(Half(65519.0f).bits, 0x7BFF);
  EXPECT_EQ(Half(65520.0f).bits, 0x7C00);
  EXPECT_EQ(Half(1e30f).bits, 0x7C00);
}

TEST(Copy, float_rounds_to_the_nearest_even_bfloat16) {
  for (uint32_t top : {0x3F80u, 0x3F81u, 0x0001u, 0x7F7Fu, 0x4321u}) {
    const auto bits = [&](uint32_t low) { return BFloat16(std::bit_cast<float>((top << 16) | low)).bits; };
    EXPECT_EQ(bits(0x7FFF), top);
    EXPECT_EQ(bits(0x8000), top + (top & 1));
    EXPECT_EQ(bits(0x8001), top + 1);
  }
}

template <class From, class To> void check_pair() {
  SCOPED_TRACE(std::string(to_string(dtype_of<From>)) + " to " + to_string(dtype_of<To>));
  Context context;
  for (const Shape& strides : {Shape{}, Shape{1, 5}, Shape{41, 3}}) {
    Array<From> x(Shape{5, 13}, strides);
    Array<To> y(Shape{5, 13}), z(Shape{5, 13}, {2, 10});
    x.random(3, 0, 100);
    cpu().copy(context, x.view(), y.view());
    cpu().copy(context, x.view(), z.view());
    for (int64_t i = 0; i < x.numel(); ++i) {
      double want = x.at(i);
      if (std::is_integral_v<To>) want = std::trunc(want);
      if (std::is_same_v<To, float>) want = static_cast<float>(want);
      if (std::is_same_v<To, Half>) want = static_cast<float>(Half(static_cast<float>(want)));
      if (std::is_same_v<To, BFloat16>) want = static_cast<float>(BFloat16(static_cast<float>(want)));
      ASSERT_EQ(y.at(i), want);
      ASSERT_EQ(z.at(i), want);
    }
  }
}
template <class From> void check_from() {
  check_pair<From, uint8_t>();
  check_pair<From, int32_t>();
  check_pair<From, int64_t>();
  check_pair<From, Half>();
  check_pair<From, BFloat16>();
  check_pair<From, float>();
  check_pair<From, double>();
}

TEST(Copy, every_pair_of_dtypes_and_layouts_converts) {
  each_isa([] {
    check_from<uint8_t>();
    check_from<int32_t>();
    check_from<int64_t>();
    check_from<Half>();
    check_from<BFloat16>();
    check_from<float>();
    check_from<double>();
  });
}

TEST(Copy, bool_is_one_for_every_nonzero_number) {
  Context context;
  Array<double> x(Shape{5});
  x[0] = 0, x[1] = 1e-320, x[2] = -3, x[3] = NAN, x[4] = -0.0;
  Array<uint8_t> flags(Shape{5});
  View v = flags.view();
  v.dtype = kBool;
  cpu().copy(context, x.view(), v);
  const int want[] = {0, 1, 1, 1, 0};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(flags[i], want[i]) << i;
  cpu().copy(context, v, x.view());
  EXPECT_EQ(x[2], 1.0);
  EXPECT_EQ(x[4], 0.0);
}

TEST(Copy, floating_numbers_outside_the_integer_range_saturate) {
  each_isa([] {
    Context context;
    Array<float> x(Shape{4});
    x[0] = 1e20f, x[1] = -1e20f, x[2] = NAN, x[3] = 300;
    Array<int64_t> l(Shape{4});
    Array<int32_t> i(Shape{4});
    Array<uint8_t> b(Shape{4});
    cpu().copy(context, x.view(), l.view());
    cpu().copy(context, x.view(), i.view());
    cpu().copy(context, x.view(), b.view());
    EXPECT_EQ(l[0], std::numeric_limits<int64_t>::max());
    EXPECT_EQ(l[1], std::numeric_limits<int64_t>::min());
    EXPECT_EQ(l[2], 0);
    EXPECT_EQ(i[0], std::numeric_limits<int32_t>::max());
    EXPECT_EQ(i[1], std::numeric_limits<int32_t>::min());
    EXPECT_EQ(b[3], 255);
    EXPECT_EQ(b[1], 0);
  });
}

template <class T> void check_transpose(int64_t planes, int64_t rows, int64_t columns) {
  Context context;
  const Shape sizes{planes, rows, columns};
  Array<T> x(sizes, {rows * columns, 1, rows}), y(sizes);
  x.random(7, 0, 100);
  cpu().copy(context, x.view(), y.view());
  for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(y.at(i), x.at(i)) << i;
}

TEST(Copy, transposed_copies_are_right_at_all_edges) {
  each_isa([] {
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{8, 8}, {64, 64}, {67, 131}, {16, 17}, {9, 200}, {200, 9}}) {
      check_transpose<uint8_t>(2, rows, columns);
      check_transpose<Half>(3, rows, columns);
      check_transpose<float>(2, rows, columns);
      check_transpose<double>(1, rows, columns);
    }
  });
}

TEST(Copy, permuted_and_broadcast_copies_are_right) {
  Context context;
  const Shape sizes{5, 3, 7, 11};
  Array<float> x(sizes, {1, 5 * 7 * 11, 5, 35}), y(sizes), row(sizes, {0, 0, 0, 1}),
      column(sizes, {0, 1, 0, 0});
  x.random(1), row.random(2), column.random(3);
  for (Array<float>* from : {&x, &row, &column}) {
    cpu().copy(context, from->view(), y.view());
    for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(y[i], (*from)[i]);
  }
}

template <class T> void check_where() {
  Context context;
  const Shape sizes{7, 53};
  Array<uint8_t> cond(sizes, {1, 7});
  Array<T> a(sizes), b(sizes, {0, 1}), y(sizes, {1, 7});
  a.random(1, 0, 50), b.random(2, 50, 99);
  for (int64_t i = 0; i < cond.numel(); ++i) cond[i] = i % 3 == 0;
  View c = cond.view();
  c.dtype = kBool;
  cpu().where(context, c, a.view(), b.view(), y.view());
  for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(y.at(i), i % 3 == 0 ? a.at(i) : b.at(i));
}

TEST(Copy, where_takes_each_side_for_every_width) {
  each_isa([] {
    check_where<uint8_t>();
    check_where<Half>();
    check_where<float>();
    check_where<double>();
  });
}

TEST(Copy, fill_writes_its_view_only) {
  each_isa([] {
    Context context;
    Array<float> y(Shape{70'001}), gaps(Shape{5, 7}, {30, 2});
    cpu().fill(context, 2.5, y.view());
    for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(y[i], 2.5f);
    cpu().fill(context, 3, gaps.view());
    for (int64_t i = 0; i < gaps.numel(); ++i) ASSERT_EQ(gaps[i], 3.0f);
    EXPECT_EQ(gaps.data()[1], 77.0f);
    Array<int64_t> n(Shape{3});
    cpu().fill(context, (int64_t{1} << 60) + 1, n.view());
    EXPECT_EQ(n[2], (int64_t{1} << 60) + 1);
    Array<Half> empty(Shape{0, 4});
    cpu().fill(context, 1, empty.view());
  });
}

TEST(Copy, arange_counts_in_integers_and_in_doubles) {
  Context context;
  Array<int64_t> n(Shape{5}, {2});
  cpu().arange(context, (int64_t{1} << 60), -3, n.view());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(n[i], (int64_t{1} << 60) - 3 * i);
  Array<float> f(Shape{100'003});
  cpu().arange(context, 0.5, 0.25, f.view());
  for (int64_t i = 0; i < f.numel(); ++i)
    ASSERT_EQ(f[i], static_cast<float>(0.5 + 0.25 * static_cast<double>(i)));
}

}  // namespace
}  // namespace weft
