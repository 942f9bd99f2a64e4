// The policy, the choice of actions and the REINFORCE update of agent.h.
#include "agent.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace cartpole {
namespace {

using weft::Generator;
using weft::Tensor;
using weft::nn::name_key;

Generator stream(uint64_t seed, const char* what, int64_t observer, int64_t episode) {
  return Generator(seed)
      .fork(name_key(what))
      .fork(static_cast<uint64_t>(observer))
      .fork(static_cast<uint64_t>(episode));
}

}  // namespace

Generator environment_draws(uint64_t seed, int64_t observer, int64_t episode) {
  return stream(seed, "environment", observer, episode);
}

Policy::Policy(uint64_t seed) : affine1_(4, 128), affine2_(128, 2) {
  add("affine1", affine1_);
  add("affine2", affine2_);
  Generator draws = Generator(seed).fork(name_key("policy"));
  affine1_.reset_parameters(&draws);
  affine2_.reset_parameters(&draws);
}

Tensor Policy::forward(const Tensor& x, Generator& draws) const {
  const Tensor hidden = weft::relu(weft::dropout(affine1_.forward(x), 0.6, is_training(), &draws));
  return weft::softmax(affine2_.forward(hidden), 1);
}

Tensor Policy::forward(const Tensor& x, std::vector<Generator>& draws) const {
  std::vector<Tensor> masks;
  for (Generator& own : draws) masks.push_back(weft::dropout(weft::ones({1, 128}), 0.6, is_training(), &own));
  const Tensor hidden = weft::relu(affine1_.forward(x) * weft::cat(masks, 0));
  return weft::softmax(affine2_.forward(hidden), 1);
}

Learner::Learner(const AgentOptions& options)
    : options_(options),
      policy_(options.seed),
      optimizer_(policy_.parameters(), {.lr = options.lr}),
      records_(static_cast<size_t>(options.observers)) {}

void Learner::check(int64_t observer) const {
  if (observer < 0 || observer >= options_.observers)
    throw weft::IndexError(
        weft::str("agent: observer ", observer, " is outside [0, ", options_.observers, ")"));
}

/// The draws of an observer's next action.
Generator Learner::draws_of(int64_t observer) {
  check(observer);
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t step = records_[static_cast<size_t>(observer)].log_probs.size();
  return stream(options_.seed, "policy", observer, episode_).fork(step);
}

int64_t Learner::select_action(int64_t observer, const Tensor& state) {
  Generator draws = draws_of(observer);
  const auto choice = weft::nn::Categorical::from_probs(policy_.forward(state.reshape({1, 4}), draws));
  const Tensor action = choice.sample(&draws);
  Tensor log_prob = choice.log_prob(action);
  std::lock_guard<std::mutex> lock(mutex_);
  records_[static_cast<size_t>(observer)].log_probs.push_back(std::move(log_prob));
  return action.item<int64_t>();
}

Tensor Learner::select_actions(const std::vector<int64_t>& observers, const Tensor& states) {
  std::vector<Generator> draws;
  for (const int64_t observer : observers) draws.push_back(draws_of(observer));
  const Tensor probs = policy_.forward(states, draws);
  std::vector<Tensor> chosen;
  for (size_t i = 0; i < observers.size(); ++i) {
    const Tensor own = probs.detach().narrow(0, static_cast<int64_t>(i), 1);
    chosen.push_back(weft::nn::Categorical::from_probs(own).sample(&draws[i]));
  }
  const Tensor actions = weft::cat(chosen, 0);
  const Tensor log_probs = weft::nn::Categorical::from_probs(probs).log_prob(actions);
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < observers.size(); ++i)
    records_[static_cast<size_t>(observers[i])].log_probs.push_back(
        log_probs.narrow(0, static_cast<int64_t>(i), 1));
  return actions;
}

void Learner::report_reward(int64_t observer, double reward) {
  check(observer);
  std::lock_guard<std::mutex> lock(mutex_);
  records_[static_cast<size_t>(observer)].rewards.push_back(reward);
}

void Learner::forget(int64_t observer) {
  check(observer);
  std::lock_guard<std::mutex> lock(mutex_);
  records_[static_cast<size_t>(observer)] = {};
}

double Learner::finish_episode() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::vector<Tensor>> log_probs;  // by observer
  std::vector<float> returns;
  double smallest = std::numeric_limits<double>::infinity();
  for (Record& record : records_) {
    const size_t steps = std::min(record.rewards.size(), record.log_probs.size());
    std::vector<double> backwards(steps);
    double sum = 0, total = 0;
    for (size_t t = steps; t-- > 0;) {
      backwards[t] = sum = record.rewards[t] + options_.gamma * sum;
      total += record.rewards[t];
    }
    for (const double value : backwards) returns.push_back(static_cast<float>(value));
    record.log_probs.resize(steps);
    log_probs.push_back(std::move(record.log_probs));
    smallest = std::min(smallest, total);
    record = {};
  }
  if (returns.empty()) throw weft::ValueError("agent: the episode has no steps");
  ++episode_;
  running_ = 0.05 * smallest + 0.95 * running_;

  const int64_t n = static_cast<int64_t>(returns.size());
  Tensor r = weft::from_vector(returns, {n});
  // A single return is not normalised, since its unbiased deviation would be NaN.
  if (n > 1) r = (r - r.mean()) / (r.std() + static_cast<double>(std::numeric_limits<float>::epsilon()));
  optimizer_.zero_grad();
  // One backward per observer, in the order of their numbers. A joint one would visit the nodes in the order
  // of the observers' calls. The sums of the gradients would round in that order. Joined runs leave no
  // choice: their graphs belong to several observers.
  int64_t first = 0;
  Tensor joint;
  for (const std::vector<Tensor>& own : log_probs) {
    const auto steps = static_cast<int64_t>(own.size());
    if (steps > 0) {
      const Tensor loss = (weft::cat(own, 0) * r.narrow(0, first, steps)).sum().neg();
      if (!options_.joined) loss.backward();
      else joint = joint.defined() ? joint + loss : loss;
    }
    first += steps;
  }
  if (joint.defined()) joint.backward();
  optimizer_.step();
  return smallest;
}

}  // namespace cartpole
