// linear_cross_entropy on the device: the rows of its logits are whole packs of 16 bytes for any number of
// classes, and results and gradients are those of the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

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

/// `mixed`: leaves of float32 under an Autocast to the half type; `in_parts`: as two operations.
Outcome linear_loss(Device where, DType type, int64_t classes, const CrossEntropyOptions& options,
                    bool mixed = false, bool in_parts = false) {
  Generator draws(5);
  const auto leaf = [&](const Shape& sizes) {
    return (randn(sizes, {}, &draws) * 0.5).to(mixed ? kFloat32 : type).to(where).requires_grad_();
  };
  const Tensor x = leaf({kRows, kWidth}), w = leaf({classes, kWidth}), b = leaf({classes});
  const Tensor target = randint(0, classes, {kRows}, {}, &draws).to(where);
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

}  // namespace
}  // namespace weft::cuda
