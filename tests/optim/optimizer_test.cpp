// Rules of all optimizers: groups, state, errors that change nothing, one kernel call per step, copy on
// write, a user's own rule.
#include <cmath>
#include <thread>

#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/weft.h>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft {
namespace {

using namespace optim;
using testing::close;
using testing::Golden;
using testing::same_bits;

/// A rule as a user would write it.
struct SignMomentum {
  struct Options {
    double lr = 1e-2, momentum = 0.9;
  };
  static constexpr const char* kName = "SignMomentum";
  static constexpr int kState = 1;
  double lr, m;
  SignMomentum(const Options& o, int64_t) : lr(o.lr), m(o.momentum) {}
  template <class V> void operator()(V& p, const V& g, V* s) const {
    s[0] = m * s[0] + (1 - m) * g;
    p -= lr * select(s[0] > V(0), V(1), V(-1));
  }
};

TEST(Optimizer, a_users_rule_of_fifteen_lines_trains) {
  Tensor p = full({37}, 3.0).requires_grad_();
  Fused<SignMomentum> opt({p}, {.lr = 0.05});
  std::vector<double> reference(37, 3.0), momentum(37, 0.0);
  for (int t = 0; t < 100; ++t) {
    opt.zero_grad();
    (p * p).sum().backward();
    opt.step();
    for (size_t i = 0; i < 37; ++i) {
      momentum[i] = 0.9 * momentum[i] + 0.1 * 2 * reference[i];
      reference[i] -= 0.05 * (momentum[i] > 0 ? 1 : -1);
    }
  }
  EXPECT_NEAR(p.to_vector<double>()[36], reference[36], 1e-4);
  EXPECT_LT(std::abs(p.abs().max().item<double>()), 1);
  EXPECT_EQ(opt.state_dict()[2].first, "0.state0");
}

TEST(Optimizer, one_backend_call_serves_all_parameters) {
  std::vector<Tensor> params;
  for (int64_t n : {1, 2, 3, 5, 7, 1009, 4099}) params.push_back(ones({n}).requires_grad_());
  Adam adam(params, {.lr = 0.1});
  for (const Tensor& p : params) p.set_grad(ones(p.sizes()));
  adam.step();
  EXPECT_EQ(adam.kernel_calls(), 1);
  for (const Tensor& p : params) EXPECT_TRUE(close(p, full(p.sizes(), 0.9)));
}

TEST(Optimizer, groups_have_their_own_options) {
  Tensor a = ones({3}).requires_grad_(), b = ones({3}).requires_grad_();
  SGD sgd({{{a}, {.lr = 0.1}}, {{b}, {.lr = 0.5}}});
  a.set_grad(ones({3})), b.set_grad(ones({3}));
  sgd.step();
  EXPECT_TRUE(close(a, full({3}, 0.9)));
  EXPECT_TRUE(close(b, full({3}, 0.5)));
  sgd.set_lr(0);
  sgd.step();
  EXPECT_TRUE(close(b, full({3}, 0.5)));
}

TEST(Optimizer, groups_of_different_kernels_step_together) {
  Tensor a = ones({3}).requires_grad_(), b = ones({3}).requires_grad_();
  SGD sgd({{{a}, {.lr = 0.1}}, {{b}, {.lr = 0.1, .momentum = 0.9}}});
  for (int i = 0; i < 2; ++i) {
    a.set_grad(ones({3})), b.set_grad(ones({3}));
    sgd.step();
  }
  EXPECT_TRUE(close(a, full({3}, 0.8)));
  EXPECT_TRUE(close(b, full({3}, 0.71)));
}

template <class Opt> void expect_resumed(const typename Opt::Options& options) {
  const auto start = [] {
    return randn({5}, {.dtype = kFloat64}, std::make_unique<Generator>(3).get()).requires_grad_();
  };
  Tensor a = start(), b = start();
  Opt first({a}, options), whole({b}, options);
  const auto step = [](Optimizer& o, const Tensor& p) {
    p.set_grad(p.detach() * 2);
    o.step();
  };
  for (int i = 0; i < 3; ++i) step(first, a), step(whole, b);
  Opt resumed({a}, {.lr = 0.7});
  resumed.load_state_dict(first.state_dict());
  EXPECT_EQ(resumed.lr(), options.lr);
  for (int i = 0; i < 3; ++i) step(resumed, a), step(whole, b);
  EXPECT_TRUE(same_bits(a, b)) << first.name();
}

TEST(Optimizer, state_saved_and_loaded_goes_on_as_if_never_stopped) {
  expect_resumed<Adam>({.lr = 0.1});
  expect_resumed<Adadelta>({.lr = 0.5});
  expect_resumed<Adamax>({.lr = 0.1});
  expect_resumed<Rprop>({.lr = 0.1});
}

TEST(Optimizer, rprop_takes_its_rate_for_the_first_step_alone) {
  Tensor p = tensor({1., 1., 1.}, {.dtype = kFloat64}).requires_grad_();
  Rprop rprop({p}, {.lr = 0.1});
  const auto step = [&](std::vector<double> g) { rprop.step(std::vector<Tensor>{from_vector(g, {3})}); };
  step({3, -5, 0});
  EXPECT_TRUE(close(p, tensor({0.9, 1.1, 1.}, {.dtype = kFloat64}), 0, 1e-15));
  rprop.set_lr(7);
  step({1, 1, 1});  // kept its sign, turned, had none
  EXPECT_TRUE(close(p, tensor({0.78, 1.1, 0.9}, {.dtype = kFloat64}), 0, 1e-15));
  step({0, 1, 1});  // after a turn the length stays
  EXPECT_TRUE(close(p, tensor({0.78, 1.05, 0.78}, {.dtype = kFloat64}), 0, 1e-15));
}

TEST(Optimizer, bad_input_is_named_and_changes_nothing) {
  Tensor p = ones({3}).requires_grad_();
  EXPECT_THROW(SGD({p}, {.lr = -1}), ValueError);
  EXPECT_THROW(SGD({p}, {.lr = 1, .momentum = -1}), ValueError);
  EXPECT_THROW(SGD({p}, {.lr = 1, .nesterov = true}), ValueError);
  EXPECT_THROW(QHM({p}, {.lr = 1, .momentum = -0.1}), ValueError);
  EXPECT_THROW(QHM({p}, {.lr = 1, .weight_decay_type = static_cast<WeightDecay>(9)}), ValueError);
  EXPECT_THROW(weight_decay_type("l2"), ValueError);
  EXPECT_THROW(Adam({p}, {.beta1 = 1}), ValueError);
  EXPECT_THROW(Adadelta({p}, {.rho = 1.1}), ValueError);
  EXPECT_THROW(Adadelta({p}, {.eps = -1}), ValueError);
  EXPECT_THROW(Adamax({p}, {.beta2 = 1}), ValueError);
  EXPECT_THROW(Adamax({p}, {.weight_decay = -1}), ValueError);
  EXPECT_THROW(Rprop({p}, {.eta_minus = 0}), ValueError);
  EXPECT_THROW(Rprop({p}, {.eta_plus = 1}), ValueError);
  EXPECT_THROW(Rprop({p}, {.step_min = 2, .step_max = 1}), ValueError);
  EXPECT_THROW(SGD(std::vector<Tensor>{}, {.lr = 1}), ValueError);
  EXPECT_THROW(SGD({p, p}, {.lr = 1}), ValueError);
  SGD sgd({p}, {.lr = 1, .momentum = 0.9});
  const std::vector<Tensor> too_many{ones({3}), ones({3})}, wrong{ones({4})},
      wide{ones({3}, {.dtype = kFloat64})};
  EXPECT_THROW(sgd.step(too_many), ValueError);
  EXPECT_THROW(sgd.step(wrong), ShapeError);
  EXPECT_THROW(sgd.step(wide), DTypeError);
  EXPECT_TRUE(same_bits(p, ones({3})));
  EXPECT_EQ(sgd.steps(0), 0);
  EXPECT_THROW(sgd.load_state_dict({{"0.exp_avg", ones({3})}}), ValueError);
}

TEST(Optimizer, a_state_that_is_refused_changes_nothing_even_by_its_last_rate) {
  const Tensor a = ones({3}).requires_grad_(), b = ones({3}).requires_grad_();
  SGD sgd(std::vector<ParamGroup<SGDOptions>>{{{a}, {.lr = 0.1, .momentum = 0.9}},
                                              {{b}, {.lr = 0.2, .momentum = 0.9}}});
  const std::vector<Tensor> grads{ones({3}), ones({3})};
  sgd.step(grads);
  const StateDict before = sgd.state_dict();
  std::vector<Tensor> kept;
  for (const auto& [name, tensor] : before) kept.push_back(tensor.clone());
  const auto rate = [](double lr) { return full({}, lr, {.dtype = kFloat64}); };
  const Tensor other = full({3}, 7.0), steps = full({}, 5, {.dtype = kInt64});
  const StateDict bad[] = {
      {{"0.step", steps}, {"0.momentum_buffer", other}, {"group0.lr", rate(0.5)}, {"group1.lr", rate(-1)}},
      {{"group0.lr", rate(0.5)}, {"0.step", steps}, {"0.momentum_buffer", full({4}, 7.0)}},
      {{"group0.lr", rate(0.5)}, {"0.step", steps}, {"unheard of", other}}};
  for (const StateDict& state : bad) {
    EXPECT_THROW(sgd.load_state_dict(state), Error);
    EXPECT_EQ(sgd.lr(0), 0.1);
    EXPECT_EQ(sgd.lr(1), 0.2);
    EXPECT_EQ(sgd.steps(0), 1);
    const StateDict after = sgd.state_dict();
    ASSERT_EQ(after.size(), before.size());
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(after[i].first, before[i].first);
      EXPECT_TRUE(same_bits(after[i].second, kept[i])) << after[i].first;
    }
  }
}

