// Groups on devices that are behind: barriers, aborts and processes that leave meanwhile. The emulated work
// of such a device waits until its Deferred ends. This program starts itself again, and a variable tells a
// child its task.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <map>
#include <optional>
#include <thread>

#include <weft/distributed/transport/address.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/tensor/cuda.h>

#include "devices.h"
#include "support/simt/streams.h"

namespace {

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;
using cuda::simt::Deferred;

std::atomic<bool> caught_up = false;
bool has_caught_up() { return caught_up; }
WEFT_RPC(has_caught_up);

/// Work of the calling thread on its current stream.
void queue(std::function<void()> work) {
  cuda::simt::issue(0, cuda::current_stream(kGpu).handle(), std::move(work));
}

// ---- jobs of the children

void wait_for_own_work(int rank) {
  const Group group = join_with_device(rank);
  std::atomic<bool> done = false;
  {
    const Deferred slow;
    queue([&] { done = true; });
    std::atomic<bool> ended = false;
    std::thread device([&] {
      for (std::this_thread::sleep_for(300ms); !ended; std::this_thread::sleep_for(10ms))
        cuda::simt::run_all();
    });
    group->barrier();
    EXPECT_TRUE(done);
    ended = true;
    device.join();
  }
  cuda::Graph graph(kGpu);
  EXPECT_TRUE(has(error_of<CudaError>([&] { graph.capture([&] { group->barrier(); }); }),
                  "barrier: the calling thread records a graph"));
  group->barrier();
  rpc::shutdown();
}

/// Worker 1 has done its part of a broadcast and leaves. Worker 0 comes to the call later than an ended
/// process is waited for.
void leave(int rank) {
  EXPECT_FALSE(cuda::WaitingKernels::any());
  Group group = join_with_device(rank, {.timeout = 40s});
  EXPECT_TRUE(cuda::WaitingKernels::any());
  const Tensor x = on_device({1000}, rank);
  std::optional<Deferred> slow;
  if (rank == 0) {
    slow.emplace();
    queue([] {});
  }
  group->broadcast(x, 1);
  if (rank == 0) {
    std::this_thread::sleep_for(2500ms);
    slow.reset();
    caught_up = true;
    EXPECT_TRUE(holds(x, ones({1000})));
  }
  group.reset();
  EXPECT_FALSE(cuda::WaitingKernels::any());
  EXPECT_EQ(nccl_counts().aborted.load(), 0);
  if (rank == 1) {
    EXPECT_TRUE(rpc::rpc_sync<has_caught_up>("worker0"));
  }
  rpc::shutdown();
}

/// As above, and worker 1 does not say that it leaves.
void die(int rank) {
  const Group group = join_with_device(rank, {.timeout = 40s});
  const Tensor x = on_device({1000}, rank);
  std::optional<Deferred> slow;
  if (rank == 0) {
    slow.emplace();
    queue([] {});
  }
  group->broadcast(x, 1);
  group->all_reduce(ones({3}));  // behind the comparison
  if (rank == 1) {
    cuda::synchronize(kGpu);
    std::this_thread::sleep_for(200ms);
    std::raise(SIGKILL);
  }
  std::this_thread::sleep_for(2500ms);
  slow.reset();
  EXPECT_TRUE(holds(x, ones({1000})));
  EXPECT_TRUE(has(error_of<PeerLost>([&] { group->barrier(); }), "worker1"));
  rpc::shutdown({.graceful = false});
}

/// Worker 0 keeps its group, and makes a call when worker 1 leaves or has left.
void stay(int rank) {
  for (const bool calls : {true, false}) {
    if (calls) rpc::init_rpc(str("worker", rank));
    open_devices();
    Group group = dist::new_group({}, {.timeout = calls ? 40s : 1s, .device = kGpu});
    group->all_reduce(on_device({3}, 1));
    group->barrier();
    if (rank == 1) group.reset();
    if (rank == 0 && calls) {
      EXPECT_TRUE(has(error_of<PeerLost>([&] { group->barrier(); }),
                      "barrier in group 'default', worker0: worker1 has left the group"));
      EXPECT_TRUE(has(error_of<PeerLost>([&] { group->all_reduce(on_device({3}, 1)); }), "has left"));
    }
    rpc::barrier();
    if (rank == 0 && !calls) {
      EXPECT_TRUE(has(error_of<PeerLost>([&] { group->barrier(); }), "worker1"));
    }
  }
  rpc::shutdown();
}

/// An abort takes the work that is queued with it, in all processes, and not the work that is done.
void abort_behind_work(int rank) {
  const Group group = join_with_device(rank, {.timeout = 40s});
  const Tensor x = on_device({1000}, rank), y = on_device({1000}, rank);
  group->all_reduce(x);
  cuda::synchronize(kGpu);
  {
    const Deferred slow;
    group->all_reduce(y);
    if (rank == 1) {
      group->abort("no data");
      EXPECT_TRUE(has(error_of<RpcError>([&] { group->barrier(); }), "group 'default' has failed: no data"));
    } else {
      EXPECT_TRUE(has(error_of<PeerLost>([&] { group->barrier(); }), "worker1"));
    }
    while (nccl_counts().aborted.load() == 0) std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(holds(x, ones({1000})));
  EXPECT_TRUE(holds(y, full({1000}, rank)));
  rpc::shutdown();
}

/// NCCL stays at the loopback interface with the first group, unless the user has chosen.
void stay_local(int rank) {
  unsetenv("NCCL_SOCKET_IFNAME");
  const Group group = join_with_device(rank);
  const char* const chosen = std::getenv("NCCL_SOCKET_IFNAME");
  ASSERT_NE(chosen, nullptr);
  EXPECT_STREQ(chosen, "=lo");
  if (const std::string host = rpc::first_interface_address(); !rpc::is_loopback_host(host)) {
    EXPECT_TRUE(has(
        error_of<DeviceError>([&] { dist::new_group({}, {.host = host, .insecure = true, .device = kGpu}); }),
        str("cannot reach the host '", host, "'; set NCCL_SOCKET_IFNAME")));
  }
  group->barrier();
  rpc::shutdown();
}

void take_the_interface_of_the_user(int rank) {
  setenv("NCCL_SOCKET_IFNAME", "eth", 1);
  const Group group = join_with_device(rank);
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "eth");
  group->barrier();
  rpc::shutdown();
}

int end_child(const std::string& job, int rank) {
  const std::map<std::string, void (*)(int)> jobs{{"own work", wait_for_own_work},
                                                  {"leave", leave},
                                                  {"die", die},
                                                  {"stay", stay},
                                                  {"abort", abort_behind_work},
                                                  {"local", stay_local},
                                                  {"interface", take_the_interface_of_the_user}};
  jobs.at(job)(rank);
  return testing::Test::HasFailure() ? 1 : 0;
}

rpc::Children start_ending(const std::string& job) {
  return start_job("SimtCollectiveEnds.a_process_started_by_these_tests_does_its_job", job, 2);
}

// ---- tests

TEST(SimtCollectiveEnds, a_process_started_by_these_tests_does_its_job) { do_job(end_child); }

TEST(SimtCollectiveEnds, a_barrier_waits_for_the_work_of_the_callers_stream) {
  NEEDS_GLOO;
  expect_ended(start_ending("own work"));
}
TEST(SimtCollectiveEnds, a_process_stays_while_the_device_of_another_is_behind) {
  NEEDS_GLOO;
  expect_ended(start_ending("leave"));
}
TEST(SimtCollectiveEnds, a_device_that_is_behind_has_time_for_the_part_of_a_dead_process) {
  NEEDS_GLOO;
  expect_ended(start_ending("die"), {1});
}
TEST(SimtCollectiveEnds, a_process_that_has_left_is_named_and_waits_for_no_end_for_ever) {
  NEEDS_GLOO;
  expect_ended(start_ending("stay"));
}
TEST(SimtCollectiveEnds, an_abort_takes_the_work_that_the_devices_have_not_done) {
  NEEDS_GLOO;
  expect_ended(start_ending("abort"));
}
TEST(SimtCollectiveEnds, nccl_stays_on_the_loopback_interface_with_the_first_group) {
  NEEDS_GLOO;
  expect_ended(start_ending("local"));
}
TEST(SimtCollectiveEnds, a_variable_of_the_user_chooses_the_interface_of_nccl) {
  NEEDS_GLOO;
  expect_ended(start_ending("interface"));
}

}  // namespace
