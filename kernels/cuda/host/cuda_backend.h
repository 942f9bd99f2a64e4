// The CUDA backend, with one object per device. Each operation is defined in the file of its kernels (softmax
// in ops/softmax.cu). Kernels use simt.h, memory and streams runtime.h, matrix products gemm.h. Nothing else
// depends on CUDA, so the host compiler compiles these files too, for the tests under emulation.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include <weft/kernels/accelerator.h>
#include <weft/kernels/cuda/host/allocator.h>
#include <weft/kernels/cuda/host/device_key.h>
#include <weft/kernels/cuda/host/fault_slots.h>
#include <weft/kernels/cuda/host/opened_segments.h>
#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/cuda/simt.h>

namespace weft::cuda {

struct Recording;  // recording.h

class CudaBackend final : public Accelerator {
 public:
  explicit CudaBackend(int index);

  /// The stream of an operation.
  void* stream_of(const Context& c) const { return c.stream ? c.stream : current_stream(); }
  /// The record to which the calling thread's kernels report faults (fault.h).
  Fault* fault() { return faults_.of_thread(); }
  void after_launch() {
    if (synchronous_) complete();
  }
  /// Makes this the calling thread's device; every operation calls it first.
  void enter() const;
  /// The key of a draw; in a recorded graph it differs for each replay.
  DeviceKey device_key(const Context&, PhiloxKey key) const;
  /// The recording to which an operation of the calling thread belongs; null if it runs.
  Recording* recording_of(const Context& c) const;
  /// Whether any thread records a graph on this device.
  bool records() const { return recordings_.load(std::memory_order_relaxed) > 0; }
  /// Whether the calling thread records one.
  bool thread_records() const;
  int index() const { return index_; }
  Allocator& allocator() { return allocator_; }
  /// The blocks of a body that the device holds at once, at most `needed`, for kernels whose blocks loop. An
  /// operation calls it after enter().
  template <class Body>
  int64_t blocks_at_once(const char* name, int64_t needed, int threads = 256, size_t shared = 0) const {
    return std::min(needed,
                    std::max(blocks_of_processor<Body>(name, threads, shared), int64_t{1}) * processors_);
  }
  /// Blocks of 256 threads for n independent pieces of work, with one thread each. A thread has several
  /// pieces only if a grid cannot have so many blocks.
  static Grid grid_for(int64_t n) { return {.blocks = one_round(blocks_for(n, 256))}; }
  int64_t processors() const { return processors_; }
  /// Bytes of shared memory that a block may use.
  size_t shared_memory() const { return shared_memory_; }
  int major() const { return major_; }  ///< compute capability
  /// Whether it has Thread::multiply_add for both half types.
  bool multiplies_halves() const { return major_ >= 8; }

  Device device() const override;
  void* allocate(size_t bytes) override;
  void deallocate(void* p, size_t bytes) noexcept override;
  void copy_from_host(Context&, const void* host, void* device, size_t bytes) override;
  void copy_to_host(Context&, const void* device, void* host, size_t bytes) override;
#define WEFT_CPU_KERNEL(...)  // not of this backend
#include <weft/kernels/inner/kernel_methods.inc>
  /// By epilogues of cuBLASLt, where it has them for the product.
  void matmul_gelu(Context&, View a, View b, View bias, View before, View c) override;
  void matmul_gelu_grad(Context&, View a, View b, View before, View c) override;
  void matmul_sums(Context&, View a, View b, View c, View sums) override;
  /// For heads of up to 128 numbers, of doubles up to 64, on devices whose shared memory holds their tiles.
  bool has_attention(DType t, int64_t width, int64_t values) const override;
  int64_t attention_stats(Context&, const AttentionViews&, bool follows) override;
  Shape rnn_reserve(Context&, const RnnLayer&, const RnnInputs&) override;
  std::optional<RnnStackRoom> rnn_stack(Context&, const RnnStack&, const RnnStackInputs&) override;
  void rnn_stack_forward(Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&) override;
  void rnn_stack_backward(Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&, View dy,
                          View dhn, View dcn, const RnnStackGrads&) override;
  void clip_norm(Context&, double max_norm, double p, std::span<const View> xs, View norm,
                 View factor) override;
  void unscale(Context&, std::span<const View> xs, View state) override;
  void update_scale(Context&, double growth, double backoff, int64_t interval, View state) override;
  void copy_each(Context&, std::span<const View> xs, std::span<const View> ys) override;
  void synchronize() override;
  bool recording(const Context&) const override;

