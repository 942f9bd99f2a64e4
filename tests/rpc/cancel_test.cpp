// Cancellation over the simulated network: a served function learns that its caller has given up, and the
// calls that it made end with it.
#include <gtest/gtest.h>

#include <atomic>

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/rref.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;

std::atomic<int> g_begun{0}, g_ended{0}, g_cancelled{0};
TimePoint g_end{};  // simulation: time of the last end

void forget() { g_begun = 0, g_ended = 0, g_cancelled = 0; }

/// Works in steps of a millisecond until its answer is not needed any more, for a minute at most.
int work() {
  ++g_begun;
  for (int i = 0; i < 60000 && !call_context().cancelled(); ++i) current_runtime()->sleep_for(1ms);
  if (call_context().cancelled()) ++g_cancelled;
  g_end = current_runtime()->now();
  ++g_ended;
  return 1;
}
WEFT_RPC(work);

bool is_cancelled() { return call_context().cancelled(); }
WEFT_RPC(is_cancelled);

std::string g_error;  // of the nested call in work_through

/// Works on the next worker. Its own call has no time of its own.
int work_through() {
  try {
    return rpc_sync<work>(current_agent()->self().id.value + 1);
  } catch (const Cancelled& e) {
    g_error = e.what();
    if (call_context().cancelled()) ++g_cancelled;
    throw;
  }
}
WEFT_RPC(work_through);

int work_with_time_of_its_own() {
  const int result = rpc_sync<work>({current_agent()->self().id.value + 1, 5s});
  return result;
}
WEFT_RPC(work_with_time_of_its_own);

int work_then_call() {
  work();
  try {
    rpc_sync<is_cancelled>("worker2");
  } catch (const Cancelled& e) {
    g_error = e.what();
  }
  return 1;
}
WEFT_RPC(work_then_call);

void pause_ms(int ms) { current_runtime()->sleep_for(std::chrono::milliseconds(ms)); }
WEFT_RPC(pause_ms);

Future<int> work_later() {  // asynchronous: a continuation works in the scope of the call
  Future<int> start;
  const auto done = start.then([](int) { return work(); });
  start.set_result(1);
  return done;
}
WEFT_RPC(work_later);

struct Worker {
  int method() const { return work(); }
};
WEFT_RPC_CLASS(Worker, method);

TEST(Cancelled, is_false_outside_a_handler_and_while_the_caller_waits) {
  Cluster c({.size = 2});
  EXPECT_FALSE(call_context().cancelled());
  c.run(0, [] {
    EXPECT_FALSE(call_context().cancelled());
    EXPECT_FALSE(rpc_sync<is_cancelled>("worker1"));
    EXPECT_FALSE(rpc_sync<is_cancelled>({"worker1", 0s}));
  });
}

TEST(Cancelled, a_function_learns_that_the_deadline_of_its_call_has_passed) {
  forget();
  Cluster c({.size = 2});
  // The network is cut after the request: the deadline alone must tell.
  c.run(0, [&] {
    const TimePoint before = current_runtime()->now();
    const auto f = rpc_async<work>({"worker1", 500ms});
    current_runtime()->sleep_for(100ms);
    c.net().partition({WorkerId{0}}, {WorkerId{1}});
    EXPECT_THROW(f.wait(), Timeout);
    current_runtime()->sleep_for(100ms);
    EXPECT_EQ(g_cancelled, 1);
    EXPECT_LE(g_end - before, 510ms);
    c.net().heal();
  });
}

TEST(Cancelled, a_cancelled_future_fails_at_once_and_its_function_hears_it_at_once) {
  forget();
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto f = rpc_async<work>({"worker1", 0s});
    current_runtime()->sleep_for(100ms);
    EXPECT_EQ(g_begun, 1);
    EXPECT_TRUE(f.cancel());
    EXPECT_TRUE(f.done());
    EXPECT_FALSE(f.cancel());
    const TimePoint before = current_runtime()->now();
    try {
      f.wait();
      FAIL();
    } catch (const Cancelled& e) {
      EXPECT_STREQ(e.what(), "'work' on worker 'worker1' was cancelled");
    }
    current_runtime()->sleep_for(50ms);
    EXPECT_EQ(g_cancelled, 1);
    EXPECT_LE(g_end - before, 20ms);
    current_runtime()->sleep_for(5s);
    EXPECT_EQ(c.agent(0)->debug_info()["agent.client_active_calls"], 0);
    EXPECT_EQ(c.agent(1)->debug_info()["agent.server_active_calls"], 0);
    EXPECT_EQ(c.agent(1)->debug_info()["agent.kept_replies"], 0);
  });
}

TEST(Cancelled, a_lost_notice_of_a_cancelled_call_is_repeated) {
  forget();
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto f = rpc_async<work>({"worker1", 0s});
    current_runtime()->sleep_for(100ms);
    c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kStatus), .count = 2});
    EXPECT_TRUE(f.cancel());
    current_runtime()->sleep_for(2s);
    EXPECT_EQ(g_cancelled, 1);
  });
}

TEST(Cancelled, only_a_future_of_an_open_call_can_be_cancelled) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto done = rpc_async<is_cancelled>("worker1");
    done.wait();
    EXPECT_FALSE(done.cancel());
    EXPECT_FALSE(done.wait());
    const Future<int> own;
    EXPECT_FALSE(own.cancel());
    EXPECT_FALSE(own.done());
    const auto open = rpc_async<pause_ms>("worker1", 50);
    const auto after = open.then([] { return 7; });
    EXPECT_FALSE(after.cancel());
    EXPECT_EQ(after.wait(), 7);
    own.set_result(1);
  });
}

