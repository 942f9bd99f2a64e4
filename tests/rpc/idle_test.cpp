// Workers without work sleep: their threads wake neither to look for messages nor to count time. They send a
// few signs of life per lease.
#include <gtest/gtest.h>

#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <map>
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

/// How often each other thread of this process has fallen asleep so far, by its number.
std::map<std::string, int64_t> sleeps() {
  std::map<std::string, int64_t> out;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return out;
  while (const dirent* entry = readdir(tasks)) {
    const std::string thread = entry->d_name;
    if (thread.starts_with(".") || thread == std::to_string(gettid())) continue;
    std::ifstream status("/proc/self/task/" + thread + "/status");
    const std::string key = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(key)) out[thread] = std::stoll(line.substr(key.size()));
    }
  }
  closedir(tasks);
  return out;
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
  std::this_thread::sleep_for(500ms);
  const auto before = sleeps();
  if (before.empty()) GTEST_SKIP() << "no /proc tells how often a thread has slept";
  std::this_thread::sleep_for(1s);
  int64_t sum = 0;
  std::string each;
  for (const auto& [thread, count] : sleeps()) {
    const auto old = before.find(thread);
    const int64_t more = count - (old == before.end() ? 0 : old->second);
    sum += more;
    each += thread + ": " + std::to_string(more) + "\n";
  }
  // A thread that looked every 20 ms would exceed this bound alone. Two idle workers wake 5 to 8 times.
  EXPECT_LE(sum, 40) << "wake-ups of a second by thread\n" << each;
  c.shutdown();
}

INSTANTIATE_TEST_SUITE_P(By, Idle,
                         ::testing::Values(Way{"tcp", false, -1us}, Way{"lane", true, -1us},
                                           Way{"spinning_lane", true, 20us}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
