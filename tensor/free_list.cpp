// Thread-local free lists in size classes of 64 bytes: the cases that the inline functions do not handle. The
// first free on a thread opens its lists and arms a second object, whose destructor empties them at thread
// exit.
#include <weft/tensor/inner/free_list.h>

namespace weft {

constinit thread_local detail::PoolLists detail::pool_lists{};

namespace {

using detail::kPoolClasses;
using detail::kPoolGrain;

constexpr size_t kMaxKept = 512 * 1024;  // bytes per class and thread

enum class Phase : uint8_t { kUnarmed, kArmed, kDead };
constinit thread_local Phase t_phase = Phase::kUnarmed;

void system_free(void* p) noexcept { ::operator delete(p, std::align_val_t(kPoolGrain)); }

struct Emptier {
  ~Emptier() {
    t_phase = Phase::kDead;
    for (size_t c = 0; c < kPoolClasses; ++c) {
      detail::pool_lists.room[c] = 0;
      while (detail::PoolBlock* const block = detail::pool_lists.head[c]) {
        detail::pool_lists.head[c] = block->next;
        system_free(block);
      }
    }
  }
  void arm() {
    t_phase = Phase::kArmed;
    for (size_t c = 1; c < kPoolClasses; ++c)
      detail::pool_lists.room[c] = static_cast<uint32_t>(kMaxKept / (c * kPoolGrain));
  }
};
thread_local Emptier t_emptier;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kPooled = false;
#else
constexpr bool kPooled = true;
#endif

}  // namespace

void* detail::pool_allocate_slow(size_t size_class) {
  return ::operator new(size_class* kPoolGrain, std::align_val_t(kPoolGrain));
}

void detail::pool_free_slow(void* p, size_t size_class) noexcept {
  if (kPooled && size_class < kPoolClasses && t_phase == Phase::kUnarmed) {
    t_emptier.arm();
    return pool_free(p, size_class * kPoolGrain);
  }
  system_free(p);
}

}  // namespace weft
