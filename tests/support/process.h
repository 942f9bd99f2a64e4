// Tests between real processes: the program of the test starts itself again, `workers` times, each child for one case alone, which does the
// job that a variable names.
//
//   TEST(Suite, a_process_started_by_these_tests_does_its_job) { do_job(child); }   // int child(const std::string& job, int rank)
//   TEST(Suite, ...) { Children workers = start_job("Suite.a_process_started_by_these_tests_does_its_job", "share"); ... }
#pragma once

#include <string>
#include <vector>

#include <weft/distributed/spawn.h>

namespace weft::test {

/// In a child: does the job and ends the process with the status that `child` returns (8 when it throws). In the parent: nothing.
void do_job(int (*child)(const std::string& job, int rank));
rpc::Children start_job(const std::string& test, const std::string& job, int workers = 3);
/// Waits until all have ended, for a minute at most, and checks that the ranks `killed` were and the others ended well.
void expect_ended(rpc::Children workers, const std::vector<int>& killed = {});

}  // namespace weft::test
