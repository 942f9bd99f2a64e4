// The reserve of the budget: results that stand at their callee, and replies and gradients that arrive.
// Beyond it a result becomes a typed error, and an arriving message waits at its sender.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/result_dropped.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/rref.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/errors.h"

namespace weft::test {

Gate g_reserve_gate;
std::atomic<int64_t> g_reserve_runs{0};

Tensor reserve_make(int64_t n) {
  ++g_reserve_runs;
  g_reserve_gate.pass();
  return ones({n});
}
WEFT_RPC_IDEMPOTENT(reserve_make);

/// [1] -> [n]: its gradient is that of a sum.
Tensor reserve_spread(const Tensor& x, int64_t n) {
  ++g_reserve_runs;
  g_reserve_gate.pass();
  return x * ones({n});
}
WEFT_RPC(reserve_spread);

Tensor reserve_twice(const Tensor& x) { return x * 2.0; }
WEFT_RPC(reserve_twice);

/// Passes the tensor around a ring, `hops` times, and adds it to the result.
Tensor reserve_ring(const Tensor& x, int64_t hops) {
  ++g_reserve_runs;
  if (hops == 0) return x;
  const auto agent = rpc::current_agent();
  const auto size = static_cast<int>(agent->worker_infos().size());
  return rpc::rpc_sync<reserve_ring>((agent->self().id.value + 1) % size, x, hops - 1) + x;
}
WEFT_RPC(reserve_ring);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

int64_t reserve_counter(const Agent& agent, const char* name) {
  return agent.debug_info().at(std::string("agent.") + name);
}

bool nothing_stands(Cluster& c) {
  for (int rank = 0; rank < c.size(); ++rank)
    for (const char* name : {"open_bytes", "waiting_bytes", "served_bytes", "arriving_bytes", "kept_bytes",
                             "standing_bytes", "reserved_bytes"})
      if (!c.dead(rank) && reserve_counter(*c.agent(rank), name) != 0) return false;
  return true;
}

/// Keeps the most bytes of results that stand at its agent.
struct MostStanding final : Interceptor {
  std::atomic<int64_t> most = 0;  // handlers reply on threads of their own
  void reply_sending(Agent& agent, Life, Kind, const char*, Message&, const CallContext&) override {
    const int64_t now =
        std::max(reserve_counter(agent, "standing_bytes"), reserve_counter(agent, "kept_bytes"));
    for (int64_t known = most; now > known && !most.compare_exchange_weak(known, now);) {
    }
  }
};

struct Ended {
  int64_t came = 0, dropped = 0, refused = 0;
};
Ended wait_for_all(const std::vector<Future<Tensor>>& calls, int64_t numel) {
  Ended out;
  for (const auto& call : calls) {
    try {
      out.came += call.wait().numel() == numel;
    } catch (const ResultDropped&) {
      ++out.dropped;
    } catch (const Overloaded&) {
      ++out.refused;
    }  // any other error fails the test
  }
  return out;
}

constexpr int64_t kNumbers = 15'000, kResult = kNumbers * 4;  // bytes of one result, without its header
constexpr BudgetLimits kTight{.per_peer = 100'000, .in_all = 400'000, .reserve = 200'000};

class Reserve : public ::testing::TestWithParam<Over> {
 protected:
  ClusterOptions options(int size, BudgetLimits budget) const {
    g_reserve_gate.open = true;
    g_reserve_runs = 0;
    ClusterOptions o{.over = GetParam(), .size = size};
    o.agent.budget = budget;
    return o;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Reserve, ::testing::Values(Over::kSim, Over::kGrpc),
                         [](const auto& info) { return to_string(info.param); });

TEST_P(Reserve, a_thousand_large_results_stay_within_the_limit_and_each_call_ends_typed) {
  const int count = GetParam() == Over::kSim ? 1000 : 60;  // a blocked handler of a real worker has a thread
  Cluster c(options(2, kTight));
  const auto most = std::make_shared<MostStanding>();
  c.agent(1)->add_interceptor(most);
  g_reserve_gate.close();
  c.run(0, [&] {
    std::vector<Future<Tensor>> calls;
    for (int i = 0; i < count; ++i) calls.push_back(rpc_async<reserve_make>("worker1", kNumbers));
    ASSERT_TRUE(eventually(c, [&] { return g_reserve_gate.reached >= std::min(count / 3, 100); }));
    g_reserve_gate.open = true;
    const Ended ended = wait_for_all(calls, kNumbers);
    EXPECT_EQ(ended.came + ended.dropped + ended.refused, count);
    EXPECT_GE(ended.came, 1);
    EXPECT_EQ(g_reserve_runs, ended.came + ended.dropped);  // each function ran once
  });
  EXPECT_LE(most->most, kTight.in_all + kTight.reserve);
  EXPECT_GE(most->most, kResult);
  EXPECT_TRUE(eventually(c, [&] { return nothing_stands(c); }));
}

TEST_P(Reserve, results_with_gradients_that_may_not_be_dropped_later_stay_within_the_limit) {
  const int count = GetParam() == Over::kSim ? 200 : 60;
  Cluster c(options(2, kTight));
  const auto most = std::make_shared<MostStanding>();
  c.agent(1)->add_interceptor(most);
  g_reserve_gate.close();
  c.run(0, [&] {
    dist_autograd::Context context;
    Tensor x = ones({1});
    x.requires_grad_();
    std::vector<Future<Tensor>> calls;
    for (int i = 0; i < count; ++i) calls.push_back(rpc_async<reserve_spread>("worker1", x, kNumbers));
    ASSERT_TRUE(eventually(c, [&] { return g_reserve_gate.reached >= std::min(count / 3, 100); }));
    g_reserve_gate.open = true;
    const Ended ended = wait_for_all(calls, kNumbers);
    EXPECT_EQ(ended.came + ended.dropped + ended.refused, count);
    EXPECT_EQ(g_reserve_runs, ended.came + ended.dropped);
    EXPECT_GE(ended.came, 1);
    for (const auto& call : calls)
      if (!call.has_error())
        return context.backward({call.wait().sum()});  // a result that came has its gradient
  });
  EXPECT_LE(most->most, kTight.in_all + kTight.reserve);
  EXPECT_TRUE(eventually(c, [&] { return nothing_stands(c); }));
}

TEST_P(Reserve, a_result_above_the_limit_goes_alone) {
  Cluster c(options(2, kTight));
  c.run(0, [&] {
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(rpc_sync<reserve_make>("worker1", int64_t{500'000}).numel(), 500'000);
      ASSERT_TRUE(eventually(c, [&] { return nothing_stands(c); }));
    }
  });
}

TEST_P(Reserve, fetches_without_room_for_their_values_wait_and_have_them) {
  Cluster c(options(4, {.per_peer = 100'000, .in_all = 100'000, .reserve = 0}));
  c.run_all([&](int rank) {
    if (rank == 0) return;
    const RRef<Tensor> there = remote<reserve_make>("worker0", kNumbers);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(there.to_here().numel(), kNumbers);
  });
  c.run_all([](int) { barrier(); });
  EXPECT_TRUE(eventually(c, [&] { return nothing_stands(c); }));
  c.shutdown();
}

// ---- arriving messages

constexpr BudgetLimits kRoomy{.per_peer = 8'000'000, .in_all = 8'000'000, .reserve = 2'000'000};
constexpr int64_t kMegabytes = 750'000;  // 3 MB

/// Another message of a sort that has arrived in part takes most of the room at a worker, for two seconds.
class Occupied {
 public:
  Occupied(Cluster& c, int rank, uint8_t kind) : c_(c), agent_(c.agent(rank)), kind_(kind) {
    agent_->impl().on_part(kind_, 0, kBytes);
    c.runtime(rank).call_at(c.runtime(rank).now() + 2s, [this] {
      freed = true;
      agent_->impl().on_part_end(kind_, kBytes);
    });
  }
  ~Occupied() {
    EXPECT_TRUE(eventually(c_, [&] { return freed.load(); }));
  }
  std::atomic<bool> freed{false};

 private:
  static constexpr int64_t kBytes = 9'000'000;
  Cluster& c_;
  const std::shared_ptr<Agent> agent_;
  const uint8_t kind_;
};

TEST_P(Reserve, a_reply_without_room_at_its_caller_comes_later_and_its_function_runs_once) {
  Cluster c(options(2, kRoomy));
  {
    Occupied other(c, 0, static_cast<uint8_t>(Kind::kCall) | kReplyBit);
    c.run(0, [&] {
      EXPECT_EQ(rpc_sync<reserve_make>("worker1", kMegabytes).numel(), kMegabytes);
      EXPECT_TRUE(other.freed);
    });
  }
  EXPECT_EQ(g_reserve_runs, 1);
  EXPECT_GE(reserve_counter(*c.agent(0), "put_off"), 1);
  EXPECT_TRUE(eventually(c, [&] { return nothing_stands(c); }));
}

TEST_P(Reserve, a_reply_does_not_wait_for_arriving_gradients) {
  Cluster c(options(2, kRoomy));
  Occupied other(c, 0, static_cast<uint8_t>(Kind::kGradients));
  c.run(0, [&] { EXPECT_EQ(rpc_sync<reserve_make>("worker1", kMegabytes).numel(), kMegabytes); });
  EXPECT_EQ(reserve_counter(*c.agent(0), "put_off"), 0);
}

/// y = 2 x on worker1; its gradient of 3 MB goes there, and that of x comes back.
void backward_there(int to, bool together = false) {
  dist_autograd::Context context;
  Tensor x = ones({kMegabytes});
  x.requires_grad_();
  const Tensor y = rpc_sync<reserve_twice>(to, x);
  if (together) barrier();
  context.backward({(y * arange(0, kMegabytes, 1, {.dtype = kFloat32})).sum()});
  const std::vector<float> got = context.gradient(x).to_vector<float>();
  for (const int64_t i : {int64_t{0}, int64_t{1}, kMegabytes - 1})
    EXPECT_EQ(got.at(static_cast<size_t>(i)), 2.0F * static_cast<float>(i));
}

TEST_P(Reserve, gradients_without_room_at_their_receiver_wait_at_the_sender) {
  Cluster c(options(2, kRoomy));
  {
    Occupied other(c, 1, static_cast<uint8_t>(Kind::kGradients));
    c.run(0, [&] {
      backward_there(1);
      EXPECT_TRUE(other.freed);
    });
  }
  EXPECT_GE(reserve_counter(*c.agent(1), "put_off"), 1);
  EXPECT_TRUE(eventually(c, [&] { return nothing_stands(c); }));
}

TEST_P(Reserve, gradients_of_many_workers_at_once_all_come) {
  Cluster c(options(5, {.per_peer = 16'000'000, .in_all = 16'000'000, .reserve = 0}));
  c.run_all([](int rank) {
    if (rank == 4) barrier();
    else backward_there(4, true);
  });
  EXPECT_TRUE(eventually(c, [&] { return nothing_stands(c); }));
}

// ---- simulation only

TEST(ReserveInSimulation, nested_calls_with_large_results_drain_or_fail_typed) {
  int64_t came = 0, failed = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    g_reserve_gate.open = true;
    ClusterOptions o{.size = 4, .seed = seed, .net = {.drop = seed % 3 ? 0.02 : 0, .duplicate = 0.02}};
    o.agent.budget = {.per_peer = 50'000, .in_all = seed % 2 ? 150'000 : 10'000'000, .reserve = 0};
    if (seed % 4 == 2) o.agent.budget = {.per_peer = 1'000'000, .in_all = 200'000, .reserve = 20'000};
    o.keep_log = false;
    Cluster c(o);
    std::atomic<int64_t> whole{0}, typed{0};
    c.run_all([&](int rank) {
      std::vector<Future<Tensor>> calls;
      for (int i = 0; i < 6; ++i)
        calls.push_back(rpc_async<reserve_ring>((rank + 1) % 4, ones({2'000 + 1'500 * i}), int64_t{5}));
      for (size_t i = 0; i < calls.size(); ++i) {
        const Ended ended = wait_for_all({calls[i]}, 2'000 + 1'500 * static_cast<int64_t>(i));
        whole += ended.came, typed += ended.dropped + ended.refused;
      }
    });
    EXPECT_EQ(whole + typed, 24) << "seed " << seed;
    came += whole, failed += typed;
    c.net().set_faults(0, 0);
    EXPECT_TRUE(eventually(c, [&] { return nothing_stands(c); })) << "seed " << seed;
  }
  EXPECT_GT(came, 300);
  EXPECT_GT(failed, 10);
}

TEST(ReserveInSimulation, a_retry_policy_does_not_repeat_a_call_whose_result_had_no_room) {
  g_reserve_gate.open = true;
  g_reserve_runs = 0;
  ClusterOptions o{.size = 2};
  o.agent.budget = kTight;
  Cluster c(o);
  g_reserve_gate.close();
  c.run(0, [&] {
    std::vector<Future<Tensor>> calls;
    for (int i = 0; i < 60; ++i)
      calls.push_back(rpc_async<reserve_make>(with_retry("worker1", {}), int64_t{60'000}));
    ASSERT_TRUE(eventually(c, [] { return g_reserve_gate.reached == 60; }));
    g_reserve_gate.open = true;
    const Ended ended = wait_for_all(calls, 60'000);
    std::string text;
    for (const auto& call : calls)
      if (call.has_error()) text = error_of<ResultDropped>([&] { call.wait(); });
    EXPECT_TRUE(has(text, "'reserve_make' has run, and there is no room for its result of 240")) << text;
    EXPECT_TRUE(has(text, "the limit with the reserve is 600000 (BudgetLimits::reserve)")) << text;
    EXPECT_EQ(ended.came + ended.dropped, 60);
    EXPECT_GE(ended.dropped, 1);
    EXPECT_EQ(g_reserve_runs, 60);
  });
  EXPECT_TRUE(eventually(c, [&] { return nothing_stands(c); }));
}

TEST(ReserveInSimulation, a_negative_reserve_is_refused) {
  EXPECT_TRUE(
      has(error_of<ValueError>([] { init_rpc("alone", {.world_size = 1, .budget = {.reserve = -1}}); }),
          "the reserve of the budget is negative: -1 bytes"));
}

}  // namespace
