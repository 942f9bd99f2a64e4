// The allocations and locks of calls, counted by the operator new and the pthread_mutex_lock of this program.
#include <gtest/gtest.h>

#include <algorithm>

#include <weft/distributed/rpc/rpc.h>

#include "support/cluster.h"
#include "support/counted_locks.h"
#include "support/scarce_memory.h"

namespace weft::test {

void call_cost_nothing() {}
WEFT_RPC(call_cost_nothing);

namespace {

/// Tests that count allocations.
class CallCost : public ScarceMemory {};

constexpr int kRuns = 40, kCalls = 100, kMostPerSide = 6;

/// How much `count` grows per call without arguments between two workers, both of this process. It is the
/// least of some runs: beside other programs, timers and threads that wait for their turn add to it.
double per_call(const std::atomic<int64_t>& count) {
  double least = 1e9;
  Cluster c({.over = Over::kGrpc, .size = 2});
  c.run(0, [&] {
    const auto call = [] {
      for (int i = 0; i < kCalls; ++i) rpc::rpc_sync<call_cost_nothing>("worker1");
    };
    call();  // connects and fills what is kept from call to call
    for (int i = 0; i < kRuns; ++i) {
      const int64_t before = count;
      call();
      least = std::min(least, static_cast<double>(count - before) / kCalls);
    }
  });
  return least;
}

TEST_F(CallCost, a_call_without_arguments_makes_few_allocations) {
  const double made = per_call(allocations_made);
  EXPECT_GT(made, 1) << "no allocation was counted";
  EXPECT_LE(made, 2 * kMostPerSide);
}

TEST(CallLocks, a_call_without_arguments_takes_few_locks) {
  if (!kLocksAreCounted) GTEST_SKIP() << "the sanitizer has a pthread_mutex_lock of its own";
  const double taken = per_call(locks_taken);
  EXPECT_GT(taken, 1) << "no lock was counted";
  EXPECT_LE(taken, 2 * kMostPerSide);
}

}  // namespace
}  // namespace weft::test
