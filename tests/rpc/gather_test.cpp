// barrier and all_gather over the simulated network when members die and come back. They go among the living,
// and the rounds of different calls never mix.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include <weft/distributed/rpc/rpc.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

using Steps = std::map<std::string, int64_t>;

TEST(Gather, a_leader_that_leaves_at_once_has_answered_the_others) {
  for (int round = 0; round < 20; ++round) {
    Cluster c({.over = Over::kGrpc, .size = 6});
    c.run_all([&](int rank) {
      EXPECT_EQ(all_gather<int64_t>(rank).size(), 6u);
      if (rank == 0) c.agent(0)->shutdown({.graceful = false});
    });
    for (int rank = 1; rank < 6; ++rank) c.agent(rank)->shutdown({.graceful = false});
  }
}

TEST(Gather, a_barrier_of_some_meets_a_gather_of_the_others_and_rounds_of_the_same_names_follow) {
  Cluster c({.size = 3});
  const std::vector<std::string> some{"worker0", "worker2"};
  for (int round = 0; round < 3; ++round)
    for (const bool named : {false, true})
      c.run_all([&](int rank) {
        if (named && rank == 1) return;
        const std::vector<std::string> names = named ? some : std::vector<std::string>();
        if (rank == round) return c.agent(rank)->barrier(names);
        Message mine;
        {
          Encoder out(mine);
          out.put(10 * round + rank);
        }
        const auto all = c.agent(rank)->gather(std::move(mine), names);
        EXPECT_EQ(all.size(), named ? 2U : 3U);
        for (const auto& [name, message] : all) {
          if (name == str("worker", round)) continue;
          Decoder in(message);
          EXPECT_EQ(in.get<int>(), 10 * round + name.back() - '0');
        }
      });
}

TEST(Gather, goes_among_the_living_once_a_loss_is_known) {
  for (const int dead : {0, 1, 3}) {
    Cluster c({.size = 4});
    c.run_all([](int rank) { EXPECT_EQ(all_gather<int64_t>(rank).size(), 4u); });
    c.kill(dead);
    for (int rank = 0; rank < 4; ++rank)
      if (rank != dead) c.agent(rank)->declare_lost(WorkerId{dead}, "the test says so");
    const std::string name = str("worker", dead);
    for (int64_t round = 0; round < 3; ++round)
      c.run_all([&](int rank) {
        const Steps all = all_gather<int64_t>(10 * round + rank);
        EXPECT_EQ(all.size(), 3u);
        EXPECT_EQ(all.count(name), 0u);
        for (const auto& [who, value] : all) EXPECT_EQ(str("worker", value - 10 * round), who);
        barrier();
      });
    c.run_all([&](int rank) {
      EXPECT_THROW(barrier({name, str("worker", rank)}), PeerLost);  // named, it is asked for
      barrier({str("worker", rank)});
    });
    c.shutdown();
  }
}

TEST(Gather, the_death_of_a_member_before_its_call_fails_the_round_for_all_and_the_next_one_works) {
  Cluster c({.size = 4});
  c.run_all([&](int rank) {
    if (rank == 2) {
      current_runtime()->sleep_for(1s);
      c.kill(2);
      return;
    }
    if (rank == 3) current_runtime()->sleep_for(30s);  // later than the failure
    try {
      barrier();
      ADD_FAILURE() << "worker " << rank;
    } catch (const PeerLost& e) {
      EXPECT_EQ(e.peer, "worker2");
    }
    EXPECT_EQ(all_gather<int64_t>(rank).size(), 3u);
  });
}

TEST(Gather, the_death_of_the_leader_fails_the_round_for_all_and_the_next_one_works) {
  Cluster c({.size = 4});
  c.run_all([&](int rank) {
    if (rank == 0) {
      current_runtime()->sleep_for(1s);
      c.kill(0);
      return;
    }
    try {
      barrier();
      ADD_FAILURE() << "worker " << rank;
    } catch (const PeerLost& e) {
      EXPECT_EQ(e.peer, "worker0");
    }
    EXPECT_EQ(all_gather<int64_t>(rank).size(), 3u);
  });
}

// Every worker counts its calls. Each round holds one count, no matter which worker dies, and when.
TEST(Gather, rounds_do_not_mix_nor_hang_whoever_dies_at_whatever_time) {
  constexpr int64_t kSteps = 30;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Cluster c({.size = 5,
               .seed = seed,
               .net = {.jitter = 2ms, .drop = 0.03, .duplicate = 0.03, .connect_timeout = 300ms},
               .agent = {.lease = 2s}});
    std::mt19937_64 random(seed);
    const int first = static_cast<int>(random() % 5), second = static_cast<int>(random() % 5);
    const Duration when = std::chrono::microseconds(random() % 60000);
    const Duration then = when * static_cast<int64_t>(1 + random() % 200);
    c.sim().call_at(c.sim().now() + when, [&] { c.kill(first); });
    if (seed % 2 == 0 && second != first) c.sim().call_at(c.sim().now() + then, [&] { c.kill(second); });
    const auto dead = [&](int rank) { return rank == first || (seed % 2 == 0 && rank == second); };
    std::vector<int> thrown(5);
    c.run_all([&](int rank) {
      for (int64_t step = 0; step < kSteps; ++step) {
        try {
          const Steps all = all_gather<int64_t>(step, {}, 60s);
          if (dead(rank)) continue;
          for (const auto& [who, value] : all)
            EXPECT_EQ(value, step) << "seed " << seed << ": " << who << " at worker " << rank;
        } catch (const PeerLost&) {
          if (dead(rank)) return;
          ++thrown[static_cast<size_t>(rank)];
        } catch (const std::exception& e) {
          if (dead(rank)) return;
          ADD_FAILURE() << "seed " << seed << ", worker " << rank << ", step " << step << ": " << e.what();
          return;
        }
        current_runtime()->sleep_for(1ms);
      }
    });
    const int deaths = seed % 2 == 0 && second != first ? 2 : 1;
    for (int rank = 0; rank < 5; ++rank)
      if (!dead(rank)) {
        EXPECT_LE(thrown[static_cast<size_t>(rank)], 2 * deaths) << "seed " << seed << ", worker " << rank;
      }
  }
}

TEST(Gather, a_restarted_worker_takes_part_from_the_round_of_the_others_on) {
  for (const int again : {0, 2}) {
    Cluster c({.size = 3});
    c.run_all([](int) {
      for (int i = 0; i < 5; ++i) barrier();
    });
    c.restart(again);
    for (int64_t round = 0; round < 3; ++round)
      c.run_all([&](int rank) {
        if (rank == round) current_runtime()->sleep_for(100ms);
        const Steps all = all_gather<int64_t>(round);
        EXPECT_EQ(all, (Steps{{"worker0", round}, {"worker1", round}, {"worker2", round}}));
        barrier({"worker0", "worker1", "worker2"});
      });
    c.shutdown();
  }
}

TEST(Gather, threads_of_the_same_workers_are_in_rounds_of_their_own) {
  Cluster c({.size = 3});
  int through = 0;
  for (int rank = 0; rank < 3; ++rank)
    for (int thread = 0; thread < 3; ++thread)
      c.runtime().post([&, agent = c.agent(rank)] {
        const AgentScope scope(agent);
        for (int i = 0; i < 5; ++i) barrier();
        ++through;
      });
  c.sim().run_for(30s);
  EXPECT_EQ(through, 9);
}

}  // namespace
