// The caching allocator of CPU tensors. Blocks are 64-byte aligned and have size classes: eight per power of
// two. Free blocks of up to 64 KiB go to lists of the freeing thread, without a lock. Larger ones go to
// shared lists under one mutex. Large blocks are mapped directly and advised to use huge pages, since
// faulting in new pages costs more than most arithmetic on them. The cache is limited to a quarter of the
// memory that the process may use (limits.h), or to WEFT_CACHE_BYTES. With WEFT_NO_CACHE=1, and under the
// address sanitizer, every block is returned at once. A block may be freed on any thread, also after the
// thread's locals are destroyed.
#pragma once

#include <cstddef>

#include <weft/kernels/memory.h>

namespace weft::kernels {

/// A block of at least `bytes`; never null. Throws: OutOfMemoryError.
WEFT_API void* allocate(size_t bytes);
/// Frees a block; `bytes` is the number passed to allocate.
WEFT_API void deallocate(void* p, size_t bytes) noexcept;

}  // namespace weft::kernels
