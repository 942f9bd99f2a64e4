// Softmax, logsumexp, cross entropy and layer norm against formulas in double. Row lengths lie around the
// vector widths; rows are strided, converted or have extreme values. Errors leave everything as it was.
#include "arrays.h"

#include <limits>
#include <type_traits>

#include <weft/kernels/inner/convert.h>

namespace weft::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<double> row_of(auto& x, int64_t r, int64_t count) {
  std::vector<double> row;
  for (int64_t k = 0; k < count; ++k) row.push_back(x.at(r * count + k));
  return row;
}
double lse_of(const std::vector<double>& row) {
  double top = -kInf, sum = 0;
  for (double v : row) top = std::max(top, v);
  for (double v : row) sum += std::exp(v - top);
  return top + std::log(sum);
}

template <class T> void check_softmax(int64_t rows, int64_t count, const Shape& strides) {
  SCOPED_TRACE(str(dtype_of<T>, " [", rows, ", ", count, "] strides ", strides));
  Array<T> x({rows, count}, strides), y({rows, count}, strides), log_y({rows, count}), lse({rows});
  Array<T> dy({rows, count}, strides), dx({rows, count}), log_dx({rows, count}, strides);
  x.random(1, -8, 8), dy.random(2);
  Context c;
  cpu().softmax(c, false, x.view(), y.view());
  cpu().softmax(c, true, x.view(), log_y.view());
  cpu().logsumexp(c, x.view(), lse.view());
  cpu().softmax_backward(c, false, y.view(), dy.view(), dx.view());
  cpu().softmax_backward(c, true, log_y.view(), dy.view(), log_dx.view());
  const double close = tolerance<T>(40);
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> row = row_of(x, r, count);
    const double whole = lse_of(row);
    ASSERT_NEAR(lse.at(r), whole, close * 4);
    double along = 0, total = 0;
    for (int64_t k = 0; k < count; ++k)
      along += y.at(r * count + k) * dy.at(r * count + k), total += dy.at(r * count + k);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t i = r * count + k;
      const double p = std::exp(row[static_cast<size_t>(k)] - whole);
      ASSERT_NEAR(y.at(i), p, close) << i;
      ASSERT_NEAR(log_y.at(i), row[static_cast<size_t>(k)] - whole, close * 8) << i;
      ASSERT_NEAR(dx.at(i), y.at(i) * (dy.at(i) - along), close) << i;
      ASSERT_NEAR(log_dx.at(i), dy.at(i) - std::exp(log_y.at(i)) * total, close * (8 + std::abs(total))) << i;
    }
  }
}

TEST(Rows, softmax_and_its_backward_match_the_formulas) {
  each_isa([] {
    for (int64_t count : {1, 2, 3, 7, 15, 16, 17, 33, 67, 131, 4099}) {
      check_softmax<float>(3, count, {});
      check_softmax<double>(3, count, {});
    }
    check_softmax<float>(5, 7, {1, 5});  // columns apart
    check_softmax<double>(5, 7, {31, 3});
    check_softmax<Half>(3, 17, {});
    check_softmax<BFloat16>(3, 17, {1, 3});
    check_softmax<float>(0, 5, {});
  });
}

TEST(Rows, softmax_keeps_its_shape_under_a_large_offset_and_infinities) {
  each_isa([] {
    Array<float> x({4, 3}), y({4, 3}), lse({4});
    const float inf = std::numeric_limits<float>::infinity();
    const float values[] = {1000, 1001, 1002, -1000, -1001, -1002, -inf, 0, 0, -inf, -inf, -inf};
    for (int64_t i = 0; i < 12; ++i) x[i] = values[i];
    Context c;
    cpu().softmax(c, false, x.view(), y.view());
    cpu().logsumexp(c, x.view(), lse.view());
    EXPECT_NEAR(y.at(2), 0.6652409557748219, 1e-6);
    EXPECT_NEAR(y.at(3), 0.6652409557748219, 1e-6);
    EXPECT_EQ(y.at(6), 0);
    EXPECT_EQ(y.at(7), 0.5);
    EXPECT_TRUE(std::isnan(y.at(9)));
    EXPECT_NEAR(lse.at(0), 1002.4076059644443, 1e-3);
    EXPECT_EQ(lse.at(3), -kInf);
    x[1] = inf;
    cpu().logsumexp(c, x.view(), lse.view());
    EXPECT_EQ(lse.at(0), kInf);
    x[4] = std::numeric_limits<float>::quiet_NaN();
    cpu().logsumexp(c, x.view(), lse.view());
    EXPECT_TRUE(std::isnan(lse.at(1)));
  });
}

