// compile() with modules: layers, train flags, moved parameters, and updates between the calls.
#include <gtest/gtest.h>

#include <weft/weft.h>

#include "../support/errors.h"

namespace weft {
namespace {

using test::has;
using Floats = std::vector<float>;

Floats values(const Tensor& x) { return x.to_vector<float>(); }

TEST(CompileModules, a_policy_is_replayed_and_sees_each_step_of_its_optimizer) {
  manual_seed(1);
  const nn::Linear hidden(4, 128), out(128, 2);
  std::vector<Tensor> all = hidden.parameters();
  for (const Tensor& p : out.parameters()) all.push_back(p);
  optim::Adam adam(all, {.lr = 1e-2});
  const auto policy = [&](const Tensor& x) { return softmax(out.forward(relu(hidden.forward(x))), 1); };
  auto replayed = compile(policy);
  for (int i = 0; i < 6; ++i) {
    const Tensor x = randn({1, 4});
    {
      const NoGrad quiet;
      EXPECT_EQ(values(replayed(x)), values(policy(x)));
    }
    adam.zero_grad();
    policy(x).select(1, 0).sum().backward();
    adam.step();
  }
  EXPECT_EQ(replayed.stats().replays, 4);
  EXPECT_EQ(replayed.stats().eager, 0);
}

TEST(CompileModules, recurrent_layers_embeddings_norms_and_attention_are_replayed) {
  manual_seed(2);
  const nn::Embedding table(20, 8);
  const nn::LSTM lstm(8, 8, {.num_layers = 2});
  const nn::GRU gru(8, 8, {.bidirectional = true});
  const nn::LayerNorm norm(16);
  const auto model = [&](const Tensor& ids) {
    const Tensor y = norm.forward(gru.forward(lstm.forward(table.forward(ids)).y).y);
    const Tensor heads = y.reshape({5, 3, 2, 8}).permute({1, 2, 0, 3});
    return std::pair(y, scaled_dot_product_attention(heads, heads, heads, {.causal = true}));
  };
  auto replayed = compile(model);
  const InferenceMode quiet;
  for (int i = 0; i < 5; ++i) {
    const Tensor ids = randint(0, 20, {5, 3});
    const auto [y, z] = model(ids);
    const auto [u, v] = replayed(ids);
    EXPECT_EQ(values(u), values(y));
    EXPECT_EQ(values(v), values(z));
  }
  EXPECT_EQ(replayed.reason(), "");
}

TEST(CompileModules, train_flags_and_moved_parameters_lead_to_new_recordings) {
  manual_seed(3);
  struct Net : nn::Module {
    nn::Linear linear{4, 4};
    nn::Dropout drop{0.5};
    Net() {
      add("linear", linear);
      add("drop", drop);
    }
    Tensor forward(const Tensor& x) const { return drop.forward(linear.forward(x)); }
  } net;
  auto replayed = compile([&](const Tensor& x) { return net.forward(x); });
  const NoGrad quiet;
  const auto compared = [&](const Tensor& x) {
    for (int i = 0; i < 4; ++i) {
      manual_seed(10);
      const Tensor wanted = net.forward(x);
      manual_seed(10);
      EXPECT_TRUE(replayed(x).equal(wanted));
    }
    EXPECT_EQ(replayed.reason(), "");
  };
  const Tensor x = randn({2, 4});
  compared(x);
  net.eval();
  compared(x);
  net.train();
  compared(x);
  net.to(kFloat64);
  compared(x.to(kFloat64));
  net.to(kFloat32);
  compared(x);
}

}  // namespace
}  // namespace weft
