// RPC between real processes: this program starts itself again, and a variable tells a child its task.
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>

#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/distributed/launch/inner/exit_reports.h>
#include <weft/distributed/launch/inner/process_watch.h>
#include <weft/distributed/launch/rendezvous.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/process.h"
#include "support/system_calls.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

int64_t pid_of_worker() { return getpid(); }
WEFT_RPC(pid_of_worker);
int64_t sum_down(int64_t n) {  // nested through all processes
  if (n == 0) return 0;
  return n + rpc_sync<sum_down>(
                 (get_worker_info().id.value + 1) % static_cast<int>(get_worker_infos().size()), n - 1);
}
WEFT_RPC(sum_down);
Tensor echo_large(const Tensor& t) { return t; }
WEFT_RPC(echo_large);
/// A large tensor that this worker was given.
Tensor& kept_large() {
  static Tensor kept;
  return kept;
}
void keep_large(const Tensor& t) { kept_large() = t; }
WEFT_RPC(keep_large);
Tensor read_large() { return kept_large(); }
WEFT_RPC(read_large);
void write_large(float value) { kept_large().fill_(value); }
WEFT_RPC(write_large);
/// Its storage is the worker's own, as that of a parameter has to be.
void share_large() { mark_concurrent(kept_large()); }
WEFT_RPC(share_large);
int64_t shared_payloads() { return current_agent()->debug_info()["agent.shared_payloads"]; }
WEFT_RPC(shared_payloads);

int64_t next_rank(int64_t from) {
  const int64_t mine = get_worker_info().id.value;
  return from == mine - 1 || mine == 0 ? mine : -1;
}
WEFT_RPC(next_rank);
void stall() { current_runtime()->sleep_for(10min); }
WEFT_RPC(stall);

bool knows_lost(int64_t rank) { return current_agent()->is_lost(WorkerId{static_cast<int32_t>(rank)}); }
WEFT_RPC(knows_lost);
/// Whether this worker waits for the others.
bool is_passive() {
  const auto calls = current_agent()->calls();
  return std::any_of(calls.begin(), calls.end(),
                     [](const CallRecord& c) { return c.what == "the end of the group"; });
}
WEFT_RPC(is_passive);
/// How many workers have told this one, the leader, that they are passive.
int64_t known_passive() { return current_agent()->debug_info()["agent.passive_workers"]; }
WEFT_RPC(known_passive);
std::atomic<int> g_terms = 0;  // the handler of SIGTERM writes it, a call's thread reads it
static_assert(std::atomic<int>::is_always_lock_free);
int64_t terms() { return g_terms; }
WEFT_RPC(terms);

void wait_until(const std::function<bool()>& holds) {
  while (!holds()) current_runtime()->sleep_for(10ms);
}

/// Serves; 0 when that ended well, 1 when it was told to stop, 2 when worker 2, the last active one, was
/// lost.
int serve() {
  try {
    return serve_until_done() ? 0 : 1;
  } catch (const PeerLost& e) {
    const bool named = std::string(e.what()).find("worker 'worker2' is lost") != std::string::npos;
    return e.peer == "worker2" && named ? 2 : 7;
  }
}

