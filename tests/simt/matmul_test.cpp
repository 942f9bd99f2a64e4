// Matrix products of the CUDA backend against those of the CPU: sizes around the tiles, every stride pattern, batches, every dtype.
#include "kernels/arrays.h"
#include "support/simt/device.h"
#include "support/simt/mirror.h"
#include "support/simt/thread.h"

#include <limits>

namespace weft::test {
namespace {

using cuda::simt::Mirror;

struct SimtMatmul : testing::Test {
  void TearDown() override { cuda::simt::settings() = {}; }
};

/// Both devices' results of one call; c starts equal, and must not be read where beta is 0.
template <class T> void compare(double alpha, Array<T>& a, Array<T>& b, double beta, Array<T>* bias, const Shape& sizes, const Shape& strides, int64_t k) {
  Array<T> expected(sizes, strides), got(sizes, strides);
  if (beta == 0 && is_floating(dtype_of<T>)) expected.fill(std::numeric_limits<double>::quiet_NaN()), got.fill(std::numeric_limits<double>::quiet_NaN());
  else expected.random(3, 0, 5), got.random(3, 0, 5);
  const View bias_view = bias ? bias->view() : View{};
  Context context;
  cpu().matmul(context, alpha, a.view(), b.view(), beta, bias_view, expected.view());
  {
    const Mirror x(a.view()), y(b.view()), w(bias_view), z(got.view());
    cuda::simt::device().matmul(context, alpha, x, y, beta, w, z);
    z.fetch();
  }
  const double allowed = is_floating(dtype_of<T>) ? tolerance<T>(k) * 4 + (is_half(dtype_of<T>) ? 0.03 : 0) : 0;
  for (int64_t i = 0; i < got.numel(); ++i) ASSERT_NEAR(got.at(i), expected.at(i), allowed) << "element " << i;
}

struct Case {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1, beta = 0;
  bool bias = false, transpose_c = false;
  int64_t gap = 1;
};
Shape strides_of(int64_t rows, int64_t columns, bool transposed, int64_t gap) { return transposed ? Shape{gap, rows * gap} : Shape{columns * gap, gap}; }

template <class T> void check(const Case& c) {
  SCOPED_TRACE(str(dtype_of<T>, " [", c.m, ", ", c.k, "] x [", c.k, ", ", c.n, "] ta ", c.transpose_a, " tb ", c.transpose_b, " alpha ", c.alpha, " beta ", c.beta, " bias ", c.bias,
                   " tc ", c.transpose_c, " gap ", c.gap));
  Array<T> a({c.m, c.k}, strides_of(c.m, c.k, c.transpose_a, c.gap)), b({c.k, c.n}, strides_of(c.k, c.n, c.transpose_b, c.gap)), bias({c.n}, {c.gap});
  const double low = is_floating(dtype_of<T>) ? -1 : 0, high = is_floating(dtype_of<T>) ? 1 : 9;
  a.random(1, low, high), b.random(2, low, high), bias.random(4, low, high);
  compare<T>(c.alpha, a, b, c.beta, c.bias ? &bias : nullptr, {c.m, c.n}, strides_of(c.m, c.n, c.transpose_c, c.gap), c.k);
}

TEST_F(SimtMatmul, applies_alpha_beta_and_bias_to_every_stride_pattern) {
  for (int t = 0; t < 8; ++t)
    for (int64_t gap : {1, 2})
      for (bool bias : {false, true}) {
        check<float>({13, 37, 23, (t & 1) != 0, (t & 2) != 0, 0.5, -1.5, bias, (t & 4) != 0, gap});
        check<double>({7, 5, 3, (t & 1) != 0, (t & 2) != 0, 2, 0, bias, (t & 4) != 0, gap});
        check<float>({1, 29, 41, (t & 1) != 0, (t & 2) != 0, 1, 1, bias, (t & 4) != 0, gap});
        check<float>({29, 1, 41, (t & 1) != 0, (t & 2) != 0, 1, 1, bias, (t & 4) != 0, gap});
        check<float>({5, 3, 1, (t & 1) != 0, (t & 2) != 0, 1, 0, bias, (t & 4) != 0, gap});
        check<Half>({11, 19, 23, (t & 1) != 0, (t & 2) != 0, 1, 0, bias, (t & 4) != 0, gap});
        check<BFloat16>({11, 1, 23, (t & 1) != 0, (t & 2) != 0, 0.5, 1, bias, (t & 4) != 0, gap});
      }
}

TEST_F(SimtMatmul, an_empty_sum_leaves_beta_c_plus_bias) {
  for (bool bias : {false, true}) {
    check<float>({5, 37, 0, false, false, 1, 0, bias});
    check<float>({31, 7, 0, false, true, 3, 0.5, bias});
    check<double>({2, 3, 0, true, false, 1, 1, bias, true});
    check<Half>({2, 3, 0, true, false, 1, 2, bias});
    check<int64_t>({2, 3, 0, true, false, 1, 2, bias});
    check<int32_t>({2, 3, 0, true, false, 1, 0, bias});
  }
  check<float>({0, 3, 5});
  check<float>({3, 0, 5});
}

TEST_F(SimtMatmul, integers_match_around_the_tiles_in_every_order) {
  for (const auto order : {cuda::simt::Order::kForward, cuda::simt::Order::kReverse, cuda::simt::Order::kShuffled})
    for (const unsigned char poison : {0xFF, 0x00}) {
      cuda::simt::settings() = {.order = order, .poison = poison};
      for (int64_t m : {1, 15, 16, 17})
        for (int64_t n : {1, 16, 33})
          for (int64_t k : {1, 16, 31}) check<int64_t>({m, n, k, m == 16, n == 16, 1, 1, true, k == 16});
      check<int32_t>({33, 18, 50, true, true, 2, 3, true, true, 2});
      check<uint8_t>({18, 33, 20, false, true, 1, 0, true});
    }
}

TEST_F(SimtMatmul, integers_are_exact_and_wrap) {
  Array<int64_t> a({2, 1}), b({1, 2});
  a[0] = (int64_t{1} << 62) + 3, b[0] = 1, a[1] = 3, b[1] = 6;
  compare<int64_t>(1, a, b, 0, nullptr, {2, 2}, {}, 1);  // the product of row 0 and column 1 wraps
}

template <class T> void check_batch(const Shape& a_strides, const Shape& b_strides, const Shape& c_strides, int64_t batch, int64_t m, int64_t n, int64_t k) {
  for (bool biased : {false, true}) {
    SCOPED_TRACE(str("batch ", batch, " a ", a_strides, " b ", b_strides, " c ", c_strides, " m ", m, " n ", n, " k ", k, " bias ", biased));
    Array<T> a({batch, m, k}, a_strides), b({batch, k, n}, b_strides), bias({n});
    a.random(1, -3, 3), b.random(2, -3, 3), bias.random(3, -3, 3);
    compare<T>(1, a, b, biased ? 1 : 0, biased ? &bias : nullptr, {batch, m, n}, c_strides, 10 * k);
  }
}

TEST_F(SimtMatmul, batches_may_broadcast_either_side) {
  check_batch<float>({}, {}, {}, 11, 5, 7, 3);
  check_batch<float>({}, {0, 7, 1}, {}, 11, 5, 7, 3);          // b shared: one tall product
  check_batch<float>({0, 3, 1}, {}, {}, 11, 5, 7, 3);          // a shared
  check_batch<float>({0, 3, 1}, {0, 7, 1}, {}, 11, 5, 7, 3);   // both
  check_batch<float>({0, 6, 2}, {0, 14, 2}, {}, 11, 5, 7, 3);  // both, and neither fits
  check_batch<float>({3, 33, 1}, {0, 1, 3}, {}, 11, 5, 7, 3);  // a interleaved, b shared and transposed
  check_batch<float>({}, {0, 7, 1}, {}, 13, 1, 7, 3);
  check_batch<float>({0, 3, 1}, {0, 7, 1}, {}, 13, 1, 7, 3);
  check_batch<float>({}, {}, {35, 1, 5}, 11, 5, 7, 3);         // c lies by columns
  check_batch<float>({}, {}, {7, 77, 1}, 11, 5, 7, 3);         // c interleaved
  check_batch<float>({}, {0, 7, 1}, {1, 77, 11}, 11, 5, 7, 3); // c fits nowhere
  check_batch<float>({}, {}, {}, 0, 5, 7, 3);
  check_batch<int32_t>({}, {0, 7, 1}, {1, 77, 11}, 11, 5, 7, 3);
  check_batch<int64_t>({0, 3, 1}, {}, {}, 11, 17, 7, 3);
}

TEST_F(SimtMatmul, rows_that_repeat_are_copied_apart) {
  Array<float> row({1, 5}), b({5, 3});
  row.random(1), b.random(2);
  Array<float> expected({4, 3}), got({4, 3});
  View repeated = row.view();
  repeated.sizes = {4, 5}, repeated.strides = {0, 1};
  Context context;
  cpu().matmul(context, 1, repeated, b.view(), 0, {}, expected.view());
  {
    const Mirror x(repeated), y(b.view()), z(got.view());
    cuda::simt::device().matmul(context, 1, x, y, 0, {}, z);
    z.fetch();
  }
  for (int64_t i = 0; i < 12; ++i) EXPECT_NEAR(got.at(i), expected.at(i), 1e-6) << i;
}

}  // namespace
}  // namespace weft::test
