// run_group: groups of real processes that start, run and end by one call, and groups that a launcher starts.
#include <gtest/gtest.h>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include <weft/distributed.h>
#include <weft/distributed/launch/membership.h>
#include <weft/distributed/transport/address.h>

#include "support/child_environment.h"
#include "support/errors.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

std::map<std::string, int> g_visits;  // on the server
int visit(const std::string& who) { return ++g_visits[who]; }
WEFT_RPC(visit);
int64_t group_pid() { return getpid(); }
WEFT_RPC(group_pid);

constexpr char kJob[] = "WEFT_TEST_GROUP_JOB";

/// A shorter lease than the default, so that a lost worker is noticed sooner.
void short_lease(Joining& joining) { joining.init.lease = 4s; }

void shorter_lease(Joining& joining) { joining.init.lease = 1s; }
void shorter_lease_over_tcp(Joining& joining) {
  shorter_lease(joining);
  joining.init.unix_socket = false;
}

/// The trainer kills the server, and goes on with its successor, which the launcher has started.
void outlive_the_server() {
  std::atomic<int> joined{0};
  Event changed(*default_agent()->runtime(), "a member of the test");
  on_member_joined([&](const WorkerInfo&) { ++joined, changed.set(); });
  wait_for_members({"server"}, 60s);
  const auto first = static_cast<pid_t>(rpc_sync<group_pid>("server"));
  const Life life = default_agent()->life_of(get_worker_info("server").id);
  if (kill(first, SIGKILL) != 0) throw RpcError("the server cannot be killed");
  const TimePoint end = default_agent()->runtime()->now() + 60s;
  while (default_agent()->life_of(life.id) == life && default_agent()->runtime()->now() < end) {
    changed.reset();
    if (default_agent()->life_of(life.id) == life)
      changed.wait_until(default_agent()->runtime()->now() + 100ms);
  }
  if (rpc_sync<group_pid>({"server", 60s}) == first) throw RpcError("the server has not been replaced");
}

/// Throws unless the processes of this group have a certificate.
void check_tls(bool wanted) {
  if (wanted && std::getenv("WEFT_TLS_CERT") == nullptr && spawned_rank())
    throw RpcError("this worker has no certificate");
}

/// Rank 0 of a launcher's group. Its first life kills itself, and leaves a note for the second one.
void come_back_with_the_log(const std::string& folder) {
  wait_for_members({"server"}, 60s);
  const int64_t server = rpc_sync<group_pid>({"server", 60s});
  int64_t noted = 0;
  uint64_t noted_epoch = 0;
  std::ifstream(folder + "/note") >> noted >> noted_epoch;
  if (noted == 0) {
    std::ofstream(folder + "/note") << server << " " << epoch() << std::flush;
    std::raise(SIGKILL);
  }
  if (server != noted) throw RpcError("this is another server");
  if (epoch() <= noted_epoch) throw RpcError(str("epoch ", epoch(), " after ", noted_epoch));
}

/// Jobs of a group whose store has a log; 9: no such job.
int logged_status(const std::string& job, bool first) {
  const char* const folder = std::getenv("WEFT_TEST_FOLDER");
  GroupOptions options{.names = {"trainer", "server"}, .prepare = shorter_lease, .elastic = true};
  if (folder != nullptr) options.store_log = folder + std::string("/store.log");
  if (job == "rank 0 again")
    return rpc::run_group(options, [&](const WorkerInfo& me) {
      if (me.name == "trainer") come_back_with_the_log(folder);
    });
  if (job == "two runs") {
    for (int run = 0; run < (first ? 2 : 1); ++run)
      rpc::run_group(options, [](const WorkerInfo& me) {
        if (me.name == "server") return;
        wait_for_members({"server"}, 60s);
        current_runtime()->sleep_for(500ms);  // a server that counts the first run's ends would leave
        if (rpc_sync<visit>({"server", 60s}, me.name) != 1) throw RpcError("the server of the first run");
      });
    return 0;
  }
  return first ? 9 : 10;
}

/// The process with the certificate of "other" would join as "ghost".
int status_of_the_ghost() {
  try {
    rpc::run_group({.names = {"trainer", "server", "other"},
                    .prepare =
                        [](Joining& joining) {
                          shorter_lease_over_tcp(joining);
                          if (joining.name == "other") joining.name = "ghost";
                        },
                    .tls = true,
                    .elastic = true},
                   [](const WorkerInfo& me) {
                     if (me.name != "trainer") return;
                     wait_for_members({"server"}, 60s);
                     if (rpc_sync<visit>({"server", 30s}, me.name) != 1) throw RpcError("an older server");
                   });
  } catch (const NotAllowed& e) {  // in the ghost
    return has(e.what(), "it is of worker 'ghost', and the certificate of this client is for other") ? 21
                                                                                                     : 22;
  } catch (const ChildError& e) {
    return e.child.rank == 2 && e.child.exit_code == 21 ? 0 : 4;
  }
  return spawned_rank() ? 0 : 3;
}

