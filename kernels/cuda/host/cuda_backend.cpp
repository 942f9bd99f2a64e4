// Memory, streams and events of a CUDA device. Graphs are in recording.cpp, operations in the files of their
// kernels (ops/).
#include <weft/kernels/cuda/host/cuda_backend.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <weft/kernels/cuda/host/pinned.h>

namespace weft::cuda {

namespace {
thread_local std::array<void*, kMaxDevices> current_streams{};

void* new_default_stream(int device) {
  runtime::set_device(device);
  return runtime::new_stream(false);
}

bool wants_synchronous_launches() {
  const char* const set = std::getenv("WEFT_CUDA_SYNC");
  return runtime::emulated() || (set && *set && *set != '0');
}
}  // namespace

CudaBackend::CudaBackend(int index) : CudaBackend(index, runtime::properties(index)) {}
CudaBackend::CudaBackend(int index, const runtime::Properties& properties)
    : index_(index),
      processors_(properties.processors),
      shared_memory_(properties.shared_memory),
      synchronous_(wants_synchronous_launches()),
      major_(properties.major),
      faults_(FaultSlots::of(index)),
      allocator_(index),
      default_stream_(new_default_stream(index)),
      streams_{default_stream_} {}

void CudaBackend::enter() const { runtime::set_device(index_); }
Device CudaBackend::device() const { return Device(DeviceType::kCuda, index_); }

void* CudaBackend::allocate(size_t bytes) {
  enter();
  return allocator_.allocate(bytes, current_stream());
}
void CudaBackend::deallocate(void* p, size_t) noexcept { allocator_.deallocate(p); }

void CudaBackend::copy_from_host(Context& c, const void* host, void* device, size_t bytes) {
  enter();
  const TraceSpan span("copy_from_host", stream_of(c));
  runtime::copy(device, host, bytes, stream_of(c));
  runtime::synchronize(stream_of(c));
}
void CudaBackend::copy_to_host(Context& c, const void* device, void* host, size_t bytes) {
  enter();
  const TraceSpan span("copy_to_host", stream_of(c));
  runtime::copy(host, device, bytes, stream_of(c));
  runtime::synchronize(stream_of(c));
  faults_.raise(fault());
}
void CudaBackend::enable_peer_access(int device) {
  {
    const std::lock_guard lock(mutex_);
    if (device == index_ || !peers_.insert(device).second) return;
  }
  enter();
  runtime::enable_peer_access(index_, device);
}
void CudaBackend::copy_async(Context& c, void* to, const void* from, size_t bytes) {
  enter();
  void* const s = stream_of(c);
  const TraceSpan span("copy_async", s);
  runtime::copy(to, from, bytes, s);
  use_pinned(to, index_, s);
  use_pinned(from, index_, s);
}
void CudaBackend::complete() {
  if (records()) return;
  if (!runtime::emulated()) {
    const std::shared_lock lock(captures_);
    if (records()) return;
    runtime::synchronize_device();
  }
  faults_.raise(fault());
}
void CudaBackend::synchronize() {
  enter();
  if (thread_records())
    throw CudaError(str("synchronize: the calling thread records a graph on ", device(),
                        "; its work runs when the graph is replayed"));
  {
    std::shared_lock lock(captures_);
    if (records()) {
      lock.unlock();
      wait_beside_recordings();
    } else {
      runtime::synchronize_device();
    }
  }
  faults_.raise(fault());
}
// While any thread records, CUDA refuses a wait for the device, which would also invalidate the recording;
// the same holds for a recorded stream. So it waits for the other streams only.
void CudaBackend::wait_beside_recordings() {
  using Event = std::unique_ptr<void, decltype(&runtime::delete_event)>;
  std::vector<Event> behind;
  {
    const std::shared_lock lock(captures_);
    const std::lock_guard list(mutex_);
    for (void* const stream : streams_) {
      if (runtime::capturing(stream)) continue;
      behind.emplace_back(runtime::new_event(false), &runtime::delete_event);
      runtime::record(behind.back().get(), stream);
    }
  }
  for (const Event& event : behind) runtime::synchronize_event(event.get());
}

DeviceProperties CudaBackend::properties() {
  const runtime::Properties p = runtime::properties(index_);
  return {p.name, p.major, p.minor, p.processors, static_cast<int64_t>(p.memory)};
}

// Streams are never destroyed, because the allocator keeps memory by the stream that last used it.
void* CudaBackend::new_stream(bool high_priority) {
  const std::lock_guard lock(mutex_);
  auto& idle = idle_streams_[high_priority];
  if (!idle.empty()) {
    void* const s = idle.back();
    idle.pop_back();
    return s;
  }
  enter();
  void* const s = runtime::new_stream(high_priority);
  streams_.push_back(s);
  if (high_priority) urgent_streams_.push_back(s);
  return s;
}
void CudaBackend::delete_stream(void* stream) noexcept {
  if (named(stream) == default_stream_) return;
  const std::lock_guard lock(mutex_);
  const bool urgent =
      std::find(urgent_streams_.begin(), urgent_streams_.end(), stream) != urgent_streams_.end();
  idle_streams_[urgent].push_back(stream);
}
void* CudaBackend::second_stream(void* stream) {
  stream = named(stream);
  bool urgent = false;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = second_streams_.find(stream); found != second_streams_.end()) return found->second;
    urgent = std::find(urgent_streams_.begin(), urgent_streams_.end(), stream) != urgent_streams_.end();
  }
  void* const made = new_stream(urgent);
  void* kept;
  {
    const std::lock_guard lock(mutex_);
    kept = second_streams_.try_emplace(stream, made).first->second;
  }
  if (kept != made) delete_stream(made);
  return kept;
}
void CudaBackend::synchronize_stream(void* stream) {
  enter();
  runtime::synchronize(named(stream));
  faults_.raise(fault());
}
bool CudaBackend::stream_done(void* stream) {
  enter();
  return runtime::finished(named(stream));
}
void* CudaBackend::current_stream() const { return named(current_streams[static_cast<size_t>(index_)]); }
void CudaBackend::set_current_stream(void* stream) { current_streams[static_cast<size_t>(index_)] = stream; }

