// The word language model of the examples, five clipped SGD windows with carried state, against PyTorch.
#include <weft/weft.h>

#include "../support/golden.h"

namespace weft {
namespace {

using testing::close;
using testing::Golden;

void run(const char* file, bool tied) {
  const Golden g(file);
  nn::Embedding encoder(23, 11);
  nn::LSTM rnn(11, 11, {.num_layers = 2});
  nn::Linear decoder(11, 23);
  for (nn::Module* part : std::initializer_list<nn::Module*>{&encoder, &rnn, &decoder})
    part->to(testing::golden_device());
  nn::NamedTensors all{{"encoder.weight", encoder.weight}};
  for (const auto& [name, p] : rnn.named_parameters()) all.emplace_back("rnn." + name, p);
  if (!tied) all.emplace_back("decoder.weight", decoder.weight);
  all.emplace_back("decoder.bias", decoder.bias);
  std::vector<Tensor> parameters;
  for (auto& [name, p] : all) {
    NoGrad guard;
    Tensor(p).copy_(g["init." + name]);
    parameters.push_back(p);
  }
  optim::SGD sgd(parameters, {.lr = 2});
  const Tensor tokens = g["in.tokens"];
  Tensor h, c;
  for (int64_t w = 0; w < 5; ++w) {
    sgd.zero_grad();
    const nn::RnnOutput out = rnn.forward(encoder.forward(tokens.narrow(0, 5 * w, 5)), h, c);
    h = out.h.detach(), c = out.c.detach();
    const Tensor logits =
        linear(out.y.reshape({-1, 11}), tied ? encoder.weight : decoder.weight, decoder.bias);
    const Tensor loss = cross_entropy(logits, tokens.narrow(0, 5 * w + 1, 5).reshape({-1}));
    EXPECT_NEAR(loss.item<double>(), g["out.loss"].select(0, w).item<double>(), 1e-5) << w;
    loss.backward();
    if (w == 0)
      for (const auto& [name, p] : all)
        if (g.has("grad." + name)) {
          EXPECT_TRUE(close(p.grad(), g["grad." + name], 1e-4, 1e-6)) << name;
        }
    EXPECT_NEAR(optim::clip_grad_norm(parameters, 0.25), g["out.norm"].select(0, w).item<double>(), 1e-5)
        << w;
    sgd.step();
  }
  for (const auto& [name, p] : all) EXPECT_TRUE(close(p, g["final." + name], 1e-4, 1e-5)) << name;
}

TEST(WordLm, five_windows_match_pytorch) {
  run("word_lm", false);
  EXPECT_FALSE(::testing::Test::HasFailure());
}
TEST(WordLm, five_tied_windows_match_pytorch) {
  run("word_lm_tied", true);
  EXPECT_FALSE(::testing::Test::HasFailure());
}

}  // namespace
}  // namespace weft
