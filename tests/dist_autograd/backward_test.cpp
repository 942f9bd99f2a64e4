// Backward passes over several workers: FAST and SMART against a local engine, the records, and failures that
// leave nothing behind.
#include <gtest/gtest.h>

#include <random>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/golden.h"

namespace {

using namespace weft;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using dist_autograd::Context;
using rpc::rpc_async;
using rpc::rpc_sync;
using test::Cluster;
using test::Over;
using weft::testing::same_bits;

Tensor my_add(const Tensor& a, const Tensor& b) { return a + b; }
WEFT_RPC(my_add);

/// A leaf that lives on each worker.
Tensor worker_weight() {
  static std::map<int32_t, Tensor> weights;
  const int32_t self = rpc::current_agent()->self().id.value;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  Tensor& w = weights[self];
  if (!w.defined()) w = full({3}, 2.0 + self, {.dtype = kFloat64}).requires_grad_();
  return w;
}
Tensor times_weight(const Tensor& x) { return x * worker_weight(); }
WEFT_RPC(times_weight);

std::vector<Tensor> two_parts(const Tensor& x) { return {x * 2.0, x * worker_weight()}; }
WEFT_RPC(two_parts);

/// There and on: each hop multiplies by its own weight.
Tensor chain(const Tensor& x, int64_t hops) {
  const Tensor y = times_weight(x);
  if (hops == 0) return y;
  const auto agent = rpc::current_agent();
  const int64_t next = (agent->self().id.value + 1) % static_cast<int64_t>(agent->worker_infos().size());
  return rpc_sync<chain>(static_cast<int>(next), y, hops - 1);
}
WEFT_RPC(chain);

Tensor fails_backward(const Tensor& x) {
  const Tensor y = x * worker_weight();
  NoGrad guard;
  worker_weight().mul_(1.0);  // the saved value is written: backward must throw
  return y;
}
WEFT_RPC(fails_backward);

Tensor fails_by_itself() {  // the same, of its weight only
  Tensor h = worker_weight() * 1.0;
  const Tensor y = h * h;
  NoGrad guard;
  h.mul_(1.0);
  return y;
}
WEFT_RPC(fails_by_itself);

Tensor broken(const Tensor&) { throw ShapeError("broken on purpose"); }
WEFT_RPC(broken);

Tensor leaf(double v) { return full({3}, v, {.dtype = kFloat64}).requires_grad_(); }

bool comes_to_none(Cluster& c, int rank, const char* key) {
  return test::eventually(c, [&] { return c.agent(rank)->debug_info().at(key) == 0; });
}

struct Param {
  Over over;
  Backward mode;
};
class DistBackward : public ::testing::TestWithParam<Param> {
 protected:
  Cluster make(int size = 3) { return Cluster({.over = GetParam().over, .size = size}); }
  dist_autograd::BackwardOptions options(bool retain = false) const {
    return {.retain_graph = retain, .mode = GetParam().mode};
  }
};
INSTANTIATE_TEST_SUITE_P(
    Modes, DistBackward,
    ::testing::Values(Param{Over::kSim, Backward::kFast}, Param{Over::kSim, Backward::kSmart},
                      Param{Over::kGrpc, Backward::kFast}, Param{Over::kGrpc, Backward::kSmart}),
    [](const auto& info) {
      return to_string(info.param.over) + (info.param.mode == Backward::kFast ? "_fast" : "_smart");
    });

TEST_P(DistBackward, a_remote_add_gives_the_gradients_of_a_local_one) {
  Cluster c = make();
  c.run(0, [&] {
    const Tensor t1 = leaf(3), t2 = leaf(5);
    Context context;
    const Tensor t3 = rpc_sync<my_add>("worker1", t1, t2), t4 = leaf(7);
    context.backward({(t3 * t4).sum()}, options());
    EXPECT_TRUE(same_bits(context.gradient(t1), full({3}, 7.0, {.dtype = kFloat64})));
    EXPECT_TRUE(same_bits(context.gradient(t2), full({3}, 7.0, {.dtype = kFloat64})));
    EXPECT_TRUE(same_bits(context.gradient(t4), full({3}, 8.0, {.dtype = kFloat64})));
    EXPECT_FALSE(t1.grad().defined());
  });
}

TEST_P(DistBackward, a_chain_through_all_workers_and_back_equals_the_local_product) {
  Cluster c = make();
  c.run(0, [&] {
    const Tensor x = leaf(1.5);
    Context context;
    const Tensor y = rpc_sync<chain>("worker1", x, 4);  // workers 1 2 0 1 2
    context.backward({y.sum()}, options());
    const double w0 = 2, w1 = 3, w2 = 4, product = w1 * w2 * w0 * w1 * w2;
    EXPECT_DOUBLE_EQ(y.to_vector<double>()[0], 1.5 * product);
    EXPECT_DOUBLE_EQ(context.gradient(x).to_vector<double>()[0], product);
    EXPECT_DOUBLE_EQ(context.gradient(worker_weight()).to_vector<double>()[0], 1.5 * product / w0);
  });
}

TEST_P(DistBackward, retained_passes_add_up_and_a_second_pass_without_it_is_an_error) {
  Cluster c = make(2);
  c.run(0, [&] {
    const Tensor x = leaf(1);
    Context context;
    const Tensor loss = rpc_sync<times_weight>("worker1", x).sum();
    context.backward({loss}, options(true));
    context.backward({loss}, options());
    EXPECT_DOUBLE_EQ(context.gradient(x).to_vector<double>()[0], 6);
    EXPECT_THROW(context.backward({loss}, options()), Error);
  });
}

TEST_P(DistBackward, an_error_in_a_remote_backward_comes_back_and_leaves_no_pass) {
  Cluster c = make(3);
  c.run(0, [&] {
    const Tensor x = leaf(1);
    Context context;
    const Tensor y = rpc_sync<fails_backward>("worker1", rpc_sync<times_weight>("worker2", x));
    try {
      context.backward({y.sum()}, options());
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("in place"), std::string::npos) << e.what();
    }
    rpc::barrier({"worker0"});
  });
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_TRUE(comes_to_none(c, rank, "dist_autograd.num_current_backward_passes")) << rank;
}

