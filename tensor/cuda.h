// The CUDA interface for users: devices, their memory, streams, events and graphs. Tensors need none of this:
// they are created on a device, moved with to(), and computed with as on the CPU. Operations are
// asynchronous: they run later, in stream order, and reading a value (item, to_vector, to(kCpu)) waits for
// them. A backward issues to the current stream of the thread that calls it. Each call sets the calling
// thread's CUDA device and does not restore it.
// Throws: all functions throw DeviceError for a device that does not exist; is_available and device_count
// (accelerator.h) never throw. Thread safety: several threads may use an object, one after another; the
// current stream belongs to the calling thread.
#pragma once

#include <memory>
#include <utility>

#include <weft/kernels/accelerator.h>
#include <weft/tensor/tensor.h>

namespace weft::cuda {

inline constexpr Device kDefault{DeviceType::kCuda};

/// The device's name, compute capability, multiprocessors and bytes of memory.
WEFT_API DeviceProperties device_properties(Device device = kDefault);
/// Waits for all work issued to the device. While another thread records a graph on the device, it waits for
/// the work on weft's streams, except streams being recorded.
/// Throws: CudaError if the calling thread records a graph, which continues; IndexError or ValueError that a
/// kernel has reported since the last wait.
WEFT_API void synchronize(Device device = kDefault);

/// Statistics of the device's caching allocator, in bytes.
WEFT_API MemoryStats memory_stats(Device device = kDefault);
/// Returns unused cached memory to the device, for other programs to use, and unused pinned memory to the
/// host.
WEFT_API void empty_cache(Device device = kDefault);
/// Limits the bytes that this process may reserve on the device; 0 removes the limit.
/// Throws: ValueError for a negative number, or if more is in use.
WEFT_API void set_memory_limit(int64_t bytes, Device device = kDefault);

class Event;

/// A queue of work on one device. Work issued to a stream runs in order, and in no order with other streams.
/// Copies of the object are the same stream. A tensor's memory belongs to the stream that was current when it
/// was created; if another stream uses the tensor too, call record_stream.
class WEFT_API Stream {
 public:
  explicit Stream(Device device = kDefault, bool high_priority = false);

  Device device() const { return device_; }
  /// The cudaStream_t, for the program's own kernels and other libraries.
  void* handle() const { return handle_.get(); }
  void synchronize() const;
  /// Whether all work issued so far is done.
  bool query() const;
  /// Work issued to this stream from now on runs after the event, or after the work issued to `other` so far.
  void wait_event(const Event& event) const;
  void wait_stream(const Stream& other) const;
  /// An event after the work issued to this stream so far.
  Event record_event() const;
  friend bool operator==(const Stream& a, const Stream& b) {
    return a.device_ == b.device_ && a.handle() == b.handle();
  }

 private:
  friend class StreamGuard;
  friend class Graph;
  friend WEFT_API Stream current_stream(Device device);
  friend WEFT_API Stream default_stream(Device device);
  Stream(Device device, std::shared_ptr<void> handle) : device_(device), handle_(std::move(handle)) {}
  Device device_;
  std::shared_ptr<void> handle_;
};

/// The stream to which the calling thread issues work.
WEFT_API Stream current_stream(Device device = kDefault);
/// The current stream of each thread that has set none. It is a non-blocking stream of weft: it does not
/// synchronize with CUDA's own default stream.
WEFT_API Stream default_stream(Device device = kDefault);

/// Makes a stream the calling thread's current stream on its device, for the lifetime of the guard.
class WEFT_API StreamGuard {
 public:
  explicit StreamGuard(const Stream& stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Stream stream_;
  Stream before_;
};

/// A point in a stream's work. An event that was never recorded counts as done.
class WEFT_API Event {
 public:
  /// `timing`: for elapsed_time.
  explicit Event(Device device = kDefault, bool timing = false);
  ~Event();
  Event(Event&& other) noexcept
      : device_(other.device_), timing_(other.timing_), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(device_, other.device_), std::swap(timing_, other.timing_), std::swap(handle_, other.handle_);
    return *this;
  }

  /// Places the event after the work issued to the stream so far.
  /// Throws: DeviceError for a stream of another device.
  void record(const Stream& stream);
  void record() { record(current_stream(device_)); }
  void synchronize() const;
  bool query() const;
  /// Milliseconds from this event to `end`. Throws: ValueError unless both were created with timing.
  double elapsed_time(const Event& end) const;
  void* handle() const { return handle_; }
  Device device() const { return device_; }

 private:
  Device device_;
  bool timing_;
  void* handle_;
};

/// Names a part of a program in traces (WEFT_CUDA_TRACE, Nsight Systems): an NVTX range, and a span on the
/// thread's current stream. Ranges of a thread nest. Without a trace it does nothing.
///   const cuda::Range range("decoder");
class WEFT_API Range {
 public:
  /// Opens the range; its destructor closes it.
  explicit Range(const char* name, Device device = kDefault);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  Device device_;
  void* span_;
};

/// Marks a tensor that was created on another stream as used by `stream`. Its memory is reused only after the
/// work issued to `stream` before the tensor is freed.
WEFT_API void record_stream(const Tensor& x, const Stream& stream);

/// A CUDA graph: work that is recorded once and replayed with one launch. A replay runs the same kernels on
/// the same memory. So keep the tensors that the recording read and copy new inputs into them. Keep the
/// tensors that it made and read the results there. Numbers computed by the host are constants of the
/// recording, with two exceptions. Each replay draws new random numbers, and a recorded optimizer step uses
/// the learning rate and step count of the replay. The recorded code must not wait for the device (item,
/// to(kCpu)) or for other work (a future). A stream that waits for the recorded stream is recorded too; let
/// the recorded stream wait for it in turn before the end. Run the work once before recording it, so that
/// libraries and optimizers have allocated their state.
///   cuda::Graph graph;
///   graph.capture([&] { loss = model.forward(x).mean(); ... });
///   for (...) { x.copy_(batch); graph.replay(); }
class WEFT_API Graph {
 public:
  explicit Graph(Device device = kDefault);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Records f(). An exception from f ends the recording and is rethrown.
  template <class F> void capture(F&& f) {
    begin();
    try {
      f();
    } catch (...) {
      abandon();
      throw;
    }
    end();
  }
  /// Until end(), the calling thread's work on the device is recorded instead of run.
  /// Throws: ValueError for a graph that holds a recording, CudaError while another graph is recorded.
  void begin();
  /// Ends the recording.
  void end();
  /// Runs the recording on the current stream.
  /// Throws: ValueError without a recording, or if a recorded optimizer is destroyed or its state was
  /// replaced.
  void replay() const;
  /// Drops the recording and its memory.
  void reset();
  /// Whether there is a recording.
  bool recorded() const { return graph_ != nullptr; }

 private:
  void abandon() noexcept;
  Device device_;
  Stream stream_;
  std::unique_ptr<StreamGuard> guard_;  // while recording
  void* graph_ = nullptr;
};

}  // namespace weft::cuda
