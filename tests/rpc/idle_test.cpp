// Workers without work sleep: their threads wake neither to look for messages nor to count time. They send a
// few signs of life per lease.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <chrono>
#include <thread>

#include <weft/distributed/rpc/rpc.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;

int64_t idle_next(int64_t x) { return x + 1; }
WEFT_RPC(idle_next);

/// How often threads of this process have fallen asleep so far.
int64_t sleeps() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used.ru_nvcsw;
}

struct Way {
  const char* name;
  bool unix_socket;
  Duration spin;
};

class Idle : public ::testing::TestWithParam<Way> {};

TEST_P(Idle, workers_without_work_sleep) {
  Cluster c(
      {.over = test::Over::kGrpc, .size = 2, .unix_socket = GetParam().unix_socket, .spin = GetParam().spin});
  c.run_all([&](int rank) {  // all threads have been at work
    for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(rpc_sync<idle_next>(1 - rank, i), i + 1);
  });
  // A thread that looked every 20 ms would exceed this bound alone. Two idle workers wake 5 to 8 times, the
  // thread sanitizer's own thread 10 times. On a busy machine the first seconds still end the work before.
  constexpr int64_t kMost = 40;
  int64_t more = kMost + 1;
  for (int second = 0; second < 10 && more > kMost; ++second) {
    const int64_t before = sleeps();
    std::this_thread::sleep_for(1s);
    more = sleeps() - before;
  }
  EXPECT_LE(more, kMost) << "wake-ups in the last of ten seconds";
  c.shutdown();
}

INSTANTIATE_TEST_SUITE_P(By, Idle,
                         ::testing::Values(Way{"tcp", false, -1us}, Way{"lane", true, -1us},
                                           Way{"spinning_lane", true, 20us}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
