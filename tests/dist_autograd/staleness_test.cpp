// Versions of parameters and the bound on staleness: the news to a trainer, which steps are refused, and that
// a refused step changes nothing. The trainers share a cell on worker 1.
#include <gtest/gtest.h>

#include <atomic>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rpc/step_errors.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/errors.h"
#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using dist_autograd::Context;
using dist_optim::DistributedOptimizer;
using weft::testing::same_bits;

/// The weights of the test, on worker 1.
Tensor& aged_weight() {
  static Tensor w;
  return w;
}
Tensor& aged_bias() {
  static Tensor v;
  return v;
}
void reset_aged() {
  aged_weight() = full({3}, 0.5).requires_grad_();
  aged_bias() = full({3}, 0.25).requires_grad_();
}
Tensor aged_forward(const Tensor& x) { return x * aged_weight(); }
Tensor aged_biased(const Tensor& x) { return x + aged_bias(); }
std::vector<RRef<Tensor>> aged_params() { return {RRef<Tensor>(aged_weight()), RRef<Tensor>(aged_bias())}; }
Tensor aged_value() { return aged_weight().detach().clone(); }
WEFT_RPC(aged_forward);
WEFT_RPC(aged_biased);
WEFT_RPC(aged_params);
WEFT_RPC(aged_value);

DistributedOptimizer bounded(int64_t bound) {
  return dist_optim::make<optim::SGDRule>(rpc_sync<aged_params>("worker1"), {.lr = 0.1},
                                          {.max_staleness = bound});
}
void step_once(DistributedOptimizer& opt) {
  Context context;
  context.backward({rpc_sync<aged_forward>("worker1", ones({3})).sum()});
  opt.step(context.id());
}

/// Trainer `slow` reads the parameters, then worker 2 takes `others` steps,
/// then the slow one steps.
void overtake(int slow, int64_t bound, int others, bool refused) {
  reset_aged();
  Cluster c({.size = 3});
  std::atomic<bool> read{false}, passed{false};
  c.run_all([&](int rank) {
    if (rank == slow) {
      DistributedOptimizer opt = bounded(bound);
      EXPECT_EQ(opt.versions(), (std::vector<int64_t>{0, 0}));
      {
        Context context;
        const Tensor y = rank == 1 ? aged_forward(ones({3})) : rpc_sync<aged_forward>("worker1", ones({3}));
        read = true;
        ASSERT_TRUE(eventually(c, [&] { return passed.load(); }));
        context.backward({y.sum()});
        EXPECT_EQ(opt.staleness(context.id()), others);
        const Tensor before = rpc_sync<aged_value>("worker1");
        if (refused) {
          const std::string text = error_of<StaleStep>([&] { opt.step(context.id()); });
          EXPECT_TRUE(
              has(text, str("have taken ", others, others == 1 ? " step" : " steps", " since context ",
                            context.id(), " first reached this worker; the bound is ", bound)));
          EXPECT_TRUE(same_bits(rpc_sync<aged_value>("worker1"), before));
        } else {
          opt.step(context.id());
          EXPECT_FALSE(same_bits(rpc_sync<aged_value>("worker1"), before));
        }
      }
      EXPECT_EQ(opt.versions(), (std::vector<int64_t>{others + (refused ? 0 : 1), 0}));
      step_once(opt);  // a new context reads new values
    } else if (rank == 2) {
      DistributedOptimizer opt = bounded(-1);
      ASSERT_TRUE(eventually(c, [&] { return read.load(); }));
      for (int i = 0; i < others; ++i) step_once(opt);
      passed = true;
    }
  });
}

TEST(DistStaleness, a_step_from_parameters_older_than_the_bound_is_refused_by_type) {
  for (const int slow : {0, 1}) {  // 1: the owner trains, too
    overtake(slow, -1, 3, false);
    overtake(slow, 3, 3, false);
    overtake(slow, 2, 3, true);
    overtake(slow, 0, 1, true);
    overtake(slow, 0, 0, false);
  }
}

TEST(DistStaleness, a_second_step_of_one_context_is_one_version_late_and_other_parameters_do_not_count) {
  reset_aged();
  Cluster c({.size = 2});
  c.run(0, [&] {
    DistributedOptimizer opt = bounded(0);
    Context context;
    context.backward({rpc_sync<aged_forward>("worker1", ones({3})).sum()});
    opt.step(context.id());
    EXPECT_EQ(opt.staleness(context.id()), 1);
    EXPECT_THROW(opt.step(context.id()), StaleStep);
  });
  reset_aged();
  c.run(0, [&] {
    DistributedOptimizer opt = bounded(0);
    const auto params = rpc_sync<aged_params>("worker1");
    DistributedOptimizer other = dist_optim::make<optim::SGDRule>({params[1]}, {.lr = 0.1});
    Context context;
    context.backward({rpc_sync<aged_biased>("worker1", ones({3})).sum()});
    other.step(context.id());
    EXPECT_EQ(opt.versions(), (std::vector<int64_t>{0, 1}));  // all optimizers of a parameter share its count
    EXPECT_THROW(opt.step(context.id()), StaleStep);
    EXPECT_EQ(opt.versions(), (std::vector<int64_t>{0, 1}));
  });
  c.run(0, [&] {
    EXPECT_THROW(bounded(1024), ValueError);
    DistributedOptimizer opt = bounded(0);
    EXPECT_THROW(opt.staleness(12345), AutogradError);
    step_once(opt);
  });
}

TEST(DistStaleness, trainers_at_once_step_only_within_the_bound_and_every_version_is_an_accepted_step) {
  for (const int64_t bound : {-1, 0, 1, 5}) {
    reset_aged();
    Cluster c({.size = 5, .seed = static_cast<uint64_t>(bound + 3)});
    std::atomic<int> accepted{0}, refused{0}, ended{0};
    c.run_all([&](int rank) {
      if (rank == 1) return;
      DistributedOptimizer opt = bounded(bound);
      for (int i = 0; i < 10; ++i) {
        Context context;
        context.backward({rpc_sync<aged_forward>("worker1", ones({3})).sum()});
        try {
          opt.step(context.id());
          ++accepted;
          EXPECT_GE(opt.staleness(context.id()), 1);  // its own step, and those of others
        } catch (const StaleStep&) {
          ++refused;
        }
      }
      ++ended;
      ASSERT_TRUE(eventually(c, [&] { return ended == 4; }));
      EXPECT_EQ(opt.versions()[0], accepted.load());
    });
    EXPECT_EQ(accepted + refused, 40);
    EXPECT_GT(accepted, 0);
    EXPECT_TRUE(bound >= 0 || refused == 0) << refused;
    EXPECT_TRUE(bound != 0 || refused > 0);
    EXPECT_NEAR(aged_weight().to_vector<float>()[0], 0.5 - 0.1 * accepted, 1e-4);
  }
}

}  // namespace
