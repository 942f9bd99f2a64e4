// Random programs over four workers on a network that loses, doubles, delays and reorders: create, share,
// pass through chains, return, use, drop. Every use gives the right value (G2), and at the end nobody holds
// anything (G1).
#include "rref/world.h"

#include <random>

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using namespace weft::test;

struct Plan {
  int steps = 40;
  bool impatient = false;  ///< some calls are given up early
  /// called with an error of a step; without it a step may throw none
  std::function<void(const std::exception&)> on_error{};
};

/// One worker's part. Draws from its own generator, so that the plan does not depend on the order of events.
void program(int rank, int workers, uint64_t seed, const Plan& plan) {
  std::mt19937_64 rng(seed * 1000 + static_cast<uint64_t>(rank));
  const auto pick = [&](size_t n) { return static_cast<int>(rng() % n); };
  std::vector<Known> mine;
  std::vector<Future<void>> open;
  const auto to = [&](int worker) -> To {
    if (plan.impatient && pick(3) == 0) return To(worker, std::chrono::microseconds(200 + pick(4000)));
    return To(worker);
  };
  for (int step = 0; step < plan.steps; ++step) {
    const int what = pick(10);
    const int worker = pick(static_cast<size_t>(workers));
    const int64_t value = static_cast<int64_t>(rng() % 1000000);
    try {
      if (mine.empty() || what == 0) {
        mine.push_back({value, remote<Cell>(worker, value)});
      } else if (what == 1) {
        mine.push_back({value, make_rref<Cell>(value)});
      } else {
        const size_t i = static_cast<size_t>(pick(mine.size()));
        const Known known = mine[i];
        switch (what) {
          case 2: mine.erase(mine.begin() + static_cast<ptrdiff_t>(i)); break;
          case 3: rpc_sync<keep_cell>(to(worker), known); break;
          case 4:
            for (Known& k : rpc_sync<give_cell>(to(worker), value)) mine.push_back(k);
            break;
          case 5: {
            std::vector<int64_t> way;
            for (int n = pick(8); n > 0; --n) way.push_back(pick(static_cast<size_t>(workers)));
            EXPECT_EQ(rpc_sync<pass_cell>(to(worker), known, way), known.value);
            break;
          }
          case 6: mine.push_back(rpc_sync<return_cell>(to(worker), known)); break;
          case 7: mine.push_back(rpc_sync<make_cell>(to(worker), value)); break;
          case 8: EXPECT_EQ(known.cell.rpc_sync<&Cell::get>(), known.value); break;
          default:  // let go of before the call is answered
            open.push_back(
                rpc_async<pass_cell>(worker, known, std::vector<int64_t>{pick(static_cast<size_t>(workers))})
                    .then_inline([v = known.value](const int64_t& got) { EXPECT_EQ(got, v); }));
            mine.erase(mine.begin() + static_cast<ptrdiff_t>(i));
        }
      }
    } catch (const Timeout& e) {
      if (!plan.impatient && !plan.on_error) ADD_FAILURE() << "seed " << seed << ": " << e.what();
    } catch (const std::exception& e) {
      if (plan.on_error) plan.on_error(e);
      else ADD_FAILURE() << "seed " << seed << " worker " << rank << " step " << step << ": " << e.what();
    }
  }
  for (const auto& f : open) {
    try {
      f.wait();
    } catch (const std::exception& e) {
      if (plan.on_error) plan.on_error(e);
      else ADD_FAILURE() << "seed " << seed << ": " << e.what();
    }
  }
}

uint64_t run(uint64_t seed, SimNetOptions net, const Plan& plan) {
  Cluster c({.size = 4, .seed = seed, .net = net});
  c.run_all([&](int rank) { program(rank, 4, seed, plan); });
  for (int i = 0; i < 2; ++i) {  // a call that was given up may still fill a bag
    settle(c);
    clear_bags();
  }
  settle(c);
  EXPECT_EQ(left_over(c, {0, 1, 2, 3}), "") << "seed " << seed;
  EXPECT_EQ(Cell::living, 0) << "seed " << seed;
  if (std::getenv("WEFT_TEST_LOG"))
    for (const auto& line : c.sim().log()) std::puts(line.c_str());
  for (int rank = 0; rank < 4 && !plan.impatient; ++rank)
    EXPECT_EQ(c.agent(rank)->debug_info().at("num_gone_rrefs"), 0) << "G2 broken by seed " << seed;
  c.run_all([&](int rank) {
    try {
      c.agent(rank)->shutdown({.timeout = 60s});
    } catch (const std::exception& e) {
      ADD_FAILURE() << "seed " << seed << " shutdown of " << rank << ": " << e.what();
    }
  });
  return c.sim().log_hash();
}

