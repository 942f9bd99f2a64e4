// Random programs over simulated workers that lose messages, are cut off, die and come back. They see the
// values of the same program in one process, or a loss is reported, and nothing is left. Planted faults show
// that the explorer would notice.
#include <gtest/gtest.h>

#include "explore/explore.h"

namespace weft::explore {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kShare = 15;  // of the schedules elsewhere
#else
constexpr uint64_t kShare = 1;
#endif

/// The seeds of one test are its own; WEFT_TEST_SEED moves all.
uint64_t first_seed(uint64_t at) {
  const char* const shift = std::getenv("WEFT_TEST_SEED");
  return at + (shift ? std::strtoull(shift, nullptr, 10) * 1000000 : 0);
}

class Explorer : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Parts, Explorer, ::testing::Range(0, 4));

TEST_P(Explorer, programs_equal_the_local_engine_or_report_a_loss_and_nothing_is_left) {
  const auto part = static_cast<uint64_t>(GetParam());
  const Report report = explore({.seed = first_seed(1 + part * 100000), .schedules = 250 / kShare});
  EXPECT_FALSE(report.failed()) << report.failure;
  EXPECT_GT(report.completed, report.schedules / 3);
  EXPECT_GT(report.hurt, report.schedules / 20);
}

TEST(ExplorerSeeds, schedules_that_once_failed_hold) {
  for (const uint64_t seed : {340, 353, 5593, 10287, 10638, 16617, 19647, 20278, 39574, 100132}) {
    const Plan plan = make_plan(seed, 0, true);
    EXPECT_EQ(run(plan).failure, "") << "seed " << seed;
  }
}

TEST(ExplorerFast, whole_schedules_in_FAST_mode_equal_the_local_engine_or_report_a_loss) {
  uint64_t whole = 0, hurt = 0;
  for (uint64_t seed = 1; seed <= 200 / kShare; ++seed) {
    Plan plan = make_plan(first_seed(seed + 700000));
    for (Program& p : plan.programs) p.fast = true;
    const Outcome outcome = run(plan);
    ASSERT_EQ(outcome.failure, "") << "seed " << plan.seed << "\n" << to_string(shrink(plan));
    whole += outcome.completed, hurt += outcome.hurt;
  }
  EXPECT_GT(whole, 0u);
  EXPECT_GT(hurt, 0u);
}

TEST(ExplorerDepth, every_single_fault_at_the_first_messages_of_small_programs_is_survived) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const Report report = explore_all(seed, 3, static_cast<int>(30 / kShare), 1);
    EXPECT_FALSE(report.failed()) << report.failure;
  }
}

TEST(ExplorerDepth, every_single_fault_at_the_first_messages_of_an_elastic_group_is_survived) {
  const Report report = explore_all(2, 3, kShare > 1 ? 1 : 10, 1, true);
  EXPECT_FALSE(report.failed()) << report.failure;
}

class ExplorerPlanted : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Faults, ExplorerPlanted, ::testing::Range<size_t>(0, planted_faults().size()),
                         [](const auto& info) { return std::string(planted_faults()[info.param].name); });

TEST_P(ExplorerPlanted, is_caught_within_1000_schedules) {
  if (kShare > 1 && GetParam() % 8 != 0)
    GTEST_SKIP() << "the sanitizers take one fault of eight: the release build shows that each is caught";
  const Planted& planted = planted_faults()[GetParam()];
  const Report report = explore({.seed = 1, .schedules = 1000}, &planted);
  EXPECT_TRUE(report.failed()) << "not noticed: " << planted.guarantee;
  EXPECT_EQ(run(make_plan(report.failed_seed)).failure, "") << "seed " << report.failed_seed;
  EXPECT_NE(report.failure.find("to repeat it: test_explore --schedules 1 --seed "), std::string::npos);
}

TEST(ExplorerShrink, a_shrunk_schedule_fails_with_no_more_than_it_needs) {
  const Planted* fault = nullptr;
  for (const Planted& p : planted_faults())
    if (std::string(p.name) == "release_forgotten") fault = &p;
  ASSERT_NE(fault, nullptr);
  uint64_t seed = 1;
  while (run(make_plan(seed), fault).failure.empty()) ++seed;
  const Plan small = shrink(make_plan(seed), fault);
  EXPECT_FALSE(run(small, fault).failure.empty());
  EXPECT_TRUE(small.faults.empty());
  EXPECT_LE(size_of(small), 3u) << to_string(small);
}

TEST(ExplorerPlan, a_seed_gives_the_same_schedule_and_the_same_run) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(to_string(make_plan(seed)), to_string(make_plan(seed)));
    EXPECT_EQ(run(make_plan(seed)).hash, run(make_plan(seed)).hash);
  }
  EXPECT_NE(to_string(make_plan(1)), to_string(make_plan(2)));
}

}  // namespace
}  // namespace weft::explore
