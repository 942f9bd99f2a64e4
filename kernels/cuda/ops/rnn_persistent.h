// An LSTM on weft's cell as one kernel for many steps. Its blocks stay on the device and wait for each other
// after each step. rnn_forward.cu and rnn_backward.cu choose between it and a kernel per step.
#pragma once

#include <optional>

#include <weft/kernels/cuda/ops/rnn.h>
#include <weft/kernels/cuda_settings.h>

namespace weft::cuda::persistent {

/// A pass. `longest`: steps of its longest run (CellPass); fewer than `steps` in a stack that goes in chunks.
struct Sizes {
  int64_t steps, longest, batch, hidden;
};

/// A division of the hidden units among blocks.
struct Plan {
  int64_t units, blocks;  ///< hidden units of a block
  int rows;               ///< of the batch that are in shared memory at once
  int gates;              ///< backward: whose gradients are there at once
  size_t shared;
};

/// Steps of a forward over the sequence. Pointers are those of the first of these steps. The others follow at
/// distances of `..._step` numbers.
template <class S> struct Forward {
  using C = CellType<S>;
  int64_t steps, batch, hidden;
  const C* from_x;  ///< [N, 4 H]
  int64_t from_x_step, from_x_row;
  const S* w_hh;
  int64_t w_hh_row;
  const S *b_ih, *b_hh;  ///< or null
  const S* before;       ///< h of the step before, or null for zeros
  int64_t before_row;
  C* cell;  ///< [N, H]: c of the step before, then of the last of these steps
  S* y;
  int64_t y_step, y_row;
  S* kept;  ///< rows of the reserve, or null; from_x may be the same memory
  int64_t kept_step, kept_row;
  S *hn, *cn;  ///< of the last of these steps, or null
  int64_t hn_row, cn_row;
};

/// Steps of a backward, from the last to the first. Pointers are those of the last of these steps. The others
/// follow at distances of `..._step` numbers.
template <class S> struct Backward {
  using C = CellType<S>;
  int64_t steps, batch, hidden;
  const S* kept;  ///< rows of the reserve
  int64_t kept_step, kept_row;
  const S* dy;  ///< or null
  int64_t dy_step, dy_row;
  const S* before;  ///< c before the first of these steps, or null for zeros
  int64_t before_row;
  const S* w_hh;
  int64_t w_hh_row;
  S* dgates;  ///< [N, 4 H]: gradients of the gates before activation
  int64_t dgates_step;
  C *dh, *dc;     ///< [N, H]: gradients of h and c from the next step, then for the step before
  bool wants_dh;  ///< whether dh is needed for the step before the first
};

/// The most bytes that all blocks of a backward read in a step: 4 N H gradients of gates for each block. A
/// kernel per step reads each of them once or twice.
inline constexpr int64_t kMostRead = int64_t{32} << 20;

/// Whether an LSTM of this kind may run as one kernel, if the device holds it.
template <class S> bool allowed(const RnnLayer& layer, const Sizes& s) {
  return recurrent_persistent() && !WaitingKernels::any() && layer.mode == RnnMode::kLstm && s.steps >= 2 &&
         s.longest >= s.steps && s.batch <= (std::is_same_v<S, float> ? 64 : 32);
}

/// The plan of a pass. nullopt, and so a kernel per step, for
///   - modes other than LSTM, float64, a single step, and runs of a part of the steps,
///   - batches of more than 64 rows in float32 and 32 in half types. The products then have so many numbers
///     per step that cuBLASLt is the better choice, as far as counting operations tells: no device has shown
///     it,
///   - a matrix W_hh of which a processor's shared memory does not hold its part beside eight rows of h; in a
///     backward these are of the gradients of a gate, and there are four sums for each unit and row,
///   - backwards whose blocks read more than kMostRead in a step. Others go in parts of gates and rows where
///     shared memory does not hold all. The best parts may take up to twice the rounds of a block's warps
///     that they would take at once; else too many warps have no work,
///   - devices that do not hold all blocks at once, or start none together,
///   - the time while kernels may wait for other processes (WaitingKernels),
///   - all while recurrent_persistent() is off.
template <class S>
std::optional<Plan> plan_forward(const CudaBackend& backend, const RnnLayer& layer, const Sizes& sizes);
template <class S>
std::optional<Plan> plan_backward(const CudaBackend& backend, const RnnLayer& layer, const Sizes& sizes);
template <class S> void forward(void* stream, const Plan& plan, const Forward<S>& steps);
template <class S> void backward(void* stream, const Plan& plan, const Backward<S>& steps);

}  // namespace weft::cuda::persistent
