// Parameters marked concurrent: some threads build graphs on them while others step them (copy on write). A
// distributed optimizer marks its parameters; a program marks a parameter that it steps on one thread and
// reads on another. All handles of the parameter (views, results of detach(), a state_dict()) share one
// storage, which has the lock.
//   1. An operation that reads such a tensor (In, record.h) takes a snapshot under the lock. A snapshot is an
//      alias of the current block with the tensor's edge, and a holder of the block. A Saved (record.h) holds
//      a block in the same way.
//   2. A step takes the lock. If the block has no holder, it writes in place. Otherwise it writes a new block
//      and points the storage at it. All handles then read the new block; the snapshots keep the old one, so
//      no graph changes.
// So a graph uses the values of its forward call, in spite of steps on other threads. A graph that was built
// before the parameter was marked is not protected: its backward throws after a step. A parameter that is not
// marked is stepped in place. All aliases change, memory of from_blob() too; the backward of a graph that
// saved it throws.
#pragma once

#include <weft/tensor/tensor.h>

namespace weft {

/// Marks a leaf as used by several threads. Idempotent; cannot be undone. Call it before the threads start.
/// Throws: AutogradError unless `parameter` is a leaf and no view. ValueError for a frozen tensor, and for
/// memory of from_blob(), whose owner would not see the new blocks.
WEFT_API void mark_concurrent(const Tensor& parameter);
/// Also true of views and other aliases of a marked parameter.
WEFT_API bool is_concurrent(const Tensor& parameter);
/// A tensor over the current block, which no step overwrites while the tensor or a view of it lives. If the
/// parameter is not marked, a copy.
WEFT_API Tensor snapshot(const Tensor& parameter);

}  // namespace weft
