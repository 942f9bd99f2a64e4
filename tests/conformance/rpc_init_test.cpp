// The claims of docs/conformance.md on initialisation and values on the wire, and the one on faulty networks
// for calls alone. init_process_test.cpp has the refused starts of several processes.
#include "conformance/fixture.h"

#include <set>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/rref/rref.h>
#include <weft/distributed/transport/address.h>
#include <weft/distributed/wire/inner/wire_format.h>
#include <weft/tensor/factories.h>

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;
using test::has;
using test::text_of;

WEFT_CONFORMANCE(RpcLooking);

int self_rank() { return current_agent()->self().id.value; }
WEFT_RPC(self_rank);

// test_set_and_get_num_worker_threads
TEST(RpcPool, the_pool_size_that_was_asked_for_is_seen_in_the_debug_info) {
  for (const int threads : {3, 7}) {
    Cluster c({.over = test::Over::kGrpc, .size = 1, .threads = threads});
    c.run(0, [&] {
      rpc_sync<self_rank>(0);
      const auto info = debug_info();
      EXPECT_EQ(info.at("agent.thread_pool_size"), threads);
      EXPECT_GE(info.at("agent.num_threads"), info.at("agent.num_idle_threads"));
    });
  }
  init_rpc("worker0", {.rank = 0, .world_size = 1, .num_worker_threads = 5});
  EXPECT_EQ(debug_info().at("agent.thread_pool_size"), 5);
  rpc::shutdown();
}

// test_debug_info (rpc): every layer's keys under names that are its own, and none beside them
TEST_P(RpcLooking, the_debug_info_has_the_counters_of_agent_references_and_autograd) {
  const std::set<std::string> agent{"agent.thread_pool_size",
                                    "agent.num_threads",
                                    "agent.num_idle_threads",
                                    "agent.num_blocked_threads",
                                    "agent.queued_tasks",
                                    "agent.arriving_bytes",
                                    "agent.client_active_calls",
                                    "agent.server_active_calls",
                                    "agent.server_active_async_calls",
                                    "agent.client_calls",
                                    "agent.served_calls",
                                    "agent.served_errors",
                                    "agent.timeouts",
                                    "agent.resent_requests",
                                    "agent.resent_replies",
                                    "agent.duplicates",
                                    "agent.late_replies",
                                    "agent.statuses",
                                    "agent.malformed",
                                    "agent.lost_peers",
                                    "agent.kept_replies",
                                    "agent.peers",
                                    "agent.visited_peers",
                                    "agent.open_bytes",
                                    "agent.waiting_calls",
                                    "agent.waiting_bytes",
                                    "agent.credit_waits",
                                    "agent.served_bytes",
                                    "agent.kept_bytes",
                                    "agent.standing_bytes",
                                    "agent.reserved_bytes",
                                    "agent.put_off",
                                    "agent.dropped_results",
                                    "agent.dropped_requests",
                                    "agent.unproven_connections",
                                    "agent.closed_connections",
                                    "agent.same_host_lane",
                                    "agent.shared_bytes",
                                    "agent.shared_payloads",
                                    "agent.shared_no_room",
                                    "agent.shared_no_memory",
                                    "agent.shared_not_taken",
                                    "agent.passive_workers",
                                    "agent.watches"};
  const std::set<std::string> references{"num_owner_rrefs",      "num_forks",           "num_pending_users",
                                         "num_pending_children", "num_pending_futures", "num_user_rrefs",
                                         "num_shares",           "num_gone_rrefs"};
  const std::set<std::string> autograd{"dist_autograd.num_autograd_contexts",
                                       "dist_autograd.num_current_backward_passes",
                                       "dist_autograd.coded_tensors",
                                       "dist_autograd.coded_bytes_saved",
                                       "dist_autograd.feedback_bytes",
                                       "batch.calls",
                                       "batch.left_out",
                                       "batch.runs",
                                       "batch.waiting"};
  std::set<std::string> all = agent;
  all.insert(references.begin(), references.end());
  all.insert(autograd.begin(), autograd.end());
  ASSERT_EQ(all.size(), agent.size() + references.size() + autograd.size());  // disjoint
  Cluster c(options());
  c.run(0, [&] {
    for (int i = 0; i < 2; ++i) rpc_sync<self_rank>(1);
    const auto info = debug_info();
    std::set<std::string> keys;
    for (const auto& [key, value] : info) {
      keys.insert(key);
      EXPECT_GE(value, 0) << key;
    }
    EXPECT_EQ(keys, all);
    EXPECT_EQ(info.at("agent.client_calls"), 2);
    EXPECT_EQ(info.at("agent.client_active_calls"), 0);
    EXPECT_EQ(c.agent(1)->debug_info().at("agent.served_calls"), 2);
    const RRef<int> there = remote<self_rank>(1);
    EXPECT_EQ(there.to_here(), 1);
    EXPECT_EQ(c.agent(1)->debug_info().at("num_owner_rrefs"), 1);
    EXPECT_EQ(debug_info().at("num_user_rrefs"), 1);
  });
}

