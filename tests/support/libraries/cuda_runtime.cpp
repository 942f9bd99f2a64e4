// The common part of the emulated libraries, and the CUDA runtime's calls that kernels/cuda/toolkit/
// makes beside them.
#include "support/libraries/libraries.h"

#include <cuda_runtime.h>

#include <utility>

#include <weft/kernels/inner/convert.h>
#include "support/simt/graph.h"
#include "support/simt/memory.h"
#include "support/simt/streams.h"
#include "support/simt/thread.h"

namespace weft::cuda::libraries {

namespace {
thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
thread_local cudaError_t last = cudaSuccess;
}  // namespace

Settings& settings() {
  static auto* const s = new Settings;
  return *s;
}
Counts& counts() {
  static auto* const c = new Counts;
  return *c;
}

bool finds_no_memory(const char* call) {
  if (settings().full != call || settings().full_calls == 0) return false;
  --settings().full_calls;
  last = cudaErrorMemoryAllocation;
  return true;
}
bool may_allocate(const char* call) {
  if (mode == cudaStreamCaptureModeRelaxed) return true;
  try {
    simt::check_may_wait(call);
  } catch (const CudaError&) {
    return false;
  }
  return true;
}

bool left_out_of_memory() { return last == cudaErrorMemoryAllocation; }

void issue(void* stream, const char* name, std::function<void()> work) {
  const auto run = [name, work = std::move(work)] {
    const simt::DeviceAccess open;
    work();
    simt::check_guards(name);
  };
  if (const auto recording = simt::recording_of(stream)) simt::record(*recording, stream, run);
  else simt::issue(simt::current_device(), stream, run);
}

void expect_device(const void* p, size_t alignment, const char* what) {
  if (!simt::is_device_memory(p)) throw simt::Fault(str(what, ": not device memory"));
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0)
    throw simt::Fault(str(what, ": its address is no multiple of ", alignment));
}

std::vector<double> load(DType type, const void* p, int64_t n, int64_t stride) {
  std::vector<double> v(static_cast<size_t>(n));
  dispatch(type, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < n; ++i)
      v[static_cast<size_t>(i)] = kernels::convert<double>(static_cast<const T*>(p)[i * stride]);
  });
  return v;
}
void store(DType type, void* p, const double* from, int64_t n) {
  dispatch(type, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < n; ++i) static_cast<T*>(p)[i] = kernels::convert<T>(from[i]);
  });
}
double rounded(DType type, double v) {
  return dispatch(type,
                  [&]<class T>(TypeTag<T>) { return kernels::convert<double>(kernels::convert<T>(v)); });
}

}  // namespace weft::cuda::libraries

cudaError_t cudaGetLastError() { return std::exchange(weft::cuda::libraries::last, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaSuccess ? "cudaSuccess" : "an error";
}
const char* cudaGetErrorString(cudaError_t status) { return cudaGetErrorName(status); }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (!mode || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed)
    return cudaErrorInvalidValue;
  std::swap(*mode, weft::cuda::libraries::mode);
  return cudaSuccess;
}
