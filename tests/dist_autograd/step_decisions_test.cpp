// Steps in two phases in an elastic group, in simulation. The decision is at the store before any commit, and
// owners in doubt ask for it. The owners keep the old values or all have the new ones, no matter which worker
// dies.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <new>
#include <set>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/optim/inner/step_decisions.h>
#include <weft/distributed/optim/inner/step_seam.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rpc/step_errors.h>
#include <weft/tensor/factories.h>

#include "support/around_store.h"
#include "support/elastic.h"
#include "support/errors.h"
#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using dist_autograd::Context;
using dist_optim::DistributedOptimizer;
using test::ElasticGroup;
using test::error_of;
using test::has;
using weft::testing::same_bits;

const std::vector<std::string> kParts{"o1", "o2", "o3"};

/// The parameter of each owner of the test.
std::map<std::string, Tensor>& decided_values() {
  static std::map<std::string, Tensor> all;
  return all;
}
Tensor& decided_here() { return decided_values().at(current_agent()->self().name); }
Tensor decided_forward(const Tensor& x) { return tanh(x * decided_here()); }
RRef<Tensor> decided_param() { return RRef<Tensor>(decided_here()); }
WEFT_RPC(decided_forward);
WEFT_RPC(decided_param);

/// The requests about decisions of all workers, and the events around the first commit.
struct Watched {
  std::set<std::string> keys;
  int holds = 0, unsets = 0;
  std::function<void()> before_commit, after_commit, before_abort;
};

/// A client of the store that tells of decisions.
class WatchedStore final : public test::AroundStore {
 public:
  WatchedStore(std::shared_ptr<Store> inner, Watched& watched)
      : AroundStore(std::move(inner)), watched_(watched) {}
  void unset(const std::string& key, TimePoint deadline) override {
    watched_.unsets += key.starts_with("step/");
    AroundStore::unset(key, deadline);
  }
  void hold(const std::string& key, const std::string& value, Duration lease, TimePoint deadline) override {
    if (!key.starts_with("step/")) return AroundStore::hold(key, value, lease, deadline);
    ++watched_.holds;
    watched_.keys.insert(key);
    if (value == "commit" && watched_.before_commit) std::exchange(watched_.before_commit, nullptr)();
    if (value == "abort" && watched_.before_abort) watched_.before_abort();
    AroundStore::hold(key, value, lease, deadline);
    if (value == "commit" && watched_.after_commit) std::exchange(watched_.after_commit, nullptr)();
  }

 private:
  Watched& watched_;
};

/// A trainer "t" with three owners, and "w", which goes on when "t" is dead.
struct Training {
  explicit Training(uint64_t seed = 1, SimNetOptions net = {})
      : group({.seed = seed,
               .net = net,
               .around =
                   [this](const std::string&, std::shared_ptr<Store> store) {
                     return std::make_shared<WatchedStore>(std::move(store), watched);
                   }}),
        w(group.join("w")),
        t(group.join("t")) {
    decided_values().clear();
    for (size_t i = 0; i < kParts.size(); ++i) {
      decided_values()[kParts[i]] = full({3}, 0.1 * static_cast<double>(i) + 0.3).requires_grad_();
      owners.push_back(&group.join(kParts[i]));
    }
    for (auto* worker : {&w, &t}) worker->membership->wait_for(kParts, group.sim().now() + 5s);
  }
  DistributedOptimizer optimizer(int64_t lease_ms = 2000) {
    std::vector<RRef<Tensor>> params;
    for (const std::string& name : kParts) params.push_back(rpc_sync<decided_param>(name));
    return dist_optim::make<optim::AdamRule>(params, {.lr = 0.05}, {.two_phase = true, .lease_ms = lease_ms});
  }
  static void step(DistributedOptimizer& opt, int number) {
    Context context;
    Tensor x = full({3}, 0.2 * (number + 1));
    for (const std::string& name : kParts) x = rpc_sync<decided_forward>(name, x);
    context.backward({x.square().sum()});
    opt.step(context.id());
  }
  std::map<std::string, Tensor> values() const {
    std::map<std::string, Tensor> out;
    for (const std::string& name : kParts) out[name] = decided_values()[name].detach().clone();
    return out;
  }
  /// Decisions that are still at the store.
  int64_t kept() {
    int64_t count = 0;
    group.run(w, [&] {
      const std::vector<std::string> keys(watched.keys.begin(), watched.keys.end());
      if (keys.empty()) return;
      for (const auto& value : w.membership->store()->peek(keys, group.sim().now() + 5s)) count += !!value;
    });
    return count;
  }
  /// A step of the worker that is left.
  void go_on() {
    group.run(w, [&] {
      const auto before = values();
      DistributedOptimizer later = optimizer();
      step(later, 2);
      for (const auto& [name, value] : values()) EXPECT_FALSE(same_bits(value, before.at(name)));
    });
  }

