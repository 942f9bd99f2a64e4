// compile() of training steps: gradients of leaves, optimizers, and their guards.
#include <gtest/gtest.h>

#include <vector>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/compile.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/optim/optim.h>
#include <weft/tensor/factories.h>

#include "../support/errors.h"
#include "../support/leaf.h"

namespace weft::compile_tests {
namespace {

using test::has;
using test::row;
using test::values;
using Steps = std::vector<double>;

/// Steps of a small model by f and by its replays, which end with the same bits.
template <class Rule> void expect_same_training(const typename Rule::Options& options, int check_every) {
  struct Training {
    Tensor w = row({0.5, -0.25, 0.75}).requires_grad_(), b = row({0.1}).requires_grad_();
    Rule rule;
    explicit Training(const typename Rule::Options& o) : rule({w, b}, o) {}
    Tensor operator()(const Tensor& x, const Tensor& y) {
      rule.zero_grad();
      const Tensor loss = square((x * w).sum({1}) + b - y).mean();
      loss.backward();
      rule.step();
      return loss.detach();
    }
  };
  Training plain(options), recorded(options);
  auto f =
      compile([&](const Tensor& x, const Tensor& y) { return recorded(x, y); }, {.check_every = check_every});
  manual_seed(4);
  for (int i = 0; i < 9; ++i) {
    if (i == 6)
      for (Rule* const rule : {&plain.rule, &recorded.rule}) rule->set_lr(0, 0.01);
    const Tensor x = randn({4, 3}, {.dtype = kFloat64}), y = randn({4}, {.dtype = kFloat64});
    EXPECT_EQ(values(f(x, y)), values(plain(x, y))) << i;
    EXPECT_EQ(values(recorded.w), values(plain.w)) << i;
    EXPECT_EQ(values(recorded.b), values(plain.b)) << i;
    EXPECT_EQ(values(recorded.w.grad()), values(plain.w.grad())) << i;
    EXPECT_EQ(recorded.rule.steps(0), i + 1);
  }
  EXPECT_EQ(f.reason(), "");
  EXPECT_GE(f.stats().replays, 5);
}

TEST(CompileTraining, a_training_step_is_replayed_with_the_rate_of_the_replay) {
  for (const int check_every : {0, 1, 2}) {
    expect_same_training<optim::SGD>({.lr = 0.1}, check_every);
    expect_same_training<optim::SGD>({.lr = 0.1, .momentum = 0.9}, check_every);
    expect_same_training<optim::Adam>({.lr = 0.1}, check_every);
  }
}

TEST(CompileTraining, a_gradient_of_a_replay_is_a_fresh_tensor_that_backward_may_add_to) {
  Tensor w = test::leaf({2, 3});
  auto f = compile([&](const Tensor& x) {
    w.zero_grad();
    (x * w).sum().backward();
  });
  std::vector<Tensor> kept;
  for (int i = 0; i < 5; ++i) {
    f(row({1.0 * i, 2}));
    kept.push_back(w.grad());
  }
  EXPECT_EQ(f.reason(), "");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(values(kept[static_cast<size_t>(i)]), (Steps{1.0 * i, 2}));
  (w * 10).sum().backward();
  EXPECT_EQ(values(w.grad()), (Steps{14, 12}));
  f(row({1, 1}));
  EXPECT_EQ(values(w.grad()), (Steps{1, 1}));
}

TEST(CompileTraining, a_grad_that_f_has_not_made_is_not_replayed) {
  Tensor w = test::leaf({2, 3});
  auto adds = compile([&](const Tensor& x) { (x * w).sum().backward(); });
  for (int i = 0; i < 4; ++i) {
    w.zero_grad();
    adds(row({5, 7}));
    EXPECT_EQ(values(w.grad()), (Steps{5, 7}));
  }
  EXPECT_EQ(adds.reason(), "");
  adds(row({5, 7}));
  EXPECT_EQ(values(w.grad()), (Steps{10, 14}));
  EXPECT_TRUE(has(adds.reason(), "to which f would add"));
  auto reads = compile([&](const Tensor& x) { return x + w.grad(); });
  for (int i = 0; i < 6; ++i) {
    w.set_grad(row({1.0 * i, 1}));
    EXPECT_EQ(values(reads(row({1, 1}))), (Steps{1.0 + i, 2}));
  }
  EXPECT_TRUE(has(reads.reason(), "reads a grad()"));
}

TEST(CompileTraining, a_leaf_that_is_frozen_or_an_optimizer_with_other_state_is_recorded_anew) {
  Tensor w = test::leaf({2, 3}), v = test::leaf({1, 1});
  optim::SGD sgd({w, v}, {.lr = 1, .momentum = 0.5});
  auto f = compile([&](const Tensor& x) {
    sgd.zero_grad();
    (x * w + x * v).sum().backward();
    sgd.step();
  });
  for (int i = 0; i < 5; ++i) f(row({1, 0}));
  EXPECT_EQ(f.reason(), "");
  optim::StateDict state = sgd.state_dict();
  for (auto& [name, tensor] : state) tensor = tensor.clone();
  const Steps before = values(w);
  f(row({1, 0}));
  const Steps after = values(w);
  {
    const NoGrad quiet;
    w.copy_(row({before[0], before[1]}));
  }
  sgd.load_state_dict(state);
  v.requires_grad_(false);
  f(row({1, 0}));
  EXPECT_EQ(values(w), after);
  v.requires_grad_();
}

}  // namespace
}  // namespace weft::compile_tests
