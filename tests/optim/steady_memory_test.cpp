// A training step that has run before takes no memory from the operating system: all of its blocks are those
// of the step before.
#include <gtest/gtest.h>

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

void expect_no_fresh_memory(bool fused) {
  if (!keeps_freed_blocks()) GTEST_SKIP() << "freed memory is not kept here";
  const ThreadScope one(1);
  const SteadyModel model;
  SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  const Tensor ids = randint(0, SteadyModel::kWords, {SteadyModel::kSteps, SteadyModel::kBatch}),
               target = randint(0, SteadyModel::kWords, {SteadyModel::kSteps * SteadyModel::kBatch});
  std::vector<int64_t> reserved;  // in the middle too: memory that is given back and taken again would show
  const auto step = [&] {
    sgd.zero_grad();
    const Tensor loss = model.loss(ids, target, fused);
    reserved.push_back(memory_stats().reserved);
    loss.backward();
    reserved.push_back(memory_stats().reserved);
    sgd.step_clipped(0.25);
    reserved.push_back(memory_stats().reserved);
  };
  for (int i = 0; i < 3; ++i) step();
  const MemoryStats warm = memory_stats();
  reserved.clear();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(reserved, std::vector<int64_t>(15, warm.reserved));
  EXPECT_EQ(memory_stats().peak_reserved, warm.peak_reserved);
  EXPECT_GT(memory_stats().allocations, warm.allocations);
}

TEST(SteadyMemory, a_language_model_step_takes_no_fresh_memory) { expect_no_fresh_memory(false); }
TEST(SteadyMemory, nor_does_one_whose_decoder_and_loss_are_one_operation) { expect_no_fresh_memory(true); }

}  // namespace
}  // namespace weft::optim
