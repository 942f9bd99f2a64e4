// Small blocks from thread-local free lists: tensor bodies, storages, tape slots and nodes live for one operation, so malloc would
// cost more than their work. A block may be freed on any thread (it joins that thread's list, up to a limit) and after the thread's
// own end of life (it goes back to malloc). Blocks are 64-byte aligned. Under the address sanitizer every block comes from malloc.
#pragma once

#include <cstddef>

#include <weft/kernels/error.h>

namespace weft {

/// A block of at least `bytes` bytes. Thread safety: any thread. Throws: std::bad_alloc.
WEFT_API void* pool_allocate(size_t bytes);
/// Gives back a block of pool_allocate(bytes); `bytes` must be the number asked for.
WEFT_API void pool_free(void* p, size_t bytes) noexcept;

}  // namespace weft
