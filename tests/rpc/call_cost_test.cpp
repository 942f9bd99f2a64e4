// The allocations and locks of calls between two processes, counted by the operator new and the
// pthread_mutex_lock of each. Six of both per side are held over the same-host lane, and six locks over TCP.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include <weft/distributed/launch/launch.h>
#include <weft/distributed/rpc/rpc.h>

#include "support/counted_locks.h"
#include "support/no_lane.h"
#include "support/process.h"
#include "support/scarce_memory.h"

namespace weft::test {

void call_cost_nothing() {}
WEFT_RPC(call_cost_nothing);
int64_t call_cost_allocations() { return allocations_made; }
WEFT_RPC(call_cost_allocations);
int64_t call_cost_own_allocations() { return own_allocations_made; }
WEFT_RPC(call_cost_own_allocations);
int64_t call_cost_locks() { return locks_taken; }
WEFT_RPC(call_cost_locks);
int64_t call_cost_own_locks() { return own_locks_taken; }
WEFT_RPC(call_cost_own_locks);

namespace {

/// Tests that count allocations.
class CallCost : public ScarceMemory {};

constexpr int kRuns = 40, kCalls = 100;
constexpr double kLeastPerSide = 1;  // below it nothing was counted
constexpr double kMostPerSide = 6;
// Over TCP those of the program alone count: gRPC has more of both, by its version.
constexpr double kMostOwnAllocations = 7;

/// Worker 0. Counts what a call without arguments costs each process: the least of some runs, since timers
/// and threads that wait for their turn add to it. Returns the exit status; 0 is success.
template <auto kCount> int count_calls(const std::atomic<int64_t>& count, double most) {
  double ours = 1e9, theirs = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    const int64_t theirs_before = rpc::rpc_sync<kCount>("worker1"), ours_before = count;
    for (int i = 0; i < kCalls; ++i) rpc::rpc_sync<call_cost_nothing>("worker1");
    const int64_t ours_after = count, theirs_after = rpc::rpc_sync<kCount>("worker1");
    ours = std::min(ours, static_cast<double>(ours_after - ours_before) / kCalls);
    theirs = std::min(theirs, static_cast<double>(theirs_after - theirs_before) / (kCalls + 1));
  }
  std::printf("per call: %.2f of the caller, %.2f of the callee\n", ours, theirs);
  const auto few = [most](double n) { return n >= kLeastPerSide && n <= most; };
  return few(ours) ? few(theirs) ? 0 : 3 : 2;
}

int count(const std::string& what) {
  if (what == "allocations") return count_calls<call_cost_allocations>(allocations_made, kMostPerSide);
  if (what == "locks") return count_calls<call_cost_locks>(locks_taken, kMostPerSide);
  if (what == "own allocations")
    return count_calls<call_cost_own_allocations>(own_allocations_made, kMostOwnAllocations);
  if (what == "own locks") return count_calls<call_cost_own_locks>(own_locks_taken, kMostPerSide);
  return 4;
}

int cost_child(const std::string& job, int rank) {
  const bool lane = !job.starts_with("own ");
  rpc::init_rpc(str("worker", rank), {.unix_socket = lane, .same_host_lane = lane});
  rpc::barrier();
  const int status = rank == 0 ? count(job) : 0;
  rpc::shutdown();
  return status;
}

constexpr const char* kCostChild = "CallCostProcess.a_process_started_by_these_tests_does_its_job";
TEST(CallCostProcess, a_process_started_by_these_tests_does_its_job) { do_job(cost_child); }

TEST_F(CallCost, a_call_without_arguments_makes_few_allocations) {
  if (!rpc::has_same_host_lane()) GTEST_SKIP() << kNoLane;
  expect_ended(start_job(kCostChild, "allocations", 2));
}

TEST_F(CallCost, a_call_over_tcp_makes_few_allocations_beside_those_of_grpc) {
  expect_ended(start_job(kCostChild, "own allocations", 2));
}

TEST(CallLocks, a_call_without_arguments_takes_few_locks) {
  if (!kLocksAreCounted) GTEST_SKIP() << "the sanitizer has a pthread_mutex_lock of its own";
  if (!rpc::has_same_host_lane()) GTEST_SKIP() << kNoLane;
  expect_ended(start_job(kCostChild, "locks", 2));
}

TEST(CallLocks, a_call_over_tcp_takes_few_locks_beside_those_of_grpc) {
  if (!kLocksAreCounted) GTEST_SKIP() << "the sanitizer has a pthread_mutex_lock of its own";
  expect_ended(start_job(kCostChild, "own locks", 2));
}

}  // namespace
}  // namespace weft::test
