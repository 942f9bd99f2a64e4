// The replies that a callee keeps until their callers have them. They stay within the limits, and one that
// was dropped for room leaves its call executed.
#include <gtest/gtest.h>

#include <atomic>

#include <weft/distributed/rpc/result_dropped.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/wire/inner/wire_format.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/errors.h"

namespace weft::test {

Gate g_kept_gate;
std::atomic<int64_t> g_kept_runs{0};

Tensor kept_make(int64_t n) {
  ++g_kept_runs;
  return ones({n});
}
WEFT_RPC_IDEMPOTENT(kept_make);

void kept_wait() { g_kept_gate.pass(); }
WEFT_RPC(kept_wait);

int64_t kept_count_run() { return ++g_kept_runs; }
WEFT_RPC(kept_count_run);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;

int64_t kept_counter(const Agent& agent, const char* name) {
  return agent.debug_info().at(std::string("agent.") + name);
}

TEST(KeptReplies, a_result_that_was_dropped_for_room_is_a_typed_error_and_the_function_ran_once) {
  g_kept_runs = 0;
  ClusterOptions o{.size = 2};
  o.agent.budget = {.per_peer = 100'000, .in_all = 1'000'000};
  Cluster c(o);
  c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kCall) | kReplyBit, .count = 1});
  c.run(0, [&] {
    const auto lost = rpc_async<kept_make>("worker1", int64_t{15'000});
    ASSERT_TRUE(eventually(c, [&] { return kept_counter(*c.agent(1), "kept_bytes") > 0; }));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(rpc_sync<kept_make>("worker1", int64_t{15'000}).numel(), 15'000);
    const std::string text = error_of<ResultDropped>([&] { lost.wait(); });
    EXPECT_TRUE(has(text, "'kept_make' has run, and its result was lost on the way")) << text;
    EXPECT_EQ(g_kept_runs, 5);
    EXPECT_GE(kept_counter(*c.agent(1), "dropped_results"), 1);
  });
  EXPECT_TRUE(eventually(c, [&] { return kept_counter(*c.agent(1), "kept_bytes") == 0; }));
}

TEST(KeptReplies, a_dropped_result_is_not_called_for_again_by_a_retry_policy) {
  g_kept_runs = 0;
  ClusterOptions o{.size = 2, .seed = 5};
  o.agent.budget = {.per_peer = 100'000, .in_all = 1'000'000};
  Cluster c(o);
  c.run(0, [&] {
    c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kCall) | kReplyBit, .count = 3});
    std::vector<Future<Tensor>> calls;
    for (int i = 0; i < 6; ++i)
      calls.push_back(rpc_async<kept_make>(with_retry("worker1", {}), int64_t{15'000}));
    int64_t came = 0, dropped = 0;
    for (auto& call : calls) {
      try {
        came += call.wait().numel() == 15'000;
      } catch (const ResultDropped&) {
        ++dropped;
      }
    }
    EXPECT_EQ(came + dropped, 6);
    EXPECT_GE(dropped, 1);
    EXPECT_EQ(g_kept_runs, 6);
  });
}

TEST(KeptReplies, one_long_call_does_not_keep_the_replies_of_others) {
  g_kept_runs = 0;
  ClusterOptions o{.size = 2};
  o.agent.budget = {.per_peer = 1'000'000, .in_all = 8'000'000};
  Cluster c(o);
  g_kept_gate.close();
  c.run(0, [&] {
    const auto longer = rpc_async<kept_wait>("worker1");
    int64_t most = 0;
    for (int i = 0; i < 100; ++i) {
      rpc_sync<kept_make>("worker1", int64_t{25'000});
      most = std::max(most, kept_counter(*c.agent(1), "kept_bytes"));
    }
    EXPECT_LE(most, 600'000);  // a quarter of the window, and the replies under way
    EXPECT_EQ(kept_counter(*c.agent(1), "dropped_results"), 0);
    g_kept_gate.open = true;
    longer.wait();
  });
}

/// Requests that no caller's table holds: nothing finishes them.
void flood(Cluster& c, int from, int to, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    Message m;
    {
      Encoder out(m);
      put_function(out, function_entry<kept_count_run>());
    }
    seal(m);
    stamp(m, {.sequence = (uint64_t{1} << 40) + i});
    c.agent(from)->transport().send(WorkerId{to}, static_cast<uint8_t>(Kind::kCall), std::move(m.bytes));
  }
}

TEST(KeptReplies, refused_requests_of_a_peer_that_sends_without_end_are_bounded) {
  g_kept_runs = 0;
  ClusterOptions o{.size = 3};
  o.agent.max_served_per_peer = 3;
  Cluster c(o);
  flood(c, 1, 0, 1000);
  ASSERT_TRUE(eventually(c, [&] {
    return kept_counter(*c.agent(0), "kept_replies") + kept_counter(*c.agent(0), "dropped_requests") == 1000;
  }));
  EXPECT_EQ(kept_counter(*c.agent(0), "kept_replies"), 3 + 64);
  EXPECT_EQ(g_kept_runs, 3);
  c.run(2, [&] { EXPECT_EQ(rpc_sync<kept_count_run>("worker0"), 4); });
}

TEST(KeptReplies, a_burst_far_beyond_the_limit_is_answered_whole_and_no_refused_call_runs) {
  g_kept_runs = 0;
  ClusterOptions o{.size = 2};
  o.agent.max_served_per_peer = 2;
  o.net = {.drop = 0.05, .duplicate = 0.2};
  Cluster c(o);
  g_kept_gate.close();
  c.run(0, [&] {
    const auto longer = rpc_async<kept_wait>("worker1");
    ASSERT_TRUE(eventually(c, [] { return g_kept_gate.reached == 1; }));
    std::vector<Future<int64_t>> calls;
    for (int i = 0; i < 300; ++i) calls.push_back(rpc_async<kept_count_run>("worker1"));
    int64_t came = 0, refused = 0;
    for (auto& call : calls) {
      try {
        came += call.wait() > 0;
      } catch (const Overloaded&) {
        ++refused;
      }
    }
    EXPECT_EQ(came + refused, 300);
    EXPECT_GE(came, 1);
    EXPECT_GE(refused, 64);
    EXPECT_EQ(g_kept_runs, came);
    EXPECT_GE(kept_counter(*c.agent(1), "dropped_requests"), 1);
    g_kept_gate.open = true;
    longer.wait();
  });
  EXPECT_TRUE(eventually(c, [&] { return kept_counter(*c.agent(1), "kept_replies") == 0; }));
}

}  // namespace
