// Module: names, modes, state, seeding; and the layers that are one op each.
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include <weft/weft.h>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft {
namespace {

using test::error_of;
using test::has;
using testing::close;
using testing::Golden;
using testing::same_bits;

struct Net : nn::Module {
  nn::Linear first{3, 5}, second{5, 2};
  nn::Dropout drop{0.5};
  Net() {
    add("first", first);
    add("second", second);
    add("drop", drop);
  }
  Tensor forward(const Tensor& x) { return second.forward(drop.forward(relu(first.forward(x)))); }
};

TEST(Module, lists_parameters_under_dotted_names_in_order) {
  Net net;
  std::vector<std::string> names;
  for (const auto& [name, p] : net.named_parameters()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"first.weight", "first.bias", "second.weight", "second.bias"}));
  EXPECT_EQ(net.parameters().size(), 4u);
  EXPECT_EQ(net.named_modules()[1].first, "first");
}

TEST(Module, a_tied_parameter_is_listed_once_and_saved_under_both_names) {
  struct Tied : nn::Module {
    Tensor a, b;
    Tied() {
      a = add("a", ones({2, 3}));
      b = add("b", a);
    }
  } tied;
  EXPECT_EQ(tied.parameters().size(), 1u);
  EXPECT_EQ(tied.state_dict().size(), 2u);
}

TEST(Module, train_and_eval_reach_every_child) {
  Net net;
  EXPECT_TRUE(net.drop.is_training());
  net.eval();
  EXPECT_FALSE(net.drop.is_training());
  const Tensor x = randn({4, 3});
  EXPECT_TRUE(same_bits(net.forward(x), net.forward(x)));
}

TEST(Module, tied_names_with_different_values_are_refused) {
  struct Tied : nn::Module {
    nn::Linear a{2, 3};
    Tied() {
      add("a", a);
      add("again", a.weight);
    }
  } tied;
  const Tensor before = tied.a.weight.detach().clone(), one = ones({3, 2}), other = full({3, 2}, 7.0);
  const nn::StateDict wrong{{"again", one}, {"a.weight", other}, {"a.bias", ones({3})}};
  const std::string text = test::error_of<ValueError>([&] { tied.load_state_dict(wrong); });
  EXPECT_EQ(
      text,
      "load_state_dict: again and a.weight are one tensor here, and have different values in the state");
  EXPECT_TRUE(same_bits(tied.a.weight, before));
  const Tensor odd = full({3, 2}, std::numeric_limits<double>::quiet_NaN());
  tied.load_state_dict({{"again", odd}, {"a.weight", odd.clone()}, {"a.bias", ones({3})}});
  tied.load_state_dict({{"a.weight", other}, {"again", other}, {"a.bias", ones({3})}});
  EXPECT_TRUE(same_bits(tied.a.weight, other));
}

TEST(Module, a_state_may_alias_the_tensors_that_it_is_loaded_into) {
  struct Pair : nn::Module {
    Tensor a = add("a", full({2}, 1)), b = add("b", full({2}, 2));
  } pair;
  pair.load_state_dict({{"a", pair.b.detach()}, {"b", pair.a.detach()}});
  EXPECT_TRUE(pair.a.equal(full({2}, 2)) && pair.b.equal(full({2}, 1)));
}

TEST(Module, state_travels_through_a_file_and_into_a_clone) {
  Net net;
  const std::string path = (std::filesystem::path(::testing::TempDir()) / "weft_module.safetensors").string();
  net.save(path);
  Net other;
  other.load(path);
  std::filesystem::remove(path);
  const auto copy = nn::clone(net);
  for (size_t i = 0; i < net.parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(net.parameters()[i], other.parameters()[i]));
    EXPECT_TRUE(same_bits(net.parameters()[i], copy->parameters()[i]));
    EXPECT_FALSE(net.parameters()[i].shares_storage(copy->parameters()[i]));
  }
}

TEST(Module, a_clone_has_the_modes_of_each_child_and_the_frozen_parameters) {
  nn::Sequential net;
  net.append<nn::Dropout>(0.5);
  auto& layer = net.append<nn::Linear>(2, 2);
  net[0].eval();
  layer.weight.requires_grad_(false);
  nn::Sequential copy;
  copy.append<nn::Dropout>(0.5);
  copy.append<nn::Linear>(2, 2);
  copy.copy_modes(net);
  EXPECT_FALSE(copy[0].is_training());
  EXPECT_TRUE(copy[1].is_training());
  EXPECT_FALSE(copy.parameters()[0].requires_grad());
  EXPECT_TRUE(copy.parameters()[1].requires_grad());
  EXPECT_FALSE(nn::clone(layer, 2, 2)->weight.requires_grad());
}

