// What a device with queues of its own can do beyond a Backend's operations: streams, events, its caching allocator, recorded graphs, and
// memory shared with other processes. tensor/cuda.h wraps this in objects; users of tensors need neither.
#pragma once

#include <array>
#include <string>

#include <weft/kernels/backend.h>
#include <weft/kernels/memory.h>

namespace weft {

struct DeviceProperties {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int processors = 0;        ///< streaming multiprocessors
  int64_t memory = 0;        ///< bytes
};

/// A block of device memory as another process opens it.
struct SharedBlock {
  std::array<unsigned char, 64> handle{};
  int64_t offset = 0;  ///< bytes from the start of what the handle names
};

/// Handles (void*) belong to the device that made them. Operations issue to Context::stream, or to the calling thread's current stream
/// when that is null. Thread safety: as the CUDA runtime's, every call may come from any thread.
class WEFT_API Accelerator : public Backend {
 public:
  virtual DeviceProperties properties() = 0;

  virtual void* new_stream(bool high_priority) = 0;
  virtual void delete_stream(void* stream) noexcept = 0;
  virtual void synchronize_stream(void* stream) = 0;
  virtual bool stream_done(void* stream) = 0;
  /// The stream that the calling thread issues to (null: the device's default one).
  virtual void* current_stream() const = 0;
  virtual void set_current_stream(void* stream) = 0;

  virtual void* new_event(bool timing) = 0;
  virtual void delete_event(void* event) noexcept = 0;
  virtual void record_event(void* event, void* stream) = 0;
  /// What is issued to `stream` from now on comes after the event.
  virtual void wait_event(void* stream, void* event) = 0;
  virtual void synchronize_event(void* event) = 0;
  virtual bool event_done(void* event) = 0;
  virtual double elapsed_ms(void* from, void* to) = 0;

  /// Says that `stream` uses the block at `p`, which belongs to another: it is reused only after what `stream` has been given so far.
  virtual void record_stream(void* p, void* stream) = 0;
  virtual MemoryStats memory_stats() = 0;
  virtual void empty_cache() = 0;
  /// Most bytes that may be reserved, 0 for all there are. Throws: ValueError when more is in use.
  virtual void set_memory_limit(int64_t bytes) = 0;
  /// Host memory that transfers go to and from without a copy in between. Throws: OutOfMemoryError.
  virtual void* allocate_pinned(size_t bytes) = 0;
  virtual void deallocate_pinned(void* p) noexcept = 0;
  /// Lets this device read and write the memory of another one without the host between them, where the machine can.
  virtual void enable_peer_access(int device) = 0;
  /// In stream order; either side may be this device, another one, pinned or ordinary host memory (which makes it wait).
  virtual void copy_async(Context&, void* to, const void* from, size_t bytes) = 0;

  /// copy(xs[i], ys[i]) for every i, in one launch as far as their layouts allow. No y shares memory with another tensor of the list.
  virtual void copy_each(Context&, std::span<const View> xs, std::span<const View> ys) = 0;

  /// From here until end_capture, what the calling thread issues to `stream` is recorded and not run; its allocations come from a pool of the
  /// graph's own. Waiting for the device meanwhile throws CudaError.
  virtual void begin_capture(void* stream) = 0;
  /// The recording, which keeps its memory until delete_graph.
  virtual void* end_capture(void* stream) = 0;
  virtual void launch_graph(void* graph, void* stream) = 0;
  virtual void delete_graph(void* graph) noexcept = 0;

  virtual SharedBlock share(void* p) = 0;
  virtual void* open_shared(const SharedBlock& block) = 0;
  virtual void close_shared(void* p) noexcept = 0;
};

/// The device as an Accelerator. Throws: DeviceError for the CPU, and as backend() does.
WEFT_API Accelerator& accelerator(Device device);

// The devices that have been opened so far; asking opens none.
/// 1 + the highest index of an open device, 0 when there is none.
WEFT_API int open_accelerators() noexcept;
/// Null when cuda:`index` is not open.
WEFT_API Accelerator* open_accelerator(int index) noexcept;

namespace cuda {
/// Number of CUDA devices that this program can use: 0 without the library, a driver or a device; backend(Device("cuda")) says which is missing.
WEFT_API int device_count() noexcept;
WEFT_API bool is_available() noexcept;
}  // namespace cuda

}  // namespace weft
