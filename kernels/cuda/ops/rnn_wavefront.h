// A stack of recurrent layers on weft's cell, in chunks of time on two streams.
#pragma once

#include <optional>

#include <weft/kernels/cuda/host/cuda_backend.h>

namespace weft::cuda::wavefront {

/// The rooms if recurrent_wavefront() asks for chunks and this stack can be cut into two at least: several
/// layers in one direction. nullopt: it goes layer by layer.
std::optional<RnnStackRoom> takes(const RnnStack& stack, const RnnStackInputs& in);
/// As Backend's functions, for a stack with a chunk. Work of other streams that waits for the context's
/// stream afterwards is behind all of it.
void forward(CudaBackend& backend, Context& context, const RnnStack& stack, const RnnStackInputs& in,
             const RnnStackOutputs& out);
void backward(CudaBackend& backend, Context& context, const RnnStack& stack, const RnnStackInputs& in,
              const RnnStackOutputs& out, const View& dy, const View& dhn, const View& dcn,
              const RnnStackGrads& grads);

}  // namespace weft::cuda::wavefront