TEST(Rows, a_row_that_rises_block_after_block_sums_right) {
  each_isa([] {
    Array<float> x({1, 9001}), lse({1});
    for (int64_t k = 0; k < 9001; ++k) x[k] = static_cast<float>(k) * 0.01f;
    Context c;
    cpu().logsumexp(c, x.view(), lse.view());
    EXPECT_NEAR(lse.at(0), lse_of(row_of(x, 0, 9001)), 1e-4);
  });
}

template <class T> void check_large_numbers(double offset) {
  SCOPED_TRACE(str(dtype_of<T>, " from ", offset));
  constexpr int64_t kRows = 2, kCount = 37;
  Array<T> x({kRows, kCount}), y({kRows, kCount}), dx({kRows, kCount}), loss({kRows}), g({kRows});
  Array<double> exact({kRows, kCount});
  Array<int64_t> target({kRows});
  for (int64_t i = 0; i < kRows * kCount; ++i) {
    x[i] = kernels::convert<T>(offset + static_cast<double>(i * 7 % 13) - 6);
    exact[i] = x.at(i) - offset;
  }
  target[0] = 3, target[1] = 11, g.fill(1);
  using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
  Array<C> log_sums({kRows, 2}, {1, kRows});
  Context c;
  const double close = tolerance<T>(100);
  cpu().softmax(c, true, x.view(), y.view());
  for (int64_t i = 0; i < kRows * kCount; ++i)
    ASSERT_NEAR(y.at(i), exact.at(i) - lse_of(row_of(exact, i / kCount, kCount)), close * 8) << i;
  for (const double smoothing : {0.0, 0.25}) {
    cpu().cross_entropy(c, x.view(), target.view(), {}, -1, smoothing, loss.view(), log_sums.view());
    cpu().cross_entropy_backward(c, x.view(), log_sums.view(), target.view(), {}, -1, smoothing, g.view(),
                                 dx.view());
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<double> row = row_of(exact, r, kCount);
      double want = 0;
      for (int64_t k = 0; k < kCount; ++k) {
        const double share = (k == target[r] ? 1 - smoothing : 0) + smoothing / kCount;
        const double minus_log = lse_of(row) - row[static_cast<size_t>(k)];
        want += share * minus_log;
        ASSERT_NEAR(dx.at(r * kCount + k), std::exp(-minus_log) - share, close) << r << " " << k;
      }
      ASSERT_NEAR(loss.at(r), want, close * 8) << smoothing;
    }
  }
}

TEST(Rows, large_numbers_keep_the_digits_of_their_differences) {
  each_isa([] {
    for (const double sign : {1.0, -1.0}) {
      check_large_numbers<float>(sign * 1e6);
      check_large_numbers<double>(sign * 1e12);
      check_large_numbers<Half>(sign * 2000);
      check_large_numbers<BFloat16>(sign * 128);
    }
  });
}

struct Entropy {
  double smoothing = 0;
  bool weighted = false;
  int64_t ignore = -100;
  Shape strides = {};
};

