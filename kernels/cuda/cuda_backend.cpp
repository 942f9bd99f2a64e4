// Memory, streams, events and graphs of a CUDA device. Operations stand in the files of their kernels.
#include <weft/kernels/cuda/cuda_backend.h>

#include <array>
#include <cstdlib>
#include <cstring>

namespace weft::cuda {

namespace {
constexpr int kMaxDevices = 128;
thread_local std::array<void*, kMaxDevices> current_streams{};

bool wants_synchronous_launches() {
  const char* const set = std::getenv("WEFT_CUDA_SYNC");
  return runtime::emulated() || (set && *set && *set != '0');
}

Fault* new_fault() {
  void* const p = runtime::allocate_pinned(sizeof(Fault));
  if (!p) throw OutOfMemoryError("cuda: no pinned memory for the fault record");
  return new (p) Fault;
}
}  // namespace

CudaBackend::CudaBackend(int index) : index_(index), processors_(runtime::properties(index).processors), synchronous_(wants_synchronous_launches()), fault_((runtime::set_device(index), new_fault())), allocator_(index) {}

void CudaBackend::enter() const { runtime::set_device(index_); }
Device CudaBackend::device() const { return Device(DeviceType::kCuda, index_); }

void CudaBackend::raise_fault() {
  Fault seen;
  std::memcpy(static_cast<void*>(&seen), fault_, sizeof seen);
  if (seen.kind == Fault::kNone) return;
  *fault_ = Fault();
  switch (seen.kind) {
    case Fault::kIndex: throw IndexError(str("index ", seen.value, " at position ", seen.position, " is out of range [0, ", seen.bound, ")"));
    case Fault::kTarget: throw IndexError(str("cross_entropy: target ", seen.value, " in row ", seen.position, " is not in [0, ", seen.bound, ")"));
    case Fault::kWeight: throw ValueError(str("multinomial: weight ", seen.number, " of class ", seen.value, " in row ", seen.position, " is negative or not finite"));
    case Fault::kNoWeight: throw ValueError(str("multinomial: the weights of row ", seen.position, " sum to ", seen.number));
    default: throw ValueError(str("multinomial: row ", seen.position, " has ", seen.value, " positive weights, ", seen.bound, " draws without replacement"));
  }
}

void* CudaBackend::allocate(size_t bytes) {
  enter();
  return allocator_.allocate(bytes, current_stream());
}
void CudaBackend::deallocate(void* p, size_t) noexcept { allocator_.deallocate(p); }

void CudaBackend::copy_from_host(Context& c, const void* host, void* device, size_t bytes) {
  enter();
  runtime::copy(device, host, bytes, stream_of(c));
  runtime::synchronize(stream_of(c));
}
void CudaBackend::copy_to_host(Context& c, const void* device, void* host, size_t bytes) {
  enter();
  runtime::copy(host, device, bytes, stream_of(c));
  runtime::synchronize(stream_of(c));
  raise_fault();
}
void CudaBackend::copy_async(Context& c, void* to, const void* from, size_t bytes) {
  enter();
  runtime::copy(to, from, bytes, stream_of(c));
}
void CudaBackend::synchronize() {
  enter();
  runtime::synchronize_device();
  raise_fault();
}

DeviceProperties CudaBackend::properties() {
  const runtime::Properties p = runtime::properties(index_);
  return {p.name, p.major, p.minor, p.processors, static_cast<int64_t>(p.memory)};
}

void* CudaBackend::new_stream(bool high_priority) {
  enter();
  return runtime::new_stream(high_priority);
}
void CudaBackend::delete_stream(void* stream) noexcept {
  enter();
  runtime::delete_stream(stream);
}
void CudaBackend::synchronize_stream(void* stream) {
  enter();
  runtime::synchronize(stream);
  raise_fault();
}
bool CudaBackend::stream_done(void* stream) {
  enter();
  return runtime::finished(stream);
}
void* CudaBackend::current_stream() const { return current_streams[static_cast<size_t>(index_)]; }
void CudaBackend::set_current_stream(void* stream) { current_streams[static_cast<size_t>(index_)] = stream; }

void* CudaBackend::new_event(bool timing) {
  enter();
  return runtime::new_event(timing);
}
void CudaBackend::delete_event(void* event) noexcept { runtime::delete_event(event); }
void CudaBackend::record_event(void* event, void* stream) {
  enter();
  runtime::record(event, stream);
}
void CudaBackend::wait_event(void* stream, void* event) {
  enter();
  runtime::wait(stream, event);
}
void CudaBackend::synchronize_event(void* event) { runtime::synchronize_event(event); }
bool CudaBackend::event_done(void* event) { return runtime::finished_event(event); }
double CudaBackend::elapsed_ms(void* from, void* to) { return runtime::elapsed_ms(from, to); }

void CudaBackend::record_stream(void* p, void* stream) { allocator_.record_stream(p, stream); }
MemoryStats CudaBackend::memory_stats() { return allocator_.stats(); }
void CudaBackend::empty_cache() {
  enter();
  allocator_.empty_cache();
}
void CudaBackend::set_memory_limit(int64_t bytes) {
  if (bytes < 0) throw ValueError(str("set_memory_limit: takes 0 or a number of bytes, got ", bytes));
  allocator_.set_limit(static_cast<size_t>(bytes));
}
void* CudaBackend::allocate_pinned(size_t bytes) {
  enter();
  void* const p = runtime::allocate_pinned(bytes);
  if (!p) throw OutOfMemoryError(str("cuda: no pinned host memory for ", bytes, " bytes"));
  return p;
}
void CudaBackend::deallocate_pinned(void* p) noexcept { runtime::release_pinned(p); }

void CudaBackend::begin_capture(void* stream) {
  enter();
  allocator_.begin_pool(stream);
  runtime::begin_capture(stream);
}
void* CudaBackend::end_capture(void* stream) {
  enter();
  struct Recorded {
    runtime::Graph graph;
    void* pool;
  };
  void* const pool = allocator_.end_pool();
  return new Recorded{runtime::end_capture(stream), pool};
}
void CudaBackend::launch_graph(void* graph, void* stream) {
  enter();
  runtime::launch_graph(*static_cast<runtime::Graph*>(graph), stream);
}
void CudaBackend::delete_graph(void* graph) noexcept {
  enter();
  struct Recorded {
    runtime::Graph graph;
    void* pool;
  };
  auto* const recorded = static_cast<Recorded*>(graph);
  runtime::delete_graph(recorded->graph);
  allocator_.release_pool(recorded->pool);
  delete recorded;
}

SharedBlock CudaBackend::share(void* p) {
  enter();
  SharedBlock block;
  void* const segment = allocator_.segment_of(p);
  block.handle = runtime::export_memory(segment);
  block.offset = static_cast<char*>(p) - static_cast<char*>(segment);
  return block;
}
void* CudaBackend::open_shared(const SharedBlock& block) {
  enter();
  return static_cast<char*>(runtime::open_memory(block.handle)) + block.offset;
}
void CudaBackend::close_shared(void* p) noexcept {
  enter();
  runtime::close_memory(p);
}

}  // namespace weft::cuda
