// Recordings of graph.h, and the graph calls of kernels/cuda/host/runtime.h.
#include "support/simt/graph.h"
#include "support/simt/streams.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/error.h>

namespace weft::cuda {

namespace simt {

/// Work of a recording: its stream, and all that is before it, itself included.
struct Step {
  void* stream;
  Past past;
  std::function<void()> work;
};

struct Recording {
  int device;
  void* origin;
  /// steps of each stream that takes part: its joins and its work
  std::map<void*, Past> pasts;
  std::vector<Step> work{};
  bool spoilt = false, over = false;

  /// True if a stream has work that the first stream has not joined.
  bool unjoined() {
    Past& known = pasts[origin];
    return std::any_of(pasts.begin(), pasts.end(),
                       [&](const auto& one) { return known[one.first] < one.second.at(one.first); });
  }
};

namespace {
struct Graph {
  std::vector<Step> work;
  void* origin;
  StreamPoint last = {};  ///< the end of the last replay; the next one waits for it on any stream

  /// The work in an order that the recording allows: that of the other streams as late as it may be behind
  /// the first stream's, or as early.
  std::vector<const Step*> ordered(Others others) const {
    std::map<void*, std::deque<const Step*>> waiting;
    for (const Step& step : work) waiting[step.stream].push_back(&step);
    std::vector<void*> preferred;
    for (const auto& [stream, steps] : waiting)
      if (stream != origin) preferred.push_back(stream);
    preferred.insert(others == Others::kLate ? preferred.begin() : preferred.end(), origin);
    const auto ready = [&](const Step& step) {
      return std::all_of(step.past.begin(), step.past.end(), [&](const auto& before) {
        const auto& [stream, count] = before;
        const auto& left = waiting[stream];
        return stream == step.stream || left.empty() || left.front()->past.at(stream) > count;
      });
    };
    std::vector<const Step*> order;
    while (order.size() < work.size()) {
      const auto next = std::find_if(preferred.begin(), preferred.end(), [&](void* stream) {
        return !waiting[stream].empty() && ready(*waiting[stream].front());
      });
      order.push_back(waiting[*next].front());
      waiting[*next].pop_front();
    }
    return order;
  }
};

std::mutex mutex;
std::map<void*, std::shared_ptr<Recording>> streams;
thread_local std::shared_ptr<Recording> of_thread;
}  // namespace

std::shared_ptr<Recording> recording_of(void* stream) {
  const std::lock_guard lock(mutex);
  const auto found = streams.find(stream);
  return found == streams.end() ? nullptr : found->second;
}
void record(Recording& recording, void* stream, std::function<void()> work) {
  const std::lock_guard lock(mutex);
  ++recording.pasts[stream][stream];
  recording.work.push_back({stream, recording.pasts[stream], std::move(work)});
}
Past past_of(Recording& recording, void* stream) {
  const std::lock_guard lock(mutex);
  return recording.pasts[stream];
}
void check_joins(const std::shared_ptr<Recording>& recording, void* stream) {
  if (recording && recording->over)
    throw CudaError(
        "cudaStreamWaitEvent: the event belongs to a recording that has ended (cudaErrorInvalidValue)");
  if (recording && !stream) {
    recording->spoilt = true;
    throw CudaError(
        "cudaStreamWaitEvent: the default stream cannot take part in a recording "
        "(cudaErrorStreamCaptureImplicit)");
  }
  const auto mine = recording_of(stream);
  if (!mine || mine == recording) return;
  mine->spoilt = true;
  if (recording) recording->spoilt = true;
  throw CudaError(recording
                      ? "cudaStreamWaitEvent: two recordings would become one (cudaErrorStreamCaptureMerge)"
                      : "cudaStreamWaitEvent: a recorded stream would wait for work outside the recording "
                        "(cudaErrorStreamCaptureIsolation)");
}
void join(const std::shared_ptr<Recording>& recording, void* stream, const Past& past) {
  const std::lock_guard lock(mutex);
  Past& known = recording->pasts[stream];
  if (streams.insert_or_assign(stream, recording).second) ++known[stream];
  for (const auto& [other, steps] : past) known[other] = std::max(known[other], steps);
}
void check_outside(const std::shared_ptr<Recording>& recording, const char* call) {
  if (!recording) return;
  recording->spoilt = true;
  throw CudaError(str(call, ": the event was recorded within a recording (cudaErrorCapturedEvent)"));
}
void check_may_wait(const char* call) {
  if (!of_thread) return;
  of_thread->spoilt = true;
  throw CudaError(str(
      call, ": not permitted while the calling thread records a graph (cudaErrorStreamCaptureUnsupported)"));
}
void check_may_wait_for_device(const char* call) {
  check_may_wait(call);
  const std::lock_guard lock(mutex);
  bool any = false;
  for (const auto& [stream, recording] : streams)
    if (recording->device == current_device()) recording->spoilt = any = true;
  if (any)
    throw CudaError(str(call,
                        ": not permitted while any thread records a graph of the device "
                        "(cudaErrorStreamCaptureUnsupported)"));
}
void check_not_recorded(void* stream, const char* call) {
  const auto recording = recording_of(stream);
  if (!recording) return;
  recording->spoilt = true;
  throw CudaError(
      str(call, ": not permitted on a stream that is being recorded (cudaErrorStreamCaptureUnsupported)"));
}

}  // namespace simt

namespace runtime {

void begin_capture(Stream stream) {
  if (simt::of_thread) throw CudaError("cudaStreamBeginCapture: the calling thread records already");
  if (simt::recording_of(stream))
    throw CudaError("cudaStreamBeginCapture: the stream takes part in a recording already");
  simt::of_thread = std::make_shared<simt::Recording>(simt::Recording{simt::current_device(), stream, {}});
  simt::join(simt::of_thread, stream, {});
}
Graph end_capture(Stream stream) {
  const auto recording = simt::recording_of(stream);
  if (!recording) throw CudaError("cudaStreamEndCapture: the stream records nothing");
  if (recording->origin != stream)
    throw CudaError(
        "cudaStreamEndCapture: the recording began on another stream (cudaErrorStreamCaptureUnmatched)");
  simt::of_thread = nullptr;
  recording->over = true;
  {
    const std::lock_guard lock(simt::mutex);
    std::erase_if(simt::streams, [&](const auto& entry) { return entry.second == recording; });
  }
  if (recording->spoilt)
    throw CudaError(
        "cudaStreamEndCapture: the recording was spoilt by a call that is not permitted "
        "(cudaErrorStreamCaptureInvalidated)");
  if (recording->unjoined())
    throw CudaError(
        "cudaStreamEndCapture: a stream that joined the recording was not joined back "
        "(cudaErrorStreamCaptureUnjoined)");
  return new simt::Graph{std::move(recording->work), recording->origin};
}
bool capturing(Stream stream) { return simt::recording_of(stream) != nullptr; }
bool capture_failed(Stream stream) {
  const auto recording = simt::recording_of(stream);
  return recording && recording->spoilt;
}
void launch_graph(Graph graph, Stream stream) {
  if (capturing(stream)) throw CudaError("cudaGraphLaunch: the emulation records no graph within a graph");
  auto& replayed = *static_cast<simt::Graph*>(graph);
  const int device = simt::current_device();
  simt::order_after(device, stream, replayed.last);
  if (simt::deferring()) {
    for (const simt::Step* const step : replayed.ordered(simt::others()))
      simt::issue(device, stream, step->work);
  } else {
    for (const simt::Step& step : replayed.work) simt::issue(device, stream, step.work);
  }
  replayed.last = simt::point_of(device, stream);
}
void delete_graph(Graph graph) { delete static_cast<simt::Graph*>(graph); }

}  // namespace runtime

}  // namespace weft::cuda
