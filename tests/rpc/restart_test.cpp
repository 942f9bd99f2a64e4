// A worker that is started again under its name and id is another life. The calls and the state of the old
// one end with it, and the new one is called like any other worker.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/inner/put_off.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/wire/message.h>

#include "support/cluster.h"

namespace weft::test {

std::map<int64_t, int> g_life_runs;
int64_t life_note(int64_t n) {
  ++g_life_runs[n];
  return n + 1;
}
WEFT_RPC(life_note);
void life_sleep(int64_t ms) { rpc::current_runtime()->sleep_for(std::chrono::milliseconds(ms)); }
WEFT_RPC(life_sleep);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

/// The losses that a worker hears of.
class Heard {
 public:
  explicit Heard(const std::shared_ptr<Agent>& agent) {
    agent->on_peer_lost([state = state_](const LostPeer& peer) {
      const std::lock_guard lock(state->mutex);
      state->lost.push_back(peer.life());
    });
  }
  std::vector<Life> all() const {
    const std::lock_guard lock(state_->mutex);
    return state_->lost;
  }

 private:
  struct State {
    std::mutex mutex;
    std::vector<Life> lost;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST(Restart, past_lives_leave_no_accounts_of_bytes_and_no_counts_of_rounds) {
  Cluster c({.size = 3});
  for (int64_t i = 0; i < 10; ++i) {
    for (const int rank : {0, 2}) c.run(rank, [&] { EXPECT_EQ(rpc_sync<life_note>("worker1", i), i + 1); });
    c.run(1, [&] { EXPECT_EQ(rpc_sync<life_note>("worker0", i), i + 1); });
    c.run_all([](int rank) {
      if (rank != 2) barrier({"worker0", "worker1"});
    });
    EXPECT_EQ(c.agent(0)->impl().gathers.sets(), 1U);
    c.run(0, [&] {
      const auto open = rpc_async<life_sleep>("worker1", 100000);
      c.kill(1);
      EXPECT_THROW(open.wait(), PeerLost);
      EXPECT_THROW(rpc_sync<life_note>("worker1", i), PeerLost);
    });
    c.restart(1);
    EXPECT_EQ(c.agent(0)->impl().gathers.sets(), 0U);
  }
  EXPECT_LE(c.agent(0)->impl().core.budget.accounts(), 2U);
}

TEST(Restart, calls_go_both_ways_and_those_to_the_old_life_have_failed) {
  for (const test::Over over : {test::Over::kSim, test::Over::kGrpc}) {
    Cluster c({.over = over, .size = 3});
    Heard heard(c.agent(0));
    const Life before = c.agent(1)->life();
    c.run(0, [&] {
      EXPECT_EQ(rpc_sync<life_note>("worker1", 1), 2);
      const auto open = rpc_async<life_sleep>("worker1", 100000);
      c.restart(1);
      try {
        open.wait();
        ADD_FAILURE() << "a call to the old life returned";
      } catch (const PeerLost& e) {
        EXPECT_EQ(e.peer, "worker1");
        EXPECT_NE(std::string(e.what()).find("it was restarted"), std::string::npos) << e.what();
      }
      for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(rpc_sync<life_note>("worker1", i), i + 1);
    });
    for (const int other : {0, 2}) {
      c.run(1, [&] { EXPECT_EQ(rpc_sync<life_note>(other, 7), 8); });
      c.run(other, [] { EXPECT_EQ(rpc_sync<life_note>("worker1", 8), 9); });
      EXPECT_TRUE(c.agent(other)->is_lost(before));
      EXPECT_FALSE(c.agent(other)->is_lost(c.agent(1)->life()));
      EXPECT_EQ(c.agent(other)->life_of(WorkerId{1}), c.agent(1)->life());
    }
    ASSERT_TRUE(eventually(c, [&] { return !heard.all().empty(); }));
    EXPECT_EQ(heard.all().size(), 1u);
    EXPECT_EQ(heard.all().at(0), before);
    c.shutdown();
  }
}

TEST(Restart, a_new_life_that_is_slow_to_speak_is_not_lost_with_the_old_one) {
  Cluster c({.size = 2, .net = {.break_notice = 1h}});
  Heard heard(c.agent(0));
  c.run(0, [] { rpc_sync<life_note>("worker1", 1); });
  const Life old = c.agent(1)->life();
  c.agent(0)->watch(old, +1);
  c.sim().run_for(9s);
  c.kill(1);
  c.sim().run_for(900ms);
  c.restart(1);
  c.agent(0)->watch(c.agent(1)->life(), +1);
  c.agent(0)->watch(old, -1);  // a layer lets go of the old life; that is nothing to the new one
  c.sim().run_for(60s);
  ASSERT_EQ(heard.all().size(), 1u);
  EXPECT_EQ(heard.all()[0], old);
  EXPECT_FALSE(c.agent(0)->is_lost(c.agent(1)->life()));
  c.kill(1);
  c.sim().run_for(11s);
  EXPECT_TRUE(c.agent(0)->is_lost(c.agent(1)->life()));
  EXPECT_EQ(heard.all().size(), 2u);
}

// The old life was only cut off. It comes back while its successor is at work, asks and answers.
TEST(Restart, messages_of_the_old_life_change_nothing) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    g_life_runs.clear();
    Cluster c({.size = 2, .seed = seed, .net = {.jitter = 1ms, .drop = 0.05, .duplicate = 0.05}});
    Heard heard(c.agent(0));
    const std::shared_ptr<Agent> old = c.agent(1);
    std::vector<Future<int64_t>> late;
    c.run(0, [&] {
      const auto open = rpc_async<life_sleep>("worker1", 300);
      rpc_sync<life_note>("worker1", 1);
      c.net().partition({WorkerId{0}}, {WorkerId{1}});
      {
        const AgentScope scope(old);
        for (int64_t i = 0; i < 5; ++i) late.push_back(rpc_async<life_note>("worker0", 1000 + i));
      }
      current_runtime()->sleep_for(200ms);
      c.net().heal();
      c.restart(1, true);
      EXPECT_THROW(open.wait(), PeerLost);
      for (int64_t i = 0; i < 40; ++i) {
        EXPECT_EQ(rpc_sync<life_note>("worker1", i), i + 1) << "seed " << seed;
        current_runtime()->sleep_for(50ms);
      }
    });
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(g_life_runs[1000 + i], 0) << "seed " << seed;
    EXPECT_EQ(heard.all().size(), 1u);
    EXPECT_FALSE(c.agent(0)->is_lost(c.agent(1)->life()));
  }
}

// Both lives count their requests from 1.
TEST(Restart, requests_of_the_new_life_are_no_duplicates_of_the_old_ones) {
  g_life_runs.clear();
  Cluster c({.size = 2});
  c.run(1, [] {
    for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(rpc_sync<life_note>("worker0", 1), 2);
  });
  c.restart(1);
  c.run(1, [] {
    for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(rpc_sync<life_note>("worker0", 1), 2);
  });
  EXPECT_EQ(g_life_runs[1], 40);
}

TEST(Restart, a_worker_is_restarted_over_and_over_and_each_life_is_reported_once) {
  Cluster c({.size = 3});
  Heard heard(c.agent(0));
  std::vector<Life> lives;
  for (int i = 0; i < 8; ++i) {
    lives.push_back(c.agent(2)->life());
    c.run(0, [] { EXPECT_EQ(rpc_sync<life_note>("worker2", 1), 2); });
    c.restart(2);
    c.run(2, [] { EXPECT_EQ(rpc_sync<life_note>("worker0", 1), 2); });
  }
  c.sim().run_for(30s);
  ASSERT_EQ(heard.all().size(), lives.size());
  for (size_t i = 0; i < lives.size(); ++i) EXPECT_EQ(heard.all()[i], lives[i]);
  c.shutdown();
}

TEST(Restart, lives_that_nobody_tells_of_are_given_up_after_a_lease_and_may_be_told_later) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    EXPECT_EQ(rpc_sync<life_note>("worker1", 1), 2);
    const auto agent = c.agent(0);
    uint64_t number = 1000000;
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 3000; ++i) agent->watch({WorkerId{1}, {++number}}, +1);  // as references name them
      current_runtime()->sleep_for(60s);
      EXPECT_TRUE(agent->is_lost({WorkerId{1}, {number}}));
    }
    const Life named(WorkerId{1}, {++number}), first(WorkerId{1}, {1000001});
    agent->watch(named, +1);
    for (const Life life : {named, first}) {
      Member late = c.agent(1)->as_member();
      late.address.incarnation = life.incarnation;
      agent->add_members({late});
      EXPECT_FALSE(agent->is_lost(life));
      EXPECT_EQ(agent->life_of(WorkerId{1}), life);
    }
    EXPECT_TRUE(agent->is_lost(named));
  });
}

