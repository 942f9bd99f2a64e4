// A process that is killed within a transfer of a large tensor through shared memory, at each of its points.
// The other end hears of that soon, has its pending calls failed, keeps the tensors that it has, and talks to
// a third worker as before. Worker 0 is the survivor and kills worker 1; worker 2 tells it when.
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include <weft/distributed/launch/inner/process_watch.h>
#include <weft/distributed/launch/launch.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/held_memory.h"
#include "support/no_lane.h"
#include "support/process.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

constexpr int64_t kTransferred = 500'000;  // floats: large enough for shared memory
// No lease and no deadline of a call ends in that time. It is no measure, since a busy machine may be slow:
// the test prints the time that it took, and bench/NOTES_CALLS.md has some.
constexpr Duration kSoon = 10s;

std::atomic<bool> g_point_reached{false};
void transfer_reached() { g_point_reached = true; }
WEFT_RPC(transfer_reached);
bool transfer_is_reached() { return g_point_reached; }
WEFT_RPC(transfer_is_reached);
int64_t transfer_pid() { return getpid(); }
WEFT_RPC(transfer_pid);

Tensor transferred(float value) { return full({kTransferred}, value); }
bool is_transferred(const Tensor& t, float value) {
  return t.to_vector<float>() == std::vector<float>(kTransferred, value);
}

/// A tensor whose copy never ends. Once that has begun, worker 2 is told.
Tensor endless() {
  auto* const held = new HeldMemory(kTransferred * sizeof(float));  // until this process is killed
  std::thread([held, agent = current_agent()] {
    const AgentScope as(agent);
    if (held->wait_until_read()) rpc_sync<transfer_reached>("worker2");
  }).detach();
  return from_blob(held->data(), {kTransferred});
}

Tensor transfer_echo(const Tensor& t) { return t; }
WEFT_RPC(transfer_echo);
void transfer_stall() { current_runtime()->sleep_for(10min); }
WEFT_RPC(transfer_stall);
Tensor& transfer_kept() {
  static Tensor kept;
  return kept;
}
void transfer_keep(const Tensor& t) { transfer_kept() = t; }
WEFT_RPC(transfer_keep);
Tensor transfer_endless() { return endless(); }
WEFT_RPC(transfer_endless);
void transfer_stall_with(const Tensor& t) {
  transfer_kept() = t;
  rpc_sync<transfer_reached>("worker2");
  transfer_stall();
}
WEFT_RPC(transfer_stall_with);
void transfer_send_endless() { rpc_sync<transfer_keep>("worker0", endless()); }
WEFT_RPC(transfer_send_endless);

bool is_lost_call(const std::function<void()>& waits) {
  try {
    waits();
  } catch (const PeerLost& e) {
    return e.peer == "worker1";
  } catch (const Error&) {
  }
  return false;
}

/// Worker 0. Returns the exit status; 0 is success.
int survive(const std::string& job) {
  const auto pid = static_cast<pid_t>(rpc_sync<transfer_pid>("worker1"));
  const auto pending = rpc_async<transfer_stall>({"worker1", 0s});
  const Tensor own = transferred(2), answer = rpc_sync<transfer_echo>("worker1", own);
  if (!is_transferred(answer, 2)) return 2;
  std::optional<Future<Tensor>> gives;
  std::optional<Future<void>> runs;
  std::unique_ptr<HeldMemory> held;
  std::jthread sender;
  std::atomic<bool> refused{false};
  if (job == "copies its answer") gives = rpc_async<transfer_endless>({"worker1", 0s});
  if (job == "copies its argument") runs = rpc_async<transfer_send_endless>({"worker1", 0s});
  if (job == "runs with an argument") runs = rpc_async<transfer_stall_with>({"worker1", 0s}, own);
  if (job == "is being sent to") {
    held = std::make_unique<HeldMemory>(kTransferred * sizeof(float));
    sender = std::jthread([&, agent = current_agent()] {
      const AgentScope as(agent);
      const Tensor endless_one = from_blob(held->data(), {kTransferred});
      refused = is_lost_call([&] { rpc_sync<transfer_keep>({"worker1", 0s}, endless_one); });
    });
    if (!held->wait_until_read()) return 3;
  } else if (job == "holds a tensor") {
    rpc_sync<transfer_keep>("worker1", own);
  } else {
    while (!rpc_sync<transfer_is_reached>("worker2")) current_runtime()->sleep_for(1ms);
  }
  const TimePoint killed = current_runtime()->now();
  kill(pid, SIGKILL);
  if (!is_lost_call([&] { pending.wait_for(kSoon); })) return 4;
  const std::chrono::duration<double, std::milli> after = current_runtime()->now() - killed;
  std::printf("a process that %s was killed: heard of after %.1f ms\n", job.c_str(), after.count());
  if (gives && !is_lost_call([&] { gives->wait(); })) return 5;
  if (runs && !is_lost_call([&] { runs->wait(); })) return 6;
  if (held) {
    held->let_go();
    sender.join();
    if (!refused) return 7;
  }
  if (transfer_kept().defined()) return 8;  // half of a tensor is no call
  for (int i = 0; i < 6000 && current_agent()->debug_info().at("agent.shared_bytes") != 0; ++i)
    current_runtime()->sleep_for(10ms);
  if (current_agent()->debug_info().at("agent.shared_bytes") != 0) return 9;
  if (!is_transferred(answer, 2) || !is_transferred(own, 2)) return 10;
  if (!is_transferred(rpc_sync<transfer_echo>("worker2", transferred(3)), 3)) return 11;
  return 0;
}

int transfer_child(const std::string& job, int rank) {
  init_rpc(str("worker", rank), {.lease = 10min});
  barrier();
  const int status = rank == 0 ? survive(job) : 0;
  if (rank == 1) current_runtime()->sleep_for(10min);
  barrier({"worker0", "worker2"});
  rpc::shutdown({.graceful = false});
  return status;
}

constexpr const char* kTransferChild = "KilledTransfer.a_process_started_by_these_tests_does_its_job";
TEST(KilledTransfer, a_process_started_by_these_tests_does_its_job) { do_job(transfer_child); }

void expect_survived(const std::string& job) {
  if (!has_same_host_lane()) GTEST_SKIP() << kNoLane;
  if (inner::ProcessWatch watch; !watch.watch(inner::process_identity(), {}))
    GTEST_SKIP() << "there is no pidfd or no /proc here";
  expect_ended(start_job(kTransferChild, job), {1});
}
TEST(KilledTransfer, is_heard_of_while_the_killed_process_copies_its_answer) {
  expect_survived("copies its answer");
}
TEST(KilledTransfer, is_heard_of_while_the_killed_process_copies_its_argument) {
  expect_survived("copies its argument");
}
TEST(KilledTransfer, is_heard_of_while_the_killed_process_runs_with_a_shared_argument) {
  expect_survived("runs with an argument");
}
TEST(KilledTransfer, is_heard_of_while_the_killed_process_holds_a_tensor) {
  expect_survived("holds a tensor");
}
TEST(KilledTransfer, is_heard_of_while_the_survivor_copies_a_tensor_for_it) {
  expect_survived("is being sent to");
}

}  // namespace
