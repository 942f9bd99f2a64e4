// Steps of an optimizer and the fence of an elastic group, in simulation. A life that has not renewed its
// lease in time steps nothing. Its own call steps no owner, and no caller steps its parameters. It takes no
// step that it has prepared. Once it has renewed the lease, each step is taken once.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/optim/inner/step_seam.h>
#include <weft/distributed/rpc/fenced.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rpc/step_errors.h>
#include <weft/tensor/factories.h>

#include "support/elastic.h"
#include "support/errors.h"
#include "support/same_state.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using dist_autograd::Context;
using dist_optim::DistributedOptimizer;
using dist_optim::StepOptions;
using test::ElasticGroup;
using test::error_of;
using test::has;
using weft::testing::same_state;
using Worker = ElasticGroup::Worker;

/// The parameter of each life of the test.
std::map<Incarnation, Tensor>& barred_values() {
  static std::map<Incarnation, Tensor> all;
  return all;
}
Tensor& barred_here() {
  Tensor& value = barred_values()[current_agent()->life().incarnation];
  if (!value.defined()) value = full({3}, 0.3).requires_grad_();
  return value;
}
Tensor barred_forward(const Tensor& x) { return tanh(x * barred_here()); }
RRef<Tensor> barred_param() { return RRef<Tensor>(barred_here()); }
WEFT_RPC(barred_forward);
WEFT_RPC(barred_param);

/// Calls `act` once, at the first point of that name on a worker, while it lives.
struct AtBarredPoint {
  AtBarredPoint(const std::string& worker, const std::string& point, std::function<void()> act) {
    wanted() = {worker, point}, action() = std::move(act);
    dist_optim::detail::at_step_point = [](const char* name) {
      if (wanted() == std::pair{current_agent()->self().name, std::string(name)} && action())
        std::exchange(action(), nullptr)();
    };
  }
  ~AtBarredPoint() { dist_optim::detail::at_step_point = nullptr; }
  static std::pair<std::string, std::string>& wanted() {
    static std::pair<std::string, std::string> w;
    return w;
  }
  static std::function<void()>& action() {
    static std::function<void()> f;
    return f;
  }
};

/// A trainer "t", the owners "o1" and "o2", and a parameter on the trainer too. "w" came first and is never
/// cut off.
struct BarredTraining {
  explicit BarredTraining(StepOptions options = {}, uint64_t seed = 1)
      : how(options),
        group({.seed = seed}),
        w(group.join("w")),
        t(group.join("t")),
        o1(group.join("o1")),
        o2(group.join("o2")) {
    barred_values().clear();
    t.membership->wait_for({"o1", "o2"}, now() + 5s);
    w.membership->wait_for({"o1", "o2"}, now() + 5s);
    group.run(t, [&] {
      std::vector<RRef<Tensor>> params;
      for (const char* name : {"o1", "o2", "t"}) params.push_back(rpc_sync<barred_param>(name));
      optimizer.emplace(dist_optim::make<optim::AdamRule>(params, {.lr = 0.05}, how));
    });
    whole_step();
  }
  /// A pass whose context is left open for a step.
  std::unique_ptr<Context> pass() {
    auto context = std::make_unique<Context>();
    Tensor x = full({3}, 0.4);
    for (const char* name : {"o1", "o2", "t"}) x = rpc_sync<barred_forward>(name, x);
    context->backward({x.square().sum()});
    return context;
  }
  void whole_step() {
    group.run(t, [&] {
      const auto context = pass();
      optimizer->step(context->id());
    });
  }
  /// The values of one life, or of all.
  static NamedTensors values(const Worker& worker) {
    return {{worker.name, barred_values().at(worker.agent()->life().incarnation).detach().clone()}};
  }
  NamedTensors values() const {
    NamedTensors out;
    for (const Worker* one : {&t, &o1, &o2}) out.push_back(values(*one).front());
    return out;
  }
  /// The states of all owners and the steps that they count, as the trainer asks for them.
  std::vector<NamedTensors> states() {
    std::vector<NamedTensors> out;
    group.run(t, [&] { out = optimizer->state_dict(); });
    return out;
  }
  std::vector<int64_t> versions() {
    std::vector<int64_t> out;
    group.run(t, [&] { out = optimizer->versions(); });
    return out;
  }
  /// Cuts a life off from the store until its lease has run out.
  void fence(const Worker& worker) {
    group.cut_store(worker);
    group.sim().run_for(11s);
  }
  void renew() {
    group.net().heal();
    group.sim().run_for(5s);
  }
  TimePoint now() { return group.sim().now(); }

  const StepOptions how;
  ElasticGroup group;
  Worker &w, &t, &o1, &o2;
  std::optional<DistributedOptimizer> optimizer;
};