TEST_P(DistBackward, an_error_reaches_an_initiator_that_awaits_no_gradients) {
  Cluster c = make(2);
  c.run(0, [&] {
    Context context;
    EXPECT_THROW(context.backward({rpc_sync<fails_by_itself>("worker1").sum()}, options()), AutogradError);
  });
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_TRUE(comes_to_none(c, rank, "dist_autograd.num_current_backward_passes")) << rank;
}

TEST_P(DistBackward, leaving_a_context_frees_it_on_every_worker) {
  Cluster c = make(3);
  c.run(0, [&] {
    for (int i = 0; i < 5; ++i) {
      Context context;
      rpc_sync<chain>("worker1", leaf(1), 3);
    }
  });
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_TRUE(comes_to_none(c, rank, "dist_autograd.num_autograd_contexts")) << rank;
}

TEST(DistRecord, one_send_and_one_recv_per_side_and_no_edge_for_tensors_without_grad) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    const Tensor a = leaf(1), b = full({3}, 2.0, {.dtype = kFloat64});
    Context context;
    const Tensor y = rpc_sync<my_add>("worker1", a, b);
    const auto nodes = dist_autograd::graph(context.id());
    ASSERT_EQ(nodes.size(), 2u);
    EXPECT_TRUE(nodes[0].is_send);
    EXPECT_EQ(nodes[0].node->edges().size(), 1u);
    EXPECT_FALSE(nodes[1].is_send);
    EXPECT_EQ(dist_autograd::known_workers(context.id()), std::vector<rpc::WorkerId>{rpc::WorkerId{1}});
    EXPECT_EQ(context.id() >> 48, 0);
  });
}

