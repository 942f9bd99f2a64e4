// Calls that are repeated by a policy, over the simulated network.
#include <gtest/gtest.h>

#include <map>

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/rref.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;

std::map<int, int> g_runs;  // by worker

int idem_where() {
  const int self = current_agent()->self().id.value;
  ++g_runs[self];
  return self;
}
WEFT_RPC_IDEMPOTENT(idem_where);

std::string idem_join(const std::string& a, int64_t b) { return a + std::to_string(b); }
WEFT_RPC_IDEMPOTENT_AS("joined", idem_join);

int fails_with(int which) {
  ++g_runs[which];
  if (which == 0) throw ValueError("its own");
  if (which == 1) throw Overloaded("its own");
  throw PeerLost("worker7", "its own");
}
WEFT_RPC_IDEMPOTENT(fails_with);

int not_marked() { return 1; }
WEFT_RPC(not_marked);

void idem_sleep_ms(int ms) { current_runtime()->sleep_for(std::chrono::milliseconds(ms)); }
WEFT_RPC(idem_sleep_ms);

struct RetriedThing {
  int one() const { return 1; }
};
WEFT_RPC_CLASS(RetriedThing, one);

template <class E, class F> std::string error_of(F f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "no such error";
}

TEST(Retry, a_policy_on_a_function_that_is_not_marked_is_refused_by_name_at_once) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    EXPECT_EQ(
        error_of<ValueError>([] { rpc_async<not_marked>(with_retry("worker1")); }),
        "with_retry: 'not_marked' is not idempotent: only functions of WEFT_RPC_IDEMPOTENT may run again");
    EXPECT_EQ(error_of<ValueError>([] { remote<RetriedThing>(with_retry("worker1")); }),
              "remote of 'RetriedThing::RetriedThing': a creation cannot be repeated (with_retry)");
    EXPECT_NE(error_of<ValueError>([] { rpc_async<idem_where>(with_retry("worker1", {.attempts = 0})); }),
              "no such error");
    EXPECT_EQ(c.agent(0)->debug_info()["agent.client_calls"], 0);
    EXPECT_EQ(rpc_sync<not_marked>("worker1"), 1);
    EXPECT_EQ(rpc_sync<idem_where>("worker1"), 1);  // without a policy as any other
    EXPECT_EQ(rpc_sync<idem_join>(with_retry({"worker1", 1s}), "a", 5), "a5");
  });
}

TEST(Retry, an_overloaded_callee_is_asked_again_until_it_has_room) {
  g_runs.clear();
  Cluster c({.size = 2, .agent = {.max_served_per_peer = 1}});
  c.run(0, [&] {
    const auto busy = rpc_async<idem_sleep_ms>("worker1", 500);
    current_runtime()->sleep_for(1ms);
    EXPECT_THROW(rpc_sync<idem_where>("worker1"), Overloaded);
    EXPECT_EQ(rpc_sync<idem_where>(with_retry("worker1", {.attempts = 20, .factor = 1.5})), 1);
    EXPECT_EQ(g_runs[1], 1);
    busy.wait();
  });
  EXPECT_EQ(c.agent(0)->debug_info()["agent.client_active_calls"], 0);
}

TEST(Retry, the_last_error_is_thrown_when_no_attempt_is_left) {
  g_runs.clear();
  Cluster c({.size = 2, .agent = {.max_served_per_peer = 1}});
  c.run(0, [&] {
    const auto busy = rpc_async<idem_sleep_ms>("worker1", 5000);
    current_runtime()->sleep_for(1ms);
    EXPECT_THROW(rpc_sync<idem_where>(with_retry("worker1", {.attempts = 3})), Overloaded);
    EXPECT_EQ(c.agent(0)->debug_info()["agent.client_calls"], 4);
    EXPECT_EQ(g_runs[1], 0);
  });
}

