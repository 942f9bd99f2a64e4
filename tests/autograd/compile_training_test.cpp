// compile() of training steps: gradients of leaves, the optimizers of all rules, and their guards.
#include <gtest/gtest.h>

#include <vector>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/compile.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/optim/optim.h>
#include <weft/optim/rules/table.h>
#include <weft/tensor/factories.h>

#include "../support/errors.h"
#include "../support/golden.h"
#include "../support/leaf.h"

namespace weft::compile_tests {
namespace {

using test::has;
using test::row;
using test::values;
using Steps = std::vector<double>;

/// A small model whose weight and bias are two groups with options of their own.
template <class Rule> struct Training {
  using Options = typename Rule::Options;
  Tensor w, b;
  Rule rule;
  bool clips;
  Training(DType dtype, const Options& of_w, const Options& of_b, bool clipped)
      : w(row({0.5, -0.25, 0.75}).to(dtype).requires_grad_()),
        b(row({0.1}).to(dtype).requires_grad_()),
        rule({{{w}, of_w}, {{b}, of_b}}),
        clips(clipped) {}
  Tensor operator()(const Tensor& x, const Tensor& y) {
    rule.zero_grad();
    const Tensor loss = square((x * w).sum({1}) + b - y).mean();
    loss.backward();
    if (clips) rule.step_clipped(0.5);
    else rule.step();
    return loss.detach();
  }
};

struct Kind {
  int check_every = 0;
  DType dtype = kFloat64;
  bool clipped = false;
};

/// Steps of a small model by f and by its replays, which end with the same bits.
template <class Rule>
void expect_same_training(const typename Rule::Options& of_w, const typename Rule::Options& of_b,
                          Kind kind = {}) {
  Training<Rule> plain(kind.dtype, of_w, of_b, kind.clipped), recorded(kind.dtype, of_w, of_b, kind.clipped);
  SCOPED_TRACE(str(plain.rule.name(), " of ", kind.dtype));
  auto f = compile([&](const Tensor& x, const Tensor& y) { return recorded(x, y); },
                   {.check_every = kind.check_every});
  manual_seed(4);
  for (int i = 0; i < 9; ++i) {
    if (i == 6)
      for (Rule* const rule : {&plain.rule, &recorded.rule}) rule->set_lr(0, 0.01);
    if (i == 7)
      for (Rule* const rule : {&plain.rule, &recorded.rule}) rule->set_lr(1, 0.02);
    const Tensor x = randn({4, 3}).to(kind.dtype), y = randn({4}).to(kind.dtype);
    const Steps before = values(recorded.w.detach().to(kFloat64));
    EXPECT_TRUE(equal(f(x, y), plain(x, y))) << i;
    EXPECT_TRUE(equal(recorded.w, plain.w)) << i;
    EXPECT_TRUE(equal(recorded.b, plain.b)) << i;
    EXPECT_TRUE(equal(recorded.w.grad(), plain.w.grad())) << i;
    EXPECT_TRUE(is_half(kind.dtype) || values(recorded.w.detach().to(kFloat64)) != before) << i;
    EXPECT_EQ(recorded.rule.steps(0), i + 1);
    EXPECT_EQ(recorded.rule.steps(1), i + 1);
  }
  EXPECT_EQ(f.reason(), "");
  EXPECT_GE(f.stats().replays, 5);
  const optim::StateDict left = recorded.rule.state_dict(), right = plain.rule.state_dict();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i)
    EXPECT_TRUE(equal(left[i].second, right[i].second)) << left[i].first;
}

TEST(CompileTraining, a_training_step_is_replayed_with_the_rate_of_the_replay) {
  for (const int check_every : {0, 1, 2}) {
    expect_same_training<optim::SGD>({.lr = 0.1}, {.lr = 0.1}, {check_every});
    expect_same_training<optim::SGD>({.lr = 0.1, .momentum = 0.9}, {.lr = 0.1, .momentum = 0.9},
                                     {check_every});
    expect_same_training<optim::Adam>({.lr = 0.1}, {.lr = 0.1}, {check_every});
  }
}

TEST(CompileTraining, the_step_of_every_rule_is_replayed) {
#define WEFT_REPLAYED(Name, ...)                   \
  for (const bool clipped : {false, true})         \
    for (const DType dtype : {kFloat32, kFloat64}) \
      expect_same_training<optim::Name>({.lr = 0.1}, {.lr = 0.05}, {0, dtype, clipped});
  WEFT_OPTIMIZER_RULES(WEFT_REPLAYED)
#undef WEFT_REPLAYED
}

TEST(CompileTraining, the_step_over_master_weights_of_every_rule_is_replayed) {
#define WEFT_REPLAYED(Name, ...)                                           \
  for (const DType dtype : {kFloat16, kBFloat16})                          \
    expect_same_training<optim::Name>({.lr = 0.1, .master_weights = true}, \
                                      {.lr = 0.05, .master_weights = true}, {0, dtype});
  WEFT_OPTIMIZER_RULES(WEFT_REPLAYED)
#undef WEFT_REPLAYED
}

TEST(CompileTraining, groups_whose_options_choose_other_forms_of_a_rule_are_replayed) {
  using namespace optim;
  expect_same_training<SGD>({.lr = 0.1}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  expect_same_training<Adam>({.lr = 0.1, .amsgrad = true}, {.lr = 0.1, .maximize = true});
  expect_same_training<AdamW>({.lr = 0.1}, {.lr = 0.1, .weight_decay = 0.1, .amsgrad = true});
  expect_same_training<RMSprop>({.lr = 0.1, .momentum = 0.5, .centered = true}, {.lr = 0.1});
  expect_same_training<QHM>({.lr = 0.1, .momentum = 0.9, .nu = 0.7},
                            {.lr = 0.1,
                             .momentum = 0.9,
                             .nu = 0.7,
                             .weight_decay = 0.1,
                             .weight_decay_type = WeightDecay::kDirect});
  expect_same_training<QHAdam>({.lr = 0.1, .nu1 = 0.7, .weight_decay = 0.1},
                               {.lr = 0.1, .weight_decay = 0.1, .weight_decay_type = WeightDecay::kDirect});
  expect_same_training<Adagrad>({.lr = 0.1, .lr_decay = 0.1}, {.lr = 0.1, .weight_decay = 0.1});
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

/// Gradients of a scaled loss by f and by its replays. They have the same bits for each gradient of the loss.
template <class F> void expect_replayed_loss(const F& gradients) {
  manual_seed(6);
  auto f = compile(gradients);
  const double factors[] = {0.5, 1, 2, test::kInf, -3, 1, test::kNan};
  for (const double factor : factors) {
    const Tensor x = randn({6, 5}), target = randint(0, 4, {6}), g = full({}, factor);
    target.slice(0, 1, 3).fill_(-100);
    EXPECT_TRUE(testing::same_bits(f(x, target, g), gradients(x, target, g))) << factor;
  }
  EXPECT_EQ(f.reason(), "");
  EXPECT_GT(f.stats().replays, 3);
}

TEST(CompileTraining, a_scaled_class_loss_is_replayed) {
  const Tensor w = randn({700, 5}).requires_grad_(), few = randn({5, 4}).requires_grad_();
  for (const Reduction r : {Reduction::kMean, Reduction::kSum}) {
    const auto loss = [=](const Tensor& x, const Tensor& target) {
      return cross_entropy(matmul(x, few), target, {.reduction = r});
    };
    const auto fused = [=](const Tensor& x, const Tensor& target) {
      return linear_cross_entropy(x, w, Tensor(), target, {.reduction = r});
    };
    expect_replayed_loss([=](const Tensor& x, const Tensor& target, const Tensor& g) {
      return grad({loss(x, target)}, {few}, {g})[0];
    });
    expect_replayed_loss([=](const Tensor& x, const Tensor& target, const Tensor& g) {
      return grad({fused(x, target)}, {w}, {g})[0];
    });
    for (const double factor : {1.0, 0.25}) {
      expect_replayed_loss([=](const Tensor& x, const Tensor& target, const Tensor&) {
        return grad({loss(x, target) * factor}, {few})[0];
      });
      expect_replayed_loss([=](const Tensor& x, const Tensor& target, const Tensor&) {
        return grad({fused(x, target) * factor}, {w})[0];
      });
    }
  }
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