TEST(Module, loading_names_what_is_missing_and_changes_nothing) {
  Net net;
  const Tensor before = net.first.weight.detach().clone();
  nn::StateDict state{{"first.weight", ones({5, 3})}, {"third", ones({1})}};
  try {
    net.load_state_dict(state);
    FAIL() << "no error";
  } catch (const ValueError& e) {
    EXPECT_NE(std::string(e.what()).find("second.weight"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("third"), std::string::npos) << e.what();
  }
  state = {{"first.weight", ones({5, 4})}};
  EXPECT_THROW(net.load_state_dict(state, false), ShapeError);
  EXPECT_TRUE(same_bits(net.first.weight, before));
}

TEST(Module, a_name_is_registered_once) {
  struct Twice : nn::Module {
    Twice() {
      add("w", ones({1}));
      add("w", ones({1}));
    }
  };
  EXPECT_THROW(Twice(), ValueError);
}

TEST(Module, a_seed_makes_draws_independent_of_the_place) {
  Net whole;
  whole.seed(11);
  nn::Dropout alone(0.5);
  alone.seed(11, "drop");
  const Tensor x = ones({64});
  EXPECT_TRUE(same_bits(whole.drop.forward(x), alone.forward(x)));
}

TEST(Module, converts_parameters_in_place_and_handles_follow) {
  Net net;
  const Tensor weight = net.first.weight;
  net.to(kFloat64);
  EXPECT_EQ(weight.dtype(), kFloat64);
  const Tensor y = net.forward(randn({2, 3}, {.dtype = kFloat64}));
  y.sum().backward();
  EXPECT_EQ(weight.grad().dtype(), kFloat64);
}

TEST(Module, prints_its_tree) {
  Net net;
  EXPECT_NE(net.to_string().find("(first): Linear(in=3, out=5)"), std::string::npos) << net.to_string();
}

TEST(Linear, matches_pytorch) {
  for (const char* name : {"rows", "no_bias", "vector", "rank_3"}) {
    const Golden g = Golden("linear").at(name);
    Tensor x = g["in.x"].clone().requires_grad_(), w = g["param.weight"].clone().requires_grad_(), b;
    if (g.has("param.bias")) b = g["param.bias"].clone().requires_grad_();
    const Tensor y = linear(x, w, b);
    EXPECT_TRUE(close(y, g["out.y"])) << name;
    (y * g["cot.y"]).sum().backward();
    EXPECT_TRUE(close(x.grad(), g["grad.in.x"])) << name;
    EXPECT_TRUE(close(w.grad(), g["grad.param.weight"])) << name;
    if (b.defined()) {
      EXPECT_TRUE(close(b.grad(), g["grad.param.bias"])) << name;
    }
  }
}

TEST(Embedding, matches_pytorch_with_repeated_ids_and_padding) {
  for (const char* name : {"plain", "padding_0", "padding_last"}) {
    const Golden g = Golden("embedding").at(name);
    Tensor w = g["param.weight"].clone().requires_grad_();
    const int64_t padding = std::string(name) == "plain"       ? -1
                            : std::string(name) == "padding_0" ? 0
                                                               : w.size(0) - 1;
    std::string ids;
    for (const std::string& n : g.names("in.")) ids = n;
    const Tensor y = embedding(w, g[ids], padding);
    EXPECT_TRUE(close(y, g["out.y"], 0, 0)) << name;
    (y * g["cot.y"]).sum().backward();
    EXPECT_TRUE(close(w.grad(), g["grad.param.weight"])) << name;
  }
}

TEST(Embedding, is_dense_by_default_and_sparse_with_the_same_bits) {
  Generator draws(5);
  const Tensor ids = from_vector(std::vector<int64_t>{1, 6, 1, 2}, {2, 2}),
               cotangent = randn({2, 2, 3}, {}, &draws);
  Generator one(1), other(1);
  const nn::Embedding dense(7, 3, {.padding_idx = 2, .generator = &one}),
      sparse(7, 3, {.padding_idx = 2, .generator = &other, .sparse = true});
  EXPECT_EQ(dense.name(), "Embedding(7, 3, padding_idx=2)");
  EXPECT_EQ(sparse.name(), "Embedding(7, 3, padding_idx=2, sparse=true)");
  for (const nn::Embedding* table : {&dense, &sparse}) table->forward(ids).backward(cotangent);
  EXPECT_FALSE(dense.weight.row_grad().defined());
  EXPECT_EQ(sparse.weight.row_grad().rows.to_vector<int64_t>(), (std::vector<int64_t>{1, 6}));
  EXPECT_TRUE(testing::same_bits(sparse.weight.grad(), dense.weight.grad()));
}

TEST(Embedding, the_padding_row_begins_at_zero_and_bad_ids_are_named) {
  nn::Embedding table(7, 3, {.padding_idx = 2});
  EXPECT_EQ(table.weight.select(0, 2).abs().sum().item<double>(), 0);
  EXPECT_THROW(nn::Embedding(7, 3, {.padding_idx = 7}), IndexError);
  try {
    table.forward(from_vector(std::vector<int64_t>{1, 9}, {2}));
    FAIL() << "no error";
  } catch (const IndexError& e) {
    EXPECT_NE(std::string(e.what()).find("9"), std::string::npos) << e.what();
  }
}

TEST(Sequential, runs_layers_in_order_and_names_them_by_position) {
  nn::Sequential net;
  net.append<nn::Linear>(3, 4);
  net.append<nn::ReLU>();
  net.append<nn::Linear>(4, 2);
  net.append<nn::LogSoftmax>();
  EXPECT_EQ(net.forward(randn({5, 3})).sizes(), (Shape{5, 2}));
  EXPECT_EQ(net.named_parameters()[2].first, "2.weight");
}

/// The module runs the op and prints as a user names it.
template <class M>
void expect_op(const M& module, const Tensor& want, const Tensor& x, const std::string& name) {
  EXPECT_TRUE(same_bits(module.forward(x), want)) << name;
  EXPECT_EQ(module.name(), name);
  EXPECT_TRUE(module.parameters().empty()) << name;
}

TEST(Layers, without_parameters_are_the_ops_of_their_names) {
  Generator g(7);
  const Tensor x = randn({3, 4, 5}, {}, &g);
  expect_op(nn::ReLU(), relu(x), x, "ReLU");
  expect_op(nn::Tanh(), tanh(x), x, "Tanh");
  expect_op(nn::Sigmoid(), sigmoid(x), x, "Sigmoid");
  expect_op(nn::GELU(), gelu(x), x, "GELU");
  expect_op(nn::SiLU(), silu(x), x, "SiLU");
  expect_op(nn::Softmax(), x.softmax(-1), x, "Softmax(dim=-1)");
  expect_op(nn::Softmax(1), x.softmax(1), x, "Softmax(dim=1)");
  expect_op(nn::LogSoftmax(), x.log_softmax(-1), x, "LogSoftmax(dim=-1)");
  expect_op(nn::LogSoftmax(0), x.log_softmax(0), x, "LogSoftmax(dim=0)");
  EXPECT_THROW(nn::Softmax(3).forward(x), IndexError);
}

TEST(LayerNorm, is_the_op_with_its_parameters_and_begins_as_plain_normalisation) {
  Generator g(8);
  const Tensor x = randn({3, 5}, {}, &g);
  nn::LayerNorm norm(5, 1e-3);
  EXPECT_TRUE(same_bits(norm.forward(x), layer_norm(x, {5}, ones({5}), zeros({5}), 1e-3)));
  nn::init::normal_(norm.weight, 1, 0.5, &g), nn::init::normal_(norm.bias, 0, 0.5, &g);
  const Tensor y = norm.forward(x);
  EXPECT_TRUE(same_bits(y, layer_norm(x, {5}, norm.weight, norm.bias, 1e-3)));
  EXPECT_FALSE(close(y, layer_norm(x, {5}, norm.weight, norm.bias, 1e-1)));
  y.square().sum().backward();
  EXPECT_EQ(norm.weight.grad().sizes(), (Shape{5}));
  EXPECT_EQ(norm.parameters().size(), 2u);
  EXPECT_THROW(norm.forward(zeros({3, 4})), ShapeError);
}

TEST(Init, ranges_and_moments_are_those_of_the_rule) {
  Generator g(3);
  const Tensor u = nn::init::uniform_(empty({101, 97}), -0.1, 0.1, &g);
  EXPECT_GE(u.min().item<double>(), -0.1);
  EXPECT_LT(u.max().item<double>(), 0.1);
  EXPECT_NEAR(u.mean().item<double>(), 0, 3e-3);
  const Tensor x = nn::init::xavier_uniform_(empty({30, 20}), 1, &g);
  EXPECT_LE(x.abs().max().item<double>(), std::sqrt(6.0 / 50));
  const Tensor n = nn::init::kaiming_normal_(empty({211, 101}), 0, &g);
  EXPECT_NEAR(n.std().item<double>(), std::sqrt(2.0 / 101), 5e-3);
  const Tensor xn = nn::init::xavier_normal_(empty({211, 101}), 3, &g);
  EXPECT_NEAR(xn.std().item<double>(), 3 * std::sqrt(2.0 / 312), 5e-3);
  EXPECT_NEAR(xn.mean().item<double>(), 0, 5e-3);
  const Tensor k = nn::init::kaiming_uniform_(empty({103, 17, 3}), 0.5, &g);  // 51 inputs
  const double bound = std::sqrt(6 / (1.25 * 51));
  EXPECT_LE(k.abs().max().item<double>(), bound);
  EXPECT_GT(k.abs().max().item<double>(), 0.99 * bound);
  EXPECT_NEAR(k.std().item<double>(), bound / std::sqrt(3.0), 0.02 * bound);
  EXPECT_NEAR(k.mean().item<double>(), 0, 0.03 * bound);
  const Tensor q = nn::init::orthogonal_(empty({5, 7}, {.dtype = kFloat64}), 1, &g);
  EXPECT_TRUE(close(q.matmul(q.t()), eye(5, {.dtype = kFloat64}), 1e-12, 1e-12));
  EXPECT_THROW(nn::init::fan(empty({3})), ShapeError);
}

TEST(Loss, modules_are_the_ops_with_their_options) {
  const Tensor x = randn({7, 5}), t = randint(0, 5, {7});
  EXPECT_TRUE(same_bits(nn::CrossEntropyLoss({.reduction = Reduction::kSum}).forward(x, t),
                        cross_entropy(x, t, {.reduction = Reduction::kSum})));
  EXPECT_TRUE(close(nn::NLLLoss().forward(x.log_softmax(1), t), nn::CrossEntropyLoss().forward(x, t)));
  EXPECT_NEAR(nn::MSELoss().forward(ones({3}), zeros({3})).item<double>(), 1, 0);
}

TEST(Categorical, matches_pytorch) {
  const Golden all("categorical");
  for (const char* kind : {"logits", "probs"})
    for (const char* form : {"vector", "rows", "rank_3"}) {
      const Golden g = all.at(std::string(kind) + "_" + form);
      const bool logits = std::string(kind) == "logits";
      Tensor in = g[std::string("in.") + kind].clone().requires_grad_();
      const auto c = logits ? nn::Categorical::from_logits(in) : nn::Categorical::from_probs(in);
      const Tensor log_prob = c.log_prob(g["in.value"]), entropy = c.entropy();
      EXPECT_TRUE(close(log_prob, g["out.log_prob"])) << kind << form;
      EXPECT_TRUE(close(entropy, g["out.entropy"])) << kind << form;
      Tensor total = (log_prob * g["cot.log_prob"]).sum() + (entropy * g["cot.entropy"]).sum();
      if (g.has("cot.probs")) total = total + (c.probs() * g["cot.probs"]).sum();
      if (g.has("cot.logits")) total = total + (c.logits() * g["cot.logits"]).sum();
      total.backward();
      EXPECT_TRUE(close(in.grad(), g[std::string("grad.in.") + kind])) << kind << form;
    }
}

TEST(Layers, name_themselves_and_an_undefined_tensor) {
  const nn::Linear linear(2, 3);
  const Tensor none;
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"Linear: x", [&] { linear.forward(none); }},
      {"LSTM: x", [&] { nn::LSTM(2, 3).forward(none); }},
      {"Categorical: probs", [&] { nn::Categorical::from_probs(none); }},
      {"Categorical: logits", [&] { nn::Categorical::from_logits(none); }},
      {"Categorical: value", [&] { nn::Categorical::from_logits(randn({3})).log_prob(none); }},
  };
  for (const auto& [start, call] : calls)
    EXPECT_TRUE(has(error_of<ValueError>(call),
                    start + " is undefined: it was never assigned, or it is a grad() that is not there"));
}

