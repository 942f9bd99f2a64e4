// Steps in two phases, in simulation, with the bits of one process. Under a kill or lost messages at every
// point all living owners keep the old values or all have the new ones. Or they refuse newer steps until
// told.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/optim/inner/step_seam.h>
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
using dist_optim::StepOptions;
using weft::testing::same_bits;

constexpr StepOptions kTwoPhases{.two_phase = true, .lease_ms = 50};

Tensor column_of(int rank) { return full({3}, 0.1 * rank + 0.3).requires_grad_(); }

/// The parameter of each worker of the test.
std::map<int, Tensor>& columns() {
  static std::map<int, Tensor> all;
  return all;
}
void reset_columns(int size) {
  columns().clear();
  for (int rank = 0; rank < size; ++rank) columns()[rank] = column_of(rank);
}
Tensor& column_here() { return columns().at(static_cast<int>(current_agent()->self().id.value)); }
Tensor column_forward(const Tensor& x) { return tanh(x * column_here()); }
RRef<Tensor> column_param() { return RRef<Tensor>(column_here()); }
Tensor column_value() { return column_here().detach().clone(); }
WEFT_RPC(column_forward);
WEFT_RPC(column_param);
WEFT_RPC(column_value);

std::vector<RRef<Tensor>> params_of(const std::vector<int>& ranks) {
  std::vector<RRef<Tensor>> out;
  for (const int rank : ranks) out.push_back(rpc_sync<column_param>(rank));
  return out;
}
template <class Forward> Tensor loss_of(int step, const std::vector<int>& ranks, Forward&& forward) {
  Tensor x = full({3}, 0.2 * (step % 4 + 1));
  for (const int rank : ranks) x = forward(rank, x);
  return x.square().sum();
}
void step_once(DistributedOptimizer& opt, int step, const std::vector<int>& ranks) {
  Context context;
  context.backward(
      {loss_of(step, ranks, [](int rank, const Tensor& x) { return rpc_sync<column_forward>(rank, x); })});
  opt.clip_grad_norm(context.id(), 0.5);
  opt.step(context.id());
}

/// The same training in one process; entry s has the values after s steps.
template <class Rule>
std::vector<std::map<int, Tensor>> alone(const std::vector<int>& ranks, int steps,
                                         const typename Rule::Options& options) {
  std::map<int, Tensor> own;
  std::vector<Tensor> list;
  for (const int rank : ranks) list.push_back(own[rank] = column_of(rank));
  optim::Fused<Rule> opt(list, options);
  std::vector<std::map<int, Tensor>> out;
  for (int step = 0; step <= steps; ++step) {
    out.emplace_back();
    for (const int rank : ranks) out.back()[rank] = own[rank].detach().clone();
    opt.zero_grad();
    loss_of(step, ranks, [&](int rank, const Tensor& x) { return tanh(x * own[rank]); }).backward();
    optim::clip_grad_norm(list, 0.5);
    opt.step();
  }
  return out;
}

/// Calls `act` at point number `at` of the steps, counted from 0, while it lives.
struct AtPoint {
  AtPoint(int at, std::function<void()> act) {
    left() = at, action() = std::move(act), name().clear();
    dist_optim::detail::at_step_point = [](const char* point) {
      if (left()-- != 0) return;
      name() = point;
      action()();
    };
  }
  ~AtPoint() { dist_optim::detail::at_step_point = nullptr; }
  static int& left() {
    static int n;
    return n;
  }
  static std::function<void()>& action() {
    static std::function<void()> f;
    return f;
  }
  static std::string& name() {
    static std::string s;
    return s;
  }
};

const std::vector<int> kOwners{1, 2, 3};

