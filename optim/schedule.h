// Learning-rate schedules. A schedule knows an optimizer only as "something whose group rates can be read and set", so the same object
// drives a local optimizer and a distributed one:
//   optim::StepLR schedule(optim::rates(opt), {.step_size = 30, .gamma = 0.1});
//   ... schedule.step();                       // once per epoch
//   optim::ReduceOnPlateau plateau(optim::rates(opt), {.factor = 0.25, .patience = 0, .threshold = 0});
//   ... plateau.step(validation_loss);
// Closed forms: the rate of epoch t is base * f(t); Source of the shapes: the usual definitions, named at each.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include <weft/autograd/callback.h>
#include <weft/kernels/error.h>

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

/// A schedule whose rate is base * factor(epoch); sets the rate of epoch 0 at construction. Throws, here and in step(): what the optimizer says of a
/// rate that it refuses; the epoch stays then.
class WEFT_API FactorSchedule {
 public:
  FactorSchedule(Rates rates, Callback<double(int64_t)> factor);
  void step() { set_epoch(epoch_ + 1); }
  /// Also how a saved schedule is resumed. Throws: ValueError for a negative epoch.
  void set_epoch(int64_t epoch);
  int64_t epoch() const { return epoch_; }

 private:
  Rates rates_;
  Callback<double(int64_t)> factor_;
  std::vector<double> base_;
  int64_t epoch_ = 0;
};

struct StepLROptions {
  int64_t step_size = 30;
  double gamma = 0.1;
};
/// gamma^floor(t / step_size). Throws: ValueError unless step_size is positive.
class WEFT_API StepLR : public FactorSchedule {
 public:
  StepLR(Rates rates, const StepLROptions& options);
};

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

struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  int64_t total = 5;
};
/// From start_factor to end_factor over `total` epochs, then constant. Throws: ValueError unless total is positive.
class WEFT_API LinearLR : public FactorSchedule {
 public:
  LinearLR(Rates rates, const LinearLROptions& options);
};

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

struct PlateauOptions {
  bool maximize = false;  ///< a larger metric is better
  double factor = 0.1;    ///< rate *= factor when it does not improve
  int64_t patience = 10;  ///< epochs without improvement that are let pass
  double threshold = 1e-4;
  bool threshold_absolute = false;  ///< else relative to the best
  int64_t cooldown = 0;
  double min_lr = 0;
  double eps = 1e-8;  ///< smaller changes of the rate are not made
};

/// Cuts the rate when a metric has stopped improving.
class WEFT_API ReduceOnPlateau {
 public:
  struct State {
    double best;
    int64_t bad_epochs, cooldown_left;
  };
  /// Throws: ValueError for factor outside (0, 1) or negative counts.
  ReduceOnPlateau(Rates rates, const PlateauOptions& options = {});
  /// True when the rate was cut.
  bool step(double metric);
  State state() const { return state_; }
  void set_state(const State& s) { state_ = s; }

 private:
  bool better(double metric) const;
  Rates rates_;
  PlateauOptions options_;
  State state_;
};

}  // namespace weft::optim
