// The learner of `cartpole` by itself: its observers are loops here, so the order of their calls is chosen.
#include <gtest/gtest.h>

#include "examples/cartpole/agent.h"

namespace {

using weft::Tensor;

constexpr int64_t kObservers = 3, kSteps = 20;

struct Course {
  std::vector<std::vector<int64_t>> actions = std::vector<std::vector<int64_t>>(kObservers);
  std::vector<Tensor> parameters;
  weft::CompileStats policy_runs, gradient_runs;
};

/// Some episodes of kSteps each, in which the observers call in the order of `turns`.
Course train(const std::vector<int64_t>& turns, bool compiled = false) {
  cartpole::Learner learner({.observers = kObservers, .seed = 3, .compiled = compiled});
  Course course;
  for (int64_t episode = 1; episode <= 3; ++episode) {
    std::vector<weft::Generator> draws;
    for (int64_t k = 0; k < kObservers; ++k) draws.push_back(cartpole::environment_draws(3, k, episode));
    for (const int64_t k : turns) {
      course.actions[static_cast<size_t>(k)].push_back(
          learner.select_action(k, weft::rand({4}, {}, &draws[static_cast<size_t>(k)])));
      learner.report_reward(k, static_cast<double>(k + 1));
    }
    EXPECT_EQ(learner.finish_episode(), kSteps);
  }
  for (const Tensor& p : learner.policy().parameters()) course.parameters.push_back(p.detach());
  course.policy_runs = learner.policy_runs();
  course.gradient_runs = learner.gradient_runs();
  return course;
}

TEST(CartpoleLearner, the_order_in_which_observers_call_changes_no_bit) {
  std::vector<int64_t> in_turn, one_by_one, backwards;
  for (int64_t step = 0; step < kSteps; ++step)
    for (int64_t k = 0; k < kObservers; ++k) in_turn.push_back(k);
  for (int64_t i = 0; i < kObservers * kSteps; ++i) one_by_one.push_back(i / kSteps);
  backwards.assign(one_by_one.rbegin(), one_by_one.rend());
  const Course first = train(in_turn);
  for (const auto& turns : {one_by_one, backwards}) {
    const Course other = train(turns);
    EXPECT_EQ(other.actions, first.actions);
    ASSERT_EQ(other.parameters.size(), first.parameters.size());
    for (size_t i = 0; i < first.parameters.size(); ++i)
      EXPECT_TRUE(weft::equal(other.parameters[i], first.parameters[i])) << "parameter " << i;
  }
}

TEST(CartpoleLearner, a_compiled_policy_chooses_the_same_actions_and_learns_the_same_bits) {
  std::vector<int64_t> turns;
  for (int64_t step = 0; step < kSteps; ++step)
    for (int64_t k = 0; k < kObservers; ++k) turns.push_back((k + step) % kObservers);
  const Course plain = train(turns), compiled = train(turns, true);
  EXPECT_EQ(compiled.actions, plain.actions);
  for (size_t i = 0; i < plain.parameters.size(); ++i)
    EXPECT_TRUE(weft::equal(compiled.parameters[i], plain.parameters[i])) << "parameter " << i;
  constexpr int64_t kCalls = 3 * kObservers * kSteps;
  for (const weft::CompileStats& runs : {compiled.policy_runs, compiled.gradient_runs}) {
    EXPECT_EQ(runs.replays + runs.recordings, kCalls);
    EXPECT_LE(runs.recordings, 3);
  }
  EXPECT_EQ(plain.policy_runs.replays, 0);
  EXPECT_THROW(cartpole::Learner({.joined = true, .compiled = true}), weft::ValueError);
}

TEST(CartpoleLearner, joined_runs_choose_the_actions_of_separate_ones_and_learn_the_same) {
  const cartpole::AgentOptions options{.observers = kObservers, .seed = 3};
  cartpole::AgentOptions joined_options = options;
  joined_options.joined = true;
  cartpole::Learner apart(options), joined(joined_options);
  weft::Generator draws(7);
  for (int64_t episode = 1; episode <= 3; ++episode) {
    for (int64_t step = 0; step < kSteps; ++step) {
      // the last observer has fewer steps, and the order of the rows changes
      std::vector<int64_t> rows{0, 1, 2};
      if (step % 2 == 1) rows = {1, 0};
      const auto count = static_cast<int64_t>(rows.size());
      const Tensor states = weft::rand({count, 4}, {}, &draws);
      const std::vector<int64_t> actions = joined.select_actions(rows, states).to_vector<int64_t>();
      for (int64_t i = 0; i < count; ++i) {
        const int64_t observer = rows[static_cast<size_t>(i)];
        EXPECT_EQ(actions[static_cast<size_t>(i)],
                  apart.select_action(observer, states.narrow(0, i, 1).reshape({4})));
        for (cartpole::Learner* one : {&apart, &joined})
          one->report_reward(observer, static_cast<double>(observer + step % 3));
      }
    }
    EXPECT_EQ(apart.finish_episode(), joined.finish_episode());
  }
  const auto ours = joined.policy().parameters(), theirs = apart.policy().parameters();
  for (size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(ours[i].detach().allclose(theirs[i].detach(), 1e-4, 1e-5)) << "parameter " << i;
  EXPECT_THROW(joined.select_actions({0, 3}, weft::rand({2, 4})), weft::IndexError);
}

TEST(CartpoleLearner, an_observer_without_steps_and_an_action_without_reward_are_left_out) {
  cartpole::Learner learner({.observers = 2, .seed = 3}), other({.observers = 2, .seed = 3});
  const Tensor state = weft::full({4}, 0.1);
  for (cartpole::Learner* l : {&learner, &other}) {
    for (int step = 0; step < 2; ++step) {
      l->select_action(1, state);
      l->report_reward(1, step + 1);
    }
  }
  other.select_action(0, state);
  other.select_action(1, state);
  EXPECT_EQ(learner.finish_episode(), 0);
  EXPECT_EQ(other.finish_episode(), 0);
  const auto ours = learner.policy().parameters(), theirs = other.policy().parameters();
  for (size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(weft::equal(theirs[i].detach(), ours[i].detach())) << "parameter " << i;
  EXPECT_THROW(learner.finish_episode(), weft::ValueError);
  EXPECT_THROW(learner.select_action(2, state), weft::IndexError);
}

}  // namespace
