// Smaller messages between two workers, at the price of rounding: codecs of the float32 tensors that one
// worker sends another inside autograd contexts. Off by default.
//
//   dist_autograd::set_edge_codec("ps", {.activations = WireCodec::kFloat16, .gradients = WireCodec::kInt8});
//
// This sets the codec of the messages from this worker to "ps". Activations are the tensors with history in
// recorded requests and replies; gradients are the tensors of backward passes. The other worker sets the
// codec of the other direction. Leaves, other dtypes, small tensors, row-wise gradients and tensors on
// devices travel exactly. So do tensors that the codec cannot hold: with an inf or a NaN, or beyond 65504 for
// float16. The receiver gets the sizes and dtype that were sent.
//   kFloat16  half of the bytes; each value is rounded to 11 significant bits.
//   kInt8     a quarter of the bytes: steps of max|x| / 127 in each 1024 elements, so an error of at most
//             half a step.
// With error feedback a gradient's rounding error is added to the same gradient of the next context. So
// errors do not add up over the steps. "The same" is the gradient of the same tensor of the context's n-th
// message from that worker, of the same size. Its memory has a limit, and the oldest error is forgotten
// first. A checkpoint over owners saves these errors (optim/dist_checkpoint.h). Thread safety: any thread.
#pragma once

#include <cstdint>
#include <string>

#include <weft/kernels/macros.h>

namespace weft::dist_autograd {

/// The form of a tensor on the wire; the head of this file has the errors.
enum class WireCodec : uint8_t { kExact, kFloat16, kInt8 };

/// How tensors travel to one worker.
struct EdgeCodec {
  WireCodec activations = WireCodec::kExact;
  WireCodec gradients = WireCodec::kExact;
  bool error_feedback = true;  ///< for gradients
  int64_t min_bytes = 4096;    ///< smaller tensors travel exactly
};

/// Sets the codec of this worker's messages to `peer` from now on. Throws: ValueError for a worker outside
/// the group or a negative size; RpcError without an agent.
WEFT_API void set_edge_codec(const std::string& peer, const EdgeCodec& codec);

/// Limits the memory of all error feedback of this worker; 64 MiB without a call. Throws: ValueError when
/// negative; RpcError without an agent.
WEFT_API void set_feedback_limit(int64_t bytes);

}  // namespace weft::dist_autograd