template <class T> void check_cross_entropy(int64_t rows, int64_t count, const Entropy& e) {
  SCOPED_TRACE(str(dtype_of<T>, " [", rows, ", ", count, "] smoothing ", e.smoothing, " weighted ",
                   e.weighted, " ignore ", e.ignore));
  Array<T> x({rows, count}, e.strides), weight({count}), loss({rows}), g({rows}),
      dx({rows, count}, e.strides);
  Array<std::conditional_t<std::is_same_v<T, double>, double, float>> log_sums({rows, 2});
  Array<int64_t> target({rows}, {2});
  x.random(1, -6, 6), weight.random(2, 0.5, 2), g.random(3), target.random(4, 0, static_cast<double>(count));
  if (rows > 2 && e.ignore < 0) target[1] = e.ignore;
  const View w = e.weighted ? weight.view() : View{};
  Context c;
  cpu().cross_entropy(c, x.view(), target.view(), w, e.ignore, e.smoothing, loss.view(), log_sums.view());
  cpu().cross_entropy_backward(c, x.view(), log_sums.view(), target.view(), w, e.ignore, e.smoothing,
                               g.view(), dx.view());
  Array<T> loss_of_both({rows}), dx_of_both({rows, count}, e.strides);
  Array<std::conditional_t<std::is_same_v<T, double>, double, float>> sums_of_both({rows, 2});
  const bool both = cpu().cross_entropy_both(c, x.view(), target.view(), w, e.ignore, e.smoothing, g.view(),
                                             loss_of_both.view(), sums_of_both.view(), dx_of_both.view());
  ASSERT_EQ(both, !is_half(dtype_of<T>));
  const double close = tolerance<T>(100);
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> row = row_of(x, r, count);
    const double whole = lse_of(row);
    const int64_t t = target[r];
    if (both) {
      ASSERT_NEAR(loss_of_both.at(r), loss.at(r), close) << r;
      ASSERT_EQ(sums_of_both.at(2 * r), log_sums.at(2 * r)) << r;
      ASSERT_NEAR(sums_of_both.at(2 * r + 1), log_sums.at(2 * r + 1), close) << r;
    }
    const auto weight_of = [&](int64_t k) { return e.weighted ? weight.at(k) : 1.0; };
    double want = 0, total = 0;
    if (t != e.ignore) {
      want = (1 - e.smoothing) * weight_of(t) * (whole - row[static_cast<size_t>(t)]);
      for (int64_t k = 0; k < count; ++k) {
        want +=
            e.smoothing / static_cast<double>(count) * weight_of(k) * (whole - row[static_cast<size_t>(k)]);
        total += e.smoothing / static_cast<double>(count) * weight_of(k);
      }
      total += (1 - e.smoothing) * weight_of(t);
    }
    ASSERT_NEAR(loss.at(r), want, close * (4 + std::abs(want))) << r;
    for (int64_t k = 0; k < count; ++k) {
      double d = total * std::exp(row[static_cast<size_t>(k)] - whole);
      if (t != e.ignore) d -= e.smoothing / static_cast<double>(count) * weight_of(k);
      if (t == k) d -= (1 - e.smoothing) * weight_of(k);
      if (t == e.ignore) d = 0;
      ASSERT_NEAR(dx.at(r * count + k), g.at(r) * d, close) << r << " " << k;
      if (both) {
        ASSERT_NEAR(dx_of_both.at(r * count + k), g.at(r) * d, close) << r << " " << k;
      }
    }
  }
}

TEST(Rows, cross_entropy_and_its_backward_match_the_formulas) {
  each_isa([] {
    for (int64_t count : {1, 2, 5, 16, 37, 2053, 4097})
      for (double smoothing : {0.0, 0.1})
        for (bool weighted : {false, true}) {
          check_cross_entropy<float>(5, count, {smoothing, weighted});
          check_cross_entropy<double>(5, count, {smoothing, weighted, 0});
        }
    check_cross_entropy<float>(5, 7, {0.1, true, -100, {1, 5}});
    check_cross_entropy<Half>(3, 11, {0.1, true});
    check_cross_entropy<BFloat16>(3, 11, {});
    check_cross_entropy<float>(0, 3, {});
  });
}

