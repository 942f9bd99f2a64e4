// Groups as a launcher makes them, by RANK and its like. The programs name the cause when a group cannot form
// or loses a worker, and an unwritable path costs no result.
#include "program.h"
#include "support/certificates.h"

namespace {

using namespace programs;

const char kMyAdd[] = "my_add: t1.grad=[5, 6] t2.grad=[5, 6] t4.grad=[4, 6] matches local: yes";

std::string program_of(const std::string& command) { return command.substr(0, command.find(' ')); }

/// Exit code 1 and one line "program: ..." that has `part`.
void expect_failure(const Output& out, const std::string& program, const std::string& part) {
  EXPECT_EQ(out.code, 1) << out.text;
  const std::string said = out.lines(program + ": ");
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << out.text;
  EXPECT_NE(said.find(part), std::string::npos) << "wanted " << part << ", got " << out.text;
}

TEST(ProgramsLaunch, two_processes_joined_by_variables_compute_what_spawned_ones_do) {
  const Port port;
  Process second("my_add", port.worker(1, 2));
  const Output first = run("my_add", port.worker(0, 2)), other = second.finish();
  EXPECT_EQ(first.code, 0) << first.text;
  EXPECT_EQ(first.last(), kMyAdd);
  EXPECT_FALSE(first.has("pids:")) << first.text;
  EXPECT_EQ(other.code, 0) << other.text;
  EXPECT_EQ(other.text, "");
}

TEST(ProgramsLaunch, workers_with_other_engines_of_products_say_so_once_and_work_together) {
  const Port port;
  Variables second = port.worker(1, 2);
  second["WEFT_ISA"] = "baseline", second["WEFT_GEMM"] = "eigen";
  Process other("my_add", second);
  const Output first = run("my_add", port.worker(0, 2)), told = other.finish();
  EXPECT_EQ(first.code, 0) << first.text;
  EXPECT_TRUE(first.has(kMyAdd)) << first.text;
  EXPECT_EQ(told.code, 0) << told.text;
  for (const Output* out : {&first, &told}) {
    const std::string lines = out->lines("weft: ");
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << out->text;
    EXPECT_NE(lines.find("computes products by other engines ("), std::string::npos) << out->text;
    EXPECT_NE(lines.find("(baseline, table "), std::string::npos) << out->text;
    EXPECT_NE(lines.find(", WEFT_GEMM=eigen)"), std::string::npos) << out->text;
  }
}

TEST(ProgramsLaunch, a_group_has_its_launched_size_whatever_the_flags_say) {
  const Port port;
  Process second("parameter_server --steps 20", port.worker(1, 2));
  const Output first = run("parameter_server --steps 20", port.worker(0, 2));
  EXPECT_EQ(first.code, 0) << first.text;
  EXPECT_EQ(first.last().find("parameter_server: trainers=1 steps=20 "), 0u) << first.text;
  EXPECT_EQ(second.finish().code, 0);
}

TEST(ProgramsLaunch, a_group_of_a_size_that_does_not_fit_is_refused) {
  const Port port;
  for (const char* command : {"my_add", "cartpole", "parameter_server", "pipeline", "data_parallel", "hybrid",
                              "custom_optimizer --mode distributed", "rnn --tutorial --mode distributed"})
    expect_failure(run(command, port.worker(0, 1)), program_of(command),
                   "the launched group has 1 worker, it must have 2");
  for (const char* command : {"custom_optimizer --mode distributed", "rnn --tutorial"})
    expect_failure(run(command, port.worker(0, 3)), program_of(command), "has 3 workers, it must have 2;");
}

TEST(ProgramsLaunch, a_rank_that_is_set_to_nothing_launches_nothing) {
  const Output out = run("my_add", {{"RANK", ""}});
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_EQ(out.text.compare(0, 6, "pids: "), 0) << out.text;
  EXPECT_EQ(out.last(), kMyAdd);
}

TEST(ProgramsLaunch, the_server_of_rnn_needs_no_corpus_and_writes_no_file) {
  const Corpus corpus;
  const Port port;
  Process server("rnn --data no/such/folder --json no/such/folder/f" + std::string(kTiny), port.worker(0, 2));
  const Output trainer = run("rnn " + corpus.flag() + kTiny + "--max-steps 1", port.worker(1, 2)),
               other = server.finish();
  EXPECT_EQ(trainer.code, 0) << trainer.text;
  EXPECT_EQ(trainer.last().find("rnn: epochs=1 steps=1 "), 0u) << trainer.text;
  EXPECT_EQ(other.code, 0) << other.text;
}

TEST(ProgramsLaunch, a_survivor_names_the_worker_that_it_lost) {
  const std::string command = "cartpole --log-interval 1 --max-episodes 100000000 --lr 0";
  const Port one, two;
  Process lost_agent(command, one.worker(0, 2)), observer(command, one.worker(1, 2));
  Process agent(command, two.worker(0, 2)), lost_observer(command, two.worker(1, 2));
  // by then the observers have begun to serve until the end
  ASSERT_TRUE(lost_agent.says("Episode 30\t")) << lost_agent.text();
  ASSERT_TRUE(agent.says("Episode 30\t")) << agent.text();
  lost_agent.end();
  lost_observer.end();
  expect_failure(observer.finish(), "cartpole", "worker 'agent' is lost");
  const Output alone = agent.finish();
  expect_failure(alone, "cartpole", "worker 'obs1'");  // by a call, or by a reference, which adds its id
  EXPECT_TRUE(alone.has(" is lost: ")) << alone.text;
}

TEST(ProgramsLaunch, a_signal_shows_the_open_calls_of_all_workers_and_the_program_goes_on) {
  Process cartpole("cartpole --log-interval 1 --max-episodes 100000000 --lr 0");
  ASSERT_TRUE(cartpole.says("Episode 1\t")) << cartpole.text();
  cartpole.ask_who_waits();
  EXPECT_TRUE(cartpole.says("worker 'obs1':")) << cartpole.text();
  cartpole.interrupt();
  const Output out = cartpole.finish();
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_TRUE(out.has("worker 'agent':")) << out.text;
}

TEST(ProgramsLaunch, a_signal_to_any_process_of_hello_distributed_or_elastic_ends_none) {
  const Folder folder("signals");
  Process elastic("elastic --steps 100000000 --kills 0 --dir " + folder.path());
  Process hello("hello_distributed --seconds 400");
  ASSERT_TRUE(hello.says("step ")) << hello.text();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (contents(folder.file("step")).empty() && std::chrono::steady_clock::now() < limit) usleep(10'000);
  const auto count_in = [](const std::string& text, const std::string& part) {
    int count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
  };
  const std::array<pid_t, 3> before{elastic.worker(0), elastic.worker(1), elastic.worker(2)};
  int graphs = 0, refusals = 0;
  for (const pid_t pid : {elastic.pid(), before[0], before[1], before[2]}) {
    ASSERT_GT(pid, 0);
    kill(pid, SIGUSR1);
    const bool member = pid == before[1] || pid == before[2];  // the others have no part in the group
    (member ? graphs : refusals) += 1;
    while (count_in(elastic.text(), "worker 'ps':") < graphs ||
           count_in(elastic.text(), "worker 'trainer':") < graphs ||
           count_in(elastic.text(), "no waits to show: RPC has not been initialized") < refusals)
      ASSERT_TRUE(elastic.says_more()) << elastic.text();
  }
  EXPECT_EQ(before, (std::array<pid_t, 3>{elastic.worker(0), elastic.worker(1), elastic.worker(2)}));
  elastic.interrupt();
  EXPECT_EQ(elastic.finish().last(), "interrupted") << elastic.text();

  hello.ask_who_waits();
  EXPECT_TRUE(hello.says("worker 'trainer0':") && hello.says("worker 'server':")) << hello.text();
  kill(hello.worker(1), SIGUSR1);
  while (count_in(hello.text(), "worker 'server':") < 2) ASSERT_TRUE(hello.says_more()) << hello.text();
  hello.interrupt();
}

TEST(ProgramsLaunch, environments_of_other_launchers_form_a_group) {
  const Port port;
  const Port agents(port.number() - 1);  // torchrun's agent listens at the port that it names
  agents.occupy();
  const auto expect_group = [](const Variables& common, const std::vector<Variables>& own) {
    std::vector<Variables> all;
    for (const Variables& variables : own) {
      all.push_back(variables);
      all.back().insert(common.begin(), common.end());
    }
    Process second("my_add", all.at(1));
    const Output first = run("my_add", all.at(0)), other = second.finish();
    EXPECT_EQ(first.code, 0) << first.text;
    EXPECT_EQ(first.last(), kMyAdd);
    EXPECT_EQ(other.code, 0) << other.text;
  };
  const std::string number = std::to_string(port.number());
  expect_group({{"WORLD_SIZE", "2"},
                {"LOCAL_WORLD_SIZE", "2"},
                {"GROUP_RANK", "0"},
                {"MASTER_ADDR", "localhost"},
                {"MASTER_PORT", std::to_string(port.number() - 1)},
                {"TORCHELASTIC_RUN_ID", "1"},
                {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
               {{{"RANK", "0"}, {"LOCAL_RANK", "0"}}, {{"RANK", "1"}, {"LOCAL_RANK", "1"}}});
  expect_group(
      {{"SLURM_NTASKS", "2"}, {"SLURM_JOB_NODELIST", "localhost"}, {"MASTER_PORT", number}},
      {{{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}, {{"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "1"}}});
  expect_group({{"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", number}},
               {{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}},
                {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}});
  // an indexed job of Kubernetes; a container has neither a home nor a folder for the user's run time
  expect_group({{"WORLD_SIZE", "2"},
                {"MASTER_ADDR", "localhost"},
                {"MASTER_PORT", number},
                {"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                {"HOME", ""},
                {"XDG_RUNTIME_DIR", ""}},
               {{{"JOB_COMPLETION_INDEX", "0"}}, {{"JOB_COMPLETION_INDEX", "1"}}});
}

TEST(ProgramsLaunch, workers_meet_beyond_loopback_where_a_flag_allows_it) {
  const std::string address = outer_address();
  if (address.empty()) GTEST_SKIP() << "this machine has no address beyond loopback";
  const Port port;
  for (const int rank : {0, 1})
    expect_failure(run("my_add", port.worker(rank, 2, address)), "my_add",
                   "meets at " + address + ", which is not loopback: give --tls-ca");
  Process second("my_add --insecure", port.worker(1, 2, address));
  const Output first = run("my_add --insecure", port.worker(0, 2, address)), other = second.finish();
  EXPECT_EQ(first.code, 0) << first.text;
  EXPECT_EQ(first.last(), kMyAdd);
  EXPECT_EQ(other.code, 0) << other.text;
}

TEST(ProgramsLaunch, workers_that_are_given_certificates_meet_encrypted) {
  const weft::test::Certificates files("programs", {"worker0", "worker1"});
  if (!files.made()) GTEST_SKIP() << "no headers of OpenSSL";
  const std::string command = "my_add --tls-ca " + files.ca() + " --tls-cert " + files.certificate() +
                              " --tls-key " + files.key_file();
  const Port port;
  Process second(command, port.worker(1, 2));
  const Output first = run(command, port.worker(0, 2)), other = second.finish(), spawned = run(command);
  for (const Output& out : {first, spawned}) {
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_EQ(out.last(), kMyAdd);
  }
  EXPECT_EQ(other.code, 0) << other.text;
}

TEST(ProgramsLaunch, weft_certs_makes_what_a_group_beyond_the_host_needs_and_renews_it) {
  if (access((std::string(WEFT_PROGRAM_DIR) + "/weft-certs").c_str(), X_OK) != 0)
    GTEST_SKIP() << "weft-certs was not built";
  const std::string address = outer_address();
  if (address.empty()) GTEST_SKIP() << "this machine has no address beyond loopback";
  const Folder folder("certs");
  const std::string dir = folder.path() + "/certs",
                    make = "weft-certs --dir " + dir + " --workers worker0,worker1 --hosts " + address;
  const Output made = run(make);
  EXPECT_EQ(made.code, 0) << made.text;
  EXPECT_EQ(made.last(), "weft-certs: 2 certificates in " + dir);
  for (const char* file : {"ca.pem", "ca.key", "worker0.pem", "worker0.key", "worker1.pem", "worker1.key"}) {
    struct stat info {};
    ASSERT_EQ(stat((dir + "/" + file).c_str(), &info), 0) << file;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << file;
  }
  const auto command = [&](const std::string& worker) {
    return "my_add --tls-ca " + dir + "/ca.pem --tls-cert " + dir + "/" + worker + ".pem --tls-key " + dir +
           "/" + worker + ".key";
  };
  for (const bool renewed : {false, true}) {
    if (renewed) {  // by the same authority
      EXPECT_EQ(run(make).code, 0);
    }
    const Port port;
    Process second(command("worker1"), port.worker(1, 2, address));
    const Output first = run(command("worker0"), port.worker(0, 2, address)), other = second.finish();
    EXPECT_EQ(first.code, 0) << first.text;
    EXPECT_EQ(first.last(), kMyAdd);
    EXPECT_EQ(other.code, 0) << other.text;
  }
  for (const char* bad : {"--workers a/b", "--workers a --hosts b;c", "--workers ca", "--workers a --days 0"})
    EXPECT_NE(run("weft-certs --dir " + dir + " " + bad).code, 0) << bad;
}

TEST(ProgramsLaunch, one_flag_encrypts_a_group_that_the_program_starts) {
  if (access((std::string(WEFT_PROGRAM_DIR) + "/weft-certs").c_str(), X_OK) != 0)
    GTEST_SKIP() << "weft-certs was not built";
  const Folder folder("spawn_tls");
  chmod(folder.path().c_str(), 0700);
  const Output out = run("my_add --tls", {{"XDG_RUNTIME_DIR", folder.path()}});
  EXPECT_EQ(out.code, 0) << out.text;
  EXPECT_EQ(out.last(), kMyAdd);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().filename(), "weft") << "certificates were left behind";
  const Port port;
  expect_failure(run("my_add --tls", port.worker(0, 2)), "my_add", "workers that this program starts");
}

TEST(ProgramsLaunch, flags_of_tls_come_together_and_files_that_are_missing_are_named) {
  for (const char* bad : {"--tls-ca a", "--tls-ca a --tls-cert b", "--tls-key c", "--tls-server-name d",
                          "--insecure --tls-ca a --tls-cert b --tls-key c", "--tls --insecure"})
    for (const std::string program : {"my_add ", "cartpole ", "parameter_server ", "custom_optimizer ",
                                      "pipeline ", "data_parallel ", "hybrid ", "rnn "})
      EXPECT_EQ(run(program + bad).code, 2) << program << bad;
  const Output out = run("my_add --tls-ca no/such/ca --tls-cert no/such/cert --tls-key no/such/key");
  expect_failure(out, "my_add", "cannot read no/such/ca");
  EXPECT_FALSE(out.has("pids:")) << out.text;
  EXPECT_TRUE(run("rnn --help").has("--insecure "));
}

TEST(ProgramsLaunch, a_child_that_dies_at_once_ends_the_start_and_is_named) {
  Process cartpole("cartpole --max-episodes 100000000 --lr 0");
  ASSERT_TRUE(cartpole.says("\n"));
  std::istringstream pids(cartpole.text().substr(std::string("pids: ").size()));
  pid_t agent = 0, observer = 0;
  pids >> agent >> observer;
  ASSERT_GT(observer, 0) << cartpole.text();
  kill(observer, SIGKILL);
  const Output out = cartpole.finish();
  expect_failure(out, "cartpole", "rank 1 (pid " + std::to_string(observer) + ") was killed by signal 9");
  EXPECT_FALSE(out.has("missing: rank")) << out.text;
}

TEST(ProgramsOutput, a_path_that_cannot_be_written_is_named_before_any_work) {
  const Corpus corpus;
  const Folder folder("paths");
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::vector<std::string> outputs = {"my_add --json ",
                                            "my_add --transport sim --json ",
                                            "custom_optimizer --json ",
                                            "custom_optimizer --mode distributed --json ",
                                            "parameter_server --json ",
                                            "cartpole --json ",
                                            "pipeline --json ",
                                            "data_parallel --json ",
                                            "hybrid --json ",
                                            "cartpole --plot ",
                                            "elastic --json ",
                                            "rnn --tutorial --json ",
                                            "rnn --tutorial --mode local --json "};
  const std::vector<std::string> saves = {"rnn --tutorial --save ", "rnn --tutorial --mode local --save "};
  const auto refuse = [](const std::vector<std::string>& commands, const std::string& bad) {
    for (const std::string& command : commands) {
      const Output out = run(command + bad);
      expect_failure(out, program_of(command), "cannot write " + bad);
      EXPECT_EQ(std::count(out.text.begin(), out.text.end(), '\n'), 1) << out.text;
    }
  };
  for (const std::string& bad : {folder.file("none/file"), folder.path()})
    refuse(outputs, bad), refuse(saves, bad);
  for (const std::string& bad : {pipe, std::string("/dev/null"), std::string("/dev/stdout")})
    refuse(saves, bad);
}

TEST(ProgramsOutput, figures_go_into_pipes_and_open_files) {
  const Folder folder("streams");
  const std::string pipe = folder.file("pipe"), file = folder.file("text"),
                    script = folder.file("redirected.sh");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string command :
       {"my_add --transport sim --json ", "my_add --json ", "cartpole --max-episodes 1 --plot "}) {
    const std::string start = command.find("json") != std::string::npos ? "{" : "<svg";
    Process reader("/bin/cat " + pipe);
    EXPECT_EQ(run(command + pipe).code, 0) << command;
    EXPECT_EQ(reader.finish().text.substr(0, start.size()), start) << command;
    const Output out = run(command + "/dev/stdout");
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_NE(out.text.find("\n" + start), std::string::npos) << out.text;
    EXPECT_EQ(run(command + "/dev/null").code, 0) << command;
  }
  write(script, "echo before > $1\n" + std::string(WEFT_PROGRAM_DIR) +
                    "/my_add --transport sim --json /dev/stdout >> $1\necho behind >> $1\n");
  ASSERT_EQ(run("/bin/sh " + script + " " + file).code, 0);
  const Output text{0, contents(file)};
  EXPECT_EQ(text.text.substr(0, 7), "before\n");
  EXPECT_FALSE(text.lines("my_add: ").empty()) << text.text;
  EXPECT_FALSE(text.lines("{").empty()) << text.text;
  EXPECT_EQ(text.last(), "behind");
}

TEST(ProgramsOutput, looking_at_a_path_leaves_no_file_and_changes_none) {
  const Folder folder("kept");
  const std::string there = folder.file("there"), fresh = folder.file("fresh");
  write(there, "text");
  expect_failure(run("rnn --mode local --data no/such/folder --json " + there + " --save " + fresh), "rnn",
                 "no/such/folder");
  EXPECT_EQ(contents(there), "text");
  EXPECT_FALSE(std::filesystem::exists(fresh));
}

TEST(ProgramsOutput, figures_that_find_a_full_disk_cost_no_last_line_and_leave_the_old_file) {
  const Folder folder("full");
  const std::string script = folder.file("no_room.sh"), file = folder.file("figures");
  write(script, "trap '' XFSZ\nulimit -f 0\nexec \"$@\"\n");  // no byte fits into any file
  for (const std::string command :
       {"my_add --transport sim --json ", "custom_optimizer --json ",
        "parameter_server --trainers 1 --steps 10 --json ", "cartpole --max-episodes 1 --json ",
        "cartpole --max-episodes 1 --plot ", "rnn --tutorial --mode local --epochs 1 --json "}) {
    const std::string program = program_of(command);
    for (const bool replaces : {false, true}) {
      if (replaces) write(file, "old");
      const Output out = run("/bin/sh " + script + " " + WEFT_PROGRAM_DIR + "/" + command + file);
      EXPECT_EQ(out.code, 1) << out.text;
      EXPECT_TRUE(out.has(program + ": cannot write " + file)) << out.text;
      EXPECT_NE(out.lines(program + ": ").find("="), std::string::npos) << out.text;
      EXPECT_EQ(contents(file), replaces ? "old" : "");
      EXPECT_EQ(std::filesystem::remove(file), replaces) << command;
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()),
                            std::filesystem::directory_iterator{}),
              1)
        << command;
  }
}

TEST(ProgramsOutput, a_file_behind_a_link_is_replaced_there_with_its_mode) {
  const Folder folder("linked");
  const std::string file = folder.file("figures"), link = folder.file("link");
  write(file, "old");
  chmod(file.c_str(), 0600);
  std::filesystem::create_symlink("figures", link);
  ASSERT_EQ(run("my_add --transport sim --json " + link).code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(contents(file).compare(0, 1, "{"), 0) << contents(file);
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(ProgramsOutput, my_add_shows_roots_dependencies_and_order_of_every_worker) {
  const std::string lines =
      "worker0: roots loss send0; dependencies sum=0 DistSend=0 mul=1 AccumulateGrad=1 AccumulateGrad=1 "
      "DistRecv=1 AccumulateGrad=1; "
      "order sum > DistSend > mul > AccumulateGrad > AccumulateGrad > DistRecv > AccumulateGrad\n"
      "worker1: roots send0; dependencies DistSend=0 add=1 DistRecv=2; order DistSend > add > DistRecv\n";
  for (const char* transport : {"sim", "grpc"}) {
    const Output out = run(std::string("my_add --transport ") + transport);
    EXPECT_EQ(out.lines("worker"), lines) << out.text;
    const Output smart = run(std::string("my_add --backward smart --transport ") + transport);
    EXPECT_FALSE(smart.lines("smart: a result of worker1 ").empty()) << smart.text;
    EXPECT_EQ(smart.last(), kMyAdd) << smart.text;
  }
  const Output three = run("my_add --transport sim --world-size 3");
  EXPECT_EQ(three.lines("worker"), lines + "worker2: roots; dependencies; order\n") << three.text;
}

TEST(ProgramsOutput, cartpole_draws_both_curves_with_a_point_for_each_episode) {
  const Folder folder("plot");
  const std::string file = folder.file("curve.svg");
  const Output out = run("cartpole --max-episodes 4 --plot " + file);
  EXPECT_EQ(out.code, 0) << out.text;
  const std::string picture = contents(file);
  EXPECT_EQ(picture.compare(0, 5, "<svg "), 0) << picture;
  EXPECT_EQ(picture.substr(picture.size() - 7), "</svg>\n") << picture;
  int curves = 0;
  for (size_t at = picture.find("<polyline"); at != std::string::npos;
       at = picture.find("<polyline", at + 1)) {
    const size_t from = picture.find("points='", at), to = picture.find('\'', from + 8);
    EXPECT_EQ(std::count(picture.begin() + static_cast<std::ptrdiff_t>(from),
                         picture.begin() + static_cast<std::ptrdiff_t>(to), ','),
              4)
        << picture;
    ++curves;
  }
  EXPECT_EQ(curves, 2) << picture;
}

}  // namespace
