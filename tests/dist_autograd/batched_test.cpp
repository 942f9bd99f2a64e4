// Dynamic batching: joined calls, callers that are refused or left out, and a joined run's gradients in the
// contexts of its callers.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rpc/batched.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using dist_autograd::Context;
using test::Cluster;
using test::Over;

constexpr int kCallers = 3;

/// Rows of each run of the batched functions since the last clear(), in order.
struct Runs {
  std::mutex mutex;
  std::vector<int64_t> rows;
  void add(int64_t n) {
    const std::lock_guard lock(mutex);
    rows.push_back(n);
  }
  std::vector<int64_t> take() {
    const std::lock_guard lock(mutex);
    return std::exchange(rows, {});
  }
};
Runs g_runs;

const Tensor& weight() {
  static const Tensor w = from_vector(std::vector<double>{1, -2, 0.5, 3, 0.25, -1}, {2, 3}).requires_grad_();
  return w;
}

Tensor layer(const Tensor& x) { return tanh(matmul(x, weight())); }

Tensor batched_layer(const Tensor& x) {
  g_runs.add(x.size(0));
  return layer(x);
}
WEFT_RPC_BATCHED(batched_layer, {.max_batch = kCallers, .max_wait = 1min});

/// Waits 20 ms for up to 4 rows.
std::pair<Tensor, Tensor> soon(const Tensor& x, double scale) {
  g_runs.add(x.size(0));
  return {x * scale, layer(x)};
}
WEFT_RPC_BATCHED(soon, {.max_batch = 4, .max_wait = 20ms});

Tensor strict(const Tensor& x) {
  g_runs.add(x.size(0));
  if ((x.detach() < 0.0).any().item<bool>()) throw ValueError("a negative value");
  return x + 1.0;
}
WEFT_RPC_BATCHED_AS("strict", strict, {.max_batch = 4, .max_wait = 20ms});
Tensor strict_apart(const Tensor& x) { return strict(x); }
WEFT_RPC_BATCHED(strict_apart, {.max_batch = 4, .max_wait = 20ms, .apart_after_error = true});

Tensor of_wrong_length(const Tensor& x) { return x.sum().reshape({1}); }
WEFT_RPC_BATCHED(of_wrong_length, {.max_batch = 2, .max_wait = 20ms});

struct Scaler {
  Scaler(double by) : by(by) {}
  Tensor scaled(const Tensor& x) {
    g_runs.add(x.size(0));
    return x * by;
  }
  int64_t unused() const { return 0; }
  double by;
};
WEFT_RPC_CLASS(Scaler, unused);
WEFT_RPC_BATCHED_METHOD(Scaler, scaled, {.max_batch = 2, .max_wait = 20ms});

Tensor gradient_of_batched_weight(int64_t context_id) {
  return dist_autograd::get_gradient(context_id, weight());
}
WEFT_RPC(gradient_of_batched_weight);

Tensor input(double first, int64_t rows = 1) {
  std::vector<double> values;
  for (int64_t i = 0; i < 2 * rows; ++i) values.push_back(first + 0.1 * static_cast<double>(i));
  return from_vector(values, {rows, 2});
}

void expect_near(const Tensor& got, const Tensor& want) {
  ASSERT_TRUE(got.defined());
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_TRUE(allclose(got.detach(), want.detach(), 1e-12, 1e-12));
}

/// A pass of one caller over its joined call, and over the same call without batching.
void train(double first, Backward mode, const std::function<void()>& all_called) {
  const Tensor x = input(first).requires_grad_(), plain = input(first).requires_grad_();
  const Tensor scale = full({1, 3}, 1 + first, {.dtype = kFloat64});
  const std::vector<Tensor> want = weft::grad({(layer(plain) * scale).sum()}, {plain, weight()});
  Context context;
  const Tensor y = rpc_sync<batched_layer>("worker0", x);
  expect_near(y, layer(plain));
  all_called();
  const Tensor loss = (y * scale).sum();
  context.backward({loss}, {.retain_graph = true, .mode = mode});
  expect_near(context.gradient(x), want[0]);
  expect_near(rpc_sync<gradient_of_batched_weight>("worker0", context.id()), want[1]);
  context.backward({loss}, {.mode = mode});
  expect_near(context.gradient(x), want[0] * 2.0);
  expect_near(rpc_sync<gradient_of_batched_weight>("worker0", context.id()), want[1] * 2.0);
  EXPECT_THROW(context.backward({loss}, {.mode = mode}), AutogradError);
}

