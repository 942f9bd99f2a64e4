// Lives that calls, watches and requests name before this worker is told of them. A call that begins keeps
// its life among those expected, whatever else gives it up. Without memory no peer is lost to the table.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/inner/put_off.h>

#include "support/cluster.h"
#include "support/scarce_memory.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;
using ExpectedLivesNoMemory = ScarceMemory;

const Life kStranger{WorkerId{1}, Incarnation{999}};

ClusterOptions lease_of_a_second(int size) {
  AgentOptions agent;
  agent.lease = 1s;
  return {.size = size, .agent = agent};
}

size_t lives_of(Cluster& c) { return c.agent(0)->impl().peers.shown().size(); }

/// Runs a function while a call begins. The calls that the function makes are refused.
struct WhileCallBegins final : Interceptor {
  explicit WhileCallBegins(std::function<void(Agent&, Life)> f) : run(std::move(f)) {}
  void request_sending(Agent& agent, Life to, Kind, const char*, Message&) override {
    if (inside.exchange(true)) throw ValueError("refused");
    run(agent, to);
  }
  const std::function<void(Agent&, Life)> run;
  std::atomic<bool> inside{false};
};

void make_refused_call(Agent& agent, Life to) { EXPECT_THROW(agent.call(to, Kind::kUser, {}), ValueError); }

/// A call during whose beginning `meanwhile` runs is in the table, so the end of the agent ends it.
void expect_ended_with_the_agent(Cluster& c, std::function<void(Agent&, Life)> meanwhile) {
  c.agent(0)->add_interceptor(std::make_shared<WhileCallBegins>(std::move(meanwhile)));
  const auto answer = c.agent(0)->call(kStranger, Kind::kUser, {}, {.timeout = 0s});
  EXPECT_FALSE(answer.done());
  EXPECT_EQ(lives_of(c), 3U);
  c.agent(0)->shutdown({.graceful = false});
  ASSERT_TRUE(answer.done());
  EXPECT_THROW(answer.wait(), RpcError);
}

TEST(ExpectedLives, a_refused_call_gives_up_no_life_that_another_call_begins_on) {
  Cluster c(lease_of_a_second(2));
  expect_ended_with_the_agent(c, make_refused_call);
}

TEST(ExpectedLives, the_end_of_a_lease_gives_up_no_life_that_a_call_begins_on) {
  Cluster c(lease_of_a_second(2));
  c.runtime().sleep_for(1ms);  // at time 0 nothing was heard
  EXPECT_THROW(check_told(*c.agent(0), kStranger), PutOff);
  expect_ended_with_the_agent(c, [&](Agent&, Life) { c.runtime().sleep_for(2s); });
}

TEST(ExpectedLives, a_refused_call_of_another_thread_gives_up_no_life_that_a_call_begins_on) {
  Cluster c({.over = Over::kGrpc, .size = 2});
  expect_ended_with_the_agent(
      c, [](Agent& agent, Life to) { std::thread(make_refused_call, std::ref(agent), to).join(); });
}

/// Refuses each second call, or each n-th one.
struct RefusesSome final : Interceptor {
  explicit RefusesSome(int of) : each(of) {}
  void request_sending(Agent&, Life, Kind, const char*, Message&) override {
    if (++calls % each == 0) throw ValueError("refused");
  }
  const int each;
  std::atomic<int> calls{0};
};

