// The policy, the choice of actions and the REINFORCE update of agent.h.
#include "agent.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

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

Tensor Policy::forward(const Tensor& x, const Tensor& masks) const {
  return weft::softmax(affine2_.forward(weft::relu(affine1_.forward(x) * masks)), 1);
}

Tensor Policy::mask(Generator& draws) const {
  return weft::dropout(weft::ones({1, 128}), 0.6, is_training(), &draws);
}

Learner::Learner(const AgentOptions& options)
    : options_(options),
      policy_(options.seed),
      optimizer_(policy_.parameters(), {.lr = options.lr}),
      replayed_policy_([this](const auto&... in) { return probabilities(in...); }, {}),
      replayed_gradients_([this](const auto&... in) { return gradients(in...); }, {}),
      records_(static_cast<size_t>(options.observers)) {
  if (options.joined && options.compiled)
    throw weft::ValueError("agent: joined runs need the graphs that a compiled policy does not hold");
}

// The numbers of Categorical, whose check of the weights reads values on the host.
Tensor Learner::probabilities(const Tensor& state, const Tensor& mask) const {
  const Tensor weights = policy_.forward(state, mask);
  return weights / weights.sum({-1}, true);
}

std::vector<Tensor> Learner::gradients(const Tensor& state, const Tensor& mask, const Tensor& action,
                                       const Tensor& factor) const {
  const double eps = std::numeric_limits<float>::epsilon();
  const Tensor logits = probabilities(state, mask).clamp(eps, 1 - eps).log();
  const Tensor log_prob = logits.gather(-1, action).squeeze(-1);
  return weft::grad({(log_prob * factor).sum().neg()}, policy_.parameters());
}

void Learner::check(int64_t observer) const {
  if (observer < 0 || observer >= options_.observers)
    throw weft::IndexError(
        weft::str("agent: observer ", observer, " is outside [0, ", options_.observers, ")"));
}

/// The draws of an observer's next action.
Generator Learner::draws_of(int64_t observer) {
  check(observer);
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t step = records_[static_cast<size_t>(observer)].actions();
  return stream(options_.seed, "policy", observer, episode_).fork(step);
}

int64_t Learner::select_action(int64_t observer, const Tensor& state) {
  Generator draws = draws_of(observer);
  if (options_.compiled) {
    const weft::NoGrad guard;
    Step step{state.reshape({1, 4}), policy_.mask(draws), {}};
    step.action = weft::multinomial(replayed_policy_(step.state, step.mask), 1, true, &draws);
    const auto action = step.action.item<int64_t>();
    std::lock_guard<std::mutex> lock(mutex_);
    records_[static_cast<size_t>(observer)].steps.push_back(std::move(step));
    return action;
  }
  const auto choice = weft::nn::Categorical::from_probs(policy_.forward(state.reshape({1, 4}), draws));
  const Tensor action = choice.sample(&draws);
  Tensor log_prob = choice.log_prob(action);
  std::lock_guard<std::mutex> lock(mutex_);
  records_[static_cast<size_t>(observer)].log_probs.push_back(std::move(log_prob));
  return action.item<int64_t>();
}

Tensor Learner::select_actions(const std::vector<int64_t>& observers, const Tensor& states) {
  std::vector<Generator> draws;
  std::vector<Tensor> masks;
  for (const int64_t observer : observers) {
    draws.push_back(draws_of(observer));
    masks.push_back(policy_.mask(draws.back()));
  }
  const Tensor probs = policy_.forward(states, weft::cat(masks, 0));
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

/// Adds the gradients of an observer's steps to those of the parameters, as one backward would: the last step
/// comes first.
void Learner::add_gradients(const std::vector<Step>& steps, const Tensor& returns) {
  std::vector<Tensor> sums;
  for (auto t = static_cast<int64_t>(steps.size()); t-- > 0;) {
    const Step& step = steps[static_cast<size_t>(t)];
    std::vector<Tensor> own =
        replayed_gradients_(step.state, step.mask, step.action, returns.narrow(0, t, 1));
    if (sums.empty()) sums = std::move(own);
    else
      for (size_t i = 0; i < sums.size(); ++i) sums[i].add_(own[i]);
  }
  const std::vector<Tensor> parameters = policy_.parameters();
  for (size_t i = 0; i < sums.size(); ++i) {
    const Tensor before = parameters[i].grad();
    parameters[i].set_grad(before.defined() ? before + sums[i] : sums[i]);
  }
}

double Learner::finish_episode() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Record> played;  // by observer
  std::vector<float> returns;
  double smallest = std::numeric_limits<double>::infinity();
  for (Record& record : records_) {
    const size_t steps = std::min(record.rewards.size(), record.actions());
    std::vector<double> backwards(steps);
    double sum = 0, total = 0;
    for (size_t t = steps; t-- > 0;) {
      backwards[t] = sum = record.rewards[t] + options_.gamma * sum;
      total += record.rewards[t];
    }
    for (const double value : backwards) returns.push_back(static_cast<float>(value));
    if (options_.compiled) record.steps.resize(steps);
    else record.log_probs.resize(steps);
    smallest = std::min(smallest, total);
    played.push_back(std::exchange(record, {}));
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
  for (const Record& own : played) {
    const auto steps = static_cast<int64_t>(own.actions());
    if (steps > 0 && options_.compiled) {
      add_gradients(own.steps, r.narrow(0, first, steps));
    } else if (steps > 0) {
      const Tensor loss = (weft::cat(own.log_probs, 0) * r.narrow(0, first, steps)).sum().neg();
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
