// Learning-rate schedules. A schedule only reads and sets the rates of parameter groups. So it works with a
// local and with a distributed optimizer:
//   optim::StepLR schedule(optim::rates(opt), {.step_size = 30, .gamma = 0.1});
//   ... schedule.step();                       // once per epoch
//   optim::ReduceOnPlateau plateau(optim::rates(opt), {.factor = 0.25, .patience = 0, .threshold = 0});
//   ... plateau.step(validation_loss);
// The rate of epoch t is base * f(t), in closed form. Several schedules may drive one optimizer. step()
// continues from the current rate, so the cuts of a plateau, the factors of another schedule and rates set by
// hand persist. To resume a run, load the states of the optimizer and of the schedule, in any order.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include <weft/autograd/tape/callback.h>
#include <weft/optim/state_dict.h>

namespace weft::optim {

/// Access to the rates of an optimizer's groups.
struct Rates {
  Callback<size_t()> groups;
  Callback<double(size_t)> get;
  Callback<void(size_t, double)> set;
};
template <class AnyOptimizer> Rates rates(AnyOptimizer& o) {
  return {[&o] { return o.groups(); }, [&o](size_t g) { return o.lr(g); },
          [&o](size_t g, double lr) { o.set_lr(g, lr); }};
}

/// A schedule whose rate is base * factor(epoch); the constructor sets the rate of epoch 0. Throws, here and
/// below, before any change: the optimizer's error for a rate that it refuses.
class WEFT_API FactorSchedule {
 public:
  FactorSchedule(Rates rates, Callback<double(int64_t)> factor);
  /// Advances to the next epoch. A rate that was changed since the last step() is multiplied by factor(epoch
  /// + 1) / factor(epoch), so the change persists.
  void step();
  /// Sets the rates to base() * factor(epoch); their current values do not matter.
  /// Throws: ValueError for a negative epoch.
  void set_epoch(int64_t epoch);
  int64_t epoch() const { return epoch_; }
  /// The rate of a group for a factor of 1, including external changes that step() has seen.
  /// Throws: IndexError that names the number of groups.
  double base(size_t group = 0) const;

  /// The entry "epoch", and per group "base" and "lr", the current rate.
  StateDict state_dict() const;
  /// Restores epoch, bases and rates.
  /// Throws: ValueError that names a missing or unknown entry, or for another number of groups.
  void load_state_dict(const StateDict& state);

 private:
  void set(const std::vector<double>& rates);
  std::vector<double> bases() const;
  Rates rates_;
  Callback<double(int64_t)> factor_;
  // per group; a rate that differs from base_ * factor_(epoch_) was changed externally
  std::vector<double> base_;
  int64_t epoch_ = 0;
};

// The schedules below refuse, at construction, an option that is NaN or infinite (ValueError with its name).

/// The factor as a function of the epoch, from 0.
using Factor = Callback<double(int64_t)>;

/// Options of StepLR; step_size in epochs.
struct StepLROptions {
  int64_t step_size = 30;
  double gamma = 0.1;
};
/// gamma^floor(t / step_size). Throws: ValueError unless step_size is positive.
class WEFT_API StepLR : public FactorSchedule {
 public:
  StepLR(Rates rates, const StepLROptions& options);
};

/// Options of MultiStepLR; milestones in epochs.
struct MultiStepLROptions {
  std::vector<int64_t> milestones;
  double gamma = 0.1;
};
/// gamma^(number of milestones <= t).
class WEFT_API MultiStepLR : public FactorSchedule {
 public:
  MultiStepLR(Rates rates, const MultiStepLROptions& options);
};

/// gamma^t. Throws: ValueError unless gamma is positive.
class WEFT_API ExponentialLR : public FactorSchedule {
 public:
  ExponentialLR(Rates rates, double gamma);
};

/// Options of LinearLR; total in epochs.
struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  int64_t total = 5;
};
/// From start_factor to end_factor over `total` epochs, then constant.
/// Throws: ValueError unless total is positive.
class WEFT_API LinearLR : public FactorSchedule {
 public:
  LinearLR(Rates rates, const LinearLROptions& options);
};

