// Matrix products against plain loops in double: sizes around the tile edges, every stride pattern, both
// libraries, every dtype.
#include "arrays.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <set>
#include <thread>

#include <weft/kernels/cpu/autotune.h>
#include <weft/kernels/cpu/gemm.h>

namespace weft::test {
namespace {

using kernels::GemmEngine;

void each_engine(const std::function<void()>& f) {
  for (GemmEngine engine :
       {GemmEngine::kAuto, GemmEngine::kTile, GemmEngine::kEigen, GemmEngine::kOnednn, GemmEngine::kMkl}) {
    if (engine == GemmEngine::kOnednn && !kernels::has_onednn()) continue;
    if (engine == GemmEngine::kMkl && !kernels::mkl_missing().empty()) continue;
    kernels::set_gemm_engine(engine);
    SCOPED_TRACE("engine " + std::to_string(static_cast<int>(engine)));
    f();
  }
  kernels::set_gemm_engine(GemmEngine::kAuto);
}

struct Case {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1, beta = 0;
  bool bias = false, transpose_c = false;
  int64_t gap = 1;  // distance of neighbours in all three matrices
};

Shape strides_of(int64_t rows, int64_t columns, bool transposed, int64_t gap) {
  return transposed ? Shape{gap, rows * gap} : Shape{columns * gap, gap};
}

template <class T> void check(const Case& c) {
  SCOPED_TRACE(str("[", c.m, ", ", c.k, "] x [", c.k, ", ", c.n, "] ta ", c.transpose_a, " tb ",
                   c.transpose_b, " alpha ", c.alpha, " beta ", c.beta, " bias ", c.bias, " tc ",
                   c.transpose_c, " gap ", c.gap));
  Array<T> a({c.m, c.k}, strides_of(c.m, c.k, c.transpose_a, c.gap)),
      b({c.k, c.n}, strides_of(c.k, c.n, c.transpose_b, c.gap));
  Array<T> y({c.m, c.n}, strides_of(c.m, c.n, c.transpose_c, c.gap)), bias({c.n}, {c.gap});
  a.random(1), b.random(2), bias.random(4);
  const auto fill_y = [&] {
    y.random(3);
    if (c.beta == 0) y.fill(std::numeric_limits<double>::quiet_NaN());  // must not be read
  };
  fill_y();
  std::vector<double> want(static_cast<size_t>(c.m * c.n)), right(static_cast<size_t>(c.k * c.n));
  for (int64_t i = 0; i < c.k * c.n; ++i) right[static_cast<size_t>(i)] = b.at(i);
  for (int64_t i = 0; i < c.m; ++i) {
    double* row = want.data() + i * c.n;
    for (int64_t p = 0; p < c.k; ++p) {
      const double x = c.alpha * a.at(i * c.k + p);
      for (int64_t j = 0; j < c.n; ++j) row[j] += x * right[static_cast<size_t>(p * c.n + j)];
    }
    for (int64_t j = 0; j < c.n; ++j)
      row[j] += (c.beta == 0 ? 0 : c.beta * y.at(i * c.n + j)) + (c.bias ? bias.at(j) : 0);
  }
  Context context;
  const auto product = [&](bool relu) {
    cpu().matmul(context, c.alpha, a.view(), b.view(), c.beta, c.bias ? bias.view() : View{}, y.view(), relu);
  };
  product(false);
  double worst = 0;
  for (int64_t i = 0; i < c.m * c.n; ++i) {
    const double error = std::abs(y.at(i) - want[static_cast<size_t>(i)]);
    worst = error > worst || std::isnan(error) ? error : worst;
    if (std::isnan(worst)) break;
  }
  EXPECT_LE(worst, tolerance<T>(c.k) + (is_half(dtype_of<T>) ? 0.02 : 0));

  std::vector<double> positive;
  for (int64_t i = 0; i < c.m * c.n; ++i) positive.push_back(std::max(y.at(i), 0.0));
  fill_y();
  product(true);
  for (int64_t i = 0; i < c.m * c.n; ++i) ASSERT_EQ(y.at(i), positive[static_cast<size_t>(i)]) << i;
}

TEST(Gemm, a_positive_part_keeps_nan_and_has_no_negative_zero) {
  each_isa([] {
    each_engine([] {
      Array<float> a({64, 64}), b({64, 64}), c({64, 64});
      a.fill(-1), b.fill(0.5);
      a.data()[0] = std::numeric_limits<float>::quiet_NaN();   // of row 0
      for (int64_t k = 64; k < 128; ++k) a.data()[k] = -0.0f;  // row 1
      Context context;
      cpu().matmul(context, 1, a.view(), b.view(), 0, {}, c.view(), true);
      for (int64_t j = 0; j < 64; ++j) {
        ASSERT_TRUE(std::isnan(c.at(j)));
        ASSERT_FALSE(std::signbit(c.at(64 + j)));
        ASSERT_EQ(c.at(128 + j), 0);
      }
    });
  });
}

TEST(Gemm, matches_a_double_loop_around_the_tile_edges) {
  each_isa([] {
    each_engine([] {
      for (int64_t m : {1, 2, 5, 11, 13, 29})
        for (int64_t n : {1, 3, 7, 17, 31, 67})
          for (int64_t k : {1, 2, 19, 61})
            for (int t = 0; t < 4; ++t) {
              check<float>({m, n, k, (t & 1) != 0, (t & 2) != 0});
              check<double>({m, n, k, (t & 1) != 0, (t & 2) != 0});
            }
    });
  });
}

TEST(Gemm, matches_a_double_loop_over_several_blocks_and_tasks) {
  each_isa([] {
    each_engine([] {
      for (int t = 0; t < 4; ++t) {
        check<float>({251, 83, 451, (t & 1) != 0, (t & 2) != 0});
        check<float>({67, 83, 451, (t & 1) != 0, (t & 2) != 0, 0.5, 2, true});
        check<float>({17, 1031, 67, (t & 1) != 0, (t & 2) != 0, 0.5, 2, true});
        check<double>({241, 47, 407, (t & 1) != 0, (t & 2) != 0, -1, 1, true});
      }
    });
  });
}

TEST(Gemm, matches_a_double_loop_in_every_class_of_the_table_of_engines) {
  kernels::set_gemm_engine(GemmEngine::kAuto);
  each_isa([] {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 96}, {300, 200}, {150, 700}, {1100, 250}})
      for (int64_t m : {1, 4, 13, 30, 60, 128, 530})
        for (int t = 0; t < 4; ++t)
          if (m * n * k < 30'000'000) check<float>({m, n, k, (t & 1) != 0, (t & 2) != 0, 1, 0, t == 2});
  });
}