  DeviceProperties properties() override;
  void* new_stream(bool high_priority) override;
  void delete_stream(void* stream) noexcept override;
  void synchronize_stream(void* stream) override;
  bool stream_done(void* stream) override;
  void* current_stream() const override;
  /// The stream for work of weft's own beside that of `stream`. It is joined with that one whenever an
  /// operation returns, so it takes part in the recordings of that one alone.
  void* second_stream(void* stream);
  void set_current_stream(void* stream) override;
  void* default_stream() const override { return default_stream_; }
  void* new_event(bool timing) override;
  void delete_event(void* event) noexcept override;
  void record_event(void* event, void* stream) override;
  void wait_event(void* stream, void* event) override;
  void synchronize_event(void* event) override;
  bool event_done(void* event) override;
  double elapsed_ms(void* from, void* to) override;
  void record_stream(void* p, void* stream) override;
  MemoryStats memory_stats() override;
  void empty_cache() override;
  void set_memory_limit(int64_t bytes) override;
  void* allocate_pinned(size_t bytes) override;
  void deallocate_pinned(void* p) noexcept override;
  void enable_peer_access(int device) override;
  void copy_async(Context&, void* to, const void* from, size_t bytes) override;
  void begin_capture(void* stream) override;
  void* end_capture(void* stream) override;
  void launch_graph(void* graph, void* stream) override;
  void delete_graph(void* graph) noexcept override;
  void* begin_span(const char* name) override;
  void end_span(void* span) noexcept override;
  SharedBlock share(void* p) override;
  void* open_shared(const SharedBlock& block) override;
  void close_shared(void* p) noexcept override;

 private:
  CudaBackend(int index, const runtime::Properties& properties);
  void complete();
  void wait_beside_recordings();
  void* named(void* stream) const { return stream ? stream : default_stream_; }
  Fault* reporter_of(void* event);

  const int index_;
  const int processors_;
  const size_t shared_memory_;
  const bool synchronous_;  ///< waits for each launch: the emulation, or WEFT_CUDA_SYNC=1
  const int major_;         ///< compute capability
  FaultSlots& faults_;
  Allocator allocator_;
  /// Of weft's own: CUDA's waits for streams of other libraries, and refuses work while one is captured.
  void* const default_stream_;
  OpenedSegments opened_;
  std::atomic<int> recordings_{0};  // graphs being recorded; meanwhile no wait for the device
  // exclusive while a recording begins on a stream; shared to read which streams are not recorded
  std::shared_mutex captures_;
  std::mutex mutex_;  // of the lists below
  // by priority; never destroyed, so that the allocator's keys stay valid
  std::vector<void*> idle_streams_[2];
  std::vector<void*> urgent_streams_;  // of high priority
  std::vector<void*> streams_;         // all
  std::map<void*, void*> second_streams_;
  std::set<int> peers_;  // devices with peer access requested
  // event -> fault record of the thread that recorded it
  std::unordered_map<void*, Fault*> reporters_;
  std::set<void*> recorded_events_;  // events within a recording
};

/// Device memory for one operation, freed in stream order.
class Scratch {
 public:
  Scratch(CudaBackend& b, const Context& c, size_t bytes)
      : b_(b), bytes_(bytes), p_(bytes > 0 ? b.allocator().allocate(bytes, b.stream_of(c)) : nullptr) {}
  ~Scratch() {
    if (p_) b_.allocator().deallocate(p_);
  }
  Scratch(const Scratch&) = delete;
  template <class T> T* as() const { return static_cast<T*>(p_); }
  size_t bytes() const { return bytes_; }

 private:
  CudaBackend& b_;
  size_t bytes_;
  void* p_;
};

}  // namespace weft::cuda