TEST(RRefRandom, on_a_good_network_every_owner_map_is_empty_at_the_end) {
  for (uint64_t seed = 1; seed <= 20; ++seed) run(seed, {.jitter = 1ms}, {});
}

TEST(RRefRandom, with_lost_doubled_and_reordered_messages_every_owner_map_is_empty_at_the_end) {
  for (uint64_t seed = 100; seed < 140; ++seed) run(seed, {.jitter = 3ms, .drop = 0.1, .duplicate = 0.1}, {});
}

TEST(RRefRandom, with_calls_given_up_early_every_owner_map_is_empty_at_the_end) {
  for (uint64_t seed = 200; seed < 240; ++seed)
    run(seed, {.jitter = 3ms, .drop = 0.05, .duplicate = 0.1}, {.impatient = true});
}

TEST(RRefRandom, one_seed_gives_the_same_log_twice) {
  const SimNetOptions net{.jitter = 3ms, .drop = 0.1, .duplicate = 0.1};
  EXPECT_EQ(run(7, net, {.impatient = true}), run(7, net, {.impatient = true}));
  EXPECT_NE(run(7, net, {}), run(8, net, {}));
}

// A worker dies in the middle. The others see PeerLost or OwnerLost (or a reference that only the dead one
// held), and nothing of it is left.
TEST(RRefRandom, a_killed_worker_leaves_no_reference_behind) {
  for (uint64_t seed = 300; seed < 330; ++seed) {
    AgentOptions agent;
    agent.lease = 2s;
    Cluster c({.size = 4,
               .seed = seed,
               .net = {.jitter = 2ms, .drop = 0.05, .duplicate = 0.05, .connect_timeout = 1s},
               .agent = agent});
    const Plan plan{.steps = 30, .impatient = false, .on_error = [&](const std::exception& e) {
                      const std::string text = e.what();
                      const bool lost = text.find("lost") != std::string::npos ||
                                        text.find("gone") != std::string::npos ||
                                        text.find("shut down") != std::string::npos;
                      EXPECT_TRUE(lost || dynamic_cast<const Timeout*>(&e))
                          << "seed " << seed << ": " << text;
                    }};
    c.runtime().call_at(c.runtime().now() + std::chrono::milliseconds(1 + seed % 60), [&] { c.kill(3); });
    for (int rank = 0; rank < 4; ++rank)
      c.runtime().post([&, rank] {
        const AgentScope scope(c.agent(rank));
        program(rank, 4, seed, plan);
      });
    c.sim().run_for(120s);
    clear_bags();
    settle(c);
    clear_bags();
    EXPECT_EQ(left_over(c, {0, 1, 2}), "") << "seed " << seed;
  }
  EXPECT_EQ(Cell::living, 0);
}

// A worker dies in the middle and a successor goes on. Nothing of the old life is left on the living, and the
// new life's references are right.
TEST(RRefRandom, a_killed_worker_with_a_successor_leaves_no_reference_behind) {
  for (uint64_t seed = 400; seed < 430; ++seed) {
    AgentOptions agent;
    agent.lease = 2s;
    Cluster c({.size = 4,
               .seed = seed,
               .net = {.jitter = 2ms, .drop = 0.05, .duplicate = 0.05, .connect_timeout = 1s},
               .agent = agent});
    const Plan plan{.steps = 30, .impatient = false, .on_error = [&](const std::exception& e) {
                      const std::string text = e.what();
                      const bool lost = text.find("lost") != std::string::npos ||
                                        text.find("gone") != std::string::npos ||
                                        text.find("belongs to worker") != std::string::npos ||
                                        text.find("shut down") != std::string::npos;
                      EXPECT_TRUE(lost || dynamic_cast<const Timeout*>(&e))
                          << "seed " << seed << ": " << text;
                    }};
    const auto start = [&](int rank) {
      c.runtime().post([&, rank, agent = c.agent(rank)] {
        const AgentScope scope(agent);
        program(rank, 4, seed, plan);
      });
    };
    for (int rank = 0; rank < 4; ++rank) start(rank);
    c.sim().run_for(std::chrono::milliseconds(1 + seed % 60));
    c.kill(3);
    c.sim().run_for(std::chrono::milliseconds(seed % 5 * 700));
    bag(3).clear();
    c.restart(3);
    start(3);
    c.sim().run_for(120s);
    for (int i = 0; i < 2; ++i) {
      clear_bags();
      settle(c);
    }
    EXPECT_EQ(left_over(c, {0, 1, 2, 3}), "") << "seed " << seed;
    c.run(0, [&] { EXPECT_EQ(remote<Cell>("worker3", 3).rpc_sync<&Cell::get>(), 3) << "seed " << seed; });
  }
  EXPECT_EQ(Cell::living, 0);
}

}  // namespace
