#include <weft/optim/clip.h>

#include <algorithm>
#include <cmath>

#include <weft/autograd/grad_mode.h>
#include <weft/kernels/backend.h>

namespace weft::optim {
namespace {

std::vector<Tensor> gradients(std::span<const Tensor> params) {
  std::vector<Tensor> out;
  for (const Tensor& p : params) out.push_back(p.grad());
  return out;
}

/// The tensors of one device, which one call of its backend serves.
struct Batch {
  Device device;
  std::vector<View> views{};
  std::vector<size_t> at{};  ///< places in the list
};
Batch& batch_of(std::vector<Batch>& batches, Device device) {
  for (Batch& b : batches)
    if (b.device == device) return b;
  return batches.emplace_back(Batch{device});
}

void check_norm(double max_norm, double p) {
  if (!(max_norm >= 0)) throw ValueError(str("clip_grad_norm: max_norm must not be negative, got ", max_norm));
  if (!(p > 0)) throw ValueError(str("clip_grad_norm: the norm's p must be positive, got ", p));
}

}  // namespace

std::vector<double> grad_powers(std::span<const Tensor> grads, double p) {
  std::vector<double> out(grads.size(), 0.0);
  std::vector<Tensor> held;
  std::vector<Batch> batches;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) continue;
    held.push_back(grads[i].detach().contiguous());
    Batch& batch = batch_of(batches, grads[i].device());
    batch.views.push_back(held.back().view_of());
    batch.at.push_back(i);
  }
  for (const Batch& batch : batches) {
    std::vector<double> found(batch.views.size());
    Context context;
    backend(batch.device).powers(context, p, batch.views, found.data());
    for (size_t k = 0; k < found.size(); ++k) out[batch.at[k]] = found[k];
  }
  return out;
}

double total_norm(std::span<const double> powers, double p) {
  double total = 0;
  if (std::isinf(p)) {
    for (const double v : powers) total = std::isnan(v) ? v : std::max(total, v);
    return total;
  }
  for (const double v : powers) total += v;
  return p == 2 ? std::sqrt(total) : std::pow(total, 1 / p);
}

double clip_factor(double total, double max_norm) { return std::min(1.0, max_norm / (total + 1e-6)); }

void scale_grads(std::span<const Tensor> grads, double factor) {
  NoGrad guard;
  std::vector<Batch> batches;
  for (const Tensor& g : grads) {
    if (!g.defined()) continue;
    if (!g.is_contiguous()) {
      Tensor(g).mul_(factor);
      continue;
    }
    batch_of(batches, g.device()).views.push_back(g.view_of());
    g.body().storage->bump_version();
  }
  Context context;
  for (const Batch& batch : batches) backend(batch.device).scale(context, factor, batch.views);
}

double clip_grad_norm(std::span<const Tensor> params, double max_norm, double p, bool error_if_nonfinite) {
  check_norm(max_norm, p);
  const std::vector<Tensor> grads = gradients(params);
  const double total = total_norm(grad_powers(grads, p), p);
  if (error_if_nonfinite && !std::isfinite(total)) throw ValueError(str("clip_grad_norm: the total norm is ", total));
  scale_grads(grads, clip_factor(total, max_norm));
  return total;
}

void clip_grad_value(std::span<const Tensor> params, double limit) {
  if (!(limit >= 0)) throw ValueError(str("clip_grad_value: limit must not be negative, got ", limit));
  NoGrad guard;
  for (const Tensor& p : params)
    if (Tensor g = p.grad(); g.defined()) g.clamp_(-limit, limit);
}

}  // namespace weft::optim
