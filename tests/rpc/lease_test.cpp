// Leases over the simulated network: the peers under one, a loss without other evidence, and the number of
// messages that a lease costs.
#include <gtest/gtest.h>

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/rref/rref.h>

#include "support/cluster.h"
#include "support/errors.h"

namespace weft::test {

int64_t lease_note(int64_t n) { return n + 1; }
WEFT_RPC(lease_note);
void lease_sleep(int64_t ms) { rpc::current_runtime()->sleep_for(std::chrono::milliseconds(ms)); }
WEFT_RPC(lease_sleep);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;

int64_t count(Cluster& c, int rank, const char* what) {
  return c.agent(rank)->debug_info()[str("agent.", what)];
}

TEST(Lease, a_dead_caller_of_a_running_request_is_noticed_by_the_worker_that_only_serves_it) {
  std::vector<Life> lost;
  Cluster c({.size = 2, .net = {.break_notice = 1h}});
  c.agent(0)->on_peer_lost([&](const LostPeer& peer) { lost.push_back(peer.life()); });
  const Life caller = c.agent(1)->life();
  c.run(1, [&] {
    rpc_async<lease_sleep>({"worker0", 0s}, 3600 * 1000);
    current_runtime()->sleep_for(1s);
  });
  EXPECT_EQ(count(c, 0, "server_active_calls"), 1);
  c.kill(1);
  c.sim().run_for(12s);
  EXPECT_EQ(lost, std::vector<Life>{caller});
}

TEST(Lease, replies_that_a_dead_caller_has_not_acknowledged_are_dropped_within_a_lease) {
  bool lost = false;
  Cluster c({.size = 2, .net = {.break_notice = 1h}});
  c.agent(0)->on_peer_lost([&](const LostPeer&) { lost = true; });
  c.run(1, [&] {
    std::vector<Future<int64_t>> all;
    for (int64_t i = 0; i < 10; ++i) all.push_back(rpc_async<lease_note>("worker0", i));
    for (const auto& f : all) f.wait();
  });
  EXPECT_GE(count(c, 0, "kept_replies"), 1);
  c.kill(1);
  c.sim().run_for(12s);
  EXPECT_EQ(count(c, 0, "kept_replies"), 0);
  EXPECT_TRUE(lost);
}

TEST(Lease, a_caller_whose_acknowledgements_were_lost_is_asked_and_is_not_lost) {
  Cluster c({.size = 2});
  c.run(1, [] { EXPECT_EQ(rpc_sync<lease_note>("worker0", 1), 2); });
  c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kStatus), .from = WorkerId{1}});  // it cannot tell
  c.sim().run_for(60s);
  EXPECT_EQ(count(c, 0, "kept_replies"), 0);
  EXPECT_EQ(count(c, 0, "lost_peers") + count(c, 1, "lost_peers"), 0);
  EXPECT_LE(count(c, 0, "statuses"), 2);
}

TEST(Lease, idle_workers_exchange_no_messages) {
  Cluster c({.size = 3, .net = {.jitter = 1ms, .drop = 0.1, .duplicate = 0.1}});
  c.run_all([](int rank) {
    for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(rpc_sync<lease_note>((rank + 1) % 3, i), i + 1);
  });
  c.sim().run_for(30s);
  const auto sent = [&] {
    uint64_t all = 0;
    for (int a = 0; a < 3; ++a)
      for (int b = 0; b < 3; ++b) all += c.agent(a)->transport().counters(WorkerId{b}).messages_sent;
    return all;
  };
  const uint64_t before = sent();
  c.sim().run_for(1h);
  EXPECT_EQ(sent(), before);
  c.sim().run_until_idle();  // would not come back while a timer is set again and again
}

// The caller of a long request asks for it. Its callee, which is interested in it too, asks nothing.
TEST(Lease, a_long_request_costs_the_statuses_of_its_caller_only) {
  for (const Duration lease : {Duration(10s), Duration(2s)}) {
    Cluster c({.size = 2, .agent = {.lease = lease}});
    c.run(1, [&] {
      const auto open = rpc_async<lease_sleep>({"worker0", 0s}, 100 * 1000);
      open.wait();
    });
    const int64_t pause = std::min<int64_t>(2000, lease / 4ms);
    EXPECT_LE(count(c, 1, "statuses"), 100 * 1000 / pause + 10);
    EXPECT_EQ(count(c, 0, "statuses"), 0);
  }
}

