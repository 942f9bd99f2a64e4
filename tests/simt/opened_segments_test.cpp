// Allocations of other processes are open while a block of them is in use, and none is taken for another.
// This process opens its own ones, which the emulation allows here.
#include <gtest/gtest.h>

#include <vector>

#include <weft/kernels/cuda/host/opened_segments.h>
#include "support/errors.h"
#include "support/simt/device.h"
#include "support/simt/memory.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

constexpr size_t kBytes = 4096;

struct SimtOpenedSegments : ::testing::Test {
  SimtOpenedSegments() {
    simt::settings().shares_memory = true;
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(simt::device().allocate(kBytes));
      const std::vector<char> contents(kBytes, static_cast<char>('a' + i));
      Context c;
      simt::device().copy_from_host(c, contents.data(), blocks.back(), kBytes);
      shared.push_back(simt::device().share(blocks.back()));
    }
    before = simt::opens(), open_before = simt::opened_blocks();
  }
  ~SimtOpenedSegments() override {
    for (void* const p : blocks) simt::device().deallocate(p, kBytes);
    simt::settings() = {};
  }
  int64_t opens() const { return simt::opens() - before; }
  int open() const { return simt::opened_blocks() - open_before; }
  /// Uses a block and returns its first letter.
  static char use(OpenedSegments& all, const SharedBlock& block) {
    void* const p = all.open(block);
    char letter = 0;
    Context c;
    simt::device().copy_to_host(c, p, &letter, 1);
    all.close(p);
    return letter;
  }

  std::vector<void*> blocks;
  std::vector<SharedBlock> shared;
  int64_t before = 0;
  int open_before = 0;
};

TEST_F(SimtOpenedSegments, blocks_of_an_allocation_that_are_in_use_share_its_opening) {
  OpenedSegments all;
  SharedBlock inside = shared[0];
  inside.offset += 100;
  void *const p = all.open(shared[0]), *const q = all.open(inside);
  EXPECT_EQ(static_cast<char*>(q) - static_cast<char*>(p), 100);
  EXPECT_EQ(use(all, shared[0]), 'a');
  EXPECT_EQ(opens(), 1);
  all.close(p);
  EXPECT_EQ(open(), 1) << "one block is in use";
  all.close(q);
  EXPECT_EQ(open(), 0);
}

TEST_F(SimtOpenedSegments, nothing_that_is_not_in_use_is_open) {
  OpenedSegments all;
  std::vector<void*> used;
  for (const SharedBlock& block : shared) used.push_back(all.open(block));
  EXPECT_EQ(open(), 4);
  for (void* const p : used) all.close(p);
  EXPECT_EQ(open(), 0) << "its owner may free it";
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(use(all, shared[2]), 'c');
    EXPECT_EQ(open(), 0);
  }
  EXPECT_EQ(opens(), 7);
}

TEST_F(SimtOpenedSegments, a_block_of_an_unknown_allocation_has_an_opening_of_its_own) {
  OpenedSegments all;
  SharedBlock unknown = shared[1];
  unknown.segment = 0;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(use(all, unknown), 'b');
  EXPECT_EQ(opens(), 2);
  EXPECT_EQ(open(), 0);
}

TEST_F(SimtOpenedSegments, a_handle_that_names_another_allocation_by_now_is_not_taken_for_the_first) {
  OpenedSegments all;
  SharedBlock other = shared[0];
  ++other.segment;
  void* const p = all.open(other);
  EXPECT_TRUE(test::has(test::error_of<CudaError>([&] { all.open(shared[0]); }), "is in use here"));
  EXPECT_EQ(open(), 1);
  all.close(p);
  all.close(p);  // does nothing
  EXPECT_EQ(open(), 0);
  EXPECT_EQ(use(all, shared[0]), 'a');
  EXPECT_EQ(opens(), 2);
}

}  // namespace
}  // namespace weft::cuda
