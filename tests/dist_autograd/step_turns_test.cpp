// Steps that wait for their turn: a fast trainer waits for a slow one in place of leaving it behind the
// bound. A wait ends by the step or the end of the slow context, by the deadline, a loss or a goodbye. The
// trainers share a weight on worker 1.
#include <gtest/gtest.h>

#include <atomic>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rpc/step_errors.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/errors.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using dist_autograd::Context;
using dist_optim::DistributedOptimizer;
using namespace std::chrono_literals;

Tensor& turn_weight() {
  static Tensor w;
  return w;
}
Tensor turn_forward(const Tensor& x) { return x * turn_weight(); }
std::vector<RRef<Tensor>> turn_params() { return {RRef<Tensor>(turn_weight())}; }
WEFT_RPC(turn_forward);
WEFT_RPC(turn_params);

DistributedOptimizer in_turn(int64_t bound, bool wait = true) {
  return dist_optim::make<optim::SGDRule>(rpc_sync<turn_params>("worker1"), {.lr = 0.1},
                                          {.max_staleness = bound, .wait = wait});
}
void step_in_turn(DistributedOptimizer& opt) {
  Context context;
  context.backward({rpc_sync<turn_forward>("worker1", ones({3})).sum()});
  opt.step(context.id());
}

/// A trainer that has read the weight, and steps or ends when it may.
struct Slow {
  Slow(Cluster& c, int rank, int64_t bound, bool steps) : cluster(c) {
    state->rank = rank;
    c.runtime(rank).post([agent = c.agent(rank), s = state, bound, steps, &c] {
      const AgentScope scope(agent);
      try {
        DistributedOptimizer opt = in_turn(bound);
        Context context;
        const Tensor y = rpc_sync<turn_forward>("worker1", ones({3}));
        s->context = context.id();
        s->read = true;
        if (!eventually(c, [&] { return s->go.load(); })) s->failed = true;
        if (steps) {
          context.backward({y.sum()});
          opt.step(context.id());
        }
      } catch (const std::exception&) {
        s->failed = true;
      }
      s->over = true;
    });
    EXPECT_TRUE(eventually(c, [&] { return state->read.load(); }));
  }
  ~Slow() { end(); }
  bool end() {
    state->go = true;
    EXPECT_TRUE(eventually(cluster, [&] { return state->over.load(); }));
    return !state->failed;
  }
  std::string text() const {
    return str("context ", state->context.load(), " of worker 'worker", state->rank, "'");
  }

  struct State {
    std::atomic<bool> read{false}, go{false}, over{false}, failed{false};
    std::atomic<int64_t> context{-1};
    int rank = 0;
  };
  Cluster& cluster;
  std::shared_ptr<State> state = std::make_shared<State>();
};

/// Trainer 2 takes steps until one waits, which trainer 0 then lets through.
void wait_for_the_slow_one(Over over, bool steps, int64_t bound) {
  turn_weight() = full({3}, 0.5).requires_grad_();
  Cluster c({.over = over, .size = 3});
  Slow slow(c, 0, bound, steps);
  std::atomic<int> taken{0};
  std::atomic<bool> asked{false};
  c.runtime(2).post([&, agent = c.agent(2)] {
    const AgentScope scope(agent);
    DistributedOptimizer opt = in_turn(bound);
    for (int i = 0; i < bound + 2; ++i, ++taken) {
      asked = i == bound;
      step_in_turn(opt);
    }
  });
  c.run(0, [&] {
    const DistributedOptimizer watching = in_turn(bound);  // the count lasts as long as an optimizer
    ASSERT_TRUE(eventually(c, [&] { return asked.load(); }));
    if (c.simulated()) c.runtime().sleep_for(10s);
    EXPECT_EQ(taken, bound);
    EXPECT_TRUE(slow.end());  // its own step is not refused
    ASSERT_TRUE(eventually(c, [&] { return taken == bound + 2; }));
    EXPECT_EQ(watching.versions()[0], bound + 2 + (steps ? 1 : 0));
  });
}

