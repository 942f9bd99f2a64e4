// kernels/cuda/toolkit/gemm.cpp over an emulated cuBLASLt: epilogues and their substitutes, refused types,
// batches, plans, streams and recordings.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include <weft/kernels/cuda/host/gemm.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "support/errors.h"
#include "support/libraries/libraries.h"
#include "support/simt/operand.h"
#include "support/simt/streams.h"

namespace weft::cuda {
namespace {

using libraries::counts;
using libraries::Refusal;
using libraries::settings;
using simt::expect_same;
using simt::Operand;

constexpr Refusal kRefusals[] = {Refusal::kNotSupported, Refusal::kInvalidValue, Refusal::kArchMismatch,
                                 Refusal::kNoAlgorithm, Refusal::kBadState};

/// Sizes that no other product of this process has: a plan is kept once it is made.
int64_t fresh_rows() {
  static int64_t rows = 100;
  return ++rows;
}

struct EmulatedProducts : testing::Test {
  void TearDown() override { settings() = {}; }
};

struct Case {
  DType type = kFloat32;
  bool wide = false, bias = false, relu = false;
  double alpha = 1, beta = 0;
  int64_t batch = 1, n = 9, k = 13;
  bool one_b = false;  ///< all products of the batch are with one b
};

/// The same numbers as float32: the CPU has no products of halves with a float32 result.
Operand& widened(Operand& to, const Operand& from) {
  const auto v = from.host_values();
  return to.each([&](size_t i, double) { return v[i]; });
}

/// c of a product on both devices; only halves may differ by more than the order of a sum.
void compare(const Case& c, int64_t m = fresh_rows()) {
  const DType out = c.wide ? kFloat32 : c.type;
  Operand a(c.type, {c.batch, m, c.k}), b(c.type, {c.batch, c.k, c.n}, c.one_b ? Shape{0, c.n, 1} : Shape{}),
      bias(out, {c.n}), y(out, {c.batch, m, c.n}, {m * (c.n + 2), c.n + 2, 1});
  a.random(-1, 1, 1), b.random(-1, 1, 2), bias.random(-1, 1, 3), y.random(-1, 1, 4);
  Context context;
  Operand wide_a(kFloat32, a.host().sizes), wide_b(kFloat32, b.host().sizes, b.host().strides);
  widened(wide_a, a), widened(wide_b, b);
  backend(kCpu).matmul(context, c.alpha, c.wide ? wide_a.host() : a.host(), c.wide ? wide_b.host() : b.host(),
                       c.beta, c.bias ? bias.host() : View{}, y.host(), c.relu);
  simt::device().matmul(context, c.alpha, a.on_device(), b.on_device(), c.beta,
                        c.bias ? bias.on_device() : View{}, y.on_device(), c.relu);
  expect_same(y,
              out == kFloat64   ? 1e-14
              : out == kFloat32 ? 1e-5
              : out == kFloat16 ? 4e-3
                                : 3e-2,
              str(c.type, " wide ", c.wide, " bias ", c.bias, " relu ", c.relu, " alpha ", c.alpha, " beta ",
                  c.beta, " batch ", c.batch, " one b ", c.one_b));
}

TEST_F(EmulatedProducts, the_bias_is_part_of_the_product_and_relu_a_step_after_it) {
  for (const DType type : {kFloat32, kFloat64, kFloat16, kBFloat16})
    for (const bool bias : {false, true})
      for (const bool relu : {false, true}) {
        const auto before = counts();
        compare({.type = type, .bias = bias, .relu = relu});
        EXPECT_EQ(counts().products, before.products + 1);
        EXPECT_EQ(counts().epilogues, before.epilogues + bias);
      }
}

TEST_F(EmulatedProducts, where_an_epilogue_is_refused_kernels_do_its_work) {
  for (const Refusal refusal : kRefusals)
    for (const DType type : {kFloat32, kFloat64, kFloat16, kBFloat16})
      for (const auto& [bias, relu] : {std::pair{true, false}, {false, true}, {true, true}}) {
        settings().epilogues = refusal;
        const auto before = counts();
        compare({.type = type, .bias = bias, .relu = relu, .alpha = 0.5, .beta = 2, .batch = 2});
        EXPECT_EQ(counts().products, before.products + 1);
        EXPECT_EQ(counts().epilogues, before.epilogues);
      }
}

TEST_F(EmulatedProducts, a_half_type_that_is_refused_goes_through_float32) {
  for (const Refusal refusal :
       {Refusal::kNotSupported, Refusal::kArchMismatch, Refusal::kNoAlgorithm, Refusal::kBadState})
    for (const DType type : {kFloat16, kBFloat16})
      for (const Case& each :
           {Case{.bias = true, .relu = true}, Case{.beta = 1}, Case{.alpha = 2, .batch = 3},
            Case{.bias = true, .batch = 3, .one_b = true}, Case{.wide = true, .bias = true, .beta = 1}}) {
        settings().halves = refusal;
        Case c = each;
        c.type = type;
        const auto before = counts();
        compare(c);
        EXPECT_EQ(counts().products, before.products + 1);
      }
}

TEST_F(EmulatedProducts, halves_give_float32_results) {
  for (const DType type : {kFloat16, kBFloat16}) {
    compare({.type = type, .wide = true});
    compare({.type = type, .wide = true, .bias = true, .alpha = -1, .beta = 1, .batch = 2});
  }
}

TEST_F(EmulatedProducts, a_product_without_an_algorithm_is_named) {
  for (const Refusal refusal : {Refusal::kNotSupported, Refusal::kNoAlgorithm}) {
    settings().products = refusal;
    const Tensor a = ones({171, 5}, {.device = "cuda:0"});
    EXPECT_TRUE(test::has(test::error_of<CudaError>([&] {
                            matmul(a, ones({5, 7}, {.device = "cuda:0"}));
                          }),
                          "no algorithm for float32 [171, 5] x [5, 7], batch 1"));
  }
  settings().products = Refusal::kInvalidValue;  // a misuse, not a lack
  EXPECT_TRUE(test::has(test::error_of<CudaError>([&] {
                          matmul(ones({173, 5}, {.device = "cuda:0"}), ones({5, 7}, {.device = "cuda:0"}));
                        }),
                        "cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_INVALID_VALUE"));
  settings() = {};
  compare({}, 171);  // nothing of the refusal is kept
}

TEST_F(EmulatedProducts, one_b_serves_a_whole_batch) {
  for (const DType type : {kFloat32, kBFloat16})
    compare({.type = type, .bias = true, .batch = 4, .one_b = true});
}

TEST_F(EmulatedProducts, a_plan_serves_other_pointers) {
  const int64_t m = fresh_rows();
  compare({.bias = true}, m);
  const int64_t plans = counts().heuristics;
  const Operand held(kFloat32, {1000});  // the next blocks lie elsewhere
  compare({.bias = true}, m);
  compare({.bias = true}, m);
  EXPECT_EQ(counts().heuristics, plans);
  compare({.bias = true, .relu = true}, m);  // relu is no part of the plan
  EXPECT_EQ(counts().heuristics, plans);
}

TEST_F(EmulatedProducts, a_plan_is_made_for_the_alignment_of_each_pointer) {
  const int64_t m = fresh_rows(), n = 8, k = 8;
  for (int64_t at = 0; at < 3 * 4 * 4; ++at) {
    const std::array<int64_t, 4> offset = {at % 3, at / 3 % 4, at / 12, at % 4};
    Operand a(kFloat32, {m, k}, {}, offset[0]), b(kFloat32, {k, n}, {}, offset[1]),
        y(kFloat32, {m, n}, {}, offset[2]), bias(kFloat32, {n}, {}, offset[3]);
    a.random(-1, 1, 1), b.random(-1, 1, 2), bias.random(-1, 1, 3);
    Context context;
    backend(kCpu).matmul(context, 1, a.host(), b.host(), 0, bias.host(), y.host());
    simt::device().matmul(context, 1, a.on_device(), b.on_device(), 0, bias.on_device(), y.on_device());
    expect_same(y, 1e-5, str("offsets ", offset[0], " ", offset[1], " ", offset[2], " ", offset[3]));
  }
}

TEST_F(EmulatedProducts, a_long_sum_is_split_in_the_same_order_each_time) {
  const Tensor a = randn({7, 3000}).to("cuda:0"), b = randn({3000, 5}).to("cuda:0");
  const int64_t before = counts().split;
  const Tensor first = matmul(a, b).to(kCpu);
  EXPECT_EQ(counts().split, before + 1);
  for (int i = 0; i < 4; ++i) {
    const Tensor again = matmul(a, b).to(kCpu);
    EXPECT_EQ(std::memcmp(again.raw(), first.raw(), static_cast<size_t>(first.numel()) * sizeof(float)), 0);
  }
}

TEST_F(EmulatedProducts, tf32_rounds_the_factors) {
  const Tensor a = randn({33, 40}), b = randn({40, 21}),
               exact = matmul(a.to("cuda:0"), b.to("cuda:0")).to(kCpu);
  set_allow_tf32(true);
  const Tensor rounded = matmul(a.to("cuda:0"), b.to("cuda:0")).to(kCpu);
  set_allow_tf32(false);
  const double off = (rounded - exact).abs().max().item<double>();
  EXPECT_GT(off, 1e-5);
  EXPECT_LT(off, 5e-2);
}

TEST_F(EmulatedProducts, the_first_product_of_a_device_may_be_recorded) {
  const Device other("cuda:1");
  const Tensor a = randn({6, 40}), b = randn({8, 40}), bias = randn({8});
  Tensor x = a.to(other), y;
  const Tensor w = b.to(other), v = bias.to(other);
  Graph graph(other);
  graph.capture([&] { y = linear_relu(x, w, v); });
  x.copy_((a * 2).to(other));
  graph.replay();
  EXPECT_LT((y.to(kCpu) - linear_relu(a * 2, b, bias)).abs().max().item<double>(), 1e-4);
}

TEST_F(EmulatedProducts, a_handle_without_room_is_asked_for_once_more_and_by_the_next_product) {
  const auto body = [] {
    const Tensor a = randn({6, 7}), b = randn({7, 8});
    const auto near = [&](Device device) {
      const Tensor c = matmul(a.to(device), b.to(device)).to(kCpu);
      return (c - matmul(a, b)).abs().max().item<double>() < 1e-5;
    };
    settings().full = "cublasLtCreate";
    settings().full_calls = 1;
    EXPECT_TRUE(near("cuda:0"));
    settings().full_calls = 2;
    EXPECT_TRUE(test::has(test::error_of<OutOfMemoryError>([&] { near("cuda:1"); }), "cublasLtCreate"));
    EXPECT_TRUE(near("cuda:1"));
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process in which there was no product
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

TEST_F(EmulatedProducts, products_keep_to_their_streams) {
  const Device gpu("cuda:0");
  const Tensor a = randn({6, 7}), b = randn({7, 8});
  Tensor x = zeros({6, 7}, {.device = gpu}), y;
  const Tensor w = b.to(gpu), full = a.to(gpu);
  const Stream side(gpu);
  synchronize(gpu);
  {
    const simt::Deferred late;
    x.copy_(full);
    side.wait_stream(current_stream(gpu));
    {
      const StreamGuard guard(side);
      y = matmul(x, w);
    }
    side.synchronize();
    EXPECT_LT((y.to(kCpu) - matmul(a, b)).abs().max().item<double>(), 1e-5);
    y = Tensor();
  }
}

}  // namespace
}  // namespace weft::cuda
