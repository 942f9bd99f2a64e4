// The claims of docs/conformance.md on initialisation: refused starts, through init_rpc and its rendezvous,
// between real processes.
#include "conformance/fixture.h"

#include <cstdio>

#include "support/process.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

/// Exit status of a child; 0: init_rpc was refused as it must be, and left nothing behind.
int child(const std::string& job, int rank) {
  std::string name = "twin";
  if (job == "two of one name") name = str("worker", rank % 2);
  if (job == "a late third") {
    if (rank == 2) {
      name = "worker2";
      make_threaded_runtime()->sleep_for(1500ms);  // the two have found out long since
    }
  }
  const std::string refused = job == "two of one name" ? "worker0" : "twin";
  try {
    init_rpc(name, {.init_timeout = 40s});
    return 2;
  } catch (const ValueError& e) {
    if (e.what() != str("init: worker name '", refused, "' is not unique")) {
      std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
      return 3;
    }
  }
  if (default_agent()) return 4;
  init_rpc(name, {.rank = 0, .world_size = 1});
  rpc::shutdown();
  return 0;
}

constexpr const char* kChild = "RpcInitProcess.a_process_started_by_these_tests_does_its_job";
TEST(RpcInitProcess, a_process_started_by_these_tests_does_its_job) { do_job(child); }

// test_duplicate_name
TEST(RpcInitProcess, three_workers_of_one_name_are_all_refused_with_a_value_error) {
  expect_ended(start_job(kChild, "all of one name"));
}
// test_duplicate_name_2
TEST(RpcInitProcess, two_workers_of_one_name_are_a_value_error_at_every_worker) {
  expect_ended(start_job(kChild, "two of one name"));
}
TEST(RpcInitProcess, a_worker_that_comes_later_hears_of_it_too) {
  expect_ended(start_job(kChild, "a late third"));
}

}  // namespace
