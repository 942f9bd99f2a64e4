// The CUDA backend: one object per device. Each operation is defined in the file that holds its kernels (softmax in softmax.cu); this header is
// the list of them. Kernels are written against simt.h, memory and streams go through runtime.h, matrix products through gemm.h: what remains
// knows nothing of CUDA and is compiled by the host compiler too, for the tests that run it under emulation.
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
#include <weft/kernels/cuda/allocator.h>
#include <weft/kernels/cuda/device_key.h>
#include <weft/kernels/cuda/fault_slots.h>
#include <weft/kernels/cuda/runtime.h>
#include <weft/kernels/cuda/simt.h>

namespace weft::cuda {

struct Recording;  // recording.h

class CudaBackend final : public Accelerator {
 public:
  explicit CudaBackend(int index);

  /// The stream that an operation issues to.
  void* stream_of(const Context& c) const { return c.stream ? c.stream : current_stream(); }
  /// Where the calling thread's kernels report a bad index; see fault.h.
  Fault* fault() { return faults_.of_thread(); }
  void after_launch() {
    if (synchronous_) complete();
  }
  /// Makes this the calling thread's device; the first thing that an operation does.
  void enter() const;
  /// The key of a draw; while a graph is recorded, one that differs from replay to replay.
  DeviceKey device_key(const Context&, PhiloxKey key) const;
  /// The recording that an operation of the calling thread goes to, null where it runs.
  Recording* recording_of(const Context& c) const;
  /// Whether any thread records a graph on this device.
  bool records() const { return recordings_.load(std::memory_order_relaxed) > 0; }
  /// Whether the calling thread does.
  bool thread_records() const;
  int index() const { return index_; }
  Allocator& allocator() { return allocator_; }
  /// Blocks of 256 threads that keep the device busy; of `needed`, those worth starting.
  int64_t blocks_at_once() const { return int64_t{8} * processors_; }
  int64_t blocks_at_once(int64_t needed) const { return std::min(needed, blocks_at_once()); }
  /// Blocks of 256 threads for n independent pieces of work: a thread each, up to what the device runs at once, beyond which threads take several.
  Grid grid_for(int64_t n) const { return {.blocks = blocks_at_once(blocks_for(n, 256))}; }
  /// Bytes of shared memory that a block may have.
  size_t shared_memory() const { return shared_memory_; }
  /// Of `needed` blocks of `threads` with so many bytes of shared memory, as many as the device holds at once. A processor has 1 KiB more than a block may
  /// have, and keeps 1 KiB for each.
  int64_t resident(int64_t needed, int threads, size_t shared = 0) const {
    const auto fit = static_cast<int64_t>((shared_memory_ + 1024) / (shared + 1024));
    return std::min(needed, std::min(int64_t{2048 / threads}, std::max(fit, int64_t{1})) * processors_);
  }

