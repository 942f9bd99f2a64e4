// The memory of a fiber's stack, after the fiber has gone. runtime_test.cpp has the use of fibers.
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include <weft/distributed/sim/inner/fiber.h>

namespace weft::rpc {
namespace {

/// The address sanitizer reports a write to memory that it still counts as the stack's.
TEST(Fiber, leaves_memory_that_the_next_mapping_can_use) {
  uintptr_t frame = 0;
  std::optional<inner::Fiber> fiber(std::in_place, size_t{64} << 10, [&frame] {
    frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  });
  fiber->resume();
  fiber.reset();
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  int mapped = 0;
  for (uintptr_t at = frame / page * page; mapped < 8; at += page, ++mapped) {  // up to the end of the stack
    void* const memory = mmap(reinterpret_cast<void*>(at), page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory == MAP_FAILED) break;  // another mapping
    std::memset(memory, 1, page);
    munmap(memory, page);
  }
  EXPECT_GT(mapped, 0);
}

}  // namespace
}  // namespace weft::rpc
