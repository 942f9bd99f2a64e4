// The agent over the simulated network: the promises of a call under every fault of the network.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;

std::map<int, int> g_runs;  // how often note(n) ran

int note(int n) {
  ++g_runs[n];
  return n * 2;
}
WEFT_RPC(note);

int64_t down(int64_t depth, int64_t width);
WEFT_RPC(down);
int64_t down(int64_t depth, int64_t width) {  // calls itself on the next worker, `width` times at once
  if (depth == 0) return 1;
  const auto agent = current_agent();
  const WorkerId next{static_cast<int32_t>((agent->self().id.value + 1) %
                                           static_cast<int32_t>(agent->worker_infos().size()))};
  std::vector<Future<int64_t>> all;
  for (int64_t i = 0; i < width; ++i) all.push_back(rpc_async<down>(next, depth - 1, width));
  int64_t sum = 0;
  for (const auto& f : all) sum += f.wait();
  return sum;
}

void sleep_ms(int ms) { current_runtime()->sleep_for(std::chrono::milliseconds(ms)); }
WEFT_RPC(sleep_ms);

int64_t weight(const Tensor& x) { return x.numel(); }
WEFT_RPC(weight);

int slow_twice(int ms) {  // its own call has no time of its own
  rpc_sync<sleep_ms>("worker2", ms);
  return ms * 2;
}
WEFT_RPC(slow_twice);

TEST(Agent, a_call_returns_the_value) {
  Cluster c({.size = 2});
  c.run(0, [] { EXPECT_EQ(rpc_sync<note>("worker1", 21), 42); });
}

// 20 seeds of a network that loses, doubles and reorders: every call is answered, and none ran twice.
TEST(Agent, a_function_runs_exactly_once_when_messages_are_lost_doubled_and_reordered) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    g_runs.clear();
    Cluster c({.size = 3, .seed = seed, .net = {.jitter = 3ms, .drop = 0.15, .duplicate = 0.15}});
    c.run_all([&](int rank) {
      std::vector<Future<int>> all;
      for (int i = 0; i < 40; ++i) all.push_back(rpc_async<note>((rank + 1) % 3, rank * 1000 + i));
      for (int i = 0; i < 40; ++i) EXPECT_EQ(all[static_cast<size_t>(i)].wait(), 2 * (rank * 1000 + i));
    });
    EXPECT_EQ(g_runs.size(), 120u);
    for (const auto& [n, runs] : g_runs) EXPECT_EQ(runs, 1) << "note(" << n << ") with seed " << seed;
    c.shutdown();
  }
}

TEST(Agent, one_seed_gives_the_same_event_log_twice_and_another_seed_a_different_one) {
  const auto run = [](uint64_t seed) {
    Cluster c({.size = 3, .seed = seed, .net = {.jitter = 1ms, .drop = 0.1, .duplicate = 0.1}});
    c.run_all([](int rank) {
      for (int i = 0; i < 10; ++i) rpc_sync<note>((rank + 1) % 3, i);
    });
    c.shutdown();
    return std::pair(c.sim().log_hash(), c.sim().log());
  };
  const auto first = run(11), second = run(11), other = run(12);
  EXPECT_GT(first.second.size(), 60u);
  EXPECT_EQ(first.second, second.second);
  EXPECT_EQ(first.first, second.first);
  EXPECT_NE(first.first, other.first);
}

TEST(Agent, an_answer_that_is_lost_is_sent_again_and_the_function_is_not) {
  g_runs.clear();
  Cluster c({.size = 2});
  c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kCall) | kReplyBit, .count = 3});
  c.run(0, [] { EXPECT_EQ(rpc_sync<note>("worker1", 5), 10); });
  EXPECT_EQ(g_runs[5], 1);
  EXPECT_GE(c.agent(1)->debug_info()["agent.resent_replies"], 1);
  EXPECT_EQ(c.agent(0)->debug_info()["agent.resent_requests"], 0);
}

TEST(Agent, a_request_that_is_lost_is_sent_again) {
  g_runs.clear();
  Cluster c({.size = 2});
  c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kCall), .count = 2});
  c.run(0, [] { EXPECT_EQ(rpc_sync<note>("worker1", 5), 10); });
  EXPECT_EQ(g_runs[5], 1);
  EXPECT_EQ(c.agent(0)->debug_info()["agent.resent_requests"], 2);
}

