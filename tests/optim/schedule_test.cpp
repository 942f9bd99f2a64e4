// Schedules beside other causes of a rate, and resumed. Their shapes are compared with PyTorch's in
// optimizer_test.cpp.
#include <cmath>

#include <weft/weft.h>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft {
namespace {

using namespace optim;

Tensor parameter() { return ones({1}).requires_grad_(); }

/// Rates of an optimizer over `epochs` epochs, each with a step of it.
std::vector<double> run(SGD& sgd, FactorSchedule& schedule, int epochs) {
  std::vector<double> out;
  for (int t = 0; t < epochs; ++t) {
    const Tensor g = ones({1});
    sgd.step({&g, 1});
    schedule.step();
    out.push_back(sgd.lr());
  }
  return out;
}

/// A run that stops after 3 epochs and goes on in new objects, which `resume` restores.
void expect_resumed(auto make, auto resume) {
  SGD whole({parameter()}, {.lr = 1}), first({parameter()}, {.lr = 1}), second({parameter()}, {.lr = 1});
  auto through = make(whole), before = make(first);
  run(whole, through, 3);
  run(first, before, 3);
  whole.set_lr(whole.lr() * 0.5);  // as a plateau does
  first.set_lr(first.lr() * 0.5);
  auto after = resume(second, first.state_dict(), before.state_dict(), make);
  EXPECT_EQ(second.lr(), whole.lr());
  EXPECT_EQ(after->epoch(), 3);
  EXPECT_EQ(run(second, *after, 5), run(whole, through, 5));
}

template <class Make> void expect_resumed_in_any_order(Make make) {
  using Schedule = decltype(make(std::declval<SGD&>()));
  const auto built = [](Make m, SGD& sgd) { return std::make_unique<Schedule>(m(sgd)); };
  expect_resumed(make, [&](SGD& sgd, const StateDict& of_sgd, const StateDict& state, Make m) {
    sgd.load_state_dict(of_sgd);  // before the schedule is there
    auto s = built(m, sgd);
    s->load_state_dict(state);
    return s;
  });
  expect_resumed(make, [&](SGD& sgd, const StateDict& of_sgd, const StateDict& state, Make m) {
    auto s = built(m, sgd);
    sgd.load_state_dict(of_sgd);
    s->load_state_dict(state);
    return s;
  });
  expect_resumed(make, [&](SGD& sgd, const StateDict& of_sgd, const StateDict& state, Make m) {
    auto s = built(m, sgd);
    s->load_state_dict(state);
    sgd.load_state_dict(of_sgd);
    return s;
  });
  expect_resumed(make, [&](SGD& sgd, const StateDict&, const StateDict& state, Make m) {
    auto s = built(m, sgd);
    s->load_state_dict(state);  // the optimizer starts anew
    return s;
  });
}

TEST(Schedule, resuming_decays_once_in_whatever_order_things_are_built) {
  expect_resumed_in_any_order([](SGD& sgd) { return StepLR(rates(sgd), {.step_size = 2, .gamma = 0.1}); });
  expect_resumed_in_any_order(
      [](SGD& sgd) { return LinearLR(rates(sgd), {.start_factor = 0.25, .total = 5}); });
  expect_resumed_in_any_order([](SGD& sgd) { return CosineLR(rates(sgd), {.t_max = 7}); });
}

TEST(Schedule, a_factor_does_not_undo_the_cut_of_a_plateau) {
  SGD sgd({parameter()}, {.lr = 8});
  StepLR halves(rates(sgd), {.step_size = 1, .gamma = 0.5});
  ReduceOnPlateau plateau(rates(sgd), {.factor = 0.25, .patience = 0});
  plateau.step(1);
  halves.step();
  EXPECT_EQ(sgd.lr(), 4);
  EXPECT_TRUE(plateau.step(1));
  EXPECT_EQ(sgd.lr(), 1);
  halves.step();
  EXPECT_EQ(sgd.lr(), 0.5);
  EXPECT_EQ(halves.base(), 2);
  sgd.set_lr(7);
  halves.set_epoch(1);  // sets the rate itself
  EXPECT_EQ(sgd.lr(), 1);
}

TEST(Schedule, two_factors_multiply) {
  SGD sgd({parameter()}, {.lr = 8});
  LinearLR warm(rates(sgd), {.start_factor = 0.25, .total = 3});
  ExponentialLR falls(rates(sgd), 0.5);
  for (int t = 1; t <= 5; ++t) {
    warm.step();
    falls.step();
    EXPECT_NEAR(sgd.lr(), 8 * (t < 3 ? 0.25 * (t + 1) : 1) * std::pow(0.5, t), 1e-14) << t;
  }
}

TEST(Schedule, a_rate_set_by_hand_lasts_and_one_of_zero_comes_back) {
  SGD sgd({parameter()}, {.lr = 2});
  CosineLR turns(rates(sgd), {.t_max = 2});
  turns.step();
  EXPECT_NEAR(sgd.lr(), 1, 1e-15);
  sgd.set_lr(3);
  turns.step();
  EXPECT_EQ(sgd.lr(), 0);
  turns.step();
  EXPECT_NEAR(sgd.lr(), 3, 1e-14);
}

TEST(Schedule, a_refused_rate_leaves_every_group_as_it_was) {
  SGD sgd({{{parameter()}, {.lr = 0}}, {{parameter()}, {.lr = 2}}});
  StepLR falls(rates(sgd), {.step_size = 1, .gamma = -1});
  sgd.set_lr(0, 0.5);
  Rates refuses_last = rates(sgd);
  refuses_last.set = [&sgd](size_t g, double lr) {
    if (g == 1 && lr < 2) throw ValueError("too low");
    sgd.set_lr(g, lr);
  };
  ExponentialLR half(std::move(refuses_last), 0.5);
  EXPECT_THROW(half.step(), ValueError);
  EXPECT_EQ(sgd.lr(0), 0.5);
  EXPECT_EQ(sgd.lr(1), 2);
  EXPECT_EQ(half.epoch(), 0);
}

TEST(Schedule, a_state_of_something_else_is_refused_and_changes_nothing) {
  SGD sgd({parameter()}, {.lr = 2}), pair({{{parameter()}, {.lr = 1}}, {{parameter()}, {.lr = 1}}});
  StepLR step(rates(sgd), {}), wide(rates(pair), {});
  ReduceOnPlateau plateau(rates(sgd));
  EXPECT_EQ(test::error_of<ValueError>([&] { step.load_state_dict(wide.state_dict()); }),
            "load_state_dict: rates of 2 groups for an optimizer with 1");
  EXPECT_EQ(test::error_of<ValueError>([&] { step.load_state_dict(plateau.state_dict()); }),
            "load_state_dict: a state without 'epoch' is none of a factor schedule");
  StateDict more = plateau.state_dict();
  more.emplace_back("lr", ones({1}));
  EXPECT_EQ(test::error_of<ValueError>([&] { plateau.load_state_dict(more); }),
            "load_state_dict: ReduceOnPlateau has no state called 'lr'");
  EXPECT_EQ(sgd.lr(), 2);
}

TEST(Schedule, a_plateau_goes_on_from_its_state) {
  SGD sgd({parameter()}, {.lr = 1});
  const PlateauOptions options{.factor = 0.5, .patience = 1, .cooldown = 2};
  ReduceOnPlateau whole(rates(sgd), options);
  whole.step(3);
  whole.step(4);
  ReduceOnPlateau resumed(rates(sgd), options);
  resumed.load_state_dict(whole.state_dict());
  EXPECT_EQ(resumed.state().best, 3);
  EXPECT_TRUE(resumed.step(4));
  ReduceOnPlateau fresh(rates(sgd), options);
  fresh.load_state_dict(ReduceOnPlateau(rates(sgd), options).state_dict());  // no best yet: infinity
  EXPECT_FALSE(fresh.step(1e9));
}

/// The rates at construction and after each of `steps` steps.
template <class Schedule, class Options>
std::vector<double> course(const Options& options, int steps, double lr = 1) {
  SGD sgd({parameter()}, {.lr = lr});
  Schedule schedule(rates(sgd), options);
  std::vector<double> out{sgd.lr()};
  const std::vector<double> rest = run(sgd, schedule, steps);
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

TEST(Schedule, sequential_is_pytorch_s) {
  const std::vector<double> want = testing::Golden("schedules").at("sequential")["lr"].to_vector<double>();
  const SequentialLROptions options{
      .factors = {linear_factor({.start_factor = 0.2, .total = 5}), exponential_factor(0.9)},
      .milestones = {5}};
  const std::vector<double> got = course<SequentialLR>(options, static_cast<int>(want.size()) - 1);
  for (size_t t = 0; t < want.size(); ++t) EXPECT_NEAR(got[t], want[t], 1e-12) << t;
}

TEST(Schedule, sequential_begins_each_factor_anew_at_its_milestone) {
  const SequentialLROptions options{
      .factors = {step_factor({.step_size = 2, .gamma = 0.5}),
                  multi_step_factor({.milestones = {1}, .gamma = 0.25}), cosine_factor({.t_max = 2})},
      .milestones = {3, 5}};
  EXPECT_EQ(course<SequentialLR>(options, 6, 8), (std::vector<double>{8, 8, 4, 8, 2, 8, 4}));
}

TEST(Schedule, warmup_rises_linearly_and_goes_on_as_told) {
  EXPECT_EQ(course<WarmupLR>(WarmupLROptions{.steps = 4}, 6, 8), (std::vector<double>{0, 2, 4, 6, 8, 8, 8}));
  const WarmupLROptions options{.steps = 2, .start_factor = 0.5, .then = exponential_factor(0.5)};
  EXPECT_EQ(course<WarmupLR>(options, 5, 8), (std::vector<double>{4, 6, 8, 4, 2, 1}));
}

TEST(Schedule, warmup_and_sequential_resume_in_whatever_order_things_are_built) {
  expect_resumed_in_any_order([](SGD& sgd) {
    return WarmupLR(
        rates(sgd),
        {.steps = 4, .start_factor = 0.25, .then = cosine_factor({.t_max = 9, .min_factor = 0.1})});
  });
  expect_resumed_in_any_order([](SGD& sgd) {
    return SequentialLR(
        rates(sgd), {.factors = {linear_factor({.total = 2}), exponential_factor(0.5)}, .milestones = {4}});
  });
}

TEST(Schedule, sequential_and_warmup_refuse_options_that_make_no_sense) {
  SGD sgd({parameter()}, {.lr = 1});
  const Factor f = exponential_factor(0.9);
  EXPECT_THROW(SequentialLR(rates(sgd), {}), ValueError);
  EXPECT_THROW(SequentialLR(rates(sgd), {.factors = {f, f}, .milestones = {}}), ValueError);
  EXPECT_THROW(SequentialLR(rates(sgd), {.factors = {f, f}, .milestones = {0}}), ValueError);
  EXPECT_THROW(SequentialLR(rates(sgd), {.factors = {f, f, f}, .milestones = {5, 5}}), ValueError);
  EXPECT_THROW(SequentialLR(rates(sgd), {.factors = {f, Factor()}, .milestones = {5}}), ValueError);
  EXPECT_THROW(WarmupLR(rates(sgd), {.steps = 0}), ValueError);
  EXPECT_THROW(WarmupLR(rates(sgd), {.start_factor = -1}), ValueError);
  EXPECT_EQ(sgd.lr(), 1);
}

TEST(Schedule, a_group_that_is_added_later_follows_from_then_on) {
  const Tensor a = parameter(), b = parameter();
  SGD sgd({a}, {.lr = 1});
  StepLR schedule(rates(sgd), {.step_size = 1, .gamma = 0.5});
  schedule.step();
  sgd.add_group({{b}, {.lr = 8}});
  const StateDict state = schedule.state_dict();
  schedule.step();
  EXPECT_EQ(sgd.lr(0), 0.25);
  EXPECT_EQ(sgd.lr(1), 4);
  schedule.load_state_dict(state);
  EXPECT_EQ(sgd.lr(0), 0.5);
  EXPECT_EQ(sgd.lr(1), 8);
  EXPECT_EQ(schedule.base(1), 16);
}

}  // namespace
}  // namespace weft