TEST(Gemm, applies_alpha_beta_and_bias_to_every_stride_pattern) {
  each_isa([] {
    each_engine([] {
      check<float>({33, 243, 22, false, true, 0, 0});  // some library reads c here
      check<float>({33, 243, 22, false, true, 0, 0.5, true});
      for (int t = 0; t < 8; ++t)
        for (int64_t gap : {1, 2})
          for (bool bias : {false, true}) {
            check<float>({13, 37, 23, (t & 1) != 0, (t & 2) != 0, 0.5, -1.5, bias, (t & 4) != 0, gap});
            check<double>({7, 5, 3, (t & 1) != 0, (t & 2) != 0, 2, 0, bias, (t & 4) != 0, gap});
            check<float>({1, 29, 41, (t & 1) != 0, (t & 2) != 0, 1, 1, bias, (t & 4) != 0, gap});
            check<float>({29, 1, 41, (t & 1) != 0, (t & 2) != 0, 1, 1, bias, (t & 4) != 0, gap});
          }
    });
  });
}

TEST(Gemm, an_empty_sum_leaves_beta_c_plus_bias) {
  each_isa([] {
    each_engine([] {
      for (bool bias : {false, true}) {
        check<float>({5, 37, 0, false, false, 1, 0, bias});
        check<float>({31, 7, 0, false, true, 3, 0.5, bias});
        check<double>({2, 3, 0, true, false, 1, 2, bias});
      }
      check<float>({0, 3, 5});
      check<float>({3, 0, 5});
    });
  });
}

