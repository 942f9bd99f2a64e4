// Recording of emulated work: what is issued to a stream that is being recorded becomes an entry of a list, and a replay runs the list. As on the machine,
// a stream that waits for an event of the recording joins it, and waiting for the device meanwhile is an error that spoils the recording.
#pragma once

#include <functional>
#include <memory>

namespace weft::cuda::simt {

struct Recording;

/// The recording that `stream` takes part in, null when there is none.
std::shared_ptr<Recording> recording_of(void* stream);
void record(Recording& recording, std::function<void()> work);
/// `stream` takes part from here on.
void join(const std::shared_ptr<Recording>& recording, void* stream);
/// Throws: CudaError where the calling thread records, and spoils what it records.
void check_may_wait(const char* call);

}  // namespace weft::cuda::simt
