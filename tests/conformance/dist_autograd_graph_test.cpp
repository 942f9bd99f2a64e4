// The claims of docs/conformance.md on contexts: the calls that they record, and their end.
#include "conformance/dist_autograd_values.h"
#include "conformance/fixture.h"

#include <algorithm>
#include <limits>

#include <weft/distributed/autograd/inner/dist_context.h>

#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using dist_autograd::Context;
using weft::testing::same_bits;

WEFT_CONFORMANCE(DistAutogradGraph);

/// The context before a call to worker `to`, in its continuation, and in that of a second call.
rpc::Future<std::vector<int64_t>> da_contexts_later(int64_t to) {
  const int64_t first = dist_autograd::current_context_id();
  const auto next = [to] { return rpc_async<da_context>(static_cast<int>(to)); };
  return next().then([first, next](int64_t there) {
    const int64_t second = dist_autograd::current_context_id();
    return next().then([first, there, second](int64_t again) {
      return std::vector<int64_t>{first, there, second, again, dist_autograd::current_context_id()};
    });
  });
}
WEFT_RPC(da_contexts_later);
/// (x y) y, each product on worker `to`, the second one from a continuation of the first.
rpc::Future<Tensor> da_mul_later(int64_t to, const Tensor& x, const Tensor& y) {
  return rpc_async<da_mul>(static_cast<int>(to), x, y).then([to, y](const Tensor& product) {
    return rpc_async<da_mul>(static_cast<int>(to), product, y);
  });
}
WEFT_RPC(da_mul_later);

using Lines = std::vector<std::string>;

// test_autograd_context
TEST_P(DistAutogradGraph, context_ids_carry_the_worker_and_a_released_one_is_unknown) {
  Cluster c(options());
  c.run(2, [] {
    int64_t before = -1;
    for (int i = 0; i < 200; ++i) {
      int64_t id;
      {
        Context context;
        id = context.id();
        EXPECT_EQ(id >> 48, 2);
        EXPECT_GT(id, before);
        EXPECT_LE(id, dist_autograd::detail::make_id(WorkerId{2}, dist_autograd::detail::kMaxCount));
        EXPECT_TRUE(dist_autograd::has_context(id));
      }
      before = id;
      EXPECT_TRUE(has(text_of<AutogradError>([&] { dist_autograd::get_gradients(id); }),
                      str("could not find autograd context with id ", id)));
    }
  });
}