TEST(Rows, cross_entropy_takes_one_gradient_for_all_rows) {
  Array<float> x({3, 5}), loss({3}), log_sums({3, 2}), g({3}, {0}), dx({3, 5});
  Array<int64_t> target({3});
  x.random(1), g.fill(1.0 / 3), target.fill(2);
  Context c;
  cpu().cross_entropy(c, x.view(), target.view(), {}, -1, 0, loss.view(), log_sums.view());
  cpu().cross_entropy_backward(c, x.view(), log_sums.view(), target.view(), {}, -1, 0, g.view(), dx.view());
  for (int64_t r = 0; r < 3; ++r) {
    double sum = 0;
    for (int64_t k = 0; k < 5; ++k) sum += dx.at(r * 5 + k);
    EXPECT_NEAR(sum, 0, 1e-6);
    EXPECT_NEAR(dx.at(r * 5 + 2),
                (std::exp(x.at(r * 5 + 2) - log_sums.at(2 * r) - log_sums.at(2 * r + 1)) - 1) / 3, 1e-6);
  }
}

TEST(Rows, a_target_out_of_range_is_named_and_nothing_is_written) {
  for (int64_t bad : {-1, 5, 7}) {
    Array<float> x({3, 5}), loss({3}), log_sums({3, 2}), dx({3, 5});
    Array<int64_t> target({3});
    x.random(1), loss.fill(4), log_sums.fill(5), dx.fill(6), target.fill(1);
    target[2] = bad;
    Context c;
    try {
      cpu().cross_entropy(c, x.view(), target.view(), {}, -100, 0, loss.view(), log_sums.view());
      ADD_FAILURE() << "no error for target " << bad;
    } catch (const IndexError& e) {
      EXPECT_EQ(std::string(e.what()), str("target ", bad, " in row 2 is not in [0, 5)"));
    }
    EXPECT_THROW(cpu().cross_entropy_backward(c, x.view(), log_sums.view(), target.view(), {}, -100, 0,
                                              loss.view(), dx.view()),
                 IndexError);
    EXPECT_THROW(cpu().cross_entropy_both(c, x.view(), target.view(), {}, -100, 0, loss.view(), loss.view(),
                                          log_sums.view(), dx.view()),
                 IndexError);
    for (int64_t r = 0; r < 3; ++r) {
      EXPECT_EQ(loss.at(r), 4);
      EXPECT_EQ(log_sums.at(r), 5);
      EXPECT_EQ(dx.at(r), 6);
    }
  }
}

