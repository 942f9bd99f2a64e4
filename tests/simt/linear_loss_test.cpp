// linear_cross_entropy on the device: the rows of its logits are whole packs of 16 bytes for any number of
// classes, and results and gradients are those of the CPU. Several blocks of rows have those of one.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include <weft/autograd/ops/inner/class_loss.h>
#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/autocast.h>
#include <weft/autograd/tape/engine.h>
#include <weft/tensor/factories.h>
#include "support/simt/device.h"
#include "support/simt/plain/products.h"

namespace weft::cuda {
namespace {

constexpr int64_t kRows = 21, kWidth = 6;

struct Outcome {
  Tensor loss;
  std::vector<Tensor> gradients;
};

/// Blocks have 32 rows for the lifetime of the object.
struct SmallBlocks {
  static constexpr int64_t kBlock = 32;
  SmallBlocks() { formula::linear_loss_block = 1; }
  ~SmallBlocks() { formula::linear_loss_block = 0; }
  SmallBlocks(const SmallBlocks&) = delete;
};

/// `mixed`: leaves of float32 under an Autocast to the half type; `in_parts`: as two operations.
Outcome linear_loss(Device where, DType type, int64_t classes, const CrossEntropyOptions& options,
                    bool mixed = false, bool in_parts = false, int64_t rows = kRows) {
  Generator draws(5);
  const auto leaf = [&](const Shape& sizes) {
    return (randn(sizes, {}, &draws) * 0.5).to(mixed ? kFloat32 : type).to(where).requires_grad_();
  };
  const Tensor x = leaf({rows, kWidth}), w = leaf({classes, kWidth}), b = leaf({classes});
  const Tensor target = randint(0, classes, {rows}, {}, &draws).to(where);
  Tensor loss;
  {
    std::optional<Autocast> scope;
    if (mixed) scope.emplace(type);
    loss = in_parts ? cross_entropy(linear(x, w, b), target, options)
                    : linear_cross_entropy(x, w, b, target, options);
  }
  Outcome out{loss.detach().to(kCpu), {}};
  for (const Tensor& g : grad({loss.to(kFloat32).sum()}, {x, w, b})) out.gradients.push_back(g.to(kCpu));
  return out;
}

/// Checks the row lengths of the products of logits or their gradient. Returns the number of products.
int expect_packed_rows(DType type, int64_t classes) {
  const int64_t pack = 16 / size_of(type);
  int found = 0;
  for (const Gemm& g : simt::take_products()) {
    if (g.n == classes) {  // x w^T, with the logits as result
      EXPECT_EQ(g.ldc % pack, 0) << type << " logits of " << classes << " classes in rows of " << g.ldc;
    } else {  // dlogits w, and dlogits^T x
      EXPECT_TRUE(g.k == classes || g.m == classes);
      EXPECT_EQ(g.lda % pack, 0) << type << " gradient of " << classes << " classes in rows of " << g.lda;
    }
    ++found;
  }
  return found;
}

TEST(SimtLinearLoss, its_logits_lie_in_rows_of_whole_packs) {
  for (const DType type : {kFloat32, kFloat64, kBFloat16, kFloat16})
    for (const int64_t classes : {1, 7, 16, 33, 278})
      for (const Reduction reduction : {Reduction::kMean, Reduction::kNone}) {
        const CrossEntropyOptions options{.reduction = reduction};
        const Outcome want = linear_loss(kCpu, type, classes, options);
        simt::take_products();
        const Outcome got = linear_loss(Device(DeviceType::kCuda, 0), type, classes, options);
        // the logits, once more for a loss per row, and two products for the gradients
        const bool again = reduction == Reduction::kNone || type == kFloat16;
        EXPECT_EQ(expect_packed_rows(type, classes), again ? 4 : 3);
        const double near = type == kFloat64 ? 1e-12 : type == kFloat32 ? 2e-5 : 3e-2;
        EXPECT_TRUE(allclose(got.loss.to(kFloat64), want.loss.to(kFloat64), near, near));
        for (size_t i = 0; i < want.gradients.size(); ++i)
          EXPECT_TRUE(allclose(got.gradients[i].to(kFloat64), want.gradients[i].to(kFloat64), near, near))
              << type << " " << classes << " classes, gradient " << i;
      }
}

TEST(SimtLinearLoss, an_autocast_makes_float32_losses_of_half_logits) {
  const Device gpu(DeviceType::kCuda, 0);
  Tensor weight = (arange(33).to(kFloat32) * 0.1).to(gpu);
  for (const DType half : {kBFloat16, kFloat16})
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum, Reduction::kNone})
      for (const double smoothing : {0.0, 0.2}) {
        const CrossEntropyOptions options{
            .weight = weight, .label_smoothing = smoothing, .reduction = reduction};
        const Outcome want = linear_loss(gpu, half, 33, options, true, true);
        simt::take_products();
        const Outcome got = linear_loss(gpu, half, 33, options, true);
        expect_packed_rows(half, 33);
        EXPECT_EQ(got.loss.dtype(), kFloat32);
        EXPECT_TRUE(allclose(got.loss, want.loss, 1e-5, 1e-5));
        for (size_t i = 0; i < want.gradients.size(); ++i) {
          EXPECT_EQ(got.gradients[i].dtype(), kFloat32);
          EXPECT_TRUE(allclose(got.gradients[i], want.gradients[i], 2e-2, 2e-3)) << half << " " << i;
        }
      }
}