TEST(Optimizer, every_alias_of_a_parameter_sees_a_step_whatever_graph_is_alive) {
  float memory[4] = {2, 2, 2, 2};
  Tensor w = from_blob(memory, {4}, {}).requires_grad_(), x = full({4}, 3.0).requires_grad_();
  const Tensor detached = w.detach(), row = w.view({2, 2}), kept = w.detach().clone();
  const Tensor y = (w * x).sum();  // saves w
  SGD sgd({w}, {.lr = 1});
  w.set_grad(ones({4}));
  sgd.step();
  EXPECT_TRUE(close(w, full({4}, 1.0)));
  EXPECT_TRUE(close(detached, full({4}, 1.0)));
  EXPECT_TRUE(close(row.detach(), full({2, 2}, 1.0)));
  EXPECT_EQ(memory[3], 1);
  EXPECT_TRUE(close(kept, full({4}, 2.0)));
  const std::string text = test::error_of<AutogradError>([&] { y.backward(); });
  EXPECT_TRUE(test::has(text, "mul: a tensor of sizes [4] that backward needs was written in place"));
}

TEST(Optimizer, layers_whose_weights_were_stepped_say_so_in_backward) {
  nn::LSTM lstm(3, 5);
  nn::Linear linear(5, 2);
  std::vector<Tensor> params = lstm.parameters();
  for (const Tensor& p : linear.parameters()) params.push_back(p);
  const Tensor x = ones({2, 1, 3}).requires_grad_(), y = lstm.forward(x).y,
               z = linear.forward(y.detach().requires_grad_());
  SGD sgd(params, {.lr = 1});
  for (const Tensor& p : params) p.set_grad(ones(p.sizes()));
  sgd.step();
  EXPECT_TRUE(test::has(test::error_of<AutogradError>([&] { y.sum().backward(); }), "lstm: a tensor"));
  EXPECT_TRUE(test::has(test::error_of<AutogradError>([&] { z.sum().backward(); }), "linear: a tensor"));
}