/// The values and states after each of three steps that nothing disturbs.
struct Undisturbed {
  explicit Undisturbed(const StepOptions& how) {
    BarredTraining train(how);
    for (int step = 1;; ++step) {
      values.push_back(train.values());
      states.push_back(train.states());
      if (step == 3) return;
      train.whole_step();
    }
  }
  std::vector<NamedTensors> values;
  std::vector<std::vector<NamedTensors>> states;
};

void expect_steps(BarredTraining& train, const Undisturbed& known, int64_t steps) {
  const auto at = static_cast<size_t>(steps - 1);
  EXPECT_EQ(train.versions(), std::vector<int64_t>(3, steps));
  EXPECT_TRUE(same_state(train.values(), known.values[at])) << steps;
  const auto states = train.states();
  for (size_t i = 0; i < states.size(); ++i)
    EXPECT_TRUE(same_state(states[i], known.states[at][i])) << steps << " steps, owner " << i;
}

class DistFencedSteps : public ::testing::TestWithParam<std::pair<const char*, StepOptions>> {};
INSTANTIATE_TEST_SUITE_P(
    Ways, DistFencedSteps,
    ::testing::Values(std::pair<const char*, StepOptions>{"one_phase", {}},
                      std::pair<const char*, StepOptions>{"in_turn", {.max_staleness = 0, .wait = true}},
                      std::pair<const char*, StepOptions>{"two_phases", {.two_phase = true}}),
    [](const auto& info) { return info.param.first; });

TEST_P(DistFencedSteps, a_step_called_by_a_fenced_life_changes_no_owner_and_the_life_goes_on_once_it_renews) {
  const Undisturbed known(GetParam().second);
  BarredTraining train(GetParam().second);
  train.group.run(train.t, [&] {
    const auto context = train.pass();
    train.fence(train.t);
    const TimePoint begun = train.now();
    const std::string text = error_of<Fenced>([&] { train.optimizer->step(context->id()); });
    EXPECT_TRUE(has(text, "worker 't' is fenced: its lease at the store has run out"));
    EXPECT_LT(train.now() - begun, 1s);  // virtual time
    EXPECT_TRUE(same_state(train.values(), known.values[0]));
    train.group.sim().run_for(30s);
    EXPECT_TRUE(same_state(train.values(), known.values[0]));
  });
  train.renew();
  expect_steps(train, known, 1);
  train.whole_step();
  expect_steps(train, known, 2);
  train.whole_step();
  expect_steps(train, known, 3);
}

TEST_P(DistFencedSteps, a_fenced_owner_takes_no_step_of_a_living_trainer_and_says_so_in_time) {
  const bool two_phase = GetParam().second.two_phase;
  const Undisturbed known(GetParam().second);
  BarredTraining train(GetParam().second);
  train.group.run(train.t, [&] {
    const auto context = train.pass();
    train.fence(train.o2);
    const TimePoint begun = train.now();
    const std::string text = error_of<Fenced>([&] { train.optimizer->step(context->id()); });
    EXPECT_TRUE(has(text, "On worker 'o2': worker 'o2' is fenced: its lease at the store has run out"));
    if (two_phase) {
      EXPECT_TRUE(has(text, "no owner has stepped"));
      error_of<Fenced>([&] { train.optimizer->step(context->id()); });
    }
    EXPECT_LT(train.now() - begun, 1s);  // virtual time
  });
  train.group.sim().run_for(30s);
  const auto owner = train.values(train.o2);
  EXPECT_TRUE(same_state(owner, {known.values[0][2]}));
  if (two_phase) {
    EXPECT_TRUE(same_state(train.values(), known.values[0]));
    train.renew();
    expect_steps(train, known, 1);
    train.whole_step();
    return expect_steps(train, known, 2);
  }
  train.renew();  // the others have stepped
  EXPECT_EQ(train.versions(), (std::vector<int64_t>{2, 1, 2}));
  EXPECT_TRUE(same_state(train.states()[1], known.states[0][1]));
  train.whole_step();
  EXPECT_EQ(train.versions(), (std::vector<int64_t>{3, 2, 3}));
  EXPECT_FALSE(same_state(train.values(train.o2), owner));
}

TEST_P(DistFencedSteps, a_life_with_a_successor_steps_neither_itself_nor_others) {
  BarredTraining train(GetParam().second);
  const auto before = train.values();
  train.group.run(train.t, [&] {
    const auto context = train.pass();
    train.group.cut_store(train.t);
    train.group.join("t");
    train.renew();
    const std::string text = error_of<Fenced>([&] { train.optimizer->step(context->id()); });
    EXPECT_TRUE(has(text, "worker 't' is fenced and stays out of the group"));
  });
  train.group.sim().run_for(60s);
  EXPECT_TRUE(same_state(train.values(), before));
}