TEST(ExpectedLives, calls_of_two_threads_of_which_half_are_refused_all_end_with_the_agent) {
  Cluster c({.over = Over::kGrpc, .size = 2});
  c.agent(0)->add_interceptor(std::make_shared<RefusesSome>(2));
  constexpr uint64_t kLives = 300;
  std::array<std::vector<Future<Message>>, 2> answers;
  std::atomic<int> begun{0};
  const auto call_all = [&](std::vector<Future<Message>>& out) {
    for (uint64_t i = 0; i < kLives; ++i) {
      ++begun;  // both threads begin on each life together
      while (begun < static_cast<int>(2 * i)) std::this_thread::yield();
      try {
        out.push_back(c.agent(0)->call({WorkerId{1}, {1000 + i}}, Kind::kUser, {}, {.timeout = 0s}));
      } catch (const ValueError&) {
      }
    }
  };
  std::thread other(call_all, std::ref(answers[0]));
  call_all(answers[1]);
  other.join();
  c.agent(0)->shutdown({.graceful = false});
  EXPECT_EQ(answers[0].size() + answers[1].size(), kLives);
  for (const auto& mine : answers)
    for (const auto& answer : mine) EXPECT_TRUE(answer.done());
}

// Tasks are preempted between two critical sections, each seed in other places.
TEST(ExpectedLives, a_watch_that_begins_while_a_call_is_refused_is_under_lease) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    ClusterOptions options = lease_of_a_second(2);
    options.seed = seed;
    options.keep_log = false;
    Cluster c(options);
    c.agent(0)->add_interceptor(std::make_shared<RefusesSome>(1));
    Future<void> watched(c.agent(0)->runtime()), called(c.agent(0)->runtime());
    c.runtime().post([&, agent = c.agent(0)] {
      agent->watch(kStranger, +1);
      watched.state()->try_set();
    });
    c.runtime().post([&, agent = c.agent(0)] {
      make_refused_call(*agent, kStranger);
      called.state()->try_set();
    });
    watched.wait();
    called.wait();
    EXPECT_EQ(lives_of(c), 3U) << seed;
    c.runtime().sleep_for(3s);
    EXPECT_EQ(lives_of(c), 2U) << seed;
  }
}

/// The ends of one call, as its sink and its message see them.
struct Ends {
  int sending = 0, discarded = 0, settled = 0, errors = 0;
};
struct CountsEnds final : Interceptor {
  explicit CountsEnds(Ends& e) : ends(e) {}
  void request_sending(Agent&, Life, Kind, const char*, Message&) override { ++ends.sending; }
  void discarded(Agent&, Life, Kind kind, const Message&, bool) override {
    ends.discarded += kind == Kind::kUser;
  }
  Ends& ends;
};
struct EndsSink final : ReplySink {
  explicit EndsSink(Ends& e) : ends(e) {}
  void on_reply(Agent&, WorkerId, Message) noexcept override { ADD_FAILURE() << "a reply"; }
  void on_error(std::exception_ptr) noexcept override { ++ends.errors; }
  Ends& ends;
};

Message request_of(size_t bytes) {
  Message m;
  Encoder(m).put(std::string(bytes, 'x'));
  return m;
}

