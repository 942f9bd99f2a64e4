// The caching allocator of CPU tensors. Blocks are 64-byte aligned and come in size classes (powers of two cut in eighths). Free
// blocks of up to 64 KiB are kept in lists of the freeing thread, without a lock; the rest in shared lists under one mutex. Large
// blocks are mapped directly and advised to use huge pages, since faulting in fresh pages costs more than most arithmetic on them.
// Caching stops at a quarter of physical memory (WEFT_CACHE_BYTES overrides); WEFT_NO_CACHE=1, and builds under the address
// sanitizer, return every block at once. A block may be freed on any thread, also after that thread's locals are gone.
#pragma once

#include <cstddef>

#include <weft/kernels/memory.h>

namespace weft::kernels {

/// A block of at least `bytes`; never null. Throws: OutOfMemoryError.
WEFT_API void* allocate(size_t bytes);
/// Gives back a block; `bytes` is what was asked for.
WEFT_API void deallocate(void* p, size_t bytes) noexcept;

}  // namespace weft::kernels
