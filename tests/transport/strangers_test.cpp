// A live port that strangers hold on to. A process of its own keeps many connections open: silent ones, ones
// with HTTP/2 and no stream, and ones whose hello is refused. Members stay, come back, and memory is flat.
// WEFT_TEST_STRANGERS sets the number of connections; its default suits a shared machine.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>

#include "mailbox.h"
#include "support/child_environment.h"
#include "support/process.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

int stranger_count() {
  const char* const text = std::getenv("WEFT_TEST_STRANGERS");
  return text != nullptr ? std::atoi(text) : 200;
}

int open_stranger(const HostPort& at) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(at.port);
  inet_pton(AF_INET, at.host.c_str(), &to.sin_addr);
  if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

/// Keeps connections open, every second one with the begin of HTTP/2, and opens a new one for each that is
/// closed. A quarter as many have a hello without the cookie, and try again when it is refused. It says when
/// all are there, and goes on until it is killed.
int hold_connections() {
  const std::string address = std::getenv("WEFT_TEST_ADDRESS");
  const HostPort at = parse_host_port(address);
  const std::string preface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  const auto runtime = make_threaded_runtime();
  Mailbox box(*runtime);
  const auto refused =
      make_grpc_transport(runtime,
                          {.id = WorkerId{7},
                           .unix_socket = false,
                           .insecure = true,
                           .connect_timeout = 1h,
                           .first_frame = inner::encode_hello(
                               inner::RecordType::kHello,
                               {.id = WorkerId{7}, .incarnation = Incarnation{7}, .target = WorkerId{1}})},
                          box);
  const int count = stranger_count();
  for (int k = 0; k < count / 4; ++k) {
    refused->add_peer(WorkerId{1000 + k}, {.addresses = {address}});
    refused->send(WorkerId{1000 + k}, 1, "x");
  }
  std::vector<pollfd> open(static_cast<size_t>(count), pollfd{-1, POLLIN | POLLRDHUP, 0});
  for (bool said = false;;) {
    for (size_t i = 0; i < open.size(); ++i) {
      char bytes[256];
      if (open[i].fd >= 0 && open[i].revents != 0 &&
          recv(open[i].fd, bytes, sizeof bytes, MSG_DONTWAIT) <= 0) {
        close(open[i].fd);
        open[i].fd = -1;
      }
      if (open[i].fd >= 0) continue;
      open[i].fd = open_stranger(at);
      if (open[i].fd >= 0 && i % 2 == 1) send(open[i].fd, preface.data(), preface.size(), MSG_NOSIGNAL);
    }
    if (!std::exchange(said, true)) std::ofstream(std::getenv("WEFT_TEST_FILE")) << "all";
    poll(open.data(), open.size(), 100);
  }
}

/// A worker that begins with few files, and waits for the word of a member. `for_good`: it can have no more.
int serve_with_few_files(bool for_good) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = 64;
  if (for_good) files.rlim_max = files.rlim_cur;
  if (setrlimit(RLIMIT_NOFILE, &files) != 0) return 2;
  const auto runtime = make_threaded_runtime();
  Mailbox box(*runtime);
  const auto b = make_grpc_transport(runtime, {.id = WorkerId{1}, .unix_socket = false}, box);
  b->add_peer(WorkerId{0}, {.addresses = {"127.0.0.1:9"}});
  const std::string path = std::getenv("WEFT_TEST_FILE");
  std::ofstream(path + ".new") << b->addresses().addresses.at(0);
  std::rename((path + ".new").c_str(), path.c_str());
  const bool heard = box.wait_for(1);
  b->close();
  return heard ? 0 : 3;
}

int strangers_child(const std::string& job, int) {
  return job == "hold" ? hold_connections() : serve_with_few_files(job == "fewest");
}

constexpr const char* kHolder = "Strangers.a_process_started_by_these_tests_does_its_job";
TEST(Strangers, a_process_started_by_these_tests_does_its_job) { test::do_job(strangers_child); }

