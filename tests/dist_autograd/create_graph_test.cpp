// Backward passes that record themselves: gradients of gradients over several workers equal those of one
// process, to the third order.
#include <gtest/gtest.h>

#include <random>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/runtime/sync.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/errors.h"
#include "support/golden.h"

namespace {

using namespace weft;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using dist_autograd::Context;
using rpc::rpc_sync;
using test::Cluster;
using test::Over;

constexpr int kWorkers = 3;

Tensor varied(double v) {
  return (full({3}, v, {.dtype = kFloat64}) + tensor({0., 0.3, -0.2}, {.dtype = kFloat64})).requires_grad_();
}
using Weights = std::vector<Tensor>;
Weights fresh_weights() { return {varied(0.4), varied(0.7), varied(-0.9)}; }

/// The weights of the workers of a cluster; each worker uses its own only, over gRPC on other threads.
rpc::Mutex g_weights_mutex;
Weights g_weights WEFT_GUARDED_BY(g_weights_mutex);
Weights weights_there() {
  rpc::MutexLock lock(g_weights_mutex);
  return g_weights;
}
void renew_weights() {
  rpc::MutexLock lock(g_weights_mutex);
  g_weights = fresh_weights();
}
int self_id() { return rpc::current_agent()->self().id.value; }
Tensor own_weight() { return weights_there()[static_cast<size_t>(self_id())]; }

Tensor bend(const Tensor& a, const Tensor& w) { return tanh(a * w) + a * a * 0.3; }
Tensor mix(const Tensor& a, const Tensor& b, const Tensor& w) { return a * sin(b) * w; }

Tensor bent_there(const Tensor& a) { return bend(a, own_weight()); }
WEFT_RPC(bent_there);
Tensor mixed_there(const Tensor& a, const Tensor& b) { return mix(a, b, own_weight()); }
WEFT_RPC(mixed_there);
Tensor bent_behind(const Tensor& a, int64_t worker) {
  return rpc_sync<bent_there>(static_cast<int>(worker), a * own_weight()) * own_weight();
}
WEFT_RPC(bent_behind);

Tensor bent_sum(const Tensor& a) { return bent_there(a).sum(); }
WEFT_RPC(bent_sum);

/// The sum of the squares of the gradient of this worker's weight.
Tensor gradient_square() {
  const Tensor g = dist_autograd::get_gradient(dist_autograd::current_context_id(), own_weight());
  return g.defined() ? (g * g).sum() : zeros({}, {.dtype = kFloat64});
}
WEFT_RPC(gradient_square);
/// The gradient of this worker's weight; empty without one.
std::vector<double> weight_gradient_now() {
  const Tensor g = dist_autograd::get_gradient(dist_autograd::current_context_id(), own_weight());
  return g.defined() ? g.detach().to_vector<double>() : std::vector<double>();
}
WEFT_RPC(weight_gradient_now);

struct GraphPlan {
  struct Op {
    int kind;  // 0: sum, 1: bent, 2: mixed, 3: bent behind another worker
    size_t a, b;
    int worker, behind;
  };
  std::vector<Op> ops;
  size_t loss = 0;
};
GraphPlan make_graph_plan(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto upto = [&](size_t n) { return static_cast<size_t>(random() % n); };
  GraphPlan p;
  for (size_t i = 0; i < 7; ++i)
    p.ops.push_back({static_cast<int>(upto(4)), upto(2 + i), upto(2 + i), static_cast<int>(upto(kWorkers)),
                     static_cast<int>(upto(kWorkers))});
  p.loss = 2 + 6 - upto(3);
  return p;
}

/// The loss of a plan; with `local` weights in this process.
Tensor run_plan(const GraphPlan& plan, const Weights& leaves, const Weights* local) {
  Weights v = leaves;
  for (const GraphPlan::Op& op : plan.ops) {
    const Tensor &a = v[op.a], &b = v[op.b];
    const auto w = [&](int worker) { return (*local)[static_cast<size_t>(worker)]; };
    switch (op.kind) {
      case 0: v.push_back(a * 0.5 + b); break;
      case 1: v.push_back(local ? bend(a, w(op.worker)) : rpc_sync<bent_there>(op.worker, a)); break;
      case 2: v.push_back(local ? mix(a, b, w(op.worker)) : rpc_sync<mixed_there>(op.worker, a, b)); break;
      default:
        v.push_back(local ? bend(a * w(op.worker), w(op.behind)) * w(op.worker)
                          : rpc_sync<bent_behind>(op.worker, a, op.behind));
    }
  }
  return v[plan.loss].sum();
}

using Numbers = std::vector<std::vector<double>>;
std::vector<double> numbers(const Tensor& g) {
  return g.defined() ? g.detach().to_vector<double>() : std::vector<double>();
}

/// Gradients of leaves and weights after the loss and `orders - 1` penalties on them, in one process.
Numbers in_one_process(const GraphPlan& plan, int orders) {
  const Weights leaves{varied(0.2), varied(-0.5)}, weights = fresh_weights();
  Tensor root = run_plan(plan, leaves, &weights);
  Weights all = leaves;
  all.insert(all.end(), weights.begin(), weights.end());
  for (int order = 1; order <= orders; ++order) {
    if (!root.requires_grad()) break;
    root.backward({}, order < orders, order < orders);
    if (order == orders) break;
    root = zeros({}, {.dtype = kFloat64});
    for (const Tensor& t : all)
      if (t.grad().defined()) root = root + (t.grad() * t.grad()).sum();
  }
  Numbers out;
  for (const Tensor& t : all) out.push_back(numbers(t.grad()));
  return out;
}

/// The same over the workers of a cluster.
Numbers over_workers(const GraphPlan& plan, int orders) {
  renew_weights();
  const Weights leaves{varied(0.2), varied(-0.5)};
  Context context;
  Tensor root = run_plan(plan, leaves, nullptr);
  for (int order = 1; order <= orders; ++order) {
    if (!root.requires_grad()) break;
    context.backward({root}, {.create_graph = order < orders});
    if (order == orders) break;
    root = zeros({}, {.dtype = kFloat64});
    for (const Tensor& t : leaves)
      if (const Tensor g = context.gradient(t); g.defined()) root = root + (g * g).sum();
    for (int worker = 0; worker < kWorkers; ++worker) root = root + rpc_sync<gradient_square>(worker);
  }
  Numbers out;
  for (const Tensor& t : leaves) out.push_back(numbers(context.gradient(t)));
  for (int worker = 0; worker < kWorkers; ++worker) out.push_back(rpc_sync<weight_gradient_now>(worker));
  return out;
}

void expect_close(const Numbers& got, const Numbers& want, const std::string& where) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size()) << where << ", tensor " << i;  // an absent one is absent in both
    for (size_t k = 0; k < want[i].size(); ++k)
      ASSERT_NEAR(got[i][k], want[i][k], 1e-9 * (1 + std::abs(want[i][k]))) << where << ", tensor " << i;
  }
}

