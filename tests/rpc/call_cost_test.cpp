// The allocations of calls, counted by the operator new of this program.
#include <gtest/gtest.h>

#include <weft/distributed/rpc/rpc.h>

#include "support/cluster.h"
#include "support/scarce_memory.h"

namespace weft::test {

void call_cost_nothing() {}
WEFT_RPC(call_cost_nothing);

namespace {

/// Tests that count allocations.
class CallCost : public ScarceMemory {};

TEST_F(CallCost, a_call_without_arguments_makes_few_allocations_at_both_sides_together) {
  constexpr int kCalls = 1000, kMost = 20;
  Cluster c({.over = Over::kGrpc, .size = 2});
  c.run(0, [] {
    const auto call = [] {
      for (int i = 0; i < kCalls; ++i) rpc::rpc_sync<call_cost_nothing>("worker1");
    };
    call();  // connects and fills what is kept from call to call
    const int64_t before = allocations_made;
    call();
    const int64_t made = allocations_made - before;
    EXPECT_GT(made, 0) << "no allocation was counted";
    EXPECT_LE(made, kMost * kCalls);
  });
}

}  // namespace
}  // namespace weft::test