TEST(SimtLinearLoss, a_loss_scale_saves_the_small_gradients_of_float16) {
  const Device gpu(DeviceType::kCuda, 0);
  const Tensor x = ones({2, 4}, {.device = gpu}), w = zeros({3, 4}, {.device = gpu}),
               b = tensor({0., 0., -18.}, {.dtype = kFloat32}).to(gpu).requires_grad_(),
               target = tensor({0, 1}, {.dtype = kInt64}).to(gpu);
  Tensor loss;
  {
    const Autocast mixed(kFloat16);
    loss = linear_cross_entropy(x, w, b, target);
  }
  const double chance = std::exp(-18.0) / 2;  // of the third class: less than the smallest float16
  const Tensor g = grad({loss * 65536}, {b})[0];
  EXPECT_NEAR(g.to(kCpu).to_vector<float>()[2] / 65536, chance, 0.02 * chance);
}

TEST(SimtLinearLoss, blocks_of_rows_add_up_to_the_gradients_of_one_block) {
  const Device gpu(DeviceType::kCuda, 0);
  for (const DType type : {kFloat32, kFloat64, kBFloat16, kFloat16})
    for (const bool mixed : {false, true})
      for (const Reduction reduction : {Reduction::kMean, Reduction::kNone}) {
        if (mixed && !is_half(type)) continue;
        const CrossEntropyOptions options{.reduction = reduction};
        const Outcome want = linear_loss(gpu, type, 33, options, mixed, false, 70);
        const SmallBlocks blocks;
        simt::take_products();
        const Outcome got = linear_loss(gpu, type, 33, options, mixed, false, 70);
        int sums = 0;
        for (const Gemm& g : simt::take_products()) {
          if (g.m != 33) continue;
          EXPECT_EQ(g.beta, sums++ == 0 ? 0 : 1);
          EXPECT_EQ(g.wide, is_half(type)) << "a sum of a half type would be rounded after each block";
        }
        EXPECT_EQ(sums, 3);
        const double near = type == kFloat64 ? 1e-13 : type == kFloat32 ? 1e-5 : 1e-2;
        EXPECT_TRUE(allclose(got.loss.to(kFloat64), want.loss.to(kFloat64), near, near));
        for (size_t i = 0; i < want.gradients.size(); ++i)
          EXPECT_TRUE(allclose(got.gradients[i].to(kFloat64), want.gradients[i].to(kFloat64), near, 1e-6))
              << type << " mixed " << mixed << ", gradient " << i;
      }
}

/// Gradients of the second class from 41 blocks. The first has 16, and the others together less than one, in
/// parts below the half type's precision of 16.
void expect_whole_sums(Device where, DType half, bool mixed, Reduction reduction) {
  const int64_t first = SmallBlocks::kBlock, rest = 40 * first;
  const double far = half == kFloat16 ? 9 : 7, chance = 1 / (1 + std::exp(far));
  const DType type = mixed ? kFloat32 : half;
  const Tensor column = cat({zeros({first, 1}), full({rest, 1}, far)}, 0);
  const Tensor x = cat({column, ones({first + rest, 1})}, 1).to(type).to(where),
               w = tensor({{1., 0.}, {0., 0.}}).to(type).to(where).requires_grad_(),
               b = zeros({2}).to(type).to(where).requires_grad_(),
               target = zeros({first + rest}, kInt64).to(where);
  const SmallBlocks blocks;
  Tensor loss;
  {
    std::optional<Autocast> scope;
    if (mixed) scope.emplace(half);
    loss = linear_cross_entropy(x, w, b, target, {.reduction = reduction});
  }
  const auto d = grad({loss.to(kFloat32).sum()}, {w, b});
  const double sum = static_cast<double>(first) / 2 + static_cast<double>(rest) * chance;
  const double near = half == kFloat16 ? 0.02 : 0.1;
  const std::string which =
      str(where, " ", half, " mixed ", mixed, " reduction ", static_cast<int>(reduction));
  EXPECT_NEAR(d[0].to(kCpu).to(kFloat64).to_vector<double>()[3], sum, near) << which;
  EXPECT_NEAR(d[1].to(kCpu).to(kFloat64).to_vector<double>()[1], sum, near) << which;
}

TEST(SimtLinearLoss, sums_of_a_half_type_are_not_rounded_after_each_block) {
  for (const DType half : {kBFloat16, kFloat16})
    for (const Reduction reduction : {Reduction::kSum, Reduction::kNone}) {
      expect_whole_sums(kCpu, half, false, reduction);
      for (const bool mixed : {false, true})
        expect_whole_sums(Device(DeviceType::kCuda, 0), half, mixed, reduction);
    }
}

}  // namespace
}  // namespace weft::cuda
