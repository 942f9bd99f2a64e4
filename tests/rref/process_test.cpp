// References between real processes: this program starts itself again, and a variable tells a child its task.
#include "rref/world.h"

#include <unistd.h>

#include <csignal>

#include "support/process.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

int64_t process_of_worker() { return getpid(); }
WEFT_RPC(process_of_worker);
int64_t count_of(const std::string& key) { return debug_info().at(key); }
WEFT_RPC(count_of);

bool comes_to(int worker, const std::string& key, int64_t value) {
  for (int i = 0; i < 6000; ++i) {
    if (rpc_sync<count_of>(worker, key) == value) return true;
    current_runtime()->sleep_for(10ms);
  }
  return false;
}

/// Exit status of a child; 0 is success.
int child(const std::string& job, int rank) {
  init_rpc(str("worker", rank));
  if (job == "share") {
    {
      const auto there = remote<Cell>((rank + 1) % 3, 10 + rank);
      const auto mine = make_rref<Cell>(20 + rank);
      for (int to = 0; to < 3; ++to) {
        if (rpc_sync<pass_cell>(to, Known{0, there}, std::vector<int64_t>{0, 1, 2}) != 10 + rank) return 2;
        if (rpc_sync<pass_cell>(to, Known{0, mine}, std::vector<int64_t>{2, 1, 0}) != 20 + rank) return 3;
        if (rpc_sync<return_cell>(to, Known{0, there}).cell.rpc_sync<&Cell::get>() != 10 + rank) return 4;
        if (rpc_sync<make_cell>(to, 30).cell.rpc_sync<&Cell::add>(1) != 31) return 5;
      }
    }
    barrier();
    if (!comes_to(rank, "num_owner_rrefs", 0) || !comes_to(rank, "num_user_rrefs", 0)) return 6;
    barrier();
    rpc::shutdown();
    return Cell::living == 0 ? 0 : 7;
  }
  if (job == "kill the user") {  // 0 owns, 1 holds and dies, 2 still uses its own
    if (rank == 0) {
      const auto mine = make_rref<Cell>(5);
      rpc_sync<keep_cell>(1, Known{5, mine});
      rpc_sync<keep_cell>(2, Known{5, mine});
      if (!comes_to(0, "num_forks", 2)) return 2;
      kill(static_cast<pid_t>(rpc_sync<process_of_worker>(1)), SIGKILL);
      if (!comes_to(0, "num_forks", 1)) return 3;
      if (rpc_sync<give_cell>(2, 0).at(0).cell.local_value().get() != 5) return 4;
    } else {
      if (rank == 1) current_runtime()->sleep_for(10min);
    }
    barrier({"worker0", "worker2"}, 90s);
    clear_bags();
    rpc::shutdown({.graceful = false});
    return 0;
  }
  if (job == "kill the owner") {
    if (rank == 1) current_runtime()->sleep_for(10min);
    if (rank == 0) {
      const auto cell = remote<Cell>(1, 5);
      const Known again = rpc_sync<return_cell>(2, Known{5, cell});
      if (cell.rpc_sync<&Cell::get>() != 5) return 2;
      kill(static_cast<pid_t>(rpc_sync<process_of_worker>(1)), SIGKILL);
      try {
        for (;;) cell.rpc_sync<&Cell::get>();
      } catch (const OwnerLost& e) {
        if (e.peer != "worker1") return 3;
      }
      try {
        again.cell.rpc_sync<&Cell::get>();
        return 5;
      } catch (const OwnerLost&) {
      }
    }
    barrier({"worker0", "worker2"}, 90s);
    rpc::shutdown({.graceful = false});
    return 0;
  }
  return 9;
}

constexpr const char* kChild = "RRefProcess.a_process_started_by_these_tests_does_its_job";
TEST(RRefProcess, a_process_started_by_these_tests_does_its_job) { do_job(child); }

TEST(RRefProcess, three_processes_share_references_and_leave_nothing) {
  const auto runtime = make_threaded_runtime();
  Children workers = start_job(kChild, "share");
  EXPECT_NO_THROW(workers.wait(*runtime, runtime->now() + 60s));
}
TEST(RRefProcess, the_references_of_a_killed_process_disappear_at_their_owner) {
  expect_ended(start_job(kChild, "kill the user"), {1});
}
TEST(RRefProcess, a_killed_owner_is_owner_lost) { expect_ended(start_job(kChild, "kill the owner"), {1}); }

}  // namespace
