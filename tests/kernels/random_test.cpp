// Random kernels: the published Philox vectors, the numbering promised at PhiloxKey, moments of the
// distributions, masks that can be drawn again. Bits are equal under every instruction set and thread count.
#include <algorithm>
#include <cmath>

#include "arrays.h"

#include <weft/kernels/inner/philox.h>

namespace weft {
namespace {

using test::Array;
using test::cpu;
using test::each_isa;

TEST(Random, philox_meets_the_published_vectors) {
  const auto expect = [](PhiloxBlock b, uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3) {
    EXPECT_EQ(b.v[0], v0);
    EXPECT_EQ(b.v[1], v1);
    EXPECT_EQ(b.v[2], v2);
    EXPECT_EQ(b.v[3], v3);
  };
  expect(philox(0, 0, 0, 0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  const uint32_t ones = 0xffffffff;
  expect(philox(ones, ones, ones, ones, ones, ones), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  expect(philox(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0), 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Random, uniform_takes_the_lanes_that_are_promised) {
  const PhiloxKey key{0x123456789abcdef0, 0xfffffffffffffffe};  // the block number crosses 64 bits
  each_isa([&] {
    Context context;
    Array<float> y(Shape{5003});
    cpu().uniform(context, key, 0, 1, y.view());
    for (int64_t i = 0; i < y.numel(); ++i)
      ASSERT_EQ(y[i], unit_float(philox(key.seed, key.offset + static_cast<uint64_t>(i / 4)).v[i % 4])) << i;
    Array<double> d(Shape{2501}, {3});
    cpu().uniform(context, {7, 11}, 0, 1, d.view());
    for (int64_t i = 0; i < d.numel(); ++i) {
      const PhiloxBlock b = philox(7, 11 + static_cast<uint64_t>(i / 2));
      ASSERT_EQ(d[i], unit_double(b.v[i % 2 * 2], b.v[i % 2 * 2 + 1])) << i;
    }
    cpu().uniform(context, {7, 0xfffffffe}, 0, 1, y.view());  // and 32 bits
    ASSERT_EQ(y[9], unit_float(philox(7, 0x100000000).v[1]));
  });
}

TEST(Random, numbers_have_the_same_bits_under_every_instruction_set_and_thread_count) {
  std::vector<char> first;
  each_isa([&] {
    const auto draw = [] {
      Context context;
      Array<float> u(Shape{70'003}), n(Shape{70'003}), dropped(Shape{70'003});
      Array<double> d(Shape{7003});
      Array<Half> h(Shape{7003});
      Array<int64_t> k(Shape{7003});
      cpu().uniform(context, {1, 2}, -3, 7.1, u.view());
      cpu().normal(context, {2, 3}, 0.1, 1.7, n.view());
      cpu().uniform(context, {3, 4}, -3, 7.1, d.view());
      cpu().normal(context, {4, 5}, 0, 1, h.view());
      cpu().random_int(context, {5, 6}, -17, 1001, k.view());
      cpu().dropout(context, {6, 7}, 0.3, n.view(), dropped.view());
      return test::join({u.bytes(), n.bytes(), d.bytes(), h.bytes(), k.bytes(), dropped.bytes()});
    };
    test::expect_same_bits_for_any_thread_count(draw);
    if (first.empty()) first = draw();
    EXPECT_TRUE(draw() == first);
  });
}

TEST(Random, a_strided_view_takes_the_numbers_of_a_dense_one) {
  Context context;
  Array<float> dense(Shape{31, 97}), strided(Shape{31, 97}, {1, 31});
  cpu().normal(context, {9, 0}, 0, 1, dense.view());
  cpu().normal(context, {9, 0}, 0, 1, strided.view());
  for (int64_t i = 0; i < dense.numel(); ++i) ASSERT_EQ(dense[i], strided[i]);
}

TEST(Random, a_short_draw_begins_as_a_long_one) {
  Context context;
  for (int64_t n : {1, 2, 3, 5, 127, 2049}) {
    Array<float> a(Shape{n}), b(Shape{n + 1});
    Array<double> c(Shape{n}), d(Shape{n + 1});
    cpu().normal(context, {9, 5}, 0, 1, a.view());
    cpu().normal(context, {9, 5}, 0, 1, b.view());
    cpu().normal(context, {9, 5}, 0, 1, c.view());
    cpu().normal(context, {9, 5}, 0, 1, d.view());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(a[i], b[i]);
      ASSERT_EQ(c[i], d[i]);
    }
  }
}

template <class T> void check_moments(double slack) {
  Context context;
  const int64_t n = 200'000;
  Array<T> y(Shape{n});
  const auto moment = [&](double about, int power) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::pow(y.at(i) - about, power);
    return sum / static_cast<double>(n);
  };
  cpu().uniform(context, {1, 0}, -1, 3, y.view());
  EXPECT_NEAR(moment(0, 1), 1, 0.02 + slack);
  EXPECT_NEAR(moment(1, 2), 16.0 / 12, 0.02 + slack);
  for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(y.at(i) >= -1 && y.at(i) < 3) << y.at(i);
  cpu().normal(context, {2, 0}, 5, 2, y.view());
  EXPECT_NEAR(moment(0, 1), 5, 0.03 + slack);
  EXPECT_NEAR(moment(5, 2), 4, 0.06 + slack);
  EXPECT_NEAR(moment(5, 3), 0, 0.3 + slack);
  EXPECT_NEAR(moment(5, 4), 48, 2 + slack);
}

TEST(Random, uniform_and_normal_numbers_have_their_moments) {
  check_moments<float>(0);
  check_moments<double>(0);
  check_moments<Half>(0.01);
  check_moments<BFloat16>(0.05);
}

TEST(Random, normal_numbers_follow_the_distribution_function) {
  Context context;
  const int64_t n = 100'000;
  Array<float> y(Shape{n});
  cpu().normal(context, {77, 0}, 0, 1, y.view());
  std::sort(y.data(), y.data() + n);
  double worst = 0;
  for (int64_t i = 0; i < n; ++i)
    worst = std::max(worst, std::fabs(0.5 * std::erfc(-y[i] / std::sqrt(2.0)) -
                                      (static_cast<double>(i) + 0.5) / static_cast<double>(n)));
  // Kolmogorov and Smirnov at one in a hundred; the seed is fixed
  EXPECT_LT(worst, 1.63 / std::sqrt(static_cast<double>(n)));
}

TEST(Random, uniform_never_reaches_the_open_end) {
  Context context;
  Array<float> y(Shape{100'000});
  cpu().uniform(context, {3, 0}, 1e8, 1e8 + 8, y.view());  // one step of float
  for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(y[i], 1e8f);
  Array<BFloat16> b(Shape{100'000});
  cpu().uniform(context, {3, 0}, 0, 1, b.view());
  for (int64_t i = 0; i < b.numel(); ++i) ASSERT_LT(b.at(i), 1.0);
}

TEST(Random, bernoulli_follows_each_probability) {
  Context context;
  Array<float> p(Shape{4, 20'000}, {1, 0}), y(Shape{4, 20'000});
  const double chance[] = {0, 0.25, 0.9, 1};
  for (int r = 0; r < 4; ++r) p.data()[r] = static_cast<float>(chance[r]);
  cpu().bernoulli(context, {5, 0}, p.view(), y.view());
  for (int64_t r = 0; r < 4; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < 20'000; ++i) sum += y[r * 20'000 + i];
    EXPECT_NEAR(sum / 20'000, chance[r], chance[r] == 0 || chance[r] == 1 ? 0 : 0.015);
  }
  Array<double> whole(Shape{4, 20'000});
  Array<double> q(Shape{4, 20'000}, {1, 0});
  for (int r = 0; r < 4; ++r) q.data()[r] = static_cast<float>(chance[r]);
  cpu().bernoulli(context, {5, 0}, q.view(), whole.view());
  for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(whole[i], y[i]);  // the mask does not depend on the dtype
}

TEST(Random, integers_cover_their_range_evenly) {
  Context context;
  Array<int64_t> y(Shape{70'000});
  cpu().random_int(context, {8, 0}, -3, 4, y.view());
  int counts[7] = {};
  for (int64_t i = 0; i < y.numel(); ++i) {
    ASSERT_TRUE(y[i] >= -3 && y[i] < 4);
    ++counts[y[i] + 3];
  }
  for (int c : counts) EXPECT_NEAR(c, 10'000, 400);
  Array<uint8_t> b(Shape{1000});
  cpu().random_int(context, {8, 0}, 0, 256, b.view());
  EXPECT_GT(*std::max_element(b.data(), b.data() + 1000), 200);
}

TEST(Random, dropout_keeps_the_scaled_rest_and_can_be_drawn_again) {
  each_isa([] {
    Context context;
    const Shape sizes{101, 53};
    Array<float> x(sizes, {1, 101}), y(sizes), again(sizes, {60, 1});
    x.fill(2);
    cpu().dropout(context, {4, 9}, 0.25, x.view(), y.view());
    cpu().dropout(context, {4, 9}, 0.25, x.view(), again.view());
    int64_t kept = 0;
    for (int64_t i = 0; i < y.numel(); ++i) {
      ASSERT_EQ(y[i], again[i]);
      const bool keep = unit_float(philox(4, 9 + static_cast<uint64_t>(i / 4)).v[i % 4]) >= 0.25f;
      ASSERT_FLOAT_EQ(y[i], keep ? 2 / 0.75f : 0.0f);
      kept += keep;
    }
    EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(y.numel()), 0.75, 0.03);
    Array<Half> h(sizes), hy(sizes);
    h.fill(2);
    cpu().dropout(context, {4, 9}, 0.25, h.view(), hy.view());
    for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(hy.at(i) != 0, y[i] != 0);
    cpu().dropout(context, {4, 9}, 1, x.view(), x.view());
    for (int64_t i = 0; i < x.numel(); ++i) ASSERT_EQ(x[i], 0.0f);
  });
}

TEST(Random, multinomial_draws_by_weight) {
  Context context;
  Array<float> p(Shape{2, 4});
  const float weights[] = {1, 0, 3, 4, 0, 0, 0, 5};
  for (int i = 0; i < 8; ++i) p[i] = weights[i];
  Array<int64_t> y(Shape{2, 8000});
  cpu().multinomial(context, {3, 0}, true, p.view(), y.view());
  int counts[4] = {};
  for (int i = 0; i < 8000; ++i) {
    ++counts[y[i]];
    ASSERT_EQ(y[8000 + i], 3);
  }
  EXPECT_NEAR(counts[0], 1000, 150);
  EXPECT_EQ(counts[1], 0);
  EXPECT_NEAR(counts[2], 3000, 200);
  EXPECT_NEAR(counts[3], 4000, 200);
}

TEST(Random, multinomial_without_replacement_never_repeats) {
  Context context;
  Array<double> p(Shape{50, 7});
  p.random(1, 0.01, 1);
  Array<int64_t> y(Shape{50, 7});
  cpu().multinomial(context, {3, 0}, false, p.view(), y.view());
  for (int64_t r = 0; r < 50; ++r) {
    int seen = 0;
    for (int64_t i = 0; i < 7; ++i) seen |= 1 << y[r * 7 + i];
    EXPECT_EQ(seen, 127);
  }
}

TEST(Random, multinomial_refuses_bad_weights_before_writing) {
  Context context;
  Array<float> p(Shape{2, 3});
  Array<int64_t> y(Shape{2, 2});
  y.fill(-5);
  for (float bad : {-1.0f, NAN, INFINITY}) {
    p.fill(1);
    p[4] = bad;
    EXPECT_THROW(cpu().multinomial(context, {1, 0}, true, p.view(), y.view()), ValueError);
  }
  p.fill(0);
  EXPECT_THROW(cpu().multinomial(context, {1, 0}, true, p.view(), y.view()), ValueError);
  p[0] = p[3] = 1;
  EXPECT_THROW(cpu().multinomial(context, {1, 0}, false, p.view(), y.view()), ValueError);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(y[i], -5);
}

}  // namespace
}  // namespace weft
