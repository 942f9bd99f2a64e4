// The interface of an asynchronous device, beyond the operations of a Backend. It has streams, events, a
// caching allocator, graphs, and memory shared with other processes. tensor/cuda.h wraps these calls in
// objects.
#pragma once

#include <array>
#include <string>

#include <weft/kernels/backend.h>
#include <weft/kernels/memory.h>

namespace weft {

/// The properties of a device.
struct DeviceProperties {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int processors = 0;        ///< streaming multiprocessors
  int64_t memory = 0;        ///< bytes
};

/// A block of device memory in the form that another process can open.
struct SharedBlock {
  std::array<unsigned char, 64> handle{};
  int64_t offset = 0;         ///< bytes from the start of the allocation to which the handle belongs
  int64_t segment_bytes = 0;  ///< of that allocation
  /// a number unique to the allocation among all processes; 0: unknown, and then the block is opened
  /// separately
  uint64_t segment = 0;
};

/// Handles (void*) belong to the device that made them. A null stream is the device's default stream.
/// Operations issue to Context::stream, or to the calling thread's current stream when that is null.
/// Thread safety: as the CUDA runtime's, every call may come from any thread.
class WEFT_API Accelerator : public Backend {
 public:
  virtual DeviceProperties properties() = 0;

  /// Creates a stream; delete_stream destroys it.
  virtual void* new_stream(bool high_priority) = 0;
  virtual void delete_stream(void* stream) noexcept = 0;
  /// Waits until all work issued to the stream is done.
  virtual void synchronize_stream(void* stream) = 0;
  /// Whether all work issued to the stream is done.
  virtual bool stream_done(void* stream) = 0;
  /// The handle of the stream to which the calling thread issues work.
  virtual void* current_stream() const = 0;
  /// Sets that stream for the calling thread; null: the device's default stream.
  virtual void set_current_stream(void* stream) = 0;
  /// The handle of the current stream of each thread that has set none. It takes part in no recording.
  virtual void* default_stream() const = 0;

  /// Creates an event; with `timing` for elapsed_ms. delete_event destroys it.
  virtual void* new_event(bool timing) = 0;
  virtual void delete_event(void* event) noexcept = 0;
  /// Places the event after the work issued to the stream so far.
  virtual void record_event(void* event, void* stream) = 0;
  /// Work issued to `stream` from now on runs after the event.
  virtual void wait_event(void* stream, void* event) = 0;
  /// Waits for the event.
  virtual void synchronize_event(void* event) = 0;
  /// Whether the event has been reached; true if it was never recorded.
  virtual bool event_done(void* event) = 0;
  /// Milliseconds between two events with timing.
  virtual double elapsed_ms(void* from, void* to) = 0;

  /// Marks the block that contains `p`, allocated for another stream, as used by `stream`. It is reused only
  /// after the work issued to `stream` so far.
  virtual void record_stream(void* p, void* stream) = 0;
  /// Statistics of the device's caching allocator.
  virtual MemoryStats memory_stats() = 0;
  /// Returns unused cached memory to the device.
  virtual void empty_cache() = 0;
  /// Limits the reserved bytes; 0 removes the limit. Throws: ValueError for a negative number, or if more is
  /// in use.
  virtual void set_memory_limit(int64_t bytes) = 0;
  /// Allocates page-locked host memory, which transfers access without an intermediate copy. Throws:
  /// OutOfMemoryError.
  virtual void* allocate_pinned(size_t bytes) = 0;
  virtual void deallocate_pinned(void* p) noexcept = 0;
  /// Lets this device access the memory of another device directly, if the machine supports that.
  virtual void enable_peer_access(int device) = 0;
  /// Copies in stream order. Either side may be this device, another device, pinned host memory, or ordinary
  /// host memory, for which the call waits.
  virtual void copy_async(Context&, void* to, const void* from, size_t bytes) = 0;

  /// copy(xs[i], ys[i]) for every i, in one launch if their layouts allow. No y shares memory with another
  /// tensor of the list.
  virtual void copy_each(Context&, std::span<const View> xs, std::span<const View> ys) = 0;

  /// Until end_capture, the calling thread's work on `stream` is recorded instead of run. Its allocations
  /// come from a pool that belongs to the graph. Waiting for the device meanwhile throws CudaError.
  virtual void begin_capture(void* stream) = 0;
  /// The recorded graph, which keeps its memory until delete_graph.
  virtual void* end_capture(void* stream) = 0;
  /// Runs a recorded graph on the stream.
  virtual void launch_graph(void* graph, void* stream) = 0;
  virtual void delete_graph(void* graph) noexcept = 0;

  /// A span of the calling thread for tools, on its current stream; null if nothing traces (cuda/trace.h).
  virtual void* begin_span(const char* name) = 0;
  virtual void end_span(void* span) noexcept = 0;

  /// The block at `p` in a form that another process can open.
  virtual SharedBlock share(void* p) = 0;
  /// The address of a block of another process in this one; close_shared ends its use.
  virtual void* open_shared(const SharedBlock& block) = 0;
  /// Ends the use of an opened block. The end of the last block closes the allocation.
  virtual void close_shared(void* p) noexcept = 0;
};

/// The device as an Accelerator. Throws: DeviceError for the CPU; as backend().
WEFT_API Accelerator& accelerator(Device device);

// The devices opened so far; these calls open no device.
/// 1 + the highest index of an open device, 0 if there is none.
WEFT_API int open_accelerators() noexcept;
/// Null if cuda:`index` is not open.
WEFT_API Accelerator* open_accelerator(int index) noexcept;

namespace cuda {
/// Number of CUDA devices that this program can use: 0 without the library, a driver or a device. The error
/// of backend(Device("cuda")) names the missing part.
WEFT_API int device_count() noexcept;
/// Whether device_count() is above 0.
WEFT_API bool is_available() noexcept;
}  // namespace cuda

}  // namespace weft
