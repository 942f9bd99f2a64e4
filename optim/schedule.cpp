// Learning-rate schedules. FactorSchedule keeps a base rate per group; the rate of epoch t is base *
// factor(t). A rate that differs from this product was changed by something else: step() then divides it by
// the factor to get the new base. The named schedules only differ in the factor, a closed form of the epoch.
#include <weft/optim/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <weft/tensor/factories.h>

namespace weft::optim {
namespace {

void check_positive(const char* what, double value) {
  if (!(value > 0)) throw ValueError(str(what, " must be positive, got ", value));
}

void check_finite(const char* what, double value) {
  if (!std::isfinite(value)) throw ValueError(str(what, " must be finite, got ", value));
}

std::vector<double> rates_of(const Rates& rates) {
  std::vector<double> out;
  for (size_t g = 0, n = rates.groups(); g < n; ++g) out.push_back(rates.get(g));
  return out;
}

Tensor count(int64_t n) { return scalar_tensor(n, {.dtype = kInt64}); }

}  // namespace

FactorSchedule::FactorSchedule(Rates rates, Callback<double(int64_t)> factor)
    : rates_(std::move(rates)), factor_(std::move(factor)), base_(rates_of(rates_)) {
  set_epoch(0);
}

void FactorSchedule::set(const std::vector<double>& rates) {
  const std::vector<double> before = rates_of(rates_);
  size_t g = 0;
  try {
    for (; g < rates.size(); ++g) rates_.set(g, rates[g]);
  } catch (...) {
    while (g-- > 0) rates_.set(g, before[g]);
    throw;
  }
}

double FactorSchedule::base(size_t group) const {
  const std::vector<double> all = bases();
  if (group >= all.size())
    throw IndexError(str("schedule: there is no group ", static_cast<int64_t>(group), "; it has ", all.size(),
                         " of them"));
  return all[group];
}

/// base_, and of groups that the optimizer was given since, the rate over the present factor.
std::vector<double> FactorSchedule::bases() const {
  std::vector<double> base = base_;
  const double now = factor_(epoch_);
  for (size_t g = base.size(), n = rates_.groups(); g < n; ++g)
    base.push_back(now != 0 ? rates_.get(g) / now : rates_.get(g));
  return base;
}

void FactorSchedule::step() {
  std::vector<double> base = bases(), rates = rates_of(rates_);
  const double now = factor_(epoch_), next = factor_(epoch_ + 1);
  for (size_t g = 0; g < base.size(); ++g) {
    // a rate whose factor is 0 does not determine its base
    if (rates.at(g) != base[g] * now && now != 0) base[g] = rates[g] / now;
    rates[g] = base[g] * next;
  }
  set(rates);
  base_ = std::move(base);
  ++epoch_;
}

void FactorSchedule::set_epoch(int64_t epoch) {
  if (epoch < 0) throw ValueError(str("schedule: epoch must not be negative, got ", epoch));
  const double factor = factor_(epoch);
  std::vector<double> base = bases(), rates = base;
  for (double& rate : rates) rate *= factor;
  set(rates);
  base_ = std::move(base);
  epoch_ = epoch;
}

StateDict FactorSchedule::state_dict() const {
  const std::vector<double> base = bases();
  const auto groups = static_cast<int64_t>(base.size());
  return {{"epoch", count(epoch_)},
          {"base", from_vector(base, {groups})},
          {"lr", from_vector(rates_of(rates_), {groups})}};
}

void FactorSchedule::load_state_dict(const StateDict& state) {
  const std::vector<Tensor> found = state_entries("a factor schedule", state, {"epoch", "base", "lr"});
  const auto epoch = found[0].item<int64_t>();
  if (epoch < 0) throw ValueError(str("load_state_dict: epoch must not be negative, got ", epoch));
  for (size_t i : {1, 2})
    if (found[i].numel() != static_cast<int64_t>(rates_.groups()))
      throw ValueError(str("load_state_dict: rates of ", found[i].numel(), " groups for an optimizer with ",
                           rates_.groups()));
  set(found[2].to_vector<double>());
  base_ = found[1].to_vector<double>();
  epoch_ = epoch;
}

Factor step_factor(const StepLROptions& o) {
  check_positive("StepLR: step_size", static_cast<double>(o.step_size));
  check_finite("StepLR: gamma", o.gamma);
  return [o](int64_t t) { return std::pow(o.gamma, static_cast<double>(t / o.step_size)); };
}

Factor multi_step_factor(const MultiStepLROptions& o) {
  check_finite("MultiStepLR: gamma", o.gamma);
  return [o](int64_t t) {
    const auto passed =
        std::count_if(o.milestones.begin(), o.milestones.end(), [t](int64_t m) { return m <= t; });
    return std::pow(o.gamma, static_cast<double>(passed));
  };
}

Factor exponential_factor(double gamma) {
  check_finite("ExponentialLR: gamma", gamma);
  check_positive("ExponentialLR: gamma", gamma);
  return [gamma](int64_t t) { return std::pow(gamma, static_cast<double>(t)); };
}

Factor linear_factor(const LinearLROptions& o) {
  check_positive("LinearLR: total", static_cast<double>(o.total));
  check_finite("LinearLR: start_factor", o.start_factor);
  check_finite("LinearLR: end_factor", o.end_factor);
  return [o](int64_t t) {
    const double done = static_cast<double>(std::min(t, o.total)) / static_cast<double>(o.total);
    return o.start_factor + (o.end_factor - o.start_factor) * done;
  };
}

Factor cosine_factor(const CosineLROptions& o) {
  check_positive("CosineLR: t_max", static_cast<double>(o.t_max));
  check_finite("CosineLR: min_factor", o.min_factor);
  return [o](int64_t t) {
    const double turn = std::numbers::pi * static_cast<double>(t) / static_cast<double>(o.t_max);
    return o.min_factor + (1 - o.min_factor) * (1 + std::cos(turn)) / 2;
  };
}

namespace {

Factor sequential_factor(const SequentialLROptions& o) {
  if (o.milestones.size() + 1 != o.factors.size())
    throw ValueError(str("SequentialLR: ", o.factors.size(), " factors take one milestone fewer, got ",
                         o.milestones.size()));
  for (const Factor& f : o.factors)
    if (!f) throw ValueError("SequentialLR: a factor is empty");
  for (size_t i = 0; i < o.milestones.size(); ++i)
    if (o.milestones[i] <= (i == 0 ? 0 : o.milestones[i - 1]))
      throw ValueError(
          str("SequentialLR: milestones must be positive and ascend, got ", o.milestones[i], " at ", i));
  return [o](int64_t t) {
    const auto passed = std::upper_bound(o.milestones.begin(), o.milestones.end(), t) - o.milestones.begin();
    const auto i = static_cast<size_t>(passed);
    return o.factors[i](i == 0 ? t : t - o.milestones[i - 1]);
  };
}

Factor warmup_factor(const WarmupLROptions& o) {
  check_positive("WarmupLR: steps", static_cast<double>(o.steps));
  check_finite("WarmupLR: start_factor", o.start_factor);
  if (o.start_factor < 0)
    throw ValueError(str("WarmupLR: start_factor must not be negative, got ", o.start_factor));
  const Factor rise = linear_factor({.start_factor = o.start_factor, .end_factor = 1, .total = o.steps});
  if (!o.then) return rise;
  return sequential_factor({.factors = {rise, o.then}, .milestones = {o.steps}});
}

}  // namespace

StepLR::StepLR(Rates rates, const StepLROptions& o) : FactorSchedule(std::move(rates), step_factor(o)) {}
MultiStepLR::MultiStepLR(Rates rates, const MultiStepLROptions& o)
    : FactorSchedule(std::move(rates), multi_step_factor(o)) {}
ExponentialLR::ExponentialLR(Rates rates, double gamma)
    : FactorSchedule(std::move(rates), exponential_factor(gamma)) {}
LinearLR::LinearLR(Rates rates, const LinearLROptions& o)
    : FactorSchedule(std::move(rates), linear_factor(o)) {}
CosineLR::CosineLR(Rates rates, const CosineLROptions& o)
    : FactorSchedule(std::move(rates), cosine_factor(o)) {}
SequentialLR::SequentialLR(Rates rates, const SequentialLROptions& o)
    : FactorSchedule(std::move(rates), sequential_factor(o)) {}
WarmupLR::WarmupLR(Rates rates, const WarmupLROptions& o)
    : FactorSchedule(std::move(rates), warmup_factor(o)) {}

ReduceOnPlateau::ReduceOnPlateau(Rates rates, const PlateauOptions& options)
    : rates_(std::move(rates)), options_(options) {
  if (!(options.factor > 0 && options.factor < 1))
    throw ValueError(str("ReduceOnPlateau: factor must be in (0, 1), got ", options.factor));
  check_finite("ReduceOnPlateau: threshold", options.threshold);
  check_finite("ReduceOnPlateau: min_lr", options.min_lr);
  check_finite("ReduceOnPlateau: eps", options.eps);
  if (options.patience < 0 || options.cooldown < 0 || options.min_lr < 0)
    throw ValueError(str("ReduceOnPlateau: patience ", options.patience, ", cooldown ", options.cooldown,
                         " and min_lr ", options.min_lr, " must not be negative"));
  state_ = {
      options.maximize ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity(),
      0, 0};
}

StateDict ReduceOnPlateau::state_dict() const {
  return {{"best", scalar_tensor(state_.best, {.dtype = kFloat64})},
          {"bad_epochs", count(state_.bad_epochs)},
          {"cooldown_left", count(state_.cooldown_left)}};
}

void ReduceOnPlateau::load_state_dict(const StateDict& state) {
  const std::vector<Tensor> found =
      state_entries("ReduceOnPlateau", state, {"best", "bad_epochs", "cooldown_left"});
  state_ = {found[0].item<double>(), found[1].item<int64_t>(), found[2].item<int64_t>()};
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
