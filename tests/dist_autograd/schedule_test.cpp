// Schedules and parameter groups over owners. They have the rates, steps and bits of the local optimizer with
// the same schedule, and a place in checkpoints. Owners refuse or are lost.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/distributed/optim/dist_checkpoint.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/errors.h"
#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;
using dist_autograd::Context;
using dist_optim::DistributedOptimizer;
using weft::testing::same_bits;

/// y = tanh(x w) + v
class Cell {
 public:
  explicit Cell(double scale)
      : w((arange(9).to(kFloat32) * scale - 0.3).reshape({3, 3}).requires_grad_()),
        v(full({3}, scale).requires_grad_()) {}
  Tensor forward(const Tensor& x) const { return tanh(x.matmul(w)) + v; }
  RRef<Tensor> weight() const { return RRef<Tensor>(w); }
  RRef<Tensor> bias() const { return RRef<Tensor>(v); }
  std::vector<Tensor> values() const { return {w.detach().clone(), v.detach().clone()}; }
  Tensor w, v;
};
WEFT_RPC_CONSTRUCTOR(Cell, double);
WEFT_RPC_CLASS(Cell, forward, weight, bias, values);

using Options = optim::AdamWOptions;
constexpr Options kWeights{.lr = 0.05, .weight_decay = 0.1}, kBiases{.lr = 0.2, .weight_decay = 0};

/// Two cells on two owners, in groups of weights and biases, and the same in
/// one process.
struct Twins {
  Twins()
      : first(remote<Cell>("worker1", 0.1)),
        second(remote<Cell>("worker2", -0.2)),
        remote_adam(dist_optim::make<optim::AdamWRule>(
            {{{first.rpc_sync<&Cell::weight>(), second.rpc_sync<&Cell::weight>()}, kWeights},
             {{second.rpc_sync<&Cell::bias>(), first.rpc_sync<&Cell::bias>()}, kBiases}})),
        a(0.1),
        b(-0.2),
        local_adam({{{a.w, b.w}, kWeights}, {{b.v, a.v}, kBiases}}) {}
  /// One step of each. The gradients depend on the number of the step.
  void step() {
    const Tensor x = full({2, 3}, 0.1 * ++steps);
    local_adam.zero_grad();
    b.forward(a.forward(x)).square().sum().backward();
    const double norm = optim::clip_grad_norm(local_adam.parameters(), 0.7);
    local_adam.step();
    Context context;
    context.backward({second.rpc_sync<&Cell::forward>(first.rpc_sync<&Cell::forward>(x)).square().sum()});
    EXPECT_EQ(remote_adam.clip_grad_norm(context.id(), 0.7), norm);
    remote_adam.step(context.id());
  }
  ::testing::AssertionResult equal() const {
    for (const auto& [there, here] : {std::pair(&first, &a), std::pair(&second, &b)}) {
      const std::vector<Tensor> values = there->rpc_sync<&Cell::values>();
      if (!same_bits(values[0], here->w.detach()) || !same_bits(values[1], here->v.detach()))
        return ::testing::AssertionFailure() << "parameters differ after " << steps << " steps";
    }
    for (size_t g = 0; g < 2; ++g)
      if (remote_adam.lr(g) != local_adam.lr(g))
        return ::testing::AssertionFailure() << "the rates of group " << g << " differ";
    return ::testing::AssertionSuccess();
  }
  RRef<Cell> first, second;
  DistributedOptimizer remote_adam;
  Cell a, b;
  optim::AdamW local_adam;
  int steps = 0;
};

/// Drives both optimizers by schedules of one kind.
void follow(const std::function<std::unique_ptr<optim::FactorSchedule>(optim::Rates)>& make) {
  Cluster c({.size = 3});
  c.run(0, [&] {
    Twins twins;
    const auto there = make(optim::rates(twins.remote_adam)), here = make(optim::rates(twins.local_adam));
    for (int i = 0; i < 7; ++i) {
      twins.step();
      ASSERT_TRUE(twins.equal());
      there->step();
      here->step();
    }
    ASSERT_TRUE(twins.equal());
    EXPECT_NE(twins.remote_adam.lr(0), twins.remote_adam.lr(1));
  });
}

