// Recording of emulated work: what is issued to a stream that is being recorded becomes an entry of a list, and a replay runs the list. As on the machine,
// a stream that waits for an event of the recording joins it; that a recorded stream waits for work outside the recording, and that anybody waits for
// the device meanwhile, are errors that spoil the recording. It ends on the stream that it began on, which must come after all that the others did.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>

namespace weft::cuda::simt {

struct Recording;

/// The recording that `stream` takes part in, null when there is none.
std::shared_ptr<Recording> recording_of(void* stream);
void record(Recording& recording, void* stream, std::function<void()> work);
/// What something within a recording comes after: of each stream so many steps.
using Past = std::map<void*, size_t>;
Past past_of(Recording& recording, void* stream);
/// Throws: CudaError where `stream` may not wait for an event of `recording`, null for one outside of any.
void check_joins(const std::shared_ptr<Recording>& recording, void* stream);
/// `stream` takes part from here on, after `past`.
void join(const std::shared_ptr<Recording>& recording, void* stream, const Past& past);
/// Throws: CudaError for an event of a recording, which is spoilt.
void check_outside(const std::shared_ptr<Recording>& recording, const char* call);
/// Throws: CudaError where the calling thread records, and spoils what it records.
void check_may_wait(const char* call);
/// The same where any thread records a graph of the current device, and spoils those.
void check_may_wait_for_device(const char* call);
/// Throws: CudaError where the stream takes part in a recording, which is spoilt.
void check_not_recorded(void* stream, const char* call);

}  // namespace weft::cuda::simt
