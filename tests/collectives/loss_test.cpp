// Processes that end in the middle of a transfer. Gloo tells a wait whose bytes are under way nothing of an
// ended connection, so the engine must notice it by itself. The timeout of these groups is far above the time
// in which it does, and a Timeout would fail the tests.
#include <unistd.h>

#include <csignal>
#include <map>
#include <thread>

#include "members.h"

namespace {

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;

constexpr int64_t kMany = 8 << 20;  // elements, far more than the buffers of a connection hold

/// Kills process `pid` as soon as `x`, zeros now, has begun to change.
std::thread kill_when_changed(const Tensor& x, int64_t pid) {
  return std::thread([first = static_cast<const volatile float*>(x.raw()), n = x.numel(), pid] {
    while (first[0] == 0 && first[n / 3 + 1] == 0 && first[n - 1] == 0) std::this_thread::yield();
    kill(static_cast<pid_t>(pid), SIGKILL);
  });
}

std::vector<int64_t> pids_of(const Group& group) {
  std::vector<int64_t> out;
  for (const Tensor& pid : group->all_gather(full({1}, static_cast<int64_t>(getpid()), kInt64)))
    out.push_back(pid.item<int64_t>());
  return out;
}

/// Worker 1 kills the process `victim` when the bytes of worker 0 have begun to come.
void lose_amid(int rank, size_t victim, const std::function<void(dist::ProcessGroup&, const Tensor&)>& call) {
  const Group group = join(rank, {.timeout = 40s});
  const std::vector<int64_t> pids = pids_of(group);
  const Tensor x = full({kMany}, rank == 0 ? 1 : 0);
  std::thread killer;
  if (rank == 1) killer = kill_when_changed(x, pids[victim]);
  const std::string text = error_of<PeerLost>([&] {
    while (true) call(*group, x);  // on a busy machine the signal may come after the first
  });
  EXPECT_TRUE(has(text, "the connection to worker"));
  if (killer.joinable()) killer.join();
  rpc::shutdown({.graceful = false});
}

void broadcast_it(dist::ProcessGroup& group, const Tensor& x) { group.broadcast(x, 0); }
void reduce_it(dist::ProcessGroup& group, const Tensor& x) { group.all_reduce(x); }

int loss_child(const std::string& job, int rank) {
  const std::map<std::string, std::function<void(int)>> jobs{
      {"receiver", [](int r) { lose_amid(r, 1, broadcast_it); }},
      {"sender", [](int r) { lose_amid(r, 0, broadcast_it); }},
      {"reducer", [](int r) { lose_amid(r, 1, reduce_it); }},
      {"other reducer", [](int r) { lose_amid(r, 2, reduce_it); }}};
  jobs.at(job)(rank);
  return testing::Test::HasFailure() ? 1 : 0;
}

rpc::Children start_loss(const std::string& job, int workers) {
  return start_job("CollectiveLoss.a_process_started_by_these_tests_does_its_job", job, workers);
}

TEST(CollectiveLoss, a_process_started_by_these_tests_does_its_job) { do_job(loss_child); }

TEST(CollectiveLoss, a_sender_notices_a_receiver_that_ends_in_the_middle) {
  NEEDS_GLOO;
  expect_ended(start_loss("receiver", 2), {1});
}
TEST(CollectiveLoss, a_receiver_notices_a_sender_that_ends_in_the_middle) {
  NEEDS_GLOO;
  expect_ended(start_loss("sender", 2), {0});
}
TEST(CollectiveLoss, an_all_reduce_notices_a_process_that_ends_in_the_middle) {
  NEEDS_GLOO;
  expect_ended(start_loss("reducer", 3), {1});
  expect_ended(start_loss("other reducer", 4), {2});
}

}  // namespace
