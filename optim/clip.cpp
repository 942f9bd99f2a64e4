// Gradient clipping. Gradients are grouped by device, and one backend call serves each group. Gradients that
// are not contiguous are copied, scaled and copied back. For a row-wise gradient the values count: its packed
// form is a tensor over them.
#include <weft/optim/clip.h>

#include <cmath>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/record.h>
#include <weft/kernels/backend.h>
#include <weft/kernels/inner/norm.h>
#include <weft/tensor/factories.h>

namespace weft::optim {
namespace {

std::vector<Tensor> gradients(std::span<const Tensor> params) {
  std::vector<Tensor> out;
  for (const Tensor& p : params) out.push_back(weft::detail::kept_grad(p));
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

/// Throws: as the write would, before anything is written.
void check_gradients(const char* name, std::span<const Tensor> grads) {
  NoGrad guard;
  for (const Tensor& g : grads)
    if (g.defined()) detail::check_in_place(name, g, false);
}

/// Gradients for kernels that change them in place: those with gaps or in another order by way of copies.
class InPlace {
 public:
  InPlace(const char* name, std::span<const Tensor> grads) : grads_(grads), dense_(grads.size()) {
    check_gradients(name, grads);
    for (size_t i = 0; i < grads.size(); ++i) {
      const Tensor& g = grads[i];
      if (!g.defined()) continue;
      if (!g.is_contiguous()) dense_[i] = g.detach().contiguous();
      batch_of(batches, g.device()).views.push_back((dense_[i].defined() ? dense_[i] : g).view_of());
    }
  }
  /// After the kernels were issued.
  void finish() const {
    NoGrad guard;
    for (size_t i = 0; i < grads_.size(); ++i) {
      if (dense_[i].defined()) Tensor(grads_[i]).copy_(dense_[i]);
      else if (grads_[i].defined()) grads_[i].body().storage->bump_version();
    }
  }
  std::vector<Batch> batches;

 private:
  std::span<const Tensor> grads_;
  std::vector<Tensor> dense_;
};

}  // namespace

void check_clip_norm(double max_norm, double p) {
  if (!(max_norm >= 0))
    throw ValueError(str("clip_grad_norm: max_norm must not be negative, got ", max_norm));
  if (!(p > 0)) throw ValueError(str("clip_grad_norm: the norm's p must be positive, got ", p));
}

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
  NormSum sum(p);
  for (const double v : powers) sum.add(v);
  return sum.norm();
}

double clip_factor(double total, double max_norm) { return weft::clip_factor(total, max_norm); }

void scale_grads(std::span<const Tensor> grads, double factor) {
  const InPlace parts("clip_grad_norm", grads);
  Context context;
  for (const Batch& batch : parts.batches) backend(batch.device).scale(context, factor, batch.views);
  parts.finish();
}

Tensor clip_grad_norm_async(std::span<const Tensor> params, double max_norm, double p) {
  check_clip_norm(max_norm, p);
  const std::vector<Tensor> grads = gradients(params);
  const InPlace parts("clip_grad_norm", grads);
  if (parts.batches.size() != 1) {  // only the host can bring them together
    const double total = total_norm(grad_powers(grads, p), p);
    scale_grads(grads, clip_factor(total, max_norm));
    return scalar_tensor(total, {.dtype = kFloat64});
  }
  Tensor norm = empty({}, {.dtype = kFloat64, .device = parts.batches[0].device});
  Context context;
  backend(parts.batches[0].device).clip_norm(context, max_norm, p, parts.batches[0].views, norm.view_of());
  parts.finish();
  return norm;
}

GradNorm grad_norm(std::span<const Tensor> grads, double max_norm, double p) {
  check_clip_norm(max_norm, p);
  std::vector<Tensor> held;
  std::vector<Batch> batches;
  for (const Tensor& g : grads)
    if (g.defined()) {
      held.push_back(g.detach().contiguous());
      batch_of(batches, g.device()).views.push_back(held.back().view_of());
    }
  if (batches.size() != 1) {  // only the host can bring them together
    const double total = total_norm(grad_powers(grads, p), p);
    return {scalar_tensor(total, {.dtype = kFloat64}),
            scalar_tensor(clip_factor(total, max_norm), {.dtype = kFloat64})};
  }
  const Device device = batches[0].device;
  GradNorm out{empty({}, {.dtype = kFloat64, .device = device}),
               empty({}, {.dtype = kFloat64, .device = device})};
  Context context;
  backend(device).clip_norm(context, max_norm, p, batches[0].views, out.total.view_of(),
                            out.factor.view_of());
  return out;
}

void unscale_grads(std::span<const Tensor> grads, const Tensor& state) {
  const InPlace parts("unscale", grads);
  Context context;
  NoGrad guard;
  for (const Batch& batch : parts.batches) {
    const Tensor there = state.to(batch.device);
    backend(batch.device).unscale(context, batch.views, there.view_of());
    if (!there.is_same(state))
      state.select(0, 2).copy_(maximum(state.select(0, 2), there.select(0, 2).to(state.device())));
  }
  parts.finish();
}

double clip_grad_norm(std::span<const Tensor> params, double max_norm, double p, bool error_if_nonfinite) {
  if (!error_if_nonfinite) return clip_grad_norm_async(params, max_norm, p).item<double>();
  check_clip_norm(max_norm, p);
  const std::vector<Tensor> grads = gradients(params);
  const double total = total_norm(grad_powers(grads, p), p);
  if (!std::isfinite(total)) throw ValueError(str("clip_grad_norm: the total norm is ", total));
  scale_grads(grads, clip_factor(total, max_norm));
  return total;
}

void clip_grad_value(std::span<const Tensor> params, double limit) {
  if (!(limit >= 0)) throw ValueError(str("clip_grad_value: limit must not be negative, got ", limit));
  NoGrad guard;
  const std::vector<Tensor> grads = gradients(params);
  check_gradients("clip_grad_value", grads);
  for (const Tensor& g : grads)
    if (g.defined())
      Tensor(weft::detail::is_row_wise(g) ? weft::detail::unpack_rows(g).values : g).clamp_(-limit, limit);
}

}  // namespace weft::optim
