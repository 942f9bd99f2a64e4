// How a group comes together: the store, the rendezvous over both transports, spawned processes.
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <string>

#include <weft/distributed/launch/launch.h>
#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/sim/sim_rendezvous.h>
#include <weft/distributed/transport/address.h>

#include "mailbox.h"
#include "support/child_environment.h"
#include "support/errors.h"
#include "support/hang.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using test::has;

TEST(Address, host_and_port_are_split_and_bad_ones_named) {
  EXPECT_EQ(parse_host_port("a.b:12").host, "a.b");
  EXPECT_EQ(parse_host_port("[::1]:12").host, "::1");
  EXPECT_EQ(to_string(parse_host_port("[::1]:12")), "[::1]:12");
  for (const char* bad : {"a", "a:", "a:x", "a:65536", "::1:12", "[::1:12"})
    EXPECT_THROW(parse_host_port(bad), ValueError) << bad;
  EXPECT_TRUE(is_loopback_host("127.3.4.5"));
  EXPECT_FALSE(is_loopback_host("192.0.2.1"));
}

TEST(Address, a_reserved_port_can_be_opened_by_who_names_it) {
  ReservedPort port;
  auto rt = make_threaded_runtime();
  auto meet = make_rendezvous(
      rt, {.rank = 0, .world_size = 1, .master_addr = "127.0.0.1", .master_port = port.port(), .source = ""});
  EXPECT_EQ(meet->join({.name = "only"}, rt->now() + 10s).size(), 1u);
}

/// All of a group's rendezvous in one process, each worker in a task.
template <class Make> void check_meeting(Runtime& rt, int size, Make make) {
  Event all(rt, "the group");
  std::atomic<int> done{0}, good{0};
  for (int r = 0; r < size; ++r) {
    rt.post([&, r] {
      try {
        auto meet = make(r);
        const auto end = [&] { return rt.now() + 60s; };
        const auto members = meet->join(
            {.name = str("worker", r),
             .address = {.addresses = {str("addr:", r + 1)}, .incarnation = {7u + static_cast<unsigned>(r)}}},
            end());
        bool ok = static_cast<int>(members.size()) == size;
        for (int i = 0; ok && i < size; ++i) {
          const auto& m = members[static_cast<size_t>(i)];
          ok = m.id == WorkerId{i} && m.name == str("worker", i) &&
               m.address.addresses.at(0) == str("addr:", i + 1) &&
               m.address.incarnation.value == 7u + static_cast<unsigned>(i);
        }
        for (int k = 0; k < 3; ++k) {
          const int64_t before = meet->store().add("arrived", 1, end());
          meet->barrier("start", end());
          const auto now = meet->store().get("arrived", end());
          ok = ok && before <= size * (k + 1) && std::stoll(now) >= size * (k + 1);
          meet->barrier("again", end());
        }
        if (r < 2 && size > 2) meet->barrier("two", end(), {WorkerId{0}, WorkerId{1}});
        if (ok) ++good;
        EXPECT_TRUE(meet->leave(end())) << "rank " << r;
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << r << ": " << e.what();
      }
      if (++done == size) all.set();
    });
  }
  all.wait();
  EXPECT_EQ(good, size);
}

TEST(Rendezvous, workers_meet_over_grpc) {
  auto rt = make_threaded_runtime();
  ReservedPort port;
  check_meeting(*rt, 5, [&](int r) {
    return make_rendezvous(
        rt,
        {.rank = r, .world_size = 5, .master_addr = "127.0.0.1", .master_port = port.port(), .source = ""});
  });
}

TEST(Rendezvous, workers_meet_over_a_network_that_loses_and_doubles_a_third) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SimRuntime rt({.seed = seed});
    SimNetwork net(rt, {.drop = 0.3, .duplicate = 0.3});
    check_meeting(rt, 7, [&](int r) { return make_sim_rendezvous(rt, net, r, 7); });
  }
}

/// Two workers meet, then each runs its function.
void meet_and(SimRuntime& rt, SimNetwork& net, const std::function<void(std::unique_ptr<Rendezvous>)>& host,
              const std::function<void(std::unique_ptr<Rendezvous>)>& client) {
  Event both(rt, "both workers");
  int done = 0;
  for (const int rank : {0, 1}) {
    rt.post([&, rank] {
      auto meet = make_sim_rendezvous(rt, net, rank, 2);
      EXPECT_EQ(meet->join({.name = str("worker", rank)}, rt.now() + 60s).size(), 2u);
      meet->barrier("all have joined", rt.now() + 60s);
      (rank == 0 ? host : client)(std::move(meet));
      if (++done == 2) both.set();
    });
  }
  both.wait();
}

