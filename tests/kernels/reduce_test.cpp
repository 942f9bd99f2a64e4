// Reductions, positions of extremes, running sums and sorting against plain loops in double, over dims,
// strides and dtypes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <weft/kernels/cpu_settings.h>

#include "arrays.h"

namespace weft {
namespace {

using test::Array;
using test::cpu;
using test::each_isa;

/// The row-major number in y (sizes with reduced dims 1) of element i of x.
int64_t target_of(int64_t i, const Shape& x, const Shape& y) {
  int64_t at = 0, step = 1;
  for (int d = x.size() - 1; d >= 0; --d) {
    if (y[d] != 1) at += i % x[d] * step;
    step *= y[d];
    i /= x[d];
  }
  return at;
}

double start_of(Reduce op) {
  switch (op) {
    case Reduce::kProd:
    case Reduce::kAll: return 1;
    case Reduce::kMax: return -std::numeric_limits<double>::infinity();
    case Reduce::kMin: return std::numeric_limits<double>::infinity();
    default: return 0;
  }
}
double step_of(Reduce op, double a, double b) {
  switch (op) {
    case Reduce::kSum: return a + b;
    case Reduce::kProd: return a * b;
    case Reduce::kMax: return std::max(a, b);
    case Reduce::kMin: return std::min(a, b);
    case Reduce::kAny: return a != 0 || b != 0;
    case Reduce::kAll: return a != 0 && b != 0;
    case Reduce::kSumAbs: return a + std::fabs(b);
    case Reduce::kSumSquares: return a + b * b;
    case Reduce::kMaxAbs: return std::max(a, std::fabs(b));
  }
  return 0;
}

constexpr Reduce kAllOps[] = {Reduce::kSum,    Reduce::kProd,       Reduce::kMax,
                              Reduce::kMin,    Reduce::kAny,        Reduce::kAll,
                              Reduce::kSumAbs, Reduce::kSumSquares, Reduce::kMaxAbs};

template <class T, class Out>
void check_reduce(Reduce op, const Shape& sizes, const Shape& strides, const Shape& kept) {
  SCOPED_TRACE(str("reduce ", static_cast<int>(op), " of ", sizes, " strides ", strides, " to ", kept, " ",
                   dtype_of<T>));
  Context context;
  Array<T> x(sizes, strides);
  const bool product = op == Reduce::kProd;
  if (std::is_integral_v<T>) x.random(3, product ? 1 : 0, product ? 2.4 : 9);
  else x.random(3, product ? 0.95 : -1, product ? 1.05 : 1.2);
  Array<Out> y(kept);
  View out = y.view();
  if (op == Reduce::kAny || op == Reduce::kAll) out.dtype = kBool;
  cpu().reduce(context, op, x.view(), out);
  std::vector<double> want(static_cast<size_t>(kept.numel()), start_of(op)), count(want.size(), 0);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto at = static_cast<size_t>(target_of(i, sizes, kept));
    want[at] = step_of(op, want[at], x.at(i));
    ++count[at];
  }
  for (int64_t i = 0; i < y.numel(); ++i) {
    const auto k = static_cast<size_t>(i);
    ASSERT_NEAR(
        y.at(i), want[k],
        test::tolerance<Out>(std::is_same_v<Out, double> ? 40 : 4) * std::max(1.0, std::fabs(want[k])))
        << i;
  }
}

template <class T> void check_all_layouts() {
  const std::pair<Shape, Shape> layouts[] = {{{5, 7, 11}, {}},           {{5, 7, 11}, {1, 5, 35}},
                                             {{5, 7, 11}, {160, 2, 14}}, {{3, 1, 409}, {}},
                                             {{409, 3, 1}, {1, 409, 1}}, {{1, 1, 1}, {}}};
  for (const auto& [sizes, strides] : layouts)
    for (int mask = 0; mask < 8; ++mask) {
      Shape kept = sizes;
      for (int d = 0; d < 3; ++d)
        if (mask >> d & 1) kept[d] = 1;
      for (Reduce op : kAllOps) {
        if (op == Reduce::kAny || op == Reduce::kAll) check_reduce<T, uint8_t>(op, sizes, strides, kept);
        else if (std::is_same_v<T, uint8_t>) {
          if (op == Reduce::kSum) check_reduce<T, int64_t>(op, sizes, strides, kept);
        } else if (!(op == Reduce::kProd && std::is_integral_v<T>)) {
          check_reduce<T, T>(op, sizes, strides, kept);
        }
      }
    }
}

TEST(Reduce, every_operation_dim_layout_and_dtype_meets_plain_loops) {
  each_isa([] {
    check_all_layouts<float>();
    check_all_layouts<double>();
    check_all_layouts<Half>();
    check_all_layouts<BFloat16>();
    check_all_layouts<int64_t>();
    check_all_layouts<uint8_t>();
  });
}

TEST(Reduce, narrow_types_meet_plain_loops_over_long_lines_and_wide_rows) {
  const std::pair<Shape, Shape> layouts[] = {{{1, 3, 9001}, {}},
                                             {{2, 9001, 3}, {}},
                                             {{700, 3, 3}, {1, 700, 4200}},
                                             {{3, 2100, 2}, {8400, 2, 1}},
                                             {{2, 9001, 2}, {54006, 6, 2}}};
  each_isa([&] {
    for (const auto& [sizes, strides] : layouts)
      for (int mask = 1; mask < 8; ++mask) {
        Shape kept = sizes;
        for (int d = 0; d < 3; ++d)
          if (mask >> d & 1) kept[d] = 1;
        check_reduce<Half, Half>(Reduce::kMax, sizes, strides, kept);
        check_reduce<BFloat16, BFloat16>(Reduce::kSum, sizes, strides, kept);
        check_reduce<uint8_t, int64_t>(Reduce::kSum, sizes, strides, kept);
        check_reduce<int32_t, int64_t>(Reduce::kSumSquares, sizes, strides, kept);
      }
  });
}

TEST(Reduce, integer_sums_and_products_wrap_around) {
  each_isa([] {
    Context context;
    constexpr int64_t lowest = std::numeric_limits<int64_t>::min(),
                      highest = std::numeric_limits<int64_t>::max();
    Array<int64_t> x(Shape{2, 40}), row(Shape{1, 40}), one(Shape{1, 1}), running(Shape{2, 40});
    for (int64_t i = 0; i < x.numel(); ++i) x[i] = highest;
    cpu().reduce(context, Reduce::kSum, x.view(), one.view());
    EXPECT_EQ(one[0], -80);  // 80 (2^63 - 1)
    cpu().reduce(context, Reduce::kSum, x.view(), row.view());
    EXPECT_EQ(row[39], -2);
    cpu().reduce(context, Reduce::kSumSquares, x.view(), one.view());
    EXPECT_EQ(one[0], 80);
    cpu().reduce(context, Reduce::kProd, x.view(), row.view());
    EXPECT_EQ(row[0], 1);
    cpu().cumulate(context, Reduce::kSum, 1, x.view(), running.view());
    EXPECT_EQ(running[1], -2);
    cpu().cumulate(context, Reduce::kProd, 1, x.view(), running.view());
    EXPECT_EQ(running[1], 1);
    for (int64_t i = 0; i < x.numel(); ++i) x[i] = lowest;
    cpu().reduce(context, Reduce::kSumAbs, x.view(), row.view());
    EXPECT_EQ(row[0], 0);
  });
}

TEST(Reduce, long_sums_are_accurate_and_the_same_for_any_thread_count) {
  each_isa([] {
    test::expect_same_bits_for_any_thread_count([] {
      Context context;
      Array<float> x(Shape{300'007}), y(Shape{1});
      x.random(1, 0, 1);
      cpu().reduce(context, Reduce::kSum, x.view(), y.view());
      double want = 0;
      for (int64_t i = 0; i < x.numel(); ++i) want += x.at(i);
      EXPECT_NEAR(y.at(0), want, 0.02);
      Array<float> columns(Shape{1, 101}), rows(Shape{2970, 1});
      View m = x.view();
      m.sizes = {2970, 101}, m.strides = {101, 1};
      cpu().reduce(context, Reduce::kSum, m, columns.view());
      cpu().reduce(context, Reduce::kSum, m, rows.view());
      return test::join({y.bytes(), columns.bytes(), rows.bytes()});
    });
  });
}

TEST(Reduce, empty_sums_are_zero_and_empty_products_one) {
  Context context;
  Array<float> x(Shape{3, 0}), y(Shape{3, 1});
  cpu().reduce(context, Reduce::kSum, x.view(), y.view());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(y[i], 0.0f);
  cpu().reduce(context, Reduce::kProd, x.view(), y.view());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(y[i], 1.0f);
}

TEST(Reduce, a_nan_wins_every_extreme) {
  each_isa([] {
    Context context;
    Array<float> x(Shape{2, 97}), y(Shape{2, 1});
    x.random(1);
    x[150] = NAN;
    for (Reduce op : {Reduce::kMax, Reduce::kMin, Reduce::kMaxAbs, Reduce::kSum}) {
      cpu().reduce(context, op, x.view(), y.view());
      EXPECT_FALSE(std::isnan(y[0]));
      EXPECT_TRUE(std::isnan(y[1]));
    }
    Array<int64_t> at(Shape{2, 1});
    for (bool largest : {true, false}) {
      cpu().arg_reduce(context, largest, 1, x.view(), y.view(), at.view());
      EXPECT_EQ(at[1], 150 - 97);
    }
  });
}

template <class T> void check_magnitude_of_zeros() {
  Context context;
  for (const int n : {1, 3, 4, 8, 37, 97}) {
    Array<T> x(Shape{2, n}), along(Shape{2, 1}), across(Shape{1, n});
    x.fill(-0.0f);
    for (const Reduce op : {Reduce::kMaxAbs, Reduce::kSumAbs, Reduce::kSumSquares, Reduce::kSum})
      for (Array<T>* y : {&along, &across}) {
        cpu().reduce(context, op, x.view(), y->view());
        for (int64_t i = 0; i < y->numel(); ++i) ASSERT_FALSE(std::signbit(y->at(i))) << n;
      }
  }
}

TEST(Reduce, norms_and_sums_of_negative_zeros_are_positive) {
  each_isa([] {
    check_magnitude_of_zeros<float>();
    check_magnitude_of_zeros<double>();
    check_magnitude_of_zeros<Half>();
    check_magnitude_of_zeros<BFloat16>();
  });
}

template <class T> void check_arg(const Shape& strides) {
  Context context;
  const Shape sizes{5, 17, 3};
  for (int dim = 0; dim < 3; ++dim)
    for (bool largest : {true, false}) {
      Array<T> x(sizes, strides);
      x.random(2, 0, 9);
      for (int64_t i = 0; i < x.numel(); ++i) x[i] = T(static_cast<float>(std::floor(x.at(i))));  // ties
      Shape kept = sizes;
      kept[dim] = 1;
      Array<T> values(kept);
      Array<int64_t> indices(kept);
      cpu().arg_reduce(context, largest, dim, x.view(), values.view(), indices.view());
      View absent;
      Array<int64_t> alone(kept);
      cpu().arg_reduce(context, largest, dim, x.view(), absent, alone.view());
      int64_t inner = 1;
      for (int d = dim + 1; d < 3; ++d) inner *= sizes[d];
      for (int64_t k = 0; k < kept.numel(); ++k) {
        const int64_t base = k / inner * inner * sizes[dim] + k % inner;
        int64_t best = 0;
        for (int64_t i = 1; i < sizes[dim]; ++i) {
          const double a = x.at(base + i * inner), b = x.at(base + best * inner);
          if (largest ? a > b : a < b) best = i;
        }
        ASSERT_EQ(indices[k], best);
        ASSERT_EQ(alone[k], best);
        ASSERT_EQ(values.at(k), x.at(base + best * inner));
      }
    }
}

TEST(Reduce, the_first_of_equal_extremes_wins) {
  each_isa([] {
    for (const Shape& strides : {Shape{}, Shape{1, 5, 85}, Shape{200, 7, 2}}) {
      check_arg<float>(strides);
      check_arg<double>(strides);
      check_arg<Half>(strides);
      check_arg<int64_t>(strides);
      check_arg<uint8_t>(strides);
    }
  });
}

TEST(Reduce, mean_and_variance_take_two_passes) {
  each_isa([] {
    Context context;
    Array<float> x(Shape{3, 501}), mean(Shape{3}), var(Shape{3});
    x.random(1, 9999, 10001);  // the variance is tiny beside the mean
    for (const double correction : {0.0, 1.0, 0.5}) {
      cpu().mean_var(context, correction, x.view(), mean.view(), var.view());
      for (int64_t r = 0; r < 3; ++r) {
        double m = 0, v = 0;
        for (int64_t i = 0; i < 501; ++i) m += x.at(r * 501 + i) / 501;
        for (int64_t i = 0; i < 501; ++i) v += std::pow(x.at(r * 501 + i) - m, 2) / (501 - correction);
        EXPECT_NEAR(mean.at(r), m, 2e-3);
        EXPECT_NEAR(var.at(r), v, 1e-5);
      }
    }
  });
}

/// Rows of n numbers far from zero, side by side or one after the other, and rows of equal numbers.
template <class T> void check_moments(int64_t n, bool side_by_side) {
  constexpr int64_t kRows = 70;
  const Shape strides = side_by_side ? Shape{1, kRows} : Shape{n, 1};
  Context context;
  Array<T> x(Shape{kRows, n}, strides);
  Array<double> mean(Shape{kRows}), var(Shape{kRows});
  x.random(1, 999, 1001);
  for (int64_t i = 0; i < n; ++i) x[3 * n + i] = T(0.1);
  cpu().mean_var(context, 1, x.view(), mean.view(), var.view());
  for (int64_t r = 0; r < kRows; ++r) {
    double m = 0, v = 0;
    for (int64_t i = 0; i < n; ++i) m += (x.at(r * n + i) - x.at(r * n)) / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i)
      v += std::pow(x.at(r * n + i) - x.at(r * n) - m, 2) / static_cast<double>(n - 1);
    ASSERT_NEAR(mean.at(r), x.at(r * n) + m, 1e-12 * 1000);
    ASSERT_NEAR(var.at(r), v, 1e-12 * v) << "row " << r << " of " << n;
    if (r == 3) {
      ASSERT_EQ(var.at(r), 0) << n;
    }
  }
}

TEST(Reduce, a_variance_is_right_for_every_length_and_0_for_equal_numbers) {
  each_isa([] {
    for (const int64_t n : {2, 31, 64, 65, 1000, 4097, 17001})
      for (const bool side_by_side : {false, true}) {
        check_moments<float>(n, side_by_side);
        check_moments<double>(n, side_by_side);
      }
  });
}

TEST(Reduce, moments_of_long_rows_side_by_side_are_the_same_with_any_number_of_threads) {
  const int before = num_threads();
  each_isa([] {
    Context context;
    constexpr int64_t kRows = 5, kLength = 30'011;
    Array<float> x(Shape{kRows, kLength}, Shape{1, kRows});
    x.random(1, 999, 1001);
    std::vector<double> found[2];
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      Array<double> mean(Shape{kRows}), var(Shape{kRows});
      cpu().mean_var(context, 1, x.view(), mean.view(), var.view());
      for (int64_t r = 0; r < kRows; ++r) {
        found[threads == 3].push_back(mean.at(r));
        found[threads == 3].push_back(var.at(r));
      }
    }
    EXPECT_EQ(found[0], found[1]);
  });
  set_num_threads(before);
}

template <class T> void check_cumulate() {
  Context context;
  const Shape sizes{3, 29, 5};
  for (int dim = 0; dim < 3; ++dim)
    for (Reduce op : {Reduce::kSum, Reduce::kProd}) {
      Array<T> x(sizes, {1, 3, 87}), y(sizes);
      if (std::is_integral_v<T>) x.random(1, 1, 2.2);
      else x.random(1, 0.9, 1.1);
      cpu().cumulate(context, op, dim, x.view(), y.view());
      int64_t inner = 1;
      for (int d = dim + 1; d < 3; ++d) inner *= sizes[d];
      for (int64_t k = 0; k < x.numel() / sizes[dim]; ++k) {
        double want = op == Reduce::kSum ? 0 : 1;
        for (int64_t i = 0; i < sizes[dim]; ++i) {
          const int64_t at = k / inner * inner * sizes[dim] + k % inner + i * inner;
          want = op == Reduce::kSum ? want + x.at(at) : want * x.at(at);
          ASSERT_NEAR(y.at(at), want, test::tolerance<T>(4) * std::max(1.0, want));
        }
      }
    }
}

TEST(Reduce, running_sums_and_products_meet_plain_loops) {
  check_cumulate<float>();
  check_cumulate<double>();
  check_cumulate<Half>();
  check_cumulate<int64_t>();
}

template <class T> void check_sort(int64_t n, int64_t keep, bool descending, double high) {
  SCOPED_TRACE(str("sort ", n, " keep ", keep, descending ? " descending " : " ascending ", dtype_of<T>));
  Context context;
  Array<T> x(Shape{3, n}, {1, 3}), values(Shape{3, keep});
  Array<int64_t> indices(Shape{3, keep}, {1, 3});
  x.random(4, 0, high);
  if constexpr (!std::is_integral_v<T>) {
    for (int64_t i = 0; i < x.numel(); ++i) x[i] = T(static_cast<float>(std::floor(x.at(i))));
    if (n > 20) x[n + 7] = x[n + 11] = T(NAN);
  }
  cpu().sort(context, descending, x.view(), values.view(), indices.view());
  for (int64_t r = 0; r < 3; ++r) {
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      const double u = x.at(r * n + a), v = x.at(r * n + b);
      if (std::isnan(u) || std::isnan(v))
        return descending ? std::isnan(u) && !std::isnan(v) : !std::isnan(u) && std::isnan(v);
      return descending ? u > v : u < v;
    });
    for (int64_t i = 0; i < keep; ++i) {
      const int64_t want = order[static_cast<size_t>(i)];
      ASSERT_EQ(indices[r * keep + i], want) << r << " " << i;
      if (!std::isnan(x.at(r * n + want))) ASSERT_EQ(values.at(r * keep + i), x.at(r * n + want));
      else ASSERT_TRUE(std::isnan(values.at(r * keep + i)));
    }
  }
}