  Device device() const override;
  void* allocate(size_t bytes) override;
  void deallocate(void* p, size_t bytes) noexcept override;
  void copy_from_host(Context&, const void* host, void* device, size_t bytes) override;
  void copy_to_host(Context&, const void* device, void* host, size_t bytes) override;
  void unary(Context&, Unary op, Scalar s, Scalar t, View x, View y) override;
  void binary(Context&, Binary op, Scalar s, Scalar t, View a, View b, View y) override;
  void ternary(Context&, Ternary op, Scalar s, View a, View b, View c, View y) override;
  void where(Context&, View cond, View a, View b, View y) override;
  void copy(Context&, View x, View y) override;
  void fill(Context&, Scalar value, View y) override;
  void arange(Context&, Scalar start, Scalar step, View y) override;
  void reduce(Context&, Reduce op, View x, View y) override;
  void arg_reduce(Context&, bool largest, int dim, View x, View values, View indices) override;
  void mean_var(Context&, int64_t correction, View x, View mean, View var) override;
  void cumulate(Context&, Reduce op, int dim, View x, View y) override;
  void sort(Context&, bool descending, View x, View values, View indices) override;
  void softmax(Context&, bool log, View x, View y) override;
  void softmax_backward(Context&, bool log, View y, View dy, View dx) override;
  void logsumexp(Context&, View x, View y) override;
  void cross_entropy(Context&, View x, View target, View weight, int64_t ignore, double smoothing, View loss,
                     View lse) override;
  void cross_entropy_backward(Context&, View x, View lse, View target, View weight, int64_t ignore,
                              double smoothing, View g, View dx) override;
  void layer_norm(Context&, View x, View weight, View bias, double eps, View y, View mean,
                  View rstd) override;
  void layer_norm_backward(Context&, View x, View weight, View mean, View rstd, View dy, View dx,
                           View dweight, View dbias) override;
  void matmul(Context&, double alpha, View a, View b, double beta, View bias, View c,
              bool relu = false) override;
  void take_rows(Context&, View x, View index, View y) override;
  void add_rows(Context&, View index, View dy, int64_t skip, View dx) override;
  void gather(Context&, int dim, View x, View index, View y) override;
  void scatter(Context&, bool add, int dim, View index, View src, View y) override;
  int64_t count_nonzero(Context&, View x) override;
  void nonzero(Context&, View x, View out) override;
  void triangle(Context&, bool upper, int64_t k, View x, View y) override;
  void uniform(Context&, PhiloxKey, double low, double high, View y) override;
  void normal(Context&, PhiloxKey, double mean, double stddev, View y) override;
  void bernoulli(Context&, PhiloxKey, View p, View y) override;
  void random_int(Context&, PhiloxKey, int64_t low, int64_t high, View y) override;
  void dropout(Context&, PhiloxKey, double p, View x, View y) override;
  void multinomial(Context&, PhiloxKey, bool replacement, View p, View indices) override;
  Shape rnn_reserve(Context&, const RnnLayer&, const RnnInputs&) override;
  void rnn_forward(Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&) override;
  void rnn_backward(Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&, View dy, View dhn,
                    View dcn, const RnnGrads&) override;
  std::optional<RnnStackRoom> rnn_stack(Context&, const RnnStack&, const RnnStackInputs&) override;
  void rnn_stack_forward(Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&) override;
  void rnn_stack_backward(Context&, const RnnStack&, const RnnStackInputs&, const RnnStackOutputs&, View dy,
                          View dhn, View dcn, const RnnStackGrads&) override;
  void step(Context&, const StepKernel&, DType dtype, std::span<const StepTensor>,
            const NextStep& next = nullptr, const double* skip = nullptr) override;
  void powers(Context&, double p, std::span<const View> xs, double* out) override;
  void scale(Context&, double factor, std::span<const View> xs) override;
  void clip_norm(Context&, double max_norm, double p, std::span<const View> xs, View norm) override;
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
  void set_current_stream(void* stream) override;
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
  SharedBlock share(void* p) override;
  void* open_shared(const SharedBlock& block) override;
  void close_shared(void* p) noexcept override;

 private:
  CudaBackend(int index, const runtime::Properties& properties);
  void complete();
  void wait_beside_recordings();
  Fault* reporter_of(void* event);

  const int index_;
  const int processors_;
  const size_t shared_memory_;
  const bool synchronous_;  ///< each launch is waited for: the emulation, or WEFT_CUDA_SYNC=1
  FaultSlots& faults_;
  Allocator allocator_;
  std::atomic<int> recordings_{0};  // graphs in the making: the device may not be waited for
  std::shared_mutex
      captures_;  // held alone while a stream begins to be recorded; shared by whoever must know which are not
  std::mutex mutex_;                    // of the lists below
  std::multimap<void*, void*> opened_;  // memory of other processes: what open_shared gave -> what it lies in
  std::vector<void*>
      idle_streams_[2];  // by priority; never given back, so that the allocator's keys stay valid
  std::vector<void*> urgent_streams_;  // those of high priority
  std::vector<void*> streams_;         // all that were made
  std::set<int> peers_;                // devices that access was asked for
  std::unordered_map<void*, Fault*>
      reporters_;  // event -> where the thread that recorded it has its kernels report
};

/// Device memory for the time of one operation, given back in stream order.
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
