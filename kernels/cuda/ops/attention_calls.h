// weft's own kernels of attention, as calls: attention.cpp chooses between these and cuDNN.
#pragma once

#include <weft/kernels/cuda/host/cuda_backend.h>

namespace weft::cuda {

/// The kernels of all dtypes (attention_forward.cu, attention_backward.cu).
void attention_tiles(CudaBackend& backend, Context& c, const AttentionViews& v);
void attention_tiles_backward(CudaBackend& backend, Context& c, const AttentionViews& v);

/// The kernels of half types by tensor cores (attention_half.h), for devices that have them.
void attention_half(CudaBackend& backend, Context& c, const AttentionViews& v);
void attention_half_backward(CudaBackend& backend, Context& c, const AttentionViews& v);
/// Bytes of shared memory that they need for heads of up to `width` numbers.
size_t attention_half_shared(int64_t width);

}  // namespace weft::cuda
