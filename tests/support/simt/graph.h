// Recording of emulated work: what is issued to a stream that is being recorded becomes an entry of a list, and a replay runs the list. As on the machine,
// a stream that waits for an event of the recording joins it; that a recorded stream waits for work outside the recording, and that anybody waits for
// the device meanwhile, are errors that spoil the recording.
#pragma once

#include <functional>
#include <memory>

namespace weft::cuda::simt {

struct Recording;

/// The recording that `stream` takes part in, null when there is none.
std::shared_ptr<Recording> recording_of(void* stream);
void record(Recording& recording, std::function<void()> work);
/// Throws: CudaError where `stream` may not wait for an event of `recording`, null for one outside of any.
void check_joins(const std::shared_ptr<Recording>& recording, void* stream);
/// `stream` takes part from here on.
void join(const std::shared_ptr<Recording>& recording, void* stream);
/// Throws: CudaError where the calling thread records, and spoils what it records.
void check_may_wait(const char* call);

}  // namespace weft::cuda::simt
