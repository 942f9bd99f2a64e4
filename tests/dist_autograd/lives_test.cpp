// Contexts and passes belong to the life of a worker that made them. The tests have replaced trainers and
// servers, and killed makers. Nothing of a dead life is left or mistaken for its successor's.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/remote_module.h>
#include <weft/nn/module.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using dist_autograd::Context;
using rpc::rpc_sync;
using test::Cluster;

Tensor of_value(double v) { return full({3}, v, {.dtype = kFloat64}).requires_grad_(); }

/// The weight of the server, worker 1.
Tensor& life_weight() {
  static Tensor w = of_value(3);
  return w;
}
Tensor life_forward(const Tensor& x) { return x * life_weight(); }
WEFT_RPC(life_forward);
Tensor life_forward_through(const Tensor& x) { return rpc_sync<life_forward>("worker1", x); }
WEFT_RPC(life_forward_through);
/// A FAST pass in which worker 1 awaits gradients that never come.
void life_pass_that_hangs() {
  const Tensor y = rpc_sync<life_forward>("worker1", of_value(1));
  rpc_sync<life_forward>("worker1", of_value(1));
  dist_autograd::backward(dist_autograd::current_context_id(), {y.sum()},
                          {.mode = Backward::kFast, .stall = 0s});
}
WEFT_RPC(life_pass_that_hangs);
Tensor life_sum(const Tensor& x) { return x.sum(); }
WEFT_RPC(life_sum);
rpc::RRef<Tensor> life_leaf() { return rpc::RRef<Tensor>(of_value(1)); }
WEFT_RPC(life_leaf);
std::vector<int64_t> life_optimize(const rpc::RRef<Tensor>& leaf) {
  return dist_optim::make<optim::SGDRule>({leaf}, {.lr = 0.5}).versions();
}
WEFT_RPC(life_optimize);
struct LifeModule : nn::Module {
  Tensor forward(const Tensor& x) { return x * 2.0; }
};
WEFT_RPC_CLASS(LifeModule, forward);
bool life_switch(const rpc::RemoteModule<LifeModule>& module) {
  module.eval();
  return module.is_training();
}
WEFT_RPC(life_switch);
/// Its gradient in a context; -1 without one.
double life_gradient(int64_t context) {
  const Tensor g = dist_autograd::get_gradient(context, life_weight());
  return g.defined() ? g.to_vector<double>()[0] : -1;
}
WEFT_RPC(life_gradient);

/// One step of a trainer; true if the gradients are those of a local run.
bool trains(double value, Backward mode) {
  const Tensor x = of_value(value);
  Context context;
  context.backward({rpc_sync<life_forward>("worker1", x).sum()}, {.mode = mode});
  return rpc_sync<life_gradient>("worker1", context.id()) == value &&
         context.gradient(x).to_vector<double>()[0] == 3;
}

int64_t counter(Cluster& c, int rank, const char* key) {
  return c.agent(rank)->debug_info().at(str("dist_autograd.num_", key));
}

/// A context of worker 0 that outlives the worker's kill: a task of its own has it until the test's end.
class HeldContext {
 public:
  HeldContext(Cluster& c, std::function<void()> call) : c_(c) {
    c.runtime().post([this, call = std::move(call), agent = c.agent(0)] {
      {
        const rpc::AgentScope scope(agent);
        Context context;
        call();
        id = context.id();
        while (!over_) rpc::current_runtime()->sleep_for(1s);
      }
      ended_ = true;
    });
    EXPECT_TRUE(test::eventually(c, [this] { return id >= 0; }));
  }
  ~HeldContext() {
    over_ = true;
    for (int i = 0; i < 100 && !ended_; ++i) c_.runtime().sleep_for(1s);
    EXPECT_TRUE(ended_);
  }
  HeldContext(const HeldContext&) = delete;
  int64_t id = -1;

 private:
  Cluster& c_;
  bool over_ = false, ended_ = false;
};

class DistLives : public ::testing::TestWithParam<Backward> {};
INSTANTIATE_TEST_SUITE_P(Modes, DistLives, ::testing::Values(Backward::kFast, Backward::kSmart),
                         [](const auto& info) { return info.param == Backward::kFast ? "fast" : "smart"; });

TEST_P(DistLives, a_replaced_trainer_gets_its_gradients_at_a_server_that_remembers_ended_contexts) {
  Cluster c({.size = 2, .net = {.connect_timeout = 500ms}});
  for (int life = 0; life < 3; ++life) {
    if (life > 0) c.restart(0);
    c.run(0, [&] {
      for (int step = 1; step <= 4; ++step) EXPECT_TRUE(trains(step, GetParam())) << life << " " << step;
    });
    c.kill(0);
    c.runtime().sleep_for(life == 0 ? 30s : 0s);
  }
}