TEST(Restart, lives_that_requests_name_again_after_a_lease_stay_given_up) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    EXPECT_EQ(rpc_sync<life_note>("worker1", 1), 2);
    const auto kept = [&] { return c.agent(0)->impl().peers.shown().size(); };
    const auto name = [&](int64_t i) {
      check_told(*c.agent(0), {WorkerId{1}, {static_cast<uint64_t>(1000000 + i)}});
    };
    for (int64_t i = 0; i < 3; ++i) EXPECT_THROW(name(i), PutOff);
    EXPECT_EQ(kept(), 2U + 3U);
    for (int retry = 0; retry < 2; ++retry) {
      current_runtime()->sleep_for(11s);
      EXPECT_EQ(kept(), 2U);
      for (int64_t i = 0; i < 3; ++i) EXPECT_THROW(name(i), PeerLost);
    }
    EXPECT_EQ(kept(), 2U);
  });
}

TEST(Restart, the_address_of_a_dead_worker_that_answers_as_another_life_is_the_end_of_the_old_one) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    EXPECT_EQ(rpc_sync<life_note>("worker1", 1), 2);
    const auto open = rpc_async<life_sleep>("worker1", 100000);
    current_runtime()->sleep_for(10ms);
    c.kill(1);
    const auto successor = Agent::create(c.agent(0)->runtime(), {.name = "worker1", .id = WorkerId{1}},
                                         [&](Receiver& r) { return c.net().attach(WorkerId{1}, r); });
    const TimePoint before = current_runtime()->now();
    EXPECT_THROW(open.wait(), PeerLost);
    EXPECT_LE(current_runtime()->now() - before, 1s);
    successor->shutdown({.graceful = false});
  });
}

TEST(Restart, a_shutdown_tells_the_lives_of_a_passive_worker_apart) {
  Cluster c({.size = 3, .net = {.break_notice = 1h}});
  std::string heard;
  c.runtime().post([&, server = c.agent(0)] {
    try {
      server->shutdown();
      heard = "fine";
    } catch (const PeerLost& e) {
      heard = e.peer;
    }
  });
  c.runtime().post([&, passive = c.agent(2)] {
    try {
      passive->shutdown();
    } catch (const Error&) {  // it is killed
    }
  });
  c.sim().run_for(1s);  // worker 2 is known to be passive
  c.restart(2);
  c.runtime().post([&, active = c.agent(1)] {
    try {
      active->shutdown();
    } catch (const PeerLost&) {  // as the server
    }
  });
  c.run(2, [] { EXPECT_EQ(rpc_sync<life_note>("worker0", 1), 2); });
  c.sim().run_for(30s);
  EXPECT_EQ(heard, "");  // the new life is active
  c.run(2, [] { EXPECT_EQ(rpc_sync<life_note>("worker0", 1), 2); });
  c.kill(2);
  c.sim().run_for(30s);
  EXPECT_EQ(heard, "worker2");
}

}  // namespace