TEST(DistRecord, nothing_is_recorded_outside_a_context_or_under_no_grad) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    const Tensor outside = rpc_sync<my_add>("worker1", leaf(1), leaf(2));
    EXPECT_TRUE(outside.is_leaf());
    Context context;
    {
      NoGrad guard;
      rpc_sync<my_add>("worker1", leaf(1), leaf(2));
    }
    for (const auto& node : dist_autograd::graph(context.id())) EXPECT_FALSE(node.is_send);
    EXPECT_THROW(Context(), AutogradError);
  });
}

TEST(DistRecord, bad_roots_and_unknown_contexts_are_named) {
  Cluster c({.size = 1});
  c.run(0, [&] {
    EXPECT_THROW(dist_autograd::backward(12345, {(leaf(1) * 2.0).sum()}), AutogradError);
    Context context;
    EXPECT_THROW(context.backward({}), AutogradError);
    EXPECT_THROW(context.backward({zeros({})}), AutogradError);
    EXPECT_THROW(context.backward({leaf(1) * 2.0}), AutogradError);
    EXPECT_THROW(context.backward({full({}, 1.0).requires_grad_()}), AutogradError);
    const Tensor x = leaf(2);
    context.backward({(x * x).sum()});  // purely local
    EXPECT_DOUBLE_EQ(context.gradient(x).to_vector<double>()[0], 4);
  });
}

TEST(DistFast, an_unused_result_ends_with_an_error_that_names_the_send) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    const Tensor x = leaf(1);
    Context context;
    const Tensor used = rpc_sync<times_weight>("worker1", x);
    rpc_sync<my_add>("worker1", x, x);  // for a log, say
    try {
      context.backward({used.sum()}, {.mode = Backward::kFast, .stall = 2s});
      FAIL() << "no error";
    } catch (const Error& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find("worker 'worker1' has had no gradient for 2 s; still awaited: send #"),
                std::string::npos)
          << text;
      // function and peer
      EXPECT_NE(text.find("of worker 'worker1' to worker 'worker0' (the result of 'my_add', "),
                std::string::npos)
          << text;
      EXPECT_NE(text.find(" s old)"), std::string::npos) << text;
    }
  });
  c.runtime().sleep_for(1s);
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(c.agent(rank)->debug_info().at("dist_autograd.num_current_backward_passes"), 0);
}

TEST(DistSmart, unused_results_failed_calls_and_several_losses_are_fine) {
  Cluster c({.size = 3});
  c.run(0, [&] {
    const Tensor x = leaf(1);
    Context context;
    const Tensor used = rpc_sync<times_weight>("worker1", x);
    rpc_sync<my_add>("worker2", x, x);
    EXPECT_THROW(rpc_sync<broken>("worker2", x), ShapeError);
    const auto parts = rpc_sync<two_parts>("worker2", x);
    const Tensor second = rpc_sync<chain>("worker2", x, 1).sum();
    context.backward({used.sum()}, {.mode = Backward::kSmart});
    EXPECT_DOUBLE_EQ(context.gradient(x).to_vector<double>()[0], 3);
    context.backward({parts[0].sum()}, {.mode = Backward::kSmart});
    EXPECT_DOUBLE_EQ(context.gradient(x).to_vector<double>()[0], 5);
    context.backward({second}, {.mode = Backward::kSmart});
    EXPECT_DOUBLE_EQ(context.gradient(x).to_vector<double>()[0], 5 + 4 * 2);
    EXPECT_EQ(dist_autograd::get_gradients(context.id()).size(), 2u);  // x and this worker's weight
  });
}

// ---- random graphs against the local engine