TEST(Optimizer, a_module_that_moves_takes_its_steps_there_and_stays_concurrent) {
  nn::Linear linear(3, 2);
  mark_concurrent(linear.weight);
  SGD sgd({linear.weight}, {.lr = 1});
  linear.to(kFloat64);
  EXPECT_TRUE(is_concurrent(linear.weight));
  const Tensor before = linear.weight.detach().clone(),
               x = ones({1, 3}, {.dtype = kFloat64}).requires_grad_(), y = linear.forward(x).sum();
  sgd.step(std::vector<Tensor>{ones({2, 3}, {.dtype = kFloat64})});
  EXPECT_TRUE(close(linear.weight, before - 1));
  y.backward();
  EXPECT_TRUE(close(x.grad(), before.sum({0}, true)));
}

TEST(Optimizer, a_step_never_invalidates_a_graph_that_holds_a_concurrent_parameter) {
  Tensor w = full({4}, 2.0).requires_grad_(), x = full({4}, 3.0).requires_grad_();
  mark_concurrent(w);
  const Tensor detached = w.detach(), half = w.narrow(0, 0, 2), y = (w * x).sum();
  SGD sgd({w}, {.lr = 1});
  w.set_grad(ones({4}));
  sgd.step();
  EXPECT_TRUE(close(w, full({4}, 1.0)));
  EXPECT_TRUE(close(detached, full({4}, 1.0)));
  EXPECT_TRUE(close(half, full({2}, 1.0)));
  y.backward();
  EXPECT_TRUE(close(x.grad(), full({4}, 2.0)));  // the value at the time of the forward call
  EXPECT_EQ(sgd.steps(0), 1);
}

