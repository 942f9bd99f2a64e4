// RPC between real processes: this program starts itself again; what a child does is told by a variable.
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>

#include <weft/distributed/rpc.h>
#include <weft/tensor/factories.h>

#include "support/process.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

int64_t pid_of_worker() { return getpid(); }
WEFT_RPC(pid_of_worker);
int64_t sum_down(int64_t n) {  // nested through all processes
  if (n == 0) return 0;
  return n + rpc_sync<sum_down>(
                 (get_worker_info().id.value + 1) % static_cast<int>(get_worker_infos().size()), n - 1);
}
WEFT_RPC(sum_down);
Tensor echo_large(const Tensor& t) { return t; }
WEFT_RPC(echo_large);
void stall() { current_runtime()->sleep_for(60s); }
WEFT_RPC(stall);

/// Exit status of a child; 0 is success.
int child(const std::string& job, int rank) {
  const InitOptions options{.lease = 2s};
  init_rpc(str("worker", rank), options);
  if (job == "talk") {
    for (int to = 0; to < 3; ++to)
      if ((rpc_sync<pid_of_worker>(to) == getpid()) != (to == rank)) return 2;
    if (rpc_sync<sum_down>((rank + 1) % 3, 40) != 820) return 3;
    const Tensor t = rand({700, 900});
    if (rpc_sync<echo_large>((rank + 1) % 3, t).to_vector<float>() != t.to_vector<float>()) return 4;
    const auto all = all_gather(rank);
    if (all.size() != 3 || all.at("worker2") != 2) return 5;
    rpc::shutdown();
    return 0;
  }
  if (job == "killed") {
    barrier();
    if (rank == 1) rpc_sync<stall>({1, 0s});
    if (rank == 2) {
      try {
        rpc_sync<stall>("worker1");
        return 2;
      } catch (const PeerLost& e) {
        if (e.peer != "worker1") return 3;
      }
    }
    if (rank == 0) {
      const auto waiting = rpc_async<stall>("worker1");
      kill(static_cast<pid_t>(rpc_sync<pid_of_worker>("worker1")), SIGKILL);
      const TimePoint before = current_runtime()->now();
      try {
        waiting.wait();
        return 2;
      } catch (const PeerLost& e) {
        if (e.peer != "worker1") return 3;
      }
      if (current_runtime()->now() - before > 6s) return 4;
    }
    if (rpc_sync<pid_of_worker>(2 - rank) == getpid()) return 5;  // 0 and 2 go on
    barrier({"worker0", "worker2"});
    rpc::shutdown({.graceful = false});
    return 0;
  }
  return 9;
}

constexpr const char* kChild = "RpcProcess.a_process_started_by_these_tests_does_its_job";
TEST(RpcProcess, a_process_started_by_these_tests_does_its_job) { do_job(child); }

TEST(RpcProcess, three_processes_call_each_other_and_shut_down) { expect_ended(start_job(kChild, "talk")); }
TEST(RpcProcess, a_process_killed_in_a_call_is_a_lost_peer_to_the_others_and_they_go_on) {
  expect_ended(start_job(kChild, "killed"), {1});
}

}  // namespace
