// The op table on the emulated device: SimtOpTable.<check>/<row>. WEFT_SIMT_ORDER chooses the order
// in which threads run, WEFT_SIMT_POISON the filling of fresh memory, WEFT_SIMT_PROCESSORS the grids,
// WEFT_SIMT_RACES the memory in which races are faults.
// A run of the whole program fails when a kernel was never launched.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/op_table_checks.h"
#include "support/simt/device.h"
#include "support/simt/thread.h"

namespace weft::op_table {
namespace {

const bool registered = (cuda::simt::install(), register_checks("SimtOpTable", "cuda:0", all_rows()));

struct EveryKernel : ::testing::Environment {
  void TearDown() override {
    if (GTEST_FLAG_GET(filter) != "*" || std::getenv("GTEST_TOTAL_SHARDS")) return;
    for (const std::string& name : cuda::simt::never_launched())
      ADD_FAILURE() << "no test launched the kernel " << name;
  }
};
[[maybe_unused]] const ::testing::Environment* const every_kernel =
    ::testing::AddGlobalTestEnvironment(new EveryKernel);

/// Each test begins with the settings of the environment, also after one that changed them.
struct FreshSettings : ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override {
    cuda::simt::settings() = cuda::simt::settings_of_environment();
  }
};
[[maybe_unused]] const bool fresh_settings =
    (::testing::UnitTest::GetInstance()->listeners().Append(new FreshSettings), true);

void expect_fresh_settings() {
  const cuda::simt::Settings fresh = cuda::simt::settings_of_environment();
  cuda::simt::Settings& now = cuda::simt::settings();
  EXPECT_EQ(now.order, fresh.order);
  EXPECT_EQ(now.poison, fresh.poison);
  EXPECT_EQ(now.race_check, fresh.race_check);
  now.poison ^= 1;
}
TEST(SimtSettings, a_test_begins_with_those_of_the_environment) { expect_fresh_settings(); }
TEST(SimtSettings, the_test_after_it_does_too) { expect_fresh_settings(); }

}  // namespace
}  // namespace weft::op_table
