// check(): converts errors of the CUDA runtime to CudaError. RelaxedCapture: the capture mode of a thread.
#pragma once

#include <cuda_runtime.h>

#include <weft/kernels/error.h>

namespace weft::cuda {

/// Throws: CudaError that names the call.
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error, so that the next launch does not report it
  throw CudaError(str(call, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")"));
}

/// For its lifetime, this thread may make calls that CUDA forbids by default during a recording, because they
/// might disturb it. The calls made here do not.
struct RelaxedCapture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  RelaxedCapture() {
    check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode); }
  RelaxedCapture(const RelaxedCapture&) = delete;
};

}  // namespace weft::cuda
