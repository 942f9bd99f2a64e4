// runtime.h over the CUDA runtime library. Each function is one or two calls, with their errors as
// exceptions.
#include <weft/kernels/cuda/host/runtime.h>

#include <cstring>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define WEFT_WITH_NVTX
#endif

#include <weft/kernels/cuda/host/no_device.h>
#include <weft/kernels/cuda/toolkit/relaxed_capture.h>

namespace weft::cuda {

namespace {
cudaStream_t stream_of(void* s) { return static_cast<cudaStream_t>(s); }
cudaEvent_t event_of(void* e) { return static_cast<cudaEvent_t>(e); }
cudaStreamCaptureStatus capture_status(void* s) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_of(s), &status), "cudaStreamIsCapturing");
  return status;
}
}  // namespace

namespace runtime {

int device_count() {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) throw DeviceError(no_device(0, 0));
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    int built = 0;
    cudaRuntimeGetVersion(&built);
    throw DeviceError(no_device(driver, built));
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
    throw DeviceError(no_device(driver, 0));
  if (status != cudaSuccess) {
    cudaGetLastError();
    throw DeviceError(str("cuda: the NVIDIA driver cannot be used: ", cudaGetErrorString(status), " (",
                          cudaGetErrorName(status), ")"));
  }
  return count;
}
Properties properties(int device) {
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
  int shared = 0;
  check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cudaDeviceGetAttribute");
  return {p.name, p.major, p.minor, p.multiProcessorCount, p.totalGlobalMem, static_cast<size_t>(shared)};
}
void set_device(int device) {
  int current = -1;  // queried each time, because other code may set it
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (current != device) check(cudaSetDevice(device), "cudaSetDevice");
}
int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
bool emulated() { return false; }

void* allocate(size_t bytes) {
  void* p = nullptr;
  const RelaxedCapture mode;  // a graph's pool allocates during the recording
  const cudaError_t status = cudaMalloc(&p, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, "cudaMalloc");
  return p;
}
void release(void* p) {
  const RelaxedCapture mode;
  check(cudaFree(p), "cudaFree");
}
void* allocate_pinned(size_t bytes) {
  void* p = nullptr;
  const RelaxedCapture mode;
  const cudaError_t status = cudaHostAlloc(&p, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, "cudaHostAlloc");
  return p;
}
void release_pinned(void* p) {
  const RelaxedCapture mode;
  check(cudaFreeHost(p), "cudaFreeHost");
}
void copy(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes > 0)
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "cudaMemcpyAsync");
}
void fill(void* to, int byte, size_t bytes, Stream stream) {
  if (bytes > 0) check(cudaMemsetAsync(to, byte, bytes, stream_of(stream)), "cudaMemsetAsync");
}
void enable_peer_access(int device, int peer) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, device, peer), "cudaDeviceCanAccessPeer");
  if (!can) return;
  const RelaxedCapture mode;
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  // then copies go through the host
  if (status == cudaErrorPeerAccessAlreadyEnabled || status == cudaErrorTooManyPeers) cudaGetLastError();
  else check(status, "cudaDeviceEnablePeerAccess");
}
void memory_info(size_t* available, size_t* total) {
  check(cudaMemGetInfo(available, total), "cudaMemGetInfo");
}

Stream new_stream(bool high_priority) {
  int low = 0, high = 0;
  check(cudaDeviceGetStreamPriorityRange(&low, &high), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t s;
  check(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, high_priority ? high : low),
        "cudaStreamCreateWithPriority");
  return s;
}
void delete_stream(Stream stream) { cudaStreamDestroy(stream_of(stream)); }
void synchronize(Stream stream) { check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize"); }
void synchronize_device() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
bool finished(Stream stream) {
  const RelaxedCapture mode;  // a thread that records may wait for work outside of the recording
  const cudaError_t status = cudaStreamQuery(stream_of(stream));
  if (status == cudaErrorNotReady) return cudaGetLastError(), false;
  check(status, "cudaStreamQuery");
  return true;
}
Event new_event(bool timing) {
  cudaEvent_t e;
  check(cudaEventCreateWithFlags(&e, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
  return e;
}
void delete_event(Event event) { cudaEventDestroy(event_of(event)); }
void record(Event event, Stream stream) {
  check(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
}
void wait(Stream stream, Event event) {
  check(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0), "cudaStreamWaitEvent");
}
void synchronize_event(Event event) {
  const RelaxedCapture mode;
  check(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize");
}
bool finished_event(Event event) {
  const RelaxedCapture mode;
  const cudaError_t status = cudaEventQuery(event_of(event));
  if (status == cudaErrorNotReady) return cudaGetLastError(), false;
  check(status, "cudaEventQuery");
  return true;
}
double elapsed_ms(Event from, Event to) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, event_of(from), event_of(to)), "cudaEventElapsedTime");
  return ms;
}

void begin_capture(Stream stream) {
  check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
}
Graph end_capture(Stream stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_of(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  return exec;
}
bool capturing(Stream stream) { return capture_status(stream) != cudaStreamCaptureStatusNone; }
bool capture_failed(Stream stream) { return capture_status(stream) == cudaStreamCaptureStatusInvalidated; }
void launch_graph(Graph graph, Stream stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "cudaGraphLaunch");
}
void delete_graph(Graph graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

#if defined(WEFT_WITH_NVTX)
void push_range(const char* name) noexcept { nvtxRangePushA(name); }
void pop_range() noexcept { nvtxRangePop(); }
#else  // a toolkit without its headers
void push_range(const char*) noexcept {}
void pop_range() noexcept {}
#endif

IpcHandle export_memory(void* block) {
  cudaIpcMemHandle_t handle;
  check(cudaIpcGetMemHandle(&handle, block), "cudaIpcGetMemHandle");
  IpcHandle bytes;
  static_assert(sizeof handle == sizeof bytes);
  std::memcpy(bytes.data(), &handle, sizeof handle);
  return bytes;
}
void* open_memory(const IpcHandle& bytes) {
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, bytes.data(), sizeof handle);
  void* p = nullptr;
  check(cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  return p;
}
void close_memory(void* block) { check(cudaIpcCloseMemHandle(block), "cudaIpcCloseMemHandle"); }

}  // namespace runtime
}  // namespace weft::cuda