/// A call to an expected life, of which one allocation fails, ends once. `before`: calls that are open then.
/// Without room in the window the call waits for credit.
void expect_one_end(int before, std::shared_ptr<Interceptor> refuses = nullptr) {
  bool was_short = true;
  for (int left = 0; was_short; ++left) {
    ASSERT_LT(left, 300) << "one call needs a limited number of allocations";
    Cluster c(lease_of_a_second(2));
    for (int i = 0; i < before; ++i)
      c.agent(0)->call(kStranger, Kind::kFetch, request_of(200'000), {.timeout = 0s});
    Ends ends;
    c.agent(0)->add_interceptor(std::make_shared<CountsEnds>(ends));
    if (refuses) c.agent(0)->add_interceptor(refuses);
    Message message = request_of(200'000);
    message.settled.emplace_back([&](bool) { ++ends.settled; });
    auto sink = std::make_unique<EndsSink>(ends);
    bool thrown = false;
    {
      const NoMemory scarce(left, 1);
      try {
        c.agent(0)->call(kStranger, Kind::kUser, std::move(message), {.timeout = 0s}, std::move(sink));
      } catch (const std::exception&) {
        thrown = true;
      }
      was_short = scarce.was_short();
    }
    const bool open = !thrown && ends.errors == 0;
    EXPECT_EQ(lives_of(c), open || before > 0 ? 3U : 2U) << left;
    EXPECT_EQ(c.agent(0)->calls().size(), static_cast<size_t>(before + open)) << left;
    c.runtime().sleep_for(3s);
    EXPECT_EQ(lives_of(c), 2U) << left;
    EXPECT_EQ(ends.errors, thrown ? 0 : 1) << left;
    EXPECT_EQ(ends.settled, ends.sending) << left;
    EXPECT_EQ(ends.discarded, open && before == 0 ? 0 : ends.sending) << left;
    EXPECT_EQ(c.agent(0)->dump(), "") << left;
    for (const char* key : {"agent.client_active_calls", "agent.open_bytes", "agent.waiting_calls"})
      EXPECT_EQ(c.agent(0)->debug_info().at(key), 0) << key << left;
  }
}

TEST_F(ExpectedLivesNoMemory, a_first_call_to_a_life_ends_once) { expect_one_end(0); }
TEST_F(ExpectedLivesNoMemory, a_call_that_waits_for_credit_ends_once) { expect_one_end(1); }
TEST_F(ExpectedLivesNoMemory, a_refused_call_ends_once) {
  expect_one_end(0, std::make_shared<RefusesSome>(1));
}

TEST_F(ExpectedLivesNoMemory, a_life_that_a_request_names_is_given_up_after_a_lease) {
  bool was_short = true;
  for (int left = 0; was_short; ++left) {
    ASSERT_LT(left, 100) << "one look needs a limited number of allocations";
    Cluster c(lease_of_a_second(2));
    c.runtime().sleep_for(1ms);  // at time 0 nothing was heard
    {
      const NoMemory scarce(left, 1);
      try {
        check_told(*c.agent(0), kStranger);
      } catch (const std::exception&) {
      }
      was_short = scarce.was_short();
    }
    c.runtime().sleep_for(3s);
    EXPECT_EQ(lives_of(c), 2U) << left;
  }
}

void rename(Peer& p, const std::string& name) {
  MutexLock lock(p.mutex);
  p.name = name;
}

// A Peer that others hold stays the same one wherever the table keeps it.
TEST_F(ExpectedLivesNoMemory, a_peer_that_changes_its_place_in_the_table_stays_the_same) {
  const Incarnation now{5};
  bool was_short = true;
  for (int left = 0; was_short; ++left) {
    ASSERT_LT(left, 100) << "one change needs a limited number of allocations";
    PeerTable table;
    Peer& current = table.at(WorkerId{1});
    current.incarnation = now;
    rename(current, "the first");
    rename(table.of(kStranger), "a stranger");
    const auto try_it = [&](const std::function<void()>& f) {
      const NoMemory scarce(left, 1);
      try {
        f();
      } catch (const std::bad_alloc&) {
      }
      was_short = was_short || scarce.was_short();
    };
    was_short = false;
    try_it([&] { table.give_up(kStranger); });
    EXPECT_EQ(PeerTable::name(table.of(kStranger)), "a stranger") << left;
    table.give_up(kStranger);
    try_it([&] { table.of(kStranger); });
    EXPECT_EQ(PeerTable::name(table.of(kStranger)), "a stranger") << left;
    {
      MutexLock lock(current.mutex);
      current.lost = true;
    }
    try_it([&] { table.succeed(current, kStranger.incarnation, TimePoint(1s)); });
    Peer& successor = table.succeed(current, kStranger.incarnation, TimePoint(1s));
    EXPECT_EQ(PeerTable::name(successor), "a stranger") << left;
    EXPECT_TRUE(table.lost({WorkerId{1}, now})) << left;
    EXPECT_EQ(PeerTable::name(table.of({WorkerId{1}, now})), "the first") << left;
  }
}

}  // namespace