TEST(Agent, answers_are_forgotten_once_their_caller_has_them) {
  Cluster c({.size = 2});
  c.run(0, [] {
    for (int i = 0; i < 50; ++i) rpc_sync<note>("worker1", i);
  });
  c.sim().run_for(5s);
  EXPECT_EQ(c.agent(1)->debug_info()["agent.kept_replies"], 0);
  EXPECT_EQ(c.agent(1)->debug_info()["agent.served_calls"], 50);
}

TEST(Agent, answers_are_forgotten_even_behind_a_call_that_stays_open) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto slow = rpc_async<sleep_ms>("worker1", 20000);
    for (int i = 0; i < 50; ++i) rpc_sync<note>("worker1", i);
    current_runtime()->sleep_for(5s);
    EXPECT_EQ(c.agent(1)->debug_info()["agent.kept_replies"], 0);
    slow.wait();
  });
}

TEST(Agent, an_idle_agent_keeps_no_timer) {
  Cluster c({.size = 2});
  c.run(0, [] { rpc_sync<note>("worker1", 1); });
  const TimePoint before = c.sim().now();
  c.sim().run_until_idle();  // would not come back while a timer is set again and again
  EXPECT_LT(c.sim().now() - before, 3s);
}

TEST(Agent, blocking_calls_nested_deep_and_wide_complete) {
  Cluster c({.size = 3});
  c.run(0, [] { EXPECT_EQ(rpc_sync<down>("worker1", 6, 3), 729); });
}

TEST(Agent, debug_information_tells_whether_a_worker_has_the_same_host_lane) {
  for (const bool unix_socket : {true, false}) {
    const Cluster c({.over = test::Over::kGrpc, .size = 1, .unix_socket = unix_socket});
    EXPECT_EQ(c.agent(0)->debug_info().at("agent.same_host_lane"), unix_socket && has_same_host_lane());
  }
  EXPECT_EQ(Cluster({.size = 1}).agent(0)->debug_info().at("agent.same_host_lane"), 0);
}

TEST(Agent, blocking_calls_nested_deep_and_wide_complete_over_grpc_with_two_threads) {
  Cluster c({.over = test::Over::kGrpc, .size = 2, .threads = 2});
  c.run(0, [] { EXPECT_EQ(rpc_sync<down>("worker1", 5, 3), 243); });
  c.shutdown();
}

TEST(Agent, a_partition_shorter_than_the_lease_is_survived) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    c.net().partition({WorkerId{0}}, {WorkerId{1}});
    const auto f = rpc_async<note>("worker1", 3);
    current_runtime()->sleep_for(4s);
    EXPECT_FALSE(f.done());
    c.net().heal();
    EXPECT_EQ(f.wait(), 6);
  });
}

TEST(Agent, a_partition_longer_than_the_lease_loses_the_peer_on_time) {
  Cluster c({.size = 2, .net = {.silence_notice = 1h}});
  c.run(0, [&] {
    c.net().partition({WorkerId{0}}, {WorkerId{1}});
    const TimePoint before = current_runtime()->now();
    EXPECT_THROW(rpc_sync<note>("worker1", 3), PeerLost);
    EXPECT_LE(current_runtime()->now() - before, 11s);
    EXPECT_TRUE(c.agent(0)->is_lost(WorkerId{1}));
    EXPECT_THROW(rpc_sync<note>("worker1", 3), PeerLost);  // stays lost
  });
}

TEST(Agent, a_killed_worker_fails_every_open_call_within_the_lease_and_is_named) {
  Cluster c({.size = 3});
  std::vector<std::string> heard;
  c.agent(0)->on_peer_lost(
      [&](const LostPeer& peer) { heard.push_back(peer.info.name + (peer.left ? " left" : " lost")); });
  c.run(0, [&] {
    std::vector<Future<void>> all;
    for (int i = 0; i < 7; ++i) all.push_back(rpc_async<sleep_ms>("worker2", 100000));
    current_runtime()->sleep_for(100ms);
    c.kill(2);
    const TimePoint before = current_runtime()->now();
    for (const auto& f : all) {
      try {
        f.wait();
        ADD_FAILURE() << "a call to a dead worker returned";
      } catch (const PeerLost& e) {
        EXPECT_EQ(e.peer, "worker2");
      }
    }
    EXPECT_LE(current_runtime()->now() - before, 11s);
    EXPECT_EQ(rpc_sync<note>("worker1", 4), 8);
  });
  c.sim().run_for(1s);
  EXPECT_EQ(heard, std::vector<std::string>{"worker2 lost"});
}