TEST(Gemm, takes_vectors_of_any_stride) {
  each_isa([] {
    each_engine([] {
      for (int64_t gap_a : {1, 3})
        for (int64_t gap_b : {1, 2})
          for (int64_t gap_c : {1, 5}) {
            Array<float> a({29, 41}, {41 * gap_a, gap_a}), b({41, 1}, {gap_b, 1}), c({29, 1}, {gap_c, 1});
            a.random(1), b.random(2);
            Context context;
            cpu().matmul(context, 1, a.view(), b.view(), 0, {}, c.view());
            for (int64_t i = 0; i < 29; ++i) {
              double sum = 0;
              for (int64_t p = 0; p < 41; ++p) sum += a.at(i * 41 + p) * b.at(p);
              ASSERT_NEAR(c.at(i), sum, tolerance<float>(41)) << i << " gaps " << gap_a << gap_b << gap_c;
            }
          }
    });
  });
}

TEST(Gemm, half_types_compute_in_float) {
  each_isa([] {
    for (int t = 0; t < 4; ++t) {
      check<Half>({11, 19, 23, (t & 1) != 0, (t & 2) != 0, 1, 0, true});
      check<BFloat16>({11, 19, 23, (t & 1) != 0, (t & 2) != 0, 0.5, 1, false});
    }
  });
}

template <class T> void check_integers() {
  Array<T> a({7, 5}), b({5, 3}, {1, 5}), c({7, 3}), bias({3});
  a.random(1, 0, 9), b.random(2, 0, 9), c.random(3, 0, 9), bias.random(4, 0, 9);
  std::vector<T> want;
  for (int64_t i = 0; i < 7; ++i)
    for (int64_t j = 0; j < 3; ++j) {
      int64_t sum = 0;
      for (int64_t p = 0; p < 5; ++p)
        sum += static_cast<int64_t>(a[i * 5 + p]) * static_cast<int64_t>(b[p * 3 + j]);
      want.push_back(static_cast<T>(sum + c[i * 3 + j] + bias[j]));
    }
  Context context;
  cpu().matmul(context, 1, a.view(), b.view(), 1, bias.view(), c.view());
  for (int64_t i = 0; i < 21; ++i) EXPECT_EQ(c[i], want[static_cast<size_t>(i)]) << i;
}

TEST(Gemm, integers_are_exact_and_wrap) {
  each_isa([] {
    check_integers<int64_t>();
    check_integers<int32_t>();
    check_integers<uint8_t>();
  });
  Array<int64_t> a({1, 1}), b({1, 1}), c({1, 1});
  a[0] = (int64_t{1} << 62) + 3, b[0] = 1;
  Context context;
  cpu().matmul(context, 1, a.view(), b.view(), 0, {}, c.view());
  EXPECT_EQ(c[0], (int64_t{1} << 62) + 3);  // more digits than a double has
}

void check_batch(const Shape& a_strides, const Shape& b_strides, int64_t batch, int64_t m, int64_t n,
                 int64_t k) {
  SCOPED_TRACE(str("batch ", batch, " a strides ", a_strides, " b strides ", b_strides));
  Array<float> a({batch, m, k}, a_strides), b({batch, k, n}, b_strides), c({batch, m, n}), bias({n});
  a.random(1), b.random(2), bias.random(3);
  Context context;
  cpu().matmul(context, 1, a.view(), b.view(), 0, bias.view(), c.view());
  for (int64_t s = 0; s < batch; ++s)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = bias.at(j);
        for (int64_t p = 0; p < k; ++p) sum += a.at((s * m + i) * k + p) * b.at((s * k + p) * n + j);
        ASSERT_NEAR(c.at((s * m + i) * n + j), sum, tolerance<float>(k)) << s << " " << i << " " << j;
      }
}

TEST(Gemm, batches_may_broadcast_either_side) {
  each_isa([] {
    check_batch({}, {}, 11, 5, 7, 3);
    check_batch({}, {0, 7, 1}, 11, 5, 7, 3);          // b shared: one tall product
    check_batch({0, 3, 1}, {}, 11, 5, 7, 3);          // a shared
    check_batch({3, 33, 1}, {0, 1, 3}, 11, 5, 7, 3);  // a interleaved, b shared and transposed
    check_batch({}, {0, 7, 1}, 13, 1, 7, 3);
    check_batch({}, {}, 3, 131, 173, 211);  // large: each cut into tasks
    check_batch({}, {}, 0, 5, 7, 3);
  });
}