TEST_P(DistLives, the_end_of_a_life_leaves_the_context_of_its_successor_alone) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Cluster c({.size = 2, .seed = seed});
    HeldContext abandoned(c, [] { rpc_sync<life_forward>("worker1", of_value(100)); });
    c.kill(0);
    c.restart(0);
    c.run(0, [&] {
      const Tensor x = of_value(7);
      Context context;
      EXPECT_EQ(context.id(), abandoned.id);
      const Tensor loss = rpc_sync<life_forward>("worker1", x).sum();
      if (seed % 2) rpc::current_runtime()->sleep_for(30s);  // all news of the old life has come
      context.backward({loss}, {.mode = GetParam()});
      EXPECT_EQ(rpc_sync<life_gradient>("worker1", context.id()), 7) << seed;
    });
    EXPECT_TRUE(test::eventually(c, [&] { return counter(c, 1, "autograd_contexts") == 0; }));
  }
}

TEST_P(DistLives, a_replaced_server_gets_no_gradients_of_its_predecessor) {
  Cluster c({.size = 2, .net = {.connect_timeout = 500ms}});
  c.run(0, [&] {
    const Tensor x = of_value(2);
    Context context;
    const Tensor before = rpc_sync<life_forward>("worker1", x).sum();
    c.kill(1);
    c.restart(1);
    const Tensor after = rpc_sync<life_forward>("worker1", x).sum();
    try {
      context.backward({before}, {.mode = GetParam()});
      ADD_FAILURE() << "no error";
    } catch (const PeerLost& e) {
      EXPECT_EQ(e.peer, "worker1");
    }
    context.backward({after}, {.mode = GetParam()});
    EXPECT_EQ(rpc_sync<life_gradient>("worker1", context.id()), 2);
  });
}

TEST_P(DistLives, a_nested_call_of_a_successor_waits_until_its_worker_is_told_of_it) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Cluster c({.size = 3, .seed = seed, .net = {.connect_timeout = 500ms}});
    c.run(0, [] { EXPECT_TRUE(trains(1, GetParam())); });
    c.restart(0, false, 1s);
    c.run(0, [&] {
      const Tensor x = of_value(2);
      Context context;
      const Tensor loss = rpc_sync<life_forward_through>("worker2", x).sum();
      context.backward({loss}, {.mode = GetParam()});
      EXPECT_EQ(rpc_sync<life_gradient>("worker1", context.id()), 2) << seed;
    });
  }
}

TEST_P(DistLives, a_pass_of_a_successor_runs_on_a_worker_that_is_told_of_it_later) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Cluster c({.size = 3, .seed = seed, .net = {.connect_timeout = 500ms}});
    c.run(0, [] { EXPECT_TRUE(trains(1, GetParam())); });
    c.restart(0, false, 1s);
    c.agent(2)->add_members({c.agent(0)->as_member()});
    c.run(2, [&] {
      const Tensor x = of_value(2);
      Context context;
      const Tensor y = rpc_sync<life_forward>("worker1", x);
      rpc::remote<life_sum>("worker0", y).backward(context.id(), {.mode = GetParam()});
      EXPECT_EQ(rpc_sync<life_gradient>("worker1", context.id()), 2) << seed;
      EXPECT_EQ(context.gradient(x).to_vector<double>()[0], 3) << seed;
    });
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_TRUE(test::eventually(c, [&] { return counter(c, rank, "autograd_contexts") == 0; }));
  }
}

TEST(DistLivesUntold, values_of_a_successor_are_used_there_by_a_worker_that_is_told_of_it_later) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    for (const bool module : {false, true}) {
      Cluster c({.size = 3, .seed = seed, .net = {.connect_timeout = 500ms}});
      c.run(0, [] { EXPECT_TRUE(trains(1, Backward::kSmart)); });
      c.restart(0, false, 1s);
      c.agent(2)->add_members({c.agent(0)->as_member()});
      c.run(2, [&] {
        if (module)
          EXPECT_FALSE(rpc_sync<life_switch>("worker1", rpc::RemoteModule<LifeModule>("worker0"))) << seed;
        else
          EXPECT_EQ(rpc_sync<life_optimize>("worker1", rpc_sync<life_leaf>("worker0")),
                    std::vector<int64_t>{0})
              << seed;
      });
    }
  }
}

TEST(DistLivesUntold, a_nested_call_of_a_successor_that_nobody_tells_of_is_a_loss_after_a_lease) {
  Cluster c({.size = 3, .net = {.connect_timeout = 500ms}});
  c.run(0, [] { EXPECT_TRUE(trains(1, Backward::kSmart)); });
  c.restart(0, false, 100000s);
  c.agent(2)->add_members({c.agent(0)->as_member()});
  c.run(0, [&] {
    const rpc::TimePoint start = c.runtime().now();
    const Context context;
    try {
      rpc_sync<life_forward_through>("worker2", of_value(2));
      ADD_FAILURE() << "no error";
    } catch (const PeerLost& e) {
      EXPECT_EQ(e.peer, "worker0");
    }
    EXPECT_LE(c.runtime().now() - start, 20s);  // the lease is 10 s, the limit of the call 60 s
  });
  EXPECT_TRUE(test::eventually(c, [&] { return counter(c, 2, "autograd_contexts") == 0; }));
  c.agent(1)->add_members({c.agent(0)->as_member()});
  c.run(0, [] { EXPECT_TRUE(trains(3, Backward::kSmart)); });
}