struct Plan {
  struct Op {
    int kind, a, b, worker;
  };
  std::vector<Op> ops;
  std::vector<int> losses;  // values that make up each loss
};
Plan make_plan(uint64_t seed, int workers) {
  std::mt19937_64 draw(seed);
  const auto upto = [&](int n) { return static_cast<int>(draw() % static_cast<uint64_t>(n)); };
  Plan p;
  int values = 3;
  for (int i = 0; i < 12; ++i, ++values)
    p.ops.push_back({upto(3), upto(values), upto(values), upto(workers)});
  for (int i = 0; i < 2; ++i) p.losses.push_back(3 + upto(12));
  return p;
}
}  // namespace
namespace weft_test_ops {
weft::Tensor remote_mixed(const weft::Tensor& a, const weft::Tensor& b) { return a * 0.5 + weft::sin(b); }
WEFT_RPC(remote_mixed);
weft::Tensor remote_product(const weft::Tensor& a, const weft::Tensor& b) { return a * weft::tanh(b); }
WEFT_RPC(remote_product);
}  // namespace weft_test_ops
namespace {

Tensor build(const Plan& plan, const std::vector<Tensor>& leaves, bool remote, int loss) {
  std::vector<Tensor> v = leaves;
  for (const Plan::Op& op : plan.ops) {
    const Tensor &a = v[static_cast<size_t>(op.a)], &b = v[static_cast<size_t>(op.b)];
    if (op.kind == 0) v.push_back(a + b);
    else if (op.kind == 1)
      v.push_back(remote ? rpc_sync<weft_test_ops::remote_mixed>(op.worker, a, b)
                         : weft_test_ops::remote_mixed(a, b));
    else
      v.push_back(remote ? rpc_sync<weft_test_ops::remote_product>(op.worker, a, b)
                         : weft_test_ops::remote_product(a, b));
  }
  return v[static_cast<size_t>(plan.losses[static_cast<size_t>(loss)])].sum();
}

TEST(DistSmart, random_graphs_with_unused_parts_equal_the_local_engine_entry_for_entry) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Plan plan = make_plan(seed, 3);
    Cluster c({.size = 3,
               .seed = seed,
               .net = {.jitter = 2ms, .drop = seed % 2 ? 0.1 : 0.0, .duplicate = seed % 2 ? 0.1 : 0.0}});
    c.run(0, [&] {
      for (int loss = 0; loss < 2; ++loss) {
        std::vector<Tensor> a, b;
        for (int i = 0; i < 3; ++i) a.push_back(leaf(0.3 + i)), b.push_back(leaf(0.3 + i));
        const Tensor local = build(plan, a, false, loss);
        if (!local.requires_grad() || local.is_leaf()) continue;
        const std::vector<Tensor> want = grad({local}, a, {}, {.allow_unused = true});
        Context context;
        const Tensor remote = build(plan, b, true, loss);
        ASSERT_TRUE(same_bits(remote, local)) << seed;
        context.backward({remote}, {.mode = Backward::kSmart});
        for (size_t i = 0; i < 3; ++i) {
          const Tensor got = context.gradient(b[i]);
          ASSERT_EQ(got.defined(), want[i].defined()) << "seed " << seed << " loss " << loss << " leaf " << i;
          if (got.defined()) {
            ASSERT_TRUE(weft::testing::close(got, want[i], 1e-12, 1e-12)) << "seed " << seed;
          }
        }
      }
    });
  }
}

TEST(DistSmart, a_worker_killed_during_the_pass_ends_it_with_an_error_and_no_residue) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Cluster c({.size = 3, .seed = seed, .net = {.jitter = 2ms}});
    c.run(0, [&] {
      Context context;
      const Tensor y = rpc_sync<chain>("worker1", leaf(1), 3);
      c.runtime().call_at(c.runtime().now() + std::chrono::microseconds(300 * static_cast<int>(seed)),
                          [&c] { c.kill(2); });
      try {
        context.backward({y.sum()}, {.mode = Backward::kSmart});
      } catch (const Error& e) {
        EXPECT_FALSE(std::string(e.what()).empty());
      }
    });
    c.runtime().sleep_for(30s);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(c.agent(rank)->debug_info().at("dist_autograd.num_current_backward_passes"), 0)
          << "seed " << seed << " worker " << rank;
      EXPECT_EQ(c.agent(rank)->debug_info().at("dist_autograd.num_autograd_contexts"), 0)
          << "seed " << seed << " worker " << rank;
    }
  }
}

