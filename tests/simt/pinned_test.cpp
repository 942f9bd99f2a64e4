// The pool of pinned host memory over emulated memory: which blocks are handed out again, and when.
#include <gtest/gtest.h>

#include <weft/kernels/cuda/host/pinned.h>
#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/error.h>
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

struct SimtPinned : testing::Test {
  SimtPinned() { simt::settings() = {}; }
  ~SimtPinned() override { simt::settings() = {}; }
};

TEST_F(SimtPinned, a_request_that_finds_no_memory_waits_for_copies_of_freed_blocks) {
  PinnedPool pool(true);
  void* const p = pool.allocate(40 << 10);
  pool.use(p, 0, nullptr);
  simt::settings().hold_events = true;
  pool.deallocate(p);
  void* const q = pool.allocate(40 << 10);
  EXPECT_NE(q, p);  // a copy may still read it
  simt::settings().no_pinned = true;
  EXPECT_EQ(pool.allocate(40 << 10), p);
  EXPECT_THROW(pool.allocate(40 << 10), OutOfMemoryError);
  pool.deallocate(p);
  pool.deallocate(q);
}

}  // namespace
}  // namespace weft::cuda
