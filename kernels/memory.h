// Statistics of the CPU's caching allocator, and empty_cache().
#pragma once

#include <cstdint>

#include <weft/kernels/error.h>

namespace weft {

/// Bytes, rounded up to block sizes, summed over all threads.
struct MemoryStats {
  int64_t in_use = 0;         ///< in allocated blocks
  int64_t cached = 0;         ///< in free blocks kept for reuse
  int64_t reserved = 0;       ///< in_use + cached: obtained from the operating system
  int64_t peak_reserved = 0;  ///< the largest value of `reserved` so far
  int64_t allocations = 0;    ///< calls of allocate so far
};

/// Statistics of the CPU allocator; exact if no other thread allocates meanwhile.
WEFT_API MemoryStats memory_stats();
/// Returns cached free blocks (the shared blocks and the calling thread's) to the operating system.
WEFT_API void empty_cache();

}  // namespace weft
