// Recording (stream capture) of emulated work. Work issued to a recorded stream becomes an entry of a list,
// and a replay runs the list, in another order of its streams while work is deferred. As in CUDA, a stream
// that waits for an event of the recording joins it. A recorded stream must not wait for work outside the
// recording, and no thread may wait for the device meanwhile. Such a wait is an error that invalidates the
// recording. The recording ends on its first stream, which must be ordered after all others.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>

namespace weft::cuda::simt {

struct Recording;

/// The recording of `stream`; null if it is not recorded.
std::shared_ptr<Recording> recording_of(void* stream);
void record(Recording& recording, void* stream, std::function<void()> work);
/// The predecessors of a step in a recording: a number of steps for each stream.
using Past = std::map<void*, size_t>;
Past past_of(Recording& recording, void* stream);
/// Throws: CudaError if `stream` may not wait for an event of `recording`; null: an event outside of any.
void check_joins(const std::shared_ptr<Recording>& recording, void* stream);
/// Adds `stream` to the recording, after `past`.
void join(const std::shared_ptr<Recording>& recording, void* stream, const Past& past);
/// Throws: CudaError for an event of a recording, which becomes invalid.
void check_outside(const std::shared_ptr<Recording>& recording, const char* call);
/// Throws: CudaError if the calling thread records; its recording becomes invalid.
void check_may_wait(const char* call);
/// The same if any thread records a graph of the current device; these recordings become invalid.
void check_may_wait_for_device(const char* call);
/// Throws: CudaError if the stream takes part in a recording, which becomes invalid.
void check_not_recorded(void* stream, const char* call);

}  // namespace weft::cuda::simt
