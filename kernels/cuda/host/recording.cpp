// Graphs of a CUDA device: the work between begin_capture and end_capture is recorded, and launch_graph
// replays it. recording.h has the data of a graph.
#include <weft/kernels/cuda/host/recording.h>

#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <utility>

#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/kernels/cuda/host/pinned.h>
#include <weft/kernels/cuda/host/rnn_seam.h>
#include <weft/kernels/cuda_settings.h>

namespace weft::cuda {

namespace {
thread_local std::array<Recording*, kMaxDevices> recordings{};  // graphs being recorded
using Pinned = std::unique_ptr<void, decltype(&cuda::deallocate_pinned)>;
}  // namespace

Recording* CudaBackend::recording_of(const Context& c) const {
  Recording* const recording = recordings[static_cast<size_t>(index_)];
  return recording && runtime::capturing(stream_of(c)) ? recording : nullptr;
}
bool CudaBackend::thread_records() const { return recordings[static_cast<size_t>(index_)] != nullptr; }
bool CudaBackend::recording(const Context& c) const { return recording_of(c) != nullptr; }

DeviceKey CudaBackend::device_key(const Context& c, PhiloxKey key) const {
  Recording* const recording = recording_of(c);
  if (!recording) return {key.seed, key.offset, nullptr};
  recording->draws = true;
  return {key.seed, key.offset, recording->replays};
}

void CudaBackend::begin_capture(void* stream) {
  enter();
  if (named(stream) == default_stream_)
    throw ValueError(str("begin_capture: the default stream of ", device(),
                         " cannot be recorded; make one with new_stream"));
  cudnn::prepare_recording(*this);
  if (recurrent_wavefront() > 1) second_stream(stream);  // made before the recording
  allocator_.empty_cache();  // during the recording the pool can grow by new memory only
  allocator_.begin_pool(stream);
  auto recording = std::make_unique<Recording>();
  try {
    recording->replays = static_cast<uint32_t*>(allocator_.allocate(sizeof(uint32_t), stream));
    recording->origin = stream;
    const std::lock_guard lock(captures_);
    runtime::begin_capture(stream);
    ++recordings_;
  } catch (...) {
    allocator_.deallocate(recording->replays);
    allocator_.release_pool(allocator_.end_pool());
    throw;
  }
  recordings[static_cast<size_t>(index_)] = recording.release();
}
void* CudaBackend::end_capture(void* stream) {
  enter();
  std::unique_ptr<Recording> recording(std::exchange(recordings[static_cast<size_t>(index_)], nullptr));
  if (!recording) throw ValueError(str("end_capture: this thread records nothing on ", device()));
  std::exception_ptr failure;
  try {
    if (recording->draws) count_replay(stream, recording->replays);
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    recording->graph = runtime::end_capture(stream);
  } catch (...) {
    failure = std::current_exception();
  }
  --recordings_;
  try {
    recording->pool = allocator_.end_pool();  // after its end: end_pool records events
    if (!failure) {
      runtime::fill(recording->replays, 0, sizeof(uint32_t), stream);
      for (const Recording::Table& table : recording->tables)
        runtime::copy(table.device, table.host.data(), table.host.size(), stream);
      runtime::synchronize(stream);
      for (Recording::Table& table : recording->tables) table.host = {};
    }
  } catch (...) {
    failure = std::current_exception();
  }
  if (!failure) return recording.release();
  delete_graph(recording.release());
  std::rethrow_exception(failure);
}
void CudaBackend::launch_graph(void* graph, void* stream) {
  enter();
  stream = named(stream);
  const TraceSpan span("replay", stream);
  Recording& recording = *static_cast<Recording*>(graph);
  static std::atomic<uint64_t> count{0};
  const uint64_t replay = ++count;
  // The device orders the replays of a graph, but not the host's writes before a replay. The previous replay
  // may still read its functors and its skip number.
  if (!recording.steps.empty())
    for (const auto& [other, replayed] : recording.replays_on)
      if (other != stream && replayed) runtime::wait(stream, replayed);
  std::vector<Pinned> functors;
  for (const Recording::Step& step : recording.steps) {
    functors.emplace_back(cuda::allocate_pinned(step.bytes), &cuda::deallocate_pinned);
    std::vector<void*> each;
    for (const size_t offset : step.each) each.push_back(static_cast<char*>(functors.back().get()) + offset);
    step.next(each, replay);
  }
  for (size_t i = 0; i < functors.size(); ++i) {
    runtime::copy(recording.steps[i].device, functors[i].get(), recording.steps[i].bytes, stream);
    use_pinned(functors[i].get(), index_, stream);
  }
  runtime::Event& behind = recording.replays_on[stream];
  if (!behind) behind = runtime::new_event(false);
  runtime::launch_graph(recording.graph, stream);
  runtime::record(behind, stream);
}
void CudaBackend::delete_graph(void* graph) noexcept {
  auto* const recorded = static_cast<Recording*>(graph);
  if (!recorded) return;
  // Replays, and later work on their streams, may still use the pool.
  std::vector<runtime::Stream> users;
  for (const auto& [stream, behind] : recorded->replays_on) {
    users.push_back(stream);
    try {
      enter();
      if (!behind) continue;
      if (!runtime::capturing(stream)) runtime::record(behind, stream);  // else the event of the last replay
      runtime::synchronize_event(behind);
    } catch (const Error&) {  // a broken context runs no more work
    }
    if (behind) runtime::delete_event(behind);
  }
  if (recorded->graph) runtime::delete_graph(recorded->graph);
  for (const Recording::Table& table : recorded->tables) allocator_.deallocate(table.device);
  allocator_.deallocate(recorded->replays);
  allocator_.release_pool(recorded->pool, users);
  delete recorded;
}

}  // namespace weft::cuda