/// The server has nothing to do and stops serving at its limit, while the trainer still works.
int status_of_the_limit() {
  try {
    rpc::run_group({.names = {"trainer", "server"}, .serve_timeout = 300ms}, [](const WorkerInfo& me) {
      if (me.name == "server") return;
      try {
        while (true) rpc_sync<group_pid>("server");
      } catch (const PeerLost&) {
      }
    });
  } catch (const Timeout& e) {  // in the server
    const bool named = std::string_view(e.what()).starts_with("run_group: worker 'server' has waited");
    return named && has(e.what(), "still active: 'trainer'") ? 21 : 22;
  } catch (const ChildError& e) {
    return e.child.rank == 1 && e.child.exit_code == 21 ? 0 : 4;
  }
  return 3;
}

/// Jobs of an elastic group; 9: no such job.
int elastic_status(const std::string& job, bool first) {
  const bool tls = job.find("tls") != std::string::npos;
  const auto prepare = tls ? shorter_lease_over_tcp : shorter_lease;
  if (job == "elastic" || job == "elastic tls") {  // also as the ranks of a launcher
    return rpc::run_group({.names = {"trainer", "server"}, .prepare = prepare, .tls = tls, .elastic = true},
                          [&](const WorkerInfo& me) {
                            check_tls(tls);
                            if (epoch() == 0) throw RpcError("the group is static");
                            if (me.name == "server") return;
                            wait_for_members({"server"}, 60s);
                            if (rpc_sync<visit>("server", me.name) != 1) throw RpcError("an older server");
                          });
  }
  if (job == "successor" || job == "successor tls")
    return rpc::run_group(
        {.names = {"trainer", "server"}, .prepare = prepare, .tls = tls, .elastic = true, .restarts = 1},
        [&](const WorkerInfo& me) {
          check_tls(tls);
          if (me.name == "trainer") outlive_the_server();
        });
  if (job == "wrong name tls") return status_of_the_ghost();
  if (job == "worn out") {  // a worker that fails each time does not hold up the others
    try {
      rpc::run_group(
          {.names = {"trainer", "server"}, .prepare = shorter_lease, .elastic = true, .restarts = 2},
          [](const WorkerInfo& me) {
            if (me.name == "server") throw RpcError("the server of this job always fails");
          });
    } catch (const ChildError& e) {
      return e.child.rank == 1 && e.child.restarts == 2 && e.child.exit_code == 8 ? 0 : 4;
    }
    return 3;
  }
  return logged_status(job, first);
}

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
  if (job == "limit") return status_of_the_limit();
  return elastic_status(job, first);
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

/// Starts a process of the job.
pid_t start_process(const std::string& job, const std::map<std::string, std::string>& more) {
  char name[] = "test_rpc", brief[] = "--gtest_brief=1",
       filter[] = "--gtest_filter=RunGroup.a_process_started_by_these_tests_does_its_job";
  char* arguments[] = {name, filter, brief, nullptr};
  auto variables = child_environment({{kJob, job}});
  variables.insert(more.begin(), more.end());
  std::vector<std::string> entries;
  for (char** e = environ; *e != nullptr; ++e)
    if (const std::string entry = *e; variables.count(entry.substr(0, entry.find('='))) == 0)
      entries.push_back(entry);
  for (const auto& [key, value] : variables) entries.push_back(key + "=" + value);
  std::vector<char*> environment;
  for (std::string& entry : entries) environment.push_back(entry.data());
  environment.push_back(nullptr);
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, environment.data()), 0);
  return pid;
}

/// Expects that the process ends well within 100 s.
void expect_end(pid_t pid, const std::string& job) {
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

/// Starts rank 0 of the job, which starts the others.
void expect_job(const std::string& job) { expect_end(start_process(job, {}), job); }

TEST(RunGroup, a_worker_whose_function_has_returned_serves_the_others) { expect_job("serve"); }
TEST(RunGroup, the_exit_code_of_the_function_is_returned) { expect_job("code"); }
TEST(RunGroup, the_function_may_shut_down_itself) { expect_job("leave"); }
TEST(RunGroup, prepare_names_the_worker_and_started_sees_the_processes) { expect_job("prepare"); }
TEST(RunGroup, a_process_that_is_killed_is_an_error_of_rank_0) { expect_job("failed"); }
TEST(RunGroup, without_require_all_a_process_that_is_killed_ends_nobody) { expect_job("survived"); }
TEST(RunGroup, a_worker_serves_no_longer_than_serve_timeout) { expect_job("limit"); }
TEST(RunGroup, an_exception_of_the_function_keeps_its_type) { expect_job("exception"); }

TEST(RunGroup, an_elastic_group_starts_and_ends_by_one_call) { expect_job("elastic"); }
TEST(RunGroup, a_server_that_is_killed_is_started_again_as_its_successor) { expect_job("successor"); }
TEST(RunGroup, a_process_that_fails_too_often_ends_with_its_error) { expect_job("worn out"); }

bool has_weft_certs() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  return access((self.parent_path() / "weft-certs").c_str(), X_OK) == 0;
}

