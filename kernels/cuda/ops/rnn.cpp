// Recurrent layers of the CUDA backend: on cuDNN if it accepts the layer (host/rnn_seam.h), else on weft's
// cell (rnn.h). That is one kernel for all steps where it fits the device (rnn_persistent.h). Whole stacks
// run on cuDNN, or on weft's cell in chunks of time (rnn_wavefront.h).
#include <weft/kernels/cuda/host/rnn_seam.h>
#include <weft/kernels/cuda/ops/rnn.h>
#include <weft/kernels/cuda/ops/rnn_wavefront.h>

namespace weft::cuda {

Shape CudaBackend::rnn_reserve(Context& context, const RnnLayer& layer, const RnnInputs& in) {
  enter();
  if (!cudnn::takes(*this, layer, in)) return Accelerator::rnn_reserve(context, layer, in);
  return {cudnn::reserve_size(*this, context, layer, in)};
}

void CudaBackend::rnn_forward(Context& context, const RnnLayer& layer, const RnnInputs& in,
                              const RnnOutputs& out) {
  enter();
  if (out.reserve.defined() ? out.reserve.ndim() == 1 : cudnn::takes(*this, layer, in))
    return cudnn::forward(*this, context, layer, in, out);
  rnn_cell_forward(*this, context, layer, in, out);
}

void CudaBackend::rnn_backward(Context& context, const RnnLayer& layer, const RnnInputs& in,
                               const RnnOutputs& out, View dy, View dhn, View dcn, const RnnGrads& grads) {
  enter();
  if (out.reserve.ndim() == 1) return cudnn::backward(*this, context, layer, in, out, dy, dhn, dcn, grads);
  rnn_cell_backward(*this, context, layer, in, out, dy, dhn, dcn, grads);
}

std::optional<RnnStackRoom> CudaBackend::rnn_stack(Context& context, const RnnStack& stack,
                                                   const RnnStackInputs& in) {
  enter();
  if (const auto room = cudnn::takes(*this, context, stack, in)) return room;
  return wavefront::takes(stack, in);
}
void CudaBackend::rnn_stack_forward(Context& context, const RnnStack& stack, const RnnStackInputs& in,
                                    const RnnStackOutputs& out) {
  enter();
  if (stack.chunk > 0) return wavefront::forward(*this, context, stack, in, out);
  cudnn::forward(*this, context, stack, in, out);
}
void CudaBackend::rnn_stack_backward(Context& context, const RnnStack& stack, const RnnStackInputs& in,
                                     const RnnStackOutputs& out, View dy, View dhn, View dcn,
                                     const RnnStackGrads& grads) {
  enter();
  if (stack.chunk > 0) return wavefront::backward(*this, context, stack, in, out, dy, dhn, dcn, grads);
  cudnn::backward(*this, context, stack, in, out, dy, dhn, dcn, grads);
}

}  // namespace weft::cuda
