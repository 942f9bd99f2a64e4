// Clipping by total norm or by value. Norms are taken per parameter in float64 and added in list order, so that a model split over
// processes clips with the same bits as a local one.
#pragma once

#include <span>
#include <vector>

#include <weft/tensor/tensor.h>

namespace weft::optim {

/// Scales the gradients of `params` in place so that their total p-norm is at most `max_norm`, and returns the norm before: the factor
/// is max_norm / (total + 1e-6), at most 1. Parameters without a gradient are skipped; p = infinity takes the largest magnitude.
/// Throws: ValueError for a negative max_norm or p <= 0, or a total that is not finite when `error_if_nonfinite` (nothing is scaled).
WEFT_API double clip_grad_norm(std::span<const Tensor> params, double max_norm, double p = 2,
                               bool error_if_nonfinite = false);

/// The same without waiting for the device: the norm is a float64 tensor of no dims that lies where the gradients do. Only where they lie on several
/// devices does it wait. Throws: ValueError for a negative max_norm or p <= 0.
WEFT_API Tensor clip_grad_norm_async(std::span<const Tensor> params, double max_norm, double p = 2);

/// Clamps every gradient to [-limit, limit] in place. Throws: ValueError for a negative limit.
WEFT_API void clip_grad_value(std::span<const Tensor> params, double limit);

// The parts of clip_grad_norm, for gradients that lie on several machines.

/// Throws: ValueError for a negative max_norm or p <= 0.
WEFT_API void check_clip_norm(double max_norm, double p);
/// Sum of |g|^p of each gradient (0 for undefined ones; the maximum for p = infinity).
WEFT_API std::vector<double> grad_powers(std::span<const Tensor> grads, double p = 2);
/// The norm from the powers of all parameters in list order.
WEFT_API double total_norm(std::span<const double> powers, double p = 2);
/// The factor that brings `total` down to `max_norm`: min(1, max_norm / (total + 1e-6)).
WEFT_API double clip_factor(double total, double max_norm);
/// g *= factor for every defined gradient, in one backend call.
WEFT_API void scale_grads(std::span<const Tensor> grads, double factor);
/// g /= scale for every defined gradient, with a mark in `state` where a result is not finite; nothing waits where they lie on state's device.
/// state: float64 [4], a LossScale (kernels/loss_scale.h).
WEFT_API void unscale_grads(std::span<const Tensor> grads, const Tensor& state);

}  // namespace weft::optim
