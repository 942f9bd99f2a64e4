// kernels/cuda/host/rnn_seam.h for an emulation without cuDNN.
#include <weft/kernels/cuda/host/rnn_seam.h>

namespace weft::cuda::cudnn {

bool takes(CudaBackend&, const RnnLayer&, const RnnInputs&) { return false; }
int64_t reserve_size(CudaBackend&, Context&, const RnnLayer&, const RnnInputs&) {
  throw CudaError("cudnn: not in the emulation");
}
void forward(CudaBackend&, Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&) {
  throw CudaError("cudnn: not in the emulation");
}
void backward(CudaBackend&, Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&, const View&,
              const View&, const View&, const RnnGrads&) {
  throw CudaError("cudnn: not in the emulation");
}
std::optional<RnnStackRoom> takes(CudaBackend&, const Context&, const RnnStack&, const RnnStackInputs&) {
  return std::nullopt;
}
void forward(CudaBackend&, Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&) {
  throw CudaError("cudnn: not in the emulation");
}
void backward(CudaBackend&, Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&,
              const View&, const View&, const View&, const RnnStackGrads&) {
  throw CudaError("cudnn: not in the emulation");
}
void prepare_recording(CudaBackend&) noexcept {}

}  // namespace weft::cuda::cudnn
