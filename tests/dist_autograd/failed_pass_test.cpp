// A pass that fails leaves no gradient in its context on any worker, and none of those before it changes. A
// SMART pass may take its time.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/hooks.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using dist_autograd::Context;
using rpc::rpc_sync;
using test::Cluster;

Tensor three(double v) { return full({3}, v, {.dtype = kFloat64}).requires_grad_(); }

/// The weight of each worker: 2, 3, 4, ...
Tensor failing_weight() {
  static std::map<int32_t, Tensor> weights;
  const int32_t self = rpc::current_agent()->self().id.value;
  Tensor& w = weights[self];
  if (!w.defined()) w = three(2.0 + self);
  return w;
}
/// The product with the weights of this worker and of those on the way.
Tensor product_on_way(const Tensor& x, const std::vector<int64_t>& way) {
  const Tensor y = x * failing_weight();
  if (way.empty()) return y;
  return rpc_sync<product_on_way>(static_cast<int>(way[0]), y,
                                  std::vector<int64_t>(way.begin() + 1, way.end()));
}
WEFT_RPC(product_on_way);

bool& fails_now() {
  static bool on = true;
  return on;
}
/// The product with the weight, whose backward takes a while; then it throws while fails_now().
Tensor slow_product(const Tensor& x, int64_t milliseconds) {
  const Tensor y = x * failing_weight();
  register_hook(y, [milliseconds](const Tensor&) {
    rpc::current_runtime()->sleep_for(std::chrono::milliseconds(milliseconds));
    if (fails_now()) throw ValueError("this backward fails");
    return Tensor();
  });
  return y;
}
WEFT_RPC(slow_product);

/// The product on a way over worker 2. In its backward this worker rests when that of worker 2 is done.
Tensor resting_product(const Tensor& x) {
  const Tensor y = x * failing_weight();
  register_hook(y, [](const Tensor&) {
    rpc::current_runtime()->sleep_for(30s);
    return Tensor();
  });
  return rpc_sync<product_on_way>(2, y, std::vector<int64_t>());
}
WEFT_RPC(resting_product);

/// The gradient of a worker's weight in a context; 0 without one.
double weight_gradient(int64_t context) {
  const Tensor g = dist_autograd::get_gradient(context, failing_weight());
  return g.defined() ? g.to_vector<double>()[0] : 0;
}
WEFT_RPC(weight_gradient);
/// Those of workers 1 to 3, as the worker 0 of the test asks for them.
std::vector<double> weight_gradients(int64_t context) {
  std::vector<double> out;
  for (int rank = 1; rank <= 3; ++rank) out.push_back(rpc_sync<weight_gradient>(rank, context));
  return out;
}
double gradient_of(const Context& context, const Tensor& x) {
  const Tensor g = context.gradient(x);
  return g.defined() ? g.to_vector<double>()[0] : 0;
}

using Three = std::vector<double>;

class DistFailed : public ::testing::TestWithParam<Backward> {
 protected:
  ~DistFailed() override { fails_now() = true; }
};
INSTANTIATE_TEST_SUITE_P(Modes, DistFailed, ::testing::Values(Backward::kFast, Backward::kSmart),
                         [](const auto& info) { return info.param == Backward::kFast ? "fast" : "smart"; });

TEST_P(DistFailed, a_pass_leaves_no_gradients_also_where_its_part_was_done) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Cluster c({.size = 4, .seed = seed, .net = {.jitter = 3ms}});
    c.run(0, [&] {
      const Tensor x = three(1);
      Context context;
      fails_now() = true;
      // to workers 1 and 2 and back long before worker 3 fails; with odd seeds at about the same time
      const Tensor good = rpc_sync<product_on_way>(1, x, std::vector<int64_t>{2});
      const Tensor bad = rpc_sync<slow_product>(3, x * failing_weight(), seed % 2 ? 2 : 5000);
      EXPECT_THROW(context.backward({(good + bad).sum()}, {.mode = GetParam()}), ValueError);
      EXPECT_EQ(weight_gradients(context.id()), (Three{0, 0, 0})) << seed;
      EXPECT_EQ(gradient_of(context, x), 0) << seed;
      EXPECT_TRUE(context.gradients().empty()) << seed;
    });
  }
}

