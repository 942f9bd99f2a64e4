// Small blocks from thread-local free lists, for objects that are created by every operation: tensor bodies,
// storages, tape slots and nodes. A block may be freed on any thread; it joins that thread's list, up to a
// limit. During thread exit it is returned to the system. Blocks are 64-byte aligned. Under the address
// sanitizer there are no lists.
#pragma once

#include <cstddef>

#include <weft/kernels/error.h>

namespace weft {

/// A block of at least `bytes` bytes. Thread safety: any thread. Throws: std::bad_alloc.
WEFT_API void* pool_allocate(size_t bytes);
/// Frees a block of pool_allocate(bytes); `bytes` must be the same number.
WEFT_API void pool_free(void* p, size_t bytes) noexcept;

}  // namespace weft
