// GradScaler. Its state is a float64 tensor of four numbers on the device (LossScale). Kernels unscale the
// gradients, mark gradients that are not finite and adjust the scale there. The optimizer's step gets the
// mark as `skip`, so the host waits for nothing. Where the step unscales, the norm shows whether the
// gradients are finite.
#include <weft/optim/grad_scaler.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/kernels/backend.h>
#include <weft/kernels/inner/loss_scale.h>
#include <weft/optim/clip.h>
#include <weft/optim/optimizer.h>
#include <weft/tensor/factories.h>

namespace weft::optim {

GradScaler::GradScaler(const Options& options) : options_(options), state_(zeros({4}, {.dtype = kFloat64})) {
  if (!(options.init_scale > 0) || !std::isfinite(options.init_scale))
    throw ValueError(str("GradScaler: init_scale must be positive and finite, got ", options.init_scale));
  if (!(options.growth > 1) || !std::isfinite(options.growth))
    throw ValueError(str("GradScaler: growth must be above 1 and finite, got ", options.growth));
  if (!(options.backoff > 0 && options.backoff < 1))
    throw ValueError(str("GradScaler: backoff must lie in (0, 1), got ", options.backoff));
  if (options.growth_interval < 1)
    throw ValueError(str("GradScaler: growth_interval must be at least 1, got ", options.growth_interval));
  load_state({options.init_scale, 0});
}

void GradScaler::bring_state_to(Device device) {
  if (std::exchange(placed_, true)) return;
  Context context;
  if (backend(device).recording(context)) {
    placed_ = false;
    throw ValueError(
        "GradScaler: scale a loss once before a graph records it; each replay would begin with the first "
        "scale");
  }
  state_ = state_.to(device);
}

Tensor GradScaler::scale(const Tensor& loss) {
  if (!options_.enabled) return loss;
  bring_state_to(loss.device());
  const Tensor wide = loss.dtype() == kFloat16 || loss.dtype() == kBFloat16 ? loss.to(kFloat32) : loss;
  const Tensor now = state_.select(0, 0);
  // a copy: update() changes the state
  return wide * (wide.dtype() == kFloat64 ? now.clone() : now.to(wide.dtype())).to(wide.device());
}

bool GradScaler::was_unscaled(const Tensor& param) const {
  return std::find(unscaled_.begin(), unscaled_.end(), &param.body()) != unscaled_.end();
}

void GradScaler::unscale(std::span<const Tensor> params) {
  if (!options_.enabled) return;
  std::vector<Tensor> grads;
  for (const Tensor& p : params) {
    if (was_unscaled(p))
      throw ValueError("GradScaler: unscale was called twice for a parameter before update");
    if (Tensor g = weft::detail::kept_grad(p); g.defined()) grads.push_back(std::move(g));
  }
  if (!grads.empty()) bring_state_to(grads[0].device());
  unscale_grads(grads, state_);
  for (const Tensor& p : params) unscaled_.push_back(&p.body());
  seen_ = true;
}

/// A step that multiplies the gradients by `factor`. `total` is not finite if one of them is not.
void GradScaler::step_scaled(Optimizer& optimizer, const std::vector<Tensor>& grads, const Tensor& total,
                             const Tensor& factor) {
  const Tensor there = total.to(state_.device());
  Tensor mark = state_.select(0, 2);
  mark.add_(there - there);  // NaN, which counts as a mark, if it is not finite
  seen_ = true;
  optimizer.step(grads, mark, factor);
}

void GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) return optimizer.step();
  std::vector<Tensor> rest, grads;
  bool halves = false, some = false;
  for (const Tensor& p : optimizer.parameters()) {
    grads.push_back(weft::detail::kept_grad(p));
    const bool has_grad = grads.back().defined();
    if (was_unscaled(p)) {
      some = some || has_grad;
      continue;
    }
    rest.push_back(p);
    halves = halves || (has_grad && is_half(p.dtype()));
  }
  if (halves && some)
    throw ValueError(
        "GradScaler: step takes gradients of a half type that are unscaled all or none; unscale() the other "
        "parameters of this optimizer too");
  if (halves) {
    const NoGrad guard;
    const GradNorm norm = grad_norm(grads, 0, std::numeric_limits<double>::infinity());
    bring_state_to(norm.total.device());
    return step_scaled(optimizer, grads, norm.total, state_.select(0, 1));
  }
  if (!rest.empty()) unscale(rest);
  optimizer.step(grads, state_.select(0, 2));
}

Tensor GradScaler::step_clipped(Optimizer& optimizer, double max_norm, double p) {
  if (!options_.enabled) return optimizer.step_clipped(max_norm, p);
  const NoGrad guard;
  std::vector<Tensor> grads;
  for (const Tensor& param : optimizer.parameters()) {
    if (was_unscaled(param))
      throw ValueError(
          "GradScaler: step_clipped takes gradients that are not unscaled; after unscale() clip them by "
          "clip_grad_norm, and step()");
    grads.push_back(weft::detail::kept_grad(param));
  }
  const GradNorm norm = grad_norm(grads, max_norm, p);
  bring_state_to(norm.total.device());
  const Tensor inverse = state_.select(0, 1).to(norm.total.device()), total = norm.total * inverse;
  step_scaled(optimizer, grads, norm.total, clamp(max_norm / (total + 1e-6), {}, 1) * inverse);
  return total;
}

void GradScaler::update() {
  unscaled_.clear();
  if (!options_.enabled || !std::exchange(seen_, false)) return;
  Context context;
  backend(state_.device())
      .update_scale(context, options_.growth, options_.backoff, options_.growth_interval, state_.view_of());
  state_.body().storage->bump_version();
}

double GradScaler::scale() const { return options_.enabled ? state_.select(0, 0).item<double>() : 1; }
bool GradScaler::found_nonfinite() const { return state_.select(0, 2).item<double>() != 0; }
GradScaler::State GradScaler::state() const {
  const std::vector<double> all = state_.to_vector<double>();
  return {all[0], static_cast<int64_t>(all[3])};
}

void GradScaler::load_state(const State& state) {
  if (!(state.scale > 0) || !std::isfinite(state.scale) || state.good_steps < 0)
    throw ValueError(
        str("GradScaler: a scale of ", state.scale, " after ", state.good_steps, " good steps is no state"));
  LossScale loaded{0, 0, 0, static_cast<double>(state.good_steps)};
  loaded.set(state.scale);
  state_.copy_(
      tensor({loaded.scale, loaded.inverse, loaded.nonfinite, loaded.good_steps}, {.dtype = kFloat64}));
}

StateDict GradScaler::state_dict() const {
  const State now = state();
  return {{"scale", scalar_tensor(now.scale, {.dtype = kFloat64})},
          {"good_steps", scalar_tensor(now.good_steps, {.dtype = kInt64})}};
}

void GradScaler::load_state_dict(const StateDict& state) {
  const std::vector<Tensor> found = state_entries("GradScaler", state, {"scale", "good_steps"});
  load_state({found[0].item<double>(), found[1].item<int64_t>()});
}

}  // namespace weft::optim