// ---- killed makers

constexpr auto kLeaseAndSlack = 12s;  // the lease is 10 s

TEST(DistMakers, a_killed_maker_leaves_no_context_at_a_server_that_it_only_called) {
  Cluster c({.size = 2, .net = {.connect_timeout = 60s}});
  HeldContext abandoned(c, [] { rpc_sync<life_forward>("worker1", of_value(1)); });
  EXPECT_EQ(counter(c, 1, "autograd_contexts"), 1);
  c.kill(0);
  c.runtime().sleep_for(kLeaseAndSlack);
  EXPECT_EQ(counter(c, 1, "autograd_contexts"), 0);
}

TEST(DistMakers, a_killed_maker_leaves_no_context_at_a_worker_behind_the_one_it_called) {
  Cluster c({.size = 3, .net = {.connect_timeout = 60s}});
  HeldContext abandoned(c, [] { rpc_sync<life_forward_through>("worker2", of_value(1)); });
  EXPECT_EQ(counter(c, 1, "autograd_contexts") + counter(c, 2, "autograd_contexts"), 2);
  c.kill(0);
  c.kill(2);  // which could have passed the end of the context on
  c.runtime().sleep_for(kLeaseAndSlack);
  EXPECT_EQ(counter(c, 1, "autograd_contexts"), 0);
}

TEST(DistMakers, a_worker_killed_before_it_passed_the_end_of_a_context_on_leaves_none_behind_it) {
  Cluster c({.size = 3, .net = {.connect_timeout = 60s}});
  const auto release = static_cast<uint8_t>(rpc::Kind::kRelease);
  c.net().add_rule({.kind = release, .from = rpc::WorkerId{2}, .to = rpc::WorkerId{1}});
  c.run(0, [] {
    const Context context;
    rpc_sync<life_forward_through>("worker2", of_value(1));
  });
  c.runtime().sleep_for(100ms);
  EXPECT_EQ(counter(c, 2, "autograd_contexts"), 0);
  EXPECT_EQ(counter(c, 1, "autograd_contexts"), 1);
  c.kill(2);
  c.runtime().sleep_for(kLeaseAndSlack);
  EXPECT_EQ(counter(c, 1, "autograd_contexts"), 0);
}

TEST(DistMakers, a_killed_initiator_leaves_no_pass_at_a_server_that_awaits_gradients) {
  Cluster c({.size = 3, .net = {.connect_timeout = 60s}});
  c.run(0, [&] {
    Context context;
    rpc::rpc_async<life_pass_that_hangs>("worker2");
    rpc::current_runtime()->sleep_for(5s);
    EXPECT_EQ(counter(c, 1, "current_backward_passes"), 1);
    c.kill(2);
    rpc::current_runtime()->sleep_for(kLeaseAndSlack);
    EXPECT_EQ(counter(c, 1, "current_backward_passes"), 0);
    EXPECT_EQ(counter(c, 1, "autograd_contexts"), 1);  // its maker lives
  });
  EXPECT_TRUE(test::eventually(c, [&] { return counter(c, 1, "autograd_contexts") == 0; }));
}

TEST(DistMakers, nobody_watches_a_maker_whose_contexts_have_ended) {
  Cluster c({.size = 3, .net = {.connect_timeout = 60s}});
  c.run(0, [&] {
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(trains(1, i % 2 ? Backward::kSmart : Backward::kFast));
      Context context;
      rpc_sync<life_forward_through>("worker2", of_value(1));
    }
    Context context;
    const Tensor y = rpc_sync<life_forward>("worker1", of_value(1));
    rpc_sync<life_forward>("worker1", of_value(1));  // no gradient comes for its result
    EXPECT_THROW(context.backward({y.sum()}, {.mode = Backward::kFast, .stall = 1s}), AutogradError);
  });
  c.runtime().sleep_for(20s);
  const auto statuses = [&] {
    return c.agent(1)->debug_info().at("agent.statuses") + c.agent(2)->debug_info().at("agent.statuses");
  };
  const int64_t before = statuses();
  c.runtime().sleep_for(60s);
  EXPECT_EQ(statuses(), before);
  c.kill(0);
  c.runtime().sleep_for(60s);
  EXPECT_EQ(statuses(), before);
  for (int rank = 1; rank < 3; ++rank) EXPECT_EQ(c.agent(rank)->debug_info().at("agent.lost_peers"), 0);
}

}  // namespace