template <class T> void check_dots_of_any_place(double alpha, double beta, bool biased) {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{12, 9, 37}, {7, 6, 64}, {3, 5, 200}}) {
    Array<T> a({m, k}), b({n, k}), c({m, n}), alone({1, 1}), bias({n}), first({m, n});
    a.random(1), b.random(2), bias.random(3), c.random(4), first.random(4);
    View transposed = b.view();
    transposed.sizes = {k, n}, transposed.strides = {1, k};
    Context context;
    cpu().matmul(context, alpha, a.view(), transposed, beta, biased ? bias.view() : View{}, c.view());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        View row = a.view(), column = b.view(), one = bias.view();
        row.data = a.data() + i * k, row.sizes = {1, k};
        column.data = b.data() + j * k, column.sizes = {k, 1}, column.strides = {1, k};
        one.data = bias.data() + j, one.sizes = {1};
        alone.data()[0] = first.data()[i * n + j];
        cpu().matmul(context, alpha, row, column, beta, biased ? one : View{}, alone.view());
        ASSERT_EQ(alone.at(0), c.at(i * n + j)) << m << " x " << n << " x " << k << " at " << i << ", " << j;
      }
  }
}

TEST(Gemm, a_dot_product_has_the_same_bits_beside_any_others) {
  each_isa([] {
    for (const bool biased : {false, true})
      for (const double beta : {0., 0.7})
        for (const double alpha : {1., 0.3}) {
          SCOPED_TRACE(str("alpha ", alpha, ", beta ", beta, ", bias ", biased));
          check_dots_of_any_place<float>(alpha, beta, biased);
          check_dots_of_any_place<double>(alpha, beta, biased);
        }
  });
}

template <class T> void check_rows_of_any_place(bool transposed_a, double alpha, double beta, bool biased) {
  struct Sizes {
    int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {Sizes{2, 1, 3},
                                {5, 7, 4},
                                {3, 17, 255},
                                {12, 33, 256},
                                {13, 64, 385},
                                {25, 1027, 515},
                                {48, 40, 9},
                                {49, 2050, 6},
                                {97, 64, 64}}) {
    Array<T> a({m, k}, strides_of(m, k, transposed_a, 1)), b({k, n}), c({m, n}), bias({n}), alone({1, n});
    a.random(1), b.random(2), bias.random(4), c.random(3);
    const std::vector<T> before(c.data(), c.data() + m * n);
    Context context;
    cpu().matmul(context, alpha, a.view(), b.view(), beta, biased ? bias.view() : View{}, c.view());
    for (int64_t i = 0; i < m; ++i) {
      View row = a.view();
      row.data = a.data() + i * (transposed_a ? 1 : k), row.sizes = {1, k};
      std::copy_n(before.data() + i * n, n, alone.data());
      cpu().matmul(context, alpha, row, b.view(), beta, biased ? bias.view() : View{}, alone.view());
      for (int64_t j = 0; j < n; ++j)
        ASSERT_EQ(alone.at(j), c.at(i * n + j)) << m << " x " << n << " x " << k << " at " << i << ", " << j;
    }
  }
}

TEST(Gemm, a_row_by_a_row_major_matrix_has_the_same_bits_beside_any_others) {
  kernels::set_gemm_engine(GemmEngine::kTile);
  each_isa([] {
    for (const bool transposed : {false, true})
      for (const bool biased : {false, true})
        for (const auto& [alpha, beta] : {std::pair(1., 0.), {0.3, 0.}, {0.3, 0.7}}) {
          SCOPED_TRACE(str("transposed ", transposed, ", alpha ", alpha, ", beta ", beta, ", bias ", biased));
          check_rows_of_any_place<float>(transposed, alpha, beta, biased);
          check_rows_of_any_place<double>(transposed, alpha, beta, biased);
        }
  });
  kernels::set_gemm_engine(GemmEngine::kAuto);
}

