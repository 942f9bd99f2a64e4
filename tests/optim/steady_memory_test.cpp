// A training step that has run before takes no memory from the operating system: all of its blocks are those
// of the step before, and it touches no fresh page.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

#include <weft/weft.h>

namespace weft::optim {
namespace {

/// The word language model in small. Its logits and its weights are blocks beyond 2 MiB, which are mapped.
struct SteadyModel {
  static constexpr int64_t kWords = 9000, kSize = 80, kSteps = 12, kBatch = 8;
  nn::Embedding encoder{kWords, kSize};
  nn::LSTM rnn{kSize, kSize, {.num_layers = 2, .dropout = 0.2}};
  nn::Linear decoder{kSize, kWords};
  nn::Dropout drop{0.2};

  std::vector<Tensor> parameters() const {
    std::vector<Tensor> all{encoder.weight, decoder.weight, decoder.bias};
    for (const Tensor& p : rnn.parameters()) all.push_back(p);
    return all;
  }
  Tensor loss(const Tensor& ids, const Tensor& target, bool fused) const {
    const Tensor y = drop.forward(rnn.forward(drop.forward(encoder.forward(ids))).y).reshape({-1, kSize});
    return fused ? linear_cross_entropy(y, decoder.weight, decoder.bias, target)
                 : cross_entropy(decoder.forward(y), target);
  }
};

bool keeps_freed_blocks() {
  zeros({1 << 20});
  return memory_stats().cached >= 4 << 20;
}

/// Steps of the model on one thread.
class SteadySteps {
 public:
  explicit SteadySteps(bool fused) : fused_(fused) {}
  void step() {
    sgd_.zero_grad();
    const Tensor loss = model_.loss(ids_, target_, fused_);
    note();
    loss.backward();
    note();
    sgd_.step_clipped(0.25);
    note();
  }
  std::vector<int64_t> reserved;  // in the middle too: memory that is given back and taken again would show

 private:
  using Model = SteadyModel;
  void note() { reserved.push_back(memory_stats().reserved); }
  const ThreadScope one_{1};
  const bool fused_;
  const Model model_;
  SGD sgd_{model_.parameters(), {.lr = 0.1, .momentum = 0.9}};
  const Tensor ids_ = randint(0, Model::kWords, {Model::kSteps, Model::kBatch}),
               target_ = randint(0, Model::kWords, {Model::kSteps * Model::kBatch});
};

void expect_no_fresh_memory(bool fused) {
  if (!keeps_freed_blocks()) GTEST_SKIP() << "freed memory is not kept here";
  SteadySteps steps(fused);
  for (int i = 0; i < 3; ++i) steps.step();
  const MemoryStats warm = memory_stats();
  steps.reserved.clear();
  for (int i = 0; i < 5; ++i) steps.step();
  EXPECT_EQ(steps.reserved, std::vector<int64_t>(15, warm.reserved));
  EXPECT_EQ(memory_stats().peak_reserved, warm.peak_reserved);
  EXPECT_GT(memory_stats().allocations, warm.allocations);
}

/// Pages that this thread has touched first so far, or again after the system took them.
int64_t fresh_pages() {
  rusage used{};
  getrusage(RUSAGE_THREAD, &used);
  return used.ru_minflt;
}

void expect_no_fresh_pages(bool fused) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer has memory of its own";
#endif
  if (!keeps_freed_blocks()) GTEST_SKIP() << "freed memory is not kept here";
  SteadySteps steps(fused);
  for (int i = 0; i < 3; ++i) steps.step();
  // A fresh block is one fault per step at least, with huge pages too. The system may move pages at any time,
  // so the least of some turns counts.
  constexpr int kTurns = 20, kSteps = 5;
  int64_t least = INT64_MAX;
  for (int turn = 0; turn < kTurns && least > 0; ++turn) {
    const int64_t before = fresh_pages();
    for (int i = 0; i < kSteps; ++i) steps.step();
    least = std::min(least, fresh_pages() - before);
  }
  EXPECT_LT(least, kSteps) << "pages touched first in " << kSteps << " steps";
}

TEST(SteadyMemory, a_language_model_step_takes_no_fresh_memory) { expect_no_fresh_memory(false); }
TEST(SteadyMemory, nor_does_one_whose_decoder_and_loss_are_one_operation) { expect_no_fresh_memory(true); }
TEST(SteadyMemory, a_language_model_step_touches_no_fresh_page) { expect_no_fresh_pages(false); }
TEST(SteadyMemory, a_language_model_step_with_a_fused_loss_touches_no_fresh_page) {
  expect_no_fresh_pages(true);
}

TEST(SteadyMemory, a_multiple_of_a_loss_needs_no_more_memory_for_its_backward_than_the_loss) {
  if (!keeps_freed_blocks()) GTEST_SKIP() << "freed memory is not kept here";
  const ThreadScope one(1);
  const Tensor target = randint(0, 20000, {64});
  const Tensor x = randn({64, 20000}).requires_grad_(), w = randn({20000, 64}).requires_grad_();
  const auto backward_of = [&](const Tensor& loss) {
    empty_cache();
    const int64_t before = memory_stats().reserved;
    loss.backward();
    for (const Tensor& leaf : {x, w}) leaf.zero_grad();
    return memory_stats().reserved - before;
  };
  constexpr int64_t kGradient = 64 * 20000 * 4;
  EXPECT_LT(backward_of(cross_entropy(x, target) * 0.25), kGradient / 2);
  EXPECT_LT(backward_of(linear_cross_entropy(rand({64, 64}), w, Tensor(), target) * 0.25), kGradient / 2);
}

}  // namespace
}  // namespace weft::optim
