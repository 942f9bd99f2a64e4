// Matrix products of the CUDA backend against those of the CPU: sizes around the tiles, every stride pattern,
// batches, every dtype.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <weft/kernels/cuda/host/gemm.h>
#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using simt::expect_same;
using simt::Operand;

struct SimtMatmul : testing::Test {
  void TearDown() override { simt::settings() = {}; }
};

/// Room for the rounding of k products.
double product_tolerance(DType t, int64_t k) {
  const double unit = t == kFloat64    ? 2e-16
                      : t == kFloat32  ? 1e-7
                      : t == kFloat16  ? 1e-3
                      : t == kBFloat16 ? 8e-3
                                       : 0;
  return 4 * unit * (8 + static_cast<double>(k)) + (is_half(t) ? 0.03 : 0);
}

/// Both devices' results of one call; c must not be read where beta is 0.
void compare_product(double alpha, const Operand& a, const Operand& b, double beta, const Operand* bias,
                     const Shape& sizes, const Shape& strides, int64_t k) {
  const DType type = a.host().dtype;
  Operand y(type, sizes, strides);
  if (beta == 0 && is_floating(type)) y.fill(std::numeric_limits<double>::quiet_NaN());
  else y.random(0, 5, 3);
  Context context;
  backend(kCpu).matmul(context, alpha, a.host(), b.host(), beta, bias ? bias->host() : View{}, y.host());
  simt::device().matmul(context, alpha, a.on_device(), b.on_device(), beta, bias ? bias->on_device() : View{},
                        y.on_device());
  expect_same(y, product_tolerance(type, k));
}

struct Product {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1, beta = 0;
  bool bias = false, transpose_c = false;
  int64_t gap = 1;
};
Shape strides_of(int64_t rows, int64_t columns, bool transposed, int64_t gap) {
  return transposed ? Shape{gap, rows * gap} : Shape{columns * gap, gap};
}

void check_product(DType type, const Product& c) {
  SCOPED_TRACE(str(type, " [", c.m, ", ", c.k, "] x [", c.k, ", ", c.n, "] ta ", c.transpose_a, " tb ",
                   c.transpose_b, " alpha ", c.alpha, " beta ", c.beta, " bias ", c.bias, " tc ",
                   c.transpose_c, " gap ", c.gap));
  Operand a(type, {c.m, c.k}, strides_of(c.m, c.k, c.transpose_a, c.gap)),
      b(type, {c.k, c.n}, strides_of(c.k, c.n, c.transpose_b, c.gap)), bias(type, {c.n}, {c.gap});
  const double low = is_floating(type) ? -1 : 0, high = is_floating(type) ? 1 : 9;
  a.random(low, high, 1), b.random(low, high, 2), bias.random(low, high, 4);
  compare_product(c.alpha, a, b, c.beta, c.bias ? &bias : nullptr, {c.m, c.n},
                  strides_of(c.m, c.n, c.transpose_c, c.gap), c.k);
}

TEST_F(SimtMatmul, applies_alpha_beta_and_bias_to_every_stride_pattern) {
  for (int t = 0; t < 8; ++t)
    for (int64_t gap : {1, 2})
      for (bool bias : {false, true}) {
        check_product(kFloat32, {13, 37, 23, (t & 1) != 0, (t & 2) != 0, 0.5, -1.5, bias, (t & 4) != 0, gap});
        check_product(kFloat64, {7, 5, 3, (t & 1) != 0, (t & 2) != 0, 2, 0, bias, (t & 4) != 0, gap});
        check_product(kFloat32, {1, 29, 41, (t & 1) != 0, (t & 2) != 0, 1, 1, bias, (t & 4) != 0, gap});
        check_product(kFloat32, {29, 1, 41, (t & 1) != 0, (t & 2) != 0, 1, 1, bias, (t & 4) != 0, gap});
        check_product(kFloat32, {5, 3, 1, (t & 1) != 0, (t & 2) != 0, 1, 0, bias, (t & 4) != 0, gap});
        check_product(kFloat16, {11, 19, 23, (t & 1) != 0, (t & 2) != 0, 1, 0, bias, (t & 4) != 0, gap});
        check_product(kBFloat16, {11, 1, 23, (t & 1) != 0, (t & 2) != 0, 0.5, 1, bias, (t & 4) != 0, gap});
      }
}

