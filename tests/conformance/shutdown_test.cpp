// The claims of docs/conformance.md on shutdown, in static groups.
#include <gtest/gtest.h>

#include <atomic>

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/rref.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/held_memory.h"
#include "support/no_lane.h"

namespace weft::test {

std::atomic<int> row_finished{0};

Gate shutdown_gate;
constexpr int64_t kUntilOpen = -1;

/// Works for so long, or until the gate opens, then asks the next worker to work, `hops` times.
void row_work(int64_t ms, int64_t hops) {
  const auto agent = rpc::current_agent();
  if (ms == kUntilOpen) shutdown_gate.pass();
  else agent->runtime()->sleep_for(std::chrono::milliseconds(ms));
  ++row_finished;
  if (hops > 0)
    rpc::rpc_async<row_work>((agent->self().id.value + 1) % static_cast<int>(agent->worker_infos().size()),
                             ms, hops - 1);
}
WEFT_RPC(row_work);

HeldMemory* row_held = nullptr;

Tensor row_held_answer() {
  return from_blob(row_held->data(), {static_cast<int64_t>(row_held->size())}, kUInt8);
}
WEFT_RPC(row_held_answer);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using namespace weft::test;

class ShutdownRows : public testing::TestWithParam<Over> {
 protected:
  void SetUp() override { row_finished = 0; }
  Cluster c{{.over = GetParam(), .size = 4}};
};
INSTANTIATE_TEST_SUITE_P(Over, ShutdownRows, testing::Values(Over::kSim, Over::kGrpc),
                         [](const auto& info) { return weft::test::to_string(info.param); });

// test_wait_all_workers_dense, test_wait_all_workers_twice_dense
TEST_P(ShutdownRows, idle_workers_wait_for_busy_ones_and_a_second_shutdown_does_nothing) {
  c.run_all([&](int rank) {
    if (rank == 0)
      for (int i = 0; i < 5; ++i) rpc_sync<row_work>(1 + i % 3, 20, 0);
    c.agent(rank)->shutdown({.timeout = 60s});
    EXPECT_EQ(row_finished, 5);
  });
  c.shutdown();
  for (int rank = 0; rank < 4; ++rank) EXPECT_FALSE(c.agent(rank)->is_running());
}

// test_graceful_shutdown_with_uneven_workload
TEST_P(ShutdownRows, calls_that_calls_begin_are_finished_first) {
  c.run_all([&](int rank) {
    if (rank == 0) rpc_async<row_work>(1, 10, 12);
    if (rank == 1)
      for (int i = 0; i < 3; ++i) rpc_async<row_work>(2, 15, 0);
    c.agent(rank)->shutdown({.timeout = 60s});
    EXPECT_EQ(row_finished, 16);
  });
}

// test_wait_all_workers_timeout
TEST_P(ShutdownRows, a_graceful_shutdown_ends_at_its_time_and_says_for_whom_it_waited) {
  std::string text;
  c.run(0, [&] {
    try {
      c.agent(0)->shutdown({.timeout = c.simulated() ? 100ms : 1000ms});
    } catch (const Timeout& e) {
      text = e.what();
    }
  });
  EXPECT_NE(text.find("worker1"), std::string::npos) << text;
  EXPECT_FALSE(c.agent(0)->is_running());
}

TEST_P(ShutdownRows, a_graceful_shutdown_that_waits_for_a_call_names_it) {
  std::atomic<int> named{0};
  shutdown_gate.close();
  c.run_all([&](int rank) {
    if (rank == 2) rpc_async<row_work>(3, kUntilOpen, 0);
    try {
      c.agent(rank)->shutdown({.timeout = rank == 2 ? 150ms : 400ms});
      // the others finish if these leave first
      if (rank >= 2) ADD_FAILURE() << "no error on worker " << rank;
    } catch (const RpcError& e) {
      if (rank == 2 && std::string(e.what()).find("row_work") != std::string::npos) ++named;
    }
    EXPECT_FALSE(c.agent(rank)->is_running());
  });
  shutdown_gate.open = true;
  EXPECT_EQ(named, 1);
}

// test_local_shutdown, test_local_shutdown_with_rpc
TEST_P(ShutdownRows, an_immediate_shutdown_leaves_at_once_with_and_without_traffic) {
  c.run(0, [&] {
    rpc_sync<row_work>(1, 1, 0);
    shutdown_gate.close();
    const auto open = rpc_async<row_work>(1, kUntilOpen, 0);
    const RRef<Tensor> kept = remote<builtin::ones>(2, Shape{3});
    kept.created().wait();
    c.agent(0)->shutdown({.graceful = false});
    EXPECT_THROW(open.wait(), RpcError);
  });
  c.agent(3)->shutdown({.graceful = false});
  c.run(2, [&] {  // the others see it go
    for (int i = 0; i < 12000 && c.agent(2)->debug_info().at("num_forks") != 0; ++i)
      c.runtime(2).sleep_for(5ms);
    EXPECT_EQ(c.agent(2)->debug_info().at("num_forks"), 0);
    EXPECT_THROW(rpc_sync<row_work>(0, 1, 0), RpcError);
  });
  shutdown_gate.open = true;
}

/// Shuts worker 0 down from two threads at once. Returns the error of each.
std::vector<std::string> shut_down_twice(Cluster& c) {
  std::vector<std::string> told(2);
  const auto shut_down = [&](std::string& text) {
    try {
      c.agent(0)->shutdown({.timeout = 60s});
    } catch (const Error& e) {
      text = e.what();
    }
    EXPECT_FALSE(c.agent(0)->is_running());
  };
  Event other(c.runtime(0), "the other shutdown");
  c.runtime(0).post([&] {
    shut_down(told[0]);
    other.set();
  });
  shut_down(told[1]);
  other.wait();
  return told;
}

TEST_P(ShutdownRows, a_graceful_shutdown_beside_another_of_the_same_worker_waits_for_it) {
  c.run_all([&](int rank) {
    if (rank != 0) return c.agent(rank)->shutdown({.timeout = 60s});
    rpc_async<row_work>(1, 10, 8);
    EXPECT_EQ(shut_down_twice(c), std::vector<std::string>(2));
    EXPECT_EQ(row_finished, 9);
  });
}

TEST_P(ShutdownRows, a_graceful_shutdown_beside_another_hears_of_its_failure_and_a_later_one_does_not) {
  c.agent(0)->add_shutdown_step("one that fails", [&](TimePoint) {
    if (c.simulated()) c.runtime(0).sleep_for(400ms);
    // the other one is in it too
    else
      for (int i = 0; i < 60000 && c.runtime(0).pool_stats().blocked == 0; ++i) c.runtime(0).sleep_for(1ms);
    throw ValueError("this step fails");
  });
  c.run_all([&](int rank) {
    if (rank == 0) {
      EXPECT_EQ(shut_down_twice(c), std::vector<std::string>(2, "this step fails"));
      c.agent(0)->shutdown();
      return;
    }
    try {
      c.agent(rank)->shutdown({.timeout = 60s});
    } catch (const RpcError&) {  // worker 0 leaves before they have settled
    }
  });
}

TEST_P(ShutdownRows, a_graceful_shutdown_beside_another_keeps_to_its_own_deadline) {
  Event other(c.runtime(0), "the other shutdown");
  c.runtime(0).post([&] {
    // the others do not come, and the second ends it
    EXPECT_THROW(c.agent(0)->shutdown({.timeout = 60s}), RpcError);
    other.set();
  });
  // it waits for the others
  for (int i = 0; i < 12000 && c.agent(0)->calls().empty(); ++i) c.runtime(0).sleep_for(5ms);
  std::string text;
  try {
    c.agent(0)->shutdown({.timeout = 50ms});
  } catch (const Timeout& e) {
    text = e.what();
  }
  EXPECT_NE(text.find("another shutdown of worker 'worker0'"), std::string::npos) << text;
  EXPECT_FALSE(c.agent(0)->is_running());
  other.wait();
}

TEST_P(ShutdownRows, an_immediate_shutdown_does_not_wait_for_a_function_that_runs) {
  shutdown_gate.close();
  const struct Opens {
    ~Opens() { shutdown_gate.open = true; }
  } at_the_end;
  c.run(0, [&] {
    const auto call = rpc_async<row_work>({"worker1", 0s}, kUntilOpen, 0);
    ASSERT_TRUE(eventually(c, [] { return shutdown_gate.reached == 1; }));
    c.agent(1)->shutdown({.graceful = false});
    EXPECT_EQ(row_finished, 0);
    EXPECT_THROW(call.wait(), PeerLost);
  });
}

TEST(Shutdown, a_worker_that_leaves_at_once_has_sent_its_large_answers) {
  // 120 MiB of messages may take more than a lease of 10 s where others use the processors
  Cluster c({.over = Over::kGrpc, .size = 4, .agent = {.rpc_timeout = 4min, .lease = 4min}});
  c.run_all([&](int rank) {
    const auto all = all_gather(full({1 << 21}, rank));  // worker 0 answers all others with 32 MiB
    for (const auto& [name, t] : all) EXPECT_EQ(str("worker", t.mean().item<double>()), name);
    EXPECT_EQ(all.size(), 4u);
    c.agent(rank)->shutdown({.graceful = false});
  });
}

TEST(Shutdown, the_goodbye_goes_after_an_answer_that_is_being_copied) {
  if (!has_same_host_lane()) GTEST_SKIP() << kNoLane;
  HeldMemory held(1 << 20);
  row_held = &held;
  Cluster c({.over = Over::kGrpc, .size = 2, .agent = {.lease = 2min}});
  c.run(1, [&] {
    rpc_sync<row_work>("worker0", 0, 0);  // they are connected: an answer of this size goes by shared memory
    const auto answer = rpc_async<row_held_answer>("worker0");
    EXPECT_TRUE(held.wait_until_read());
    std::jthread leaver([&] { c.agent(0)->shutdown({.graceful = false}); });
    EXPECT_TRUE(eventually(c, [&] { return !c.agent(0)->is_running(); }));
    c.runtime(1).sleep_for(100ms);  // a goodbye that waits for nothing has come by then
    held.let_go();
    EXPECT_EQ(answer.wait().to(kInt64).sum().item<int64_t>(), 1 << 20);
  });
}

// test_shutdown_followed_by_rpc
TEST_P(ShutdownRows, nothing_works_after_shutdown) {
  c.shutdown();
  c.run(0, [&] {
    for (const auto& call : std::vector<std::function<void()>>{[] { rpc_sync<row_work>(1, 1, 0); },
                                                               [] { rpc_async<row_work>(1, 1, 0); },
                                                               [] { remote<row_work>(1, 1, 0); }}) {
      try {
        call();
        ADD_FAILURE() << "no error";
      } catch (const RpcError& e) {
        EXPECT_NE(std::string(e.what()).find("RPC has not been initialized"), std::string::npos) << e.what();
      }
    }
  });
}

// test_shutdown_errors
TEST_P(ShutdownRows, an_error_in_one_phase_still_takes_every_worker_down) {
  c.agent(1)->add_shutdown_step("one that fails", [](TimePoint) { throw ValueError("this step fails"); });
  c.run_all([&](int rank) {
    try {
      c.agent(rank)->shutdown({.timeout = 60s});
      EXPECT_NE(rank, 1);
    } catch (const ValueError& e) {
      EXPECT_EQ(rank, 1) << e.what();
    } catch (const RpcError&) {
      EXPECT_NE(rank, 1);
    }
    EXPECT_FALSE(c.agent(rank)->is_running());
  });
}

}  // namespace