  Watched watched;
  ElasticGroup group;
  ElasticGroup::Worker &w, &t;
  std::vector<ElasticGroup::Worker*> owners;
};

/// The values after no step and after each of two.
std::vector<std::map<std::string, Tensor>> undisturbed() {
  Training train;
  std::vector<std::map<std::string, Tensor>> out{train.values()};
  train.group.run(train.t, [&] {
    DistributedOptimizer opt = train.optimizer();
    for (int i = 0; i < 2; ++i) {
      train.step(opt, i);
      out.push_back(train.values());
    }
  });
  return out;
}

/// The number of steps that the values have seen; -1: it differs from owner to owner.
int steps_of(const std::vector<std::map<std::string, Tensor>>& known,
             const std::map<std::string, Tensor>& values) {
  for (size_t i = 0; i < known.size(); ++i)
    if (std::all_of(values.begin(), values.end(),
                    [&](const auto& v) { return same_bits(v.second, known[i].at(v.first)); }))
      return static_cast<int>(i);
  return -1;
}

TEST(DistStepDecisions, a_step_costs_two_requests_to_the_store_and_leaves_no_key) {
  Training train;
  train.group.run(train.t, [&] {
    DistributedOptimizer opt = train.optimizer();
    for (int i = 0; i < 5; ++i) {
      train.step(opt, i);
      EXPECT_EQ(train.watched.holds, i + 1);
      EXPECT_EQ(train.watched.unsets, i + 1);
    }
    EXPECT_EQ(opt.versions(), (std::vector<int64_t>{5, 5, 5}));
  });
  EXPECT_EQ(train.watched.keys.size(), 5u);
  EXPECT_EQ(train.kept(), 0);
}

/// The trainer dies in its second step, when the decision is `written` or just before. The owners end it.
void expect_one_step_of_all(bool written, int steps) {
  const auto known = undisturbed();
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Training train(seed, {.jitter = 1ms, .drop = 0.02, .duplicate = 0.02});
    train.group.run(train.t, [&] {
      DistributedOptimizer opt = train.optimizer();
      train.step(opt, 0);
      (written ? train.watched.after_commit : train.watched.before_commit) = [&] {
        train.group.kill(train.t);
      };
      EXPECT_THROW(train.step(opt, 1), RpcError);
    });
    train.group.sim().run_for(5s);
    EXPECT_EQ(steps_of(known, train.values()), steps) << "seed " << seed;
    train.group.sim().run_for(30s);
    EXPECT_EQ(steps_of(known, train.values()), steps) << "seed " << seed;
    train.go_on();  // nothing is left in doubt
    EXPECT_EQ(train.kept(), 0);
  }
}

TEST(DistStepDecisions, a_lease_that_is_not_positive_decides_nothing) {
  Training train;
  const auto before = train.values();
  train.group.run(train.t, [&] {
    DistributedOptimizer opt = train.optimizer(0);
    EXPECT_TRUE(has(error_of<ValueError>([&] { train.step(opt, 0); }), "positive lease"));
    auto& store = *train.t.membership->store();
    EXPECT_THROW(
        dist_optim::detail::decide_at_store(store, "step/x", false, -1s, train.group.sim().now() + 5s),
        ValueError);
  });
  for (const auto& [name, value] : train.values()) EXPECT_TRUE(same_bits(value, before.at(name)));
  EXPECT_EQ(train.watched.holds, 0);
}

TEST(DistStepDecisions, owners_commit_when_the_trainer_dies_after_writing_the_decision) {
  expect_one_step_of_all(true, 2);
}
TEST(DistStepDecisions, owners_keep_the_old_step_when_the_trainer_dies_before_the_decision) {
  expect_one_step_of_all(false, 1);
}

TEST(DistStepDecisions, an_owner_without_memory_for_its_question_asks_again) {
  const auto known = undisturbed();
  Training train;
  int questions = 0;
  train.group.run(train.t, [&] {
    DistributedOptimizer opt = train.optimizer();
    train.step(opt, 0);
    train.watched.before_commit = [&] { train.group.kill(train.t); };
    train.watched.before_abort = [&] {
      if (questions++ < 3) throw std::bad_alloc();
    };
    EXPECT_THROW(train.step(opt, 1), RpcError);
  });
  train.group.sim().run_for(30s);
  EXPECT_GE(questions, 6);
  EXPECT_EQ(steps_of(known, train.values()), 1);
  train.go_on();  // nothing is left in doubt
  EXPECT_EQ(train.kept(), 0);
}