TEST(Agent, a_watched_peer_is_lost_without_any_call) {
  Cluster c({.size = 2, .net = {.break_notice = 1h}});
  bool lost = false;
  c.agent(0)->on_peer_lost([&](const LostPeer&) { lost = true; });
  c.agent(0)->watch(WorkerId{1}, +1);
  c.sim().run_for(60s);
  EXPECT_FALSE(lost);
  c.kill(1);
  c.sim().run_for(11s);
  EXPECT_TRUE(lost);
  c.agent(0)->watch(WorkerId{1}, -1);
}

TEST(Agent, a_silent_peer_is_lost_within_a_lease_however_often_it_is_watched_anew) {
  Cluster c({.size = 2});
  c.run(0, [] { rpc_sync<note>("worker1", 1); });
  c.agent(0)->watch(WorkerId{1}, +1);
  c.sim().run_for(1s);
  c.net().add_rule({.from = WorkerId{1}});
  for (int i = 0; i < 7; ++i) {
    c.sim().run_for(2s);
    c.agent(0)->watch(WorkerId{1}, +1);
    c.agent(0)->watch(WorkerId{1}, -1);
  }
  EXPECT_TRUE(c.agent(0)->is_lost(WorkerId{1}));
  c.agent(0)->watch(WorkerId{1}, -1);
}

TEST(Agent, a_call_begun_while_its_worker_stops_ends_and_keeps_nothing_alive) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::weak_ptr<Agent> watched;
    {
      Cluster c({.size = 2, .seed = seed});
      watched = c.agent(0);
      int ended = 0;
      c.run(0, [&] {
        for (int i = 0; i < 12; ++i)
          c.runtime().post([&, agent = c.agent(0)] {
            const AgentScope scope(agent);
            try {
              for (int k = 0; k < 20; ++k) rpc_sync<note>({"worker1", 0s}, k);
            } catch (const RpcError&) {
            }
            ++ended;
          });
        current_runtime()->sleep_for(std::chrono::microseconds(20 * seed));
      });
      c.agent(0)->shutdown({.graceful = false});
      c.runtime().sleep_for(1s);
      EXPECT_EQ(ended, 12) << "seed " << seed;
    }
    EXPECT_TRUE(watched.expired()) << "seed " << seed;
  }
}

TEST(Agent, a_worker_that_leaves_is_known_to_have_left) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    rpc_sync<note>("worker1", 1);
    const auto f = rpc_async<sleep_ms>("worker1", 100000);
    current_runtime()->sleep_for(1ms);
    c.agent(1)->shutdown({.graceful = false});
    try {
      f.wait();
      FAIL();
    } catch (const PeerLost& e) {
      EXPECT_NE(std::string(e.what()).find("has left"), std::string::npos) << e.what();
    }
  });
}

TEST(Agent, a_nested_call_ends_by_the_deadline_of_the_call_it_serves) {
  Cluster c({.size = 3});
  c.run(0, [&] {
    const auto f = rpc_async<slow_twice>({"worker1", 500ms}, 60000);
    EXPECT_THROW(f.wait(), Timeout);
    current_runtime()->sleep_for(100ms);
    // Worker 1's own call has ended too, a minute before its callee returns.
    EXPECT_EQ(c.agent(1)->debug_info()["agent.client_active_calls"], 0);
    EXPECT_EQ(c.agent(1)->debug_info()["agent.timeouts"], 1);
  });
}

TEST(Agent, a_reply_after_the_deadline_is_counted_and_dropped) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    EXPECT_THROW(rpc_sync<sleep_ms>({"worker1", 100ms}, 150), Timeout);
    EXPECT_EQ(rpc_sync<note>("worker1", 1), 2);
    current_runtime()->sleep_for(1s);
  });
  EXPECT_EQ(c.agent(1)->debug_info()["agent.server_active_calls"], 0);
  EXPECT_EQ(c.agent(0)->debug_info()["agent.client_active_calls"], 0);
}

