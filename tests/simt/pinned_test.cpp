// The pool of pinned host memory over emulated memory: which blocks are handed out again, and when.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include <weft/kernels/cuda/host/pinned.h>
#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/error.h>
#include "support/simt/streams.h"
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

TEST_F(SimtPinned, a_request_asks_for_one_event_of_each_stream_however_many_blocks_wait) {
  PinnedPool pool(true);
  char streams[2];
  simt::settings().hold_events = true;
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(pool.allocate(4096));
  for (size_t i = 0; i < blocks.size(); ++i) {
    pool.use(blocks[i], 0, &streams[i % 2]);
    if (i % 8 == 0) pool.use(blocks[i], 0, &streams[1 - i % 2]);
    pool.deallocate(blocks[i]);
  }
  const int64_t before = simt::event_queries();
  void* const other = pool.allocate(4096);
  EXPECT_EQ(simt::event_queries() - before, 2);
  simt::settings().hold_events = false;
  std::set<void*> again;  // all of them have passed
  for (size_t i = 0; i < blocks.size(); ++i) again.insert(pool.allocate(4096));
  EXPECT_EQ(again, std::set<void*>(blocks.begin(), blocks.end()));
  for (void* const p : again) pool.deallocate(p);
  pool.deallocate(other);
}

TEST_F(SimtPinned, a_block_waits_for_the_copies_of_all_its_streams) {
  PinnedPool pool(true);
  char stream;
  void* const p = pool.allocate(4096);
  {
    const simt::Deferred late;
    for (void* const s : {static_cast<void*>(nullptr), static_cast<void*>(&stream)}) {
      pool.use(p, 0, s);
      simt::issue(0, s, [] {});
    }
    pool.deallocate(p);
    void* const q = pool.allocate(4096);
    EXPECT_NE(q, p);
    runtime::synchronize(nullptr);
    void* const r = pool.allocate(4096);
    EXPECT_NE(r, p);  // the other stream's copy is still due
    runtime::synchronize(&stream);
    EXPECT_EQ(pool.allocate(4096), p);
  }
}

}  // namespace
}  // namespace weft::cuda