/// Options of CosineLR; t_max in epochs, min_factor relative to the base rate.
struct CosineLROptions {
  int64_t t_max = 50;
  double min_factor = 0;
};
/// min + (1 - min) (1 + cos(pi t / t_max)) / 2. Source: Loshchilov & Hutter 2017, eq. 5 without restarts.
/// Throws: ValueError unless t_max is positive.
class WEFT_API CosineLR : public FactorSchedule {
 public:
  CosineLR(Rates rates, const CosineLROptions& options);
};

// The factors of the schedules above, for SequentialLR and WarmupLR. Throws: as the schedules.
WEFT_API Factor step_factor(const StepLROptions& options);
WEFT_API Factor multi_step_factor(const MultiStepLROptions& options);
WEFT_API Factor exponential_factor(double gamma);
WEFT_API Factor linear_factor(const LinearLROptions& options);
WEFT_API Factor cosine_factor(const CosineLROptions& options);

/// Options of SequentialLR; milestones in epochs.
struct SequentialLROptions {
  std::vector<Factor> factors;
  std::vector<int64_t> milestones;
};
/// One factor after another: at each milestone the next one begins, with its epoch 0.
///   const Factor rise = linear_factor({.total = 5});
///   SequentialLR schedule(rates(opt), {.factors = {rise, exponential_factor(0.9)}, .milestones = {5}});
/// Throws: ValueError unless milestones are positive, ascending and one fewer than the factors.
class WEFT_API SequentialLR : public FactorSchedule {
 public:
  SequentialLR(Rates rates, const SequentialLROptions& options);
};

/// Options of WarmupLR.
struct WarmupLROptions {
  int64_t steps = 1000;     ///< until the factor is 1
  double start_factor = 0;  ///< of epoch 0
  Factor then = nullptr;    ///< the factor after that, from its epoch 0; null: 1
};
/// Rises linearly to the full rate. For schedules that are stepped with the optimizer, not once per epoch.
///   WarmupLR schedule(rates(opt), {.steps = 500, .then = cosine_factor({.t_max = 9500})});
/// Source: Goyal et al. 2017, gradual warm-up. Throws: ValueError unless steps is positive and start_factor
/// not negative.
class WEFT_API WarmupLR : public FactorSchedule {
 public:
  WarmupLR(Rates rates, const WarmupLROptions& options);
};

/// Options of ReduceOnPlateau; cooldown: epochs after a cut that never count as bad; min_lr: lower bound.
struct PlateauOptions {
  bool maximize = false;  ///< a larger metric is better
  double factor = 0.1;    ///< rate *= factor after `patience` epochs without improvement
  int64_t patience = 10;  ///< epochs without improvement before a cut
  double threshold = 1e-4;
  bool threshold_absolute = false;  ///< false: relative to the best metric
  int64_t cooldown = 0;
  double min_lr = 0;
  double eps = 1e-8;  ///< smaller changes of the rate are skipped
};

/// Cuts the rate when a metric has stopped improving.
class WEFT_API ReduceOnPlateau {
 public:
  /// The state between two calls of step().
  struct State {
    double best;
    int64_t bad_epochs, cooldown_left;
  };
  /// Throws: ValueError for factor outside (0, 1) or negative counts.
  ReduceOnPlateau(Rates rates, const PlateauOptions& options = {});
  /// Call it once per epoch. Returns true if the rate was cut.
  bool step(double metric);
  State state() const { return state_; }
  void set_state(const State& s) { state_ = s; }
  /// The entries "best", "bad_epochs" and "cooldown_left"; the optimizer's state has the rates.
  StateDict state_dict() const;
  /// Throws: ValueError that names a missing or unknown entry.
  void load_state_dict(const StateDict& state);

 private:
  bool better(double metric) const;
  Rates rates_;
  PlateauOptions options_;
  State state_;
};

}  // namespace weft::optim