/// Jobs in which workers are passive.
int passive_child(const std::string& job, int rank) {
  init_rpc(str("worker", rank));
  if (job == "survive") {  // 2 dies, 1 sees that the server knows, and ends
    barrier();
    if (rank == 2) std::raise(SIGKILL);
    if (rank != 1) return serve();
    wait_until([] { return rpc_sync<knows_lost>("worker0", 2); });
    rpc::shutdown();
    return 0;
  }
  if (job == "last") {  // 2 dies when all others are passive
    if (rank != 2) return serve() == 2 ? 0 : 3;
    wait_until([&] { return rpc_sync<known_passive>(0) == 2; });
    rpc_sync<known_passive>(0);  // its answer tells that the leader has heard of this worker since then
    std::raise(SIGKILL);
  }
  if (job == "usual effect") {  // of SIGTERM
    if (rank == 0) return serve_until_done({.stop_on_sigterm = false}) ? 3 : 4;
    wait_until([] { return rpc_sync<is_passive>(0); });
    kill(static_cast<pid_t>(rpc_sync<pid_of_worker>(0)), SIGTERM);
    try {
      while (true) rpc_sync<pid_of_worker>(0);
    } catch (const PeerLost&) {
    }
    rpc::shutdown({.graceful = false});
    return 0;
  }
  if (job == "terminate") {
    if (rank == 0) return serve() == 1 ? 0 : 2;
    if (rank == 1) {
      std::signal(SIGTERM, [](int) { ++g_terms; });
      return serve() == 0 && g_terms == 1 ? 0 : 3;  // its own handler has it
    }
    for (const int other : {0, 1}) {
      wait_until([&] { return rpc_sync<is_passive>(other); });
      kill(static_cast<pid_t>(rpc_sync<pid_of_worker>(other)), SIGTERM);
    }
    wait_until([] { return rpc_sync<terms>("worker1") == 1; });
    try {
      while (true) rpc_sync<pid_of_worker>("worker0");
    } catch (const PeerLost& e) {
      if (std::string(e.what()).find("has left the group") == std::string::npos) return 4;
    }
    rpc::shutdown();
    return 0;
  }
  return 9;
}

/// A call to worker 1 ends with the end of its process.
bool hears_of_the_end() {
  try {
    rpc_sync<stall>({"worker1", 0s});
    return false;
  } catch (const PeerLost& e) {
    return e.peer == "worker1" && std::string(e.what()).find("its process ended") != std::string::npos;
  }
}

/// Jobs in which a process ends and only the kernel can tell soon: no lease or deadline ends within the test.
int ended_child(const std::string& job, int rank) {
  if (job == "reported" || job == "forged") {  // 1 ends; no process may have a pidfd
    if (!refuse_pidfds()) return 5;
    init_rpc(str("worker", rank), {.lease = 10min});
    const auto identities = all_gather(rpc::inner::process_identity());
    if (job == "forged" && rank == 2) {  // a message into its own end reaches none of the others
      const std::string& other = identities.at("worker0");
      if (send(4, other.data(), other.size(), MSG_NOSIGNAL) < 0) return 6;
    }
    barrier();
    if (rank == 1) std::raise(SIGKILL);
    if (!hears_of_the_end()) return 2;
    if (rpc_sync<pid_of_worker>(2 - rank) == getpid()) return 7;
    barrier({"worker0", "worker2"});
    rpc::shutdown({.graceful = false});
    return 0;
  }
  if (job == "ended") {  // 1 dies in a group that has formed
    init_rpc(str("worker", rank), {.lease = 10min});
    barrier();
    if (rank == 1) std::raise(SIGKILL);
    if (!hears_of_the_end()) return 2;
    rpc::shutdown({.graceful = false});
    return 0;
  }
  // A fourth worker never comes, so that the group goes on forming.
  const int dying = job == "forming" ? 2 : 0;
  if (rank == dying) {
    const auto runtime = make_threaded_runtime();
    const auto meet = make_rendezvous(runtime, launch_info({.world_size = 4}));
    const std::thread announcing([&] {
      try {
        meet->join({.name = str("worker", rank), .process = rpc::inner::process_identity()},
                   runtime->now() + 1min);
      } catch (const Error&) {
      }
    });
    meet->store().wait({"init/member/0", "init/member/1", "init/member/2"}, "", runtime->now() + 1min);
    std::raise(SIGKILL);
  }
  try {
    init_rpc(str("worker", rank), {.world_size = 4, .init_timeout = 10min});
    return 2;
  } catch (const PeerLost& e) {
    if (e.peer != (dying == 2 ? "worker2" : "rank 0")) return 3;
    return std::string(e.what()).find("ended while the group formed") != std::string::npos ? 0 : 4;
  }
}

