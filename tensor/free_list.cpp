// Thread-local free lists in size classes of 64 bytes. The lists are in a constant-initialised thread-local,
// so access needs no initialisation check. The first free on a thread arms a second object, whose destructor
// empties the lists at thread exit.
#include <weft/tensor/inner/free_list.h>

#include <cstdint>
#include <new>

namespace weft {
namespace {

constexpr size_t kGrain = 64;
constexpr size_t kClasses = 17;          // up to 1024 bytes
constexpr size_t kMaxKept = 512 * 1024;  // bytes per class and thread

struct FreeBlock {
  FreeBlock* next;
};

enum class Phase : uint8_t { kUnarmed, kArmed, kDead };

struct Lists {
  FreeBlock* head[kClasses];
  uint32_t count[kClasses];
  Phase phase;
};
constinit thread_local Lists t_lists{};

void system_free(void* p) noexcept { ::operator delete(p, std::align_val_t(kGrain)); }

struct Emptier {
  ~Emptier() {
    for (size_t c = 0; c < kClasses; ++c) {
      while (FreeBlock* block = t_lists.head[c]) {
        t_lists.head[c] = block->next;
        system_free(block);
      }
      t_lists.count[c] = 0;
    }
    t_lists.phase = Phase::kDead;
  }
  void arm() { t_lists.phase = Phase::kArmed; }
};
thread_local Emptier t_emptier;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kPooled = false;
#else
constexpr bool kPooled = true;
#endif

}  // namespace

void* pool_allocate(size_t bytes) {
  const size_t c = (bytes + kGrain - 1) / kGrain;
  if (kPooled && c < kClasses) {
    Lists& lists = t_lists;
    if (FreeBlock* block = lists.head[c]) {
      lists.head[c] = block->next;
      --lists.count[c];
      return block;
    }
  }
  return ::operator new(c* kGrain, std::align_val_t(kGrain));
}

void pool_free(void* p, size_t bytes) noexcept {
  const size_t c = (bytes + kGrain - 1) / kGrain;
  if (kPooled && c < kClasses) {
    Lists& lists = t_lists;
    if (lists.phase == Phase::kUnarmed) t_emptier.arm();
    if (lists.phase == Phase::kArmed && lists.count[c] * c * kGrain < kMaxKept) {
      lists.head[c] = new (p) FreeBlock{lists.head[c]};
      ++lists.count[c];
      return;
    }
  }
  system_free(p);
}

}  // namespace weft