TEST(DistStepTurns, a_fast_trainer_waits_until_a_slow_one_has_stepped_or_left_its_context) {
  for (const int64_t bound : {1, 2, 5})
    for (const bool steps : {true, false}) wait_for_the_slow_one(Over::kSim, steps, bound);
}

TEST(DistStepTurns, a_fast_trainer_waits_for_a_slow_one_over_grpc) {
  wait_for_the_slow_one(Over::kGrpc, true, 1);
}

/// The refused steps of `trainers` that take ten steps each at once.
int refused_steps(int trainers, int64_t bound, bool wait, uint64_t seed, double drop) {
  turn_weight() = full({3}, 0.5).requires_grad_();
  Cluster c({.size = trainers + 1, .seed = seed});
  std::atomic<int> accepted{0}, refused{0}, ended{0};
  c.net().set_faults(drop, drop);
  c.run_all([&](int rank) {
    if (rank == 1) return;
    DistributedOptimizer opt = in_turn(bound, wait);
    for (int i = 0; i < 10; ++i) {
      try {
        step_in_turn(opt);
        ++accepted;
      } catch (const StaleStep&) {
        ++refused;
      }
    }
    ++ended;
    ASSERT_TRUE(eventually(c, [&] { return ended == trainers; }));
    EXPECT_EQ(opt.versions()[0], accepted.load());
  });
  c.net().set_faults(0, 0);
  EXPECT_EQ(accepted + refused, 10 * trainers);
  return refused;
}

TEST(DistStepTurns, no_step_is_refused_while_at_most_bound_plus_one_contexts_are_open) {
  int refused_without = 0;
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    const double drop = seed > 10 ? 0.1 : 0;
    for (const int trainers : {2, 4}) {
      EXPECT_EQ(refused_steps(trainers, trainers - 1, true, seed, drop), 0) << "seed " << seed;
      refused_without += refused_steps(trainers, trainers - 1, false, seed, drop);
    }
  }
  EXPECT_GT(refused_without, 0);
}

TEST(DistStepTurns, trainers_beyond_the_bound_all_go_on) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    refused_steps(4, 0, true, seed, 0);
    refused_steps(4, 1, true, seed, 0.1);
  }
}

TEST(DistStepTurns, a_wait_ends_by_a_timeout_that_names_who_is_behind_and_holds_no_thread) {
  turn_weight() = full({3}, 0.5).requires_grad_();
  Cluster c({.size = 4});
  Slow first(c, 0, 2, true), second(c, 3, 2, true);
  c.run(2, [&] {
    DistributedOptimizer opt = in_turn(2);
    step_in_turn(opt);
    const auto begun = c.runtime().now();
    Context context;
    context.backward({rpc_sync<turn_forward>("worker1", ones({3})).sum()});
    c.runtime().sleep_for(1s);
    const int blocked = c.runtime().pool_stats().blocked;
    c.agent(2)->set_rpc_timeout(20s);
    auto waiting =
        opt.owners()[0].optimizer.rpc_async<&dist_optim::OwnerOptimizer::step_in_turn>(context.id());
    c.runtime().sleep_for(5s);
    EXPECT_FALSE(waiting.done());
    EXPECT_EQ(c.runtime().pool_stats().blocked, blocked);
    const std::string text = error_of<Timeout>([&] { waiting.wait(); });
    EXPECT_TRUE(has(text, "would take others beyond the bound of 2; not stepped have"));
    EXPECT_TRUE(has(text, first.text()));
    EXPECT_TRUE(has(text, second.text()));
    EXPECT_LE(c.runtime().now() - begun, 22s);
    EXPECT_EQ(opt.versions()[0], 1);
    EXPECT_TRUE(first.end());
    EXPECT_TRUE(second.end());
    EXPECT_EQ(opt.versions()[0], 3);  // the step that gave up is not taken later
    opt.step(context.id());           // and may be taken now
    EXPECT_EQ(opt.versions()[0], 4);
  });
}

