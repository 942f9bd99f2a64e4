// The distributed layer without the same-host lane (WEFT_LANE=OFF): options that ask for it have no effect.
// The program has tests of tests/transport too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/tensor/factories.h>

#include "transport/mailbox.h"
#include "transport/raw_lane.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

/// Keeps payloads of shared memory in place, if any come.
struct TakingBox final : Mailbox {
  using Mailbox::Mailbox;
  Block take(WorkerId, uint8_t, const std::string&, Block lent, int32_t) override {
    taken = true;
    return lent;
  }
  std::atomic<bool> taken{false};
};

/// A worker with the options of a program that wants the lane.
struct NoLaneEnd {
  NoLaneEnd(const std::shared_ptr<Runtime>& rt, int id)
      : box(*rt),
        t(make_grpc_transport(
            rt, {.id = WorkerId{id}, .same_host_lane = true, .shared_memory_bytes = 64 << 20}, box)) {}
  ~NoLaneEnd() { t->close(); }
  TakingBox box;
  std::shared_ptr<Transport> t;
};

TEST(NoLane, a_worker_has_no_socket_of_the_lane_and_the_build_says_so) {
  EXPECT_FALSE(has_same_host_lane());
  const auto rt = make_threaded_runtime();
  const NoLaneEnd a(rt, 0);
  const PeerAddress own = a.t->addresses();
  ASSERT_EQ(own.addresses.size(), 2u);  // gRPC's unix socket and its port
  EXPECT_TRUE(std::filesystem::is_socket(own.addresses[0].substr(5)));
  EXPECT_FALSE(std::filesystem::exists(own.addresses[0].substr(5) + kLaneEnd));
  EXPECT_EQ(lane_path_of(*a.t), "");
}

TEST(NoLane, large_payloads_go_over_gRPC_and_none_through_shared_memory) {
  const std::vector<uint8_t> large(3'000'000, 7);
  const auto rt = make_threaded_runtime();
  NoLaneEnd a(rt, 0), b(rt, 1);
  a.t->add_peer(WorkerId{1}, b.t->addresses());
  b.t->add_peer(WorkerId{0}, a.t->addresses());
  for (int i = 0; i < 3; ++i) a.t->send(WorkerId{1}, 5, "header", payloads_of(large));
  ASSERT_TRUE(b.box.wait_for(3));
  MutexLock lock(b.box.mutex);
  for (const Inbound& m : b.box.messages) {
    ASSERT_EQ(m.payloads.size(), 1u);
    EXPECT_FALSE(m.payloads[0].shared);
    EXPECT_EQ(std::memcmp(m.payloads[0].data, large.data(), large.size()), 0);
  }
  EXPECT_FALSE(b.box.taken);
  const SharedMemoryCounters shared = a.t->shared_memory();
  EXPECT_EQ(shared.bytes, 0);
  EXPECT_EQ(shared.payloads + shared.no_room + shared.no_memory + shared.not_taken, 0u);
  EXPECT_GE(a.t->counters(WorkerId{1}).bytes_sent, 9'000'000u);
}

TEST(NoLane, a_peer_that_has_a_lane_is_reached_over_gRPC) {
  const auto rt = make_threaded_runtime();
  NoLaneEnd a(rt, 0), b(rt, 1);
  PeerAddress with_lane = b.t->addresses();
  const std::string path = with_lane.addresses.at(0).substr(5) + kLaneEnd;
  const int listener = RawLane::listen_at(path);
  ASSERT_GE(listener, 0);
  with_lane.addresses.insert(with_lane.addresses.begin(), "unix:" + path);
  a.t->add_peer(WorkerId{1}, with_lane);
  b.t->add_peer(WorkerId{0}, a.t->addresses());
  a.t->send(WorkerId{1}, 1, "x");
  EXPECT_TRUE(b.box.wait_for(1));
  pollfd one{listener, POLLIN, 0};
  EXPECT_EQ(poll(&one, 1, 0), 0) << "a connection at the socket of the lane";
  close(listener);
  unlink(path.c_str());
}

int64_t no_lane_sum(const Tensor& x) { return static_cast<int64_t>(x.sum().item<float>()); }
WEFT_RPC(no_lane_sum);

TEST(NoLane, agents_call_each_other_and_their_debug_information_tells_that_there_is_none) {
  const auto rt = make_threaded_runtime();
  std::vector<std::shared_ptr<Agent>> agents;
  std::vector<Member> members;
  for (int rank = 0; rank < 2; ++rank) {
    AgentOptions options;
    options.id = WorkerId{rank};
    options.name = str("worker", rank);
    agents.push_back(Agent::create(rt, options, [&](Receiver& receiver) {
      return make_grpc_transport(rt, {.id = options.id}, receiver);
    }));
    members.push_back(agents.back()->as_member());
  }
  for (const auto& agent : agents) agent->add_members(members);
  for (const int from : {0, 1}) {
    const AgentScope scope(agents[static_cast<size_t>(from)]);
    const Tensor x = ones({500'000});
    EXPECT_EQ(rpc_sync<no_lane_sum>({str("worker", 1 - from), 60s}, x), 500'000);
    const auto info = agents[static_cast<size_t>(from)]->debug_info();
    EXPECT_EQ(info.at("agent.same_host_lane"), 0);
    EXPECT_EQ(info.at("agent.shared_bytes") + info.at("agent.shared_payloads"), 0);
  }
  for (const auto& agent : agents) agent->shutdown({.graceful = false});
  rt->stop();
}

}  // namespace
}  // namespace weft::rpc
