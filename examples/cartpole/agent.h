// The learner: a small policy trained by REINFORCE with normalised returns. Observers request actions and
// report rewards, each under its own number. Calls of several observers run concurrently, so one mutex
// guards the record of the episode. Each random draw (dropout, action) is keyed by seed, observer, episode
// and step, and gradients are summed observer by observer. So the order of calls of different observers
// changes no number. With joined runs it changes the rounding.
//
// With compile() the policy runs as a replay, which holds no graph. So the end of an episode runs each step
// once more, as a replay that gives its gradients. They are summed in the order of a backward pass. So the
// rounding is the same.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include <weft/weft.h>

namespace cartpole {

/// Linear(4, 128) -> Dropout(0.6) -> ReLU -> Linear(128, 2) -> softmax.
class Policy : public weft::nn::Module {
 public:
  explicit Policy(uint64_t seed);
  /// x [1, 4] -> probabilities [1, 2].
  weft::Tensor forward(const weft::Tensor& x, weft::Generator& draws) const;
  /// x [n, 4] -> [n, 2], with masks [n, 128] of mask().
  weft::Tensor forward(const weft::Tensor& x, const weft::Tensor& masks) const;
  /// The factors [1, 128] of dropout for one row, by the draws that forward makes.
  weft::Tensor mask(weft::Generator& draws) const;

 private:
  weft::nn::Linear affine1_, affine2_;
};

struct AgentOptions {
  int64_t observers = 1;
  uint64_t seed = 543;
  double gamma = 0.99;
  double lr = 1e-2;
  /// actions come from select_actions, whose joined runs share their graphs among observers
  bool joined = false;
  /// the policy runs by compile(); not with joined runs
  bool compiled = false;
};

class Learner {
 public:
  explicit Learner(const AgentOptions& options);

  /// Samples an action for an observer's state [4] and keeps its log-probability. Throws: weft::IndexError
  /// for an unknown observer.
  int64_t select_action(int64_t observer, const weft::Tensor& state);
  /// The same for several observers in one run of the policy: observers int64 [n], states [n, 4] -> actions
  /// [n]. It makes the draws that select_action makes.
  weft::Tensor select_actions(const std::vector<int64_t>& observers, const weft::Tensor& states);
  /// Reports the reward of that observer's last action.
  void report_reward(int64_t observer, double reward);
  /// Drops the part of the episode that an observer has played, before it is played again.
  void forget(int64_t observer);

  /// Ends the episode with one Adam step. Returns are discounted within each observer's episode and
  /// normalised over all of them. Returns the smallest total reward of an observer.
  double finish_episode();
  double running_reward() const { return running_; }
  int64_t episode() const { return episode_; }
  const Policy& policy() const { return policy_; }
  /// Of the compiled policy, and of the compiled gradients of a step.
  weft::CompileStats policy_runs() const { return replayed_policy_.stats(); }
  weft::CompileStats gradient_runs() const { return replayed_gradients_.stats(); }

 private:
  /// A step of the compiled policy.
  struct Step {
    weft::Tensor state, mask, action;  // [1, 4], [1, 128], int64 [1, 1]
  };
  struct Record {
    std::vector<weft::Tensor> log_probs;  // empty with compile()
    std::vector<Step> steps;              // with compile() alone
    std::vector<double> rewards;
    size_t actions() const { return log_probs.size() + steps.size(); }
  };
  using Replayed = weft::Compiled<std::function<weft::Tensor(const weft::Tensor&, const weft::Tensor&)>>;
  using ReplayedGradients = weft::Compiled<std::function<std::vector<weft::Tensor>(
      const weft::Tensor&, const weft::Tensor&, const weft::Tensor&, const weft::Tensor&)>>;
  void check(int64_t observer) const;
  weft::Generator draws_of(int64_t observer);
  /// Normalised, [1, 2].
  weft::Tensor probabilities(const weft::Tensor& state, const weft::Tensor& mask) const;
  /// Of minus the log-probability of the action times the factor [1], by parameter.
  std::vector<weft::Tensor> gradients(const weft::Tensor& state, const weft::Tensor& mask,
                                      const weft::Tensor& action, const weft::Tensor& factor) const;
  void add_gradients(const std::vector<Step>& steps, const weft::Tensor& returns);
  AgentOptions options_;
  Policy policy_;
  weft::optim::Adam optimizer_;
  Replayed replayed_policy_;              // probabilities()
  ReplayedGradients replayed_gradients_;  // gradients()
  std::mutex mutex_;
  std::vector<Record> records_;
  double running_ = 0;
  int64_t episode_ = 1;
};

/// The key of the random stream of one observer's environment in one episode.
weft::Generator environment_draws(uint64_t seed, int64_t observer, int64_t episode);

}  // namespace cartpole
