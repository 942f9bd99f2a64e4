// A life of an elastic group that cannot renew its lease is fenced: it serves nothing and calls nobody. It
// goes on when it renews before a successor has its name, and stays out otherwise.
#include <gtest/gtest.h>

#include <algorithm>

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/rref.h>

#include "support/elastic.h"
#include "support/errors.h"
#include "support/folder.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::ElasticGroup;
using test::error_of;
using test::has;

int64_t fenced_twice(int64_t n) { return 2 * n; }
WEFT_RPC_IDEMPOTENT(fenced_twice);
int64_t fenced_slow(int64_t ms) {
  current_runtime()->sleep_for(std::chrono::milliseconds(ms));
  return ms;
}
WEFT_RPC(fenced_slow);
RRef<int64_t> fenced_make(int64_t n) { return RRef<int64_t>(n); }
WEFT_RPC(fenced_make);

/// The lives that served a call of this name, in the order of their times.
std::vector<uint64_t> g_served;
int64_t fenced_serve(int64_t n) {
  g_served.push_back(current_agent()->life().incarnation.value);
  return n;
}
WEFT_RPC(fenced_serve);

/// A group of "a", "b" and "c", in which "b" gets into trouble.
struct Trio {
  explicit Trio(uint64_t seed = 1, SimNetOptions net = {})
      : group({.seed = seed, .net = net}), a(group.join("a")), b(group.join("b")), c(group.join("c")) {
    b.membership->on_fenced([this](const std::string& why) { fenced.push_back(why); });
    a.membership->wait_for({"b", "c"}, now() + 5s);
    b.membership->wait_for({"c"}, now() + 5s);
    group.run(a, [] { EXPECT_EQ(rpc_sync<fenced_twice>("b", 1), 2); });
  }
  /// Lists of members do not reach "c", which renews its lease all the same.
  void hide_changes_from_c() {
    group.net().add_rule({.from = WorkerId{0}, .to = c.client, .match = [](const std::string& header) {
                            return header.find("sim:") != std::string::npos;
                          }});
  }
  TimePoint now() { return group.sim().now(); }
  std::vector<std::string> fenced;
  ElasticGroup group;
  ElasticGroup::Worker &a, &b, &c;
};

TEST(Fencing, half_a_lease_without_the_store_costs_nothing) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Trio t(seed, {.jitter = 1ms, .drop = 0.02, .duplicate = 0.02});
    t.group.sim().run_for(std::chrono::milliseconds(300 * seed));
    t.group.cut_store(t.b);
    for (int i = 0; i < 50; ++i) {
      t.group.sim().run_for(100ms);
      t.group.run(t.a, [&] { EXPECT_EQ(rpc_sync<fenced_twice>("b", i), 2 * i) << "seed " << seed; });
    }
    t.group.net().heal();
    for (int i = 0; i < 100; ++i) {
      t.group.sim().run_for(200ms);
      t.group.run(t.b, [&] { EXPECT_EQ(rpc_sync<fenced_twice>("a", i), 2 * i) << "seed " << seed; });
    }
    EXPECT_TRUE(t.fenced.empty()) << t.fenced.front();
    EXPECT_EQ(t.a.membership->epoch(), 3u);
  }
}

TEST(Fencing, a_machine_that_was_suspended_for_a_lease_hears_from_the_store_before_it_goes_on) {
  Trio t;
  ElasticGroup& g = t.group;
  g.sim().suspend(4s);  // less than the lease
  g.run(t.a, [] { EXPECT_EQ(rpc_sync<fenced_twice>("b", 4), 8); });
  g.sim().suspend(20s);
  EXPECT_TRUE(has(error_of<Fenced>([&] { g.run(t.b, [] { rpc_sync<fenced_twice>("c", 4); }); }),
                  "its lease at the store has run out"));
  g.sim().run_for(2s);
  g.run(t.a, [] { EXPECT_EQ(rpc_sync<fenced_twice>("b", 4), 8); });
  g.run(t.b, [] { EXPECT_EQ(rpc_sync<fenced_twice>("c", 4), 8); });
}

