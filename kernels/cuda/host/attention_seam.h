// The interface to cuDNN's attention. toolkit/attention_cudnn.cpp implements it; without cuDNN, and in the
// emulation, all return false.
#pragma once

#include <weft/kernels/backend.h>

namespace weft::cuda {
class CudaBackend;
}

namespace weft::cuda::cudnn {

/// Whether cuDNN is found, allowed (cudnn_attention) and has a plan for this forward; `training`: with the
/// statistics. The first call of a kind makes the plan. While any thread records on the device, only plans
/// that exist are used. The backend's device is current, here and below.
bool takes(CudaBackend& backend, const AttentionViews& v, bool training);
/// As Backend's function; stats have a last size of 1, or are absent. Returns false, with nothing written, if
/// takes() would, since a setting may have changed, or if there is no room for its workspace. Throws:
/// CudaError that names the call; OutOfMemoryError.
bool attention(CudaBackend& backend, Context& context, const AttentionViews& v);
/// As Backend's function, for stats with a last size of 1. Returns false, with nothing written, if cuDNN does
/// not take the call, or if there is no room for its workspace.
bool attention_backward(CudaBackend& backend, Context& context, const AttentionViews& v);

}  // namespace weft::cuda::cudnn