// A send queue of two messages on a slow wire: the caller waits for room, as long as its call has time.
TEST(Agent, calls_beyond_a_full_send_queue_wait_for_room_and_each_runs_once) {
  g_runs.clear();
  Cluster c({.size = 2, .net = {.bytes_per_second = 1e5, .limits = {.max_queued_messages = 2}}});
  c.run(0, [&] {
    const TimePoint before = current_runtime()->now();
    std::vector<Future<int>> all;
    for (int i = 0; i < 30; ++i) {
      all.push_back(rpc_async<note>("worker1", i));
      EXPECT_LE(c.agent(0)->transport().counters(WorkerId{1}).queued_messages, 2);
    }
    EXPECT_GT(current_runtime()->now(), before);  // virtual time: it was waited for
    for (int i = 0; i < 30; ++i) EXPECT_EQ(all[static_cast<size_t>(i)].wait(), 2 * i);
  });
  EXPECT_EQ(g_runs.size(), 30u);
  for (const auto& [n, runs] : g_runs) EXPECT_EQ(runs, 1) << n;
  EXPECT_EQ(c.agent(0)->debug_info()["agent.resent_requests"], 0);
}

TEST(Agent, a_call_that_finds_no_room_by_its_deadline_times_out_and_never_runs) {
  g_runs.clear();
  Cluster c({.size = 2, .net = {.bytes_per_second = 1e4, .limits = {.max_queued_messages = 1}}});
  c.run(0, [&] {
    const auto large = rpc_async<weight>("worker1", zeros({10000}));  // four seconds on the wire
    EXPECT_THROW(rpc_sync<note>({"worker1", 500ms}, 1), Timeout);
    EXPECT_EQ(large.wait(), 10000);
    EXPECT_EQ(rpc_sync<note>("worker1", 2), 4);
    current_runtime()->sleep_for(5s);
  });
  EXPECT_EQ(g_runs, (std::map<int, int>{{2, 1}}));
}

TEST(Agent, a_call_from_a_callback_which_cannot_wait_for_room_is_sent_later) {
  g_runs.clear();
  std::vector<Future<int>> all;
  Cluster c({.size = 2, .net = {.bytes_per_second = 1e5, .limits = {.max_queued_messages = 1}}});
  c.run(0, [&] {
    current_runtime()->call_at(current_runtime()->now(), [&] {  // a timer's callback must not block
      const AgentScope scope(c.agent(0));
      for (int i = 0; i < 6; ++i) all.push_back(rpc_async<note>("worker1", i));
    });
    current_runtime()->sleep_for(1ms);
    ASSERT_EQ(all.size(), 6u);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(all[static_cast<size_t>(i)].wait(), 2 * i);
  });
  for (const auto& [n, runs] : g_runs) EXPECT_EQ(runs, 1) << n;
  EXPECT_GE(c.agent(0)->debug_info()["agent.resent_requests"], 5);
}

TEST(Agent, a_caller_with_more_open_requests_than_its_callee_keeps_is_refused_with_overloaded) {
  Cluster c({.size = 2, .agent = {.max_served_per_peer = 3}});
  c.run(0, [&] {
    std::vector<Future<void>> open;
    for (int i = 0; i < 3; ++i) open.push_back(rpc_async<sleep_ms>("worker1", 1000));
    current_runtime()->sleep_for(1ms);
    try {
      rpc_sync<note>("worker1", 1);
      ADD_FAILURE() << "no error";
    } catch (const Overloaded& e) {
      EXPECT_STREQ(e.what(), "On worker 'worker1': more than 3 requests of one worker are open");
    }
    for (const auto& f : open) f.wait();
    EXPECT_EQ(rpc_sync<note>("worker1", 1), 2);
  });
}

TEST(Agent, malformed_frames_are_counted_and_do_no_harm) {
  Cluster c({.size = 2});
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) {
    std::string header(random() % 120, '\0');
    for (char& b : header) b = static_cast<char>(random());
    c.agent(1)->transport().send(WorkerId{0}, static_cast<uint8_t>(random()), header);
  }
  c.sim().run_for(1s);
  EXPECT_GT(c.agent(0)->debug_info()["agent.malformed"], 0);
}

TEST(Agent, the_dump_says_who_waits_for_whom) {
  Cluster c({.size = 3});
  c.run(0, [&] {
    const auto f = rpc_async<slow_twice>("worker1", 1000);
    current_runtime()->sleep_for(100ms);
    EXPECT_NE(c.agent(0)->dump().find("waits 100 ms for 'slow_twice' on worker 'worker1'"), std::string::npos)
        << c.agent(0)->dump();
    const std::string middle = c.agent(1)->dump();
    EXPECT_NE(
        middle.find("for 'sleep_ms' on worker 'worker2' (inside 'slow_twice' called by worker 'worker0')"),
        std::string::npos)
        << middle;
    EXPECT_EQ(f.wait(), 2000);
    EXPECT_EQ(c.agent(0)->dump(), "");
  });
}

