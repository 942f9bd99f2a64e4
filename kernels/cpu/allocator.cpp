// The caching allocator (allocator.h). The difficulty is the end of a thread. Its lists are thread-local
// memory without a destructor, so they stay usable while other thread-locals are destroyed. A separate guard
// object flushes them to the shared lists and marks them closed; after that the thread uses the mutex.
// Counters are per thread too: the owner writes them, memory_stats reads them, and they are added to the
// totals at thread exit.
#include <weft/kernels/cpu/allocator.h>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <vector>

#include <weft/kernels/cpu/limits.h>
#include <weft/kernels/cpu/packs.h>

namespace weft::kernels {

namespace {

constexpr size_t kAlign = 64;
constexpr size_t kSmall = size_t{1} << 16;   // up to here: thread lists
constexpr size_t kMapped = size_t{1} << 21;  // from here: mmap and huge pages
constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kListBytes = size_t{1} << 18;  // bytes that one thread keeps per class
constexpr int kClasses = 8 + (47 - 9) * 8 + 8;
constexpr size_t kLargest = size_t{1} << 46;

/// Classes 0..7 are 64, 128 .. 512 bytes; then eight steps per power of two.
inline int class_of(size_t bytes) {
  if (bytes <= 512) return bytes == 0 ? 0 : static_cast<int>((bytes - 1) / 64);
  const size_t last = bytes - 1;
  const int log = std::bit_width(last) - 1;  // 2^log <= last
  return 8 + (log - 9) * 8 + static_cast<int>((last >> (log - 3)) & 7);
}
constexpr size_t class_bytes(int c) {
  if (c < 8) return static_cast<size_t>(c + 1) * 64;
  const int log = 9 + (c - 8) / 8;
  return (size_t{8} + static_cast<size_t>((c - 8) % 8) + 1) << (log - 3);
}
constexpr int kSmallClasses = 8 + (16 - 9) * 8;  // up to kSmall

/// Size of each small class, and how many free blocks of it one thread keeps.
struct SmallClass {
  int64_t bytes;
  uint32_t keep;
};
constexpr std::array<SmallClass, kSmallClasses> small_class = [] {
  std::array<SmallClass, kSmallClasses> table{};
  for (int c = 0; c < kSmallClasses; ++c)
    table[static_cast<size_t>(c)] = {static_cast<int64_t>(class_bytes(c)),
                                     static_cast<uint32_t>(kListBytes / class_bytes(c))};
  return table;
}();

struct FreeBlock {
  FreeBlock* next;
};

/// Owned by one thread; trivially destructible on purpose.
struct ThreadCache {
  FreeBlock* head[kSmallClasses];
  uint32_t count[kSmallClasses];
  enum : uint8_t { kNew, kOpen, kClosed } state;
  std::atomic<int64_t> taken, given, calls;  // bytes allocated and freed by this thread
  ThreadCache *previous, *next;
};
thread_local constinit ThreadCache cache{};

inline void bump(std::atomic<int64_t>& counter, int64_t by) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

bool caching_disabled() {
#if defined(__SANITIZE_ADDRESS__)
  return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  return true;
#endif
#endif
  const char* text = std::getenv("WEFT_NO_CACHE");
  return text && *text && *text != '0';
}

int64_t cache_limit() { return bytes_of_environment("WEFT_CACHE_BYTES", usable_memory() / 4); }

void* map_block(size_t bytes) {
  // Reserve one huge page more than needed and cut the ends off, so that the block begins on a huge page.
  const size_t reserve = bytes + kHugePage;
  void* const raw = mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (begin + kHugePage - 1) & ~(kHugePage - 1);
  if (aligned > begin) munmap(raw, aligned - begin);
  if (const size_t tail = begin + reserve - (aligned + bytes))
    munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

class Central {
 public:
  const bool disabled = caching_disabled();

  void open(ThreadCache& c) {
    const std::lock_guard lock(mutex_);
    c.next = threads_;
    c.previous = nullptr;
    if (threads_) threads_->previous = &c;
    threads_ = &c;
  }
  void close(ThreadCache& c) {
    flush(c);
    const std::lock_guard lock(mutex_);
    taken_ += c.taken.load(std::memory_order_relaxed);
    given_ += c.given.load(std::memory_order_relaxed);
    calls_ += c.calls.load(std::memory_order_relaxed);
    (c.previous ? c.previous->next : threads_) = c.next;
    if (c.next) c.next->previous = c.previous;
  }

  void* allocate(int c, size_t wanted) {
    {
      const std::lock_guard lock(mutex_);
      if (FreeBlock* block = free_[c]) {
        free_[c] = block->next;
        cached_ -= static_cast<int64_t>(class_bytes(c));
        return block;
      }
    }
    void* p = obtain(class_bytes(c), wanted);
    if (!p) {
      packs::drop_all();
      trim();
      p = obtain(class_bytes(c), wanted);
      if (!p)
        throw OutOfMemoryError(str("allocate: the operating system has no room for ", wanted, " bytes"));
    }
    return p;
  }

  void deallocate(int c, void* p) noexcept {
    const auto bytes = static_cast<int64_t>(class_bytes(c));
    if (!disabled) {
      const std::lock_guard lock(mutex_);
      if (cached_ + bytes <= limit_) {
        free_[c] = new (p) FreeBlock{free_[c]};
        cached_ += bytes;
        return;
      }
    }
    release(p, class_bytes(c));
  }

  /// Moves half (or all) of one thread list to the shared lists.
  void spill(ThreadCache& t, int c, uint32_t keep) noexcept {
    while (t.count[c] > keep) {
      FreeBlock* block = t.head[c];
      t.head[c] = block->next;
      --t.count[c];
      deallocate(c, block);
    }
  }
  void flush(ThreadCache& t) noexcept {
    for (int c = 0; c < kSmallClasses; ++c) spill(t, c, 0);
  }

  /// Returns all shared free blocks to the operating system.
  void trim() noexcept {
    for (int c = 0; c < kClasses; ++c) {
      FreeBlock* list = nullptr;
      {
        const std::lock_guard lock(mutex_);
        list = free_[c];
        free_[c] = nullptr;
        for (FreeBlock* b = list; b; b = b->next) cached_ -= static_cast<int64_t>(class_bytes(c));
      }
      while (list) {
        FreeBlock* const next = list->next;
        release(list, class_bytes(c));
        list = next;
      }
    }
  }

  MemoryStats stats() {
    const std::lock_guard lock(mutex_);
    int64_t taken = taken_, given = given_, calls = calls_;
    for (ThreadCache* t = threads_; t; t = t->next) {
      taken += t->taken.load(std::memory_order_relaxed);
      given += t->given.load(std::memory_order_relaxed);
      calls += t->calls.load(std::memory_order_relaxed);
    }
    MemoryStats s;
    s.in_use = taken - given;
    s.reserved = reserved_.load(std::memory_order_relaxed);
    s.cached = s.reserved - s.in_use;
    s.peak_reserved = peak_.load(std::memory_order_relaxed);
    s.allocations = calls;
    return s;
  }
  void count_closed(int64_t taken, int64_t given, int64_t calls) {
    const std::lock_guard lock(mutex_);
    taken_ += taken;
    given_ += given;
    calls_ += calls;
  }

 private:
  void* obtain(size_t bytes, size_t wanted) {
    void* p = nullptr;
    // the exact size, so that a memory checker detects the end of the block; checkers abort on absurd sizes
    if (disabled) {
      if (wanted > size_t{1} << 39 || posix_memalign(&p, kAlign, std::max<size_t>(wanted, 1)) != 0)
        return nullptr;
    } else {
      p = bytes >= kMapped ? map_block(bytes) : std::aligned_alloc(kAlign, bytes);
      if (!p) return nullptr;
    }
    const int64_t now = reserved_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed) +
                        static_cast<int64_t>(bytes);
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
    return p;
  }
  void release(void* p, size_t bytes) noexcept {
    reserved_.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
    if (bytes >= kMapped && !disabled) munmap(p, bytes);
    else std::free(p);
  }

  std::mutex mutex_;
  FreeBlock* free_[kClasses] = {};
  ThreadCache* threads_ = nullptr;
  int64_t cached_ = 0, taken_ = 0, given_ = 0, calls_ = 0;
  const int64_t limit_ = cache_limit();
  std::atomic<int64_t> reserved_{0}, peak_{0};
};

Central& central() {
  static Central* const object = new Central;  // never destroyed: blocks may be freed by static destructors
  return *object;
}

struct ThreadGuard {
  ~ThreadGuard() {
    cache.state = ThreadCache::kClosed;
    central().close(cache);
  }
};

/// Opens the calling thread's lists at its first use; false once they are closed.
bool open_thread() {
  if (cache.state == ThreadCache::kClosed) return false;
  thread_local ThreadGuard guard;
  static_cast<void>(guard);
  central().open(cache);
  cache.state = ThreadCache::kOpen;
  return true;
}

[[gnu::noinline]] void* allocate_slow(size_t bytes) {
  if (bytes > kLargest)
    throw OutOfMemoryError(str("allocate: ", bytes, " bytes is more than any machine has"));
  const int c = class_of(bytes);
  void* const p = central().allocate(c, bytes);
  const auto size = static_cast<int64_t>(class_bytes(c));
  if (cache.state == ThreadCache::kOpen || open_thread()) {
    bump(cache.taken, size);
    bump(cache.calls, 1);
  } else {
    central().count_closed(size, 0, 1);
  }
  return p;
}

[[gnu::noinline]] void deallocate_slow(void* p, int c) noexcept {
  const auto size = static_cast<int64_t>(class_bytes(c));
  Central& shared = central();
  if (cache.state == ThreadCache::kOpen || open_thread()) {
    bump(cache.given, size);
    if (c < kSmallClasses && !shared.disabled) {
      shared.spill(cache, c, small_class[static_cast<size_t>(c)].keep / 2 + 1);
      cache.head[c] = new (p) FreeBlock{cache.head[c]};
      ++cache.count[c];
      return;
    }
  } else {
    shared.count_closed(0, size, 0);
  }
  shared.deallocate(c, p);
}

}  // namespace

void* allocate(size_t bytes) {
  if (bytes <= kSmall) [[likely]] {
    const int c = class_of(bytes);
    if (FreeBlock* const block = cache.head[c]) [[likely]] {
      cache.head[c] = block->next;
      --cache.count[c];
      bump(cache.taken, small_class[static_cast<size_t>(c)].bytes);
      bump(cache.calls, 1);
      return block;
    }
  }
  return allocate_slow(bytes);
}

void deallocate(void* p, size_t bytes) noexcept {
  if (!p) return;
  const int c = class_of(bytes);
  // An empty list: no free block, a new or closed thread, or caching is off. The slow path handles all of
  // them.
  if (c < kSmallClasses && cache.count[c] - 1 < small_class[static_cast<size_t>(c)].keep - 1) [[likely]] {
    bump(cache.given, small_class[static_cast<size_t>(c)].bytes);
    cache.head[c] = new (p) FreeBlock{cache.head[c]};
    ++cache.count[c];
    return;
  }
  deallocate_slow(p, c);
}

}  // namespace weft::kernels

namespace weft {

MemoryStats memory_stats() { return kernels::central().stats(); }

void empty_cache() {
  kernels::central().flush(kernels::cache);
  kernels::central().trim();
}

}  // namespace weft
