// Elastic groups: workers join, leave and die at any time, and a successor takes a dead worker's name.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/rref.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/elastic.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::ElasticGroup;
using test::ElasticOptions;

int64_t elastic_twice(int64_t n) { return 2 * n; }
WEFT_RPC(elastic_twice);
Tensor elastic_forward(const Tensor& x) { return x * x; }
WEFT_RPC(elastic_forward);
RRef<int64_t> elastic_make(int64_t n) { return RRef<int64_t>(n); }
WEFT_RPC(elastic_make);
void elastic_sleep(int64_t ms) { current_runtime()->sleep_for(std::chrono::milliseconds(ms)); }
WEFT_RPC(elastic_sleep);

/// The members that came to one worker, and those that went.
struct Seen {
  explicit Seen(const ElasticGroup::Worker& w) {
    w.membership->on_joined([s = state](const WorkerInfo& m) { s->joined.push_back(m.name); });
    w.agent()->on_peer_lost(
        [s = state](const LostPeer& m) { (m.left ? s->left : s->lost).push_back(m.info.name); });
  }
  struct State {
    std::vector<std::string> joined, left, lost;
  };
  const std::shared_ptr<State> state = std::make_shared<State>();
};

using Names = std::vector<std::string>;

/// Calls, references and an exact backward pass with worker `to`, as the current worker.
void expect_works_with(const std::string& to) {
  EXPECT_EQ(rpc_sync<elastic_twice>(to, 4), 8);
  RRef<int64_t> made = rpc_sync<elastic_make>(to, 7);
  EXPECT_EQ(made.to_here(), 7);
  EXPECT_EQ(remote<elastic_twice>(to, 5).to_here(), 10);
  const Tensor x = full({2}, 3, {.dtype = kFloat64}).requires_grad_();
  dist_autograd::Context context;
  context.backward({rpc_sync<elastic_forward>(to, x).sum()});
  EXPECT_EQ(context.gradient(x).to_vector<double>()[0], 6);
}

std::string failure_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

TEST(Membership, workers_join_leave_and_are_succeeded) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    ElasticGroup g({.seed = seed});
    auto& a = g.join("a");
    const Seen seen(a);
    auto& b = g.join("b");
    auto& c = g.join("c");
    a.membership->wait_for({"b", "c"}, g.sim().now() + 5s);
    b.membership->wait_for({"c"}, g.sim().now() + 5s);
    EXPECT_EQ(a.membership->epoch(), 3u);
    for (const auto* from : {&a, &b, &c})
      for (const auto* to : {&a, &b, &c}) g.run(*from, [&] { expect_works_with(to->name); });
    g.sim().run_for(1s);
    EXPECT_EQ(seen.state->joined, (Names{"b", "c"}));

    c.membership->leave(g.sim().now() + 10s);
    g.sim().run_for(2s);
    EXPECT_EQ(seen.state->left, Names{"c"});
    EXPECT_EQ(a.membership->epoch(), 4u);
    g.run(a, [&] {
      const std::string text = failure_of([] { rpc_sync<elastic_twice>("c", 1); });
      EXPECT_NE(text.find("has left the group"), std::string::npos) << text;
      expect_works_with("b");
    });

    const Life dead = b.agent()->life();
    RRef<int64_t> old;
    g.run(a, [&] { old = rpc_sync<elastic_make>("b", 1); });
    g.kill(b);
    const TimePoint killed = g.sim().now();
    auto& successor = g.join("b");
    EXPECT_GE(g.sim().now() - killed, 7s);  // the lease of the old life has run out first
    EXPECT_LE(g.sim().now() - killed, 11s);
    EXPECT_EQ(successor.id(), dead.id);
    EXPECT_NE(successor.agent()->life(), dead);
    a.membership->wait_for({"b"}, g.sim().now() + 5s);
    g.sim().run_for(3s);
    EXPECT_EQ(seen.state->lost, Names{"b"});
    EXPECT_EQ(seen.state->joined, (Names{"b", "c", "b"}));
    g.run(a, [&] {
      EXPECT_THROW(old.to_here(), OwnerLost);
      expect_works_with("b");
      old = {};
    });
    g.run(successor, [&] { expect_works_with("a"); });

    auto& again = g.join("c");  // a name that was left is free at once
    g.run(again, [&] { expect_works_with("b"); });
  }
}

TEST(Membership, a_member_that_was_waited_for_can_be_called_at_once) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    ElasticGroup g({.seed = seed, .keep_log = false});
    auto& a = g.join("a");
    std::string text;
    Event done(g.sim(), "a call");
    g.sim().post([&] {
      const auto here = [&] {
        return failure_of([&] { a.membership->wait_for({"b", "c"}, g.sim().now()); }).empty();
      };
      while (!here()) g.sim().sleep_for(3us);
      text = failure_of([&] { g.run(a, [] { EXPECT_EQ(rpc_sync<elastic_twice>("c", 1), 2); }); });
      done.set();
    });
    g.join("b");
    g.join("c");
    ASSERT_TRUE(done.wait_until(g.sim().now() + 20s));
    EXPECT_EQ(text, "") << "seed " << seed;
  }
}

TEST(Membership, a_member_that_ends_while_another_adds_it_leaves_the_list) {
  ElasticOptions options;
  options.found = [](const std::shared_ptr<Agent>& agent, const Member&) {
    if (agent->self().name == "a") agent->runtime()->sleep_for(1s);
  };
  ElasticGroup g(std::move(options));
  auto& a = g.join("a");
  auto& b = g.join("b");
  g.run(b, [] { EXPECT_EQ(rpc_sync<elastic_twice>("a", 2), 4); });
  b.agent()->shutdown({.graceful = false});
  g.sim().run_for(45s);
  EXPECT_EQ(a.membership->members().size(), 1u);
}