TEST(Fencing, a_life_without_its_lease_serves_nothing_until_it_has_renewed_it) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Trio t(seed);
    std::optional<Future<int64_t>> begun, again;
    RRef<int64_t> held;
    t.group.run(t.a, [&] {
      held = rpc_sync<fenced_make>("b", 3);
      begun = rpc_async<fenced_slow>("b", 12000);
    });
    t.group.cut_store(t.b);
    t.group.sim().run_for(11s);
    t.group.run(t.a, [&] {
      const std::string text = error_of<Fenced>([] { rpc_sync<fenced_twice>("b", 1); });
      EXPECT_TRUE(has(text, "On worker 'b': worker 'b' is fenced: its lease at the store has run out"));
      EXPECT_THROW(held.to_here(), Fenced);
      again = rpc_async<fenced_twice>(with_retry({"b", 60s}, {.attempts = 20}), 4);
      held = {};  // the owner hears of that later
    });
    t.group.run(t.b, [] {
      error_of<Fenced>([] { rpc_sync<fenced_twice>("a", 1); });
      error_of<Fenced>([] { rpc_sync<fenced_twice>("b", 1); });
    });
    t.group.sim().run_for(4s);
    error_of<Fenced>([&] { begun->wait(); });  // its function has run, but its answer came too late
    ASSERT_EQ(t.fenced.size(), 1u);
    EXPECT_TRUE(has(t.fenced.front(), "store"));

    t.group.net().heal();
    t.group.sim().run_for(5s);
    t.group.run(t.a, [&] {
      EXPECT_EQ(rpc_sync<fenced_twice>("b", 2), 4);
      EXPECT_EQ(again->wait(), 8);
    });
    t.group.run(t.b, [] { EXPECT_EQ(rpc_sync<fenced_twice>("a", 2), 4); });
    t.group.sim().run_for(5s);
    EXPECT_EQ(t.b.agent()->debug_info().at("num_owner_rrefs"), 0);
    EXPECT_EQ(t.a.membership->epoch(), 3u);
    EXPECT_FALSE(t.a.agent()->is_lost(t.b.agent()->life()));
    EXPECT_EQ(t.fenced.size(), 1u);
  }
}

TEST(Fencing, uses_that_overtook_a_creation_end_after_the_fence_has_refused_it) {
  Trio t;
  t.group.net().add_rule({.kind = static_cast<uint8_t>(Kind::kRemote),
                          .from = t.a.id(),
                          .action = FaultRule::Action::kDelay,
                          .delay = 11s});
  t.group.cut_store(t.b);
  t.group.run(t.a, [&] {
    const auto value = remote<fenced_twice>({"b", 60s}, 2);
    const auto early = value.to_here_async(60s);
    t.group.sim().run_for(1s);
    EXPECT_EQ(t.b.agent()->debug_info().at("num_pending_futures"), 1);
    t.group.sim().run_for(11s);
    ASSERT_TRUE(value.created().done());
    EXPECT_THROW(value.to_here(), Fenced);
    t.group.net().clear_rules();
    t.group.net().heal();
    t.group.sim().run_for(2s);
    ASSERT_TRUE(early.done());
    EXPECT_THROW(early.wait(), Fenced);
  });
  t.group.sim().run_for(2s);
  const auto left = t.b.agent()->debug_info();
  EXPECT_EQ(left.at("num_owner_rrefs"), 0);
  EXPECT_EQ(left.at("num_pending_futures"), 0);
  EXPECT_EQ(left.at("agent.server_active_calls"), 0);
}

TEST(Fencing, a_use_that_comes_after_the_end_of_a_creation_that_the_fence_interrupted_ends_too) {
  Trio t;
  t.group.net().add_rule({.kind = static_cast<uint8_t>(Kind::kFetch),
                          .from = t.a.id(),
                          .action = FaultRule::Action::kDelay,
                          .delay = 20s});
  t.group.cut_store(t.b);
  t.group.run(t.a, [&] {
    const auto value = remote<fenced_slow>({"b", 60s}, 12000);
    const auto late = value.to_here_async(60s);
    t.group.sim().run_for(14s);
    ASSERT_TRUE(value.created().done());
    EXPECT_THROW(value.created().wait(), Fenced);
    t.group.net().heal();
    t.group.sim().run_for(4s);
    EXPECT_EQ(t.b.agent()->debug_info().at("num_owner_rrefs"), 0);
    EXPECT_FALSE(late.done());
    t.group.sim().run_for(4s);
    ASSERT_TRUE(late.done());
    EXPECT_THROW(late.wait(), Fenced);
  });
  t.group.sim().run_for(2s);
  const auto left = t.b.agent()->debug_info();
  EXPECT_EQ(left.at("num_owner_rrefs"), 0);
  EXPECT_EQ(left.at("agent.server_active_calls"), 0);
}