template <class Rule> void compare(ClusterOptions options, const typename Rule::Options& rule, double drop) {
  const auto expected = alone<Rule>(kOwners, 5, rule);
  reset_columns(4);
  Cluster c(options);
  c.run(0, [&] {
    DistributedOptimizer opt = dist_optim::make<Rule>(params_of(kOwners), rule, kTwoPhases);
    c.net().set_faults(drop, drop);
    for (int step = 0; step < 5; ++step) {
      step_once(opt, step, kOwners);
      for (const int rank : kOwners)
        ASSERT_TRUE(same_bits(columns()[rank].detach(), expected[static_cast<size_t>(step) + 1].at(rank)))
            << Rule::kName << " step " << step << " owner " << rank;
    }
    c.net().set_faults(0, 0);
    EXPECT_EQ(opt.versions(), (std::vector<int64_t>{5, 5, 5}));
  });
}

TEST(DistTwoPhase, steps_have_the_bits_of_one_process) {
  compare<optim::AdamRule>({.size = 4}, {.lr = 0.05, .amsgrad = true}, 0);
  compare<optim::SGDRule>({.size = 4}, {.lr = 0.05, .momentum = 0.9, .nesterov = true}, 0);
}

TEST(DistTwoPhase, lost_and_repeated_messages_cost_time_only) {
  for (uint64_t seed = 1; seed <= 10; ++seed)
    compare<optim::AdamRule>({.size = 4, .seed = seed}, {.lr = 0.05}, 0.15);
}

/// Old or new values of all living owners after a kill; -1 when they are mixed.
int step_of(const std::vector<std::map<int, Tensor>>& expected, int dead) {
  for (const int step : {1, 2}) {
    bool all = true;
    for (const int rank : kOwners)
      all = all && (rank == dead ||
                    same_bits(columns()[rank].detach(), expected[static_cast<size_t>(step)].at(rank)));
    if (all) return step;
  }
  return -1;
}

TEST(DistTwoPhase, an_owner_killed_at_any_point_leaves_the_others_with_one_step) {
  const auto expected = alone<optim::AdamRule>(kOwners, 2, {.lr = 0.05});
  std::map<std::string, int> points;
  for (int at = 0; at < 12; ++at) {
    reset_columns(4);
    Cluster c({.size = 4, .seed = static_cast<uint64_t>(at + 1)});
    c.run(0, [&] {
      DistributedOptimizer opt =
          dist_optim::make<optim::AdamRule>(params_of(kOwners), {.lr = 0.05}, kTwoPhases);
      step_once(opt, 0, kOwners);
      int dead = 0;
      AtPoint die(at, [&] { c.kill(dead = static_cast<int>(current_agent()->self().id.value)); });
      EXPECT_THROW(step_once(opt, 1, kOwners), PeerLost);
      const std::string point = AtPoint::name();
      EXPECT_EQ(step_of(expected, dead), point == "prepare" || point == "prepared" ? 1 : 2) << point;
      ++points[point];
      std::vector<int> living;
      for (const int rank : kOwners)
        if (rank != dead) living.push_back(rank);
      DistributedOptimizer rest =
          dist_optim::make<optim::AdamRule>(params_of(living), {.lr = 0.05}, kTwoPhases);
      step_once(rest, 2, living);  // nothing is left in doubt
    });
  }
  for (const char* point : {"prepare", "prepared", "commit", "committed"})
    EXPECT_GT(points[point], 0) << point;
}

