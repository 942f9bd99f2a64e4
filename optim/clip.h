// Gradient clipping by total norm or by value. Norms are computed per parameter in float64 and added in list
// order. So a model split over processes clips with the same bits as a local model.
#pragma once

#include <span>
#include <vector>

#include <weft/tensor/tensor.h>

namespace weft::optim {

/// Scales the gradients of `params` in place so that their total p-norm is at most `max_norm`. The factor is
/// max_norm / (total + 1e-6), at most 1. Returns the total norm before scaling. Parameters without a gradient
/// are skipped; p = infinity takes the largest magnitude. Throws, before any change: ValueError for a
/// negative max_norm, p <= 0, or with `error_if_nonfinite` a total that is not finite.
WEFT_API double clip_grad_norm(std::span<const Tensor> params, double max_norm, double p = 2,
                               bool error_if_nonfinite = false);

/// The same without waiting for the device, unless the gradients are on several devices. Returns the norm as
/// a float64 tensor [] on the gradients' device.
/// Throws: ValueError for a negative max_norm or p <= 0.
WEFT_API Tensor clip_grad_norm_async(std::span<const Tensor> params, double max_norm, double p = 2);

/// The total norm of gradients and the factor that clips them, float64 tensors [] on the gradients' device.
struct GradNorm {
  Tensor total, factor;
};
/// The norm and the factor of clip_grad_norm_async. It does not change the gradients.
/// Throws: ValueError for a negative max_norm or p <= 0.
WEFT_API GradNorm grad_norm(std::span<const Tensor> grads, double max_norm, double p = 2);

/// Clamps every gradient to [-limit, limit] in place. Throws: ValueError for a negative limit.
WEFT_API void clip_grad_value(std::span<const Tensor> params, double limit);

// The steps of clip_grad_norm, for gradients on several machines.

/// Throws: ValueError for a negative max_norm or p <= 0.
WEFT_API void check_clip_norm(double max_norm, double p);
/// The sum of |g|^p of each gradient, 0 for an undefined gradient; for p = infinity the maximum of |g|.
WEFT_API std::vector<double> grad_powers(std::span<const Tensor> grads, double p = 2);
/// The norm from the powers of all parameters in list order.
WEFT_API double total_norm(std::span<const double> powers, double p = 2);
/// min(1, max_norm / (total + 1e-6)).
WEFT_API double clip_factor(double total, double max_norm);
/// g *= factor for every defined gradient, in one backend call.
WEFT_API void scale_grads(std::span<const Tensor> grads, double factor);
/// g /= scale for every defined gradient, and marks `state` if a result is not finite. It does not wait for
/// gradients on state's device. state: float64 [4], a LossScale (kernels/inner/loss_scale.h).
WEFT_API void unscale_grads(std::span<const Tensor> grads, const Tensor& state);

}  // namespace weft::optim
