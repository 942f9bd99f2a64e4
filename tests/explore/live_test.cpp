// The explorer's programs over live gRPC: real processes whose connections pass proxies that cut, hold and
// delay them. One process is killed and started again under its name. Each program ends with the values of
// one process. A loss of the killed one may end it, and it is run again then. At the end nothing is left.
// WEFT_TEST_SCALE is the number of groups, each with programs of its own.
#include <gtest/gtest.h>

#include <csignal>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include <weft/distributed/launch/store_service.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/distributed/wire/call_context.h>

#include "explore/checks.h"
#include "explore/interpret.h"
#include "support/child_environment.h"
#include "support/cutting_proxy.h"
#include "support/process.h"

namespace weft::explore {
namespace {

using namespace rpc;
using namespace std::chrono_literals;

constexpr int kLiveWorkers = 3;
constexpr int kLivePlans = 16;
constexpr Duration kLiveLease = 6s;
constexpr const char* kLiveChild = "ExplorerLiveChild.a_process_started_by_these_tests_does_its_job";

TimePoint in_a_minute() { return std::chrono::steady_clock::now() + 60s; }

/// The programs of some schedules, by their drivers. The schedules' faults do not apply here.
struct Programs {
  explicit Programs(uint64_t first_seed) : of(kLiveWorkers) {
    for (uint64_t seed = first_seed; seed < first_seed + kLivePlans; ++seed) {
      const Plan plan = make_plan(seed, kLiveWorkers);
      for (const Program& p : plan.programs) of[static_cast<size_t>(p.driver)].push_back(p);
    }
  }
  std::vector<std::vector<Program>> of;
};

// ---- a worker

/// One life of a worker. `members/<rank>` in the store has a port and a life for each rank, as "4711 17 ".
class Worker {
 public:
  Worker(const std::string& store, int rank)
      : store_(connect_store(store)), rank_(rank), runtime_(make_threaded_runtime()) {
    AgentOptions mine;
    mine.name = str("worker", rank), mine.id = WorkerId{rank}, mine.lease = kLiveLease;
    agent_ = Agent::create(runtime_, mine, [&](Receiver& receiver) {
      GrpcOptions wire;
      wire.id = mine.id;
      wire.unix_socket = false;
      wire.insecure = true;  // a proxy has no cookie
      return make_grpc_transport(runtime_, wire, receiver);
    });
    set_default_agent(agent_);  // for the report of a hang
    const PeerAddress self = agent_->as_member().address;
    life_ = str(self.incarnation.value);
    set("at", str(parse_host_port(self.addresses.front()).port, " ", life_));
    while (known_.find(" " + life_ + " ") == std::string::npos) hear_of_members(in_a_minute());
    hears_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) hear_of_members(std::chrono::steady_clock::now() + 100ms);
    });
  }
  ~Worker() {
    hears_.request_stop();
    hears_.join();
    set_default_agent(nullptr);
    agent_->shutdown({.graceful = false});
    runtime_->stop();
  }
  Worker(const Worker&) = delete;

  /// Runs each program until it ends without a loss, from the first one that no earlier life has ended.
  void run(const std::vector<Program>& programs) {
    const AgentScope scope(agent_);
    while (true) {
      const auto next = static_cast<size_t>(store_->add(str("next/", rank_), 0, in_a_minute()));
      if (next >= programs.size()) return;
      const Program& program = programs[next];
      try {
        check(program, str("program ", next));
        store_->add(str("next/", rank_), 1, in_a_minute());
      } catch (const PeerLost& e) {
        const auto victim = store_->peek({"victim"}, in_a_minute()).front();
        if (victim != e.peer || e.peer == agent_->self().name)
          throw std::logic_error(str("the loss of a living worker is reported: ", e.what()));
        store_->add("losses", 1, in_a_minute());
        std::this_thread::sleep_for(20ms);
      }
    }
  }
  /// A program over all workers of a good network. Then this worker keeps nothing.
  void end() {
    store_->get("good", in_a_minute());
    const AgentScope scope(agent_);
    check(last_program(kLiveWorkers), "the last program");
    agent_->barrier({}, 60s);
    std::string left = "?";
    for (int tries = 0; tries < 600 && !left.empty(); ++tries) {
      std::this_thread::sleep_for(50ms);
      left = left_on(*agent_, true, 0);
    }
    if (!left.empty()) throw std::logic_error("something is left:" + left);
  }
  void set(const std::string& key, const std::string& value) {
    store_->set(str(key, "/", rank_), value, in_a_minute());
  }
  void wait_for(const std::string& key) { store_->get(key, in_a_minute()); }

 private:
  static void check(const Program& program, const std::string& name) {
    const auto seen = Interpreter<RemoteWorld>(program, kLiveWorkers).run();
    const std::string wrong = difference(seen, Interpreter<LocalWorld>(program, kLiveWorkers).run());
    if (!wrong.empty()) throw std::logic_error(name + ": " + wrong);
  }
  void hear_of_members(TimePoint until) {
    try {
      const auto now = store_->watch(str("members/", rank_), known_, until);
      if (!now || *now == known_) return;
      std::istringstream before(known_), after(*now);
      known_ = " " + *now;
      std::vector<Member> changed;
      for (int other = 0; other < kLiveWorkers; ++other) {
        uint64_t port = 0, life = 0, old_port = 0, old_life = 0;
        after >> port >> life;
        before >> old_port >> old_life;
        if (life == old_life) continue;
        Member m;
        m.name = str("worker", other), m.id = WorkerId{other};
        m.address = {.addresses = {str("127.0.0.1:", port)}, .incarnation = Incarnation{life}};
        changed.push_back(other == rank_ ? agent_->as_member() : m);
      }
      agent_->add_members(changed);
    } catch (const Timeout&) {
    }
  }

  const std::shared_ptr<Store> store_;
  const int rank_;
  const std::shared_ptr<Runtime> runtime_;
  std::shared_ptr<Agent> agent_;
  std::string life_, known_;
  std::jthread hears_;
};

