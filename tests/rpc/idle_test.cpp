// Workers without work sleep: their threads wake neither to look for messages nor to count time. They send a
// few signs of life per lease. Once a second the thread on gRPC's queue wakes, since gRPC may lose a wake-up.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
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

/// How often each thread of this process has fallen asleep so far, by its name and number.
std::map<std::string, int64_t> sleeps() {
  std::map<std::string, int64_t> all;
  std::error_code gone;  // threads end meanwhile
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::ifstream file(thread.path() / "status");
    std::string name, line;
    while (std::getline(file, line)) {
      if (line.starts_with("Name:")) name = line.substr(6) + " " + thread.path().filename().string();
      if (line.starts_with("voluntary_ctxt_switches:")) all[name] = std::stoll(line.substr(24));
    }
  }
  return all;
}

/// The threads that fell asleep between two looks, most first.
struct Sleepers {
  int64_t total = 0;
  std::string text;
  Sleepers(const std::map<std::string, int64_t>& before, const std::map<std::string, int64_t>& after) {
    std::multimap<int64_t, std::string, std::greater<>> by_count;
    for (const auto& [name, count] : after) {
      const auto found = before.find(name);
      const int64_t more = found == before.end() ? count : count - found->second;
      total += more;
      if (more > 0) by_count.emplace(more, name);
    }
    for (const auto& [count, name] : by_count) text += str(count, " by ", name, "\n");
  }
};

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
  // A thread that looked every 20 ms would exceed this bound alone. In a second this thread wakes once, the
  // threads on the queues of the two workers three times, and gRPC's timers three to six times. Under the
  // thread sanitizer a thread of its own wakes 10 times, and each thread that sleeps once. On a busy machine
  // the first seconds still end the work before.
#if defined(__SANITIZE_THREAD__)
  constexpr int64_t kMost = 40;
#else
  constexpr int64_t kMost = 16;
#endif
  std::optional<Sleepers> slept;
  for (int second = 0; second < 10 && (!slept || slept->total > kMost); ++second) {
    const auto before = sleeps();
    std::this_thread::sleep_for(1s);
    slept.emplace(before, sleeps());
  }
  EXPECT_LE(slept->total, kMost) << "wake-ups in the last of ten seconds:\n" << slept->text;
  c.shutdown();
}

INSTANTIATE_TEST_SUITE_P(By, Idle,
                         ::testing::Values(Way{"tcp", false, -1us}, Way{"lane", true, -1us},
                                           Way{"spinning_lane", true, 20us}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