TEST(Categorical, samples_follow_the_probabilities) {
  Generator g(5);
  const auto c = nn::Categorical::from_probs(tensor({{0.1, 0.6, 0.3}}).expand({20011, 3}));
  const Tensor s = c.sample(&g);
  EXPECT_EQ(s.sizes(), (Shape{20011}));
  const double want[] = {0.1, 0.6, 0.3};
  for (int64_t k = 0; k < 3; ++k) EXPECT_NEAR((s == k).to(kFloat32).mean().item<double>(), want[k], 0.015);
}

TEST(Categorical, a_value_broadcasts_with_the_batch) {
  const Tensor logits = randn({4, 3}, {.dtype = kFloat64, .requires_grad = true});
  const auto c = nn::Categorical::from_logits(logits);
  const auto ids = [](const Shape& sizes, std::vector<int64_t> v) { return from_vector(v, sizes); };
  const auto at = [&](int64_t row, int64_t k) { return c.logits()[row][k].item<double>(); };
  for (const Shape& sizes : {Shape{1}, Shape{}}) {
    const Tensor y = c.log_prob(ids(sizes, {2}));
    ASSERT_EQ(y.sizes(), (Shape{4})) << to_string(sizes);
    for (int64_t row = 0; row < 4; ++row) EXPECT_EQ(y[row].item<double>(), at(row, 2));
  }
  const Tensor y = c.log_prob(ids({2, 1}, {0, 1}));
  ASSERT_EQ(y.sizes(), (Shape{2, 4}));
  for (int64_t row = 0; row < 4; ++row) {
    EXPECT_EQ(y[0][row].item<double>(), at(row, 0));
    EXPECT_EQ(y[1][row].item<double>(), at(row, 1));
  }
  y.sum().backward();
  EXPECT_TRUE(close(logits.grad(), ids({4, 3}, {1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0}) - c.probs() * 2, 1e-12));
  const auto one = nn::Categorical::from_logits(randn({3}));
  EXPECT_EQ(one.log_prob(ids({2, 2}, {0, 1, 2, 0})).sizes(), (Shape{2, 2}));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { c.log_prob(ids({2}, {0, 1})); }), "Categorical: "));
  EXPECT_TRUE(has(error_of<IndexError>([&] { c.log_prob(ids({}, {3})); }), "Categorical: "));
}

