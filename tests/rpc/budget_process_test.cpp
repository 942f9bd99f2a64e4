// Budgets between real processes: two workers flood a third one, which is then killed amid the next flood.
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <csignal>

#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/process.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

std::atomic<int64_t> g_flood_most{0};

int64_t flood_take(const Tensor& x) {
  const int64_t served = debug_info().at("agent.served_bytes");
  for (int64_t most = g_flood_most; served > most && !g_flood_most.compare_exchange_weak(most, served);) {
  }
  current_runtime()->sleep_for(1ms);
  return x.numel();
}
WEFT_RPC(flood_take);
int64_t flood_most() { return g_flood_most; }
WEFT_RPC(flood_most);
int64_t flood_hold(const Tensor& x) {
  current_runtime()->sleep_for(10min);
  return x.numel();
}
WEFT_RPC(flood_hold);
int64_t flood_pid() { return getpid(); }
WEFT_RPC(flood_pid);

/// Exit status of a child; 0 is success.
int child(const std::string&, int rank) {
  init_rpc(str("worker", rank), {.budget = {.per_peer = 4'000'000, .in_all = 8'000'000}});
  if (rank == 1) {
    barrier();
    serve_until_done();
    return 1;
  }
  const auto pid = static_cast<pid_t>(rpc_sync<flood_pid>("worker1"));
  const Tensor megabyte = ones({250'000});
  barrier();
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < 40; ++i) calls.push_back(rpc_async<flood_take>("worker1", megabyte));
  for (auto& call : calls)
    if (call.wait() != 250'000) return 2;
  if (debug_info().at("agent.credit_waits") < 1) return 3;  // some calls may have ended meanwhile
  const int64_t most = rpc_sync<flood_most>("worker1");
  if (most < 1'000'000 || most > 8'000'000) return 4;

  calls.clear();
  for (int i = 0; i < 20; ++i) calls.push_back(rpc_async<flood_hold>({"worker1", 10min}, megabyte));
  if (debug_info().at("agent.waiting_calls") < 16) return 5;
  barrier({"worker0", "worker2"});  // passes the waiting calls
  if (rank == 0) kill(pid, SIGKILL);
  for (auto& call : calls) {
    try {
      call.wait();
      return 6;
    } catch (const PeerLost& e) {
      if (e.peer != "worker1") return 7;
    }
  }
  if (debug_info().at("agent.open_bytes") != 0 || debug_info().at("agent.waiting_calls") != 0) return 8;
  if (rpc_sync<flood_take>(2 - rank, megabyte) != 250'000) return 9;
  barrier({"worker0", "worker2"});
  shutdown({.graceful = false});
  return 0;
}

TEST(BudgetProcess, a_process_started_by_these_tests_does_its_job) { do_job(child); }

TEST(BudgetProcess, a_flooded_worker_keeps_to_its_limits_and_its_death_ends_the_waiting_calls) {
  expect_ended(start_job("BudgetProcess.a_process_started_by_these_tests_does_its_job", "flood"), {1});
}

}  // namespace