struct BatchedParam {
  Over over;
  Backward mode;
};
class BatchedOver : public ::testing::TestWithParam<BatchedParam> {};
INSTANTIATE_TEST_SUITE_P(Modes, BatchedOver,
                         ::testing::Values(BatchedParam{Over::kSim, Backward::kFast},
                                           BatchedParam{Over::kSim, Backward::kSmart},
                                           BatchedParam{Over::kGrpc, Backward::kSmart}),
                         [](const auto& info) {
                           return to_string(info.param.over) +
                                  (info.param.mode == Backward::kFast ? "_fast" : "_smart");
                         });

TEST_P(BatchedOver, one_run_gives_each_context_the_gradients_of_its_own_call) {
  g_runs.take();
  Cluster c({.over = GetParam().over, .size = kCallers + 1});
  c.run_all([&](int rank) {
    if (rank > 0) train(0.3 * rank, GetParam().mode, [] {});
    barrier();
  });
  EXPECT_EQ(g_runs.take(), std::vector<int64_t>{kCallers});
  EXPECT_TRUE(test::eventually(
      c, [&] { return c.agent(0)->debug_info().at("dist_autograd.num_autograd_contexts") == 0; }));
  EXPECT_EQ(c.agent(0)->debug_info().at("batch.runs"), 1);
  EXPECT_EQ(c.agent(0)->debug_info().at("batch.calls"), kCallers);
  EXPECT_FALSE(weight().grad().defined());
}

TEST(Batched, a_run_has_at_most_the_largest_batch_and_calls_wait_at_most_the_longest_wait) {
  g_runs.take();
  Cluster c({.size = 2});
  c.run(0, [&] {
    const TimePoint before = current_runtime()->now();
    std::vector<Future<std::pair<Tensor, Tensor>>> calls;
    for (int i = 0; i < 5; ++i) calls.push_back(rpc_async<soon>("worker1", input(i), 2.0));
    for (int i = 0; i < 5; ++i) {
      const auto [twice, y] = calls[static_cast<size_t>(i)].take();
      expect_near(twice, input(i) * 2.0);
      expect_near(y, layer(input(i)));
    }
    EXPECT_EQ(g_runs.take(), (std::vector<int64_t>{4, 1}));
    const Duration took = current_runtime()->now() - before;
    EXPECT_GE(took, 20ms);  // the fifth waited for others
    EXPECT_LT(took, 40ms);
    const auto three = rpc_async<soon>("worker1", input(1, 3), 1.0);
    const auto two = rpc_async<soon>("worker1", input(2, 2), 1.0);  // too many rows together
    const auto six = rpc_async<soon>("worker1", input(3, 6), 1.0);  // more than a batch: alone
    expect_near(three.wait().first, input(1, 3));
    expect_near(two.wait().first, input(2, 2));
    expect_near(six.wait().first, input(3, 6));
    std::vector<int64_t> rows = g_runs.take();
    std::sort(rows.begin(), rows.end());
    EXPECT_EQ(rows, (std::vector<int64_t>{2, 3, 6}));
  });
}

TEST(Batched, a_call_of_another_shape_dtype_or_value_runs_apart_and_a_wrong_one_fails_alone) {
  g_runs.take();
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto right = rpc_async<soon>("worker1", input(1), 2.0),
               too = rpc_async<soon>("worker1", input(2), 2.0);
    const auto wide = rpc_async<soon>("worker1", ones({1, 7}, {.dtype = kFloat64}), 2.0);
    const auto value = rpc_async<soon>("worker1", input(3), 3.0);
    const auto scalar = rpc_async<soon>("worker1", full({}, 1.0, {.dtype = kFloat64}), 2.0);
    expect_near(right.wait().first, input(1) * 2.0);
    expect_near(too.wait().first, input(2) * 2.0);
    expect_near(value.wait().first, input(3) * 3.0);
    EXPECT_THROW(wide.wait(), ShapeError);
    EXPECT_THROW(scalar.wait(), ValueError);
    std::vector<int64_t> rows = g_runs.take();
    std::sort(rows.begin(), rows.end());
    EXPECT_EQ(rows, (std::vector<int64_t>{1, 1, 2}));
  });
}