TEST(Categorical, weights_that_are_no_distribution_are_refused) {
  const auto refused = [](const Tensor& w, bool logits) {
    return error_of<ValueError>(
        [&] { logits ? nn::Categorical::from_logits(w) : nn::Categorical::from_probs(w); });
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kFar = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(has(refused(tensor({{1, 1, 1}, {2, 3, -1}}), false), "Categorical: weight -1 of class 2"));
  EXPECT_TRUE(has(refused(tensor({0, 0, 0}), false), "Categorical: "));
  EXPECT_TRUE(has(refused(tensor({{1, 1}, {0, 0}}), false), "row 1"));
  EXPECT_TRUE(has(refused(tensor({1, kNan}), false), "Categorical: weight nan of class 1"));
  EXPECT_TRUE(has(refused(tensor({1, kFar}), false), "Categorical: weight inf of class 1"));
  for (const double odd : {kNan, kFar})
    EXPECT_TRUE(has(refused(tensor({{1, 2}, {0, odd}}), true), "Categorical: the logits of row 1"));
  EXPECT_TRUE(has(refused(tensor({-kFar, -kFar}), true), "Categorical: the logits of row 0"));
  EXPECT_EQ(nn::Categorical::from_probs(empty({0, 3})).sample().sizes(), (Shape{0}));
}

TEST(Categorical, an_impossible_class_adds_nothing_to_the_entropy) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  const Tensor logits = tensor({0, -kFar, 0}, {.dtype = kFloat64, .requires_grad = true});
  const auto c = nn::Categorical::from_logits(logits);
  EXPECT_NEAR(c.entropy().item<double>(), std::log(2), 1e-15);
  c.entropy().backward();
  EXPECT_TRUE(close(logits.grad(), zeros({3}, {.dtype = kFloat64}), 1e-15, 1e-15));
  EXPECT_EQ(c.log_prob(tensor({1}, {.dtype = kInt64}))[0].item<double>(), -kFar);
}

}  // namespace
}  // namespace weft
