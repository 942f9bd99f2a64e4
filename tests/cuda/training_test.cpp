// Training on the device: the golden language model, and the course of a hundred steps beside the CPU's.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include <weft/tensor/cuda.h>
#include <weft/weft.h>

#include "cuda/shared/language_model.h"
#include "support/golden.h"

namespace weft {
namespace {

using test::LanguageModel;
using testing::Golden;

struct CudaTraining : ::testing::Test {
  void SetUp() override {
    try {
      backend(gpu);
    } catch (const DeviceError& e) {
      GTEST_SKIP() << e.what();
    }
  }
  const Device gpu{DeviceType::kCuda};
};

TEST_F(CudaTraining, five_windows_of_the_language_model_match_pytorch) {
  const Golden g("word_lm");
  LanguageModel model(23, 11, 0);
  {
    NoGrad quiet;
    for (const auto& [name, p] : model.named_parameters()) Tensor(p).copy_(g["init." + name]);
  }
  model.to(gpu);
  const std::vector<Tensor> parameters = model.parameters();
  optim::SGD sgd(parameters, {.lr = 2});
  const Tensor tokens = g["in.tokens"].to(gpu);
  Tensor h, c;
  for (int64_t w = 0; w < 5; ++w) {
    sgd.zero_grad();
    const auto out = model.forward(tokens.narrow(0, 5 * w, 5), tokens.narrow(0, 5 * w + 1, 5), h, c);
    h = out.h, c = out.c;
    EXPECT_NEAR(out.loss.item<double>(), g["out.loss"].select(0, w).item<double>(), 1e-5) << w;
    out.loss.backward();
    EXPECT_NEAR(optim::clip_grad_norm(parameters, 0.25), g["out.norm"].select(0, w).item<double>(), 1e-5)
        << w;
    sgd.step();
  }
  for (const auto& [name, p] : model.named_parameters())
    EXPECT_TRUE(testing::close(p.to(kCpu), g["final." + name], 1e-4, 1e-5)) << name;
}

/// Losses of `steps` windows over text that repeats with noise, so that there is something to learn.
std::vector<double> course(Device device, int steps) {
  constexpr int64_t kVocabulary = 500, kSize = 64, kBatch = 20, kWindow = 35;
  Generator numbers(17);
  LanguageModel model(kVocabulary, kSize, 0.2);
  model.draw(numbers, 0.1);
  model.to(device);
  model.seed(5);
  const std::vector<Tensor> parameters = model.parameters();
  optim::SGD sgd(parameters, {.lr = 5});
  const std::vector<int64_t> noise =
      randint(0, 7, {(kWindow * steps + 1) * kBatch}, {.dtype = kInt64}, &numbers).to_vector<int64_t>();
  std::vector<int64_t> words;
  for (size_t i = 0; i < noise.size(); ++i)
    words.push_back(static_cast<int64_t>(i) / kBatch % 10 * 13 + noise[i]);
  const Tensor text = from_vector(words, {kWindow * steps + 1, kBatch}, device);
  Tensor h, c;
  std::vector<double> losses;
  for (int64_t i = 0; i < steps; ++i) {
    sgd.zero_grad();
    const auto out =
        model.forward(text.narrow(0, i * kWindow, kWindow), text.narrow(0, i * kWindow + 1, kWindow), h, c);
    h = out.h, c = out.c;
    out.loss.backward();
    optim::clip_grad_norm(parameters, 0.25);
    sgd.step();
    losses.push_back(out.loss.item<double>());
  }
  return losses;
}

TEST_F(CudaTraining, a_hundred_steps_follow_the_cpu_within_rounding) {
  const std::vector<double> here = course(kCpu, 100), there = course(gpu, 100);
  double worst = 0;
  for (size_t i = 0; i < here.size(); ++i) {
    worst = std::max(worst, std::abs(there[i] - here[i]) / here[i]);
    if (i % 10 == 0 || i + 1 == here.size())
      std::printf("step %3zu  cpu %.7f  cuda %.7f\n", i, here[i], there[i]);
    ASSERT_NEAR(there[i], here[i], 2e-4 * here[i]) << i;
  }
  std::printf("largest relative difference %.2e\n", worst);
  EXPECT_LT(here.back(), here.front());
}

}  // namespace
}  // namespace weft