TEST(Rendezvous, a_goodbye_whose_answer_was_lost_ends_with_the_host) {
  SimRuntime rt({.seed = 3});
  SimNetwork net(rt);
  meet_and(
      rt, net, [&](auto meet) { EXPECT_TRUE(meet->leave(rt.now() + 600s)); },
      [&](auto meet) {
        net.add_rule({.from = WorkerId{0}});  // no answer from here on
        EXPECT_TRUE(meet->leave(rt.now() + 600s));
      });
}

TEST(Rendezvous, the_hosts_process_may_end_as_soon_as_it_has_left) {
  SimRuntime rt({.seed = 3});
  SimNetwork net(rt, {.latency = 100ms});
  TimePoint begun, ended;
  meet_and(
      rt, net,
      [&](auto meet) {
        EXPECT_TRUE(meet->leave(rt.now() + 600s));
        net.kill(WorkerId{0});
      },
      [&](auto meet) {
        begun = rt.now();
        EXPECT_TRUE(meet->leave(rt.now() + 600s));
        ended = rt.now();
      });
  EXPECT_LT(ended - begun, 1s) << "it had its answer";  // virtual time
}

TEST(Rendezvous, a_goodbye_that_comes_too_late_for_its_host_never_reaches_another_store) {
  SimRuntime rt({.seed = 3});
  SimNetwork net(rt);
  meet_and(
      rt, net,
      [&](auto meet) {
        rt.sleep_for(500ms);
        net.kill(WorkerId{0});
        meet.reset();
        meet = make_sim_rendezvous(rt, net, 0, 2);  // the next group's
        rt.sleep_for(60s);
        EXPECT_FALSE(meet->store().peek({"init/left/1"}, rt.now() + 1s).at(0).has_value());
      },
      [&](auto meet) {
        rt.sleep_for(1s);
        EXPECT_TRUE(meet->leave(rt.now() + 30s));
      });
}

TEST(Rendezvous, a_goodbye_over_grpc_ends_with_a_host_that_does_not_answer) {
  auto rt = make_threaded_runtime();
  const ReservedPort port;
  Mailbox box(*rt);  // takes every request and answers none
  auto host = make_grpc_transport(rt,
                                  {.id = WorkerId{0},
                                   .listen = str("127.0.0.1:", port.port()),
                                   .unix_socket = false,
                                   .admit_strangers = true},
                                  box);
  const auto client = make_rendezvous(
      rt, {.rank = 1, .world_size = 2, .master_addr = "127.0.0.1", .master_port = port.port(), .source = ""});
  Event left(*rt, "the goodbye");
  bool in_time = false;
  rt->post([&] {
    in_time = client->leave(rt->now() + 60s);
    left.set();
  });
  EXPECT_TRUE(box.wait_for(1));
  host->close();
  left.wait();
  EXPECT_TRUE(in_time);
}

/// Joins with the given ranks and names; returns the errors.
std::vector<std::string> join_errors(const std::vector<std::pair<int, std::string>>& workers, int size,
                                     Duration limit) {
  SimRuntime rt({.seed = 9});
  SimNetwork net(rt);
  std::vector<std::string> errors(workers.size());
  int done = 0;
  Event all(rt, "the group");
  for (size_t i = 0; i < workers.size(); ++i) {
    rt.post([&, i] {
      auto meet = make_sim_rendezvous(rt, net, workers[i].first, size);
      try {
        meet->join({.name = workers[i].second}, rt.now() + limit);
      } catch (const Timeout& e) {
        errors[i] = e.what();
      } catch (const ValueError& e) {
        errors[i] = str("ValueError: ", e.what());
      }
      meet->leave(rt.now() + 1s);
      if (++done == static_cast<int>(workers.size())) all.set();
    });
  }
  all.wait();
  return errors;
}

TEST(Rendezvous, missing_ranks_are_named_when_time_is_up) {
  for (const auto& error : join_errors({{0, "a"}, {2, "c"}}, 4, 30s)) {
    EXPECT_EQ(error, "init: 2 of 4 workers have not come in time; missing: rank 1, 3");
  }
}

TEST(Rendezvous, a_name_that_is_not_unique_ends_everybody) {
  for (const auto& error : join_errors({{0, "a"}, {1, "b"}, {2, "b"}}, 3, 30s))
    EXPECT_EQ(error, "ValueError: init: worker name 'b' is not unique");
}

TEST(Rendezvous, a_rank_taken_twice_ends_everybody) {
  for (const auto& error : join_errors({{0, "a"}, {1, "b"}, {1, "c"}}, 3, 30s))
    EXPECT_EQ(error, "ValueError: init: rank 1 is taken twice");
}