/// The job is the first seed and the address of the parent's store.
int live_child(const std::string& job, int rank) {
  std::istringstream in(job);
  uint64_t seed = 0;
  std::string store;
  in >> seed >> store;
  const Programs programs(seed);
  Worker worker(store, rank);
  try {
    worker.run(programs.of[static_cast<size_t>(rank)]);
    worker.set("ran", "");
    worker.end();
    worker.set("ended", "");
  } catch (const std::exception& e) {
    worker.set("failed", str("worker ", rank, ": ", e.what()));
  }
  worker.wait_for("end");
  return 0;
}

TEST(ExplorerLiveChild, a_process_started_by_these_tests_does_its_job) { test::do_job(live_child); }

// ---- the group

class LiveGroup {
 public:
  explicit LiveGroup(uint64_t seed)
      : draws_(seed),
        workers_(spawn(
            {.world_size = kLiveWorkers,
             .arguments = {str("--gtest_filter=", kLiveChild), "--gtest_brief=1"},
             .own_arguments = false,
             .environment = test::child_environment({{"WEFT_TEST_JOB", str(seed, " ", store_.address)}}),
             .restarts = 1})) {
    for (const auto& of : Programs(seed).of) programs_ += static_cast<int64_t>(of.size());
    const TimePoint limit = std::chrono::steady_clock::now() + 200s;
    while (count("ran") < kLiveWorkers && none_failed() && std::chrono::steady_clock::now() < limit) {
      introduce();
      if (!killed_ && done() >= 2) kill_one();
      meet_a_fault();
    }
    EXPECT_EQ(done(), programs_);
    set("good", "");
    while (count("ended") < kLiveWorkers && none_failed() && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(10ms);
    EXPECT_EQ(count("ended"), kLiveWorkers);
    set("end", "");
    for (const std::string& text : texts("failed")) ADD_FAILURE() << text;
    for (const ChildState& c : workers_.poll()) EXPECT_EQ(c.restarts, c.rank == victim_) << to_string(c);
    EXPECT_TRUE(killed_);
    test::expect_ended(std::move(workers_));
    losses_ = store_.store->add("losses", 0, in_a_minute());
  }
  int64_t programs() const { return programs_; }
  int64_t losses() const { return losses_; }
  int faults() const { return faults_; }

 private:
  void set(const std::string& key, const std::string& value) { store_.store->set(key, value, in_a_minute()); }
  /// The values of a key of the workers that have set it.
  std::vector<std::string> texts(const std::string& key) {
    std::vector<std::string> keys, all;
    for (int rank = 0; rank < kLiveWorkers; ++rank) keys.push_back(str(key, "/", rank));
    for (const auto& text : store_.store->peek(keys, in_a_minute()))
      if (text) all.push_back(*text);
    return all;
  }
  int count(const std::string& key) { return static_cast<int>(texts(key).size()); }
  bool none_failed() { return count("failed") == 0; }
  int64_t done() {
    int64_t sum = 0;
    for (const std::string& text : texts("next")) sum += std::stoll(text);
    return sum;
  }
  /// Lays proxies to new lives and tells all of them.
  void introduce() {
    const std::vector<std::string> now = texts("at");
    if (now == at_ || static_cast<int>(now.size()) < kLiveWorkers) return;
    at_.resize(kLiveWorkers);
    std::vector<std::string> members(kLiveWorkers);
    for (int to = 0; to < kLiveWorkers; ++to) {
      std::istringstream in(now[static_cast<size_t>(to)]);
      uint16_t port = 0;
      uint64_t life = 0;
      in >> port >> life;
      for (int from = 0; from < kLiveWorkers; ++from) {
        auto& proxy = proxies_[{from, to}];
        if (now[static_cast<size_t>(to)] != at_[static_cast<size_t>(to)])
          proxy = std::make_unique<test::CuttingProxy>(port);
        members[static_cast<size_t>(from)] += str(proxy->port(), " ", life, " ");
      }
    }
    at_ = now;
    for (int rank = 0; rank < kLiveWorkers; ++rank)
      set(str("members/", rank), members[static_cast<size_t>(rank)]);
  }
  int below(uint64_t n) { return static_cast<int>(draws_() % n); }
  void kill_one() {
    victim_ = below(kLiveWorkers);
    set("victim", str("worker", victim_));
    std::this_thread::sleep_for(std::chrono::microseconds(below(20'000)));
    kill(workers_.poll().at(static_cast<size_t>(victim_)).pid, SIGKILL);
    killed_ = true;
  }
  void meet_a_fault() {
    workers_.poll();  // starts the killed one again
    if (proxies_.empty()) return std::this_thread::sleep_for(5ms);
    const int a = below(kLiveWorkers), b = (a + 1 + below(kLiveWorkers - 1)) % kLiveWorkers, fault = below(3);
    const auto set = [&](bool on) {
      for (auto* proxy : {proxies_.at({a, b}).get(), proxies_.at({b, a}).get()}) {
        if (fault == 0) proxy->cut(on);
        else if (fault == 1) proxy->hold(on);
        else proxy->delay_ms(on ? 20 : 0);
      }
    };
    set(true);
    std::this_thread::sleep_for(std::chrono::milliseconds(10 + below(200)));
    set(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(below(60)));
    ++faults_;
  }

  std::mt19937_64 draws_;
  const ServedStore store_ = serve_store("127.0.0.1:0");
  Children workers_;
  std::map<std::pair<int, int>, std::unique_ptr<test::CuttingProxy>> proxies_;
  std::vector<std::string> at_;
  int64_t programs_ = 0, losses_ = 0;
  int victim_ = -1, faults_ = 0;
  bool killed_ = false;
};

TEST(ExplorerLive, programs_over_cut_connections_equal_the_local_engine_though_one_process_is_replaced) {
  const char* const scale = std::getenv("WEFT_TEST_SCALE");
  const char* const shift = std::getenv("WEFT_TEST_SEED");
  const uint64_t groups = scale ? std::strtoull(scale, nullptr, 10) : 1;
  const uint64_t first = 1 + (shift ? std::strtoull(shift, nullptr, 10) * 1'000'000 : 0);
  int64_t programs = 0, losses = 0, faults = 0;
  for (uint64_t group = 0; group < groups && !HasFailure(); ++group) {
    SCOPED_TRACE(first + group * kLivePlans);
    const LiveGroup g(first + group * kLivePlans);
    programs += g.programs(), losses += g.losses(), faults += g.faults();
  }
  EXPECT_GE(losses, 1);
  EXPECT_GE(faults, 5);
  std::cout << groups << " groups: " << programs << " programs, " << losses << " losses, " << faults
            << " faults\n";
}

}  // namespace
}  // namespace weft::explore
