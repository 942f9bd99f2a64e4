// kernels/cuda/host/attention_seam.h for an emulation without cuDNN.
#include <weft/kernels/cuda/host/attention_seam.h>

namespace weft::cuda::cudnn {

bool takes(CudaBackend&, const AttentionViews&, bool) { return false; }
bool attention(CudaBackend&, Context&, const AttentionViews&) { return false; }
bool attention_backward(CudaBackend&, Context&, const AttentionViews&) { return false; }

}  // namespace weft::cuda::cudnn