TEST(Rendezvous, nobody_at_the_address_is_a_timeout_that_names_it) {
  auto rt = make_threaded_runtime();
  const ReservedPort reserved;
  const uint16_t port = reserved.port();
  auto meet = make_rendezvous(
      rt, {.rank = 1, .world_size = 2, .master_addr = "127.0.0.1", .master_port = port, .source = ""});
  try {
    meet->join({.name = "alone"}, rt->now() + 300ms);
    FAIL() << "no error";
  } catch (const Timeout& e) {
    EXPECT_NE(std::string(e.what()).find(str("127.0.0.1:", port)), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("'alone'"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("nobody listens there any more once a group has formed"),
              std::string::npos)
        << e.what();
  }
}

TEST(Rendezvous, a_port_in_use_is_named) {
  auto rt = make_threaded_runtime();
  ReservedPort port;
  const LaunchInfo info{
      .rank = 0, .world_size = 2, .master_addr = "127.0.0.1", .master_port = port.port(), .source = ""};
  auto first = make_rendezvous(rt, info);
  try {
    make_rendezvous(rt, info);
    FAIL() << "no error";
  } catch (const RpcError& e) {
    EXPECT_EQ(std::string(e.what()), str("cannot listen on 127.0.0.1:", port.port(), ": the port is in use"));
  }
}

TEST(Rendezvous, one_from_outside_ends_the_wait_for_a_worker_that_will_not_come) {
  auto rt = make_threaded_runtime();
  ReservedPort port;
  LaunchInfo info{
      .rank = 0, .world_size = 3, .master_addr = "127.0.0.1", .master_port = port.port(), .source = ""};
  const auto server = make_rendezvous(rt, info);
  info.rank = 1;
  const auto client = make_rendezvous(rt, info);
  std::atomic<int> told{0};
  Event both(*rt, "both to hear of it");
  for (Rendezvous* one : {server.get(), client.get()}) {
    rt->post([&, one] {
      try {
        one->join({.name = str("worker", one->rank())}, rt->now() + 60s);
        ADD_FAILURE() << "no error";
      } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "rank 2 is gone");
      }
      if (++told == 2) both.set();
    });
  }
  abort_rendezvous(rt, info, "rank 2 is gone", rt->now() + 60s);
  both.wait();
  EXPECT_TRUE(server->leave(rt->now() + 60s)) << "it waited for the others";
}

TEST(Rendezvous, beyond_loopback_credentials_or_consent_are_needed) {
  auto rt = make_threaded_runtime();
  const LaunchInfo info{
      .rank = 0, .world_size = 2, .master_addr = "192.0.2.1", .master_port = 29500, .source = ""};
  EXPECT_TRUE(has(error_of<RpcError>([&] { make_rendezvous(rt, info); }),
                  "without credentials: set tls, or insecure = true"));
}

TEST(Rendezvous, a_master_without_an_address_is_named_at_once) {
  auto rt = make_threaded_runtime();
  LaunchInfo info{.rank = 0, .world_size = 2, .master_addr = "no..host", .master_port = 29500, .source = ""};
  const auto expect_named = [&](const RendezvousOptions& options) {
    const std::string text = error_of<RpcError>([&] { make_rendezvous(rt, info, options); });
    EXPECT_TRUE(has(text, "MASTER_ADDR 'no..host', cannot be resolved: " + why_unresolved("no..host")));
    EXPECT_FALSE(has(text, "credentials"));
  };
  expect_named({});
  info.rank = 1;
  expect_named({});
  expect_named({.insecure = true});
}

TEST(Rendezvous, the_address_of_a_master_that_only_others_know_is_no_error_of_rank_0) {
  auto rt = make_threaded_runtime();
  ReservedPort port;
  const LaunchInfo info{
      .rank = 0, .world_size = 2, .master_addr = "no..host", .master_port = port.port(), .source = ""};
  EXPECT_NO_THROW(make_rendezvous(rt, info, {.insecure = true}));
}

/// Runs in the processes that the tests below start. A variable tells its job.
TEST(Spawn, a_process_that_was_not_spawned_has_no_spawned_rank) {
  const auto rank = spawned_rank();
  if (!rank) {
    EXPECT_EQ(std::getenv("WEFT_TEST_CHILD"), nullptr);
    return;
  }
  const std::string job = std::getenv("WEFT_TEST_CHILD");
  if (job == "exit3" && *rank == 1) _exit(3);
  if (job == "killed" && *rank == 1) raise(SIGKILL);
  if (job == "interrupted") {
    raise(SIGINT);
    _exit(0);
  }
  auto rt = make_threaded_runtime();
  const test::HangReport report([job, rank] { return str("rank ", *rank, " is still at '", job, "'\n"); });
  if (job == "meet") {
    auto meet = make_rendezvous(rt, launch_info());
    const auto members = meet->join({.name = str("w", *rank)}, rt->now() + 60s);
    meet->barrier("end", rt->now() + 60s);
    if (members.size() == 3 && meet->leave(rt->now() + 60s)) _exit(0);
    std::fprintf(stderr, "rank %d met %zu workers, and was not told in time that it may leave\n", *rank,
                 members.size());
    _exit(5);
  }
  if (job == "parent") {  // starts a grandchild, says its pid, and dies
    Children child = spawn({.world_size = 1, .environment = {{"WEFT_TEST_CHILD", "sleep"}}});
    const std::string text = str(child.poll().at(0).pid, "\n");
    FILE* file = std::fopen(std::getenv("WEFT_TEST_FILE"), "w");
    std::fputs(text.c_str(), file);
    std::fclose(file);
    rt->sleep_for(1500ms);  // time for the grandchild to set itself up
    raise(SIGKILL);
  }
  rt->sleep_for(60s);
  _exit(7);
}