// test_autograd_context: the largest id
TEST(DistAutogradIds, the_largest_id_has_all_lower_48_bits_and_beyond_it_is_an_error) {
  using dist_autograd::detail::kMaxCount;
  using dist_autograd::detail::make_id;
  EXPECT_EQ(kMaxCount, 281474976710655);
  EXPECT_EQ(make_id(WorkerId{0}, kMaxCount), kMaxCount);
  EXPECT_EQ(make_id(WorkerId{2}, kMaxCount), (int64_t{2} << 48) + kMaxCount);
  EXPECT_EQ(make_id(WorkerId{kMaxWorkerId}, kMaxCount), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(make_id(WorkerId{kMaxWorkerId}, kMaxCount) >> 48, kMaxWorkerId);
  EXPECT_TRUE(has(text_of<AutogradError>([] { make_id(WorkerId{2}, kMaxCount + 1); }),
                  "worker 2 has used up its 281474976710655 numbers"));
}

// test_nested_context
TEST_P(DistAutogradGraph, a_second_context_in_one_thread_is_an_error) {
  Cluster c(options());
  c.run(0, [] {
    Context context;
    EXPECT_TRUE(has(text_of<AutogradError>([] { Context(); }), "already have an autograd context"));
  });
}

// test_graph_for_builtin_call, test_graph_for_python_call, test_graph_for_builtin_remote_call,
// test_graph_for_python_remote_call
TEST_P(DistAutogradGraph, a_call_records_one_send_and_one_recv_on_either_side_and_they_go_with_the_context) {
  Cluster c(options());
  for (const Way way : kWays)
    for (const bool built_in : {false, true}) {
      int64_t id = 0;
      c.run(0, [&] {
        Context context;
        id = context.id();
        const Tensor a = leaf({3, 3}), b = leaf({3, 3});
        const Tensor y = built_in ? test::call<builtin::add>(way, 1, a, b) : test::call<da_add>(way, 1, a, b);
        const auto here = dist_autograd::graph(id);
        ASSERT_EQ(here.size(), 2u);
        ASSERT_TRUE(here[0].is_send);
        EXPECT_EQ(here[0].peer, WorkerId{1});
        ASSERT_EQ(here[0].node->edges().size(), 2u);
        EXPECT_EQ(here[0].node->edges()[0].node.get(), gradient_edge(a).node.get());
        EXPECT_EQ(here[0].node->edges()[1].node.get(), gradient_edge(b).node.get());
        EXPECT_EQ(gradient_edge(y).node.get(), here[1].node.get());
        c.run(1, [&] {
          const auto there = dist_autograd::graph(id);
          ASSERT_EQ(there.size(), 2u);
          const auto& send = there[there[0].is_send ? 0 : 1];
          const auto& recv = there[there[0].is_send ? 1 : 0];
          ASSERT_TRUE(send.is_send && !recv.is_send);
          EXPECT_EQ(recv.message, here[0].message);  // our send is its recv, and the other way round
          EXPECT_EQ(send.message, here[1].message);
          ASSERT_EQ(send.node->edges().size(), 1u);
          const Node& add = *send.node->edges()[0].node;
          ASSERT_EQ(add.edges().size(), 2u);
          EXPECT_EQ(add.edges()[0].node.get(), recv.node.get());
          EXPECT_EQ(add.edges()[1].node.get(), recv.node.get());
        });
      });
      EXPECT_TRUE(eventually(c, [&] { return counted(c, "dist_autograd.num_autograd_contexts") == 0; }));
      c.run(1, [&] { EXPECT_FALSE(dist_autograd::has_context(id)); });
    }
}

// test_graph_for_py_nested_call, test_graph_for_py_nested_remote_call
TEST_P(DistAutogradGraph, three_hops_make_a_graph_on_each_of_four_workers_under_one_id) {
  Cluster c(options());
  for (const Way way : kWays)
    c.run_all([&](int rank) {
      const auto next = [&](int hops) { return (rank + hops) % 4; };
      const auto to = [](int64_t worker) { return str("send to ", worker, ": 1 edges"); };
      const auto from = [](int64_t worker) { return str("recv from ", worker); };
      Context context;
      test::call<da_way>(way, next(1), leaf({2}), std::vector<int64_t>{next(2), next(3)});
      for (int hops = 0; hops < 4; ++hops) {
        Lines want;
        if (hops > 0) want.insert(want.end(), {from(next(hops - 1)), to(next(hops - 1))});
        if (hops < 3) want.insert(want.end(), {from(next(hops + 1)), to(next(hops + 1))});
        std::sort(want.begin(), want.end());
        EXPECT_EQ(rpc_sync<da_graph>(next(hops), context.id()), want)
            << "worker " << next(hops) << " of " << rank;
      }
      barrier();  // the others' contexts are alive until all have looked
    });
}

// test_graph_for_py_nested_call_itself, test_graph_for_py_nested_remote_call_itself
TEST_P(DistAutogradGraph, a_nested_call_may_come_back_to_where_it_began) {
  Cluster c(options());
  for (const Way way : kWays)
    c.run(0, [&] {
      Context context;
      const Tensor a = leaf({2}), b = leaf({2});
      const Tensor y = test::call<da_nested>(way, 1, int64_t{0}, a, b);
      EXPECT_EQ(da_graph(context.id()),
                (Lines{"recv from 1", "recv from 1", "send to 1: 1 edges", "send to 1: 2 edges"}));
      EXPECT_EQ(rpc_sync<da_graph>(1, context.id()),
                (Lines{"recv from 0", "recv from 0", "send to 0: 1 edges", "send to 0: 2 edges"}));
      context.backward({y.sum()});
      EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 2.0)));
      EXPECT_TRUE(same_bits(context.gradient(b), full({2}, 2.0)));
    });
}

// test_no_graph_with_tensors_not_require_grad, test_no_graph_with_tensors_not_require_grad_remote
TEST_P(DistAutogradGraph, tensors_without_grad_make_no_nodes_but_the_context_travels) {
  Cluster c(options());
  for (const Way way : kWays)
    c.run(0, [&] {
      Context context;
      test::call<da_add>(way, 1, ones({2}), ones({2}));
      EXPECT_EQ(da_graph(context.id()), Lines{});
      EXPECT_EQ(rpc_sync<da_graph>(1, context.id()), Lines{});
      EXPECT_EQ(test::call<da_context>(way, 1), context.id());
      EXPECT_TRUE(rpc_sync<da_has>(1, context.id()));
    });
}