TEST(Optimizer, concurrent_parameters_that_are_parts_of_one_block_move_together) {
  const Tensor flat = arange(6).to(kFloat64), rest = flat.narrow(0, 4, 2);
  Tensor a = alias(flat, {2}, {1}, 0).requires_grad_(), b = alias(flat, {2}, {1}, 2).requires_grad_();
  mark_concurrent(a);
  mark_concurrent(b);
  const Tensor y = (a * a).sum();
  SGD sgd({a, b}, {.lr = 1});
  sgd.step(std::vector<Tensor>{full({2}, 10.0, {.dtype = kFloat64}), full({2}, 20.0, {.dtype = kFloat64})});
  EXPECT_EQ(flat.to_vector<double>(), (std::vector<double>{-10, -9, -18, -17, 4, 5}));
  EXPECT_EQ(rest.to_vector<double>(), (std::vector<double>{4, 5}));
  y.backward();
  EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{0, 2}));
}

/// Refuses the step of its second parameter.
struct Refusing {
  struct Options {
    double lr = 1;
    bool refuse = false;
  };
  static constexpr const char* kName = "Refusing";
  static constexpr int kState = 0;
  double lr;
  Refusing(const Options& o, int64_t) : lr(o.lr) {
    if (o.refuse) throw ValueError("refused");
  }
  template <class V> void operator()(V& p, const V& g, V*) const { p -= lr * g; }
};

TEST(Optimizer, a_step_that_throws_is_not_counted) {
  Tensor a = ones({3}).requires_grad_(), b = ones({3}).requires_grad_();
  Fused<Refusing> opt(std::vector<ParamGroup<Refusing::Options>>{{{a}, {}}, {{b}, {.refuse = true}}});
  EXPECT_THROW(opt.step(std::vector<Tensor>{ones({3}), ones({3})}), ValueError);
  EXPECT_EQ(opt.steps(0), 0);
  EXPECT_TRUE(same_bits(a, ones({3})));
}