// Both the transport's patience and its notice of a break are far below the lease.
TEST(Lease, a_cut_of_half_a_lease_costs_time_only) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    int64_t lost = 0;
    Cluster c({.size = 3, .seed = seed, .net = {.silence_notice = 300ms, .connect_timeout = 200ms}});
    for (int rank = 0; rank < 3; ++rank) c.agent(rank)->on_peer_lost([&](const LostPeer&) { ++lost; });
    c.run(0, [&] {
      EXPECT_EQ(rpc_sync<lease_note>("worker1", 1), 2);
      const auto open = rpc_async<lease_sleep>("worker1", 2000);
      current_runtime()->sleep_for(std::chrono::milliseconds(10 * seed));
      c.net().partition({WorkerId{0}}, {WorkerId{1}});
      const auto begun = rpc_async<lease_note>("worker1", 5);
      current_runtime()->sleep_for(5s);
      EXPECT_FALSE(open.done());
      EXPECT_FALSE(begun.done());
      c.net().heal();
      const TimePoint healed = current_runtime()->now();
      EXPECT_EQ(begun.wait(), 6);
      open.wait();
      EXPECT_LE(current_runtime()->now() - healed, 2s) << "seed " << seed;
    });
    c.sim().run_for(30s);
    EXPECT_EQ(lost, 0) << "seed " << seed;
  }
}

TEST(Lease, a_worker_whose_connections_are_refused_is_lost_when_the_lease_ends) {
  Cluster c({.size = 2, .net = {.connect_timeout = 200ms}});
  c.run(0, [&] {
    EXPECT_EQ(rpc_sync<lease_note>("worker1", 1), 2);
    c.kill(1);
    const TimePoint before = current_runtime()->now();
    try {
      rpc_sync<lease_note>("worker1", 1);
      ADD_FAILURE() << "a call to a dead worker returned";
    } catch (const PeerLost& e) {
      EXPECT_TRUE(has(e.what(), "nothing was heard from it for 10 s; it is "));
      EXPECT_TRUE(has(e.what(), "nobody listens at the address of worker 1"));
    }
    EXPECT_GE(current_runtime()->now() - before, 9s);
    EXPECT_LE(current_runtime()->now() - before, 11s);
  });
}

TEST(Lease, a_timeout_of_a_call_says_why_the_worker_is_not_connected_until_it_is) {
  Cluster c({.size = 2, .net = {.connect_timeout = 20s}});
  c.run(0, [&] {
    c.net().partition({WorkerId{0}}, {WorkerId{1}});
    const std::string text = error_of<Timeout>([&] { rpc_sync<lease_sleep>({"worker1", 1s}, 1); });
    EXPECT_TRUE(
        has(text, "ran for more than the timeout of 1 s; worker 'worker1' is not connected: no answer"));
    c.net().heal();
    rpc_sync<lease_sleep>("worker1", 1);
    const std::string connected = error_of<Timeout>([&] { rpc_sync<lease_sleep>({"worker1", 1s}, 60'000); });
    EXPECT_EQ(connected.find("not connected"), std::string::npos) << connected;
  });
}

TEST(Lease, a_late_creation_of_a_remote_value_says_why_its_owner_is_not_connected) {
  Cluster c({.size = 2, .net = {.connect_timeout = 1h}});
  c.net().partition({WorkerId{0}}, {WorkerId{1}});
  c.run(0, [&] {
    const auto late = remote<lease_note>({"worker1", 1s}, 1);
    current_runtime()->sleep_for(2s);
    const std::string text = error_of<Timeout>([&] { late.to_here(); });
    EXPECT_TRUE(has(text, "; worker 'worker1' is not connected: no answer from worker 1"));
  });
}

TEST(Lease, a_barrier_that_is_late_says_why_a_member_is_not_connected) {
  Cluster c({.size = 2, .net = {.connect_timeout = 1h}});
  c.net().partition({WorkerId{0}}, {WorkerId{1}});
  c.run(0, [&] {
    const std::string text = error_of<Timeout>([] { barrier({}, 5s); });
    EXPECT_TRUE(has(text, "still waiting for 'worker1'; worker 'worker1' is not connected: no answer from"));
  });
}

}  // namespace