// test_rpc_builtin_timeout
TEST(RpcFaulty, a_late_call_is_bounded_by_its_own_time_by_the_default_or_by_nothing) {
  Cluster c({.size = 2});
  c.net().add_rule(
      {.kind = static_cast<uint8_t>(Kind::kCall), .action = FaultRule::Action::kDelay, .delay = 1500ms});
  c.run(0, [] {
    const Tensor x = ones({2});
    const auto late = [&](const To& to) {
      text_of<Timeout>([&] { rpc_sync<builtin::add>(to, x, x); });
      text_of<Timeout>([&] { rpc_async<builtin::add>(to, x, x).wait(); });
    };
    const auto in_time = [&](const To& to) {
      EXPECT_EQ(rpc_sync<builtin::add>(to, x, x).to_vector<float>(), (std::vector<float>{2, 2}));
      EXPECT_EQ(rpc_async<builtin::add>(to, x, x).wait().to_vector<float>(), (std::vector<float>{2, 2}));
    };
    late({"worker1", 1s});
    in_time("worker1");  // the default is a minute
    set_rpc_timeout(1ms);
    late("worker1");
    in_time({"worker1", 4s});
    in_time({"worker1", Duration(0)});
    set_rpc_timeout(Duration(0));
    in_time("worker1");
    late({"worker1", 1s});
  });
}

// test_reinit, test_init_rpc_twice, test_shutdown_followed_by_rpc
TEST(RpcInit, a_second_init_is_refused_and_one_after_a_shutdown_works) {
  EXPECT_THROW(rpc_sync<self_rank>(0), RpcError);
  for (int life = 0; life < 2; ++life) {
    init_rpc("worker0", {.rank = 0, .world_size = 1});
    EXPECT_EQ(rpc_sync<self_rank>("worker0"), 0);
    try {
      init_rpc("worker0", {.rank = 0, .world_size = 1});
      ADD_FAILURE();
    } catch (const RpcError& e) {
      EXPECT_NE(std::string(e.what()).find("is already initialized"), std::string::npos) << e.what();
    }
    rpc::shutdown();
    try {
      rpc_sync<self_rank>("worker0");
      ADD_FAILURE();
    } catch (const RpcError& e) {
      EXPECT_NE(std::string(e.what()).find("RPC has not been initialized"), std::string::npos) << e.what();
    }
    EXPECT_THROW(get_worker_infos(), RpcError);
    EXPECT_THROW(rpc::shutdown(), RpcError);
  }
}

// test_dynamic_rpc_init_rpc_without_rank: a rank is asked for before anything is opened
TEST(RpcInit, a_missing_rank_and_one_that_does_not_fit_are_value_errors_and_leave_no_agent) {
  const auto refused = [](const InitOptions& options) {
    return text_of<ValueError>([&] { init_rpc("worker0", options); });
  };
  EXPECT_TRUE(has(refused({.world_size = 2, .master_addr = "127.0.0.1", .master_port = 1}), "no rank"));
  EXPECT_TRUE(has(refused({.rank = 0}), "no world size"));
  EXPECT_TRUE(has(refused({.rank = 2, .world_size = 2, .master_addr = "127.0.0.1", .master_port = 1}),
                  "rank 2 is not in 0..1"));
  EXPECT_EQ(default_agent(), nullptr);
  init_rpc("worker0", {.rank = 0, .world_size = 1});
  EXPECT_EQ(rpc_sync<self_rank>("worker0"), 0);
  rpc::shutdown();
}

// C++ WireSerialize.Base, TensorpipeSerialize.Base
TEST(WireSerialize, body_and_tensors_come_back_in_every_combination) {
  for (const std::string& text : {std::string(), std::string("hi"), std::string(100, 'a')}) {
    for (size_t tensors = 0; tensors < 3; ++tensors) {
      Message m;
      {
        Encoder out(m);
        out.put(text);
        for (size_t i = 0; i < tensors; ++i) out.put(full({static_cast<int64_t>(i * 2000 + 1)}, 3.0));
      }
      seal(m);
      std::vector<Block> blocks;
      for (Payload& p : payloads_of(m)) {
        blocks.push_back(allocate_payload(p.bytes));
        std::memcpy(blocks.back().data, p.data, static_cast<size_t>(p.bytes));
      }
      const Envelope e = open_envelope(m.bytes);
      const Message back = unseal(m.bytes, std::move(blocks), e);
      Decoder in(back);
      EXPECT_EQ(in.get<std::string>(), text);
      for (size_t i = 0; i < tensors; ++i)
        EXPECT_EQ(in.get<Tensor>().sum().item<double>(), 3.0 * static_cast<double>(i * 2000 + 1));
      in.expect_end();
    }
  }
}

// PyTorch's tests say no more than that workers named on the command line of a real launch find each other:
// also by explicit options.
TEST(RpcInit, a_worker_that_never_joins_is_named) {
  const ReservedPort port;
  try {
    init_rpc("worker0", {.rank = 0,
                         .world_size = 2,
                         .master_addr = "127.0.0.1",
                         .master_port = port.port(),
                         .init_timeout = 300ms});
    FAIL();
  } catch (const Timeout& e) {
    EXPECT_NE(std::string(e.what()).find("missing: rank 1"), std::string::npos) << e.what();
  }
  EXPECT_THROW(get_worker_infos(), RpcError);
}

}  // namespace
