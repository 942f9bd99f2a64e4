// Groups on devices that are behind: barriers meanwhile. The emulated work
// of such a device waits until its Deferred ends. This program starts itself again, and a variable tells a
// child its task.
#include <atomic>
#include <map>
#include <thread>

#include <weft/tensor/cuda.h>

#include "devices.h"
#include "support/simt/streams.h"

namespace {

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;
using cuda::simt::Deferred;

/// Work of the calling thread on its current stream.
void queue(std::function<void()> work) {
  cuda::simt::issue(0, cuda::current_stream(kGpu).handle(), std::move(work));
}

// ---- jobs of the children

void wait_for_own_work(int rank) {
  const Group group = join_with_device(rank);
  std::atomic<bool> done = false;
  {
    const Deferred slow;
    queue([&] { done = true; });
    std::atomic<bool> ended = false;
    std::thread device([&] {
      for (std::this_thread::sleep_for(300ms); !ended; std::this_thread::sleep_for(10ms))
        cuda::simt::run_all();
    });
    group->barrier();
    EXPECT_TRUE(done);
    ended = true;
    device.join();
  }
  cuda::Graph graph(kGpu);
  EXPECT_TRUE(has(error_of<CudaError>([&] { graph.capture([&] { group->barrier(); }); }),
                  "barrier: the calling thread records a graph"));
  group->barrier();
  rpc::shutdown();
}

int end_child(const std::string& job, int rank) {
  const std::map<std::string, void (*)(int)> jobs{{"own work", wait_for_own_work}};
  jobs.at(job)(rank);
  return testing::Test::HasFailure() ? 1 : 0;
}

rpc::Children start_ending(const std::string& job) {
  return start_job("SimtCollectiveEnds.a_process_started_by_these_tests_does_its_job", job, 2);
}

// ---- tests

TEST(SimtCollectiveEnds, a_process_started_by_these_tests_does_its_job) { do_job(end_child); }

TEST(SimtCollectiveEnds, a_barrier_waits_for_the_work_of_the_callers_stream) {
  NEEDS_GLOO;
  expect_ended(start_ending("own work"));
}
}  // namespace
