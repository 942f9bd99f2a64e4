// compile() with modules: layers, train flags, moved parameters, and updates between the calls.
#include <gtest/gtest.h>

#include <weft/weft.h>

#include "../support/errors.h"

namespace weft::compile_tests {
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

TEST(CompileModules, train_flags_that_f_changes_itself_are_refused) {
  nn::Dropout drop(0.5);
  auto f = compile([&](const Tensor& x) {
    drop.eval();
    const Tensor y = drop.forward(x);
    drop.train();
    return y;
  });
  const Tensor x = ones({4});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(values(f(x)), values(x));
  EXPECT_TRUE(has(f.reason(), "train() flag"));
}

TEST(CompileModules, a_parameter_that_moved_is_seen_though_its_old_memory_lives_on) {
  manual_seed(4);
  nn::Linear net(4, 2);
  auto replayed = compile([&](const Tensor& x) { return net.forward(x); });
  const NoGrad quiet;
  const Tensor x = randn({3, 4}), old = net.weight.detach();
  for (int i = 0; i < 4; ++i) replayed(x);
  EXPECT_EQ(replayed.reason(), "");
  net.to(kFloat64);
  net.to(kFloat32);
  net.weight.mul_(2);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values(replayed(x)), values(net.forward(x)));
  EXPECT_EQ(replayed.reason(), "");
}

struct LanguageModel {
  nn::Embedding encoder{30, 8};
  nn::LSTM rnn{8, 8, {.num_layers = 2, .dropout = 0.2}};
  nn::Linear decoder{8, 30};
  nn::Dropout drop{0.2};
  std::vector<Tensor> parameters;
  optim::SGD sgd;

  LanguageModel() : parameters(all()), sgd(parameters, {.lr = 1}) {}
  std::vector<Tensor> all() const {
    std::vector<Tensor> out{encoder.weight};
    for (const Tensor& p : rnn.parameters()) out.push_back(p);
    out.push_back(decoder.weight);
    out.push_back(decoder.bias);
    return out;
  }
  Tensor step(const Tensor& ids, const Tensor& target) {
    sgd.zero_grad();
    const Tensor y = drop.forward(rnn.forward(drop.forward(encoder.forward(ids))).y);
    const Tensor loss =
        linear_cross_entropy(y.reshape({-1, y.size(2)}), decoder.weight, decoder.bias, target);
    loss.backward();
    sgd.step_clipped(0.25);
    return loss.detach();
  }
};

TEST(CompileModules, the_step_of_a_language_model_is_replayed) {
  manual_seed(5);
  LanguageModel plain;
  manual_seed(5);
  LanguageModel recorded;
  auto step = compile([&](const Tensor& ids, const Tensor& target) { return recorded.step(ids, target); });
  for (int i = 0; i < 7; ++i) {
    const Tensor ids = randint(0, 30, {6, 4}), target = randint(0, 30, {24});
    const uint64_t at = default_generator().offset();
    const Tensor wanted = plain.step(ids, target);
    const uint64_t next = default_generator().offset();
    default_generator().set_offset(at);
    EXPECT_EQ(values(step(ids, target)), values(wanted)) << i;
    EXPECT_EQ(default_generator().offset(), next);
    for (size_t k = 0; k < plain.parameters.size(); ++k)
      EXPECT_TRUE(recorded.parameters[k].equal(plain.parameters[k])) << i << ", parameter " << k;
  }
  EXPECT_EQ(step.reason(), "");
  EXPECT_GE(step.stats().replays, 4);
}

}  // namespace
}  // namespace weft::compile_tests
