// The claims of docs/conformance.md on references, over the simulated network and over gRPC in one process. A
// comment names PyTorch's tests.
#include <gtest/gtest.h>

#include "conformance/rref_values.h"
#include "support/cluster.h"
#include "support/errors.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using namespace weft::test;

class RRefRows : public testing::TestWithParam<Over> {
 protected:
  Cluster c{{.over = GetParam(), .size = 4}};
  static double total(const Tensor& t) { return t.sum().item<double>(); }
  int64_t count(int rank, const char* key) { return c.agent(rank)->debug_info().at(key); }
  /// Waits until a counter has a value.
  bool comes_to(int rank, const char* key, int64_t value) {
    for (int i = 0; i < 12000 && count(rank, key) != value; ++i) c.runtime(rank).sleep_for(5ms);
    return count(rank, key) == value;
  }
  bool comes_to_nothing() {
    bool all = true;
    for (int rank = 0; rank < 4; ++rank)
      for (const char* key :
           {"num_owner_rrefs", "num_forks", "num_pending_users", "num_pending_children", "num_user_rrefs"})
        all = comes_to(rank, key, 0) && all;
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, RRefRows, testing::Values(Over::kSim, Over::kGrpc),
                         [](const auto& info) { return weft::test::to_string(info.param); });

// test_builtin_remote_ret, test_builtin_remote_self
TEST_P(RRefRows, a_builtin_makes_a_value_remotely_and_on_oneself) {
  c.run(0, [&] {
    const auto there = remote<builtin::add>("worker1", ones({2, 3}), ones({2, 3}));
    const auto here = remote<builtin::add>("worker0", ones({2}), ones({2}));
    EXPECT_EQ(total(there.to_here()), 12);
    EXPECT_EQ(total(here.to_here()), 4);
    EXPECT_FALSE(there.is_owner());
    EXPECT_TRUE(here.is_owner());
    EXPECT_EQ(total(here.local_value()), 4);
  });
}

// test_multi_builtin_remote_ret, test_multi_py_udf_remote
TEST_P(RRefRows, ten_references_live_together) {
  c.run(0, [&] {
    std::vector<RRef<Tensor>> all;
    for (int i = 0; i < 10; ++i) all.push_back(remote<row_add>(1 + i % 3, full({2}, i), full({2}, i)));
    for (int i = 0; i < 10; ++i) EXPECT_EQ(total(all[static_cast<size_t>(i)].to_here()), 4.0 * i);
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_py_udf_remote, test_self_py_udf_remote
TEST_P(RRefRows, a_function_of_the_user_makes_a_value) {
  c.run(2, [&] {
    for (const int to : {0, 2}) EXPECT_EQ(total(remote<row_add>(to, ones({3}), full({3}, 4)).to_here()), 15);
  });
}

// test_py_rref_args, test_py_rpc_rref_args
TEST_P(RRefRows, two_references_pass_to_their_owner) {
  c.run(0, [&] {
    const auto a = remote<row_add>("worker1", ones({2}), ones({2})),
               b = remote<row_add>("worker1", ones({2}), full({2}, 2));
    EXPECT_EQ(total(remote<row_add_rrefs>("worker1", a, b).to_here()), 10);
    EXPECT_EQ(total(rpc_sync<row_add_rrefs>("worker1", a, b)), 10);
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_py_rref_args_user_share
TEST_P(RRefRows, two_references_pass_to_a_third_worker) {
  c.run(0, [&] {
    const auto a = remote<row_add>("worker1", ones({2}), ones({2})),
               b = remote<row_add>("worker1", ones({2}), full({2}, 2));
    EXPECT_EQ(total(remote<row_add_rrefs>("worker2", a, b).to_here()), 10);
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_self_remote_rref_as_rpc_arg, _as_self_rpc_arg, _as_remote_arg, _as_self_remote_arg
TEST_P(RRefRows, a_reference_to_ones_own_value_passes_everywhere) {
  c.run(0, [&] {
    const auto mine = remote<row_add>("worker0", ones({2}), ones({2}));
    for (const int to : {0, 1, 3}) {
      EXPECT_EQ(rpc_sync<row_value>(to, mine), 4);
      EXPECT_EQ(total(remote<row_add_rrefs>(to, mine, mine).to_here()), 8);
    }
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_nested_remote
TEST_P(RRefRows, remote_inside_remote_gives_a_reference_to_a_reference) {
  c.run(0, [&] {
    const RRef<RRef<Tensor>> outer = remote<row_nested_remote>("worker1", 2, ones({2}), ones({2}));
    const RRef<Tensor> inner = outer.to_here();
    EXPECT_EQ(inner.owner_name(), "worker2");
    EXPECT_EQ(total(inner.to_here()), 4);
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_nested_rref, test_nested_rref_stress
TEST_P(RRefRows, references_inside_the_values_of_references) {
  c.run(0, [&] {
    std::vector<RRef<RRef<RRef<Tensor>>>> all;
    for (int i = 0; i < 20; ++i) all.push_back(remote<row_nested_rref>(1, 2, full({2}, i)));
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(total(all[static_cast<size_t>(i)].to_here().to_here().to_here()), 2.0 * (i + 1));
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_rpc_return_rref, test_return_local_rrefs
TEST_P(RRefRows, a_function_returns_references_fresh_ones_of_its_own_too) {
  c.run(0, [&] {
    EXPECT_EQ(total(rpc_sync<row_nested_remote>("worker1", 2, ones({2}), ones({2})).to_here()), 4);
    EXPECT_EQ(rpc_sync<row_nested_remote>("worker1", 0, ones({2}), ones({2})).local_value().numel(), 2);
    const auto all = rpc_sync<row_local_rrefs>("worker1", 5);
    ASSERT_EQ(all.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(all[i].owner_name(), "worker1");
      EXPECT_EQ(total(all[i].to_here()), 2.0 * static_cast<double>(i));
    }
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_pass_local_rrefs, test_remote_same_worker
TEST_P(RRefRows, a_local_value_is_shared_by_sync_async_and_remote_calls) {
  c.run(0, [&] {
    const RRef<Tensor> mine(full({3}, 2));
    EXPECT_EQ(rpc_sync<row_value>("worker1", mine), 6);
    EXPECT_EQ(rpc_async<row_value>("worker2", mine).wait(), 6);
    EXPECT_EQ(remote<row_value>("worker3", mine).to_here(), 6);
    const auto there = remote<row_add>("worker1", ones({2}), ones({2}));
    EXPECT_EQ(remote<row_value>("worker1", there).to_here(), 4);
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_rref_forward_chain
TEST_P(RRefRows, a_reference_is_good_after_eight_forwards) {
  c.run(0, [&] {
    EXPECT_EQ(rpc_sync<row_forward>("worker1", remote<row_add>("worker1", ones({2}), ones({2})), 8), 4);
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_local_rref_no_fork
TEST_P(RRefRows, a_local_value_needs_no_fork) {
  c.run(0, [&] {
    const RRef<Tensor> mine(ones({5}));
    EXPECT_EQ(total(mine.local_value()), 5);
    EXPECT_EQ(total(mine.to_here()), 5);
    EXPECT_EQ(count(0, "num_forks"), 0);
  });
}

// test_local_value_not_on_owner
TEST_P(RRefRows, local_value_off_the_owner_is_an_error_that_names_ids_user_and_owner) {
  c.run(0, [&] {
    const auto there = remote<row_add>("worker1", ones({2}), ones({2}));
    const std::string text = error_of<RpcError>([&] { there.local_value(); });
    EXPECT_TRUE(has(text, "local_value()") && has(text, "RRefId(created_on=0, local_id=") &&
                has(text, "ForkId(created_on=0, local_id="))
        << text;
    EXPECT_TRUE(has(text, "worker 'worker0' (0) is a user") && has(text, "owner worker 'worker1' (1)"))
        << text;
  });
}

// test_owner_equality
TEST_P(RRefRows, owners_compare_and_serve_as_keys_of_a_map) {
  c.run(0, [&] {
    const auto a = remote<row_add>("worker1", ones({2}), ones({2})),
               b = remote<row_add>(1, ones({2}), ones({2})), other = remote<row_add>(2, ones({2}), ones({2}));
    EXPECT_EQ(a.owner(), b.owner());
    EXPECT_NE(a.owner(), other.owner());
    std::unordered_map<WorkerInfo, int> by_owner;
    for (const auto& r : {a, b, other}) ++by_owner[r.owner()];
    EXPECT_EQ(by_owner.at(c.agent(1)->self()), 2);
    EXPECT_FALSE(a == b);
    EXPECT_TRUE(a == RRef<Tensor>(a));
    EXPECT_TRUE(rpc_sync<row_nested_remote>(1, 0, ones({2}), ones({2})).is_owner());
  });
}

// test_rref_str
TEST_P(RRefRows, a_reference_prints_its_ids) {
  c.run(0, [&] {
    const RRef<Tensor> mine(ones({2}));
    EXPECT_EQ(mine.str(), str("OwnerRRef(RRefId(created_on=0, local_id=", mine.id().local, "))"));
    const auto there = remote<row_add>("worker1", ones({2}), ones({2}));
    EXPECT_EQ(there.str(), str("UserRRef(RRefId(created_on=0, local_id=", there.id().local,
                               "), ForkId(created_on=0, local_id=", there.fork_id().local,
                               "), owner worker 'worker1' (1))"));
    EXPECT_EQ(RRef<Tensor>().str(), "RRef()");
    EXPECT_THROW(RRef<Tensor>().owner(), RpcError);
  });
}

// test_call_method_on_rref
TEST_P(RRefRows, state_accumulates_on_the_owner_by_sync_async_and_remote_methods) {
  c.run(0, [&] {
    for (const int to : {0, 1}) {
      const auto counter = remote<RowCounter>(to, 10);
      EXPECT_EQ(counter.rpc_sync<&RowCounter::add>(1), 11);
      EXPECT_EQ(counter.rpc_async<&RowCounter::add>(2).wait(), 13);
      EXPECT_EQ(counter.remote<&RowCounter::add>(4).to_here(), 17);
      EXPECT_EQ(counter.rpc_sync<&RowCounter::value>(), 17);
    }
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_rref_proxy_tensor(_self), test_rref_proxy_class(_self)
TEST_P(RRefRows, methods_with_tensors_run_where_the_object_is_in_three_kinds) {
  c.run(0, [&] {
    for (const int to : {0, 1}) {
      const auto counter = remote<RowCounter>(to, 3);
      EXPECT_EQ(total(counter.rpc_sync<&RowCounter::times>(ones({2}))), 6);
      EXPECT_EQ(total(counter.rpc_async<&RowCounter::times>(ones({2})).wait()), 6);
      EXPECT_EQ(total(counter.remote<&RowCounter::times>(ones({2})).to_here()), 6);
    }
  });
}

// test_rref_proxy_reuse
TEST_P(RRefRows, a_reference_with_a_time_limit_is_used_again) {
  c.run(0, [&] {
    const auto limited = remote<RowCounter>("worker1", 3).within(30s);
    EXPECT_EQ(limited.rpc_sync<&RowCounter::add>(1), 4);
    EXPECT_EQ(limited.rpc_sync<&RowCounter::value>(), 4);
    EXPECT_EQ(limited.remote<&RowCounter::value>().to_here(), 4);
  });
}

// test_rref_proxy_non_exist
TEST_P(RRefRows, a_method_that_is_not_registered_is_an_error_in_three_kinds) {
  c.run(0, [&] {
    const auto counter = remote<RowCounter>("worker1", 3);
    EXPECT_TRUE(has(error_of<UnknownFunction>([&] { counter.rpc_sync<&RowCounter::unregistered>(); }),
                    "RowCounter::unregistered' is not registered in this program; WEFT_RPC_CLASS"));
    EXPECT_THROW(counter.rpc_async<&RowCounter::unregistered>(), RpcError);
    EXPECT_THROW(counter.remote<&RowCounter::unregistered>(), RpcError);
    EXPECT_THROW(remote<row_never_registered>("worker1", 3), RpcError);
  });
}

// test_rref_proxy_timeout
TEST_P(RRefRows, a_time_limit_covers_a_slow_method_and_a_slow_construction) {
  c.run(0, [&] {
    const auto counter = remote<RowCounter>("worker1", 3);
    row_gate().close();
    EXPECT_THROW(counter.within(20ms).rpc_sync<&RowCounter::slow_add>(1, kAtGate), Timeout);
    EXPECT_THROW(counter.within(20ms).rpc_async<&RowCounter::slow_add>(1, kAtGate).wait(), Timeout);
    const auto slow = remote<RowCounter>("worker1", 3, kAtGate);
    EXPECT_THROW(slow.within(20ms).rpc_sync<&RowCounter::value>(), Timeout);
    row_gate().open = true;
    EXPECT_EQ(slow.rpc_sync<&RowCounter::value>(), 3);
    // the call that timed out here ran there
    EXPECT_TRUE(eventually(c, [&] { return counter.rpc_sync<&RowCounter::value>() == 5; }));
    row_gate().close();
    const auto late = counter.within(20ms).remote<&RowCounter::slow_add>(1, kAtGate);
    EXPECT_THROW(late.created().wait(), Timeout);
    EXPECT_THROW(late.to_here(), Timeout);
    row_gate().open = true;
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_rref_get_future
TEST_P(RRefRows, the_future_of_a_creation_is_done_when_the_value_is_made) {
  c.run(0, [&] {
    for (const int to : {0, 1}) {
      const auto r = remote<row_add>(to, ones({2}), ones({2}));
      r.created().wait();
      EXPECT_TRUE(r.created().done());
      EXPECT_TRUE(r.confirmed_by_owner());
      EXPECT_THROW(remote<row_fail>(to, ones({2})).created().wait(), ValueError);
    }
  });
}

// test_remote_with_exception, test_remote_throw
TEST_P(RRefRows, an_error_of_the_creation_lives_in_the_reference) {
  c.run(0, [&] {
    for (const int to : {0, 1}) {
      const auto bad = remote<row_fail>(to, ones({2}));
      EXPECT_TRUE(has(error_of<ValueError>([&] { bad.to_here(); }), "expected error with 2 numbers"));
      EXPECT_TRUE(has(error_of<ValueError>([&] { bad.to_here(); }), "expected error"));  // each time
      EXPECT_TRUE(has(error_of<ValueError>([&] { rpc_sync<row_value>("worker2", bad); }), "expected error"));
    }
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_rref_timeout
TEST_P(RRefRows, a_creation_that_takes_too_long_shows_at_use_and_the_owner_counts_right) {
  c.run(0, [&] {
    {
      row_gate().close();
      const auto slow = remote<row_slow>({"worker1", 50ms}, kAtGate);
      EXPECT_THROW(slow.created().wait(), Timeout);
      EXPECT_TRUE(
          has(error_of<Timeout>([&] { slow.to_here(); }), "RRef creation via rpc.remote() timed out"));
      EXPECT_TRUE(comes_to(1, "num_owner_rrefs", 1));
      EXPECT_TRUE(comes_to(1, "num_forks", 1));
      row_gate().open = true;
      EXPECT_TRUE(comes_to(1, "agent.server_active_calls", 0));
      // although it exists by now
      EXPECT_TRUE(has(error_of<Timeout>([&] { rpc_sync<row_value>("worker2", slow); }), "timed out"));
    }
    EXPECT_TRUE(comes_to_nothing());
  });
}

// test_user_rrefs_confirmed, test_user_rrefs_confirmed_remote
TEST_P(RRefRows, a_reference_is_confirmed_before_the_function_that_takes_it_starts) {
  c.run(0, [&] {
    for (int i = 0; i < 5; ++i) {
      const auto r = remote<row_slow>("worker1", 20);
      EXPECT_TRUE(rpc_sync<row_confirmed>("worker2", r));
      EXPECT_TRUE(remote<row_confirmed>("worker3", r).to_here());
    }
  });
}

// test_rref_context_debug_info
TEST_P(RRefRows, counts_rise_when_a_value_is_shared_and_return_to_zero) {
  c.run(0, [&] {
    RRef<Tensor> mine(ones({2}));
    EXPECT_EQ(count(0, "num_owner_rrefs"), 0);
    {
      const auto there = remote<row_nested_rref>("worker1", 1, ones({2}));
      there.created().wait();
      EXPECT_TRUE(comes_to(0, "num_pending_users", 0));
      // the inner value is held inside the outer one, on its own owner
      EXPECT_TRUE(comes_to(1, "num_owner_rrefs", 1));
      EXPECT_TRUE(comes_to(1, "num_forks", 1));
    }
    EXPECT_TRUE(comes_to(1, "num_owner_rrefs", 0));
    const auto all = rpc_sync<row_local_rrefs>("worker2", 3);
    EXPECT_EQ(count(2, "num_owner_rrefs"), 3);
    EXPECT_EQ(count(2, "num_forks"), 3);
  });
  EXPECT_TRUE(comes_to_nothing());
}

// test_rref_leak, test_ignore_rref_leak
TEST_P(RRefRows, references_held_at_shutdown_are_reported_or_thrown_by_option) {
  std::optional<RRef<Tensor>> kept;
  c.run(0, [&] { kept = remote<row_add>("worker1", ones({2}), ones({2})); });
  set_leak_policy(*c.agent(1), LeakPolicy::kThrow);
  const std::string text = error_of<RpcError>([&] { c.shutdown(); });
  EXPECT_TRUE(has(text, "Leaking RRefs") && has(text, str(kept->id())) && has(text, "rref_test.cpp:") &&
              has(text, "row_add"))
      << text;
  const auto leaks = leaked_rrefs(*c.agent(1));
  ASSERT_EQ(leaks.size(), 1u);
  EXPECT_EQ(leaks[0].user.name, "worker0");
  EXPECT_EQ(leaked_rrefs(*c.agent(0)).size(), 0u);
}

TEST_P(RRefRows, references_held_at_shutdown_do_not_hinder_it) {
  std::optional<RRef<Tensor>> kept;
  c.run(0, [&] { kept = remote<row_add>("worker1", ones({2}), ones({2})); });
  c.shutdown();
  EXPECT_EQ(leaked_rrefs(*c.agent(1)).size(), 1u);
}

// test_non_garbage_collected_user_rref_due_to_local_circular_dependency
TEST_P(RRefRows, values_that_hold_each_other_do_not_hinder_shutdown) {
  c.run(0, [&] {
    const auto a = remote<RowHolder>("worker1"), b = remote<RowHolder>("worker2");
    a.rpc_sync<&RowHolder::hold>(b);
    b.rpc_sync<&RowHolder::hold>(a);
    EXPECT_TRUE(a.rpc_sync<&RowHolder::holds>());
  });
  c.shutdown();
  EXPECT_EQ(leaked_rrefs(*c.agent(1)).size(), 1u);
  EXPECT_EQ(leaked_rrefs(*c.agent(2)).size(), 1u);
}

// test_use_rref_after_shutdown
TEST_P(RRefRows, a_reference_is_refused_after_shutdown) {
  std::optional<RRef<Tensor>> kept, own;
  c.run(0, [&] {
    kept = remote<row_add>("worker1", ones({2}), ones({2}));
    own.emplace(ones({2}));
  });
  c.shutdown();
  c.run(0, [&] {
    EXPECT_TRUE(has(error_of<RpcError>([&] { kept->to_here(); }), "RPC has not been initialized"));
    EXPECT_TRUE(has(error_of<RpcError>([&] { rpc_sync<row_value>("worker1", *kept); }),
                    "RPC has not been initialized"));
    EXPECT_EQ(own->local_value().numel(), 2);
  });
}

// test_rref_py_pickle_not_supported
TEST_P(RRefRows, a_reference_is_not_encoded_outside_a_call) {
  c.run(0, [&] {
    const RRef<Tensor> mine(ones({2}));
    Message m;
    Encoder out(m);
    EXPECT_TRUE(has(error_of<RpcError>([&] { out.put(mine); }), "travels only in a call"));
    EXPECT_TRUE(has(error_of<RpcError>([&] { all_gather(mine, {"worker0"}); }), "travels only in a call"));
  });
  EXPECT_EQ(count(0, "num_forks"), 0);
}

// test_my_parameter_server, ParameterServerTest.test_batch_updating_parameter_server
TEST_P(RRefRows, a_server_held_by_reference_averages_and_releases_all_trainers) {
  c.run(0, [&] {
    const auto server = make_rref<RowServer>(3);
    std::vector<Future<double>> trainers;
    for (int rank = 1; rank < 4; ++rank) trainers.push_back(rpc_async<row_train>(rank, server, 4));
    for (const auto& t : trainers) EXPECT_EQ(t.wait(), -12);
  });
  EXPECT_TRUE(comes_to_nothing());
}

// ReinforcementLearningRpcTest.test_rl_rpc
TEST_P(RRefRows, observers_teach_an_agent_held_by_reference) {
  c.run(0, [&] {
    const auto agent = make_rref<RowAgent>();
    double score = 0;
    int rounds = 0;
    for (; rounds < 20 && score < 1; ++rounds) {
      std::vector<Future<double>> episodes;
      for (int rank = 1; rank < 4; ++rank) episodes.push_back(rpc_async<row_episode>(rank, agent, 6));
      score = 1;
      for (const auto& e : episodes) score = std::min(score, e.wait());
    }
    EXPECT_EQ(score, 1);
    EXPECT_LT(rounds, 20);
  });
}

// test_async_class_rref_proxy belongs to the futures; this is its core: a serialized object is never entered
// twice
TEST_P(RRefRows, methods_of_a_serialized_class_run_one_at_a_time) {
  c.run(0, [&] {
    const auto counter = remote<RowCounter>("worker1", 0);
    std::vector<Future<int64_t>> all;
    for (int i = 0; i < 8; ++i) all.push_back(counter.rpc_async<&RowCounter::slow_add>(1, 5));
    for (const auto& f : all) f.wait();
    EXPECT_EQ(counter.rpc_sync<&RowCounter::value>(), 8);
  });
}

}  // namespace