TEST(Fencing, a_life_with_a_successor_stays_out) {
  Trio t;
  t.group.cut_store(t.b);
  auto& successor = t.group.join("b");
  t.group.sim().run_for(1s);
  t.group.run(t.a, [] { EXPECT_EQ(rpc_sync<fenced_twice>("b", 2), 4); });
  EXPECT_EQ(t.a.agent()->life_of(t.b.id()), successor.agent()->life());
  const auto old_calls = [&] {
    return error_of<Fenced>([&] { t.group.run(t.b, [] { rpc_sync<fenced_twice>("a", 1); }); });
  };
  EXPECT_TRUE(has(old_calls(), "its lease at the store has run out"));
  t.group.net().heal();
  t.group.sim().run_for(20s);
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(has(old_calls(), "worker 'b' is fenced and stays out of the group: "));
  EXPECT_THROW(t.b.membership->wait_for({"a"}, t.now() + 1s), Fenced);
  EXPECT_THROW(t.b.membership->serve(t.now() + 1s), Fenced);
  t.group.run(t.c, [] { EXPECT_EQ(rpc_sync<fenced_twice>("b", 2), 4); });
}

TEST(Fencing, a_past_life_gives_no_answer_to_those_that_do_not_know_its_successor) {
  Trio t;
  t.group.cut_store(t.b);
  t.hide_changes_from_c();
  t.group.sim().run_for(1s);
  const Life old = t.b.agent()->life();
  t.group.join("b");
  for (int i = 0; i < 1000 && t.a.agent()->life_of(t.b.id()) == old; ++i) t.group.sim().run_for(1ms);
  EXPECT_EQ(t.c.agent()->life_of(t.b.id()), old);
  t.group.run(t.b, [] { EXPECT_THROW(rpc_sync<fenced_twice>("c", 1), Fenced); });
  t.group.run(t.c, [] { EXPECT_EQ(rpc_sync<fenced_twice>("a", 1), 2); });
  g_served.clear();
  t.group.run(t.a, [] { rpc_sync<fenced_serve>("b", 1); });
  t.group.run(t.c, [] { EXPECT_THROW(rpc_sync<fenced_serve>("b", 1), Fenced); });
  EXPECT_EQ(g_served.size(), 1u);
}

TEST(Fencing, a_life_that_others_have_lost_and_removed_stays_out) {
  Trio t;
  t.group.cut_all(t.b);
  t.group.sim().run_for(40s);
  EXPECT_EQ(t.a.membership->members().size(), 2u);
  EXPECT_TRUE(t.a.agent()->is_lost(t.b.agent()->life()));
  t.group.net().heal();
  t.group.sim().run_for(20s);
  const std::string text =
      error_of<Fenced>([&] { t.group.run(t.b, [] { rpc_sync<fenced_twice>("a", 1); }); });
  EXPECT_TRUE(has(text, "stays out of the group: worker '"));
  EXPECT_TRUE(has(text, "has lost it: nothing was heard from it"));
  auto& successor = t.group.join("b");
  t.a.membership->wait_for({"b"}, t.now() + 5s);
  t.group.run(t.a, [] { EXPECT_EQ(rpc_sync<fenced_twice>("b", 2), 4); });
  t.group.run(successor, [] { EXPECT_EQ(rpc_sync<fenced_twice>("a", 2), 4); });
}

// The name is free again when the old life renews its lease, and the store is slow to show it the list.
TEST(Fencing, a_late_renewal_opens_no_fence_after_a_successor_came_and_went) {
  Trio t;
  t.group.cut_store(t.b);
  t.hide_changes_from_c();
  auto& successor = t.group.join("b");
  successor.membership->leave(t.now() + 5s);
  t.group.net().heal();
  t.group.net().add_rule(
      {.from = WorkerId{0}, .to = t.b.client, .skip = 1, .action = FaultRule::Action::kDelay, .delay = 1s});
  g_served.clear();
  for (int i = 0; i < 200; ++i) {
    t.group.run(t.c, [] { EXPECT_THROW(rpc_sync<fenced_serve>({"b", 2s}, 1), RpcError); });
    t.group.sim().run_for(50ms);
  }
  EXPECT_TRUE(g_served.empty());
  EXPECT_FALSE(t.c.agent()->is_lost(t.b.agent()->life()));
  t.group.run(t.c, [] { EXPECT_EQ(rpc_sync<fenced_twice>("a", 1), 2); });
  EXPECT_EQ(t.fenced.size(), 2u);  // for a while, then for good
}

