// CUDA devices as their users see them: which there are, their memory, streams and events, recorded graphs. Tensors need none of this: they are made on
// a device, moved with to() and computed with as on the CPU. What is issued runs later, in the order of a stream; reading a value (item, to_vector,
// to(kCpu)) waits for it. A backward issues to the current stream of the thread that calls it. The calling thread's CUDA device is set by each call
// and not set back. All functions throw DeviceError when there is no such device; is_available and device_count (below) never throw.
// Thread safety: every object may be used from several threads, one after another; the current stream belongs to the calling thread.
#pragma once

#include <memory>
#include <utility>

#include <weft/kernels/accelerator.h>
#include <weft/tensor/tensor.h>

namespace weft::cuda {

inline constexpr Device kDefault{DeviceType::kCuda};

/// Name, compute capability, multiprocessors and bytes of memory.
WEFT_API DeviceProperties device_properties(Device device = kDefault);
/// Waits until everything issued to the device is done. While another thread records a graph on the device, until what weft's streams have been given
/// is done, those that are being recorded excepted. Throws: CudaError when the calling thread records one, which goes on; what a kernel has reported
/// since the last wait (IndexError).
WEFT_API void synchronize(Device device = kDefault);

/// What the device's caching allocator holds, in bytes.
WEFT_API MemoryStats memory_stats(Device device = kDefault);
/// Returns cached memory that nobody uses to the device, so that other programs can have it; pinned host memory likewise.
WEFT_API void empty_cache(Device device = kDefault);
/// Most bytes that this process may reserve on the device, 0 for all there are. Throws: ValueError when more is in use.
WEFT_API void set_memory_limit(int64_t bytes, Device device = kDefault);

class Event;

/// A queue of work on one device: what is issued to it runs in order, and unordered with other streams. A copy is the same stream. Memory of a
/// tensor belongs to the stream that was current when it was made; one that another stream uses too is told so by record_stream.
class WEFT_API Stream {
 public:
  explicit Stream(Device device = kDefault, bool high_priority = false);

  Device device() const { return device_; }
  /// cudaStream_t; null is the device's default stream.
  void* handle() const { return handle_.get(); }
  void synchronize() const;
  /// Whether all that was issued so far is done.
  bool query() const;
  /// What is issued to this stream from now on comes after the event, or after what `other` has been given so far.
  void wait_event(const Event& event) const;
  void wait_stream(const Stream& other) const;
  /// An event behind what this stream has been given so far.
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

/// The stream that the calling thread issues to.
WEFT_API Stream current_stream(Device device = kDefault);
WEFT_API Stream default_stream(Device device = kDefault);

/// Makes a stream the calling thread's current one on its device while the guard lives.
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

/// A point in a stream. One that was never recorded is done.
class WEFT_API Event {
 public:
  /// `timing`: elapsed_time may be asked.
  explicit Event(Device device = kDefault, bool timing = false);
  ~Event();
  Event(Event&& other) noexcept
      : device_(other.device_), timing_(other.timing_), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(device_, other.device_), std::swap(timing_, other.timing_), std::swap(handle_, other.handle_);
    return *this;
  }

  /// Behind what the stream has been given so far. Throws: DeviceError for a stream of another device.
  void record(const Stream& stream);
  void record() { record(current_stream(device_)); }
  void synchronize() const;
  bool query() const;
  /// Milliseconds from this event to `end`. Throws: ValueError unless both were made with timing.
  double elapsed_time(const Event& end) const;
  void* handle() const { return handle_; }
  Device device() const { return device_; }

 private:
  Device device_;
  bool timing_;
  void* handle_;
};

/// Says that `stream` uses the tensor, which was made on another: its memory is reused only after what the stream has been given until the
/// tensor is let go.
WEFT_API void record_stream(const Tensor& x, const Stream& stream);

/// Work that is recorded once and replayed at the cost of one launch. A replay runs the same kernels on the same memory: new inputs are copied
/// into the tensors that the recording read, results are read from those that it made, and both must be kept. Numbers that the host computed are
/// recorded as they were, except that each replay draws new random numbers, and takes a step of a recorded optimizer with the rate and the step
/// count of its time. Nothing inside may wait for the device (item, to(kCpu)) or for work outside (a future), and a stream that was made to wait for
/// the recorded work takes part: the recorded stream waits for it in turn before the end. Run the work once before recording it, so that
/// libraries and optimizers have made what they keep.
///   cuda::Graph graph;
///   graph.capture([&] { loss = model.forward(x).mean(); ... });
///   for (...) { x.copy_(batch); graph.replay(); }
class WEFT_API Graph {
 public:
  explicit Graph(Device device = kDefault);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Records f(); an exception of f ends the recording and is thrown on.
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
  /// From here until end(), what the calling thread issues to the device is recorded instead of run. Throws: ValueError for a graph that holds a
  /// recording, CudaError while another one is being made.
  void begin();
  void end();
  /// Runs the recording on the current stream. Throws: ValueError without one, or when a recorded optimizer is gone or its state was replaced.
  void replay() const;
  /// Drops the recording and its memory.
  void reset();
  bool recorded() const { return graph_ != nullptr; }

 private:
  void abandon() noexcept;
  Device device_;
  Stream stream_;
  std::unique_ptr<StreamGuard> guard_;  // while recording
  void* graph_ = nullptr;
};

}  // namespace weft::cuda