SpawnOptions child_options(const std::string& job, int world_size) {
  return {.world_size = world_size,
          .arguments = {"--gtest_filter=Spawn.a_process_that_was_not_spawned_has_no_spawned_rank",
                        "--gtest_brief=1"},
          .own_arguments = false,
          .environment = test::child_environment({{"WEFT_TEST_CHILD", job}})};
}

TEST(Spawn, three_processes_meet_and_end) {
  auto rt = make_threaded_runtime();
  Children children = spawn(child_options("meet", 3));
  children.wait(*rt, rt->now() + 60s);
  for (const auto& c : children.poll()) {
    EXPECT_FALSE(c.running);
    EXPECT_EQ(c.exit_code, 0);
  }
}

TEST(Spawn, a_child_that_exits_with_3_is_named_and_the_others_end) {
  auto rt = make_threaded_runtime();
  Children children = spawn(child_options("exit3", 3));
  try {
    children.wait(*rt, rt->now() + 60s);
    FAIL() << "no error";
  } catch (const ChildError& e) {
    EXPECT_EQ(e.child.rank, 1);
    EXPECT_EQ(e.child.exit_code, 3);
    EXPECT_NE(std::string(e.what()).find(str("rank 1 (pid ", e.child.pid, ") exited with status 3")),
              std::string::npos)
        << e.what();
  }
  for (const auto& c : children.poll()) EXPECT_FALSE(c.running);
}

TEST(Spawn, a_child_that_is_killed_is_named_with_its_signal) {
  auto rt = make_threaded_runtime();
  Children children = spawn(child_options("killed", 2));
  try {
    children.wait(*rt, rt->now() + 60s);
    FAIL() << "no error";
  } catch (const ChildError& e) {
    EXPECT_EQ(e.child.signal, SIGKILL);
    EXPECT_NE(std::string(e.what()).find("was killed by signal 9 (SIGKILL)"), std::string::npos) << e.what();
  }
}

TEST(Spawn, children_ignore_the_interrupt_signal) {
  auto rt = make_threaded_runtime();
  Children children = spawn(child_options("interrupted", 2));
  EXPECT_NO_THROW(children.wait(*rt, rt->now() + 60s));
}

TEST(Spawn, a_deadline_ends_all_and_names_who_still_ran) {
  auto rt = make_threaded_runtime();
  Children children = spawn(child_options("sleep", 2));
  EXPECT_THROW(children.wait(*rt, rt->now() + 100ms), Timeout);
  for (const auto& c : children.poll()) EXPECT_FALSE(c.running);
}

TEST(Spawn, a_child_dies_with_its_parent) {
  auto rt = make_threaded_runtime();
  const std::string path = ::testing::TempDir() + str("weft_spawn_", getpid());
  auto options = child_options("parent", 1);
  options.environment["WEFT_TEST_FILE"] = path;
  Children children = spawn(options);
  EXPECT_THROW(children.wait(*rt, rt->now() + 60s), ChildError);
  FILE* file = std::fopen(path.c_str(), "r");
  ASSERT_NE(file, nullptr);
  int grandchild = 0;
  EXPECT_EQ(std::fscanf(file, "%d", &grandchild), 1);
  std::fclose(file);
  std::remove(path.c_str());
  ASSERT_GT(grandchild, 0);
  const TimePoint end = rt->now() + 60s;
  const auto alive = [&] {  // gone, or a zombie that nobody has waited for
    FILE* stat = std::fopen(str("/proc/", grandchild, "/stat").c_str(), "r");
    if (stat == nullptr) return false;
    char state = 'Z';
    const int read = std::fscanf(stat, "%*d %*s %c", &state);
    std::fclose(stat);
    return read == 1 && state != 'Z' && state != 'X';
  };
  while (alive() && rt->now() < end) rt->sleep_for(10ms);
  EXPECT_FALSE(alive());
}

TEST(Spawn, ranks_out_of_range_are_refused) {
  EXPECT_THROW(spawn({.world_size = 0}), ValueError);
  EXPECT_THROW(spawn({.world_size = 2, .first_rank = 3}), ValueError);
}

}  // namespace
}  // namespace weft::rpc