TEST(Fencing, a_store_without_a_log_that_does_not_answer_for_six_leases_ends_the_group) {
  for (const Duration away : {50s, 120s}) {
    Trio t;
    t.group.cut_store(t.b);
    t.group.sim().run_for(away);
    t.group.net().heal();
    t.group.sim().run_for(10s);
    EXPECT_EQ(t.fenced.size(), away > 60s ? 2u : 1u);
    if (away < 60s) {
      t.group.run(t.b, [] { EXPECT_EQ(rpc_sync<fenced_twice>("a", 1), 2); });
    } else {
      EXPECT_TRUE(has(error_of<Fenced>([&] { t.b.membership->serve(t.now() + 1s); }),
                      "stays out of the group: a store without a log has not answered for 6 leases"));
    }
    t.group.run(t.a, [] { EXPECT_EQ(rpc_sync<fenced_twice>("c", 1), 2); });
  }
}

TEST(Fencing, another_store_at_the_address_of_one_without_a_log_ends_the_group) {
  Trio t;
  t.group.kill_store();
  t.group.start_store();
  t.group.sim().run_for(20s);
  ASSERT_GE(t.fenced.size(), 1u);
  EXPECT_EQ(std::count_if(t.fenced.begin(), t.fenced.end(), [](auto& why) { return has(why, "stays out"); }),
            1);
  for (auto* w : {&t.a, &t.b, &t.c})
    EXPECT_TRUE(has(error_of<Fenced>([&] { w->membership->serve(t.now() + 1s); }),
                    "the process that served it has ended, and it kept no log"));
}

TEST(Fencing, a_store_with_a_log_may_stay_away_for_long) {
  const test::Folder folder;
  ElasticGroup group({.store_log = folder / "store.log"});
  ElasticGroup::Worker &a = group.join("a"), &b = group.join("b");
  a.membership->wait_for({"b"}, group.sim().now() + 5s);
  group.kill_store();
  group.sim().run_for(200s);
  EXPECT_THROW(group.run(a, [] { rpc_sync<fenced_twice>("b", 1); }), Fenced);
  group.start_store();
  group.sim().run_for(20s);
  group.run(a, [] { EXPECT_EQ(rpc_sync<fenced_twice>("b", 1), 2); });
  group.run(b, [] { EXPECT_EQ(rpc_sync<fenced_twice>("a", 1), 2); });
}

TEST(Fencing, a_member_that_only_some_have_lost_stays) {
  Trio t;
  t.group.net().partition({t.a.id()}, {t.b.id()});
  t.group.sim().run_for(40s);
  EXPECT_TRUE(t.a.agent()->is_lost(t.b.agent()->life()));
  EXPECT_EQ(t.a.membership->epoch(), 3u);
  EXPECT_TRUE(t.fenced.empty());
  t.group.run(t.c, [] { EXPECT_EQ(rpc_sync<fenced_twice>("b", 2), 4); });
}

// Cuts of random length at random times, with and without successors, while all call "b" all the time.
TEST(Fencing, no_two_lives_of_a_name_serve_at_one_time) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    g_served.clear();
    Trio t(seed, {.jitter = 2ms, .drop = 0.02, .duplicate = 0.02});
    SimRuntime& sim = t.group.sim();
    std::atomic<bool> over{false};
    int running = 0;
    std::vector<ElasticGroup::Worker*> lives{&t.b};
    const auto call_all_the_time = [&](const ElasticGroup::Worker& from, WorkerId to) {
      ++running;
      sim.post([&, to] {
        while (!over) {
          t.group.run(from, [&] {
            try {
              rpc_sync<fenced_serve>({to, 2s}, 1);
            } catch (const RpcError&) {
            }
          });
          sim.sleep_for(100ms);
        }
        --running;
      });
    };
    call_all_the_time(t.a, t.b.id());
    call_all_the_time(t.c, t.b.id());
    call_all_the_time(t.b, t.b.id());
    for (int round = 0; round < 3; ++round) {
      sim.run_for(std::chrono::milliseconds(sim.random() % 5000));
      t.group.cut_store(*lives.back());
      sim.run_for(std::chrono::milliseconds(sim.random() % 16000));
      if (sim.random() % 3 != 0) {
        lives.push_back(&t.group.join("b"));
        call_all_the_time(*lives.back(), t.b.id());
        sim.run_for(2s);
      }
      t.group.net().heal();
    }
    sim.run_for(20s);
    over = true;
    sim.run_for(10s);
    EXPECT_EQ(running, 0);
    // Each life serves in one piece: none serves after a later one has begun.
    std::vector<uint64_t> order;
    for (const uint64_t life : g_served)
      if (order.empty() || order.back() != life) order.push_back(life);
    std::vector<uint64_t> expected;
    for (const auto* w : lives) expected.push_back(w->agent()->life().incarnation.value);
    EXPECT_EQ(order, expected) << "seed " << seed;
  }
}

}  // namespace
