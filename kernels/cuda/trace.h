// Traces for tools: the work that a program issues to its devices. A span lasts while a launch, a call of
// cuBLASLt or cuDNN, a copy or a replay is issued, or while a cuda::Range lives. The environment variable
// WEFT_CUDA_TRACE decides:
//   nvtx    spans are NVTX ranges. So they are where Nsight Systems has started the program.
//   FILE    they also go to FILE when the program ends, with the device's time. ui.perfetto.dev opens it.
//           `%p` in the name is the number of the process.
#pragma once

#include <atomic>
#include <string>

#include <weft/kernels/macros.h>

namespace weft::cuda {

namespace inner {
extern WEFT_API std::atomic<bool> traces;
}

/// One span of the calling thread. They nest.
class WEFT_API TraceSpan {
 public:
  /// `name` is copied. `stream` belongs to the calling thread's device.
  TraceSpan(const char* name, void* stream) {
    if (inner::traces.load(std::memory_order_relaxed)) begin(name, stream);
  }
  ~TraceSpan() {
    if (open_) end();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  void begin(const char* name, void* stream);
  void end() noexcept;
  struct Open;
  Open* open_ = nullptr;
};

/// Begins to trace. `to`: as WEFT_CUDA_TRACE. Spans of an earlier call are dropped.
WEFT_API void start_trace(const std::string& to);
/// Ends it, and writes the file, if there is one. Throws: IoError that names it.
WEFT_API void finish_trace();

}  // namespace weft::cuda
