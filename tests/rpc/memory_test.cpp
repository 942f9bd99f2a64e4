// Messages for whose tensors a worker has no memory. The call fails with that error and is not sent for ever,
// and later calls work.
#include <gtest/gtest.h>

#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/sim/sim_runtime.h>
#include <weft/distributed/sim/sim_transport.h>
#include <weft/distributed/transport/grpc_transport.h>
#include <weft/tensor/factories.h>

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;

int64_t narrow_count(const Tensor& x) { return x.numel(); }
WEFT_RPC(narrow_count);
Tensor narrow_ones(int64_t n) { return ones({n}); }
WEFT_RPC(narrow_ones);

/// Between a transport and its agent: there is no memory for payloads above `most` bytes.
class Narrow final : public Receiver {
 public:
  Narrow(Receiver& to, int64_t most) : to_(to), most_(most) {}
  Block allocate(WorkerId from, uint8_t kind, const std::string& header, int64_t bytes,
                 int32_t device) override {
    if (bytes > most_) throw OutOfMemoryError(str("no memory for ", bytes, " bytes"));
    return to_.allocate(from, kind, header, bytes, device);
  }
  void on_message(Inbound message) override { to_.on_message(std::move(message)); }
  void on_unread(Inbound message) override { to_.on_unread(std::move(message)); }
  void on_peer(WorkerId peer, Incarnation life, PeerState state, const std::string& reason) override {
    to_.on_peer(peer, life, state, reason);
  }
  void on_failed_attempt(WorkerId peer, Incarnation life, const std::string& reason) override {
    to_.on_failed_attempt(peer, life, reason);
  }

 private:
  Receiver& to_;
  const int64_t most_;
};

/// Two workers; worker `narrow` has no memory for large payloads.
struct Two {
  Two(bool simulated, int narrow) {
    std::shared_ptr<SimRuntime> sim;
    if (simulated) {
      sim = std::make_shared<SimRuntime>(SimOptions{.seed = 3});
      net = std::make_unique<SimNetwork>(*sim, SimNetOptions{});
    }
    std::vector<Member> members;
    for (int id = 0; id < 2; ++id) {
      runtimes.push_back(simulated ? std::shared_ptr<Runtime>(sim) : make_threaded_runtime({.threads = 2}));
      const auto runtime = runtimes.back();
      agents.push_back(Agent::create(
          runtime, {.name = str("worker", id), .id = WorkerId{id}, .rpc_timeout = 60s},
          [&](Receiver& receiver) -> std::shared_ptr<Transport> {
            between.push_back(std::make_unique<Narrow>(receiver, id == narrow ? 100'000 : int64_t{1} << 40));
            if (simulated) return net->attach(WorkerId{id}, *between.back());
            return make_grpc_transport(runtime, {.id = WorkerId{id}}, *between.back());
          }));
      members.push_back(agents.back()->as_member());
    }
    for (const auto& agent : agents) agent->add_members(members);
  }
  ~Two() {
    for (const auto& agent : agents) agent->shutdown({.graceful = false});
    runtimes[0]->stop();
    if (!net) runtimes[1]->stop();
  }
  std::vector<std::shared_ptr<Runtime>> runtimes;
  std::unique_ptr<SimNetwork> net;
  std::vector<std::unique_ptr<Narrow>> between;
  std::vector<std::shared_ptr<Agent>> agents;
};

class Narrowed : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Over, Narrowed, ::testing::Values(true, false),
                         [](const auto& param) { return std::string(param.param ? "sim" : "grpc"); });

/// Calls that need memory at `narrow`, each followed by one that does not.
void check(Two& two) {
  const AgentScope scope(two.agents[0]);
  for (int i = 0; i < 3; ++i) {
    try {
      rpc_sync<narrow_count>("worker1", rpc_sync<narrow_ones>("worker1", int64_t{50'000}));
      ADD_FAILURE() << "no error";
    } catch (const OutOfMemoryError& e) {
      EXPECT_NE(std::string(e.what()).find("no memory for 200000 bytes"), std::string::npos) << e.what();
    }
    EXPECT_EQ(rpc_sync<narrow_count>("worker1", ones({1000, 7})), 7000);
  }
  EXPECT_FALSE(two.agents[0]->is_lost(WorkerId{1}));
}

TEST_P(Narrowed, a_request_without_memory_at_the_callee_fails_by_name_and_the_next_call_works) {
  Two two(GetParam(), 1);
  check(two);
}

TEST_P(Narrowed, a_reply_without_memory_at_the_caller_fails_by_name_and_the_next_call_works) {
  Two two(GetParam(), 0);
  check(two);
}

TEST(Memory, the_limits_of_init_rpc_are_those_of_the_workers_messages) {
  init_rpc("alone", {.world_size = 1, .limits = {.max_message_bytes = 100'000}});
  EXPECT_EQ(rpc_sync<narrow_count>("alone", ones({10, 7})), 70);
  EXPECT_THROW(rpc_sync<narrow_count>("alone", ones({50'000})), WireError);
  EXPECT_EQ(rpc_sync<narrow_count>("alone", ones({10'000})), 10'000);
  shutdown();
}

}  // namespace
