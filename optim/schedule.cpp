#include <weft/optim/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft::optim {
namespace {

void check_positive(const char* what, double value) {
  if (!(value > 0)) throw ValueError(str(what, " must be positive, got ", value));
}

}  // namespace

FactorSchedule::FactorSchedule(Rates rates, Callback<double(int64_t)> factor)
    : rates_(std::move(rates)), factor_(std::move(factor)) {
  for (size_t g = 0; g < rates_.groups(); ++g) base_.push_back(rates_.get(g));
  set_epoch(0);
}

void FactorSchedule::set_epoch(int64_t epoch) {
  if (epoch < 0) throw ValueError(str("schedule: epoch must not be negative, got ", epoch));
  const double f = factor_(epoch);
  for (size_t g = 0; g < base_.size(); ++g) rates_.set(g, base_[g] * f);
  epoch_ = epoch;
}

StepLR::StepLR(Rates rates, const StepLROptions& o)
    : FactorSchedule(
          (check_positive("StepLR: step_size", static_cast<double>(o.step_size)), std::move(rates)),
          [o](int64_t t) { return std::pow(o.gamma, static_cast<double>(t / o.step_size)); }) {}

MultiStepLR::MultiStepLR(Rates rates, const MultiStepLROptions& o)
    : FactorSchedule(std::move(rates), [o](int64_t t) {
        const auto passed =
            std::count_if(o.milestones.begin(), o.milestones.end(), [t](int64_t m) { return m <= t; });
        return std::pow(o.gamma, static_cast<double>(passed));
      }) {}

ExponentialLR::ExponentialLR(Rates rates, double gamma)
    : FactorSchedule((check_positive("ExponentialLR: gamma", gamma), std::move(rates)),
                     [gamma](int64_t t) { return std::pow(gamma, static_cast<double>(t)); }) {}

LinearLR::LinearLR(Rates rates, const LinearLROptions& o)
    : FactorSchedule((check_positive("LinearLR: total", static_cast<double>(o.total)), std::move(rates)),
                     [o](int64_t t) {
                       const double done =
                           static_cast<double>(std::min(t, o.total)) / static_cast<double>(o.total);
                       return o.start_factor + (o.end_factor - o.start_factor) * done;
                     }) {}

CosineLR::CosineLR(Rates rates, const CosineLROptions& o)
    : FactorSchedule((check_positive("CosineLR: t_max", static_cast<double>(o.t_max)), std::move(rates)),
                     [o](int64_t t) {
                       const double turn =
                           std::numbers::pi * static_cast<double>(t) / static_cast<double>(o.t_max);
                       return o.min_factor + (1 - o.min_factor) * (1 + std::cos(turn)) / 2;
                     }) {}

ReduceOnPlateau::ReduceOnPlateau(Rates rates, const PlateauOptions& options)
    : rates_(std::move(rates)), options_(options) {
  if (!(options.factor > 0 && options.factor < 1))
    throw ValueError(str("ReduceOnPlateau: factor must be in (0, 1), got ", options.factor));
  if (options.patience < 0 || options.cooldown < 0 || options.min_lr < 0)
    throw ValueError(str("ReduceOnPlateau: patience ", options.patience, ", cooldown ", options.cooldown,
                         " and min_lr ", options.min_lr, " must not be negative"));
  state_ = {
      options.maximize ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity(),
      0, 0};
}

bool ReduceOnPlateau::better(double metric) const {
  const double sign = options_.maximize ? -1 : 1, best = sign * state_.best, now = sign * metric;
  if (std::isinf(best)) return now < best;
  return now <
         best - (options_.threshold_absolute ? options_.threshold : options_.threshold * std::abs(best));
}

bool ReduceOnPlateau::step(double metric) {
  if (better(metric)) {
    state_.best = metric;
    state_.bad_epochs = 0;
  } else {
    ++state_.bad_epochs;
  }
  if (state_.cooldown_left > 0) {
    --state_.cooldown_left;
    state_.bad_epochs = 0;
  }
  if (state_.bad_epochs <= options_.patience) return false;
  state_.cooldown_left = options_.cooldown;
  state_.bad_epochs = 0;
  bool cut = false;
  for (size_t g = 0; g < rates_.groups(); ++g) {
    const double old = rates_.get(g), fresh = std::max(old * options_.factor, options_.min_lr);
    if (old - fresh <= options_.eps) continue;
    rates_.set(g, fresh);
    cut = true;
  }
  return cut;
}

}  // namespace weft::optim