TEST(DistSchedule, every_schedule_gives_the_bits_of_the_local_optimizer_in_two_groups) {
  using optim::Rates;
  follow([](Rates r) { return std::make_unique<optim::StepLR>(r, optim::StepLROptions{2, 0.5}); });
  follow([](Rates r) {
    return std::make_unique<optim::MultiStepLR>(r, optim::MultiStepLROptions{{1, 4}, 0.3});
  });
  follow([](Rates r) { return std::make_unique<optim::ExponentialLR>(r, 0.8); });
  follow([](Rates r) { return std::make_unique<optim::LinearLR>(r, optim::LinearLROptions{.total = 4}); });
  follow([](Rates r) { return std::make_unique<optim::CosineLR>(r, optim::CosineLROptions{.t_max = 6}); });
  follow([](Rates r) {
    return std::make_unique<optim::WarmupLR>(
        r, optim::WarmupLROptions{.steps = 3, .start_factor = 0.1, .then = optim::exponential_factor(0.7)});
  });
  follow([](Rates r) {
    return std::make_unique<optim::SequentialLR>(
        r, optim::SequentialLROptions{
               .factors = {optim::linear_factor({.total = 3}), optim::exponential_factor(0.5)},
               .milestones = {3}});
  });
}

TEST(DistSchedule, a_plateau_and_options_set_by_group_reach_all_owners) {
  Cluster c({.size = 3});
  c.run(0, [&] {
    Twins twins;
    optim::ReduceOnPlateau there(optim::rates(twins.remote_adam), {.factor = 0.25, .patience = 0}),
        here(optim::rates(twins.local_adam), {.factor = 0.25, .patience = 0});
    for (const double loss : {3.0, 3.0, 2.0, 2.0}) {
      twins.step();
      EXPECT_EQ(there.step(loss), here.step(loss));
      ASSERT_TRUE(twins.equal());
    }
    const Options changed{.lr = 0.01, .beta1 = 0.5, .beta2 = 0.9, .weight_decay = 0.3};
    dist_optim::set_options<optim::AdamWRule>(twins.remote_adam, 1, changed);
    twins.local_adam.set_options(1, changed);
    twins.remote_adam.set_lr(0, 0.125);
    twins.local_adam.set_lr(0, 0.125);
    for (int i = 0; i < 3; ++i) {
      twins.step();
      ASSERT_TRUE(twins.equal());
    }
    EXPECT_THROW(dist_optim::set_options<optim::AdamWRule>(twins.remote_adam, 2, changed), IndexError);
    EXPECT_THROW(dist_optim::set_options<optim::AdamRule>(twins.remote_adam, 1, {}), ValueError);
    EXPECT_THROW(dist_optim::set_options<optim::AdamWRule>(twins.remote_adam, 1, {.lr = 1, .eps = -1}),
                 ValueError);
    EXPECT_THROW(twins.remote_adam.set_lr(2, 1), IndexError);
    EXPECT_THROW(twins.remote_adam.set_lr(1, -1), ValueError);
    EXPECT_THROW(
        dist_optim::make<optim::AdamWRule>(std::vector<dist_optim::RemoteGroup<Options>>{{{}, kWeights}}),
        ValueError);
    twins.step();
    EXPECT_TRUE(twins.equal());
  });
}

