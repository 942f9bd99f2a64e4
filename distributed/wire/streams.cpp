// Order of CUDA work across threads: marks on the current streams, and scopes that change them
// (streams.h). Futures, messages and backward passes use them.
#include <weft/distributed/wire/inner/streams.h>

#include <weft/distributed/runtime/runtime.h>

namespace weft::rpc {

namespace {

constexpr int kFollowed = 8;  // devices whose current stream follows fibers; each needs a thread state

/// Makes `stream` wait for the work queued on `before` so far.
void order(Accelerator& device, void* before, void* stream) {
  void* const event = device.new_event(false);
  device.record_event(event, before);
  device.wait_event(stream, event);
  device.delete_event(event);
}

bool records_on(Accelerator& device, void* stream) { return device.recording(Context{.stream = stream}); }

/// Throws if the thread records a graph on `stream`: a graph cannot wait for outside work.
void refuse_recording(Accelerator& device, void* stream, const char* what) {
  if (!records_on(device, stream)) return;
  throw CudaError(str(what, ": the calling thread records a graph on ", device.device(),
                      ", which cannot come after work outside of it; do this before begin() or after end()"));
}

template <int kIndex> void register_device() {
  register_thread_state({[] {
                           Accelerator* const device = open_accelerator(kIndex);
                           return device ? reinterpret_cast<uint64_t>(device->current_stream()) : 0;
                         },
                         [](uint64_t stream) {
                           if (Accelerator* const device = open_accelerator(kIndex))
                             device->set_current_stream(reinterpret_cast<void*>(stream));
                         },
                         0});
}

}  // namespace

std::unique_ptr<const StreamMark> StreamMark::now() {
  std::unique_ptr<StreamMark> mark;
  for (const auto& [device, stream] : current_streams()) {
    if (!mark) mark.reset(new StreamMark);
    mark->entries_.push_back({device, stream, nullptr});
    if (records_on(*device, stream)) continue;
    mark->entries_.back().event = device->new_event(false);
    device->record_event(mark->entries_.back().event, stream);
  }
  return mark;
}

StreamMark::~StreamMark() {
  for (const Entry& e : entries_)
    if (e.event) e.device->delete_event(e.event);
}

void join_streams(const StreamMark* mark) {
  for (int i = 0, n = open_accelerators(); i < n; ++i) {
    Accelerator* const device = open_accelerator(i);
    if (!device) continue;
    void* const mine = device->current_stream();
    const bool on_default = mine == device->default_stream();
    const StreamMark::Entry* made = nullptr;
    if (mark)
      for (const StreamMark::Entry& e : mark->entries_)
        if (e.device == device) made = &e;
    const bool marked = made && made->event;
    if (made ? made->stream == mine || (!marked && on_default) : on_default) continue;
    if (!on_default) refuse_recording(*device, mine, "waiting for a future");
    if (marked) device->wait_event(mine, made->event);
    // a thread that records a graph left no mark of its earlier work: wait for the default stream
    else order(*device, nullptr, mine);
  }
}

Streams current_streams(bool recorded) {
  Streams out;
  for (int i = 0, n = open_accelerators(); i < n; ++i)
    if (Accelerator* const device = open_accelerator(i))
      if (void* const stream = device->current_stream();
          stream != device->default_stream() && (recorded || !records_on(*device, stream)))
        out.emplace_back(device, stream);
  return out;
}

StreamScope::StreamScope(const Streams& streams) : before_(current_streams()) {
  for (const auto& [device, stream] : before_) device->set_current_stream(nullptr);
  for (const auto& [device, stream] : streams) device->set_current_stream(stream);
}

StreamScope::~StreamScope() {
  for (int i = 0, n = open_accelerators(); i < n; ++i)
    if (Accelerator* const device = open_accelerator(i)) device->set_current_stream(nullptr);
  for (const auto& [device, stream] : before_) device->set_current_stream(stream);
}

DefaultStreams::DefaultStreams() : before_(current_streams()) {
  for (const auto& [device, stream] : before_)
    refuse_recording(*device, stream, "a distributed backward pass");
  for (const auto& [device, stream] : before_) order(*device, stream, nullptr);
}

DefaultStreams::~DefaultStreams() {
  try {
    for (const auto& [device, stream] : before_) order(*device, nullptr, stream);
  } catch (const Error&) {  // the device's error also fails the next call that may throw
  }
}

void register_stream_states() {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    ((kIndex < open_accelerators() ? register_device<kIndex>() : void()), ...);
  }
  (std::make_integer_sequence<int, kFollowed>());
}

}  // namespace weft::rpc
