// The examples `data_parallel` and `hybrid` as a user runs them with devices: builds of them that have the
// emulated ones, as real processes whose gradients travel over the emulated NCCL.
#include "programs/program.h"
#include "collectives/members.h"

namespace {

using namespace programs;
using namespace weft;
using weft::test::has;

const Variables kWithNccl{{"WEFT_NCCL_LIBRARY", WEFT_TEST_NCCL}};

TEST(SimtDataParallelPrograms, data_parallel_on_devices_matches_one_process) {
  NEEDS_GLOO;
  for (const char* flags : {"", " --world-size 3 --seed 5"}) {
    const Output out = run(std::string("data_parallel_emulated --steps 5 --device cuda") + flags, kWithNccl);
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_TRUE(has(out.last(), "data_parallel: steps=5 loss_last=0.")) << out.text;
    EXPECT_TRUE(has(out.last(), " matches reference: yes")) << out.text;
  }
}

TEST(SimtDataParallelPrograms, hybrid_with_trainers_on_devices_matches_one_process) {
  NEEDS_GLOO;
  const Output out = run("hybrid_emulated --steps 5 --device cuda", kWithNccl);
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_TRUE(has(out.last(), "hybrid: trainers=2 steps=5 loss_last=")) << out.text;
  EXPECT_TRUE(has(out.last(), " matches reference: yes")) << out.text;
}

TEST(SimtDataParallelPrograms, a_missing_nccl_is_named_before_a_worker_starts) {
  NEEDS_GLOO;
  const Output out = run("data_parallel_emulated --device cuda", {{"WEFT_NCCL_LIBRARY", "libmissing.so"}});
  EXPECT_EQ(out.code, 1) << out.text;
  EXPECT_TRUE(has(out.lines("data_parallel: "), "NCCL 2.14 or newer was not found")) << out.text;
  EXPECT_FALSE(out.has("pids:")) << out.text;
}

}  // namespace
