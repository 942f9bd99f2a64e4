// A drill at a live port. While a group works, one process holds connections, says hellos and sends malformed
// messages as a member gone mad. No member is lost, memory is flat, and every call is answered. The group
// talks over the same-host lane, or over TCP, where the strangers are. Printed are the times of its calls,
// there and beside a process that only burns time of the processor. It burns as much as the strangers, and as
// much as they and the handling of their messages. WEFT_TEST_STRANGERS sets the number of connections. Ten
// times as many hellos come, and 5,000 times as many messages. 2000 is the whole drill.
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>

#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/transport/inner/frame.h>

#include "fuzz/targets.h"
#include "support/child_environment.h"
#include "support/cluster.h"
#include "support/process.h"
#include "transport/raw_stream.h"

namespace weft::fuzz {

int64_t drill_twice(int64_t x) { return 2 * x; }
WEFT_RPC(drill_twice);

namespace {

using namespace std::chrono_literals;
using rpc::WorkerId;

constexpr int64_t kWholeDrill = 2000;  // connections

int64_t drill_connections() {
  const char* const text = std::getenv("WEFT_TEST_STRANGERS");
  return text != nullptr ? std::atoll(text) : 20;
}

/// Hears everything and keeps nothing.
struct Unmoved final : rpc::Receiver {
  rpc::Block allocate(WorkerId, uint8_t, const std::string&, int64_t bytes, int32_t) override {
    std::shared_ptr<char[]> memory(new char[static_cast<size_t>(bytes)]);
    void* const data = memory.get();
    return {data, bytes, rpc::kHostDevice, rpc::Release::keep(std::move(memory))};
  }
  void on_message(rpc::Inbound) override {}
  void on_peer(WorkerId, rpc::Incarnation, rpc::PeerState, const std::string&) override {}
};

/// Connections that are opened again when they are closed.
class HeldConnections {
 public:
  HeldConnections(rpc::HostPort at, int64_t count) : at_(std::move(at)), held_(static_cast<size_t>(count)) {}
  void tend() {
    for (auto& one : held_)
      if (one == nullptr || !one->still_open()) one = std::make_unique<rpc::RawStream>(at_, std::string());
  }

