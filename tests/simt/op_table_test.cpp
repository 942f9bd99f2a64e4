// The op table on the emulated device: SimtOpTable.<check>/<row>. WEFT_SIMT_ORDER chooses the order
// in which threads run, WEFT_SIMT_POISON the filling of fresh memory, WEFT_SIMT_PROCESSORS the grids.
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

}  // namespace
}  // namespace weft::op_table
