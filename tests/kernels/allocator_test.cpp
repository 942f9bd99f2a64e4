// The caching allocator: alignment, reuse, counting, blocks that are freed on other threads or outlive their
// thread.
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "arrays.h"

#include <weft/kernels/cpu/allocator.h>
#include <weft/kernels/memory.h>

namespace weft {
namespace {

using kernels::allocate;
using kernels::deallocate;

const size_t kSizes[] = {0,    1,    63,     64,     65,     512,     513,           576,     577,
                         1000, 4096, 65'535, 65'536, 65'537, 1 << 20, (1 << 21) - 1, 1 << 21, 5'000'001};

TEST(Allocator, blocks_are_aligned_writable_and_disjoint) {
  std::vector<std::pair<char*, size_t>> blocks;
  for (int round = 0; round < 3; ++round)
    for (size_t bytes : kSizes) {
      char* const p = static_cast<char*>(allocate(bytes));
      ASSERT_NE(p, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u) << bytes;
      std::memset(p, static_cast<int>(blocks.size()), bytes);
      blocks.emplace_back(p, bytes);
    }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [p, bytes] = blocks[i];
    for (size_t k = 0; k < bytes; k += 61) ASSERT_EQ(p[k], static_cast<char>(i));
    deallocate(p, bytes);
  }
}

TEST(Allocator, counts_what_is_in_use) {
  const MemoryStats before = memory_stats();
  void* const small = allocate(100);
  void* const large = allocate(3'000'000);
  const MemoryStats during = memory_stats();
  EXPECT_EQ(during.allocations - before.allocations, 2);
  EXPECT_GE(during.in_use - before.in_use, 3'000'100);
  EXPECT_LE(during.in_use - before.in_use, 3'500'000);  // rounding is at most an eighth
  EXPECT_GE(during.peak_reserved, during.in_use);
  deallocate(small, 100);
  deallocate(large, 3'000'000);
  EXPECT_EQ(memory_stats().in_use, before.in_use);
}

TEST(Allocator, empty_cache_gives_free_blocks_back) {
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(allocate(1 << 20));
  for (void* p : blocks) deallocate(p, 1 << 20);
  for (int i = 0; i < 20; ++i) deallocate(allocate(256), 256);
  empty_cache();
  const MemoryStats after = memory_stats();
  EXPECT_LE(after.cached, 1 << 20);  // other threads keep them
  EXPECT_EQ(after.reserved, after.in_use + after.cached);
  EXPECT_GE(after.peak_reserved, 20 << 20);
}

TEST(Allocator, impossible_requests_throw) {
  EXPECT_THROW(static_cast<void>(allocate(size_t{1} << 60)), OutOfMemoryError);
  EXPECT_THROW(static_cast<void>(allocate((size_t{1} << 46) - 7)), OutOfMemoryError);
}

TEST(Allocator, blocks_may_be_freed_on_another_thread) {
  struct Item {
    unsigned char* p;
    size_t bytes;
    unsigned char mark;
  };
  const int64_t before = memory_stats().in_use;
  std::mutex mutex;
  std::vector<Item> shared;
  std::atomic<int> broken{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 engine(t);
      for (int i = 0; i < 3000; ++i) {
        const size_t bytes = kSizes[engine() % 14];
        const auto mark = static_cast<unsigned char>(engine());
        auto* const p = static_cast<unsigned char*>(allocate(bytes));
        if (bytes > 0) p[0] = p[bytes - 1] = mark;
        Item item{};
        {
          const std::lock_guard lock(mutex);
          shared.push_back({p, bytes, mark});
          if (shared.size() < 20) continue;
          const size_t at = engine() % shared.size();
          item = shared[at];
          shared[at] = shared.back();
          shared.pop_back();
        }
        if (item.bytes > 0 && (item.p[0] != item.mark || item.p[item.bytes - 1] != item.mark)) ++broken;
        deallocate(item.p, item.bytes);
      }
    });
  for (auto& t : threads) t.join();
  for (const Item& item : shared) deallocate(item.p, item.bytes);
  EXPECT_EQ(broken, 0);
  EXPECT_EQ(memory_stats().in_use, before);
}

/// Frees its block when the thread's locals are destroyed, possibly after the allocator's own.
struct Late {
  void* p = nullptr;
  ~Late() {
    deallocate(p, 128);
    deallocate(allocate(64), 64);
  }
};

TEST(Allocator, works_while_a_thread_ends) {
  const int64_t before = memory_stats().in_use;
  std::thread([] {
    thread_local Late late;
    late.p = nullptr;  // the object exists before the allocator's thread-local guard, so it goes after it
    late.p = allocate(128);
    deallocate(allocate(1000), 1000);
  }).join();
  EXPECT_EQ(memory_stats().in_use, before);
}

}  // namespace
}  // namespace weft
