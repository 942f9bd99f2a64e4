// Products joined with gelu and with sums, over an emulated cuBLASLt: the epilogues that they take, and the
// kernels that do the same where there is none.
#include <gtest/gtest.h>

#include <weft/kernels/cuda/toolkit/cublaslt.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "support/libraries/libraries.h"
#include "support/simt/operand.h"

namespace weft::cuda {
namespace {

using libraries::counts;
using libraries::Refusal;
using libraries::settings;
using simt::expect_same;
using simt::Operand;

const Device kGpu("cuda:0");

struct EmulatedEpilogues : testing::Test {
  void TearDown() override {
    settings() = {};
    set_allow_tf32(false);
  }
};

/// Sizes that no other product of this process has: a plan is kept once it is made.
int64_t fresh_rows() {
  static int64_t rows = 300;
  return ++rows;
}

/// The error of a type's rounding, for numbers up to 4.
double rounding(DType t) { return t == kFloat16 ? 8e-3 : t == kBFloat16 ? 6e-2 : 1e-4; }

/// The products of one call.
struct Products {
  int64_t all, with_epilogue;
  explicit Products(const libraries::Counts& before)
      : all(counts().products - before.products), with_epilogue(counts().epilogues - before.epilogues) {}
};

TEST_F(EmulatedEpilogues, gelu_is_part_of_a_product_of_halves) {
  for (const DType type : {kFloat16, kBFloat16})
    for (const bool biased : {false, true})
      for (const bool trains : {false, true}) {
        const Tensor x = randn({fresh_rows(), 24}, {.dtype = type}),
                     w = randn({16, 24}, {.dtype = type}) * 0.2,
                     b = biased ? randn({16}, {.dtype = type}) : Tensor();
        const Tensor v = w.to(kGpu).requires_grad_(trains);
        const auto before = counts();
        const Tensor y = linear_gelu_tanh(x.to(kGpu), v, biased ? b.to(kGpu) : Tensor());
        const Products made(before);
        EXPECT_EQ(made.all, 1);
        EXPECT_EQ(counts().last_epilogue,
                  static_cast<uint32_t>(trains && biased ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                        : trains         ? CUBLASLT_EPILOGUE_GELU_AUX
                                        : biased         ? CUBLASLT_EPILOGUE_GELU_BIAS
                                                         : CUBLASLT_EPILOGUE_GELU));
        const Tensor exact = gelu_tanh(linear(x, w, b));
        EXPECT_LT((y.detach().to(kCpu) - exact).to(kFloat32).abs().max().item<double>(), rounding(type));
      }
}

TEST_F(EmulatedEpilogues, gelu_of_float32_is_part_of_a_product_by_tf32_alone) {
  const Tensor x = randn({fresh_rows(), 24}, {.device = kGpu}), w = randn({16, 24}, {.device = kGpu}),
               b = randn({16}, {.device = kGpu});
  linear_gelu_tanh(x, w, b);
  EXPECT_EQ(counts().last_epilogue, static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS));
  set_allow_tf32(true);
  linear_gelu_tanh(x, w, b);
  EXPECT_EQ(counts().last_epilogue, static_cast<uint32_t>(CUBLASLT_EPILOGUE_GELU_BIAS));
  set_allow_tf32(false);
  linear_gelu_tanh(x, w, b);
  EXPECT_EQ(counts().last_epilogue, static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS));
}

TEST_F(EmulatedEpilogues, the_gradients_of_a_feed_forward_part_are_joined_with_its_products) {
  for (const DType type : {kFloat16, kBFloat16}) {
    const int64_t rows = fresh_rows();
    const std::vector<Tensor> host = {randn({rows, 24}, {.dtype = type}),
                                      randn({16, 24}, {.dtype = type}) * 0.2, randn({16}, {.dtype = type}),
                                      randn({8, 16}, {.dtype = type}) * 0.2, randn({8}, {.dtype = type})};
    const Tensor g = randn({rows, 8}, {.dtype = type}) * 0.1;
    const auto run = [&](Device device) {
      std::vector<Tensor> in;
      for (const Tensor& t : host) in.push_back(t.to(device).detach().clone().requires_grad_());
      feed_forward(in[0], in[1], in[2], in[3], in[4]).backward(g.to(device));
      return in;
    };
    const auto before = counts();
    const std::vector<Tensor> here = run(kGpu);
    const Products made(before);
    // gelu and a bias forward; both sums and the slope backward, and the gradient of x
    EXPECT_EQ(made.all, 6);
    EXPECT_EQ(made.with_epilogue, 5);
    const std::vector<Tensor> there = run(kCpu);
    for (size_t i = 0; i < host.size(); ++i) {
      const Tensor want = there[i].grad().to(kFloat32);
      const double most = (here[i].grad().to(kCpu).to(kFloat32) - want).abs().max().item<double>();
      EXPECT_LT(most, rounding(type) * (1 + want.abs().max().item<double>())) << type << ", input " << i;
    }
  }
}