TEST(Membership, a_dead_member_leaves_the_list_without_a_successor) {
  ElasticGroup g;
  auto& a = g.join("a");
  const Seen seen(a);
  auto& b = g.join("b");
  auto& c = g.join("c");
  a.membership->wait_for({"b", "c"}, g.sim().now() + 5s);
  g.kill(b);
  g.kill(c);
  g.sim().run_for(45s);
  EXPECT_EQ(a.membership->members().size(), 1u);
  EXPECT_EQ(seen.state->lost.size(), 2u);
}

TEST(Membership, a_name_that_is_held_keeps_its_successor_waiting) {
  ElasticGroup g({.init_timeout = 25s});
  auto& a = g.join("a");
  const std::string text = failure_of([&] { g.join("a"); });
  EXPECT_NE(text.find("another life of worker 'a' at sim:a-"), std::string::npos) << text;
  EXPECT_EQ(text.find(str(a.agent()->life().incarnation)), std::string::npos) << text;  // its secret
  g.run(a, [] { EXPECT_EQ(rpc_sync<elastic_twice>("a", 2), 4); });
}

TEST(Membership, gathers_and_barriers_follow_joins_and_losses) {
  ElasticGroup g;
  auto& a = g.join("a");
  auto& b = g.join("b");
  a.membership->wait_for({"b"}, g.sim().now() + 5s);
  const auto gather_all = [&](const std::vector<const ElasticGroup::Worker*>& workers) {
    std::vector<std::map<std::string, int64_t>> all(workers.size());
    std::vector<std::unique_ptr<Event>> done;
    for (size_t i = 0; i < workers.size(); ++i) {
      done.push_back(std::make_unique<Event>(g.sim(), "a gather"));
      g.sim().post([&, i] {
        g.run(*workers[i], [&] { all[i] = all_gather<int64_t>(static_cast<int64_t>(i)); });
        done[i]->set();
      });
    }
    for (const auto& d : done) EXPECT_TRUE(d->wait_until(g.sim().now() + 2min));
    return all;
  };
  using Gathered = std::map<std::string, int64_t>;
  for (const auto& got : gather_all({&a, &b})) EXPECT_EQ(got, (Gathered{{"a", 0}, {"b", 1}}));
  auto& c = g.join("c");
  a.membership->wait_for({"c"}, g.sim().now() + 5s);
  b.membership->wait_for({"c"}, g.sim().now() + 5s);
  for (const auto& got : gather_all({&a, &b, &c})) EXPECT_EQ(got, (Gathered{{"a", 0}, {"b", 1}, {"c", 2}}));
  g.kill(b);
  g.sim().run_for(30s);
  for (const auto& got : gather_all({&a, &c})) EXPECT_EQ(got, (Gathered{{"a", 0}, {"c", 1}}));
  auto& successor = g.join("b");
  a.membership->wait_for({"b"}, g.sim().now() + 5s);
  c.membership->wait_for({"b"}, g.sim().now() + 5s);
  for (const auto& got : gather_all({&a, &c, &successor}))
    EXPECT_EQ(got, (Gathered{{"a", 0}, {"c", 1}, {"b", 2}}));
}

TEST(Membership, leaving_waits_for_the_calls_under_way) {
  ElasticGroup g;
  auto& a = g.join("a");
  auto& b = g.join("b");
  a.membership->wait_for({"b"}, g.sim().now() + 5s);
  std::optional<Future<void>> served;
  g.run(a, [&] { served = rpc_async<elastic_sleep>("b", 500); });
  g.sim().run_for(100ms);
  b.membership->leave(g.sim().now() + 10s);
  g.run(a, [&] { EXPECT_NO_THROW(served->wait()); });
  EXPECT_FALSE(b.agent()->is_running());
  std::optional<Future<void>> own;
  g.run(a, [&] { own = rpc_async<elastic_sleep>("a", 60000); });
  EXPECT_THROW(a.membership->leave(g.sim().now() + 1s), Timeout);
  EXPECT_FALSE(a.agent()->is_running());
}

TEST(Membership, answers_arrive_before_the_news_that_their_sender_has_left) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    ElasticGroup g({.seed = seed, .net = {.jitter = 200ms}});
    auto& a = g.join("a");
    auto& b = g.join("b");
    a.membership->wait_for({"b"}, g.sim().now() + 20s);
    std::optional<Future<int64_t>> served;
    g.run(a, [&] { served = rpc_async<elastic_twice>("b", 4); });
    while (b.agent()->debug_info().at("agent.served_calls") == 0) g.sim().sleep_for(1ms);
    b.membership->leave(g.sim().now() + 20s);
    g.run(a, [&] { EXPECT_EQ(served->wait(), 8) << "seed " << seed; });
  }
}

TEST(Membership, in_a_static_group_nobody_joins_and_losses_are_told) {
  test::Cluster c({.size = 2});
  int joined = 0;
  Names lost;
  c.run(0, [&] {
    on_member_joined([&](const WorkerInfo&) { ++joined; });
    on_member_lost([&](const LostPeer& m) { lost.push_back(m.info.name); });
    EXPECT_EQ(epoch(), 0u);
    wait_for_members({"worker0", "worker1"}, 1s);
    EXPECT_THROW(wait_for_members({"worker2"}, 1s), ValueError);
    EXPECT_EQ(rpc_sync<elastic_twice>("worker1", 4), 8);
    const Future<void> open = rpc_async<elastic_sleep>("worker1", 100000);
    c.kill(1);
    EXPECT_THROW(open.wait(), PeerLost);
  });
  c.sim().run_for(1s);
  EXPECT_EQ(joined, 0);
  EXPECT_EQ(lost, Names{"worker1"});
}

}  // namespace