TEST_P(DistFailed, a_pass_leaves_no_gradients_behind_a_worker_that_was_lost) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Cluster c({.size = 4, .seed = seed, .net = {.jitter = 3ms}});
    c.run(0, [&] {
      const Tensor x = three(1);
      Context context;
      const Tensor y = rpc_sync<product_on_way>(3, rpc_sync<resting_product>(1, x), std::vector<int64_t>());
      c.sim().call_at(c.sim().now() + 5s, [&] { c.kill(1); });
      EXPECT_THROW(context.backward({y.sum()}, {.mode = GetParam()}), PeerLost);
      for (const int rank : {2, 3}) EXPECT_EQ(rpc_sync<weight_gradient>(rank, context.id()), 0) << seed;
      EXPECT_EQ(gradient_of(context, x), 0) << seed;
    });
  }
}

TEST_P(DistFailed, the_gradients_of_earlier_passes_stay_and_those_of_later_ones_are_added) {
  Cluster c({.size = 4, .net = {.jitter = 3ms}});
  c.run(0, [&] {
    const Tensor x = three(1);
    Context context;
    const Tensor loss =
        (rpc_sync<product_on_way>(1, x, std::vector<int64_t>{2}) + rpc_sync<slow_product>(3, x, 1000)).sum();
    const dist_autograd::BackwardOptions options{.retain_graph = true, .mode = GetParam()};
    double times = 0;
    for (const bool fails : {true, false, false, true, true, false, true}) {
      fails_now() = fails;
      if (fails) EXPECT_THROW(context.backward({loss}, options), ValueError);
      else context.backward({loss}, options), ++times;
      EXPECT_EQ(weight_gradients(context.id()), (Three{4 * times, 3 * times, times}));
      EXPECT_EQ(gradient_of(context, x), 17 * times);
    }
  });
}

TEST(DistFailedFast, a_stalled_pass_leaves_no_gradients_and_smart_goes_over_the_same_graph) {
  Cluster c({.size = 4});
  c.run(0, [&] {
    const Tensor x = three(1);
    Context context;
    const Tensor loss = rpc_sync<product_on_way>(1, x, std::vector<int64_t>{2, 3}).sum();
    rpc_sync<product_on_way>(2, x, std::vector<int64_t>{});  // not used
    EXPECT_THROW(context.backward({loss}, {.retain_graph = true, .mode = Backward::kFast, .stall = 2s}),
                 AutogradError);
    EXPECT_EQ(weight_gradients(context.id()), (Three{0, 0, 0}));
    EXPECT_TRUE(context.gradients().empty());
    context.backward({loss}, {.mode = Backward::kSmart});
    EXPECT_EQ(weight_gradients(context.id()), (Three{20, 15, 12}));
    EXPECT_EQ(gradient_of(context, x), 60);
  });
}

TEST(DistFailedFast, what_a_failed_pass_has_freed_is_said_by_the_next) {
  Cluster c({.size = 4});
  c.run(0, [&] {
    const Tensor x = three(1);
    Context context;
    const Tensor loss = rpc_sync<product_on_way>(1, x, std::vector<int64_t>{2, 3}).sum();
    rpc_sync<product_on_way>(2, x, std::vector<int64_t>{});  // not used
    EXPECT_THROW(context.backward({loss}, {.mode = Backward::kFast, .stall = 2s}), AutogradError);
    try {
      context.backward({loss}, {.mode = Backward::kSmart});
      ADD_FAILURE() << "no error";
    } catch (const AutogradError& e) {
      EXPECT_NE(std::string(e.what()).find("a pass that failed has freed them too"), std::string::npos)
          << e.what();
    }
    EXPECT_EQ(weight_gradients(context.id()), (Three{0, 0, 0}));
  });
}

TEST(DistSlowSmart, a_healthy_pass_may_take_longer_than_the_watchdog_of_fast) {
  Cluster c({.size = 4});
  fails_now() = false;
  c.run(0, [&] {
    const Tensor x = three(1);
    Context context;
    const Tensor y = rpc_sync<slow_product>(1, rpc_sync<product_on_way>(2, x, std::vector<int64_t>{}), 90000);
    context.backward({rpc_sync<product_on_way>(3, y, std::vector<int64_t>{}).sum()},
                     {.mode = Backward::kSmart});
    EXPECT_EQ(gradient_of(context, x), 60);
  });
  fails_now() = true;
}

}  // namespace
