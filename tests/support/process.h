// Tests between real processes. The test program starts itself again `workers` times. Each child runs one
// test case, which does the job named by an environment variable.
//
//   int child(const std::string& job, int rank);
//   TEST(Suite, a_process_started_by_these_tests_does_its_job) { do_job(child); }
//   TEST(Suite, ...) { Children workers = start_job("Suite.a_process_started_by_these_tests_does_its_job",
//   "share"); ... }
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include <weft/distributed/launch/spawn.h>

namespace weft::test {

/// In a child: does the job and ends the process with the status that `child` returns (8 when it throws).
/// In the parent: does nothing.
void do_job(int (*child)(const std::string& job, int rank));
rpc::Children start_job(const std::string& test, const std::string& job, int workers = 3);
/// Waits at most 100 s until all have ended. Checks that the signal ended the ranks `killed` and that the
/// others exited with status 0.
void expect_ended(rpc::Children workers, const std::vector<int>& killed = {}, int signal = SIGKILL);

}  // namespace weft::test
