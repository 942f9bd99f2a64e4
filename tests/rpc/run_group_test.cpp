// run_group: groups of real processes that start, run and end by one call, and groups that a launcher starts.
#include <gtest/gtest.h>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>

#include <weft/distributed.h>

#include "support/child_environment.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

std::map<std::string, int> g_visits;  // on the server
int visit(const std::string& who) { return ++g_visits[who]; }
WEFT_RPC(visit);

constexpr char kJob[] = "WEFT_TEST_GROUP_JOB";

/// A shorter lease than the default, so that a lost worker is noticed sooner.
void short_lease(Joining& joining) { joining.init.lease = 4s; }

/// Exit status of a process of the job: of rank 0, which calls run_group first, and of those that it starts.
int job_status(const std::string& job) {
  const bool first = !spawned_rank();
  if (job == "serve") {  // the server has nothing to do itself, and stays until both trainers are done
    return rpc::run_group({.names = {"trainer", "late", "server"}}, [](const WorkerInfo& me) {
      if (me.name == "server") return;
      if (me.name == "late") current_runtime()->sleep_for(200ms);
      EXPECT_EQ(rpc_sync<visit>("server", me.name), 1);
    });
  }
  if (job == "code") {
    const auto code = [](const WorkerInfo& me) { return me.id.value == 0 ? 5 : 0; };
    return rpc::run_group({.world_size = 2}, code) == (first ? 5 : 0) ? 0 : 1;
  }
  if (job == "leave")  // the function may end the group itself
    return rpc::run_group({.world_size = 2}, [](const WorkerInfo&) { rpc::shutdown({.timeout = 60s}); });
  if (job == "prepare") {
    int started = 0;
    const auto prepare = [](Joining& joining) {
      if (!joining.spawned) throw RpcError("run_group started this group");
      joining.name = str(joining.name, joining.starts_others ? "-first" : "-other");
      joining.init.num_worker_threads = 2;
    };
    const int code = rpc::run_group(
        {.world_size = 3,
         .prepare = prepare,
         .started = [&](const std::vector<ChildState>& all) { started = int(all.size()); }},
        [](const WorkerInfo& me) {
          const std::string wanted = me.id.value == 0 ? "worker0-first" : "worker1-other";
          return get_worker_infos().size() == 3 && (me.id.value == 2 || me.name == wanted) ? 0 : 3;
        });
    return code != 0 ? code : first && started != 2 ? 4 : 0;
  }
  const bool all = job == "failed";
  if (all || job == "survived") {  // one of two trainers is killed
    try {
      const int code = rpc::run_group(
          {.names = {"trainer0", "trainer1", "server"}, .prepare = short_lease, .require_all = all},
          [](const WorkerInfo& me) {
            if (me.name == "trainer1") std::raise(SIGKILL);
            if (me.name == "server") return;
            while (!current_agent()->is_lost(WorkerId{1})) current_runtime()->sleep_for(10ms);
            rpc_sync<visit>("server", me.name);
          });
      return all && first ? 3 : code;
    } catch (const ChildError& e) {
      const std::string text = e.what();
      return all && e.child.rank == 1 && e.child.signal == SIGKILL &&
                     text.find("was killed by signal 9") != std::string::npos
                 ? 0
                 : 4;
    }
  }
  if (job == "exception") {  // of rank 0 arrives with its type; the others end with it
    try {
      rpc::run_group({.world_size = 2}, [](const WorkerInfo& me) {
        if (me.id.value == 0) throw IndexError("mine");
      });
    } catch (const IndexError& e) {
      return std::string(e.what()) == "mine" ? 0 : 2;
    }
    return first ? 3 : 0;
  }
  return 9;
}

TEST(RunGroup, a_process_started_by_these_tests_does_its_job) {
  const char* const job = std::getenv(kJob);
  if (!job) {
    EXPECT_FALSE(spawned_rank());
    return;
  }
  int status = 8;
  try {
    status = job_status(job);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s of job '%s': %s\n", spawned_rank() ? "a started process" : "rank 0", job,
                 e.what());
  }
  _exit(status);
}

/// Starts rank 0 of the job, which starts the others, and expects that it ends well within 100 s.
void expect_job(const std::string& job) {
  char name[] = "test_rpc", brief[] = "--gtest_brief=1",
       filter[] = "--gtest_filter=RunGroup.a_process_started_by_these_tests_does_its_job";
  char* arguments[] = {name, filter, brief, nullptr};
  const auto variables = child_environment({{kJob, job}});
  std::vector<std::string> entries;
  for (char** e = environ; *e != nullptr; ++e)
    if (const std::string entry = *e; variables.count(entry.substr(0, entry.find('='))) == 0)
      entries.push_back(entry);
  for (const auto& [key, value] : variables) entries.push_back(key + "=" + value);
  std::vector<char*> environment;
  for (std::string& entry : entries) environment.push_back(entry.data());
  environment.push_back(nullptr);
  pid_t pid = 0;
  ASSERT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, environment.data()), 0);
  const auto runtime = make_threaded_runtime({.threads = 1});
  const TimePoint end = runtime->now() + 100s;
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && runtime->now() < end) runtime->sleep_for(10ms);
  if (ended == 0) kill(pid, SIGKILL), waitpid(pid, &status, 0);
  EXPECT_EQ(ended, pid) << "job '" << job << "' took too long";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "job '" << job << "': status " << status;
  runtime->stop();
}

TEST(RunGroup, a_worker_whose_function_has_returned_serves_the_others) { expect_job("serve"); }
TEST(RunGroup, the_exit_code_of_the_function_is_returned) { expect_job("code"); }
TEST(RunGroup, the_function_may_shut_down_itself) { expect_job("leave"); }
TEST(RunGroup, prepare_names_the_worker_and_started_sees_the_processes) { expect_job("prepare"); }
TEST(RunGroup, a_process_that_is_killed_is_an_error_of_rank_0) { expect_job("failed"); }
TEST(RunGroup, without_require_all_a_process_that_is_killed_ends_nobody) { expect_job("survived"); }
TEST(RunGroup, an_exception_of_the_function_keeps_its_type) { expect_job("exception"); }

TEST(RunGroup, a_group_without_workers_or_with_too_few_names_is_refused) {
  const auto nothing = [](const WorkerInfo&) {};
  const auto said = [&](const GroupOptions& options) -> std::string {
    try {
      rpc::run_group(options, nothing);
    } catch (const ValueError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(said({}).find("the group has 0 workers"), std::string::npos);
  EXPECT_NE(said({.world_size = -1}).find("the group has -1 workers"), std::string::npos);
  EXPECT_NE(said({.world_size = 3, .names = {"a", "b"}}).find("2 names for a group of 3"), std::string::npos);
}

TEST(RunGroup, a_group_of_one_needs_no_other_process) {
  int runs = 0;
  EXPECT_EQ(rpc::run_group({.names = {"alone"}},
                           [&](const WorkerInfo& me) {
                             EXPECT_EQ(me.name, "alone");
                             EXPECT_EQ(rpc_sync<visit>("alone", "myself"), 1);
                             ++runs;
                           }),
            0);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(default_agent(), nullptr);
}

TEST(RunGroup, a_launcher_is_recognised_by_its_variable) {
  const auto of = [](const std::string& name, const char* value) {
    return launched([=](const char* asked) { return name == asked ? value : nullptr; });
  };
  for (const char* name :
       {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX"}) {
    EXPECT_TRUE(of(name, "0")) << name;
    EXPECT_FALSE(of(name, "")) << name;
  }
  EXPECT_FALSE(of("WORLD_SIZE", "2"));
}

}  // namespace
