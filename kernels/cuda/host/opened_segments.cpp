// Opened allocations, found by handle and number. A handle alone does not identify an allocation. An
// allocation made after another was freed may have the same handle, but its memory lies elsewhere.
#include <weft/kernels/cuda/host/opened_segments.h>

#include <algorithm>

#include <weft/kernels/cuda/host/runtime.h>

namespace weft::cuda {

void* OpenedSegments::open(const SharedBlock& block) {
  const std::lock_guard lock(mutex_);
  Position at = segments_.end();
  if (block.segment != 0)
    at = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& s) {
      return s.first.segment != 0 && s.first.handle == block.handle;
    });
  if (at != segments_.end() && at->first.segment != block.segment)
    throw CudaError(
        "cudaIpcOpenMemHandle: memory that its process has freed is in use here under the same handle");
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
  try {
    runtime::close_memory(at->memory);
  } catch (const Error&) {  // its process has ended, or the context is broken: nothing to close
  }
  segments_.erase(at);
}

}  // namespace weft::cuda
