#include <weft/optim/grad_scaler.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <weft/autograd/ops.h>
#include <weft/optim/clip.h>
#include <weft/optim/optimizer.h>

namespace weft::optim {

GradScaler::GradScaler(const Options& options) : options_(options), scale_(options.init_scale) {
  if (!(options.init_scale > 0) || !std::isfinite(options.init_scale)) throw ValueError(str("GradScaler: init_scale must be positive, got ", options.init_scale));
  if (!(options.growth > 1)) throw ValueError(str("GradScaler: growth must be above 1, got ", options.growth));
  if (!(options.backoff > 0 && options.backoff < 1)) throw ValueError(str("GradScaler: backoff must lie in (0, 1), got ", options.backoff));
  if (options.growth_interval < 1) throw ValueError(str("GradScaler: growth_interval must be at least 1, got ", options.growth_interval));
}

Tensor GradScaler::scale(const Tensor& loss) const { return options_.enabled ? loss * scale_ : loss; }

bool GradScaler::was_unscaled(const Tensor& param) const { return std::find(unscaled_.begin(), unscaled_.end(), &param.body()) != unscaled_.end(); }

void GradScaler::unscale(std::span<const Tensor> params) {
  if (!options_.enabled) return;
  std::vector<Tensor> grads;
  for (const Tensor& p : params) {
    if (was_unscaled(p)) throw ValueError("GradScaler: unscale was called twice for a parameter before update");
    if (p.grad().defined()) grads.push_back(p.grad());
  }
  for (const Tensor& p : params) unscaled_.push_back(&p.body());
  scale_grads(grads, 1 / scale_);
  for (const double largest : grad_powers(grads, std::numeric_limits<double>::infinity())) nonfinite_ = nonfinite_ || !std::isfinite(largest);
  seen_ = true;
}

bool GradScaler::step(Optimizer& optimizer) {
  if (options_.enabled) {
    std::vector<Tensor> rest;
    for (const Tensor& p : optimizer.parameters())
      if (!was_unscaled(p)) rest.push_back(p);
    if (!rest.empty()) unscale(rest);
    if (nonfinite_) return false;
  }
  optimizer.step();
  return true;
}

void GradScaler::update() {
  unscaled_.clear();
  if (!options_.enabled || !std::exchange(seen_, false)) return;
  if (std::exchange(nonfinite_, false)) {
    scale_ *= options_.backoff;
    good_steps_ = 0;
  } else if (++good_steps_ == options_.growth_interval) {
    if (const double grown = scale_ * options_.growth; std::isfinite(static_cast<float>(grown))) scale_ = grown;
    good_steps_ = 0;
  }
}

void GradScaler::load_state(const State& state) {
  if (!(state.scale > 0) || !std::isfinite(state.scale) || state.good_steps < 0) throw ValueError(str("GradScaler: a scale of ", state.scale, " after ", state.good_steps, " good steps is no state"));
  scale_ = state.scale;
  good_steps_ = state.good_steps;
}

}  // namespace weft::optim
