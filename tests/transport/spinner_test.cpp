// The spin of a poll before it sleeps, over a clock of the test.
#include <gtest/gtest.h>

#include <weft/distributed/transport/inner/spinner.h>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

/// A spinner of 50 us whose looks take `look_time`; each finds an event from the look `found_at` on.
struct Spins {
  inner::Spinner spinner{50us};
  TimePoint now = TimePoint() + 1s;
  Duration look_time = 1us;
  int looks = 0, found_at = 1 << 30;

  int spin() {
    looks = 0;
    return spinner.spin(
        [&] {
          now += look_time;
          return ++looks >= found_at ? 3 : 0;
        },
        [&] { return now; });
  }
  /// Polls until the next one that looks; returns the number of those before it.
  int pause() {
    for (int polls = 0;; ++polls)
      if (spin() != 0 || looks > 0) return polls;
  }
};

TEST(Spinner, returns_the_events_of_the_first_look_that_finds_some) {
  Spins s;
  s.found_at = 7;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(s.spin(), 3);
    EXPECT_EQ(s.looks, 7);
  }
}

TEST(Spinner, ends_after_its_time_and_pauses_for_twice_as_many_polls_each_time) {
  Spins s;
  EXPECT_EQ(s.spin(), 0);
  EXPECT_EQ(s.looks, 50);
  for (const int polls : {1, 2, 4, 8, 16, 32, 64, 128, 256, 256}) EXPECT_EQ(s.pause(), polls);
}

TEST(Spinner, each_event_halves_the_next_pause) {
  Spins s;
  for (int i = 0; i < 6; ++i) s.pause();
  s.found_at = 1;
  EXPECT_EQ(s.pause(), 32);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(s.spin(), 3);
  s.found_at = 1 << 30;
  EXPECT_EQ(s.pause(), 0);
  EXPECT_EQ(s.pause(), 4);
}

TEST(Spinner, one_that_loses_its_processor_pauses_for_long) {
  Spins s;
  s.look_time = 3ms;
  EXPECT_EQ(s.spin(), 0);
  EXPECT_EQ(s.looks, 1);
  s.look_time = 1us;
  EXPECT_EQ(s.pause(), 128);
}

TEST(Spinner, one_thread_of_the_process_spins_at_a_time) {
  Spins s, other;
  const int found = s.spinner.spin(
      [&] {
        EXPECT_EQ(other.spin(), 0);
        EXPECT_EQ(other.looks, 0);
        return 1;
      },
      [&] { return s.now; });
  EXPECT_EQ(found, 1);
  other.found_at = 1;
  EXPECT_EQ(other.spin(), 3);
}

TEST(Spinner, without_a_time_it_never_looks) {
  inner::Spinner none(Duration::zero());
  const int found = none.spin([] { return ADD_FAILURE() << "a look", 1; }, [] { return TimePoint(); });
  EXPECT_EQ(found, 0);
}

}  // namespace
}  // namespace weft::rpc
