// Opened allocations, found by handle and number. A handle alone does not name an allocation: one that is
// made after another was freed may have the same handle, and its memory lies elsewhere.
#include <weft/kernels/cuda/host/opened_segments.h>

#include <algorithm>
#include <iterator>

#include <weft/kernels/cuda/host/runtime.h>

namespace weft::cuda {

void* OpenedSegments::open(const SharedBlock& block) {
  const std::lock_guard lock(mutex_);
  Position at = segments_.end();
  if (block.segment != 0)
    at = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& s) {
      return s.first.segment != 0 && s.first.handle == block.handle;
    });
  if (at != segments_.end() && at->first.segment != block.segment) {
    if (at->users > 0)
      throw CudaError(
          "cudaIpcOpenMemHandle: memory that its process has freed is in use here under the same handle");
    release(at);
    at = segments_.end();
  }
  if (at == segments_.end())
    at = segments_.insert(segments_.end(), Segment{block, runtime::open_memory(block.handle)});
  void* const p = static_cast<char*>(at->memory) + block.offset;
  blocks_.emplace(p, at);
  ++at->users;
  return p;
}

void OpenedSegments::close(void* p) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(p);
  if (found == blocks_.end()) return;
  const Position at = found->second;
  blocks_.erase(found);
  if (--at->users > 0) return;
  if (at->first.segment == 0) {
    release(at);
    return;
  }
  segments_.splice(segments_.end(), segments_, at);
  close_idle(most_, most_bytes_);
}

void OpenedSegments::close_idle() noexcept {
  const std::lock_guard lock(mutex_);
  close_idle(0, 0);
}

void OpenedSegments::close_idle(size_t most, int64_t most_bytes) noexcept {
  size_t count = 0;
  int64_t bytes = 0;
  // from the latest on
  for (Position at = segments_.end(); at != segments_.begin();) {
    --at;
    if (at->users > 0) continue;
    ++count, bytes += at->first.segment_bytes;
    if (count > most || bytes > most_bytes) at = release(at);
  }
}

OpenedSegments::Position OpenedSegments::release(Position at) noexcept {
  try {
    runtime::close_memory(at->memory);
  } catch (const Error&) {  // its process has ended, or the context is broken: nothing to close
  }
  return segments_.erase(at);
}

}  // namespace weft::cuda