TEST_F(EmulatedEpilogues, where_an_epilogue_is_refused_or_does_not_fit_kernels_do_its_work) {
  const auto compare = [](int64_t hidden, DType type) {
    const int64_t rows = fresh_rows();
    const Tensor x = randn({rows, 24}, {.dtype = type}), w = randn({hidden, 24}, {.dtype = type}) * 0.2,
                 b = randn({hidden}, {.dtype = type}), g = randn({rows, hidden}, {.dtype = type}) * 0.1;
    const auto run = [&](Device device) {
      const Tensor v = w.to(device).detach().clone().requires_grad_(),
                   c = b.to(device).detach().clone().requires_grad_();
      const Tensor y = linear_gelu_tanh(x.to(device), v, c);
      y.backward(g.to(device));
      return std::vector<Tensor>{y.detach(), v.grad(), c.grad()};
    };
    const std::vector<Tensor> here = run(kGpu), there = run(kCpu);
    for (size_t i = 0; i < here.size(); ++i) {
      const Tensor want = there[i].to(kFloat32);
      EXPECT_LT((here[i].to(kCpu).to(kFloat32) - want).abs().max().item<double>(),
                rounding(type) * (1 + want.abs().max().item<double>()))
          << type << ", hidden " << hidden << ", result " << i;
    }
  };
  for (const Refusal refusal : {Refusal::kNone, Refusal::kNotSupported, Refusal::kInvalidValue,
                                Refusal::kArchMismatch, Refusal::kNoAlgorithm, Refusal::kBadState}) {
    settings().epilogues = refusal;
    for (const DType type : {kFloat32, kFloat64, kFloat16, kBFloat16}) compare(16, type);
  }
  settings() = {};
  const auto before = counts();
  compare(9, kFloat16);                          // rows of no whole packs
  EXPECT_EQ(Products(before).with_epilogue, 2);  // the bias, and the sums of the gradient
}

TEST_F(EmulatedEpilogues, views_are_taken_by_their_layout) {
  const DType type = kBFloat16;
  for (const bool turned : {false, true})
    for (const int64_t offset : {0, 1}) {  // of the argument of gelu, in elements
      const int64_t m = fresh_rows(), n = 16, k = 40;
      Operand a(type, {m, k}, turned ? Shape{1, m} : Shape{}),
          b(type, {k, n}, turned ? Shape{1, k} : Shape{}), bias(type, {n}),
          before(type, {m, n}, {24, 1}, offset), y(type, {m, n}, {20, 1}), slope(type, {m, n}),
          sums(type, {m});
      a.random(-1, 1, 1), b.random(-1, 1, 2), bias.random(-1, 1, 3);
      Context context;
      Backend& cpu = backend(kCpu);
      Backend& gpu = simt::device();
      cpu.matmul_gelu(context, a.host(), b.host(), bias.host(), before.host(), y.host());
      gpu.matmul_gelu(context, a.on_device(), b.on_device(), bias.on_device(), before.on_device(),
                      y.on_device());
      expect_same(y, 6e-2, "gelu"), expect_same(before, 6e-2, "its argument");
      cpu.matmul_gelu_grad(context, a.host(), b.host(), before.host(), slope.host());
      gpu.matmul_gelu_grad(context, a.on_device(), b.on_device(), before.on_device(), slope.on_device());
      expect_same(slope, 6e-2, "slope");
      cpu.matmul_sums(context, a.host(), b.host(), slope.host(), sums.host());
      gpu.matmul_sums(context, a.on_device(), b.on_device(), slope.on_device(), sums.on_device());
      expect_same(slope, 6e-2, "product"), expect_same(sums, 6e-2, "sums");
    }
}

TEST_F(EmulatedEpilogues, a_plan_is_made_for_the_rows_of_the_argument) {
  const DType type = kFloat16;
  const int64_t m = fresh_rows(), n = 16, k = 24;
  Operand a(type, {m, k}), b(type, {k, n}), y(type, {m, n});
  a.random(-1, 1, 1), b.random(-1, 1, 2);
  Context context;
  for (const int64_t row : {16, 24, 32, 20, 16}) {  // 20 is no multiple of 8
    Operand before(type, {m, n}, {row, 1});
    const auto made = counts();
    backend(kCpu).matmul_gelu(context, a.host(), b.host(), {}, before.host(), y.host());
    simt::device().matmul_gelu(context, a.on_device(), b.on_device(), {}, before.on_device(), y.on_device());
    EXPECT_EQ(Products(made).with_epilogue, row != 20) << row;
    expect_same(before, 8e-3, str("rows of ", row)), expect_same(y, 8e-3, str("rows of ", row));
  }
}

TEST_F(EmulatedEpilogues, are_recorded) {
  const DType type = kBFloat16;
  const Tensor a = randn({fresh_rows(), 24}, {.dtype = type}), b = randn({16, 24}, {.dtype = type}) * 0.2,
               c = randn({16}, {.dtype = type});
  Tensor x = a.to(kGpu), grad;
  const Tensor w = b.to(kGpu).requires_grad_(), v = c.to(kGpu).requires_grad_();
  Graph graph(kGpu);
  graph.capture([&] {
    w.zero_grad(), v.zero_grad();
    linear_gelu_tanh(x, w, v).sum().backward();
  });
  x.copy_((a * 0.5).to(kGpu));
  graph.replay();
  const Tensor same = b.clone().requires_grad_();
  linear_gelu_tanh(a * 0.5, same, c).sum().backward();
  const Tensor want = same.grad().to(kFloat32);
  EXPECT_LT((w.grad().to(kCpu).to(kFloat32) - want).abs().max().item<double>(),
            0.06 * (1 + want.abs().max().item<double>()));
}

}  // namespace
}  // namespace weft::cuda
