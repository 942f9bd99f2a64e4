// Small blocks from thread-local free lists, for objects that are created by every operation: tensor bodies,
// storages, tape slots and nodes. A block may be freed on any thread; it joins that thread's list, up to a
// limit. During thread exit it is returned to the system. Blocks are 64-byte aligned. Under the address
// sanitizer there are no lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include <weft/kernels/error.h>

namespace weft {

namespace detail {

inline constexpr size_t kPoolGrain = 64;
inline constexpr size_t kPoolClasses = 17;  // up to 1024 bytes

struct PoolBlock {
  PoolBlock* next;
};

/// The lists of one thread, by size class. They are constant-initialised, so access needs no check.
struct PoolLists {
  PoolBlock* head[kPoolClasses];
  /// How many blocks a list still takes: 0 before the thread's first free, and after its end.
  uint32_t room[kPoolClasses];
};
extern WEFT_API constinit thread_local PoolLists pool_lists;

// Without a block in the list, and without room in it.
WEFT_API void* pool_allocate_slow(size_t size_class);
WEFT_API void pool_free_slow(void* p, size_t size_class) noexcept;

}  // namespace detail

/// A block of at least `bytes` bytes, at least one. Thread safety: any thread. Throws: std::bad_alloc.
inline void* pool_allocate(size_t bytes) {
  const size_t c = (bytes + detail::kPoolGrain - 1) / detail::kPoolGrain;
  if (c < detail::kPoolClasses) [[likely]] {
    detail::PoolLists& lists = detail::pool_lists;
    if (detail::PoolBlock* const block = lists.head[c]) [[likely]] {
      lists.head[c] = block->next;
      ++lists.room[c];
      return block;
    }
  }
  return detail::pool_allocate_slow(c);
}

/// Frees a block of pool_allocate(bytes); `bytes` must be the same number.
inline void pool_free(void* p, size_t bytes) noexcept {
  const size_t c = (bytes + detail::kPoolGrain - 1) / detail::kPoolGrain;
  if (c < detail::kPoolClasses) [[likely]] {
    detail::PoolLists& lists = detail::pool_lists;
    if (lists.room[c] != 0) [[likely]] {
      lists.head[c] = new (p) detail::PoolBlock{lists.head[c]};
      --lists.room[c];
      return;
    }
  }
  detail::pool_free_slow(p, c);
}

}  // namespace weft
