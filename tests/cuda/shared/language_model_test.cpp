// The training step of the word language model as one recorded graph. Forward has embedding, a stack of LSTM
// layers whose state is carried from window to window, dropout, decoder and cross entropy. Then come backward
// with the sorted gradient of the embedding, clipping and the optimizer's step.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "cuda/shared/device_test.h"
#include "cuda/shared/language_model.h"

namespace weft::test {
namespace {

using std::vector;

constexpr int64_t kVocabulary = 37, kSize = 12, kBatch = 4, kWindow = 5, kWindows = 8;

/// Losses of eight windows of a text that can be learnt, and the embedding after them.
template <class Optimizer, class Options>
vector<float> course(Device device, bool recorded, double p, const Options& options) {
  Generator numbers(7);
  LanguageModel model(kVocabulary, kSize, p, p);
  model.draw(numbers, 0.3);
  model.to(device);
  model.seed(5);
  Tensor h = zeros({2, kBatch, kSize}, {.device = device}), c = h.clone();
  Optimizer optimizer(model.parameters(), options);
  vector<int64_t> words;
  for (int64_t i = 0; i < (kWindow * kWindows + 1) * kBatch; ++i)
    words.push_back((i / kBatch * 5 + i % kBatch + (i * i) % 3) % kVocabulary);
  const Tensor text = from_vector(words, {kWindow * kWindows + 1, kBatch}, device);
  Tensor ids = text.narrow(0, 0, kWindow).clone(), target = text.narrow(0, 1, kWindow).clone(), loss;
  const auto step = [&] {
    optimizer.zero_grad();
    const auto out = model.forward(ids, target, h.clone(), c.clone());
    h.copy_(out.h), c.copy_(out.c);
    loss = out.loss;
    loss.backward();
    optim::clip_grad_norm_async(model.parameters(), 0.5);
    optimizer.step();
  };
  std::optional<cuda::Graph> graph;
  vector<float> told;
  for (int64_t w = 0; w < kWindows; ++w) {
    ids.copy_(text.narrow(0, w * kWindow, kWindow)), target.copy_(text.narrow(0, w * kWindow + 1, kWindow));
    if (recorded && w == 1) graph.emplace(device).capture(step);
    if (graph) graph->replay();
    else step();
    told.push_back(loss.item<float>());
  }
  for (const float v : model.encoder.weight.template to_vector<float>()) told.push_back(v);
  return told;
}

template <class Optimizer, class Options> void compare(Device gpu, const Options& options) {
  const auto cpu = course<Optimizer>(kCpu, false, 0, options),
             plain = course<Optimizer>(gpu, false, 0, options),
             recorded = course<Optimizer>(gpu, true, 0, options);
  ASSERT_EQ(plain.size(), cpu.size());
  ASSERT_EQ(recorded.size(), cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_NEAR(plain[i], cpu[i], 2e-4) << i;
    EXPECT_NEAR(recorded[i], plain[i], 1e-5) << i;
  }
}

DEVICE_TEST(LanguageModel, a_recorded_step_with_sgd_takes_the_course_of_plain_steps) {
  compare<optim::SGD>(gpu, optim::SGDOptions{.lr = 2, .momentum = 0.5});
}
DEVICE_TEST(LanguageModel, a_recorded_step_with_adam_takes_the_course_of_plain_steps) {
  compare<optim::Adam>(gpu, optim::AdamOptions{.lr = 0.02, .eps = 1e-4});
}

DEVICE_TEST(LanguageModel, a_recorded_step_with_dropout_repeats) {
  const optim::SGDOptions options{.lr = 2, .momentum = 0.5};
  const auto first = course<optim::SGD>(gpu, true, 0.3, options),
             again = course<optim::SGD>(gpu, true, 0.3, options);
  EXPECT_EQ(first, again);
  EXPECT_NE(first, course<optim::SGD>(gpu, true, 0, options));
  for (const float v : first) EXPECT_TRUE(std::isfinite(v));
}

}  // namespace
}  // namespace weft::test