TEST(DistSchedule, a_schedule_is_part_of_a_checkpoint_and_goes_on_where_it_was) {
  const auto folder =
      std::filesystem::temp_directory_path() / str("weft-schedule-", static_cast<int64_t>(getpid()), ".set");
  Cluster c({.size = 3});
  c.run(0, [&] {
    Twins twins;
    optim::WarmupLR there(optim::rates(twins.remote_adam), {.steps = 4, .start_factor = 0.1}),
        here(optim::rates(twins.local_adam), {.steps = 4, .start_factor = 0.1});
    const auto run = [&](int steps) {
      for (int i = 0; i < steps; ++i) {
        twins.step();
        there.step();
        here.step();
      }
    };
    run(2);
    dist_optim::save_checkpoint(folder, twins.remote_adam, {{"schedule", there}});
    Twins other;
    optim::WarmupLR resumed(optim::rates(other.remote_adam), {.steps = 4, .start_factor = 0.1});
    other.step();
    resumed.step();
    dist_optim::load_checkpoint(folder, other.remote_adam, {{"schedule", resumed}});
    EXPECT_EQ(resumed.epoch(), 2);
    run(3);
    for (int i = 0; i < 3; ++i) {
      Context context;
      const Tensor x = full({2, 3}, 0.1 * (3 + i));
      context.backward(
          {other.second.rpc_sync<&Cell::forward>(other.first.rpc_sync<&Cell::forward>(x)).square().sum()});
      other.remote_adam.clip_grad_norm(context.id(), 0.7);
      other.remote_adam.step(context.id());
      resumed.step();
    }
    ASSERT_TRUE(twins.equal());
    EXPECT_EQ(other.remote_adam.lr(0), twins.remote_adam.lr(0));
    EXPECT_EQ(other.remote_adam.lr(1), twins.remote_adam.lr(1));
    EXPECT_TRUE(same_bits(other.first.rpc_sync<&Cell::values>()[0], twins.a.w.detach()));
    EXPECT_TRUE(same_bits(other.second.rpc_sync<&Cell::values>()[1], twins.b.v.detach()));

    // states without files tell their rates too
    const auto state = twins.remote_adam.state_dict();
    twins.remote_adam.set_lr(3);
    twins.remote_adam.load_state_dict(state);
    EXPECT_EQ(twins.remote_adam.lr(1), twins.local_adam.lr(1));
  });
  std::filesystem::remove_all(folder);
}

/// A rule that one owner refuses rates of.
struct Picky {
  struct Options {
    double lr = 1;
  };
  static constexpr const char* kName = "Picky";
  static constexpr int kState = 0;
  double lr;
  Picky(const Options& o, int64_t) : lr(o.lr) {}
  static void check(const Options& o) {
    if (o.lr > 5 && current_agent()->self().name == "worker2") throw ValueError("above 5 on purpose");
    accepted().insert(current_agent()->self().name);
  }
  /// Owners that have taken its options.
  static std::set<std::string>& accepted() {
    static std::set<std::string> names;
    return names;
  }
  template <class V> void operator()(V& p, const V& g, V*) const { p -= lr * g; }
};
WEFT_FIELDS(Picky::Options, lr)
WEFT_OPTIMIZER_RULE(Picky);

TEST(DistSchedule, a_parameter_in_memory_of_from_blob_is_refused_and_no_other_is_marked) {
  Cluster c({.size = 1});
  c.run(0, [&] {
    std::vector<float> memory(3);
    const Tensor good = ones({3}).requires_grad_(), borrowed = from_blob(memory.data(), {3}).requires_grad_();
    const std::string text = error_of<ValueError>([&] {
      dist_optim::make<optim::SGDRule>({RRef<Tensor>(good), RRef<Tensor>(borrowed)}, {.lr = 0.5});
    });
    EXPECT_TRUE(has(text, "distributed optimizer: the parameter of sizes [3] lies in memory of from_blob()"));
    EXPECT_FALSE(is_concurrent(good));
    EXPECT_FALSE(is_concurrent(borrowed));
    const auto* const block = good.data<float>();
    good.sum().backward();
    optim::SGD({good}, {.lr = 0.5}).step();
    EXPECT_EQ(good.data<float>(), block);
    EXPECT_EQ(good.to_vector<float>(), (std::vector<float>{0.5, 0.5, 0.5}));
  });
}

/// The parameters of workers 1 and 2.
std::vector<Tensor>& picked() {
  static std::vector<Tensor> all;
  return all;
}
RRef<Tensor> own_picked() {
  return RRef<Tensor>(picked().at(static_cast<size_t>(current_agent()->self().id.value) - 1));
}
WEFT_RPC(own_picked);
std::vector<RRef<Tensor>> both_picked() {
  picked() = {ones({3}).requires_grad_(), ones({3}).requires_grad_()};
  Picky::accepted().clear();
  return {rpc_sync<own_picked>("worker1"), rpc_sync<own_picked>("worker2")};
}