TEST(DistStepTurns, a_wait_ends_by_the_loss_or_the_goodbye_of_a_trainer_that_is_behind) {
  for (const bool leaves : {false, true}) {
    turn_weight() = full({3}, 0.5).requires_grad_();
    Cluster c({.size = 3});
    Slow slow(c, 0, 1, false);
    c.run(2, [&] {
      DistributedOptimizer opt = in_turn(1);
      step_in_turn(opt);
      c.runtime().call_at(c.runtime().now() + 1s, [&] {
        c.runtime().post([&] {
          if (leaves) c.agent(0)->shutdown({.graceful = false});
          else c.kill(0);
        });
      });
      try {
        step_in_turn(opt);
        ADD_FAILURE() << "no error";
      } catch (const PeerLost& e) {
        EXPECT_EQ(e.peer, "worker0");
        EXPECT_TRUE(has(e.what(), str("waited for ", slow.text())));
      }
      EXPECT_EQ(opt.versions()[0], 1);
      for (int i = 0; i < 5; ++i) step_in_turn(opt);  // nobody is behind any more
      EXPECT_EQ(opt.versions()[0], 6);
    });
  }
}

TEST(DistStepTurns, a_successor_is_behind_with_its_own_contexts_only) {
  turn_weight() = full({3}, 0.5).requires_grad_();
  Cluster c({.size = 3});
  Slow old(c, 0, 1, false);
  c.run(2, [&] {
    DistributedOptimizer opt = in_turn(1);
    step_in_turn(opt);
    c.runtime().call_at(c.runtime().now() + 1s, [&] { c.runtime().post([&] { c.restart(0); }); });
    EXPECT_THROW(step_in_turn(opt), PeerLost);
    for (int i = 0; i < 3; ++i) step_in_turn(opt);
    Slow fresh(c, 0, 1, true);
    EXPECT_EQ(fresh.state->context, old.state->context);  // the ids of a life begin anew
    step_in_turn(opt);
    c.agent(2)->set_rpc_timeout(5s);
    EXPECT_TRUE(has(error_of<Timeout>([&] { step_in_turn(opt); }), fresh.text()));
    EXPECT_TRUE(fresh.end());
    step_in_turn(opt);
    EXPECT_EQ(opt.versions()[0], 7);
  });
}

TEST(DistStepTurns, a_waiting_step_of_a_lost_trainer_is_never_taken) {
  turn_weight() = full({3}, 0.5).requires_grad_();
  Cluster c({.size = 4});
  Slow slow(c, 0, 1, true);
  c.run(3, [&] {
    DistributedOptimizer opt = in_turn(1);
    step_in_turn(opt);
    Slow fast(c, 2, 1, true);
    fast.state->go = true;
    c.runtime().sleep_for(5s);
    c.kill(2);
    c.runtime().sleep_for(20s);
    EXPECT_EQ(opt.versions()[0], 1);
    EXPECT_TRUE(slow.end());
    c.runtime().sleep_for(20s);
    EXPECT_EQ(opt.versions()[0], 2);
    step_in_turn(opt);
  });
}

TEST(DistStepTurns, a_wait_without_a_bound_or_in_two_phases_is_refused) {
  turn_weight() = full({3}, 0.5).requires_grad_();
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto params = rpc_sync<turn_params>("worker1");
    const auto make = [&](const dist_optim::StepOptions& how) {
      return error_of<ValueError>([&] { dist_optim::make<optim::SGDRule>(params, {.lr = 0.1}, how); });
    };
    EXPECT_TRUE(has(make({.wait = true}), "steps that wait need a staleness bound"));
    EXPECT_TRUE(
        has(make({.max_staleness = 1, .wait = true, .two_phase = true}), "does not wait for its turn"));
  });
}

}  // namespace
