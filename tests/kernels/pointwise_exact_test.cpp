// The rows of pointwise.h where a closed form in double does not decide: integers, exact bits, signs of zero,
// NaN. Also the same bits for any thread count and order of strides, short rows and mixed dtypes.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "arrays.h"

namespace weft {
namespace {

using test::Array;
using test::as_bool;
using test::cpu;
using test::each_isa;

// launches refuse it; a kernel casts nothing
TEST(Pointwise, a_number_beyond_an_integer_type_is_held_to_its_range) {
  each_isa([] {
    Context context;
    Array<int32_t> y(Shape{3});
    cpu().fill(context, 1e30, y.view());
    EXPECT_EQ(y[0], std::numeric_limits<int32_t>::max());
    cpu().fill(context, std::nan(""), y.view());
    EXPECT_EQ(y[1], 0);
    cpu().arange(context, 0.0, 1e10, y.view());
    EXPECT_EQ(y[2], std::numeric_limits<int32_t>::max());
    Array<int64_t> a(Shape{1, 1}), b(Shape{1, 1}), c(Shape{1, 1});
    a[0] = (int64_t{1} << 53) + 1, b[0] = 1;
    cpu().matmul(context, 3, a.view(), b.view(), 0, {}, c.view());
    EXPECT_EQ(c[0], 3 * a[0]);  // a double would have lost the last bit
  });
}

TEST(Pointwise, integer_rows_compute_in_their_own_type) {
  each_isa([] {
    Context context;
    Array<int64_t> x(Shape{3});
    x[0] = (int64_t{1} << 62) + 1, x[1] = -7, x[2] = 0;
    Array<int64_t> y(Shape{3});
    cpu().unary(context, Unary::kAddScalar, 1, 0, x.view(), y.view());
    EXPECT_EQ(y[0], (int64_t{1} << 62) + 2);  // a double would have lost the last bit
    cpu().unary(context, Unary::kAbs, 0, 0, x.view(), y.view());
    EXPECT_EQ(y[1], 7);
    cpu().unary(context, Unary::kClamp, -2, 5, x.view(), y.view());
    EXPECT_EQ(y[0], 5);
    EXPECT_EQ(y[1], -2);
    Array<uint8_t> a(Shape{5}), b(Shape{5});
    for (int i = 0; i < 5; ++i) a[i] = static_cast<uint8_t>(250 + i);
    cpu().unary(context, Unary::kAddScalar, 10, 0, a.view(), b.view());
    EXPECT_EQ(b[0], 4);  // wraps around
    Array<int32_t> i(Shape{4}, {2}), j(Shape{4});
    for (int k = 0; k < 4; ++k) i[k] = k - 2;
    cpu().unary(context, Unary::kSign, 0, 0, i.view(), j.view());
    EXPECT_EQ(j[0], -1);
    EXPECT_EQ(j[2], 0);
    EXPECT_EQ(j[3], 1);
    EXPECT_THROW(cpu().unary(context, Unary::kExp, 0, 0, i.view(), j.view()), DTypeError);
  });
}

float remainder_of(float a, float b) {
  const float r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

float floor_divide_of(float a, float b) {
  if (b == 0) return a / b;
  const float r = std::fmod(a, b);
  float q = (a - r) / b;
  if (r != 0 && (r < 0) != (b < 0)) q -= 1;
  if (q == 0) return std::copysign(0.f, a / b);
  const float below = std::floor(q);
  return q - below > 0.5f ? below + 1 : below;
}

TEST(Pointwise, fmod_remainder_and_floor_divide_of_floats_have_all_bits_whatever_their_sizes) {
  using Formula = float (*)(float, float);
  const std::pair<Binary, Formula> cases[] = {
      {Binary::kFmod, [](float a, float b) { return std::fmod(a, b); }},
      {Binary::kRemainder, remainder_of},
      {Binary::kFloorDivide, floor_divide_of}};
  each_isa([&] {
    Context context;
    constexpr int64_t n = 20000;
    Array<float> a(Shape{n}), b(Shape{n}), y(Shape{n});
    std::mt19937_64 engine(7);
    const float special[] = {
        0,   -0.f,          1,      -3, 0x1p-149f, 0x1p-126f, 0x1.FFFFFEp127f, INFINITY, -INFINITY,
        NAN, 0x1.000002p0f, 8388609};
    const int64_t borders[] = {(1 << 22) - 1, 1 << 22, (1 << 22) + 1, (1 << 24) - 1, (1 << 24) + 2};
    for (int64_t i = 0; i < n; ++i) {
      a[i] = std::bit_cast<float>(static_cast<uint32_t>(engine()));
      b[i] = i % 2 ? std::bit_cast<float>(static_cast<uint32_t>(engine()))
                   : a[i] / static_cast<float>(1 + engine() % 100000);
      if (i < 144) a[i] = special[i / 12], b[i] = special[i % 12];
      else if (i < 2000) b[i] = static_cast<float>(i % 2 ? -i : i) / 7, a[i] = borders[i % 5] * b[i];
    }
    for (const auto& [op, formula] : cases) {
      cpu().binary(context, op, 1, 0, a.view(), b.view(), y.view());
      for (int64_t i = 0; i < n; ++i) {
        const float want = formula(a[i], b[i]);
        if (std::isnan(want)) ASSERT_TRUE(std::isnan(y[i])) << to_string(op) << " " << a[i] << " " << b[i];
        else
          ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(want))
              << to_string(op) << " " << a[i] << " " << b[i];
      }
    }
  });
}

TEST(Pointwise, integer_remainder_takes_the_sign_of_the_divisor) {
  Context context;
  Array<int64_t> a(Shape{5}), b(Shape{5}), y(Shape{5});
  const int64_t as[] = {7, -7, 7, -7, std::numeric_limits<int64_t>::min()}, bs[] = {3, 3, -3, -3, -1},
                want[] = {1, 2, -2, -1, 0};
  for (int i = 0; i < 5; ++i) a[i] = as[i], b[i] = bs[i];
  cpu().binary(context, Binary::kRemainder, 0, 0, a.view(), b.view(), y.view());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(y[i], want[i]);
  b.fill(0);
  cpu().binary(context, Binary::kRemainder, 0, 0, a.view(), b.view(), y.view());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(y[i], 0);
}

template <class T> void check_signs_of_zero() {
  using U = Unary;
  Context context;
  for (const Unary op :
       {U::kExpm1, U::kLog1p, U::kSqrt, U::kSin, U::kTan, U::kTanh, U::kErf, U::kGelu, U::kGeluTanh, U::kSilu,
        U::kLeakyRelu, U::kElu, U::kFloor, U::kCeil, U::kRound, U::kTrunc})
    for (const int n : {1, 3, 4, 7, 8, 16, 37}) {  // whole vectors and their rests
      Array<T> x(Shape{n}), y(Shape{n});
      for (int i = 0; i < n; ++i) x[i] = T(i % 3 == 0 ? -0.0f : 0.0f);
      cpu().unary(context, op, 1.5, 3.0, x.view(), y.view());
      for (int i = 0; i < n; ++i) {
        ASSERT_EQ(y.at(i), 0) << to_string(op);
        ASSERT_EQ(std::signbit(y.at(i)), i % 3 == 0) << to_string(op) << " of " << n << ", element " << i;
      }
    }
}

TEST(Pointwise, functions_through_the_origin_keep_the_sign_of_zero) {
  each_isa([] {
    check_signs_of_zero<float>();
    check_signs_of_zero<double>();
    check_signs_of_zero<Half>();
    check_signs_of_zero<BFloat16>();
  });
}

TEST(Pointwise, nan_passes_through_maximum_minimum_clamp_and_relu) {
  each_isa([] {
    Context context;
    Array<float> a(Shape{37}), b(Shape{37}), y(Shape{37});
    a.fill(1), b.fill(2);
    a[3] = NAN, b[20] = NAN;
    for (Binary op : {Binary::kMaximum, Binary::kMinimum}) {
      cpu().binary(context, op, 0, 0, a.view(), b.view(), y.view());
      EXPECT_TRUE(std::isnan(y[3]));
      EXPECT_TRUE(std::isnan(y[20]));
      EXPECT_FALSE(std::isnan(y[4]));
    }
    for (Unary op :
         {Unary::kClamp, Unary::kRelu, Unary::kExp, Unary::kTanh, Unary::kLog, Unary::kGelu, Unary::kSign}) {
      cpu().unary(context, op, 0, 5, a.view(), y.view());
      EXPECT_TRUE(std::isnan(y[3])) << to_string(op);
    }
    Array<uint8_t> flags(Shape{37});
    cpu().unary(context, Unary::kIsNan, 0, 0, a.view(), as_bool(flags.view()));
    EXPECT_EQ(flags[3], 1);
    EXPECT_EQ(flags[4], 0);
    a[5] = std::numeric_limits<float>::infinity();
    cpu().unary(context, Unary::kIsFinite, 0, 0, a.view(), as_bool(flags.view()));
    EXPECT_EQ(flags[3] + flags[5], 0);
    EXPECT_EQ(flags[4], 1);
  });
}

TEST(Pointwise, large_operands_are_the_same_for_any_thread_count_and_order_of_strides) {
  const Shape sizes{331, 499};
  test::expect_same_bits_for_any_thread_count([&] {
    Context context;
    Array<float> a(sizes), b(sizes, {1, 331}), y(sizes), z(sizes, {1, 331});
    a.random(1), b.random(2);
    cpu().binary(context, Binary::kGeluGrad, 1, 0, a.view(), b.view(), y.view());
    cpu().binary(context, Binary::kGeluGrad, 1, 0, a.view(), b.view(), z.view());
    EXPECT_TRUE(y.bytes() == z.bytes());
    return y.bytes();
  });
}

template <class T>
void check_short_rows(const Shape& sizes, const Shape& left, const Shape& right, const Shape& out) {
  Context context;
  Array<T> a(sizes, left), b(sizes, right), y(sizes, out);
  a.random(1), b.random(2);
  cpu().binary(context, Binary::kSub, 0, 0, a.view(), b.view(), y.view());
  for (int64_t i = 0; i < y.numel(); ++i)
    ASSERT_EQ(y.at(i), static_cast<double>(T(static_cast<float>(a.at(i)) - static_cast<float>(b.at(i)))))
        << i;
}

TEST(Pointwise, short_rows_are_joined_across_pieces_of_work) {
  each_isa([] {
    const Shape sizes{9001, 5}, deep{3, 2203, 7};
    check_short_rows<float>(sizes, {}, {1, 0}, {});
    check_short_rows<Half>(sizes, {}, {1, 0}, {});
    check_short_rows<float>(sizes, {7, 1}, {0, 1}, {11, 2});
    check_short_rows<BFloat16>(sizes, {10, 2}, {5, 1}, {6, 1});
    check_short_rows<float>(deep, {0, 7, 1}, {2203, 1, 0}, {15421, 7, 1});
    check_short_rows<Half>(deep, {1, 21, 3}, {0, 0, 1}, {20000, 9, 1});
  });
}

TEST(Pointwise, mixed_dtypes_are_converted_on_the_way) {
  Context context;
  Array<Half> a(Shape{3, 5});
  Array<float> b(Shape{3, 5}, {1, 3}), y(Shape{3, 5});
  a.random(1), b.random(2);
  cpu().binary(context, Binary::kMul, 0, 0, a.view(), b.view(), y.view());
  for (int64_t i = 0; i < 15; ++i) EXPECT_FLOAT_EQ(y[i], static_cast<float>(a[i]) * b[i]);
}

}  // namespace
}  // namespace weft
