// Streams, events and graphs of cuda.h: each object holds a handle of its device's Accelerator. Pinned
// tensors are here too, since the Accelerator allocates their memory.
#include <weft/tensor/cuda.h>

#include <cstring>

#include <weft/kernels/backend.h>
#include <weft/tensor/inner/launch.h>
#include <weft/tensor/inner/parameter_lock.h>

namespace weft {

Tensor Tensor::pin_memory() const {
  body("pin_memory");
  if (!device().is_cpu()) throw DeviceError(str("pin_memory: takes a CPU tensor, this one is on ", device()));
  if (is_pinned()) return detach();
  Tensor y = empty(sizes(), {.dtype = dtype(), .pinned = true});
  launch::copy_into(y, detail::held(*this));
  return y;
}

namespace cuda {

namespace {
void check_device(const char* name, Device expected, Device got) {
  if (!(expected == got)) throw DeviceError(str(name, ": the stream is on ", got, ", expected ", expected));
}
}  // namespace

DeviceProperties device_properties(Device device) { return accelerator(device).properties(); }
void synchronize(Device device) { accelerator(device).synchronize(); }
MemoryStats memory_stats(Device device) { return accelerator(device).memory_stats(); }
void empty_cache(Device device) { accelerator(device).empty_cache(); }
void set_memory_limit(int64_t bytes, Device device) { accelerator(device).set_memory_limit(bytes); }

Stream::Stream(Device device, bool high_priority) : device_(device) {
  Accelerator& a = accelerator(device);
  handle_ = std::shared_ptr<void>(a.new_stream(high_priority), [&a](void* p) { a.delete_stream(p); });
}
void Stream::synchronize() const { accelerator(device_).synchronize_stream(handle()); }
bool Stream::query() const { return accelerator(device_).stream_done(handle()); }
void Stream::wait_event(const Event& event) const {
  accelerator(device_).wait_event(handle(), event.handle());
}
void Stream::wait_stream(const Stream& other) const { wait_event(other.record_event()); }
Event Stream::record_event() const {
  Event e(device_);
  e.record(*this);
  return e;
}

Stream current_stream(Device device) {
  // no ownership: the StreamGuard that made the stream current keeps its handle
  return Stream(device, std::shared_ptr<void>(std::shared_ptr<void>(), accelerator(device).current_stream()));
}
Stream default_stream(Device device) {
  return Stream(device, std::shared_ptr<void>(std::shared_ptr<void>(), accelerator(device).default_stream()));
}

StreamGuard::StreamGuard(const Stream& stream) : stream_(stream), before_(current_stream(stream.device())) {
  accelerator(stream_.device()).set_current_stream(stream_.handle());
}
StreamGuard::~StreamGuard() { accelerator(stream_.device()).set_current_stream(before_.handle()); }

Event::Event(Device device, bool timing)
    : device_(device), timing_(timing), handle_(accelerator(device).new_event(timing)) {}
Event::~Event() {
  if (handle_) accelerator(device_).delete_event(handle_);
}
void Event::record(const Stream& stream) {
  check_device("Event::record", device_, stream.device());
  accelerator(device_).record_event(handle_, stream.handle());
}
void Event::synchronize() const { accelerator(device_).synchronize_event(handle_); }
bool Event::query() const { return accelerator(device_).event_done(handle_); }
double Event::elapsed_time(const Event& end) const {
  if (!timing_ || !end.timing_) throw ValueError("elapsed_time: both events must be made with timing = true");
  return accelerator(device_).elapsed_ms(handle_, end.handle_);
}

Range::Range(const char* name, Device device)
    : device_(device), span_(accelerator(device).begin_span(name)) {}
Range::~Range() {
  if (span_) accelerator(device_).end_span(span_);
}

void record_stream(const Tensor& x, const Stream& stream) {
  check_device("record_stream", x.device(), stream.device());
  accelerator(x.device()).record_stream(x.body().storage->allocation(), stream.handle());
}

Graph::Graph(Device device) : device_(device), stream_(device) {}
Graph::~Graph() {
  abandon();
  reset();
}

void Graph::begin() {
  if (graph_) throw ValueError("Graph: it holds a recording; reset() drops it");
  if (guard_) throw ValueError("Graph: it is recording already");
  guard_ = std::make_unique<StreamGuard>(stream_);
  try {
    accelerator(device_).begin_capture(stream_.handle());
  } catch (...) {
    guard_.reset();
    throw;
  }
}
void Graph::end() {
  if (!guard_) throw ValueError("Graph: end() without begin()");
  guard_.reset();
  graph_ = accelerator(device_).end_capture(stream_.handle());
}
void Graph::replay() const {
  if (!graph_) throw ValueError("Graph: there is no recording to replay");
  Accelerator& a = accelerator(device_);
  a.launch_graph(graph_, a.current_stream());
}
void Graph::reset() {
  if (void* const graph = std::exchange(graph_, nullptr)) accelerator(device_).delete_graph(graph);
}
void Graph::abandon() noexcept {
  if (!guard_) return;
  guard_.reset();
  try {
    Accelerator& a = accelerator(device_);
    a.delete_graph(a.end_capture(stream_.handle()));
  } catch (const std::exception&) {  // CUDA drops a failed recording
  }
}

}  // namespace cuda

}  // namespace weft
