// Shared parts of the class losses: checks of their arguments, the class dim moved to the end, and the
// divisor of a mean.
#pragma once

#include <atomic>

#include <weft/autograd/ops/inner/formula.h>

namespace weft::formula {

/// A class loss as rows: x [R, C] (recorded views), target [R] int64, and the sizes of an unreduced result.
struct ClassRows {
  Tensor x, target;
  Shape sizes;
};
/// Checks x against target and options. Throws: ShapeError, DTypeError, DeviceError, ValueError, each naming
/// `name`.
ClassRows class_rows(const char* name, const Tensor& x, const Tensor& target,
                     const CrossEntropyOptions& options);
/// Checks the class weights and label_smoothing for a loss over `classes` classes of x's device.
void check_class_options(const char* name, int64_t classes, const Tensor& x,
                         const CrossEntropyOptions& options);
/// The divisor of a mean: the number of targets that are not ignored, or the sum of their weights. Shape: [],
/// of dtype `t`.
Tensor loss_divisor(const Tensor& target, const CrossEntropyOptions& options, DType t);
/// The loss of each row from plain operations: the composed form of the fused losses. Shape: [R].
Tensor composed_class_loss(const Tensor& log_probabilities, const Tensor& target,
                           const CrossEntropyOptions& options);
/// For tests: the number of logits in a block of linear_cross_entropy, which has at least 32 rows even so. 0:
/// the device's.
WEFT_API extern std::atomic<int64_t> linear_loss_block;
/// Applies options.reduction to the losses of the rows.
Tensor reduce_rows(const Tensor& losses, const Tensor& target, const Shape& sizes,
                   const CrossEntropyOptions& options);

}  // namespace weft::formula