TEST(DistTwoPhase, owners_whose_trainer_dies_keep_the_old_values_and_refuse_newer_steps_until_told) {
  const auto expected = alone<optim::AdamRule>(kOwners, 2, {.lr = 0.05});
  int doubts = 0;
  for (int at = 0; at < 12; ++at) {
    reset_columns(5);
    Cluster c({.size = 5, .seed = static_cast<uint64_t>(at + 1)});
    c.run(0, [&] {
      DistributedOptimizer opt =
          dist_optim::make<optim::AdamRule>(params_of(kOwners), {.lr = 0.05}, kTwoPhases);
      step_once(opt, 0, kOwners);
      AtPoint die(at, [&] { c.kill(0); });
      EXPECT_THROW(step_once(opt, 1, kOwners), RpcError);
    });
    c.run(4, [&] {
      c.runtime().sleep_for(std::chrono::seconds(60));  // long beyond the lease
      for (const int rank : kOwners) {
        const Tensor before = rpc_sync<column_value>(rank);
        const bool is_new = same_bits(before, expected[2].at(rank));
        EXPECT_TRUE(is_new || same_bits(before, expected[1].at(rank)));
        DistributedOptimizer later =
            dist_optim::make<optim::AdamRule>(params_of({rank}), {.lr = 0.05}, kTwoPhases);
        try {
          step_once(later, 2, {rank});
          EXPECT_FALSE(same_bits(rpc_sync<column_value>(rank), before));
        } catch (const StepInDoubt& e) {
          ++doubts;
          EXPECT_FALSE(is_new);
          EXPECT_TRUE(has(e.what(), "a prepared step of a parameter awaits its decision"));
          EXPECT_TRUE(same_bits(rpc_sync<column_value>(rank), before));
          later.end_doubt();
          step_once(later, 2, {rank});
          EXPECT_FALSE(same_bits(rpc_sync<column_value>(rank), before));
        }
      }
    });
  }
  EXPECT_GT(doubts, 0);
}

/// A parameter that lives as long as references to it, unless its worker has it too.
Tensor fresh_column(bool here) { return here ? columns()[1] = column_of(1) : column_of(1); }
WEFT_RPC(fresh_column);
Tensor times_column(const RRef<Tensor>& column, const Tensor& x) { return column.local_value() * x; }
WEFT_RPC(times_column);

TEST(DistTwoPhase, a_step_in_doubt_keeps_no_parameter_that_nobody_else_uses) {
  for (const bool used : {false, true}) {
    Cluster c({.size = 2});
    c.run(0, [&] {
      const RRef<Tensor> column = remote<fresh_column>(1, used);
      DistributedOptimizer opt = dist_optim::make<optim::SGDRule>({column}, {.lr = 0.05}, kTwoPhases);
      Context context;
      context.backward({rpc_sync<times_column>(1, column, full({3}, 2.0)).sum()});
      AtPoint die(1, [&] { c.kill(0); });
      EXPECT_THROW(opt.step(context.id()), RpcError);
    });
    c.sim().run_for(std::chrono::seconds(120));
    EXPECT_EQ(c.agent(1)->debug_info().at("dist_optim.undecided_parameters"), used ? 1 : 0);
    EXPECT_EQ(c.agent(1)->debug_info().at("num_owner_rrefs"), 0);
    columns().clear();
  }
}

TEST(DistTwoPhase, a_late_commit_does_not_undo_the_steps_after_the_end_of_its_doubt) {
  reset_columns(3);
  Cluster c({.size = 3});
  c.run(0, [&] {
    DistributedOptimizer opt = dist_optim::make<optim::SGDRule>(params_of({1, 2}), {.lr = 0.05}, kTwoPhases);
    Tensor later_value;
    AtPoint point(-1, [&] {  // at worker 1, where the commit has just come
      CallContext outside;   // of the step's own context
      outside.endpoint = current_agent();
      const CallScope scope(outside);
      DistributedOptimizer later = dist_optim::make<optim::SGDRule>(params_of({1}), {.lr = 0.3}, kTwoPhases);
      later.end_doubt();
      step_once(later, 1, {1});
      later_value = columns()[1].detach().clone();
    });
    dist_optim::detail::at_step_point = [](const char* name) {
      if (std::string(name) != "commit" || current_agent()->self().name != "worker1") return;
      if (const auto act = std::exchange(AtPoint::action(), nullptr)) act();
    };
    EXPECT_TRUE(has(error_of<StepInDoubt>([&] { step_once(opt, 0, {1, 2}); }), "end_doubt has dropped it"));
    ASSERT_TRUE(later_value.defined());
    EXPECT_TRUE(same_bits(columns()[1].detach(), later_value));
    EXPECT_EQ(opt.versions(), (std::vector<int64_t>{1, 1}));
    step_once(opt, 1, {1, 2});
    EXPECT_EQ(opt.versions(), (std::vector<int64_t>{2, 2}));
    EXPECT_FALSE(same_bits(columns()[1].detach(), later_value));
  });
  for (const int rank : {1, 2})
    EXPECT_EQ(c.agent(rank)->debug_info().at("dist_optim.undecided_parameters"), 0);
}