TEST(Optimizer, threads_that_build_graphs_and_threads_that_step_share_a_parameter) {
  Tensor w = full({64}, 1.0).requires_grad_();
  mark_concurrent(w);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int id = 0; id < 3; ++id)
    threads.emplace_back([&w, &wrong] {
      SGD sgd({w}, {.lr = 1e-3, .momentum = 0.9});
      for (int i = 0; i < 200; ++i) {
        const Tensor x = ones({64});
        const std::vector<Tensor> g = grad({(w * x * w).sum()}, {w});
        const std::vector<double> v = g[0].to_vector<double>();
        for (const double e : v) wrong += e != v[0];  // all elements were equal, so a torn read would show
        sgd.step(g);
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_LT(w.abs().max().item<double>(), 1);
}

TEST(Schedule, plateau_cuts_by_four_when_validation_does_not_improve) {
  Tensor p = ones({1}).requires_grad_();
  SGD sgd({p}, {.lr = 20});
  ReduceOnPlateau plateau(rates(sgd), {.factor = 0.25, .patience = 0, .threshold = 0});
  EXPECT_FALSE(plateau.step(5));
  EXPECT_FALSE(plateau.step(4));
  EXPECT_TRUE(plateau.step(4));
  EXPECT_EQ(sgd.lr(), 5);
  EXPECT_THROW(ReduceOnPlateau(rates(sgd), {.factor = 1}), ValueError);
}

TEST(Schedule, numbers_without_a_schedule_are_named_and_change_no_rate) {
  Tensor p = ones({1}).requires_grad_();
  SGD sgd({p}, {.lr = 2});
  const auto refused = [&](const std::string& text, auto make) {
    EXPECT_EQ(test::error_of<ValueError>(make), text);
    EXPECT_EQ(sgd.lr(), 2);
  };
  refused("StepLR: step_size must be positive, got 0", [&] { StepLR(rates(sgd), {.step_size = 0}); });
  refused("ExponentialLR: gamma must be positive, got -1", [&] { ExponentialLR(rates(sgd), -1); });
  refused("LinearLR: total must be positive, got 0", [&] { LinearLR(rates(sgd), {.total = 0}); });
  refused("CosineLR: t_max must be positive, got 0", [&] { CosineLR(rates(sgd), {.t_max = 0}); });
  refused("CosineLR: t_max must be positive, got -3", [&] { CosineLR(rates(sgd), {.t_max = -3}); });
  StepLR falls(rates(sgd), {.step_size = 1, .gamma = -1});
  refused("schedule: epoch must not be negative, got -1", [&] { falls.set_epoch(-1); });
  refused("SGD: lr must not be negative, got -2", [&] { falls.step(); });
  EXPECT_EQ(falls.epoch(), 0);
}

TEST(Schedule, cosine_halves_the_rate_at_half_time) {
  Tensor p = ones({1}).requires_grad_();
  SGD sgd({p}, {.lr = 2});
  CosineLR schedule(rates(sgd), {.t_max = 4});
  EXPECT_EQ(sgd.lr(), 2);
  schedule.set_epoch(2);
  EXPECT_NEAR(sgd.lr(), 1, 1e-15);
  schedule.set_epoch(4);
  EXPECT_NEAR(sgd.lr(), 0, 1e-15);
}

TEST(Schedule, plateau_and_step_match_pytorch) {
  const Golden all("schedules");
  size_t seen = 0;
  for (const std::string& name : all.names()) {
    const size_t dot = name.find(".lr");
    if (dot == std::string::npos) continue;
    const std::string label = name.substr(0, dot), about = all.metadata("case." + label);
    const Golden g = all.at(label);
    const std::vector<double> want = g["lr"].to_vector<double>();
    const auto option = [&](const std::string& key, double fallback) {
      const size_t at = (" " + about).find(" " + key + "=");
      return at == std::string::npos ? fallback : std::stod(about.substr(at + key.size() + 1));
    };
    double lr = 1;
    const Rates rates{[] { return size_t{1}; }, [&](size_t) { return lr; },
                      [&](size_t, double v) { lr = v; }};
    std::function<void(size_t)> step;
    std::shared_ptr<void> keep;
    if (label.compare(0, 7, "plateau") == 0) {
      PlateauOptions o{.factor = option("factor", 0.1),
                       .patience = static_cast<int64_t>(option("patience", 10)),
                       .threshold = option("threshold", 1e-4),
                       .cooldown = static_cast<int64_t>(option("cooldown", 0)),
                       .min_lr = option("min_lr", 0),
                       .eps = option("eps", 1e-8)};
      o.maximize = about.find("mode=max") != std::string::npos;
      o.threshold_absolute = about.find("threshold_mode=abs") != std::string::npos;
      auto p = std::make_shared<ReduceOnPlateau>(rates, o);
      keep = p;
      const std::vector<double> metric = g["metric"].to_vector<double>();
      step = [p, metric](size_t t) { p->step(metric[t]); };
    } else if (label.compare(0, 4, "step") == 0) {
      auto p = std::make_shared<StepLR>(
          rates, StepLROptions{static_cast<int64_t>(option("step_size", 30)), option("gamma", 0.1)});
      keep = p;
      step = [p](size_t) { p->step(); };
    } else {
      continue;
    }
    ++seen;
    for (size_t t = 0; t < want.size(); ++t) {
      ASSERT_NEAR(lr, want[t], 1e-12) << label << " after " << t << " steps: " << about;
      if (t + 1 < want.size()) step(t);
    }
  }
  EXPECT_GE(seen, 4u);
}

void expect_qhm(const QHMOptions& o, double lr, double momentum, double nu) {
  EXPECT_NEAR(o.lr, lr, 1e-15);
  EXPECT_NEAR(o.momentum, momentum, 1e-15);
  EXPECT_NEAR(o.nu, nu, 1e-15);
  EXPECT_EQ(o.weight_decay, 0);
}

TEST(QhmPresets, have_the_numbers_of_their_formulas) {
  expect_qhm(qhm_from_pid(-0.1, 1, 3), 1, 30.0 / 31, 1.0 / 300);
  expect_qhm(qhm_from_synthesized_nesterov(0.1, 0.9, 0.5), 1, 0.9, 17.0 / 18);
  // rho 0.9, alpha 1.9 / L
  expect_qhm(qhm_from_robust_momentum(10, 100), 0.19 / (1 - 0.729 / 0.99), 0.729 / 0.99, 0.861244019138756);
  expect_qhm(qhm_from_robust_momentum(10, 100, 0.95), 0.363901979264844, 0.866035353535354,
             0.725200725200725);
  expect_qhm(qhm_from_acc_sgd(0.1, 1000, 10), 0.77 / 1.7, 995.1 / 1007, 6 / 7.7);
}

TEST(QhmPresets, refuse_values_without_a_finite_setting) {
  EXPECT_THROW(qhm_from_pid(1, 0, 3), ValueError);
  EXPECT_THROW(qhm_from_pid(1, 2, 1), ValueError);
  EXPECT_THROW(qhm_from_synthesized_nesterov(0.1, 1, 0.5), ValueError);
  EXPECT_THROW(qhm_from_synthesized_nesterov(0.1, 0, 0.5), ValueError);
  EXPECT_THROW(qhm_from_robust_momentum(0, 100), ValueError);
  EXPECT_THROW(qhm_from_robust_momentum(10, 1), ValueError);
  EXPECT_THROW(qhm_from_acc_sgd(0.1, 1000, -1), ValueError);
}

}  // namespace
}  // namespace weft