int64_t resident_kib() {
  std::ifstream in("/proc/self/statm");
  int64_t whole = 0, resident = 0;
  in >> whole >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

TEST(Strangers, that_hold_connections_stop_no_member_from_talking_and_coming_back) {
  const int count = stranger_count();
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < static_cast<rlim_t>(2 * count + 200)) GTEST_SKIP() << "too few file descriptors";
  auto rt = make_threaded_runtime();
  Mailbox box_a(*rt), box_b(*rt);
  auto b = make_grpc_transport(rt, {.id = WorkerId{1}, .unix_socket = false}, box_b);
  auto a = make_grpc_transport(rt, {.id = WorkerId{0}, .unix_socket = false}, box_a);
  b->add_peer(WorkerId{0}, a->addresses());
  a->add_peer(WorkerId{1}, b->addresses());
  size_t sent = 0;
  const auto talks = [&] {
    a->send(WorkerId{1}, 1, "from the member");
    return box_b.wait_for(++sent);
  };
  ASSERT_TRUE(talks());
  const std::string path = ::testing::TempDir() + str("weft_strangers_", getpid());
  Children holder = spawn(
      {.world_size = 1,
       .arguments = {str("--gtest_filter=", kHolder), "--gtest_brief=1"},
       .own_arguments = false,
       .environment = test::child_environment({{"WEFT_TEST_JOB", "hold"},
                                               {"WEFT_TEST_FILE", path},
                                               {"XDG_RUNTIME_DIR", "/nowhere"},
                                               {"WEFT_TEST_ADDRESS", b->addresses().addresses.at(0)}})});
  for (int i = 0; i < 6000 && access(path.c_str(), F_OK) != 0; ++i) rt->sleep_for(10ms);
  ASSERT_EQ(access(path.c_str(), F_OK), 0) << "the strangers did not come";
  unlink(path.c_str());
  ASSERT_TRUE(talks());
  [[maybe_unused]] const int64_t before = resident_kib();
  for (int round = 0; round < 100; ++round) {
    ASSERT_TRUE(talks());
    rt->sleep_for(5ms);
  }
  EXPECT_EQ(box_b.states(WorkerId{0}), "up");
  for (int round = 0; round < 5; ++round) {  // the member's connection ends, and it makes another
    const uint64_t connects = a->counters(WorkerId{1}).connects;
    a->remove_peer(WorkerId{1});
    a->add_peer(WorkerId{1}, b->addresses());
    while (a->counters(WorkerId{1}).connected) rt->sleep_for(1ms);
    ASSERT_TRUE(talks()) << round;
    EXPECT_GT(a->counters(WorkerId{1}).connects, connects);
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep freed memory
  EXPECT_LT(resident_kib() - before, 64 * 1024) << "for " << count << " connections";
#endif
  holder.terminate(*rt, 0s);
  ASSERT_TRUE(talks());
  a->close();
  b->close();
}

/// A member reaches a worker that began with few files, while strangers hold 200 connections to it.
void expect_heard(const std::string& job) {
  auto rt = make_threaded_runtime();
  const std::string path = ::testing::TempDir() + str("weft_few_files_", getpid());
  Children worker =
      spawn({.world_size = 1,
             .arguments = {str("--gtest_filter=", kHolder), "--gtest_brief=1"},
             .own_arguments = false,
             .environment = test::child_environment({{"WEFT_TEST_JOB", job}, {"WEFT_TEST_FILE", path}})});
  for (int i = 0; i < 6000 && access(path.c_str(), F_OK) != 0; ++i) rt->sleep_for(10ms);
  std::string address;
  std::ifstream(path) >> address;
  unlink(path.c_str());
  ASSERT_NE(address, "");
  std::vector<int> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(open_stranger(parse_host_port(address)));
  Mailbox box(*rt);
  const auto a = make_grpc_transport(rt, {.id = WorkerId{0}, .unix_socket = false}, box);
  a->add_peer(WorkerId{1}, {.addresses = {address}});
  a->send(WorkerId{1}, 1, "from the member");
  test::expect_ended(std::move(worker));
  for (const int fd : strangers) close(fd);
  a->close();
}

TEST(Strangers, that_take_more_connections_than_a_worker_had_files_close_its_port_to_nobody) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_max < 1024 || files.rlim_cur < 512) GTEST_SKIP() << "too few file descriptors";
  expect_heard("few");
}

TEST(Strangers, that_take_more_connections_than_a_worker_can_have_files_close_its_port_to_nobody) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 512) GTEST_SKIP() << "too few file descriptors";
  expect_heard("fewest");
}

}  // namespace
}  // namespace weft::rpc