TEST(Agent, an_allow_list_decides_who_may_call) {
  Cluster c({.size = 3, .each = [](int rank, AgentOptions& o) {
               if (rank == 1) o.allow["note"] = {"worker0"};
             }});
  c.run(0, [] { EXPECT_EQ(rpc_sync<note>("worker1", 1), 2); });
  c.run(2, [] {
    try {
      rpc_sync<note>("worker1", 1);
      FAIL();
    } catch (const NotAllowed& e) {
      EXPECT_STREQ(e.what(), "On worker 'worker1': worker 'worker2' may not call 'note'");
    }
    EXPECT_EQ(rpc_sync<note>("worker0", 1), 2);
  });
}

TEST(Agent, a_graceful_shutdown_waits_for_work_under_way_and_under_faults) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    g_runs.clear();
    Cluster c({.size = 4, .seed = seed, .net = {.jitter = 1ms, .drop = 0.1, .duplicate = 0.1}});
    std::vector<Future<int64_t>> kept;
    c.run(1, [&] { kept.push_back(rpc_async<down>("worker2", 9, 1)); });
    c.shutdown();
    EXPECT_EQ(kept[0].value(), 1);
    for (int rank = 0; rank < 4; ++rank) EXPECT_FALSE(c.agent(rank)->is_running());
  }
}

TEST(Agent, a_graceful_shutdown_that_cannot_end_names_what_it_waits_for_and_stops_all_the_same) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    const auto f = rpc_async<sleep_ms>("worker1", 50000);
    try {
      c.agent(0)->shutdown({.graceful = true, .timeout = 2s});
      FAIL();
    } catch (const Timeout& e) {
      EXPECT_NE(std::string(e.what()).find("'sleep_ms' on worker 'worker1'"), std::string::npos) << e.what();
    }
    EXPECT_FALSE(c.agent(0)->is_running());
    EXPECT_THROW(f.wait(), RpcError);
    EXPECT_THROW(rpc_sync<note>("worker1", 1), RpcError);
  });
}

/// Tells when its agent has ended whole.
std::atomic<int> g_witnesses_gone{0};
struct Witness {
  explicit Witness(Agent&) {}
  ~Witness() { ++g_witnesses_gone; }
};

// The last reference goes with an answer on the thread that reads from the transport, or with a handler on
// the pool.
TEST(Agent, an_agent_that_is_dropped_under_traffic_ends_when_its_calls_have_ended) {
  for (int round = 0; round < 10; ++round) {
    g_witnesses_gone = 0;
    std::vector<std::shared_ptr<Runtime>> runtimes;
    std::vector<Future<void>> open;
    {
      std::vector<std::shared_ptr<Agent>> agents;
      std::vector<Member> members;
      for (int id = 0; id < 2; ++id) {
        const std::shared_ptr<Runtime> runtime = runtimes.emplace_back(make_threaded_runtime({.threads = 2}));
        const auto transport = [&](Receiver& receiver) {
          return make_grpc_transport(runtime, {.id = WorkerId{id}}, receiver);
        };
        agents.push_back(Agent::create(runtime, {.name = str("worker", id), .id = WorkerId{id}}, transport));
        members.push_back(agents.back()->as_member());
        agents.back()->slot<Witness>();
      }
      for (const auto& agent : agents) agent->add_members(members);
      const AgentScope scope(agents[0]);
      for (int i = 0; i < 6; ++i) open.push_back(rpc_async<sleep_ms>("worker1", 5 * i));
      open[0].wait();
    }
    for (const auto& f : open) {
      try {
        f.wait();
      } catch (const PeerLost&) {  // worker 1, which nothing held but its handlers, may have left before
      }
    }
    for (int i = 0; i < 12000 && g_witnesses_gone < 2; ++i) runtimes[0]->sleep_for(5ms);
    EXPECT_EQ(g_witnesses_gone, 2);
    for (const auto& runtime : runtimes) EXPECT_EQ(runtime->stop(), 0);
  }
}

}  // namespace