TEST(Retry, an_error_that_the_function_throws_is_never_a_reason) {
  g_runs.clear();
  Cluster c({.size = 2});
  c.run(0, [&] {
    EXPECT_THROW(rpc_sync<fails_with>(with_retry("worker1"), 0), ValueError);
    EXPECT_THROW(rpc_sync<fails_with>(with_retry("worker1"), 1), Overloaded);
    EXPECT_THROW(rpc_sync<fails_with>(with_retry("worker1"), 2), PeerLost);
  });
  EXPECT_EQ(g_runs, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(Retry, one_deadline_bounds_all_attempts) {
  for (const Duration limit : {300ms, 1000ms}) {
    Cluster c({.size = 2, .agent = {.max_served_per_peer = 1}});
    c.run(0, [&] {
      const auto busy = rpc_async<idem_sleep_ms>("worker1", 20000);
      current_runtime()->sleep_for(1ms);
      const TimePoint before = current_runtime()->now();
      const To forever = with_retry({"worker1", limit}, {.attempts = 1000000, .factor = 1});
      EXPECT_THROW(rpc_sync<idem_where>(forever), Overloaded);
      EXPECT_LE(current_runtime()->now() - before, limit);
      EXPECT_GE(current_runtime()->now() - before, limit - 110ms);
    });
  }
}

TEST(Retry, a_successor_that_joins_during_the_pause_gets_the_call) {
  g_runs.clear();
  Cluster c({.size = 2});
  c.run(0, [&] {
    rpc_sync<idem_where>("worker1");
    c.kill(1);
    const auto f = rpc_async<idem_where>(with_retry({"worker1", 60s}, {.attempts = 50, .factor = 1.2}));
    current_runtime()->sleep_for(15s);
    EXPECT_TRUE(c.agent(0)->is_lost(WorkerId{1}));
    EXPECT_FALSE(f.done());
    const auto successor = Agent::create(c.agent(0)->runtime(), {.name = "worker1", .id = WorkerId{1}},
                                         [&](Receiver& r) { return c.net().attach(WorkerId{1}, r); });
    c.agent(0)->add_members({successor->as_member()});
    successor->add_members({c.agent(0)->as_member(), successor->as_member()});
    EXPECT_EQ(f.wait(), 1);
    EXPECT_EQ(g_runs[1], 2);
    successor->shutdown({.graceful = false});
  });
}

TEST(Retry, a_call_can_be_cancelled_in_its_pause_and_in_an_attempt) {
  g_runs.clear();
  Cluster c({.size = 2, .agent = {.max_served_per_peer = 1}});
  c.run(0, [&] {
    const auto busy = rpc_async<idem_sleep_ms>("worker1", 2000);
    current_runtime()->sleep_for(1ms);
    const auto f = rpc_async<idem_where>(with_retry("worker1", {.first_pause = 10s, .jitter = 0}));
    current_runtime()->sleep_for(100ms);
    EXPECT_EQ(c.agent(0)->debug_info()["agent.client_active_calls"], 2);  // the pause counts
    EXPECT_TRUE(f.cancel());
    EXPECT_FALSE(f.cancel());
    EXPECT_EQ(error_of<Cancelled>([&] { f.wait(); }), "'idem_where' on worker 'worker1' was cancelled");
    EXPECT_EQ(c.agent(0)->debug_info()["agent.client_active_calls"], 1);
    busy.wait();
    current_runtime()->sleep_for(2s);
    c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kCall), .count = 1});
    const auto g = rpc_async<idem_where>(with_retry("worker1"));
    EXPECT_TRUE(g.cancel());
    EXPECT_THROW(g.wait(), Cancelled);
    current_runtime()->sleep_for(20s);
    EXPECT_EQ(g_runs[1], 0);
  });
}

TEST(Retry, one_seed_gives_the_same_pauses_and_another_seed_others) {
  const auto time_of = [](uint64_t seed) {
    Cluster c({.size = 2, .agent = {.max_served_per_peer = 1}});
    Duration taken{};
    c.run(0, [&] {
      const auto busy = rpc_async<idem_sleep_ms>("worker1", 20000);
      current_runtime()->sleep_for(1ms);
      const TimePoint before = current_runtime()->now();
      EXPECT_THROW(rpc_sync<idem_where>(with_retry("worker1", {.attempts = 4, .seed = seed})), Overloaded);
      taken = current_runtime()->now() - before;
    });
    return taken;
  };
  const Duration first = time_of(3), other = time_of(4);
  EXPECT_LE(first, 705ms);  // 100 + 200 + 400
  EXPECT_GE(first, 350ms);
  EXPECT_EQ(first, time_of(3));
  EXPECT_NE(first, other);
}

}  // namespace