TEST(Cancelled, a_call_cancelled_before_its_request_arrives_never_runs) {
  forget();
  Cluster c({.size = 2});
  c.run(0, [&] {
    c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kCall), .count = 1});
    const auto f = rpc_async<work>({"worker1", 0s});
    EXPECT_TRUE(f.cancel());
    current_runtime()->sleep_for(5s);
    EXPECT_EQ(g_begun, 0);
    EXPECT_FALSE(rpc_sync<is_cancelled>("worker1"));
  });
}

TEST(Cancelled, a_function_learns_of_the_loss_of_its_caller) {
  forget();
  Cluster c({.size = 2});
  c.agent(1)->watch(WorkerId{0}, +1);
  c.run(0, [&] {
    rpc_async<work>({"worker1", 0s});
    current_runtime()->sleep_for(100ms);
  });
  c.kill(0);
  c.sim().run_for(12s);
  EXPECT_EQ(g_begun, 1);
  EXPECT_EQ(g_cancelled, 1);
  c.agent(1)->watch(WorkerId{0}, -1);
}

TEST(Cancelled, a_function_learns_that_its_own_worker_stops) {
  forget();
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto f = rpc_async<work>({"worker1", 0s});
    current_runtime()->sleep_for(100ms);
    const TimePoint before = current_runtime()->now();
    c.agent(1)->shutdown({.graceful = false});
    EXPECT_THROW(f.wait(), PeerLost);
    current_runtime()->sleep_for(1s);
    EXPECT_EQ(g_cancelled, 1);
    EXPECT_LE(g_end - before, 10ms);
  });
}

TEST(Cancelled, the_calls_of_a_function_end_with_it_whether_its_caller_cancels_or_is_lost) {
  for (const bool lost : {false, true}) {
    forget();
    g_error.clear();
    Cluster c({.size = 4});
    c.run(0, [&] {
      const auto f = rpc_async<work_through>({"worker1", 0s});
      current_runtime()->sleep_for(100ms);
      EXPECT_EQ(g_begun, 1);
      const TimePoint before = current_runtime()->now();
      if (lost) c.agent(1)->declare_lost(WorkerId{0}, "the test says so");
      else f.cancel();
      current_runtime()->sleep_for(100ms);
      EXPECT_EQ(g_cancelled, 2) << "worker 1 and worker 2";
      EXPECT_LE(g_end - before, 20ms);
      EXPECT_EQ(g_error,
                "'work' on worker 'worker2' was cancelled: worker 'worker0' has given up the call that needs "
                "it");
      for (const int rank : {1, 2})
        EXPECT_EQ(c.agent(rank)->debug_info()["agent.client_active_calls"], 0) << rank;
    });
  }
}

TEST(Cancelled, a_nested_call_with_a_time_of_its_own_goes_on) {
  forget();
  Cluster c({.size = 3});
  c.run(0, [&] {
    const auto f = rpc_async<work_with_time_of_its_own>({"worker1", 0s});
    current_runtime()->sleep_for(100ms);
    f.cancel();
    current_runtime()->sleep_for(3s);
    EXPECT_EQ(g_ended, 0);
    current_runtime()->sleep_for(3s);
    EXPECT_EQ(g_ended, 1);
  });
}

TEST(Cancelled, a_call_begun_after_the_caller_gave_up_fails_at_once_and_is_not_sent) {
  forget();
  g_error.clear();
  Cluster c({.size = 3});
  c.run(0, [&] {
    const auto f = rpc_async<work_then_call>({"worker1", 0s});
    current_runtime()->sleep_for(50ms);
    EXPECT_TRUE(f.cancel());
    current_runtime()->sleep_for(50ms);
    EXPECT_EQ(g_error,
              "'is_cancelled' on worker 'worker2' was cancelled: worker 'worker0' has given up the call that "
              "needs it");
    EXPECT_EQ(c.agent(2)->debug_info()["agent.served_calls"], 0);
  });
}

TEST(Cancelled, continuations_and_methods_learn_it_too) {
  forget();
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto object = remote<Worker>("worker1");
    const auto later = rpc_async<work_later>({"worker1", 0s});
    const auto method = object.within(0s).rpc_async<&Worker::method>();
    current_runtime()->sleep_for(100ms);
    EXPECT_EQ(g_begun, 2);
    EXPECT_TRUE(later.cancel());
    EXPECT_TRUE(method.cancel());
    current_runtime()->sleep_for(100ms);
    EXPECT_EQ(g_cancelled, 2);
    EXPECT_THROW(later.wait(), Cancelled);
    EXPECT_THROW(method.wait(), Cancelled);
  });
}

TEST(Cancelled, works_over_grpc) {
  forget();
  Cluster c({.over = test::Over::kGrpc, .size = 3});
  c.run(0, [&] {
    const auto f = rpc_async<work_through>({"worker1", 0s});
    EXPECT_TRUE(test::eventually(c, [] { return g_begun == 1; }));
    EXPECT_TRUE(f.cancel());
    EXPECT_THROW(f.wait(), Cancelled);
    EXPECT_TRUE(test::eventually(c, [] { return g_cancelled == 2 && g_ended == 1; }));
  });
  c.shutdown();
}

}  // namespace
