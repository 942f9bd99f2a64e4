// Agents whose transport's threads find no memory. A call ends by a value or a typed error, and runs at most
// once. Nothing is kept of it afterwards, and later calls work.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <new>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/rpc/inner/agent_impl.h>
#include <weft/distributed/rpc/result_dropped.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/replaced_new.h"
#include "support/scarce_memory.h"

namespace weft::test {

std::map<int64_t, int> g_scarce_runs;  // how often scarce_run(n, ...) ran

Tensor scarce_run(int64_t n, const Tensor& x) {
  ++g_scarce_runs[n];
  return x + 1.f;
}
WEFT_RPC(scarce_run);
void scarce_throw(int64_t n) {
  ++g_scarce_runs[n];
  throw ValueError("a text that is no short string, so that it needs memory");
}
WEFT_RPC(scarce_throw);
void scarce_sleep() { rpc::current_runtime()->sleep_for(std::chrono::seconds(20)); }
WEFT_RPC(scarce_sleep);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;
using RpcNoMemory = ScarceMemory;

/// Between a transport and its agent: the next message of a kind has few allocations left.
class ScarceReceiver final : public Receiver {
 public:
  explicit ScarceReceiver(Receiver& to) : to_(to) {}
  Block allocate(WorkerId from, uint8_t kind, const std::string& header, int64_t bytes,
                 int32_t device) override {
    return to_.allocate(from, kind, header, bytes, device);
  }
  void on_message(Inbound message) override {
    if (left < 0 || message.kind != kind) return to_.on_message(std::move(message));
    struct Counted {
      ScarceReceiver& of;
      const NoMemory scarce;
      ~Counted() { of.was_short = scarce.was_short(); }
    } const counted{*this, NoMemory(std::exchange(left, -1), failures)};
    to_.on_message(std::move(message));
  }
  void on_unread(Inbound message) override { to_.on_unread(std::move(message)); }
  void on_peer(WorkerId peer, Incarnation life, PeerState state, const std::string& reason) override {
    to_.on_peer(peer, life, state, reason);
  }
  void on_failed_attempt(WorkerId peer, Incarnation life, const std::string& reason) override {
    to_.on_failed_attempt(peer, life, reason);
  }
  int left = -1, failures = 0;
  uint8_t kind = 0;
  bool was_short = false;

 private:
  Receiver& to_;
};

/// Calls whose request, or whose reply, has fewer and fewer allocations left where it arrives.
void check_calls(bool at_callee, int failures, bool throws) {
  g_scarce_runs.clear();
  std::vector<std::unique_ptr<ScarceReceiver>> between;
  ClusterOptions o{.size = 2};
  o.agent.rpc_timeout = 30s;
  o.before = [&](int, Receiver& agent) -> Receiver& {
    return *between.emplace_back(std::make_unique<ScarceReceiver>(agent));
  };
  Cluster c(o);
  ScarceReceiver& scarce = *between.at(at_callee ? 1 : 0);
  scarce.kind = static_cast<uint8_t>(static_cast<uint8_t>(Kind::kCall) | (at_callee ? 0 : kReplyBit));
  scarce.failures = failures;
  c.run(0, [&] {
    const Tensor x = ones({3000});
    int64_t n = 0;
    for (int left = 0; left < 500; ++left) {
      scarce.was_short = false;
      scarce.left = left;
      ++n;
      try {
        if (throws) rpc_sync<scarce_throw>("worker1", n);
        else EXPECT_EQ(rpc_sync<scarce_run>("worker1", n, x).sum().item<float>(), 6000.f);
        EXPECT_FALSE(throws);
      } catch (const ValueError&) {
        EXPECT_TRUE(throws);
      } catch (const OutOfMemoryError&) {  // a refusal, or of the reply
      } catch (const ResultDropped&) {
      } catch (const std::bad_alloc&) {  // at this worker
        EXPECT_FALSE(at_callee);
      }
      EXPECT_LE(g_scarce_runs[n], 1) << left;
      scarce.left = -1;
      ++n;
      EXPECT_EQ(rpc_sync<scarce_run>("worker1", n, x).sum().item<float>(), 6000.f) << left;
      if (!scarce.was_short) break;
      EXPECT_LT(left, 499) << "one message needs a limited number of allocations";
    }
    EXPECT_FALSE(c.agent(0)->is_lost(WorkerId{1}));
    EXPECT_FALSE(c.agent(1)->is_lost(WorkerId{0}));
  });
  for (const char* key : {"agent.kept_replies", "agent.server_active_calls", "agent.client_active_calls",
                          "agent.open_bytes", "agent.served_bytes", "agent.kept_bytes"})
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(eventually(c, [&] { return c.agent(rank)->debug_info().at(key) == 0; })) << key << rank;
}

TEST_F(RpcNoMemory, a_request_that_one_allocation_fails_ends_its_call_at_most) {
  check_calls(true, 1, false);
}
TEST_F(RpcNoMemory, a_request_without_any_memory_ends_its_call_at_most) { check_calls(true, 1 << 20, false); }
TEST_F(RpcNoMemory, a_request_of_a_function_that_throws_ends_its_call_at_most) { check_calls(true, 1, true); }
TEST_F(RpcNoMemory, a_reply_that_one_allocation_fails_ends_its_call_at_most) { check_calls(false, 1, false); }
TEST_F(RpcNoMemory, a_reply_without_any_memory_ends_its_call_at_most) { check_calls(false, 1 << 20, false); }
TEST_F(RpcNoMemory, a_reply_with_an_error_ends_its_call_at_most) { check_calls(false, 1 << 20, true); }

// It is the first call between these workers, so the alarm of the caller has no place for the callee yet.
TEST_F(RpcNoMemory, a_first_call_that_one_allocation_fails_ends_at_its_deadline) {
  bool was_short = true;
  for (int left = 0; was_short; ++left) {
    ASSERT_LT(left, 500) << "one call needs a limited number of allocations";
    Cluster c({.size = 2});
    c.run(0, [&] {
      {
        const NoMemory scarce(left, 1);
        try {
          rpc_async<scarce_sleep>(To("worker1", 5s));
        } catch (const std::bad_alloc&) {
        }
        was_short = scarce.was_short();
      }
      current_runtime()->sleep_for(15s);
      EXPECT_EQ(c.agent(0)->dump(), "") << left;
      EXPECT_EQ(c.agent(0)->debug_info().at("agent.client_active_calls"), 0) << left;
      EXPECT_EQ(c.agent(0)->debug_info().at("agent.open_bytes"), 0) << left;
    });
  }
}

TEST_F(RpcNoMemory, the_first_time_of_a_peer_needs_no_allocation) {
  Cluster c({.size = 3});
  Agent::Impl& agent = c.agent(0)->impl();
  Peer &first = agent.peers.at(WorkerId{1}), &second = agent.peers.at(WorkerId{2});
  agent.alarm.set(first, c.runtime().now() + 1s);  // sets the timer
  const NoMemory scarce;
  EXPECT_NO_THROW(agent.alarm.set(second, c.runtime().now() + 2s));
}

}  // namespace
