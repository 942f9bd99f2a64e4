// The CUDA runtime's mode of recordings, and its errors as ours.
#pragma once

#include <cuda_runtime.h>

#include <weft/kernels/error.h>

namespace weft::cuda {

/// Throws: CudaError naming the call.
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a failed call is not to be found again by the next launch
  throw CudaError(str(call, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")"));
}

/// While one lives, this thread may make calls that an ongoing recording of a graph forbids by default since they could disturb it, and do not.
struct RelaxedCapture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  RelaxedCapture() {
    check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode); }
  RelaxedCapture(const RelaxedCapture&) = delete;
};

}  // namespace weft::cuda
