// A store between real processes: killed and served again with its log, at a port and at a path. Also the
// program weft-store, and refused addresses.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <weft/distributed/launch/store_service.h>

#include "programs/program.h"
#include "store_world.h"
#include "support/hang.h"
#include "support/process.h"

namespace weft::rpc {
namespace {

/// Serves a store until it is killed; `job` is "serve <address> <log>".
int serve_until_killed(const std::string& job, int) {
  std::istringstream words(job);
  std::string verb, address, log;
  words >> verb >> address >> log;
  const ServedStore served = serve_store(address, {.log = log, .log_growth = 1000});
  served.store->get("end", in(100s));
  return 0;
}
TEST(StoreProcess, a_process_started_by_these_tests_does_its_job) { test::do_job(serve_until_killed); }

/// A process that serves a store and can be killed.
struct Host {
  virtual ~Host() = default;
  virtual void kill() = 0;
  virtual void expect_good_end() = 0;
};
/// This test program as a host.
struct ChildHost final : Host {
  ChildHost(const std::string& address, const std::string& log)
      : child(test::start_job("StoreProcess.a_process_started_by_these_tests_does_its_job",
                              str("serve ", address, " ", log), 1)) {}
  void kill() override {
    ::kill(child.poll()[0].pid, SIGKILL);
    test::expect_ended(std::move(child), {0});
  }
  void expect_good_end() override { test::expect_ended(std::move(child)); }
  Children child;
};
/// The program weft-store.
struct ProgramHost final : Host {
  ProgramHost(const std::string& address, const std::string& dir)
      : process("weft-store --listen " + address + " --dir " + dir) {
    EXPECT_TRUE(process.says("weft-store: serving at " + address + ", log " + dir + "/store.log\n"))
        << process.text();
  }
  void kill() override {
    process.end();
    EXPECT_EQ(process.finish().code, 128);
  }
  void expect_good_end() override {
    process.terminate();
    const auto out = process.finish();
    EXPECT_EQ(out.code, 0) << out.text;
    EXPECT_EQ(out.last().find("weft-store: ended by SIGTERM after "), 0u) << out.text;
  }
  programs::Process process;
};

/// Clients count and wait for each other while the store is killed and served again.
template <class H> void check_restarts(const std::string& address, const std::string& log) {
  const test::HangReport report([] { return "a client of the killed store got no answer\n"; });
  auto host = std::make_unique<H>(address, log);
  constexpr int kClients = 3, kRounds = 40;
  std::atomic<int> won{0}, over{0};
  std::vector<std::jthread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      try {
        const auto store = connect_store(address);
        for (int i = 0; i < kRounds; ++i) {
          store->add("sum", 1, in(100s));
          if (store->compare_and_set(str("turn/", i), std::nullopt, std::to_string(c), in(100s))) ++won;
          store->set(str("round/", i, "/", c), "", in(100s));
          std::vector<std::string> keys;
          for (int k = 0; k < kClients; ++k) keys.push_back(str("round/", i, "/", k));
          store->wait(keys, "", in(100s));
        }
      } catch (const std::exception& e) {
        ADD_FAILURE() << "client " << c << ": " << e.what();
      }
      ++over;
    });
  }
  const auto observer = connect_store(address);
  for (int kills = 1; kills <= 5 && over < kClients; ++kills) {  // each after some more rounds
    observer->wait({str("round/", kills * 6, "/0")}, "", in(100s));
    host->kill();
    host = std::make_unique<H>(address, log);
  }
  clients.clear();
  EXPECT_EQ(observer->peek({"sum"}, in(100s)).at(0), std::to_string(kClients * kRounds));
  EXPECT_EQ(won, kRounds);
  observer->set("end", "", in(100s));
  host->expect_good_end();
}

bool has_program() { return std::filesystem::exists(std::string(WEFT_PROGRAM_DIR) + "/weft-store"); }

