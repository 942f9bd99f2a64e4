// The spin of a poll before it sleeps, over a clock of the test.
#include <gtest/gtest.h>

#include <weft/distributed/transport/inner/spinner.h>
#include <weft/kernels/cpu/limits.h>

#include "support/one_cpu.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

/// A spinner of 50 us whose looks take `look_time`. The event of each poll comes after `wait`, and a sleeping
/// thread has it 30 us later.
struct Spins {
  inner::Spinner spinner{50us};
  TimePoint now = TimePoint() + 1s;
  Duration look_time = 1us, wait = 10us;
  int events = 3;  // of a sleep; 0: it ended by its deadline
  int looks = 0;
  bool slept = false;

  int poll() {
    const TimePoint begin = now;
    looks = 0;
    slept = false;
    return spinner.poll(
        [&] {
          now += look_time;
          ++looks;
          return now - begin >= wait ? 3 : 0;
        },
        [&] {
          slept = true;
          now = std::max(now, begin + wait) + 30us;
          return events;
        },
        [&] { return now; });
  }
};

TEST(Spinner, after_a_short_wait_it_looks_until_the_events_come) {
  Spins s;
  EXPECT_EQ(s.poll(), 3);
  EXPECT_TRUE(s.slept && s.looks == 0);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(s.poll(), 3);
    EXPECT_FALSE(s.slept);
    EXPECT_EQ(s.looks, 10);
  }
}

TEST(Spinner, it_looks_no_longer_than_its_time_and_then_sleeps) {
  Spins s;
  s.poll();
  s.wait = 1ms;
  EXPECT_EQ(s.poll(), 3);
  EXPECT_TRUE(s.slept);
  EXPECT_EQ(s.looks, 50);
}

TEST(Spinner, after_a_long_wait_the_next_poll_sleeps_at_once) {
  Spins s;
  s.wait = 1ms;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(s.poll(), 3);
    EXPECT_EQ(s.looks, 0);
  }
  s.wait = 10us;  // seen by this poll, used by the next one
  s.poll();
  EXPECT_EQ(s.looks, 0);
  s.poll();
  EXPECT_EQ(s.looks, 10);
}

TEST(Spinner, a_wait_with_two_wake_ups_is_short) {
  Spins s;
  s.wait = 170us;  // and 30 us until this thread runs
  s.poll();
  s.poll();
  EXPECT_EQ(s.looks, 50);
  s.wait = 171us;
  s.poll();
  s.poll();
  EXPECT_EQ(s.looks, 0);
}

TEST(Spinner, after_a_wait_without_events_the_next_poll_sleeps_at_once) {
  Spins s;
  s.poll();
  s.wait = 60us;
  s.events = 0;
  EXPECT_EQ(s.poll(), 0);
  EXPECT_EQ(s.looks, 50);
  s.poll();
  EXPECT_EQ(s.looks, 0);
}

TEST(Spinner, one_that_loses_its_processor_sleeps_at_once_for_many_polls) {
  Spins s;
  s.poll();
  s.look_time = 3ms;
  s.wait = 4ms;
  s.poll();
  EXPECT_EQ(s.looks, 1);
  s.look_time = 1us;
  s.wait = 10us;
  int polls = 0;
  while (s.poll(), s.looks == 0) ++polls;
  EXPECT_EQ(polls, 128);
}

TEST(Spinner, one_thread_of_the_process_spins_at_a_time) {
  Spins s, other;
  s.poll(), other.poll();
  const int found = s.spinner.poll(
      [&] {
        EXPECT_EQ(other.poll(), 3);
        EXPECT_TRUE(other.slept && other.looks == 0);
        return 1;
      },
      [] { return ADD_FAILURE() << "a sleep", 1; }, [&] { return s.now; });
  EXPECT_EQ(found, 1);
  other.poll();
  EXPECT_EQ(other.looks, 10);
}

TEST(Spinner, without_a_time_it_never_looks) {
  inner::Spinner none(Duration::zero());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(none.poll([] { return ADD_FAILURE() << "a look", 1; }, [] { return 2; },
                        [] { return ADD_FAILURE() << "a clock", TimePoint(); }),
              2);
  }
}

TEST(Spinner, the_option_sets_its_time) {
  EXPECT_EQ(inner::longest_spin(20us), 20us);
  EXPECT_EQ(inner::longest_spin(0us), 0us);
}

TEST(Spinner, the_default_follows_the_processors_of_the_process) {
  EXPECT_EQ(inner::kDefaultSpin, 50us);
  {
    const test::OneCpu one;
    ASSERT_TRUE(one.bound());
    EXPECT_EQ(inner::longest_spin(-1us), 0us);
  }
  if (kernels::usable_cpus() > 1) {  // the mask and the quota leave several here
    EXPECT_EQ(inner::longest_spin(-1us), 50us);
  }
}

}  // namespace
}  // namespace weft::rpc