/// Exit status of a child; 0 is success.
int child(const std::string& job, int rank) {
  if (job == "silent") pause();
  if (job == "ended" || job == "reported" || job == "forged" || job == "forming" || job == "host")
    return ended_child(job, rank);
  if (job != "talk" && job != "killed" && job != "values" && job != "round") return passive_child(job, rank);
  init_rpc(str("worker", rank));
  if (job == "talk") {
    for (int to = 0; to < 3; ++to)
      if ((rpc_sync<pid_of_worker>(to) == getpid()) != (to == rank)) return 2;
    if (rpc_sync<sum_down>((rank + 1) % 3, 40) != 820) return 3;
    const Tensor t = rand({700, 900});
    if (rpc_sync<echo_large>((rank + 1) % 3, t).to_vector<float>() != t.to_vector<float>()) return 4;
    const auto all = all_gather(rank);
    if (all.size() != 3 || all.at("worker2") != 2) return 5;
    rpc::shutdown();
    return 0;
  }
  if (job == "round") {  // each calls the next one, many
    const int all = static_cast<int>(get_worker_infos().size());
    if (rpc_sync<next_rank>((rank + 1) % all, rank) != (rank + 1) % all) return 2;
    barrier();
    if (all_gather(rank).at(str("worker", all - 1)) != all - 1) return 3;
    rpc::shutdown();
    return 0;
  }
  if (job == "values") {  // of large tensors, which go through shared memory where there is a lane
    barrier();
    if (rank == 0) {
      const auto is = [](const Tensor& t, float value) {
        return t.to_vector<float>() == std::vector<float>(500'000, value);
      };
      Tensor x = ones({500'000});
      rpc_sync<keep_large>(1, x);
      x.fill_(2.f);
      Tensor read = rpc_sync<read_large>(1);
      if (!is(read, 1.f)) return 2;
      rpc_sync<write_large>(1, 5.f);
      if (!is(x, 2.f) || !is(read, 1.f)) return 3;
      read.fill_(7.f);
      if (!is(rpc_sync<read_large>(1), 5.f)) return 4;
      rpc_sync<share_large>(1);
      if (!is(rpc_sync<read_large>(1), 5.f)) return 5;
      const Tensor ids = arange(100'000);
      if (rpc_sync<echo_large>(1, ids).to_vector<int64_t>() != ids.to_vector<int64_t>()) return 6;
      if (has_same_host_lane() && (shared_payloads() < 2 || rpc_sync<shared_payloads>(1) < 4)) return 7;
    }
    rpc::shutdown();
    return 0;
  }
  if (job == "killed") {
    barrier();
    if (rank == 1) rpc_sync<stall>({1, 0s});
    if (rank == 2) {
      try {
        rpc_sync<stall>("worker1");
        return 2;
      } catch (const PeerLost& e) {
        if (e.peer != "worker1") return 3;
      }
    }
    if (rank == 0) {
      const auto waiting = rpc_async<stall>("worker1");
      kill(static_cast<pid_t>(rpc_sync<pid_of_worker>("worker1")), SIGKILL);
      try {
        waiting.wait();
        return 2;
      } catch (const PeerLost& e) {
        if (e.peer != "worker1") return 3;
      }
    }
    if (rpc_sync<pid_of_worker>(2 - rank) == getpid()) return 5;  // 0 and 2 go on
    barrier({"worker0", "worker2"});
    rpc::shutdown({.graceful = false});
    return 0;
  }
  return 9;
}

constexpr const char* kChild = "RpcProcess.a_process_started_by_these_tests_does_its_job";
TEST(RpcProcess, a_process_started_by_these_tests_does_its_job) { do_job(child); }

TEST(RpcProcess, three_processes_call_each_other_and_shut_down) { expect_ended(start_job(kChild, "talk")); }
TEST(RpcProcessSlow, sixty_four_processes_form_call_round_meet_and_stop) {
  expect_ended(start_job(kChild, "round", 64));
}
TEST(RpcProcess, large_tensors_between_processes_have_values_of_their_own) {
  expect_ended(start_job(kChild, "values", 2));
}
TEST(RpcProcess, a_process_killed_in_a_call_is_a_lost_peer_to_the_others_and_they_go_on) {
  expect_ended(start_job(kChild, "killed"), {1});
}

/// Skips a test where the kernel does not tell the end of a process.
#define NEEDS_PROCESS_WATCH()                                                 \
  if (inner::ProcessWatch watch; !watch.watch(inner::process_identity(), {})) \
  GTEST_SKIP() << "there is no pidfd or no /proc here"

TEST(RpcProcess, the_end_of_a_process_is_a_loss_at_once_to_every_worker_of_its_host) {
  NEEDS_PROCESS_WATCH();
  expect_ended(start_job(kChild, "ended"), {1});
}
TEST(RpcProcess, the_launcher_reports_the_end_of_a_process_where_the_kernel_gives_no_pidfd) {
  if (!can_refuse_pidfds() || inner::process_identity().empty())
    GTEST_SKIP() << "there are no filters of system calls, or there is no /proc here";
  expect_ended(start_job(kChild, "reported"), {1});
}
TEST(RpcProcess, only_the_launcher_reports_ends) {
  if (!can_refuse_pidfds() || inner::process_identity().empty())
    GTEST_SKIP() << "there are no filters of system calls, or there is no /proc here";
  expect_ended(start_job(kChild, "forged"), {1});
}
TEST(RpcProcess, a_launcher_that_is_a_worker_itself_has_the_reports_too) {
  Children workers = start_job(kChild, "silent", 2);
  const pid_t first = workers.poll().at(0).pid, second = workers.poll().at(1).pid;
  const std::string ends = inner::process_identity(first), lives = inner::process_identity(second);
  if (ends.empty()) GTEST_SKIP() << "there is no /proc here";
  inner::ExitReports& reports = inner::ExitReports::of_process();
  EXPECT_TRUE(reports.expected());
  EXPECT_FALSE(reports.has(ends));
  kill(first, SIGKILL);
  const auto runtime = make_threaded_runtime();
  const TimePoint limit = runtime->now() + 1min;
  while (!reports.has(ends) && runtime->now() < limit) runtime->sleep_for(1ms);
  EXPECT_TRUE(reports.has(ends));
  EXPECT_FALSE(reports.has(lives));
  EXPECT_EQ(workers.poll().at(0).signal, SIGKILL);  // its status is left for the launcher
}
TEST(RpcProcess, a_worker_that_dies_while_the_group_forms_ends_the_forming_by_name) {
  NEEDS_PROCESS_WATCH();
  expect_ended(start_job(kChild, "forming"), {2});
}
TEST(RpcProcess, the_death_of_rank_0_while_the_group_forms_ends_the_forming) {
  NEEDS_PROCESS_WATCH();
  expect_ended(start_job(kChild, "host"), {0});
}

TEST(RpcProcess, a_server_and_a_trainer_outlive_a_trainer_that_is_killed) {
  expect_ended(start_job(kChild, "survive"), {2});
}
TEST(RpcProcess, passive_workers_hear_that_the_last_active_one_was_killed) {
  expect_ended(start_job(kChild, "last"), {2});
}
TEST(RpcProcess, sigterm_ends_a_passive_worker_in_order_unless_the_program_handles_it) {
  expect_ended(start_job(kChild, "terminate"));
}
TEST(RpcProcess, sigterm_keeps_its_usual_effect_without_stop_on_sigterm) {
  expect_ended(start_job(kChild, "usual effect", 2), {0}, SIGTERM);
}

}  // namespace