struct PrivateFolder {
  PrivateFolder() {
    std::string name = testing::TempDir() + "store_XXXXXX";
    path = mkdtemp(name.data());
  }
  ~PrivateFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

TEST(StoreProcess, clients_go_on_when_the_store_is_killed_and_served_again_at_its_port) {
  const PrivateFolder folder;
  const ReservedPort port;
  check_restarts<ChildHost>(str("127.0.0.1:", port.port()), folder.path + "/log");
}

TEST(StoreProcess, clients_go_on_when_the_store_is_killed_and_served_again_at_its_path) {
  const PrivateFolder folder;
  check_restarts<ChildHost>("unix:" + folder.path + "/store", folder.path + "/log");
}

TEST(StoreProgram, clients_go_on_when_weft_store_is_killed_and_started_again) {
  if (!has_program()) GTEST_SKIP() << "weft-store is not built: " << WEFT_PROGRAM_DIR;
  const PrivateFolder folder;
  const ReservedPort port;
  check_restarts<ProgramHost>(str("127.0.0.1:", port.port()), folder.path + "/log");
}

TEST(StoreProgram, weft_store_names_what_is_wrong) {
  if (!has_program()) GTEST_SKIP() << "weft-store is not built: " << WEFT_PROGRAM_DIR;
  const PrivateFolder folder;
  const std::string dir = folder.path + "/kept", log = dir + "/store.log";
  const auto fails = [](const std::string& flags, int code, const std::string& part) {
    const auto out = programs::run("weft-store " + flags);
    EXPECT_EQ(out.code, code) << out.text;
    EXPECT_EQ(out.text.find("weft-store: "), 0u) << out.text;
    EXPECT_NE(out.text.find(part), std::string::npos) << out.text;
  };
  fails("--tls-ca x", 2, "TLS needs all of");
  fails("--listen nowhere", 1, "nowhere");
  fails("--listen 192.0.2.1:4711", 1, "credentials");
  ASSERT_EQ(mkdir(dir.c_str(), 0700), 0);
  std::ofstream(log) << "a file of the user's own";
  fails("--listen 127.0.0.1:0 --dir " + dir, 1, "store log " + log + ": no log of a store");
  programs::Process first("weft-store --listen 127.0.0.1:0 --dir " + dir + "2");
  EXPECT_TRUE(first.says("serving at 127.0.0.1:"));
  fails("--listen 127.0.0.1:0 --dir " + dir + "2", 1, "another store uses it");
  first.interrupt();
  EXPECT_EQ(first.finish().code, 0);
}

TEST(StoreService, a_client_may_come_before_its_store) {
  const ReservedPort port;
  const std::string address = str("127.0.0.1:", port.port());
  const auto client = connect_store(address);
  EXPECT_THROW(client->set("k", "v", in(100ms)), Timeout);
  const ServedStore served = serve_store(address);
  EXPECT_EQ(served.address, address);
  client->set("k", "v", in(60s));
  EXPECT_EQ(served.store->get("k", in(60s)), "v");
}

TEST(StoreService, bad_addresses_are_named) {
  const PrivateFolder folder;
  const auto error = [](const std::string& address) {
    try {
      serve_store(address);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THROW(connect_store("nowhere"), ValueError);
  EXPECT_THROW(serve_store("unix:relative"), ValueError);
  EXPECT_THROW(serve_store("unix:/" + std::string(120, 'x')), ValueError);
  EXPECT_THROW(connect_store("192.0.2.1:4711"), RpcError) << "no credentials";
  EXPECT_THROW(connect_store("no..host:4711", {.insecure = true}), RpcError);
  const ServedStore first = serve_store("127.0.0.1:0");
  EXPECT_NE(error(first.address).find("the port is in use"), std::string::npos) << error(first.address);
  EXPECT_NE(error("unix:" + folder.path + "/missing/store").find("No such file"), std::string::npos);
  ASSERT_EQ(chmod(folder.path.c_str(), 0777), 0);
  EXPECT_NE(error("unix:" + folder.path + "/store").find("no other user may write in it"), std::string::npos);
  EXPECT_THROW(connect_store("unix:" + folder.path + "/store"), RpcError);
  ASSERT_EQ(chmod(folder.path.c_str(), 0700), 0);
  EXPECT_EQ(mkdir((folder.path + "/taken").c_str(), 0700), 0);
  EXPECT_NE(error("unix:" + folder.path + "/taken").find("the path is taken"), std::string::npos);
}

}  // namespace
}  // namespace weft::rpc
