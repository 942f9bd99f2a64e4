// linear_cross_entropy on the device: the rows of its logits are whole packs of 16 bytes for any number of
// classes, and results and gradients are those of the CPU.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/tensor/factories.h>
#include "support/golden.h"
#include "support/simt/device.h"
#include "support/simt/plain/products.h"

namespace weft::cuda {
namespace {

constexpr int64_t kRows = 21, kWidth = 6;

struct Outcome {
  Tensor loss;
  std::vector<Tensor> gradients;
};

Outcome linear_loss(Device where, DType type, int64_t classes, const CrossEntropyOptions& options) {
  Generator draws(5);
  const auto leaf = [&](const Shape& sizes) {
    return (randn(sizes, {}, &draws) * 0.5).to(type).to(where).requires_grad_();
  };
  const Tensor x = leaf({kRows, kWidth}), w = leaf({classes, kWidth}), b = leaf({classes});
  const Tensor target = randint(0, classes, {kRows}, {}, &draws).to(where);
  const Tensor loss = linear_cross_entropy(x, w, b, target, options);
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
        EXPECT_EQ(expect_packed_rows(type, classes), reduction == Reduction::kNone ? 4 : 3);
        const double near = type == kFloat64 ? 1e-12 : type == kFloat32 ? 2e-5 : 3e-2;
        EXPECT_TRUE(testing::close(got.loss.to(kFloat64), want.loss.to(kFloat64), near, near));
        for (size_t i = 0; i < want.gradients.size(); ++i)
          EXPECT_TRUE(
              testing::close(got.gradients[i].to(kFloat64), want.gradients[i].to(kFloat64), near, near))
              << type << " " << classes << " classes, gradient " << i;
      }
}

}  // namespace
}  // namespace weft::cuda
