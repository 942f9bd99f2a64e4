// The interface to cuDNN's recurrent layers. toolkit/rnn_cudnn.cpp implements it; without cuDNN, and in the
// emulation, takes() returns false.
//
// cuDNN's reserve is opaque and larger than that of weft's cell, so it has rank 1 and a size from cuDNN. A
// forward with reserve, and every backward, choose the implementation by that rank. So a change of
// use_cudnn() between forward and backward has no effect.
#pragma once

#include <cstdint>
#include <optional>

#include <weft/kernels/backend.h>

namespace weft::cuda {
class CudaBackend;
}

namespace weft::cuda::cudnn {

/// Whether cuDNN is found, enabled (use_cudnn) and able to run this layer. The backend's device is current,
/// here and below.
bool takes(CudaBackend& backend, const RnnLayer& layer, const RnnInputs& in);
/// Size of the reserve, in elements of x's dtype.
int64_t reserve_size(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in);
/// As Backend's functions, with a reserve of rank 1 or none. Throws: CudaError that names the call.
void forward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
             const RnnOutputs& out);
void backward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
              const RnnOutputs& out, const View& dy, const View& dhn, const View& dcn, const RnnGrads& grads);

/// The same for whole stacks, in which cuDNN overlaps layers and directions. A stack with dropout is accepted
/// if cudnn_dropout() is on and the call is not recorded. The device holds the states of its random numbers,
/// which cannot be seeded during a recording.
std::optional<RnnStackRoom> takes(CudaBackend& backend, const Context& context, const RnnStack& stack,
                                  const RnnStackInputs& in);
void forward(CudaBackend& backend, Context& context, const RnnStack& stack, const RnnStackInputs& in,
             const RnnStackOutputs& out);
void backward(CudaBackend& backend, Context& context, const RnnStack& stack, const RnnStackInputs& in,
              const RnnStackOutputs& out, const View& dy, const View& dhn, const View& dcn,
              const RnnStackGrads& grads);

/// Makes ready for a recording: a handle of cuDNN allocates and may wait in its first calls, which would
/// spoil one. Does nothing unless cuDNN has run a layer on this device; a failure is left to the recording.
void prepare_recording(CudaBackend& backend) noexcept;

}  // namespace weft::cuda::cudnn
