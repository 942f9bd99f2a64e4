// One worker of a program is killed, or told to end; the others go on or end in order. A loss takes seconds
// to be noticed, so most of these are slow.
#include "program.h"

namespace {

using namespace programs;

TEST(ProgramsSlow, hello_distributed_outlives_a_trainer_that_is_killed) {
  Process hello("hello_distributed --seconds 25 --trainers 2");
  ASSERT_TRUE(hello.says("step ")) << hello.text();
  const pid_t trainer = hello.worker(1);
  ASSERT_GT(trainer, 0);
  kill(trainer, SIGKILL);
  const Output out = hello.finish();
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_EQ(out.last().find("step "), 0u) << out.text;
  EXPECT_FALSE(out.has("hello_distributed: ")) << out.text;
}

TEST(ProgramsSlow, parameter_server_finishes_without_a_trainer_that_is_killed) {
  Process server("parameter_server --trainers 3 --steps 12000 --log-interval 100");
  ASSERT_TRUE(server.says("steps ")) << server.text();
  const pid_t trainer = server.worker(2);
  ASSERT_GT(trainer, 0);
  kill(trainer, SIGKILL);
  const Output out = server.finish();
  EXPECT_EQ(out.code, 1) << out.text;  // a third of the work is missing
  EXPECT_TRUE(out.has("parameter_server: going on without 'trainer2'\n")) << out.text;
  EXPECT_TRUE(out.has("\nparameter_server: trainers=2 steps=8000 loss_first=")) << out.text;
  EXPECT_TRUE(out.has("rank 2 (pid " + std::to_string(trainer) + ") was killed by signal 9")) << out.text;
  const std::string said = out.lines("parameter_server: ");
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 3) << out.text;  // nobody else complains
}

TEST(ProgramsSlow, elastic_ends_with_the_same_loss_whichever_of_its_processes_is_killed) {
  for (const char* victim : {"ps", "trainer", "store"}) {
    const Output out = run(std::string("elastic --steps 120 --kills 1 --lease 1 --victims ") + victim);
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_TRUE(out.has(std::string(": killed the ") + victim)) << out.text;
    const std::string reports = std::string(victim) == "store" ? "0," : "1,";  // it is no member
    EXPECT_TRUE(out.has("reports of deaths: " + reports)) << out.text;
    EXPECT_EQ(out.last().find("elastic: steps=120 kills=1 stops=0 restarts="), 0u) << out.text;
    EXPECT_TRUE(out.has(" matches undisturbed: yes")) << out.text;
  }
}

TEST(ProgramsSlow, elastic_fails_when_nobody_reports_a_loss) {
  const Folder folder("unreported");
  std::filesystem::create_directory(folder.file("events"));  // no worker can write its reports there
  const Output out = run("elastic --steps 120 --kills 1 --lease 1 --victims ps --dir " + folder.path());
  EXPECT_EQ(out.code, 1) << out.text;
  EXPECT_TRUE(out.has("losses of a worker that nobody reported: 1\n")) << out.text;
  EXPECT_TRUE(out.has(" matches undisturbed: yes")) << out.text;  // all else is well
}

TEST(ProgramsSlow, elastic_goes_on_when_a_member_of_etcd_is_killed) {
  if (!std::filesystem::exists("/usr/bin/etcd")) GTEST_SKIP() << "etcd is not installed: /usr/bin/etcd";
  const Output out = run("elastic --etcd --steps 600 --kills 1 --lease 3 --victims store");
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_TRUE(out.has(": killed the etcd")) << out.text;
  EXPECT_EQ(out.last().find("elastic: steps=600 kills=1 stops=0 restarts="), 0u) << out.text;
  EXPECT_TRUE(out.has(" matches undisturbed: yes")) << out.text;
}

TEST(ProgramsSlow, elastic_goes_on_when_members_of_etcd_are_stopped) {
  if (!std::filesystem::exists("/usr/bin/etcd")) GTEST_SKIP() << "etcd is not installed: /usr/bin/etcd";
  const Output out = run("elastic --etcd --steps 20000 --kills 0 --stops 2 --lease 2 --victims store");
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_TRUE(out.has(": stopped the etcd") && out.has(" for 2 leases\n")) << out.text;
  EXPECT_TRUE(out.has(" matches undisturbed: yes")) << out.text;
}

TEST(ProgramsSlow, elastic_goes_on_after_a_stop) {
  for (const std::string victim : {"ps", "trainer", "store"}) {
    const std::string steps = victim == "store" ? "4000" : "120";  // training goes on beside the store
    const Output out = run("elastic --steps " + steps + " --kills 0 --stops 2 --lease 1 --victims " + victim);
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_TRUE(out.has(" for 0.5 leases\n") && out.has(" for 2 leases\n")) << out.text;
    const std::string reports = victim == "store" ? "0," : "1,";  // it is no member that others could lose
    EXPECT_TRUE(out.has("reports of stops for 2 leases: " + reports)) << out.text;
    EXPECT_TRUE(out.has(" stops=2 ") && out.has(" matches undisturbed: yes")) << out.text;
  }
}

TEST(ProgramsLaunch, a_server_that_is_told_to_end_leaves_in_order_and_its_user_names_it) {
  const std::string command = "cartpole --log-interval 1 --max-episodes 100000000 --lr 0";
  const Port port;
  Process agent(command, port.worker(0, 2)), observer(command, port.worker(1, 2));
  ASSERT_TRUE(agent.says("Episode 30\t")) << agent.text();  // the observer serves until the end by then
  observer.terminate();
  const Output served = observer.finish(), failed = agent.finish();
  EXPECT_EQ(served.code, 0) << served.text;
  EXPECT_EQ(served.text, "");
  EXPECT_EQ(failed.code, 1) << failed.text;
  EXPECT_TRUE(failed.has("worker 'obs1'") && failed.has(" has left the group")) << failed.text;
}

TEST(ProgramsOutput, hello_distributed_has_flags_of_its_own) {
  EXPECT_EQ(run("hello_distributed --help").code, 0);
  for (const char* bad : {"--seconds", "--trainers 0", "--seconds -1", "--steps 3", "5"})
    EXPECT_EQ(run(std::string("hello_distributed ") + bad).code, 2) << bad;
  const Output two = run("hello_distributed --trainers 2");
  EXPECT_EQ(two.code, 0) << two.text;
  EXPECT_TRUE(two.has("step 50")) << two.text;
}

}  // namespace
