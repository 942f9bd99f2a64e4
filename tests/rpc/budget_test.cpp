// Budgets of bytes: requests from outside a handler wait for credit at their caller, and nothing else does.
#include <gtest/gtest.h>

#include <atomic>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rpc/trace.h>
#include <weft/distributed/rref/rref.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/errors.h"

namespace weft::test {

Gate g_budget_gate;
rpc::Mutex g_budget_mutex;
std::vector<int64_t> g_budget_order WEFT_GUARDED_BY(g_budget_mutex);
std::vector<int64_t> budget_order() {
  rpc::MutexLock lock(g_budget_mutex);
  return g_budget_order;
}
std::atomic<int64_t> g_budget_runs{0}, g_budget_most{0};

int64_t budget_counter(const rpc::Agent& agent, const char* name) {
  return agent.debug_info().at(std::string("agent.") + name);
}

int64_t budget_work(int64_t number, const Tensor& x) {
  ++g_budget_runs;
  const int64_t served = budget_counter(*rpc::current_agent(), "served_bytes");
  for (int64_t most = g_budget_most; served > most && !g_budget_most.compare_exchange_weak(most, served);) {
  }
  {
    rpc::MutexLock lock(g_budget_mutex);
    g_budget_order.push_back(number);
  }
  rpc::current_runtime()->sleep_for(std::chrono::milliseconds(1));
  g_budget_gate.pass();
  return x.numel();
}
WEFT_RPC(budget_work);

Tensor budget_make(int64_t n) { return ones({n}); }
WEFT_RPC(budget_make);

/// Passes the tensor on to the next worker of a ring, `hops` times.
int64_t budget_ring(const Tensor& x, int64_t hops) {
  const auto agent = rpc::current_agent();
  const auto size = static_cast<int>(agent->worker_infos().size());
  const int64_t after =
      hops > 0 ? rpc::rpc_sync<budget_ring>((agent->self().id.value + 1) % size, x, hops - 1) : 0;
  return x.numel() + after;
}
WEFT_RPC(budget_ring);

int64_t budget_text(const std::string& text) { return static_cast<int64_t>(text.size()); }
WEFT_RPC(budget_text);

Tensor budget_square(const Tensor& x) { return x * x; }
WEFT_RPC(budget_square);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

constexpr BudgetLimits kSmall{.per_peer = 100'000, .in_all = 1'000'000};
Tensor kilobytes(int64_t n) { return ones({n * 250}); }

void begin() {
  g_budget_gate.open = true, g_budget_gate.reached = 0;
  {
    rpc::MutexLock lock(g_budget_mutex);
    g_budget_order.clear();
  }
  g_budget_runs = 0, g_budget_most = 0;
}

/// All room has been given back, except that of replies whose end the callee has not heard yet.
bool nothing_left(const Agent& agent) {
  for (const char* name : {"open_bytes", "waiting_calls", "waiting_bytes", "served_bytes", "kept_bytes"})
    if (budget_counter(agent, name) != 0) return false;
  return true;
}
bool nothing_left(Cluster& c) {
  for (int rank = 0; rank < c.size(); ++rank)
    if (!c.dead(rank) && !nothing_left(*c.agent(rank))) return false;
  return true;
}

class Budgets : public ::testing::TestWithParam<Over> {
 protected:
  ClusterOptions options(int size = 2) const {
    begin();
    ClusterOptions o{.over = GetParam(), .size = size};
    o.agent.budget = kSmall;
    return o;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Budgets, ::testing::Values(Over::kSim, Over::kGrpc),
                         [](const auto& info) { return to_string(info.param); });

TEST_P(Budgets, a_flood_of_large_requests_stays_within_the_window) {
  Cluster c(options());
  g_budget_gate.close();
  c.run(0, [&] {
    std::vector<Future<int64_t>> calls;
    for (int64_t i = 0; i < 40; ++i) calls.push_back(rpc_async<budget_work>("worker1", i, kilobytes(40)));
    EXPECT_LE(budget_counter(*c.agent(0), "open_bytes"), kSmall.per_peer);
    EXPECT_GE(budget_counter(*c.agent(0), "credit_waits"), 38 - 1);
    g_budget_gate.open = true;  // until here no call has ended
    for (auto& call : calls) EXPECT_EQ(call.wait(), 10'000);
  });
  EXPECT_EQ(g_budget_runs, 40);
  EXPECT_LE(g_budget_most, kSmall.per_peer);
  EXPECT_GE(g_budget_most, 40'000);
  EXPECT_TRUE(eventually(c, [&] { return nothing_left(c); }));
}

TEST_P(Budgets, waiting_calls_keep_their_order) {
  Cluster c(options());
  c.run(0, [&] {
    std::vector<Future<int64_t>> calls;
    // No two successive ones fit together, but the eighth would fit beside the first ones.
    for (int64_t i = 0; i < 12; ++i)
      calls.push_back(rpc_async<budget_work>("worker1", i, kilobytes(i == 7 ? 30 : i > 5 ? 80 : 60)));
    for (auto& call : calls) call.wait();
  });
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(budget_order().at(static_cast<size_t>(i)), i);
}

TEST_P(Budgets, a_call_without_credit_until_its_deadline_says_so_and_is_never_sent) {
  Cluster c(options());
  g_budget_gate.close();
  c.run(0, [&] {
    const auto first = rpc_async<budget_work>("worker1", 1, kilobytes(80));
    const auto second = rpc_async<budget_work>({"worker1", 50ms}, 2, kilobytes(70));
    const std::string text = error_of<Timeout>([&] { second.wait(); });
    EXPECT_TRUE(has(text, "waited for credit for the whole timeout of 50 ms"));
    EXPECT_TRUE(has(text, "it has 70109 bytes; 80109 of"));
    EXPECT_TRUE(has(text, " of 99968 bytes of that worker's window"));  // as it travels
    EXPECT_TRUE(has(text, "'worker1'"));
    g_budget_gate.open = true;
    EXPECT_EQ(first.wait(), 20'000);
    EXPECT_EQ(rpc_sync<budget_work>("worker1", 3, kilobytes(70)), 17'500);
  });
  EXPECT_EQ(budget_order(), (std::vector<int64_t>{1, 3}));
  EXPECT_TRUE(eventually(c, [&] { return nothing_left(c); }));
}

TEST_P(Budgets, a_message_above_the_window_goes_alone) {
  Cluster c(options());
  g_budget_gate.close();
  c.run(0, [&] {
    const auto large = rpc_async<budget_work>("worker1", 1, kilobytes(700));
    const auto small = rpc_async<budget_work>("worker1", 2, kilobytes(1));
    const auto other = rpc_async<budget_work>("worker1", 3, kilobytes(800));
    ASSERT_TRUE(eventually(c, [] { return g_budget_gate.reached == 1; }));
    EXPECT_EQ(budget_counter(*c.agent(0), "waiting_calls"), 2);
    g_budget_gate.open = true;
    large.wait(), small.wait(), other.wait();
  });
  EXPECT_EQ(budget_order(), (std::vector<int64_t>{1, 2, 3}));
}

TEST_P(Budgets, the_callees_smaller_window_counts_from_its_first_word) {
  ClusterOptions o = options();
  o.each = [](int rank, AgentOptions& mine) {
    mine.budget = {.per_peer = rank == 0 ? 1 << 30 : 50'000, .in_all = 8'000'000};
  };
  Cluster c(o);
  c.run(0, [&] {
    std::vector<Future<int64_t>> calls;
    for (int64_t i = 0; i < 100; ++i) calls.push_back(rpc_async<budget_work>("worker1", i, kilobytes(20)));
    EXPECT_LE(budget_counter(*c.agent(0), "open_bytes"), 256 << 10);  // until the callee has spoken
    for (auto& call : calls) call.wait();
    g_budget_most = 0;
    calls.clear();
    for (int64_t i = 0; i < 20; ++i) calls.push_back(rpc_async<budget_work>("worker1", i, kilobytes(20)));
    for (auto& call : calls) call.wait();
  });
  EXPECT_LE(g_budget_most, 50'000);
}

TEST_P(Budgets, the_limit_in_all_holds_over_several_callees_and_leaves_half_to_handlers) {
  ClusterOptions o = options(4);
  o.agent.budget = {.per_peer = 100'000, .in_all = 200'000};
  Cluster c(o);
  g_budget_gate.close();
  c.run(0, [&] {
    std::vector<Future<int64_t>> calls;
    for (int64_t i = 0; i < 9; ++i)
      calls.push_back(rpc_async<budget_work>(1 + static_cast<int>(i % 3), i, kilobytes(45)));
    ASSERT_TRUE(eventually(c, [] { return g_budget_gate.reached == 2; }));
    EXPECT_LE(budget_counter(*c.agent(0), "open_bytes"), 100'000);
    EXPECT_EQ(budget_counter(*c.agent(0), "waiting_calls"), 7);
    g_budget_gate.open = true;
    for (auto& call : calls) call.wait();
  });
  EXPECT_TRUE(eventually(c, [&] { return nothing_left(c); }));
}

TEST_P(Budgets, a_cancelled_wait_ends_and_the_next_call_goes_on) {
  Cluster c(options());
  g_budget_gate.close();
  c.run(0, [&] {
    const auto first = rpc_async<budget_work>("worker1", 1, kilobytes(80));
    auto second = rpc_async<budget_work>("worker1", 2, kilobytes(80));
    const auto third = rpc_async<budget_work>("worker1", 3, kilobytes(10));
    EXPECT_EQ(budget_counter(*c.agent(0), "waiting_calls"), 2);
    EXPECT_TRUE(second.cancel());
    EXPECT_THROW(second.wait(), Cancelled);
    ASSERT_TRUE(eventually(c, [] { return g_budget_gate.reached == 2; }));  // the first and the third
    g_budget_gate.open = true;
    first.wait(), third.wait();
  });
  EXPECT_EQ(g_budget_runs, 2);
}

TEST_P(Budgets, the_graph_of_waits_passes_the_waiting_calls_and_shows_them) {
  Cluster c(options());
  g_budget_gate.close();
  c.run(0, [&] {
    const auto first = rpc_async<budget_work>("worker1", 1, kilobytes(80));
    const auto second = rpc_async<budget_work>("worker1", 2, kilobytes(70));
    ASSERT_TRUE(eventually(c, [] { return g_budget_gate.reached == 1; }));
    const std::string graph = wait_graph();
    EXPECT_TRUE(has(graph, "for 'budget_work' on worker 'worker1'"));
    EXPECT_TRUE(has(graph, "for 'budget_work (no credit yet)' on worker 'worker1'"));
    EXPECT_TRUE(has(graph, "worker 'worker1' serves 'budget_work' for worker 'worker0'"));
    g_budget_gate.open = true;
    first.wait(), second.wait();
  });
}

TEST_P(Budgets, control_and_gradients_pass_while_requests_wait) {
  Cluster c(options());
  g_budget_gate.close();
  Future<int64_t> first, second;
  c.run(0, [&] {
    dist_autograd::Context context;
    Tensor x = kilobytes(20);
    x.requires_grad_();
    const Tensor y = rpc_sync<budget_square>("worker1", x);
    std::optional<RRef<Tensor>> there = remote<budget_make>("worker1", int64_t{5});
    there->to_here();
    first = rpc_async<budget_work>("worker1", 1, kilobytes(95));
    second = rpc_async<budget_work>("worker1", 2, kilobytes(95));
    EXPECT_EQ(budget_counter(*c.agent(0), "waiting_calls"), 1);
    context.backward({y.sum()});
    EXPECT_EQ(context.gradient(x).to_vector<float>(), (2.0 * ones({5000})).to_vector<float>());
    there.reset();
    EXPECT_TRUE(eventually(c, [&] { return c.agent(1)->debug_info().at("num_owner_rrefs") == 0; }));
    EXPECT_EQ(budget_counter(*c.agent(0), "waiting_calls"), 1);
  });
  c.run_all([](int) { barrier(); });
  EXPECT_EQ(budget_counter(*c.agent(0), "waiting_calls"), 1);
  g_budget_gate.open = true;
  first.wait(), second.wait();
  c.shutdown();
}

TEST_P(Budgets, a_loss_ends_the_waiting_calls_and_a_restart_begins_with_the_whole_window) {
  Cluster c(options(3));
  g_budget_gate.close();
  c.run(0, [&] {
    std::vector<Future<int64_t>> calls;
    for (int64_t i = 0; i < 5; ++i) calls.push_back(rpc_async<budget_work>("worker1", i, kilobytes(80)));
    ASSERT_TRUE(eventually(c, [] { return g_budget_gate.reached == 1; }));
    c.restart(1);
    for (auto& call : calls) EXPECT_THROW(call.wait(), PeerLost);
    EXPECT_TRUE(nothing_left(*c.agent(0)));
    const auto again = rpc_async<budget_work>("worker1", 7, kilobytes(80));
    EXPECT_EQ(budget_counter(*c.agent(0), "waiting_calls"), 0);
    g_budget_gate.open = true;
    EXPECT_EQ(again.wait(), 20'000);
  });
  EXPECT_EQ(g_budget_runs, 2);
}

TEST_P(Budgets, the_end_of_an_agent_fails_its_waiting_calls_and_a_graceful_one_serves_them) {
  {
    Cluster c(options());
    g_budget_gate.close();
    std::vector<Future<int64_t>> calls;
    c.run(0, [&] {
      for (int64_t i = 0; i < 5; ++i) calls.push_back(rpc_async<budget_work>("worker1", i, kilobytes(80)));
      c.agent(0)->shutdown({.graceful = false});
      for (auto& call : calls) EXPECT_THROW(call.wait(), RpcError);
    });
    EXPECT_EQ(budget_counter(*c.agent(0), "open_bytes"), 0);
    g_budget_gate.open = true;
  }
  Cluster c(options());
  std::vector<Future<int64_t>> calls;
  c.run(0, [&] {
    for (int64_t i = 0; i < 5; ++i) calls.push_back(rpc_async<budget_work>("worker1", i, kilobytes(80)));
  });
  c.shutdown();
  for (auto& call : calls) EXPECT_EQ(call.wait(), 20'000);
  EXPECT_EQ(g_budget_runs, 5);
}

TEST_P(Budgets, a_request_beyond_the_callees_limit_in_all_is_refused_unserved_and_the_next_one_works) {
  ClusterOptions o = options(3);
  o.each = [](int rank, AgentOptions& mine) {
    mine.budget = {.per_peer = 1 << 30, .in_all = rank == 1 ? 100'000 : 1 << 30};
  };
  Cluster c(o);
  g_budget_gate.close();
  c.run(0, [&] {
    const auto first = rpc_async<budget_work>("worker1", 1, kilobytes(80));
    ASSERT_TRUE(eventually(c, [] { return g_budget_gate.reached == 1; }));
    CallContext served;  // as inside a handler, whose calls no window holds back
    served.endpoint = c.agent(0);
    served.serving = 1;
    {
      const CallScope scope(served);
      const std::string text =
          error_of<Overloaded>([&] { rpc_sync<budget_work>("worker1", 2, kilobytes(60)); });
      EXPECT_TRUE(has(text, "no room for a request of 6")) << text;
      EXPECT_TRUE(has(text, "the limit in all is 100000")) << text;
      // one without payloads, which is refused once it has come
      EXPECT_TRUE(
          has(error_of<Overloaded>([&] { rpc_sync<budget_text>("worker1", std::string(60'000, 'x')); }),
              "no room for a request of 60"));
    }
    g_budget_gate.open = true;
    first.wait();
    EXPECT_EQ(rpc_sync<budget_work>("worker1", 3, kilobytes(60)), 15'000);
  });
  EXPECT_EQ(budget_order(), (std::vector<int64_t>{1, 3}));
  EXPECT_TRUE(eventually(c, [&] { return nothing_left(c); }));
}

TEST_P(Budgets, a_call_inside_a_handler_fails_at_once_beyond_the_limit_in_all) {
  ClusterOptions o = options(2);
  o.agent.budget = {.per_peer = 100'000, .in_all = 100'000};
  Cluster c(o);
  g_budget_gate.close();
  c.run(0, [&] {
    CallContext served;
    served.endpoint = c.agent(0);
    served.serving = 1;
    Future<int64_t> first;
    {
      const CallScope scope(served);
      first = rpc_async<budget_work>("worker1", 1, kilobytes(80));
      const auto second = rpc_async<budget_work>("worker1", 2, kilobytes(60));
      ASSERT_TRUE(second.done());
      EXPECT_TRUE(has(error_of<Overloaded>([&] { second.wait(); }), "inside a served function"));
    }
    g_budget_gate.open = true;
    first.wait();
  });
  EXPECT_EQ(g_budget_runs, 1);
}

// ---- simulation only

TEST(Budget, nested_calls_around_a_ring_drain_or_fail_and_never_wait) {
  int64_t drained = 0, refused = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    begin();
    ClusterOptions o{.size = 4, .seed = seed, .net = {.drop = seed % 3 ? 0.02 : 0, .duplicate = 0.02}};
    o.agent.budget = {.per_peer = 50'000, .in_all = seed % 2 ? 150'000 : 10'000'000};
    o.keep_log = false;
    Cluster c(o);
    std::atomic<int64_t> done{0}, failed{0};
    c.run_all([&](int rank) {
      std::vector<Future<int64_t>> calls;
      for (int i = 0; i < 6; ++i)
        calls.push_back(rpc_async<budget_ring>((rank + 1) % 4, kilobytes(10 + 5 * i), int64_t{6}));
      for (auto& call : calls) {
        try {
          call.wait();
          ++done;
        } catch (const Overloaded&) {
          ++failed;
        }  // any other error, a Timeout above all, fails the test
      }
    });
    EXPECT_EQ(done + failed, 24) << "seed " << seed;
    if (seed % 2 == 0) {
      EXPECT_EQ(failed, 0) << "seed " << seed;
    }
    drained += done, refused += failed;
    c.net().set_faults(0, 0);
    EXPECT_TRUE(eventually(c, [&] { return nothing_left(c); })) << "seed " << seed;
  }
  EXPECT_GT(drained, 480);
  EXPECT_GT(refused, 10);
}

TEST(Budget, kills_amid_a_flood_give_all_room_back) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    begin();
    ClusterOptions o{.size = 4, .seed = seed, .net = {.drop = 0.01, .duplicate = 0.01}};
    o.agent.budget = {.per_peer = 60'000, .in_all = 200'000};
    o.agent.lease = 2s;
    o.keep_log = false;
    Cluster c(o);
    std::vector<Future<int64_t>> calls;
    for (const int rank : {0, 2})
      c.run(rank, [&] {
        for (int64_t i = 0; i < 30; ++i) {
          const int to = static_cast<int>((rank + 1 + i % 3) % 4);
          calls.push_back(
              rpc_async<budget_work>(to, i, kilobytes(5 + (i * 7 + static_cast<int64_t>(seed)) % 40)));
          if (i % 5 == 4) calls[calls.size() - 3].cancel();
        }
      });
    c.runtime().sleep_for(std::chrono::milliseconds(1 + seed % 7));
    if (seed % 2) c.kill(1);
    else c.restart(1);
    c.run(0, [&] {
      for (auto& call : calls) {
        try {
          call.wait();
        } catch (const PeerLost&) {
        } catch (const Overloaded&) {
        } catch (const Cancelled&) {
        }
      }
    });
    c.net().set_faults(0, 0);
    EXPECT_TRUE(eventually(c, [&] { return nothing_left(c); })) << "seed " << seed;
  }
}

TEST(Budget, the_window_travels_rounded_down) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{2047}, int64_t{2048}, int64_t{100'000},
                              int64_t{1} << 30, (int64_t{1} << 40) + 12345, int64_t{1} << 60}) {
    Envelope e;
    e.window = Envelope::pack_window(bytes);
    EXPECT_LE(e.window_bytes(), bytes);
    if (bytes < (int64_t{1} << 41)) {
      EXPECT_GE(e.window_bytes(), bytes - bytes / 1024);
    }
  }
}

TEST(Budget, the_limits_are_options_of_init_rpc) {
  begin();
  EXPECT_TRUE(
      has(error_of<ValueError>([] { init_rpc("alone", {.world_size = 1, .budget = {.per_peer = 0}}); }),
          "the budgets must be positive"));
  init_rpc("alone", {.world_size = 1, .budget = kSmall});
  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < 5; ++i) calls.push_back(rpc_async<budget_work>("alone", i, kilobytes(80)));
  for (auto& call : calls) EXPECT_EQ(call.wait(), 20'000);
  EXPECT_GE(debug_info().at("agent.credit_waits"), 1);
  EXPECT_EQ(budget_order(), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  shutdown();
}

}  // namespace