 private:
  const rpc::HostPort at_;
  std::vector<std::unique_ptr<rpc::RawStream>> held_;
};

/// Changes a few bytes, or cuts the end off.
std::string drill_mutation(const std::vector<std::string>& from, std::mt19937_64& random) {
  std::string s = from[random() % from.size()];
  for (uint64_t n = 1 + random() % 4; n > 0 && !s.empty(); --n)
    s[random() % s.size()] = static_cast<char>(random());
  if (random() % 4 == 0) s.resize(random() % (s.size() + 1));
  return s;
}

/// After such a message the port drops all later ones of its sender unread.
bool ends_membership(uint8_t kind) {
  return kind == static_cast<uint8_t>(rpc::Kind::kGoodbye) ||
         kind == static_cast<uint8_t>(rpc::Kind::kFenced);
}

double seconds_of(const timeval& t) {
  return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
}
double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
}
double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Writes the number of messages sent into a file. Once the file is gone, all have come. Then it writes the
/// processor's time and the time that it took.
int be_strangers() {
  const auto begin = std::chrono::steady_clock::now();
  const std::string address = std::getenv("WEFT_TEST_ADDRESS");
  const rpc::HostPort at = rpc::parse_host_port(address);
  const int64_t connections = drill_connections(), hellos = 10 * connections, messages = 5000 * connections;
  const auto runtime = rpc::make_threaded_runtime();
  Unmoved unmoved;
  const auto mad = rpc::make_grpc_transport(runtime,
                                            {.id = WorkerId{2},
                                             .incarnation = rpc::Incarnation{7},
                                             .unix_socket = false,
                                             .limits = {.max_queued_messages = 10'000}},
                                            unmoved);
  mad->add_peer(WorkerId{1}, {.addresses = {address}});
  std::mt19937_64 random(7);
  const std::vector<std::string> envelopes = envelope_seeds();
  HeldConnections held(at, connections);
  int64_t sent = 0;
  for (int64_t i = 0; i < hellos; ++i) {
    if (i % (hellos / 10) == 0) held.tend();
    const std::string hello = rpc::inner::encode_hello(
        rpc::inner::RecordType::kHello, {.id = WorkerId{static_cast<int32_t>(100 + i)},
                                         .incarnation = rpc::Incarnation{7},
                                         .target = WorkerId{1},
                                         .addresses = std::vector<std::string>(8, std::string(200, 'x'))});
    rpc::RawStream stranger(at, i % 2 == 0 ? hello : drill_mutation({hello}, random));
    if (!stranger.read_to_end(60'000)) return 2;
    while (sent < messages * (i + 1) / hellos) {
      auto kind = static_cast<uint8_t>(random());
      if (ends_membership(kind)) kind = static_cast<uint8_t>(rpc::Kind::kCall);
      if (!mad->wait_writable(WorkerId{1}, runtime->now() + 60s)) return 3;
      try {
        mad->send(WorkerId{1}, kind, drill_mutation(envelopes, random));
        ++sent;
      } catch (const rpc::Overloaded&) {  // dropped, and counted nowhere
      }
    }
  }
  for (int i = 0; i < 30000 && mad->counters(WorkerId{1}).queued_messages > 0; ++i) runtime->sleep_for(10ms);
  const std::string file = std::getenv("WEFT_TEST_FILE");
  std::ofstream(file) << mad->counters(WorkerId{1}).messages_sent << " ";
  for (int i = 0; i < 30000 && access(file.c_str(), F_OK) == 0; ++i) runtime->sleep_for(10ms);
  std::ofstream(file) << processor_seconds() << " " << seconds_since(begin);
  mad->close();
  return 0;
}

/// Burns that much of the processors' time, evenly over the given time, on as many threads as it takes.
int burn() {
  const double processor = std::atof(std::getenv("WEFT_TEST_PROCESSOR"));
  const double whole = std::atof(std::getenv("WEFT_TEST_WHOLE"));
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 1 + static_cast<int>(processor / whole); ++i)
    threads.emplace_back([=] {
      while (seconds_since(begin) < whole) {
        const double due = std::min(1.0, seconds_since(begin) / whole) * processor;
        if (processor_seconds() >= due) usleep(500);
      }
    });
  return 0;
}

int drill_child(const std::string& job, int) { return job == "strangers" ? be_strangers() : burn(); }

constexpr const char* kDrill = "DrillChild.a_process_started_by_these_tests_does_its_job";
TEST(DrillChild, a_process_started_by_these_tests_does_its_job) { test::do_job(drill_child); }

int64_t resident_mib() {
  std::ifstream in("/proc/self/statm");
  int64_t whole = 0, resident = 0;
  in >> whole >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024) / 1024;
}

/// The times of calls of a group in microseconds, and its memory over time.
struct Work {
  std::vector<double> times;
  double processor = 0;  // seconds of this process
  std::vector<int64_t> resident;
  double part(double p) {
    std::sort(times.begin(), times.end());
    return times.empty() ? 0 : times[static_cast<size_t>(p * static_cast<double>(times.size() - 1))];
  }
  std::string summary() {
    const double sum = std::accumulate(times.begin(), times.end(), 0.0);
    std::ostringstream text;
    text << "mean " << sum / static_cast<double>(times.size()) << " us, p50 " << part(0.5) << " us, p99 "
         << part(0.99) << " us (" << times.size() << ")";
    return text.str();
  }
  /// Growth of the memory from its highest in the first half to its highest in the second.
  int64_t growth() const {
    const auto half = resident.begin() + static_cast<std::ptrdiff_t>(resident.size() / 2);
    if (half == resident.begin()) return 0;
    return *std::max_element(half, resident.end()) - *std::max_element(resident.begin(), half);
  }
};

/// Calls until the process has ended, which it must with status 0. `now_and_then` runs between calls.
Work work_beside(
    test::Cluster& c, std::map<std::string, std::string> environment,
    const std::function<void()>& now_and_then = [] {}) {
  rpc::Children process = rpc::spawn({.world_size = 1,
                                      .arguments = {str("--gtest_filter=", kDrill), "--gtest_brief=1"},
                                      .own_arguments = false,
                                      .environment = test::child_environment(std::move(environment))});
  Work work;
  const double before = processor_seconds();
  const auto limit = std::chrono::steady_clock::now() + 1h;
  c.run(0, [&] {
    for (int64_t i = 0; process.poll().front().running && std::chrono::steady_clock::now() < limit; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_EQ(rpc::rpc_sync<drill_twice>("worker1", i), 2 * i);
      work.times.push_back(1e6 * seconds_since(begin));
      if (i % 50 == 0) work.resident.push_back(resident_mib()), now_and_then();
      rpc::current_runtime()->sleep_for(1ms);
    }
  });
  work.processor = processor_seconds() - before;
  EXPECT_FALSE(process.poll().front().running);
  EXPECT_EQ(process.poll().front().exit_code, 0);
  return work;
}

class Drill : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Ways, Drill, ::testing::Values(true, false),
                         [](const auto& info) { return std::string(info.param ? "lane" : "tcp"); });

TEST_P(Drill, a_group_works_while_strangers_hold_connections_say_hellos_and_a_mad_member_sends_messages) {
  const int64_t connections = drill_connections(), messages = 5000 * connections;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_max < static_cast<rlim_t>(2 * connections + 300)) GTEST_SKIP() << "too few file descriptors";
  test::Cluster c({.over = test::Over::kGrpc, .size = 2, .unix_socket = GetParam()});
  rpc::Member mad{.name = "worker2", .id = WorkerId{2}};
  mad.address = {.addresses = {"127.0.0.1:9"}, .incarnation = rpc::Incarnation{7}};
  c.agent(1)->add_members({mad});
  std::string port;
  for (const std::string& a : c.agent(1)->transport().addresses().addresses)
    if (a.rfind("unix:", 0) != 0) port = a;
  const std::string path = ::testing::TempDir() + str("weft_drill_", getpid());
  uint64_t sent = 0, received = 0;
  bool told = false;
  const auto let_go_when_all_have_come = [&] {
    received = std::max(received, c.agent(1)->transport().counters(WorkerId{2}).messages_received);
    if (sent == 0) std::ifstream(path) >> sent;
    else if (!told && received >= sent) told = unlink(path.c_str()) == 0;
  };
  Work beside =
      work_beside(c, {{"WEFT_TEST_JOB", "strangers"}, {"WEFT_TEST_FILE", path}, {"WEFT_TEST_ADDRESS", port}},
                  let_go_when_all_have_come);
  double processor = 0, whole = 0;
  std::ifstream(path) >> processor >> whole;
  unlink(path.c_str());
  EXPECT_GT(whole, 0);
  EXPECT_GE(received, static_cast<uint64_t>(messages));
  const int64_t malformed = c.agent(1)->debug_info().at("agent.malformed");
  EXPECT_GT(malformed, messages / 5);  // others are doubles, or have an unknown life, call or kind
  EXPECT_FALSE(c.agent(1)->is_lost(WorkerId{0}));
  EXPECT_EQ(c.agent(0)->debug_info().at("agent.lost_peers"), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(beside.growth(), 64) << "MiB";
#endif
  const auto beside_busy = [&](double seconds) {
    return work_beside(c, {{"WEFT_TEST_JOB", "burn"},
                           {"WEFT_TEST_PROCESSOR", std::to_string(seconds)},
                           {"WEFT_TEST_WHOLE", std::to_string(whole)}});
  };
  Work alone = beside_busy(processor);
  const double handling = std::max(0.0, beside.processor - alone.processor);
  Work loaded = beside_busy(processor + handling);
  if (connections >= kWholeDrill) {
    EXPECT_LE(beside.part(0.5), 2 * alone.part(0.5)) << "us";
  }
  std::cout << "drill over " << (GetParam() ? "the lane" : "TCP") << ": " << connections << " connections, "
            << 10 * connections << " hellos, " << sent << " messages sent, " << received << " received, "
            << malformed << " counted as malformed, in " << whole << " s, " << processor
            << " s of the processor; calls beside it: " << beside.summary() << ", memory +" << beside.growth()
            << " MiB; beside a busy process: " << alone.summary() << "; beside one that takes the group's "
            << handling << " s for the messages too: " << loaded.summary() << "\n";
}

}  // namespace
}  // namespace weft::fuzz