TEST(DistSchedule, parameters_are_marked_once_all_owners_have_accepted_theirs) {
  for (const bool refuses_first : {false, true}) {
    Cluster c({.size = 3});
    c.run(0, [&] {
      std::vector<RRef<Tensor>> params = both_picked();
      if (refuses_first) std::swap(params[0], params[1]);
      const std::string text = error_of<ValueError>([&] { dist_optim::make<Picky>(params, {.lr = 7}); });
      EXPECT_TRUE(has(text, "construction failed on 'worker2': "));
      EXPECT_TRUE(has(text, "above 5 on purpose (the other owners have ended theirs)"));
      EXPECT_EQ(Picky::accepted(), std::set<std::string>{"worker1"});
      EXPECT_FALSE(is_concurrent(picked()[0]));
      EXPECT_FALSE(is_concurrent(picked()[1]));
      const DistributedOptimizer opt = dist_optim::make<Picky>(params, {.lr = 4});
      EXPECT_TRUE(is_concurrent(picked()[0]));
      EXPECT_TRUE(is_concurrent(picked()[1]));
    });
  }
}

TEST(DistSchedule, an_owner_killed_before_it_has_accepted_leaves_no_mark_on_the_other) {
  int marked = 0, unmarked = 0;
  for (int moment = 0; moment < 30; ++moment) {
    AgentOptions agent;
    agent.lease = 1s;
    Cluster c({.size = 3,
               .seed = static_cast<uint64_t>(moment) + 1,
               .net = {.connect_timeout = 500ms},
               .agent = agent});
    c.run(0, [&] {
      const std::vector<RRef<Tensor>> params = both_picked();
      c.runtime().call_at(c.runtime().now() + std::chrono::microseconds(20 * moment), [&] { c.kill(2); });
      try {
        dist_optim::make<Picky>(params, {.lr = 4});
      } catch (const PeerLost& e) {
        EXPECT_EQ(e.peer, "worker2");
      }
      const bool is = is_concurrent(picked()[0]);
      EXPECT_TRUE(!is || Picky::accepted().count("worker2") > 0) << "moment " << moment;
      ++(is ? marked : unmarked);
    });
  }
  EXPECT_GT(marked, 0);
  EXPECT_GT(unmarked, 0);
}

TEST(DistSchedule, a_rate_that_one_owner_refuses_is_set_on_none) {
  Cluster c({.size = 3});
  c.run(0, [&] {
    const auto first = remote<Cell>("worker1", 0.1), second = remote<Cell>("worker2", 0.1);
    DistributedOptimizer opt = dist_optim::make<Picky>(
        std::vector<RRef<Tensor>>{first.rpc_sync<&Cell::weight>(), second.rpc_sync<&Cell::weight>()},
        {.lr = 4});
    optim::ExponentialLR schedule(optim::rates(opt), 2);
    EXPECT_TRUE(
        has(error_of<ValueError>([&] { schedule.step(); }), "above 5 on purpose (the other owners go back)"));
    EXPECT_EQ(schedule.epoch(), 0);
    EXPECT_EQ(opt.lr(), 4);
    opt.fetch_rates();
    EXPECT_EQ(opt.lr(), 4);
    EXPECT_EQ(opt.owners()[0].optimizer.rpc_sync<&dist_optim::OwnerOptimizer::lrs>(), std::vector<double>{4});
    EXPECT_THROW(dist_optim::set_options<Picky>(opt, 0, {.lr = 7}), ValueError);
    EXPECT_EQ(opt.owners()[0].optimizer.rpc_sync<&dist_optim::OwnerOptimizer::lrs>(), std::vector<double>{4});
    c.kill(2);
    EXPECT_THROW(schedule.set_epoch(0), PeerLost);
    EXPECT_EQ(schedule.epoch(), 0);
  });
}

}  // namespace