// test_rpc_complex_args, test_remote_complex_args
TEST_P(DistAutogradGraph, only_members_of_a_list_that_require_grad_become_edges) {
  Cluster c(options());
  for (const Way way : kWays)
    c.run(0, [&] {
      Context context;
      std::vector<Tensor> all;
      for (int i = 0; i < 10; ++i) all.push_back(i % 2 ? leaf({3}) : ones({3}));
      const Tensor y = test::call<da_list>(way, 1, all);
      const auto nodes = dist_autograd::graph(context.id());
      ASSERT_EQ(nodes.size(), 2u);
      ASSERT_TRUE(nodes[0].is_send);
      ASSERT_EQ(nodes[0].node->edges().size(), 5u);
      for (size_t i = 0; i < 5; ++i)
        EXPECT_EQ(nodes[0].node->edges()[i].node.get(), gradient_edge(all[2 * i + 1]).node.get());
      context.backward({y.sum()});
      for (int i = 0; i < 10; ++i)
        EXPECT_EQ(context.gradient(all[static_cast<size_t>(i)]).defined(), i % 2 == 1);
    });
}

// test_grad_only_on_return_value, test_grad_only_on_return_value_remote
TEST_P(DistAutogradGraph, a_gradient_lands_on_the_callees_own_tensor) {
  Cluster c(options());
  for (const Way way : kWays)
    c.run(0, [&] {
      Context context;
      const Tensor y = test::call<da_own_leaf>(way, 1);
      EXPECT_EQ(da_graph(context.id()), Lines{"recv from 1"});
      context.backward({y.sum()});
      EXPECT_TRUE(dist_autograd::get_gradients(context.id()).empty());
      c.run(1, [&] {
        const auto there = dist_autograd::get_gradients(context.id());
        ASSERT_EQ(there.size(), 1u);
        EXPECT_TRUE(same_bits(there[0].first.detach(), full({3, 3}, 3.0)));
        EXPECT_TRUE(same_bits(there[0].second, ones({3, 3})));
      });
    });
}

// test_mixed_requires_grad
TEST_P(DistAutogradGraph, the_callee_sees_which_arguments_require_grad) {
  Cluster c(options());
  for (const Way way : kWays)
    c.run(0, [&] {
      Context context;
      const Tensor a = leaf({2}), b = ones({2});
      EXPECT_TRUE(rpc_sync<da_flags>("worker1", a, b));
      const Tensor y = test::call<da_mul>(way, 1, a, b);
      context.backward({y.sum()}, {.mode = Backward::kSmart});
      EXPECT_TRUE(context.gradient(a).defined());
      EXPECT_FALSE(context.gradient(b).defined());
    });
}

// PyTorch once detached parameters that were passed as arguments.
TEST_P(DistAutogradGraph, a_parameter_as_an_argument_gets_its_gradient) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor parameter = randn({3, 2}).requires_grad_();
    Context context;
    context.backward({rpc_sync<da_mul>("worker1", parameter, ones({3, 2})).sum()});
    EXPECT_TRUE(same_bits(context.gradient(parameter), ones({3, 2})));
  });
}

// test_context_cleanup_tensor_with_grad, _no_grad, _no_tensors, _nested_rpc
TEST_P(DistAutogradGraph, cleanup_reaches_every_worker_that_took_part) {
  Cluster c(options());
  int64_t id = 0;
  c.run(0, [&] {
    Context context;
    id = context.id();
    rpc_sync<da_context>("worker3");
    rpc_sync<da_add>("worker2", ones({1}), ones({1}));
    rpc_sync<da_nested>("worker1", int64_t{3}, leaf({1}), leaf({1}));
    for (int rank = 0; rank < c.size(); ++rank)
      c.run(rank, [&] { EXPECT_TRUE(dist_autograd::has_context(id)) << rank; });
  });
  EXPECT_TRUE(eventually(c, [&] { return counted(c, "dist_autograd.num_autograd_contexts") == 0; }));
  for (int rank = 0; rank < c.size(); ++rank)
    c.run(rank, [&] { EXPECT_FALSE(dist_autograd::has_context(id)) << rank; });
}