/// A rule whose second step worker 2 refuses.
struct Balking {
  struct Options {
    double lr = 1;
  };
  static constexpr const char* kName = "Balking";
  static constexpr int kState = 0;
  double lr;
  Balking(const Options& o, int64_t t) : lr(o.lr) {
    if (t > 1 && current_agent()->self().name == "worker2") throw ValueError("refused on purpose");
  }
  template <class V> void operator()(V& p, const V& g, V*) const { p -= lr * g; }
};
WEFT_FIELDS(Balking::Options, lr)
WEFT_OPTIMIZER_RULE(Balking);

TEST(DistTwoPhase, an_owner_that_refuses_to_prepare_keeps_all_owners_at_the_old_step) {
  reset_columns(4);
  Cluster c({.size = 4});
  c.run(0, [&] {
    DistributedOptimizer opt = dist_optim::make<Balking>(params_of(kOwners), {.lr = 0.1}, kTwoPhases);
    step_once(opt, 0, kOwners);
    std::map<int, Tensor> before;
    for (const int rank : kOwners) before[rank] = columns()[rank].detach().clone();
    for (int i = 0; i < 2; ++i) {
      const std::string text = error_of<ValueError>([&] { step_once(opt, 1, kOwners); });
      EXPECT_TRUE(has(text, "refused on purpose (no owner has stepped)"));
      for (const int rank : kOwners) EXPECT_TRUE(same_bits(columns()[rank].detach(), before[rank]));
    }
    EXPECT_EQ(opt.versions(), (std::vector<int64_t>{1, 1, 1}));
  });
}

TEST(DistTwoPhase, a_parameter_without_a_gradient_is_left_to_the_steps_of_others) {
  reset_columns(3);
  Cluster c({.size = 3});
  c.run(0, [&] {
    DistributedOptimizer opt = dist_optim::make<optim::AdamRule>(params_of({1, 2}), {.lr = 0.05}, kTwoPhases);
    AtPoint none(-1, [] {});
    dist_optim::detail::at_step_point = [](const char* point) {
      if (std::string(point) != "prepared" || current_agent()->self().name != "worker2") return;
      const NoGrad guard;
      column_here().add_(1);  // as the step of another trainer
    };
    step_once(opt, 0, {1});
    EXPECT_TRUE(same_bits(columns()[2].detach(), column_of(2).detach() + 1));
    EXPECT_FALSE(same_bits(columns()[1].detach(), column_of(1).detach()));
    EXPECT_EQ(opt.versions(), (std::vector<int64_t>{1, 0}));
  });
}

TEST(DistTwoPhase, trainers_at_once_in_opposite_orders_of_owners_all_finish) {
  reset_columns(4);
  Cluster c({.size = 4});
  std::atomic<int> ended{0};
  c.run_all([&](int rank) {
    if (rank == 1 || rank == 2) return;
    const std::vector<int> order = rank == 0 ? std::vector<int>{1, 2} : std::vector<int>{2, 1};
    DistributedOptimizer opt = dist_optim::make<optim::SGDRule>(params_of(order), {.lr = 0.01},
                                                                {.two_phase = true, .lease_ms = 60000});
    for (int i = 0; i < 10; ++i) step_once(opt, i, order);
    ++ended;
    ASSERT_TRUE(eventually(c, [&] { return ended == 2; }));
    EXPECT_EQ(opt.versions(), (std::vector<int64_t>{20, 20}));
  });
}

}  // namespace