void* CudaBackend::new_event(bool timing) {
  enter();
  return runtime::new_event(timing);
}
void CudaBackend::delete_event(void* event) noexcept {
  runtime::delete_event(event);
  const std::lock_guard lock(mutex_);
  reporters_.erase(event);
  recorded_events_.erase(event);
}
void CudaBackend::record_event(void* event, void* stream) {
  enter();
  stream = named(stream);
  runtime::record(event, stream);
  Fault* const mine = fault();
  const bool recorded = records() && runtime::capturing(stream);
  const std::lock_guard lock(mutex_);
  reporters_[event] = mine;
  if (recorded) recorded_events_.insert(event);
  else recorded_events_.erase(event);
}
void CudaBackend::wait_event(void* stream, void* event) {
  enter();
  stream = named(stream);
  if (!records()) return runtime::wait(stream, event);
  if (stream == default_stream_) {  // it would join the recording, and so would the work of other threads
    const std::lock_guard lock(mutex_);
    if (recorded_events_.contains(event))
      throw CudaError(str("wait_event: the default stream of ", device(),
                          " takes part in no recording, since all threads use it; make another one current"));
  }
  const std::lock_guard lock(captures_);  // the wait may add the stream to a recording
  runtime::wait(stream, event);
}
void CudaBackend::synchronize_event(void* event) {
  runtime::synchronize_event(event);
  faults_.raise(reporter_of(event));
}
bool CudaBackend::event_done(void* event) {
  if (!runtime::finished_event(event)) return false;
  faults_.raise(reporter_of(event));
  return true;
}
Fault* CudaBackend::reporter_of(void* event) {
  const std::lock_guard lock(mutex_);
  const auto found = reporters_.find(event);
  return found == reporters_.end() ? nullptr : found->second;
}
double CudaBackend::elapsed_ms(void* from, void* to) { return runtime::elapsed_ms(from, to); }

void CudaBackend::record_stream(void* p, void* stream) { allocator_.record_stream(p, named(stream)); }
MemoryStats CudaBackend::memory_stats() { return allocator_.stats(); }
void CudaBackend::empty_cache() {
  if (thread_records()) return;  // emptying would wait
  enter();
  allocator_.empty_cache();
  empty_pinned_cache();
}
void CudaBackend::set_memory_limit(int64_t bytes) {
  if (bytes < 0) throw ValueError(str("set_memory_limit: takes 0 or a number of bytes, got ", bytes));
  allocator_.set_limit(static_cast<size_t>(bytes));
}
void* CudaBackend::allocate_pinned(size_t bytes) {
  enter();
  return cuda::allocate_pinned(bytes);
}
void CudaBackend::deallocate_pinned(void* p) noexcept { cuda::deallocate_pinned(p); }

void* CudaBackend::begin_span(const char* name) {
  if (!inner::traces.load(std::memory_order_relaxed)) return nullptr;
  enter();
  return new TraceSpan(name, current_stream());
}
void CudaBackend::end_span(void* span) noexcept { delete static_cast<TraceSpan*>(span); }

SharedBlock CudaBackend::share(void* p) {
  enter();
  const Allocator::Segment segment = allocator_.segment_of(p);
  SharedBlock block;
  block.handle = runtime::export_memory(segment.begin);
  block.offset = static_cast<char*>(p) - segment.begin;
  block.segment_bytes = static_cast<int64_t>(segment.bytes);
  block.segment = segment.number;
  return block;
}
void* CudaBackend::open_shared(const SharedBlock& block) {
  enter();
  return opened_.open(block);
}
void CudaBackend::close_shared(void* p) noexcept {
  try {
    enter();
    opened_.close(p);
  } catch (const Error&) {  // the context is broken: nothing to close
  }
}

}  // namespace weft::cuda