template <class T> void check_median(int64_t n, double high, bool with_nan) {
  SCOPED_TRACE(str("median of ", n, " below ", high, " ", dtype_of<T>));
  Context context;
  Array<T> x(Shape{3, n}, {1, 3}), values(Shape{3, n});
  Array<int64_t> order(Shape{3, n}), middle(Shape{3, 1});
  x.random(5, std::is_signed_v<T> ? -high : 0, high);
  if constexpr (!std::is_integral_v<T>) {
    for (int64_t i = 0; i < x.numel(); ++i) x[i] = T(static_cast<float>(std::floor(x.at(i))));
    if (with_nan) x[n + n / 2] = x[n + n - 1] = T(NAN);  // of row 1
  }
  cpu().sort(context, false, x.view(), values.view(), order.view());
  EXPECT_TRUE(cpu().median(context, x.view(), middle.view()));
  for (int64_t r = 0; r < 3; ++r) {
    const bool nan = !std::is_integral_v<T> && with_nan && r == 1;
    EXPECT_EQ(middle[r], nan ? n / 2 : order[r * n + (n - 1) / 2]) << r;
  }
}

TEST(Reduce, a_median_is_the_middle_of_the_sorted_row) {
  each_isa([] {
    for (const int64_t n : {1, 2, 3, 32, 33, 34, 257, 1000, 4001})
      for (const bool with_nan : {false, true}) {
        check_median<float>(n, 5, with_nan);
        check_median<float>(n, 1e6, with_nan);
        check_median<double>(n, 1e6, with_nan);
        check_median<Half>(n, 50, with_nan);
        check_median<int64_t>(n, 1e6, with_nan);
        check_median<int32_t>(n, 3, with_nan);
        check_median<uint8_t>(n, 200, with_nan);
      }
  });
}

TEST(Reduce, sorting_is_stable_and_top_k_is_its_beginning) {
  each_isa([] {
    for (bool descending : {false, true})
      for (const auto& [n, keep] : {std::pair<int64_t, int64_t>{1, 1},
                                    {2, 1},
                                    {37, 37},
                                    {1000, 1000},
                                    {1000, 5},
                                    {3001, 1},
                                    {3001, 64},
                                    {500, 499}}) {
        check_sort<float>(n, keep, descending, 50);
        check_sort<float>(n, keep, descending, 1e6);
        check_sort<double>(n, keep, descending, 1e6);
        check_sort<Half>(n, keep, descending, 50);
        check_sort<int64_t>(n, keep, descending, 1e6);
        check_sort<uint8_t>(n, keep, descending, 200);
      }
  });
}

}  // namespace
}  // namespace weft
