// Passive workers over the simulated network: how long one waits inside a graceful shutdown, and which events
// end the wait. All survivors of a loss are told the same.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include <weft/distributed/rpc/rpc.h>

#include "support/cluster.h"
#include "support/errors.h"

namespace weft::test {

int64_t passive_work(int64_t n) { return n + 1; }
WEFT_RPC(passive_work);
void passive_stop() { rpc::current_agent()->stop_serving(); }
WEFT_RPC(passive_stop);
void passive_sleep(int64_t seconds) { rpc::current_runtime()->sleep_for(std::chrono::seconds(seconds)); }
WEFT_RPC(passive_sleep);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using namespace weft::test;

constexpr const char* kFine = "fine";

/// Calls `server` once a second, for so long.
void work_for(Duration time, const std::string& server = "worker0") {
  const TimePoint end = current_runtime()->now() + time;
  for (int64_t i = 0; current_runtime()->now() < end; ++i) {
    EXPECT_EQ(rpc_sync<passive_work>(server, i), i + 1);
    current_runtime()->sleep_for(1s);
  }
}

void work_until_killed() {
  try {
    work_for(1min);
  } catch (const std::exception&) {  // a dead one may hear anything
  }
}

/// Enters a graceful shutdown. Returns the text of its error, or kFine.
std::string become_passive(Cluster& c, int rank, Duration timeout = Duration::zero()) {
  try {
    c.agent(rank)->shutdown({.timeout = timeout});
  } catch (const PeerLost& e) {
    return "lost " + e.peer + ": " + e.what();
  } catch (const Timeout& e) {
    return str("time: ", e.what());
  } catch (const std::exception& e) {
    return str("other: ", e.what());
  }
  return kFine;
}

TEST(Passive, a_server_waits_for_most_of_an_hour_without_being_asked_to) {
  Cluster c({.size = 3});
  c.run_all([&](int rank) {
    if (rank == 1) {
      current_runtime()->sleep_for(50min);
      EXPECT_EQ(rpc_sync<passive_work>("worker0", 1), 2);
    }
    EXPECT_EQ(become_passive(c, rank), kFine);
  });
}

TEST(Passive, one_dead_trainer_ends_neither_the_server_nor_the_others) {
  for (const int dead : {1, 3}) {
    Cluster c({.size = 4});
    std::map<int, std::string> said;
    c.runtime().call_at(c.runtime().now() + 1500ms, [&] { c.kill(dead); });
    c.run_all([&](int rank) {
      if (rank == dead) return;
      if (rank > 0) work_for(60s);
      said[rank] = become_passive(c, rank);
    });
    for (const auto& [rank, text] : said)
      EXPECT_EQ(text, kFine) << "worker " << rank << " without worker " << dead;
  }
}

// The other trainer is done before the lease of the dead one ends, or just before the dead one falls silent.
TEST(Passive, a_trainer_that_dies_shortly_before_the_end_ends_nothing) {
  for (const Duration death : {1500ms, 3900ms, 4500ms})
    for (const bool silent : {false, true}) {
      SimNetOptions net;
      if (silent) net.break_notice = net.silence_notice = 1h;
      Cluster c({.size = 3, .net = net});
      std::map<int, std::string> said;
      c.runtime().call_at(c.runtime().now() + death, [&] { c.kill(2); });
      c.run_all([&](int rank) {
        if (rank == 2) return work_until_killed();
        if (rank == 1) work_for(4s);
        said[rank] = become_passive(c, rank);
      });
      const std::string expected = death < 4s ? kFine : "lost worker2";
      for (const auto& [rank, text] : said) EXPECT_EQ(text.substr(0, expected.size()), expected) << rank;
    }
}

TEST(Passive, a_worker_that_left_early_is_not_waited_for_and_is_no_loss) {
  Cluster c({.size = 4});
  c.run_all([&](int rank) {
    if (rank == 0) {
      current_runtime()->sleep_for(1s);
      rpc_sync<passive_work>("worker2", 1);
      return c.agent(rank)->shutdown({.graceful = false});
    }
    if (rank == 3) work_for(20s, "worker2");
    EXPECT_EQ(become_passive(c, rank), kFine) << rank;
  });
}

// The lost one leads or is led, is seen to go or falls silent, and others fall with it or not. Two leases are
// the limit.
TEST(Passive, when_the_last_active_worker_is_lost_all_others_hear_of_every_lost_one_in_time) {
  for (const int last : {0, 4})
    for (const bool silent : {false, true}) {
      std::vector<int> first{2};
      if (last == 0) first = {1, 2, 3};  // only the one that leads speaks to them
      SimNetOptions net;
      if (silent) net.break_notice = net.silence_notice = 1h;
      Cluster c({.size = 7, .net = net});
      std::map<int, std::string> said;
      TimePoint killed, told;
      c.runtime().call_at(c.runtime().now() + 3s, [&] {
        for (const int rank : first) c.kill(rank);
      });
      c.runtime().call_at(c.runtime().now() + 40s, [&] {
        c.kill(last);
        killed = c.runtime().now();
      });
      c.run_all([&](int rank) {
        if (rank == last || std::count(first.begin(), first.end(), rank) > 0) return;
        said[rank] = become_passive(c, rank);
        told = std::max(told, current_runtime()->now());
      });
      ASSERT_EQ(said.size(), 6 - first.size());
      for (const auto& [rank, text] : said) {
        EXPECT_EQ(text, said.begin()->second);
        EXPECT_EQ(text.find("lost worker"), 0u) << text;
        for (const int dead : first)
          EXPECT_NE(text.find(str("worker 'worker", dead, "' is lost")), std::string::npos) << text;
        EXPECT_NE(text.find(str("worker 'worker", last, "' is lost")), std::string::npos) << text;
      }
      EXPECT_LE(told - killed, 20s) << "last " << last << " silent " << silent;
    }
}

// More active workers than are asked for a sign of life at each change.
TEST(Passive, many_active_workers_that_are_lost_together_are_the_last_ones) {
  constexpr int kSize = 40, kPassive = 10;
  for (const Duration after : {Duration(1s), Duration(60s)}) {
    Cluster c({.size = kSize});
    std::map<int, std::string> said;
    c.runtime().call_at(c.runtime().now() + after, [&] {
      for (int rank = kPassive; rank < kSize; ++rank) c.kill(rank);
    });
    c.run_all([&](int rank) {
      if (rank < kPassive) said[rank] = become_passive(c, rank);
    });
    ASSERT_EQ(said.size(), static_cast<size_t>(kPassive));
    for (const auto& [rank, text] : said) {
      EXPECT_EQ(text, said.begin()->second);
      EXPECT_EQ(text.find("lost worker"), 0u) << text;
      for (int dead = kPassive; dead < kSize; ++dead)
        EXPECT_NE(text.find(str("worker 'worker", dead, "' is lost")), std::string::npos) << text;
    }
  }
}

TEST(Passive, the_messages_of_leaving_grow_in_proportion_to_the_group) {
  const auto per_worker = [](int size) {
    Cluster c({.size = size, .keep_log = false});
    int64_t messages = 0;
    c.net().add_rule({.match = [&](const std::string&) { return ++messages, false; }});
    c.run_all([&](int rank) { EXPECT_EQ(become_passive(c, rank), kFine); });
    return messages / size;
  };
  const int64_t few = per_worker(30), many = per_worker(120);
  EXPECT_GT(few, 4);
  EXPECT_LE(many, few + few / 4);
}

TEST(Passive, a_limit_ends_the_wait_and_says_who_is_still_active) {
  for (const int limited : {0, 3}) {
    Cluster c({.size = 4});
    c.run_all([&](int rank) {
      if (rank == limited) {
        const std::string text = become_passive(c, rank, 5s);
        EXPECT_EQ(text.find("time: "), 0u) << text;
        EXPECT_NE(text.find("still active: 'worker1'"), std::string::npos) << text;
        EXPECT_EQ(text.find("worker2"), std::string::npos) << text;
        return;
      }
      if (rank == 1) current_runtime()->sleep_for(30s);
      EXPECT_EQ(become_passive(c, rank), kFine) << rank;
    });
  }
}

TEST(Passive, serve_until_done_ends_at_its_limit_under_its_own_name) {
  Cluster c({.size = 3});
  c.run_all([&](int rank) {
    if (rank == 0) {
      set_default_agent(c.agent(0));
      const std::string text =
          error_of<Timeout>([] { serve_until_done({.timeout = 5s, .stop_on_sigterm = false}); });
      EXPECT_EQ(text.find("serve_until_done: worker 'worker0' has waited for its whole time"), 0u) << text;
      EXPECT_TRUE(has(text, "still active: 'worker1'"));
      EXPECT_FALSE(default_agent());
      return;
    }
    if (rank == 1) current_runtime()->sleep_for(30s);
    EXPECT_EQ(become_passive(c, rank), kFine) << rank;
  });
}

TEST(Passive, a_limit_with_calls_under_way_names_the_function_that_was_called) {
  Cluster c({.size = 2});
  c.run_all([&](int rank) {
    if (rank == 0) {
      const Future<void> own = rpc_async<passive_sleep>("worker0", 60);
      const std::string text =
          error_of<Timeout>([&] { c.agent(0)->shutdown({.timeout = 5s, .caller = "my_program"}); });
      EXPECT_EQ(text.find("my_program: worker 'worker0' still has calls under way:\n"), 0u) << text;
      EXPECT_THROW(own.wait(), RpcError);
      return;
    }
    EXPECT_EQ(become_passive(c, rank), kFine);
  });
}

TEST(Passive, the_error_of_a_shutdown_step_keeps_its_text) {
  Cluster c({.size = 2});
  const std::string text = "shutdown: the printer of worker0 is busy";
  c.agent(0)->add_shutdown_step("printer", [&](TimePoint) { throw Timeout(text); });
  c.run_all([&](int rank) {
    if (rank == 0) {
      set_default_agent(c.agent(0));
      EXPECT_EQ(error_of<Timeout>([] { serve_until_done({.stop_on_sigterm = false}); }), text);
      return;
    }
    EXPECT_EQ(become_passive(c, rank), kFine);
  });
}

TEST(Passive, a_stop_call_ends_the_wait_from_a_handler_or_a_thread_and_is_answered) {
  for (const bool by_call : {true, false}) {
    Cluster c({.size = 3});
    c.run_all([&](int rank) {
      if (rank == 2) {
        current_runtime()->sleep_for(10s);
        if (by_call) rpc_sync<passive_stop>("worker0");
        else c.agent(0)->stop_serving();
        current_runtime()->sleep_for(3s);
        EXPECT_FALSE(c.agent(0)->is_running());
        EXPECT_TRUE(c.agent(1)->is_running());
      }
      EXPECT_EQ(become_passive(c, rank), kFine) << rank;
      EXPECT_EQ(c.agent(rank)->told_to_stop(), rank == 0);
    });
  }
}

TEST(Passive, a_stop_call_before_the_wait_ends_it_at_once) {
  Cluster c({.size = 2});
  c.agent(0)->stop_serving();
  c.run(0, [&] { EXPECT_EQ(become_passive(c, 0), kFine); });
}

// 100 groups of 3 to 9 over a network that loses, doubles and reorders. Up to all but two die, at any moment,
// those of the end among them.
TEST(Passive, all_survivors_of_a_group_are_told_the_same_whatever_dies_when) {
  int fine = 0, lost = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    const int size = 3 + static_cast<int>(random() % 7);
    Cluster c({.size = size, .seed = seed, .net = {.jitter = 3ms, .drop = 0.1, .duplicate = 0.1}});
    std::vector<Duration> active, death(static_cast<size_t>(size), Duration::zero());
    Duration end{};
    for (int rank = 0; rank < size; ++rank) {
      active.push_back(std::chrono::milliseconds(random() % 3 ? random() % 20000 : 0));
      end = std::max(end, active.back());
    }
    std::vector<bool> dead(static_cast<size_t>(size));
    for (int i = 0, n = static_cast<int>(random() % static_cast<uint64_t>(size - 1)); i < n; ++i) {
      const auto rank = static_cast<int>(random() % static_cast<uint64_t>(size));
      const Duration when =
          random() % 2 ? Duration(random() % 20'000'000'000) : end + Duration(random() % 60'000'000);
      c.runtime().call_at(c.runtime().now() + when, [&, rank] {
        dead[static_cast<size_t>(rank)] = true;
        c.kill(rank);
      });
    }
    std::vector<std::string> said(static_cast<size_t>(size));
    const TimePoint start = c.runtime().now();
    c.run_all([&](int rank) {
      const auto r = static_cast<size_t>(rank);
      current_runtime()->sleep_for(active[r]);
      if (dead[r]) return;
      const std::string text = become_passive(c, rank, 10min);  // one that was killed may hear anything
      if (dead[r]) return;
      said[r] = text;
      EXPECT_LE(current_runtime()->now() - start, end + 45s) << "seed " << seed;
    });
    std::map<std::string, int> outcomes;
    for (int rank = 0; rank < size; ++rank)
      if (!dead[static_cast<size_t>(rank)]) ++outcomes[said[static_cast<size_t>(rank)]];
    EXPECT_LE(outcomes.size(), 1u) << "seed " << seed << ": " << outcomes.begin()->first << " | "
                                   << outcomes.rbegin()->first;
    for (const auto& [text, count] : outcomes) {
      EXPECT_TRUE(text == kFine || text.find("lost ") == 0) << "seed " << seed << ": " << text;
      ++(text == kFine ? fine : lost);
    }
  }
  EXPECT_GT(fine, 5);
  EXPECT_GT(lost, 5);
}

// Each report of an end looks at all members, and the reports interleave.
TEST(Passive, two_reports_of_ended_processes_at_once_hold_up_no_later_round) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Cluster c({.size = 5, .seed = seed, .net = {.break_notice = 1h}, .keep_log = false});
    std::map<int, std::string> heard;
    for (int rank = 0; rank < 3; ++rank)
      c.runtime().post([&, rank] { heard[rank] = become_passive(c, rank, 5s); });
    c.sim().run_for(1s);
    for (const int active : {3, 4}) {
      c.kill(active);
      c.runtime().post([&, life = c.agent(active)->life()] { c.agent(0)->process_ended(life); });
    }
    c.sim().run_for(10s);
    ASSERT_EQ(heard.size(), 3U) << "seed " << seed;
    for (const auto& [rank, text] : heard) EXPECT_EQ(text.rfind("lost worker", 0), 0U) << seed << text;
  }
}

TEST(Passive, a_worker_that_was_declared_lost_hears_of_it_with_its_first_message) {
  Cluster c({.size = 2, .net = {.silence_notice = 1h}});
  c.agent(0)->watch(WorkerId{1}, +1);
  c.sim().run_for(1s);
  c.net().partition({WorkerId{0}}, {WorkerId{1}});
  c.sim().run_for(12s);
  ASSERT_TRUE(c.agent(0)->is_lost(WorkerId{1}));
  c.net().heal();
  c.run(1, [&] {
    const TimePoint before = current_runtime()->now();
    try {
      rpc_sync<passive_work>("worker0", 1);
      ADD_FAILURE() << "a lost worker was served";
    } catch (const PeerLost& e) {
      EXPECT_NE(std::string(e.what()).find("counts this worker as lost: "), std::string::npos) << e.what();
    }
    EXPECT_LT(current_runtime()->now() - before, 1s);
  });
}

}  // namespace
