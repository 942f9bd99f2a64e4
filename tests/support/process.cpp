// Child processes of a test: their start, their job and the check of their ends (process.h).
#include "support/process.h"

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/runtime/runtime.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "support/child_environment.h"
#include "support/hang.h"

namespace weft::test {

using namespace std::chrono_literals;

void do_job(int (*child)(const std::string& job, int rank)) {
  const auto rank = rpc::spawned_rank();
  const char* const job = std::getenv("WEFT_TEST_JOB");
  if (!rank) {
    EXPECT_EQ(job, nullptr);
    return;
  }
  int status = 8;
  const HangReport report([job, rank] {
    const auto agent = rpc::default_agent();
    return str("rank ", *rank, " of job '", job ? job : "", "': ", agent ? agent->dump() : "without an agent",
               "\n");
  });
  try {
    status = child(job ? job : "", *rank);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", *rank, e.what());
  }
  std::fflush(stdout);
  _exit(status);
}

rpc::Children start_job(const std::string& test, const std::string& job, int workers) {
  return rpc::spawn({.world_size = workers,
                     .arguments = {"--gtest_filter=" + test, "--gtest_brief=1"},
                     .own_arguments = false,
                     .environment = child_environment({{"WEFT_TEST_JOB", job}})});
}

void expect_ended(rpc::Children workers, const std::vector<int>& killed, int signal) {
  const auto runtime = rpc::make_threaded_runtime();
  const rpc::TimePoint limit = runtime->now() + 100s;
  for (bool running = true; running && runtime->now() < limit;) {
    running = false;
    for (const auto& c : workers.poll()) running = running || c.running;
    if (running) runtime->sleep_for(20ms);
  }
  for (const auto& c : workers.poll()) {
    EXPECT_FALSE(c.running) << to_string(c);
    if (std::find(killed.begin(), killed.end(), c.rank) != killed.end())
      EXPECT_EQ(c.signal, signal) << to_string(c);
    else EXPECT_TRUE(c.exit_code == 0 && c.signal == 0) << to_string(c);
  }
}

}  // namespace weft::test
