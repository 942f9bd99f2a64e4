// The seam of cuDNN's recurrent layers: device/rnn_cudnn.cpp has them, or says that there are none where the build found no cuDNN; the emulation
// has none.
//
// What cuDNN keeps from forward for backward is opaque and larger than what the own cell keeps, so a layer that cuDNN runs has a reserve of
// rank 1, whose size cuDNN names. By that rank a forward with reserve, and every backward, knows who runs it; whoever changes use_cudnn()
// between the two changes nothing.
#pragma once

#include <cstdint>
#include <optional>

#include <weft/kernels/backend.h>

namespace weft::cuda {
class CudaBackend;
}

namespace weft::cuda::cudnn {

/// Whether cuDNN is there, wanted (use_cudnn) and able to run this layer. The backend's device is current, here and below.
bool takes(CudaBackend& backend, const RnnLayer& layer, const RnnInputs& in);
/// Elements of x's dtype that a reserve has.
int64_t reserve_size(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in);
/// Same as Backend's; with a reserve of rank 1, or none. Throws: CudaError naming the call.
void forward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
             const RnnOutputs& out);
void backward(CudaBackend& backend, Context& context, const RnnLayer& layer, const RnnInputs& in,
              const RnnOutputs& out, const View& dy, const View& dhn, const View& dcn, const RnnGrads& grads);

/// The same for whole stacks, of which cuDNN overlaps the layers and directions. One with dropout is taken where cudnn_dropout() is on and the call is not
/// recorded: the states of its random numbers are the device's, and are seeded outside of any recording.
std::optional<RnnStackRoom> takes(CudaBackend& backend, const Context& context, const RnnStack& stack,
                                  const RnnStackInputs& in);
void forward(CudaBackend& backend, Context& context, const RnnStack& stack, const RnnStackInputs& in,
             const RnnStackOutputs& out);
void backward(CudaBackend& backend, Context& context, const RnnStack& stack, const RnnStackInputs& in,
              const RnnStackOutputs& out, const View& dy, const View& dhn, const View& dcn,
              const RnnStackGrads& grads);

}  // namespace weft::cuda::cudnn