// test_worker_ids_recorded
TEST_P(DistAutogradGraph, every_called_worker_is_known_with_or_without_gradients) {
  Cluster c(options());
  for (const bool grad : {false, true})
    c.run(0, [&] {
      Context context;
      std::vector<WorkerId> all;
      for (int to = 1; to < c.size(); ++to) {
        all.push_back(WorkerId{to});
        test::call<da_add>(to == 1 ? Way::kRemote : Way::kSync, to, grad ? leaf({1}) : ones({1}), ones({1}));
      }
      EXPECT_EQ(dist_autograd::known_workers(context.id()), all);
    });
}

// test_error_in_context
TEST_P(DistAutogradGraph, an_error_of_a_function_arrives_normally_in_a_context) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    EXPECT_TRUE(has(text_of<ValueError>([] { rpc_sync<da_raise>("worker1"); }), "raised in a context"));
  });
}

// test_thread_local_context_id
TEST_P(DistAutogradGraph, the_context_follows_a_continuation) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    const int64_t seen = rpc_async<da_context>("worker1")
                             .then([](int64_t) { return dist_autograd::current_context_id(); })
                             .wait();
    EXPECT_EQ(seen, context.id());
  });
}

// JitDistAutogradTest, without the script: restored after a switch of threads
TEST_P(DistAutogradGraph, a_callee_is_in_no_context_but_that_of_the_call_it_serves) {
  Cluster c(options());
  for (const Way way : kWays)
    c.run(0, [&] {
      for (int i = 0; i < 20; ++i) {
        {
          Context context;
          EXPECT_EQ(test::call<da_context>(way, 1), context.id());
          EXPECT_EQ(test::call<da_context>(way, 0), context.id());  // ourselves, and we are where we were
          EXPECT_EQ(dist_autograd::current_context_id(), context.id());
        }
        EXPECT_EQ(dist_autograd::current_context_id(), -1);
        EXPECT_EQ(test::call<da_context>(way, 1), -1);
        EXPECT_EQ(test::call<da_context>(way, 0), -1);
      }
    });
}

// JitDistAutogradTest, without the script: calls that a function in a context begins are in the context
TEST_P(DistAutogradGraph, an_asynchronous_function_and_its_continuations_are_in_the_callers_context) {
  Cluster c(options());
  for (const Way way : kWays)
    for (const int to : {1, 0})
      c.run(0, [&] {
        const Tensor x = leaf({2}, 3), y = leaf({2}, 5);
        Context context;
        EXPECT_EQ(test::call<da_contexts_later>(way, to, int64_t{2}), std::vector<int64_t>(5, context.id()));
        const Tensor z = test::call<da_mul_later>(way, to, int64_t{2}, x, y);
        EXPECT_TRUE(same_bits(z.detach(), full({2}, 75.0)));
        context.backward({z.sum()});
        EXPECT_TRUE(same_bits(context.gradient(x), full({2}, 25.0)));
        EXPECT_TRUE(same_bits(context.gradient(y), full({2}, 30.0)));
      });
  EXPECT_TRUE(eventually(c, [&] { return counted(c, "dist_autograd.num_autograd_contexts") == 0; }));
}

// FaultyAgentDistAutogradTest.test_context_cleanup_tensor_with_grad
TEST(DistAutogradFaulty, cleanup_survives_messages_that_are_lost) {
  for (const uint8_t reply : {uint8_t{0}, kReplyBit}) {
    Cluster c({.size = 4});
    for (const Kind kind : {Kind::kCall, Kind::kRelease})
      c.net().add_rule({.kind = static_cast<uint8_t>(static_cast<uint8_t>(kind) | reply), .count = 3});
    c.run(0, [&] {
      Context context;
      for (int to = 1; to < 4; ++to) {
        const Tensor a = leaf({2}), b = leaf({2});
        EXPECT_TRUE(same_bits(rpc_sync<da_add>(to, a, b).detach(), full({2}, 2.0)));
      }
      rpc_sync<da_nested>("worker1", int64_t{3}, leaf({1}), leaf({1}));
      EXPECT_EQ(counted(c, "dist_autograd.num_autograd_contexts"), 4);
    });
    EXPECT_TRUE(eventually(c, [&] { return counted(c, "dist_autograd.num_autograd_contexts") == 0; }));
    EXPECT_TRUE(eventually(c, [&] {
      return counted(c, reply ? "agent.resent_replies" : "agent.resent_requests") == 6;
    })) << "not all that was lost";
  }
}

}  // namespace