TEST(Batched, an_error_of_the_run_is_the_answer_of_all_or_with_apart_after_error_of_one) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto good = rpc_async<strict>("worker1", input(1)), bad = rpc_async<strict>("worker1", input(-1));
    EXPECT_THROW(good.wait(), ValueError);
    EXPECT_THROW(bad.wait(), ValueError);
    const auto kept = rpc_async<strict_apart>("worker1", input(1));
    const auto wrong = rpc_async<strict_apart>("worker1", input(-1));
    expect_near(kept.wait(), input(1) + 1.0);
    EXPECT_THROW(wrong.wait(), ValueError);
    try {
      rpc_sync<of_wrong_length>("worker1", input(1, 2));
      FAIL();
    } catch (const ShapeError& e) {
      EXPECT_NE(std::string(e.what()).find("'of_wrong_length' returned sizes [1] for 2 rows"),
                std::string::npos)
          << e.what();
    }
  });
}

TEST(Batched, a_caller_that_has_given_up_is_left_out) {
  g_runs.take();
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto kept = rpc_async<soon>("worker1", input(1), 2.0),
               gone = rpc_async<soon>("worker1", input(2), 2.0);
    const auto late = rpc_async<soon>({"worker1", 10ms}, input(3), 2.0);
    current_runtime()->sleep_for(5ms);
    EXPECT_TRUE(gone.cancel());
    expect_near(kept.wait().first, input(1) * 2.0);
    EXPECT_THROW(gone.wait(), Cancelled);
    EXPECT_THROW(late.wait(), Timeout);
  });
  EXPECT_EQ(g_runs.take(), std::vector<int64_t>{1});
  EXPECT_EQ(c.agent(1)->debug_info().at("batch.left_out"), 2);
}

TEST(Batched, the_loss_of_a_caller_leaves_the_passes_of_the_others_alone) {
  g_runs.take();
  Cluster c({.size = kCallers + 1, .agent = {.lease = 1s}});
  Event called(c.runtime(), "the call of the worker to be lost"), lost(c.runtime(), "its loss");
  std::atomic<int> with_result{0};
  c.runtime().post([&] {
    called.wait();
    c.kill(3);
    test::eventually(c, [&] { return c.agent(0)->is_lost({WorkerId{3}}); });
    lost.set();
  });
  c.run_all([&](int rank) {
    if (rank == 0) return;
    if (rank == 3) {
      const Tensor x = input(9).requires_grad_();
      Context context;
      const Tensor y = rpc_sync<batched_layer>("worker0", x);
      while (with_result < 2) current_runtime()->sleep_for(1ms);
      called.set();
      return;
    }
    train(0.3 * rank, Backward::kSmart, [&] {
      ++with_result;
      lost.wait();
    });
  });
  EXPECT_EQ(g_runs.take(), std::vector<int64_t>{kCallers});
  EXPECT_TRUE(test::eventually(
      c, [&] { return c.agent(0)->debug_info().at("dist_autograd.num_autograd_contexts") == 0; }));
}

TEST(Batched, methods_are_joined_per_object) {
  g_runs.take();
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto two = remote<Scaler>("worker1", 2.0), three = remote<Scaler>("worker1", 3.0);
    const auto a = two.rpc_async<&Scaler::scaled>(input(1)), b = two.rpc_async<&Scaler::scaled>(input(2));
    const auto other = three.rpc_async<&Scaler::scaled>(input(3));
    expect_near(a.wait(), input(1) * 2.0);
    expect_near(b.wait(), input(2) * 2.0);
    expect_near(other.wait(), input(3) * 3.0);
  });
  EXPECT_EQ(g_runs.take(), (std::vector<int64_t>{2, 1}));
}

TEST(Batched, the_end_of_a_worker_drops_the_calls_that_wait_there) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto waits = rpc_async<batched_layer>("worker1", input(1));
    current_runtime()->sleep_for(5ms);
    EXPECT_EQ(c.agent(1)->debug_info().at("batch.waiting"), 1);
    c.agent(1)->shutdown({.graceful = false});
    EXPECT_THROW(waits.wait(), RpcError);
  });
}

}  // namespace
