// The handle of the emulated cuDNN, and the statuses that a test demands.
#pragma once

#include <cudnn.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include <weft/kernels/error.h>
#include "support/libraries/libraries.h"
#include "support/simt/graph.h"
#include "support/simt/thread.h"

struct cudnnContext {
  int device;
  cudaStream_t stream = nullptr;
  std::atomic<bool> busy{false};
  cudaStream_t recorded = nullptr;  // the stream of the last recorded call
  std::weak_ptr<weft::cuda::simt::Recording> recording = {};
  bool warm[4] = {};  // by kind of call
};

namespace weft::cuda::libraries {

/// The scope of one call on a handle; a handle may serve one thread at a time.
class Use {
 public:
  Use(cudnnHandle_t handle, const char* call) : handle_(handle) {
    if (!handle) throw simt::Fault(str(call, ": no handle"));
    if (handle->device != simt::current_device())
      throw simt::Fault(str(call, ": the handle is another device's"));
    if (handle->busy.exchange(true)) throw simt::Fault(str(call, ": another thread uses the handle"));
  }
  ~Use() { handle_->busy = false; }
  Use(const Use&) = delete;

 private:
  cudnnHandle_t handle_;
};

/// Issues the work of a call. cuDNN spreads it over internal streams of the handle. Streams that took part in
/// a recording belong to it until it ends.
inline void issue(cudnnHandle_t handle, const char* call, std::function<void()> work) {
  const auto now = simt::recording_of(handle->stream), before = handle->recording.lock();
  if (before && before != now && simt::recording_of(handle->recorded) == before)
    throw simt::Fault(str(call, ": the handle's own streams take part in a recording, this call does not"));
  if (now) handle->recording = now, handle->recorded = handle->stream;
  issue(static_cast<void*>(handle->stream), call, std::move(work));
}

/// The status that a test's settings demand of the function.
inline cudnnStatus_t asked(const char* call) {
  if (finds_no_memory(call))
    return settings().on_host ? CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
                              : CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  return settings().fails == call     ? CUDNN_STATUS_INTERNAL_ERROR
         : settings().refuses == call ? CUDNN_STATUS_NOT_SUPPORTED
                                      : CUDNN_STATUS_SUCCESS;
}
#define RETURN_ASKED(call) \
  if (const cudnnStatus_t status = asked(call); status != CUDNN_STATUS_SUCCESS) return status

}  // namespace weft::cuda::libraries