/// A product of a half type as for a device that has none.
void check_in_float(DType type, DType out, bool ta, bool tb, bool shared_b, double beta, bool biased,
                    bool relu) {
  SCOPED_TRACE(str(type, " to ", out, " ta ", ta, " tb ", tb, " shared ", shared_b, " beta ", beta, " bias ",
                   biased, " relu ", relu));
  constexpr int64_t batch = 3, m = 5, n = 7, k = 9, gap = 2;  // rows are longer than they need be
  const auto strides = [](int64_t rows, int64_t columns, bool transposed, bool shared) {
    const int64_t leading = (transposed ? rows : columns) + gap;
    return Shape{shared ? 0 : leading * (transposed ? columns : rows), transposed ? 1 : leading,
                 transposed ? leading : 1};
  };
  Operand a(type, {batch, m, k}, strides(m, k, ta, false)),
      b(type, {batch, k, n}, strides(k, n, tb, shared_b)), bias(out, {n});
  Operand y(out, {batch, m, n}, strides(m, n, false, false)),
      plain(out, {batch, m, n}, strides(m, n, false, false));
  a.random(-1, 1, 1), b.random(-1, 1, 2), bias.random(-1, 1, 4);
  for (Operand* const each : {&y, &plain}) {
    if (beta == 0) each->fill(std::numeric_limits<double>::quiet_NaN());
    else each->random(-1, 1, 3);
  }
  Context context;
  // as on a device that has it
  simt::device().matmul(context, 0.5, a.on_device(), b.on_device(), beta, biased ? bias.on_device() : View{},
                        plain.on_device(), relu);
  const View va = a.on_device(), vb = b.on_device(), vy = y.on_device();
  gemm_in_float(simt::device(), nullptr,
                {.dtype = type,
                 .wide = out != type,
                 .transpose_a = ta,
                 .transpose_b = tb,
                 .m = m,
                 .n = n,
                 .k = k,
                 .batch = batch,
                 .alpha = 0.5,
                 .beta = beta,
                 .a = va.data,
                 .b = vb.data,
                 .bias = biased ? bias.on_device().data : nullptr,
                 .relu = relu,
                 .c = vy.data,
                 .lda = va.stride(ta ? 2 : 1),
                 .ldb = vb.stride(tb ? 2 : 1),
                 .ldc = vy.stride(1),
                 .stride_a = va.stride(0),
                 .stride_b = vb.stride(0),
                 .stride_c = vy.stride(0)});
  const auto got = y.device_values(), expected = plain.device_values();
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i])) EXPECT_TRUE(std::isnan(got[i])) << i;  // between the rows
    else EXPECT_NEAR(got[i], expected[i], product_tolerance(out, k)) << i;
  }
}

TEST_F(SimtMatmul, a_half_type_may_go_by_way_of_float32) {
  for (const DType type : {kBFloat16, kFloat16})
    for (const DType out : {type, kFloat32})
      for (int t = 0; t < 4; ++t)
        for (const bool extras : {false, true})
          check_in_float(type, out, (t & 1) != 0, (t & 2) != 0, t == 3, extras ? -1.5 : 0, extras, extras);
}

TEST_F(SimtMatmul, an_empty_sum_leaves_beta_c_plus_bias) {
  for (bool bias : {false, true}) {
    check_product(kFloat32, {5, 37, 0, false, false, 1, 0, bias});
    check_product(kFloat32, {31, 7, 0, false, true, 3, 0.5, bias});
    check_product(kFloat64, {2, 3, 0, true, false, 1, 1, bias, true});
    check_product(kFloat16, {2, 3, 0, true, false, 1, 2, bias});
    check_product(kInt64, {2, 3, 0, true, false, 1, 2, bias});
    check_product(kInt32, {2, 3, 0, true, false, 1, 0, bias});
  }
  check_product(kFloat32, {0, 3, 5});
  check_product(kFloat32, {3, 0, 5});
}