TEST(DistCreateGraph, random_programs_have_the_gradients_of_gradients_of_one_process) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const GraphPlan plan = make_graph_plan(seed);
    Cluster c({.size = kWorkers,
               .seed = seed,
               .net = {.jitter = 2ms, .drop = seed % 2 ? 0.1 : 0.0, .duplicate = seed % 2 ? 0.1 : 0.0}});
    c.run(0, [&] {
      for (const int orders : {2, 3})
        expect_close(over_workers(plan, orders), in_one_process(plan, orders),
                     str("seed ", static_cast<int64_t>(seed), ", order ", orders));
    });
    for (int rank = 0; rank < kWorkers; ++rank)
      for (const char* key :
           {"dist_autograd.num_autograd_contexts", "dist_autograd.num_current_backward_passes"})
        EXPECT_TRUE(test::eventually(c, [&] { return c.agent(rank)->debug_info().at(key) == 0; })) << key;
  }
}

TEST(DistCreateGraph, live_workers_have_the_gradients_of_gradients_of_one_process) {
  Cluster c({.over = Over::kGrpc, .size = kWorkers});
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const GraphPlan plan = make_graph_plan(seed);
    c.run(0, [&] { expect_close(over_workers(plan, 2), in_one_process(plan, 2), str(seed)); });
  }
  c.shutdown();
}

