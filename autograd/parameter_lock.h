// Parameters that several threads use at once: some build graphs on them, others step them. The lock belongs to the parameter.
//   1. An op that takes a marked parameter (In, record.h) holds the lock just long enough to take a snapshot: an alias of the current
//      storage that counts as a save of it, with the parameter's own edge.
//   2. A step takes the lock; where saves() is 0 nobody reads the block, and it writes in place; otherwise it writes a fresh block and swaps
//      it in. The old block lives on in the snapshots, so no graph is torn or invalidated.
// A graph's view of a parameter is thus the value at the time of the forward call, whatever the steps of other threads.
#pragma once

#include <mutex>

#include <weft/tensor/tensor.h>

namespace weft {

/// Marks a leaf as used by several threads; again is harmless. Cannot be undone. Mark before the threads start.
WEFT_API void mark_concurrent(const Tensor& parameter);
WEFT_API bool is_concurrent(const Tensor& parameter);
/// The parameter's lock, held; an empty lock for a tensor that is not marked. Order several by their body_ptr().
WEFT_API std::unique_lock<std::mutex> lock_parameter(const Tensor& parameter);
/// Gives the parameter a fresh storage that holds its elements row-major and nothing else. Views taken earlier keep the old one. The caller holds
/// the lock. Throws: ShapeError when the size in bytes differs, DeviceError when the device does.
WEFT_API void swap_storage(const Tensor& parameter, Ref<Storage> fresh);
/// A tensor over the parameter's current storage, which no step overwrites while it or a view of it lives.
WEFT_API Tensor snapshot(const Tensor& parameter);

}  // namespace weft