TEST(DistFast, gradients_that_reach_a_worker_together_find_it_marked) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Cluster c({.size = 3, .seed = seed});
    c.run(0, [&] {
      const Tensor x = leaf(1);
      Context context;
      const Tensor y = rpc_sync<times_weight>("worker1", x) + rpc_sync<times_weight>("worker1", x) +
                       rpc_sync<chain>("worker2", x, 2);
      context.backward({y.sum()});
      ASSERT_TRUE(context.gradient(x).defined()) << seed;
    });
  }
}

TEST(DistFast, passes_that_fail_leave_nothing_behind_without_a_watchdog) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Cluster c({.size = 4, .seed = seed, .net = {.jitter = 500us}});
    c.run(0, [&] {
      const Tensor x = leaf(1);
      Context context;
      const Tensor fails = rpc_sync<fails_backward>("worker1", rpc_sync<times_weight>("worker2", x));
      const Tensor y = fails + rpc_sync<chain>("worker2", x, 4) +
                       rpc_sync<chain>("worker3", rpc_sync<times_weight>("worker1", x), 2);
      const auto mode = seed % 2 ? Backward::kFast : Backward::kSmart;
      try {
        context.backward({y.sum()}, {.mode = mode, .stall = 0s});
        FAIL() << "no error, seed " << seed;
      } catch (const AutogradError& e) {
        EXPECT_NE(std::string(e.what()).find("in place"), std::string::npos)
            << "seed " << seed << ": " << e.what();
      }
      rpc::current_runtime()->sleep_for(1s);
      for (int rank = 0; rank < 4; ++rank)
        EXPECT_EQ(c.agent(rank)->debug_info().at("dist_autograd.num_current_backward_passes"), 0)
            << "seed " << seed << " worker " << rank;
    });
  }
}

TEST(DistFast, a_call_to_a_worker_that_was_lost_is_not_waited_for) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Cluster c({.size = 3, .seed = seed, .net = {.connect_timeout = 500ms}});
    c.run(0, [&] {
      const Tensor x = leaf(1);
      Context context;
      c.kill(2);
      EXPECT_THROW(rpc_sync<times_weight>("worker2", x), PeerLost);
      context.backward({rpc_sync<times_weight>("worker1", x).sum()}, {.mode = Backward::kFast, .stall = 0s});
      EXPECT_DOUBLE_EQ(context.gradient(x).to_vector<double>()[0], 3) << seed;
    });
  }
}

TEST(DistRecord, a_context_is_freed_behind_workers_that_were_lost) {
  for (int dead = 1; dead <= 3; ++dead) {
    Cluster c({.size = 5, .net = {.connect_timeout = 500ms}});
    c.run(0, [&] {
      Context context;
      rpc_sync<chain>("worker1", leaf(1), 3);  // 0 to 1, 1 to 2, 2 to 3, 3 to 4
      c.kill(dead);
      rpc::current_runtime()->sleep_for(20s);
      EXPECT_EQ(c.agent(4)->debug_info().at("dist_autograd.num_autograd_contexts"), 1);
    });
    c.runtime().sleep_for(20s);
    EXPECT_EQ(c.agent(4)->debug_info().at("dist_autograd.num_autograd_contexts"), 0) << dead;
  }
}

TEST(DistFast, several_workers_share_one) {
  Cluster c({.over = Over::kGrpc, .size = 3});
  c.run_all([&](int rank) {
    for (int i = 0; i < 20; ++i) {
      const Tensor x = leaf(1);
      Context context;
      const Tensor y = rpc_sync<times_weight>("worker0", x);
      context.backward({y.sum()});
      ASSERT_DOUBLE_EQ(context.gradient(x).to_vector<double>()[0], 2) << rank;
    }
  });
}

}  // namespace
