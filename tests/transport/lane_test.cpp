// The same-host lane: when it is taken, peers that die, strangers and malformed bytes at its socket, full
// sockets. grpc_test.cpp runs the common tests of the transport over it.
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <vector>

#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>

#include "mailbox.h"
#include "raw_lane.h"
#include "raw_peer.h"
#include "support/child_environment.h"
#include "support/process.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

struct LaneEnd {
  LaneEnd(const std::shared_ptr<Runtime>& rt, GrpcOptions options) : box(*rt) {
    options.same_host_lane = true;
    t = make_grpc_transport(rt, std::move(options), box);
  }
  ~LaneEnd() { t->close(); }
  Mailbox box;
  std::shared_ptr<Transport> t;
};

/// Addresses that only the lane makes usable: nobody is at the others.
PeerAddress lane_only(const Transport& t) {
  PeerAddress address = t.addresses();
  address.addresses = {"127.0.0.1:9", "unix:" + lane_path_of(t)};
  return address;
}

/// Workers 0 and 1, which know each other, and the socket of worker 1.
struct LanePair {
  explicit LanePair(GrpcOptions of_b = {}) : a(rt, {.id = WorkerId{0}}), b(rt, with_id(std::move(of_b))) {
    a.t->add_peer(WorkerId{1}, lane_only(*b.t));
    b.t->add_peer(WorkerId{0}, lane_only(*a.t));
    path = lane_path_of(*b.t);
  }
  static GrpcOptions with_id(GrpcOptions options) {
    options.id = WorkerId{1};
    return options;
  }
  bool talks() {
    a.t->send(WorkerId{1}, 1, "from the member");
    return b.box.wait_for(++sent);
  }
  /// Worker 2 becomes a member, whose bytes the test writes.
  inner::Hello member() {
    b.t->add_peer(WorkerId{2}, {.addresses = {"127.0.0.1:9"}, .incarnation = Incarnation{7}});
    return {.id = WorkerId{2}, .incarnation = Incarnation{7}, .target = WorkerId{1}};
  }
  template <class Holds> bool until(Holds holds) {
    for (int i = 0; i < 60'000 && !holds(b.t->unproven()); ++i) rt->sleep_for(1ms);
    return holds(b.t->unproven());
  }
  std::shared_ptr<Runtime> rt = make_threaded_runtime();
  LaneEnd a, b;
  std::string path;
  size_t sent = 0;
};

TEST(Lane, is_taken_where_both_ends_have_it_and_not_where_one_has_not) {
  LanePair p;
  EXPECT_TRUE(p.talks());
  EXPECT_EQ(p.a.t->counters(WorkerId{1}).connects, 1u);
  auto rt = make_threaded_runtime();
  Mailbox box(*rt);
  const auto without = make_grpc_transport(rt, {.id = WorkerId{2}, .same_host_lane = false}, box);
  EXPECT_EQ(lane_path_of(*without), "");
  p.b.t->add_peer(WorkerId{2}, without->addresses());
  PeerAddress lane_first = p.b.t->addresses();
  std::swap(lane_first.addresses.at(0), lane_first.addresses.at(1));
  without->add_peer(WorkerId{1}, lane_first);
  without->send(WorkerId{1}, 1, "over gRPC");
  EXPECT_TRUE(p.b.box.wait_for(++p.sent));
  p.b.t->send(WorkerId{2}, 1, "back");
  EXPECT_TRUE(box.wait_for(1));
  without->close();
  const auto tcp =
      make_grpc_transport(rt, {.id = WorkerId{3}, .unix_socket = false, .same_host_lane = true}, box);
  EXPECT_EQ(lane_path_of(*tcp), "");
  tcp->close();
}

TEST(Lane, has_a_socket_that_goes_with_its_worker_and_of_a_peer_that_has_gone_is_not_taken) {
  std::string path;
  {
    LanePair p;
    path = p.path;
    EXPECT_TRUE(std::filesystem::is_socket(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  auto rt = make_threaded_runtime();
  LaneEnd a(rt, {.id = WorkerId{0}}), b(rt, {.id = WorkerId{1}});
  PeerAddress address = b.t->addresses();
  address.addresses.insert(address.addresses.begin(), "unix:" + path);
  a.t->add_peer(WorkerId{1}, address);
  b.t->add_peer(WorkerId{0}, a.t->addresses());
  a.t->send(WorkerId{1}, 1, "x");
  EXPECT_TRUE(b.box.wait_for(1));
}

TEST(Lane, nobody_at_a_socket_is_unreachable_within_the_timeout) {
  auto rt = make_threaded_runtime();
  LaneEnd a(rt, {.id = WorkerId{0}, .connect_timeout = 200ms}), b(rt, {.id = WorkerId{1}});
  const std::string path = b.t->addresses().addresses.at(0).substr(5) + "x.lane";
  close(RawLane::listen_at(path));  // a socket without its process
  a.t->add_peer(WorkerId{1}, {.addresses = {"unix:" + path}});
  a.t->send(WorkerId{1}, 1, "x");
  ASSERT_TRUE(a.box.wait_for_state(WorkerId{1}, "unreachable"));
  EXPECT_NE(a.box.reason(WorkerId{1}).find("Connection refused"), std::string::npos)
      << a.box.reason(WorkerId{1});
  unlink(path.c_str());
}

/// A worker in a process of its own. It answers until it is killed.
int answering_child(const std::string&, int) {
  const auto rt = make_threaded_runtime();
  LaneEnd end(rt, {.id = WorkerId{1}, .admit_strangers = true});
  end.box.reply_with(*end.t);
  const std::string path = std::getenv("WEFT_TEST_FILE");
  std::ofstream(path + ".new") << lane_path_of(*end.t);
  std::rename((path + ".new").c_str(), path.c_str());
  end.box.wait_for(1'000'000, 10min);
  return 0;
}
TEST(Lane, a_process_started_by_these_tests_does_its_job) { test::do_job(answering_child); }

TEST(Lane, a_killed_peer_is_broken_although_nothing_is_sent) {
  auto rt = make_threaded_runtime();
  const std::string file = ::testing::TempDir() + str("weft_lane_", getpid());
  Children child = spawn(
      {.world_size = 1,
       .arguments = {"--gtest_filter=Lane.a_process_started_by_these_tests_does_its_job", "--gtest_brief=1"},
       .own_arguments = false,
       .environment = test::child_environment({{"WEFT_TEST_JOB", "answer"}, {"WEFT_TEST_FILE", file}})});
  for (int i = 0; i < 6000 && access(file.c_str(), F_OK) != 0; ++i) rt->sleep_for(10ms);
  std::string path;
  std::ifstream(file) >> path;
  unlink(file.c_str());
  ASSERT_NE(path, "");
  LaneEnd a(rt, {.id = WorkerId{0}, .reconnect_timeout = 300ms});
  a.t->add_peer(WorkerId{1}, {.addresses = {"unix:" + path}});
  a.t->send(WorkerId{1}, 1, "x");
  ASSERT_TRUE(a.box.wait_for(1));
  child.terminate(*rt, 0s);  // SIGKILL
  EXPECT_TRUE(a.box.wait_for_state(WorkerId{1}, "up broken"));
  a.t->send(WorkerId{1}, 1, "x");
  EXPECT_TRUE(a.box.wait_for_state(WorkerId{1}, "up broken unreachable"));
  unlink(path.c_str());
}

TEST(Lane, a_stranger_that_says_nothing_or_half_a_hello_is_closed_in_time) {
  LanePair p({.handshake_timeout = 300ms});
  ASSERT_TRUE(p.talks());
  RawLane silent(p.path), half(p.path, lane_hello(p.member()).substr(0, 30)), begin(p.path, "\x10");
  for (RawLane* one : {&silent, &half, &begin}) {
    ASSERT_TRUE(one->is_open());
    EXPECT_TRUE(one->read_to_end());
  }
  EXPECT_TRUE(p.until([](const UnprovenCounters& c) { return c.open == 0 && c.closed == 3; }));
  EXPECT_TRUE(p.talks());
  EXPECT_EQ(p.b.box.states(WorkerId{0}), "up");
}

TEST(Lane, connections_without_a_hello_are_bounded_and_end_no_member) {
  LanePair p({.handshake_timeout = 10min, .max_unproven = 8});
  ASSERT_TRUE(p.talks());
  std::vector<std::unique_ptr<RawLane>> strangers;
  for (int i = 0; i < 60; ++i) strangers.push_back(std::make_unique<RawLane>(p.path));
  EXPECT_TRUE(p.until([](const UnprovenCounters& c) { return c.open == 8 && c.closed == 52; }));
  EXPECT_TRUE(p.talks());
  p.a.t->remove_peer(WorkerId{1});
  p.a.t->add_peer(WorkerId{1}, lane_only(*p.b.t));
  while (p.a.t->counters(WorkerId{1}).connected) p.rt->sleep_for(1ms);
  EXPECT_TRUE(p.talks());
  strangers.clear();
  EXPECT_TRUE(p.until([](const UnprovenCounters& c) { return c.open == 0; }));
}

TEST(Lane, a_length_that_lies_ends_a_stranger_at_once) {
  LanePair p({.handshake_timeout = 10min});
  const std::string http2("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff", 4), std::string("\1\x60\0\0", 4), http2}) {
    RawLane stranger(p.path, bytes);
    EXPECT_TRUE(stranger.read_to_end());
  }
  EXPECT_TRUE(p.until([](const UnprovenCounters& c) { return c.open == 0; }));
  EXPECT_TRUE(p.talks());
}

TEST(Lane, a_hello_of_a_stranger_is_answered_with_the_reason_and_the_end) {
  LanePair p({.handshake_timeout = 10min});
  const inner::Hello stranger{.id = WorkerId{9}, .incarnation = Incarnation{7}, .target = WorkerId{1}};
  for (const auto& [bytes, words] : {std::pair{lane_hello(stranger), "does not count this life"},
                                     {lane_frame("garbage"), "wire: "},
                                     {lane_frame(""), "without a hello"},
                                     {lane_frame(std::string(20'000, 'x')), "wire: "}}) {
    RawLane one(p.path, bytes + lane_frame("not read"));
    const std::string answer = one.read_frame();
    EXPECT_NE(answer.find(words), std::string::npos) << answer;
    EXPECT_TRUE(one.read_to_end());
  }
  EXPECT_TRUE(p.talks());
  EXPECT_EQ(p.b.box.count, p.sent);
}

TEST(Lane, malformed_frames_of_a_member_end_its_connection_and_no_other) {
  LanePair p;
  ASSERT_TRUE(p.talks());
  const std::string message = begin_of_message(1, "head", {}, 1000);
  size_t heard = 0;
  std::string states;
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff", 4), lane_frame("\x09garbage"),
        lane_frame(message.substr(0, message.size() - 1)), lane_frame(std::string(3, '\4'))}) {
    RawLane member(p.path, lane_hello(p.member()));
    ASSERT_NE(member.read_frame(), "");
    ASSERT_TRUE(member.write(lane_frame(message) + bytes));
    EXPECT_TRUE(member.read_to_end());
    states += (states.empty() ? "" : " ") + std::string("up broken");
    EXPECT_TRUE(p.b.box.wait_for_state(WorkerId{2}, states)) << p.b.box.states(WorkerId{2});
    EXPECT_NE(p.b.box.reason(WorkerId{2}).find("wire: "), std::string::npos) << p.b.box.reason(WorkerId{2});
    p.sent = p.sent + 1;
    EXPECT_EQ(++heard, states.size() / 9);
    EXPECT_TRUE(p.talks());
  }
  EXPECT_EQ(p.b.box.states(WorkerId{0}), "up");
}

TEST(Lane, random_bytes_after_the_hello_end_at_most_their_connection) {
  LanePair p;
  std::mt19937 random(20);
  const std::vector<uint8_t> payload(70'000, 3);
  const std::string whole = lane_frame(begin_of_message(1, "head", payloads_of(payload), 100'000));
  for (int round = 0; round < 200; ++round) {
    std::string bytes = whole + whole.substr(0, random() % 300);
    for (size_t k = random() % 4; k > 0; --k) bytes[random() % 120] = static_cast<char>(random());
    RawLane member(p.path, lane_hello(p.member()));
    ASSERT_NE(member.read_frame(), "") << round;
    for (size_t at = 0; at < bytes.size() && member.is_open();) {
      const size_t n = std::min<size_t>(bytes.size() - at, 1 + random() % 50'000);
      member.write(bytes.substr(at, n));
      at += n;
    }
  }
  p.b.t->remove_peer(WorkerId{2});
  p.a.t->send(WorkerId{1}, 77, "the last one");
  const auto come = [&] {
    MutexLock lock(p.b.box.mutex);
    return std::any_of(p.b.box.messages.begin(), p.b.box.messages.end(),
                       [](const Inbound& m) { return m.kind == 77 && m.from == WorkerId{0}; });
  };
  for (int i = 0; i < 60'000 && !come(); ++i) p.rt->sleep_for(1ms);
  EXPECT_TRUE(come());
}

TEST(Lane, half_a_frame_is_waited_for_as_long_as_a_message_may_rest) {
  LanePair p({.progress_timeout = 300ms});
  ASSERT_TRUE(p.talks());
  const std::vector<uint8_t> large(900'000, 1);
  const std::string frame = lane_frame(begin_of_message(1, "half", payloads_of(large), 1'000'000));
  RawLane half(p.path, lane_hello(p.member()));
  ASSERT_NE(half.read_frame(), "");
  ASSERT_TRUE(half.write(frame.substr(0, 300'000)));
  EXPECT_TRUE(half.read_to_end());
  ASSERT_TRUE(p.b.box.wait_for_state(WorkerId{2}, "up broken"));
  EXPECT_NE(p.b.box.reason(WorkerId{2}).find("no byte of an incomplete message came"), std::string::npos)
      << p.b.box.reason(WorkerId{2});
  EXPECT_TRUE(p.talks());
}

TEST(Lane, files_that_the_other_end_passes_are_dropped) {
  LanePair p({.handshake_timeout = 10min});
  const auto files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  RawLane stranger(p.path);
  ASSERT_TRUE(p.until([](const UnprovenCounters& c) { return c.open == 1; }));
  const auto before = files();
  ASSERT_TRUE(stranger.write_with_files(std::string(1, 0), {stranger.fd()}));
  EXPECT_TRUE(stranger.write(std::string("\0\0\0", 3)));  // an empty hello
  EXPECT_NE(stranger.read_frame(), "");
  EXPECT_LE(files(), before);
}

TEST(Lane, another_users_process_is_closed_without_a_word_even_if_it_can_open_the_socket) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::string folder = std::filesystem::temp_directory_path() / "weft-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const char* const before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before != nullptr ? before : "";
  setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  {
    LanePair p({.handshake_timeout = 10min});
    ASSERT_EQ(p.path.find(folder), 0u) << p.path;
    for (const std::string& open : {folder, folder + "/weft", p.path}) chmod(open.c_str(), 0777);
    const pid_t child = fork();
    if (child == 0) {  // system calls only: the other threads of this process are not here
      if (setresuid(65534, 65534, 65534) != 0) _exit(250);
      const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      sockaddr_un to{};
      to.sun_family = AF_UNIX;
      std::memcpy(to.sun_path, p.path.c_str(), p.path.size());
      if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) _exit(251);
      char byte = 0;
      _exit(recv(fd, &byte, 1, 0) == 0 ? 0 : 252);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 255, 0);
    EXPECT_TRUE(p.talks());
    EXPECT_EQ(p.b.t->unproven().open, 0);
  }
  before != nullptr ? setenv("XDG_RUNTIME_DIR", kept.c_str(), 1) : unsetenv("XDG_RUNTIME_DIR");
  std::filesystem::remove_all(folder);
}

TEST(Lane, a_peer_that_reads_nothing_fills_the_queue_and_gets_all_of_it_later) {
  const std::vector<uint8_t> bytes(100'000, 5);  // the end of the queue may still be there at the end
  auto rt = make_threaded_runtime();
  LaneEnd a(rt, {.id = WorkerId{0}, .limits = {.max_queued_bytes = 2'000'000}}),
      other(rt, {.id = WorkerId{2}});
  a.t->add_peer(WorkerId{2}, lane_only(*other.t));
  other.t->add_peer(WorkerId{0}, lane_only(*a.t));
  const std::string path = lane_path_of(*a.t).substr(0, lane_path_of(*a.t).size() - 5) + "x.lane";
  const int listener = RawLane::listen_at(path);
  ASSERT_GE(listener, 0);
  a.t->add_peer(WorkerId{1}, {.addresses = {"unix:" + path}});
  size_t sent = 1;
  a.t->send(WorkerId{1}, 1, "head", payloads_of(bytes));
  RawLane slow = RawLane::accept_from(listener);
  EXPECT_NE(slow.read_frame().find("weft"), std::string::npos);
  slow.write(lane_frame(
      inner::encode_hello(inner::RecordType::kWelcome,
                          {.id = WorkerId{1}, .incarnation = Incarnation{5}, .target = WorkerId{0}})));
  ASSERT_TRUE(a.box.wait_for_state(WorkerId{1}, "up"));
  // The socket may take more after the first refusal: a thread that writes does not hold the queue.
  do {
    try {
      for (; sent < 1000; ++sent) a.t->send(WorkerId{1}, 1, "head", payloads_of(bytes));
      FAIL() << "the queue has no end";
    } catch (const Overloaded&) {
    }
  } while (a.t->wait_writable(WorkerId{1}, rt->now() + 20ms));
  a.t->send(WorkerId{2}, 1, "others are served meanwhile");
  EXPECT_TRUE(other.box.wait_for(1));
  std::atomic<bool> writable{false};
  auto writer =
      rt->start_service("writer", [&] { writable = a.t->wait_writable(WorkerId{1}, rt->now() + 60s); });
  size_t read = 0;
  while (read < sent * bytes.size()) {  // the frames have a few bytes more than the payloads
    const std::string part = slow.read(100'000);
    if (part.empty()) break;
    read += part.size();
  }
  EXPECT_GE(read, sent * bytes.size());
  writer->join();
  EXPECT_TRUE(writable);
  close(listener);
  unlink(path.c_str());
}

TEST(Lane, forty_workers_talk_to_one) {
  auto rt = make_threaded_runtime();
  LaneEnd one(rt, {.id = WorkerId{0}});
  one.box.reply_with(*one.t);
  std::vector<std::unique_ptr<LaneEnd>> others;
  for (int i = 1; i <= 40; ++i) {
    others.push_back(std::make_unique<LaneEnd>(rt, GrpcOptions{.id = WorkerId{i}}));
    one.t->add_peer(WorkerId{i}, lane_only(*others.back()->t));
    others.back()->t->add_peer(WorkerId{0}, lane_only(*one.t));
  }
  for (int round = 0; round < 20; ++round)
    for (auto& other : others) other->t->send(WorkerId{0}, 1, std::to_string(round));
  for (auto& other : others) EXPECT_TRUE(other->box.wait_for(20));
  others.clear();
}

}  // namespace
}  // namespace weft::rpc