TEST(DistStepDecisions, an_owner_without_an_answer_for_a_lease_keeps_the_old_step_and_refuses_newer_ones) {
  for (const bool written : {true, false}) {
    const auto known = undisturbed();
    Training train;
    const auto cut = [&] {
      train.group.kill(train.t);
      for (auto* owner : train.owners) train.group.cut_store(*owner);
    };
    train.group.run(train.t, [&] {
      DistributedOptimizer opt = train.optimizer();
      train.step(opt, 0);
      (written ? train.watched.after_commit : train.watched.before_commit) = cut;
      train.group.sim().call_at(train.group.sim().now() + 6s, [&] { train.group.net().heal(); });
      EXPECT_THROW(train.step(opt, 1), RpcError);
    });
    train.group.sim().run_for(60s);
    EXPECT_EQ(steps_of(known, train.values()), 1);
    train.group.run(train.w, [&] {
      DistributedOptimizer later = train.optimizer();
      EXPECT_TRUE(has(error_of<StepInDoubt>([&] { train.step(later, 1); }), "awaits its decision"));
      EXPECT_EQ(steps_of(known, train.values()), 1);
      later.end_doubt();
    });
    train.go_on();
    EXPECT_EQ(train.kept(), 0);
  }
}

TEST(DistStepDecisions, a_trainer_that_is_slow_to_decide_finds_the_step_ended_and_takes_it_again) {
  Training train;
  train.group.run(train.t, [&] {
    DistributedOptimizer opt = train.optimizer(4000);
    train.step(opt, 0);
    train.watched.before_commit = [&] { train.group.sim().sleep_for(3900ms); };
    train.step(opt, 1);
    EXPECT_EQ(opt.versions(), (std::vector<int64_t>{2, 2, 2}));
    const std::map<std::string, Tensor> before = train.values();
    train.watched.before_commit = [&] { train.group.sim().sleep_for(5s); };
    EXPECT_TRUE(has(error_of<StepInDoubt>([&] { train.step(opt, 2); }), "keeps the old values"));
    for (const auto& [name, value] : train.values()) EXPECT_TRUE(same_bits(value, before.at(name)));
    train.step(opt, 2);
    EXPECT_EQ(opt.versions(), (std::vector<int64_t>{3, 3, 3}));
  });
  EXPECT_EQ(train.kept(), 0);
}

TEST(DistStepDecisions, a_trainer_without_the_store_says_so_and_its_owners_find_the_decision) {
  const auto known = undisturbed();
  for (const bool written : {false, true}) {
    Training train;
    train.group.run(train.t, [&] {
      DistributedOptimizer opt = train.optimizer(2000);
      train.step(opt, 0);
      const auto cut = [&] { train.group.cut_store(train.t); };
      if (!written) train.watched.before_commit = cut;
      else  // the request comes, its answer does not
        train.group.net().add_rule({.from = WorkerId{0}, .to = train.t.client});
      const std::string text = error_of<Timeout>([&] { train.step(opt, 1); });
      EXPECT_TRUE(has(text, "its decision is not known, and the owners ask the store"));
      train.group.sim().run_for(3s);
      EXPECT_EQ(steps_of(known, train.values()), written ? 2 : 1);
    });
    train.group.sim().run_for(20s);
    EXPECT_EQ(train.kept(), 0);
  }
}

std::function<void()>& at_next_point() {
  static std::function<void()> f;
  return f;
}
int& points_left() {
  static int n;
  return n;
}

TEST(DistStepDecisions, a_trainer_killed_at_any_point_leaves_all_owners_with_one_step_and_none_in_doubt) {
  const auto known = undisturbed();
  std::set<int> seen;
  for (int at = 0; at < 12; ++at) {
    Training train(static_cast<uint64_t>(at + 1));
    train.group.run(train.t, [&] {
      DistributedOptimizer opt = train.optimizer();
      train.step(opt, 0);
      points_left() = at, at_next_point() = [&] { train.group.kill(train.t); };
      dist_optim::detail::at_step_point = [](const char*) {
        if (points_left()-- == 0) at_next_point()();
      };
      EXPECT_THROW(train.step(opt, 1), RpcError);
      dist_optim::detail::at_step_point = nullptr;
    });
    train.group.sim().run_for(30s);
    const int steps = steps_of(known, train.values());
    EXPECT_TRUE(steps == 1 || steps == 2) << "point " << at;
    seen.insert(steps);
    train.go_on();
    EXPECT_EQ(train.kept(), 0);
  }
  EXPECT_EQ(seen.size(), 2u);
}

}  // namespace