TEST_F(SimtMatmul, integers_match_around_the_tiles_in_every_order) {
  for (const auto order : {simt::Order::kForward, simt::Order::kReverse, simt::Order::kShuffled})
    for (const unsigned char poison : {0xFF, 0x00}) {
      simt::settings() = {.order = order, .poison = poison};
      for (int64_t m : {1, 15, 16, 17})
        for (int64_t n : {1, 16, 33})
          for (int64_t k : {1, 16, 31})
            check_product(kInt64, {m, n, k, m == 16, n == 16, 1, 1, true, k == 16});
      check_product(kInt32, {33, 18, 50, true, true, 2, 3, true, true, 2});
      check_product(kUInt8, {18, 33, 20, false, true, 1, 0, true});
    }
}

TEST_F(SimtMatmul, integers_are_exact_and_wrap) {
  Operand a(kInt64, {2, 1}), b(kInt64, {1, 2});
  a.set({0, 3}), b.set({1, 6});
  a.host().as<int64_t>()[0] = (int64_t{1} << 62) + 3;
  a.send();
  compare_product(1, a, b, 0, nullptr, {2, 2}, {}, 1);  // the product of row 0 and column 1 wraps
}

void check_batch(DType type, const Shape& a_strides, const Shape& b_strides, const Shape& c_strides,
                 int64_t batch, int64_t m, int64_t n, int64_t k) {
  for (bool biased : {false, true}) {
    SCOPED_TRACE(str(type, " batch ", batch, " a ", a_strides, " b ", b_strides, " c ", c_strides, " m ", m,
                     " n ", n, " k ", k, " bias ", biased));
    Operand a(type, {batch, m, k}, a_strides), b(type, {batch, k, n}, b_strides), bias(type, {n});
    a.random(-3, 3, 1), b.random(-3, 3, 2), bias.random(-3, 3, 3);
    compare_product(1, a, b, biased ? 1 : 0, biased ? &bias : nullptr, {batch, m, n}, c_strides, 10 * k);
  }
}

TEST_F(SimtMatmul, batches_may_broadcast_either_side) {
  check_batch(kFloat32, {}, {}, {}, 11, 5, 7, 3);
  check_batch(kFloat32, {}, {0, 7, 1}, {}, 11, 5, 7, 3);          // b shared: one tall product
  check_batch(kFloat32, {0, 3, 1}, {}, {}, 11, 5, 7, 3);          // a shared
  check_batch(kFloat32, {0, 3, 1}, {0, 7, 1}, {}, 11, 5, 7, 3);   // both
  check_batch(kFloat32, {0, 6, 2}, {0, 14, 2}, {}, 11, 5, 7, 3);  // both, and neither fits
  check_batch(kFloat32, {3, 33, 1}, {0, 1, 3}, {}, 11, 5, 7, 3);  // a interleaved, b shared and transposed
  check_batch(kFloat32, {}, {0, 7, 1}, {}, 13, 1, 7, 3);
  check_batch(kFloat32, {0, 3, 1}, {0, 7, 1}, {}, 13, 1, 7, 3);
  check_batch(kFloat32, {}, {}, {35, 1, 5}, 11, 5, 7, 3);          // c lies by columns
  check_batch(kFloat32, {}, {}, {7, 77, 1}, 11, 5, 7, 3);          // c interleaved
  check_batch(kFloat32, {}, {0, 7, 1}, {1, 77, 11}, 11, 5, 7, 3);  // c fits nowhere
  check_batch(kFloat32, {}, {}, {}, 0, 5, 7, 3);
  check_batch(kInt32, {}, {0, 7, 1}, {1, 77, 11}, 11, 5, 7, 3);
  check_batch(kInt64, {0, 3, 1}, {}, {}, 11, 17, 7, 3);
}

TEST_F(SimtMatmul, rows_that_repeat_are_copied_apart) {
  Operand rows(kFloat32, {4, 5}, {0, 1}), b(kFloat32, {5, 3});
  rows.random(-1, 1, 1), b.random(-1, 1, 2);
  compare_product(1, rows, b, 0, nullptr, {4, 3}, {}, 5);
}

}  // namespace
}  // namespace weft::cuda