TEST(RunGroup, an_elastic_group_has_certificates_made_for_it) {
  if (!has_weft_certs()) GTEST_SKIP() << "weft-certs was not built";
  expect_job("elastic tls");
}
TEST(RunGroup, a_successor_under_tls_has_the_certificate_of_its_name) {
  if (!has_weft_certs()) GTEST_SKIP() << "weft-certs was not built";
  expect_job("successor tls");
}

TEST(RunGroup, a_worker_with_the_certificate_of_another_name_does_not_join_an_elastic_group_and_it_goes_on) {
  if (!has_weft_certs()) GTEST_SKIP() << "weft-certs was not built";
  expect_job("wrong name tls");
}

/// Starts a rank as a launcher does.
pid_t start_rank(const std::string& job, int rank, const ReservedPort& port,
                 std::map<std::string, std::string> more = {}) {
  more.insert({{"RANK", std::to_string(rank)},
               {"WORLD_SIZE", "2"},
               {"MASTER_ADDR", "127.0.0.1"},
               {"MASTER_PORT", std::to_string(port.port())}});
  return start_process(job, more);
}

TEST(RunGroup, the_ranks_of_a_launcher_form_an_elastic_group_at_the_address_of_its_master) {
  const ReservedPort port;
  std::vector<pid_t> ranks;
  for (const int rank : {0, 1}) ranks.push_back(start_rank("elastic", rank, port));
  for (const pid_t rank : ranks) expect_end(rank, "elastic");
}

/// A folder that ends with its test.
struct GroupFolder {
  GroupFolder() { EXPECT_NE(mkdtemp(path.data()), nullptr); }
  ~GroupFolder() { std::filesystem::remove_all(path); }
  std::string path = (std::filesystem::temp_directory_path() / "weft-run-group-XXXXXX").string();
};

TEST(RunGroup, rank_0_of_a_launcher_that_is_killed_goes_on_from_the_log_of_its_store) {
  const ReservedPort port;
  const GroupFolder folder;
  const std::string job = "rank 0 again";
  const auto start = [&](int rank) {
    return start_rank(job, rank, port, {{"WEFT_TEST_FOLDER", folder.path}});
  };
  const pid_t server = start(1), killed = start(0);
  int status = 0;
  ASSERT_EQ(waitpid(killed, &status, 0), killed);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  expect_end(start(0), job);
  expect_end(server, job);
}

TEST(RunGroup, a_second_run_with_the_log_of_the_first_counts_its_own_ends) {
  const GroupFolder folder;
  expect_end(start_process("two runs", {{"WEFT_TEST_FOLDER", folder.path}}), "two runs");
}

TEST(RunGroup, an_elastic_group_goes_on_from_the_log_of_its_store) {
  const GroupFolder folder;
  std::vector<uint64_t> epochs;
  for (int run = 0; run < 2; ++run)
    EXPECT_EQ(rpc::run_group({.names = {"alone"},
                              .prepare = shorter_lease,
                              .elastic = true,
                              .store_log = folder.path + "/store.log"},
                             [&](const WorkerInfo&) { epochs.push_back(epoch()); }),
              0);
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_GT(epochs[1], epochs[0]);
}

TEST(RunGroup, options_of_an_elastic_group_are_refused_in_a_static_one) {
  const auto nothing = [](const WorkerInfo&) {};
  const auto refused = [&](GroupOptions options) {
    options.names = {"a", "b"};
    return error_of<ValueError>([&] { rpc::run_group(options, nothing); });
  };
  EXPECT_TRUE(has(refused({.restarts = 1}), "need elastic = true"));
  EXPECT_TRUE(has(refused({.store = "127.0.0.1:0"}), "need elastic = true"));
  EXPECT_TRUE(has(refused({.store_log = "/x"}), "need elastic = true"));
  EXPECT_TRUE(has(refused({.elastic = true, .restarts = -1}), "restarts is -1"));
  EXPECT_TRUE(has(error_of<ValueError>([] { spawn({.store_log = "/x"}); }), "set elastic = true"));
}

TEST(RunGroup, a_log_is_refused_where_another_process_serves_the_store) {
  setenv("RANK", "0", 1);
  setenv("WEFT_STORE", "127.0.0.1:7", 1);
  const std::string text = error_of<ValueError>(
      [] { rpc::run_group({.names = {"a"}, .elastic = true, .store_log = "/x"}, [](const WorkerInfo&) {}); });
  unsetenv("RANK");
  unsetenv("WEFT_STORE");
  EXPECT_TRUE(has(text, "another process serves the store of this group, at 127.0.0.1:7"));
  InitOptions options;
  options.store = "127.0.0.1:7", options.store_log = "/x";
  EXPECT_TRUE(has(error_of<ValueError>([&] { init_rpc("a", options); }), "by serve_store"));
}

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