template <class T>
void check_layer_norm(int64_t rows, int64_t count, bool weighted, bool biased, const Shape& strides) {
  SCOPED_TRACE(str(dtype_of<T>, " [", rows, ", ", count, "] weight ", weighted, " bias ", biased));
  Array<T> x({rows, count}, strides), y({rows, count}, strides), weight({count}), bias({count}), mean({rows}),
      rstd({rows});
  Array<T> dy({rows, count}), dx({rows, count}, strides), dweight({count}), dbias({count});
  x.random(1, -2, 3), weight.random(2, 0.5, 2), bias.random(3), dy.random(4);
  const View w = weighted ? weight.view() : View{}, b = biased ? bias.view() : View{};
  Context c;
  cpu().layer_norm(c, x.view(), w, b, 1e-3, y.view(), mean.view(), rstd.view());
  cpu().layer_norm_backward(c, x.view(), w, mean.view(), rstd.view(), dy.view(), dx.view(),
                            weighted ? dweight.view() : View{}, biased ? dbias.view() : View{});
  const double close = tolerance<T>(60), n = static_cast<double>(count);
  std::vector<double> want_weight(static_cast<size_t>(count)), want_bias(static_cast<size_t>(count));
  for (int64_t r = 0; r < rows; ++r) {
    double m = 0, v = 0, average = 0, along = 0;
    for (int64_t k = 0; k < count; ++k) m += x.at(r * count + k) / n;
    for (int64_t k = 0; k < count; ++k) v += (x.at(r * count + k) - m) * (x.at(r * count + k) - m) / n;
    const double s = 1 / std::sqrt(v + 1e-3);
    ASSERT_NEAR(mean.at(r), m, close);
    ASSERT_NEAR(rstd.at(r), s, close * (1 + s));
    const auto normal = [&](int64_t k) { return (x.at(r * count + k) - m) * s; };
    const auto grad = [&](int64_t k) { return dy.at(r * count + k) * (weighted ? weight.at(k) : 1); };
    for (int64_t k = 0; k < count; ++k) average += grad(k) / n, along += grad(k) * normal(k) / n;
    for (int64_t k = 0; k < count; ++k) {
      ASSERT_NEAR(y.at(r * count + k), normal(k) * (weighted ? weight.at(k) : 1) + (biased ? bias.at(k) : 0),
                  close * 4 * (1 + s));
      ASSERT_NEAR(dx.at(r * count + k), s * (grad(k) - average - normal(k) * along), close * 4 * (1 + s * s));
      want_weight[static_cast<size_t>(k)] += dy.at(r * count + k) * normal(k);
      want_bias[static_cast<size_t>(k)] += dy.at(r * count + k);
    }
  }
  for (int64_t k = 0; k < count; ++k) {
    if (weighted) {
      ASSERT_NEAR(dweight.at(k), want_weight[static_cast<size_t>(k)], close * 8 * static_cast<double>(rows));
    }
    if (biased) {
      ASSERT_NEAR(dbias.at(k), want_bias[static_cast<size_t>(k)], close * static_cast<double>(rows));
    }
  }
}

TEST(Rows, layer_norm_and_its_backward_match_the_formulas) {
  each_isa([] {
    for (int64_t count : {2, 5, 16, 37, 259})
      for (int mode = 0; mode < 4; ++mode) {
        check_layer_norm<float>(7, count, (mode & 1) != 0, (mode & 2) != 0, {});
        check_layer_norm<double>(7, count, (mode & 1) != 0, (mode & 2) != 0, {1, 7});
      }
    check_layer_norm<float>(701, 101, true, true, {});  // several parts of rows
    check_layer_norm<Half>(3, 19, true, true, {});
    check_layer_norm<float>(0, 5, true, true, {});
  });
}

TEST(Rows, have_the_same_bits_for_any_thread_count) {
  each_isa([] {
    expect_same_bits_for_any_thread_count([] {
      Array<float> x({211, 307}), y({211, 307}), dx({211, 307}), loss({211}), log_sums({211, 2}), rstd({211}),
          weight({307}), dweight({307}), dbias({307});
      Array<int64_t> target({211});
      x.random(1), weight.random(2), target.random(3, 0, 307);
      Context c;
      std::vector<char> all;
      cpu().softmax(c, false, x.view(), y.view());
      all = y.bytes();
      cpu().cross_entropy(c, x.view(), target.view(), weight.view(), -1, 0.1, loss.view(), log_sums.view());
      cpu().cross_entropy_backward(c, x.view(), log_sums.view(), target.view(), weight.view(), -1, 0.1,
                                   loss.view(), dx.view());
      all = join({all, loss.bytes(), log_sums.bytes(), dx.bytes()});
      cpu().layer_norm(c, x.view(), weight.view(), {}, 1e-5, y.view(), loss.view(), rstd.view());
      all = join({all, y.bytes()});
      cpu().layer_norm_backward(c, x.view(), weight.view(), loss.view(), rstd.view(), x.view(), dx.view(),
                                dweight.view(), dbias.view());
      return join({all, dx.bytes(), dweight.bytes(), dbias.bytes()});
    });
  });
}

}  // namespace
}  // namespace weft::test