TEST(DistFencedStep, a_step_that_waits_for_its_turn_is_not_taken_once_its_owner_is_fenced) {
  BarredTraining train({.max_staleness = 1, .wait = true});
  bool go = false, over = false;
  train.group.sim().post([&] {
    train.group.run(train.o2, [&] {
      const Context slow;  // it may fall behind by one step
      rpc_sync<barred_forward>("o2", full({3}, 0.4));
      while (!go) train.group.sim().sleep_for(10ms);
    });
  });
  train.group.sim().run_for(1s);
  train.whole_step();
  const auto owner = train.values(train.o2);
  std::string text;
  train.group.sim().post([&] {
    train.group.run(train.t, [&] {
      const auto context = train.pass();
      text = error_of<Fenced>([&] { train.optimizer->step(context->id()); });
    });
    over = true;
  });
  train.group.sim().run_for(1s);
  EXPECT_EQ(train.o2.agent()->debug_info().at("dist_optim.waiting_steps"), 1);
  train.fence(train.o2);
  go = true;
  train.group.sim().run_for(1s);
  EXPECT_TRUE(over);
  EXPECT_TRUE(has(text, "worker 'o2' is fenced"));
  EXPECT_EQ(train.o2.agent()->debug_info().at("dist_optim.waiting_steps"), 0);
  EXPECT_TRUE(same_state(train.values(train.o2), owner));
}

/// "o2" prepares a step whose commit it does not hear, and is fenced.
struct Unheard {
  Unheard() {
    train.group.run(train.t, [&] {
      train.optimizer->step(train.pass()->id());
      const AtBarredPoint point("o2", "prepared", [&] {
        train.group.net().add_rule(
            {.kind = static_cast<uint8_t>(Kind::kMethod), .from = train.t.id(), .to = train.o2.id()});
        train.group.cut_store(train.o2);
      });
      before = train.values(train.o2);
      train.group.sim().post([this] {
        train.group.run(train.t, [&] {
          const auto context = train.pass();
          try {
            train.optimizer->step(context->id());
          } catch (const PeerLost&) {  // of the past life
          }
        });
      });
      train.group.sim().run_for(1s);
      EXPECT_FALSE(point.action());
    });
  }
  BarredTraining train{{.two_phase = true, .lease_ms = 20000}};
  NamedTensors before;
};

TEST(DistFencedStep,
     a_prepared_step_whose_commit_stands_at_the_store_is_not_taken_by_a_life_with_a_successor) {
  Unheard u;
  const auto other = u.train.values(u.train.o1);
  u.train.group.join("o2");
  u.train.group.net().clear_rules();
  u.train.group.net().heal();
  u.train.group.sim().run_for(60s);  // it asks the store meanwhile, and has the answer
  EXPECT_TRUE(same_state(u.train.values(u.train.o2), u.before));
  EXPECT_TRUE(same_state(u.train.values(u.train.o1), other));
}

TEST(DistFencedStep, a_prepared_step_whose_commit_stands_at_the_store_is_taken_once_after_a_renewal) {
  Unheard u;
  u.train.group.sim().run_for(11s);
  EXPECT_TRUE(same_state(u.train.values(u.train.o2), u.before));
  u.train.group.net().heal();  // its trainer still cannot tell it
  u.train.group.sim().run_for(15s);
  const auto after = u.train.values(u.train.o2);
  EXPECT_FALSE(same_state(after, u.before));
  u.train.group.net().clear_rules();
  u.train.group.sim().run_for(60s);
  EXPECT_TRUE(same_state(u.train.values(u.train.o2), after));
  EXPECT_EQ(u.train.versions(), (std::vector<int64_t>{3, 3, 3}));
}

TEST(DistFencedStep, a_trainer_that_is_fenced_before_its_decision_commits_nothing) {
  const StepOptions how{.two_phase = true, .lease_ms = 20000};
  const Undisturbed known(how);
  BarredTraining train(how);
  train.group.run(train.t, [&] {
    const auto context = train.pass();
    const AtBarredPoint point("o2", "prepared", [&] {
      train.group.cut_store(train.t);
      train.group.sim().sleep_for(11s);
      train.group.net().heal();  // the answer comes before the renewal of the lease
    });
    const std::string text = error_of<Fenced>([&] { train.optimizer->step(context->id()); });
    EXPECT_TRUE(has(text, "worker 't' is fenced"));
  });
  EXPECT_TRUE(same_state(train.values(), known.values[0]));
  train.group.sim().run_for(60s);
  expect_steps(train, known, 1);
  train.whole_step();
  expect_steps(train, known, 2);
}

}  // namespace