TEST(DistCreateGraph, only_a_recorded_pass_gives_gradients_that_have_a_graph) {
  Cluster c({.size = kWorkers});
  renew_weights();
  c.run(0, [&] {
    for (const bool recorded : {true, false}) {
      const Tensor x = varied(0.2);
      Context context;
      context.backward({rpc_sync<bent_behind>(1, x, 2).sum()}, {.create_graph = recorded});
      EXPECT_EQ(context.gradient(x).requires_grad(), recorded);
      EXPECT_EQ(rpc_sync<gradient_square>(2).requires_grad(), recorded);
      // more than one pass: the sum keeps the graph
      context.backward({rpc_sync<bent_there>(1, x).sum()});
      EXPECT_EQ(context.gradient(x).requires_grad(), recorded);
      EXPECT_FALSE(x.grad().defined());
    }
  });
}

TEST(DistCreateGraph, fast_refuses_it_by_name) {
  Cluster c({.size = 2});
  renew_weights();
  c.run(0, [&] {
    const Tensor x = varied(0.2);
    Context context;
    const auto there = rpc::remote<bent_sum>("worker1", x);
    const Tensor here = there.to_here() * 1.0;
    const dist_autograd::BackwardOptions options{.create_graph = true, .mode = Backward::kFast};
    for (const bool remote : {false, true}) {
      try {
        if (remote) there.backward(context.id(), options);
        else context.backward({here}, options);
        ADD_FAILURE() << "no error";
      } catch (const AutogradError& e) {
        EXPECT_NE(std::string(e.what()).find("kFast does not take create_graph"), std::string::npos)
            << e.what();
      }
    }
    EXPECT_TRUE(context.gradients().empty());
    there.backward(context.id(), {.create_graph = true});
    EXPECT_TRUE(context.gradient(x).requires_grad());
  });
}

TEST(DistCreateGraph, fast_refuses_a_context_with_a_recorded_pass_at_once) {
  Cluster c({.size = 2});
  renew_weights();
  c.run(0, [&] {
    const Tensor x = varied(0.2);
    Context context;
    const auto there = rpc::remote<bent_sum>("worker1", x);
    context.backward({there.to_here() * 1.0}, {.create_graph = true});
    const auto before = context.gradient(x).detach().to_vector<double>();
    const dist_autograd::BackwardOptions fast{.mode = Backward::kFast};
    const Tensor penalty = context.gradient(x).square().sum();
    const auto refused = [](const std::string& text) {
      return text.find("kFast does not fit a context with a recorded pass") != std::string::npos;
    };
    EXPECT_PRED1(refused, test::error_of<AutogradError>([&] { context.backward({penalty}, fast); }));
    EXPECT_PRED1(refused, test::error_of<AutogradError>([&] { there.backward(context.id(), fast); }));
    EXPECT_EQ(context.gradient(x).detach().to_vector<double>(), before);
    context.backward({penalty});
  });
}

TEST(DistCreateGraph, a_recorded_pass_that_loses_a_worker_leaves_no_gradients_and_no_contexts) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Cluster c({.size = kWorkers, .seed = seed, .net = {.jitter = 2ms}});
    renew_weights();
    c.run(0, [&] {
      const Tensor x = varied(0.2);
      Context context;
      context.backward({rpc_sync<bent_behind>(1, x, 2).sum()}, {.create_graph = true});
      const Tensor penalty = context.gradient(x).square().sum();
      const std::vector<double> before = numbers(context.gradient(x));
      c.runtime().call_at(c.runtime().now() + std::chrono::microseconds(300 * static_cast<int>(seed)),
                          [&c] { c.kill(2); });
      bool failed = false;
      try {
        context.backward({penalty}, {.create_graph = true});
      } catch (const Error&) {
        failed = true;
      }
      if (failed) {
        EXPECT_EQ(numbers(context.gradient(x)), before) << seed;
      }
    });
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(test::eventually(
          c, [&] { return c.agent(rank)->debug_info().at("dist_autograd.num_autograd_contexts") == 0; }));
  }
}

}  // namespace