TEST(Gemm, has_the_same_bits_for_any_thread_count) {
  each_isa([] {
    each_engine([] {
      expect_same_bits_for_any_thread_count([] {
        Array<float> a({509, 131}), b({131, 911}), bt({911, 131}), c({509, 911}), d({509, 911}), e({19, 911}),
            wide({3001, 131}), f({11, 3001}), g({3001, 64});
        a.random(1), b.random(2), bt.random(3), wide.random(4);
        View transposed = bt.view(), few = a.view();
        transposed.sizes = {131, 911}, transposed.strides = {1, 131};
        few.sizes = {19, 131};
        Context context;
        cpu().matmul(context, 1, a.view(), b.view(), 0, {}, c.view());
        cpu().matmul(context, 1, a.view(), transposed, 0, {}, d.view());
        cpu().matmul(context, 1, few, transposed, 0, {}, e.view());
        few.sizes = {11, 131}, transposed.sizes = {131, 3001}, transposed.data = wide.data();
        cpu().matmul(context, 1, few, transposed, 0, {}, f.view());  // dot products, in several tasks
        View tall = wide.view(), small = b.view();
        tall.sizes = {3001, 64}, tall.strides = {1, 3001}, small.sizes = {64, 64}, small.strides = {64, 1};
        cpu().matmul(context, 1, tall, small, 0, {}, g.view(), true);  // in place, in several tasks
        return join({c.bytes(), d.bytes(), e.bytes(), f.bytes(), g.bytes()});
      });
    });
  });
}

TEST(Gemm, an_engine_that_this_build_lacks_is_an_error) {
  if (kernels::has_onednn()) {
    EXPECT_NO_THROW(kernels::set_gemm_engine(GemmEngine::kOnednn));
    EXPECT_EQ(kernels::gemm_engine(), GemmEngine::kOnednn);
  } else {
    EXPECT_THROW(kernels::set_gemm_engine(GemmEngine::kOnednn), ValueError);
  }
  kernels::set_gemm_engine(GemmEngine::kAuto);
}

TEST(Gemm, an_engine_that_is_not_there_is_refused_with_the_reason) {
  const GemmEngine before = kernels::gemm_engine();
  if (!kernels::mkl_missing().empty()) {
    try {
      kernels::set_gemm_engine(GemmEngine::kMkl);
      ADD_FAILURE() << "MKL was taken";
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find(kernels::mkl_missing()), std::string::npos) << e.what();
    }
    EXPECT_THROW(kernels::mkl_sgemm(false, false, 1, 1, 1, 1, nullptr, 1, nullptr, 1, 0, nullptr, 1), Error);
  }
  if (!kernels::has_onednn()) {
    EXPECT_THROW(kernels::set_gemm_engine(GemmEngine::kOnednn), ValueError);
  }
  EXPECT_EQ(kernels::gemm_engine(), before);
}

TEST(Gemm, a_process_measures_each_shape_once_and_keeps_its_engine) {
  std::vector<GemmEngine> tried;
  const auto run = [&](GemmEngine engine) {
    tried.push_back(engine);
    if (engine != GemmEngine::kEigen) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  const kernels::ProductShape shape{7001, 7002, 7003, false, true};
  EXPECT_EQ(kernels::tuned_engine(shape, run), GemmEngine::kEigen);
  for (const GemmEngine engine : {GemmEngine::kTile, GemmEngine::kEigen})
    EXPECT_GT(std::count(tried.begin(), tried.end(), engine), 1);
  EXPECT_EQ(std::count(tried.begin(), tried.end(), GemmEngine::kOnednn) > 0, kernels::has_onednn());
  const size_t runs = tried.size();
  EXPECT_EQ(kernels::tuned_engine(shape, run), GemmEngine::kEigen);
  EXPECT_EQ(tried.size(), runs);
  kernels::ProductShape other = shape;
  other.transposed_a = true;
  EXPECT_EQ(kernels::tuned_engine(other, run), GemmEngine::kEigen);
  EXPECT_EQ(tried.size(), 2 * runs);
}

TEST(Gemm, the_text_on_product_engines_names_all_that_bits_depend_on) {
  std::set<std::string> texts;
  each_isa([&] {
    EXPECT_EQ(product_engines().find(str(cpu_isa(), ", table ")), 0u) << product_engines();
    EXPECT_EQ(product_engines().find(", oneDNN ") != std::string::npos, kernels::has_onednn());
    EXPECT_TRUE(texts.insert(product_engines()).second);
  });
  const GemmEngine before = kernels::gemm_engine();
  kernels::set_gemm_engine(GemmEngine::kEigen);
  EXPECT_TRUE(texts.insert(product_engines()).second);
  EXPECT_NE(product_engines().find(", WEFT_GEMM=eigen"), std::string::npos);
  kernels::set_gemm_engine(before);
}

}  // namespace
}  // namespace weft::test
