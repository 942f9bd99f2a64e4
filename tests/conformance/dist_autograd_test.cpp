// "Distributed autograd" of the conformance list, in FAST mode as upstream; backward_test.cpp has SMART and random graphs.
#include "conformance/fixture.h"

#include <weft/autograd/hooks.h>
#include <weft/autograd/ops.h>
#include <weft/distributed/dist_autograd.h>
#include <weft/tensor/factories.h>

#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using dist_autograd::Context;
using test::Cluster;
using weft::testing::same_bits;

WEFT_CONFORMANCE(DistAutograd);

Tensor da_add(const Tensor& a, const Tensor& b) { return a + b; }
WEFT_RPC(da_add);
Tensor da_mul(const Tensor& a, const Tensor& b) { return a * b; }
WEFT_RPC(da_mul);
Tensor da_list(const std::vector<Tensor>& all) {
  Tensor sum = all[0];
  for (size_t i = 1; i < all.size(); ++i) sum = sum + all[i];
  return sum;
}
WEFT_RPC(da_list);
std::vector<Tensor> da_split(const Tensor& x) { return x.split(1); }
WEFT_RPC(da_split);
bool da_flags(const Tensor& a, const Tensor& b) { return a.requires_grad() && !b.requires_grad(); }
WEFT_RPC(da_flags);
Tensor da_own_leaf() { return full({3, 3}, 3.0).requires_grad_(); }
WEFT_RPC(da_own_leaf);
Tensor da_nested(int64_t to, const Tensor& a, const Tensor& b) { return rpc_sync<da_add>(static_cast<int>(to), a, b) * 2.0; }
WEFT_RPC(da_nested);
int64_t da_context() { return dist_autograd::current_context_id(); }
WEFT_RPC(da_context);
bool da_has(int64_t id) { return dist_autograd::has_context(id); }
WEFT_RPC(da_has);
Tensor da_shared_leaf() {
  static const Tensor w = full({2}, 3.0, {.dtype = kFloat64}).requires_grad_();
  return w;
}
Tensor da_use_shared(const Tensor& x) { return x * da_shared_leaf(); }
WEFT_RPC(da_use_shared);
double da_shared_gradient(int64_t id) { return dist_autograd::get_gradient(id, da_shared_leaf()).to_vector<double>()[0]; }
WEFT_RPC(da_shared_gradient);
struct BackwardFails {
  static Tensor forward(const Tensor& x) {
    Tensor y = exp(x);
    NoGrad guard;
    y.add_(1.0);  // exp saved its output: backward finds it overwritten
    return y;
  }
};
Tensor da_fails(const Tensor& x) { return BackwardFails::forward(x); }
WEFT_RPC(da_fails);
void da_raise() { throw ValueError("raised in a context"); }
WEFT_RPC(da_raise);

Tensor leaf(const Shape& sizes, double v = 1) { return full(sizes, v).requires_grad_(); }

// test_autograd_context
TEST_P(DistAutograd, context_ids_carry_the_worker_and_a_released_one_is_unknown) {
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
        EXPECT_TRUE(dist_autograd::has_context(id));
      }
      before = id;
      EXPECT_THROW(dist_autograd::get_gradients(id), AutogradError);
    }
  });
}

// test_nested_context
TEST_P(DistAutograd, a_second_context_in_one_thread_is_an_error) {
  Cluster c(options());
  c.run(0, [] {
    Context context;
    EXPECT_THROW(Context(), AutogradError);
  });
}

// test_graph_for_builtin_call, test_graph_for_python_call
TEST_P(DistAutograd, a_call_records_one_send_and_one_recv_on_either_side_and_they_go_with_the_context) {
  Cluster c(options());
  int64_t id = 0;
  c.run(0, [&] {
    Context context;
    id = context.id();
    const Tensor a = leaf({3, 3}), b = leaf({3, 3});
    const Tensor y = rpc_sync<da_add>("worker1", a, b);
    const auto here = dist_autograd::graph(id);
    ASSERT_EQ(here.size(), 2u);
    ASSERT_TRUE(here[0].is_send);
    ASSERT_EQ(here[0].node->edges().size(), 2u);
    EXPECT_EQ(here[0].node->edges()[0].node.get(), gradient_edge(a).node.get());
    EXPECT_EQ(here[0].node->edges()[1].node.get(), gradient_edge(b).node.get());
    EXPECT_EQ(gradient_edge(y).node.get(), here[1].node.get());
    c.run(1, [&] {
      const auto there = dist_autograd::graph(id);
      ASSERT_EQ(there.size(), 2u);
      EXPECT_EQ(there[0].is_send + there[1].is_send, 1);
    });
  });
  c.runtime().sleep_for(500ms);
  c.run(1, [&] { EXPECT_FALSE(dist_autograd::has_context(id)); });
}

// test_graph_for_py_nested_call, test_graph_for_py_nested_call_itself
TEST_P(DistAutograd, nested_calls_join_the_same_context_and_may_come_back) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    const Tensor a = leaf({2}), b = leaf({2});
    const Tensor y = rpc_sync<da_nested>("worker1", int64_t{2}, a, b);
    const Tensor z = rpc_sync<da_nested>("worker1", int64_t{0}, a, b);  // back to the caller
    EXPECT_EQ(dist_autograd::graph(context.id()).size(), 6u);  // 2 sends + 2 recvs of ours, recv + send of the call back
    c.run(1, [&] { EXPECT_EQ(dist_autograd::graph(context.id()).size(), 8u); });
    c.run(2, [&] { EXPECT_EQ(dist_autograd::graph(context.id()).size(), 2u); });
    context.backward({(y + z).sum()});
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 4.0)));
  });
}

// test_no_graph_with_tensors_not_require_grad
TEST_P(DistAutograd, tensors_without_grad_make_no_nodes_but_the_context_travels) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    rpc_sync<da_add>("worker1", ones({2}), ones({2}));
    EXPECT_TRUE(dist_autograd::graph(context.id()).empty());
    EXPECT_EQ(rpc_sync<da_context>("worker1"), context.id());
    EXPECT_TRUE(rpc_sync<da_has>("worker1", context.id()));
  });
}

// test_rpc_complex_args
TEST_P(DistAutograd, only_members_of_a_list_that_require_grad_become_edges) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    std::vector<Tensor> all;
    for (int i = 0; i < 10; ++i) all.push_back(i % 2 ? leaf({3}) : ones({3}));
    const Tensor y = rpc_sync<da_list>("worker1", all);
    for (const auto& node : dist_autograd::graph(context.id()))
      if (node.is_send) {
        EXPECT_EQ(node.node->edges().size(), 5u);
      }
    context.backward({y.sum()});
    for (int i = 0; i < 10; ++i) EXPECT_EQ(context.gradient(all[static_cast<size_t>(i)]).defined(), i % 2 == 1);
  });
}

// test_grad_only_on_return_value
TEST_P(DistAutograd, a_gradient_lands_on_the_callees_own_tensor) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    const Tensor y = rpc_sync<da_own_leaf>("worker1");
    context.backward({y.sum()});
    EXPECT_TRUE(dist_autograd::get_gradients(context.id()).empty());
    c.run(1, [&] {
      const auto there = dist_autograd::get_gradients(context.id());
      ASSERT_EQ(there.size(), 1u);
      EXPECT_TRUE(same_bits(there[0].second, ones({3, 3})));
    });
  });
}

// test_mixed_requires_grad
TEST_P(DistAutograd, the_callee_sees_which_arguments_require_grad) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    const Tensor a = leaf({2}), b = ones({2});
    EXPECT_TRUE(rpc_sync<da_flags>("worker1", a, b));
    const Tensor y = rpc_sync<da_mul>("worker1", a, b);
    context.backward({y.sum()}, {.mode = Backward::kSmart});
    EXPECT_TRUE(context.gradient(a).defined());
    EXPECT_FALSE(context.gradient(b).defined());
  });
}

// upstream defect #86525: parameters passed as arguments were detached
TEST_P(DistAutograd, a_parameter_as_an_argument_gets_its_gradient) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor parameter = randn({3, 2}).requires_grad_();
    Context context;
    context.backward({rpc_sync<da_mul>("worker1", parameter, ones({3, 2})).sum()});
    EXPECT_TRUE(same_bits(context.gradient(parameter), ones({3, 2})));
  });
}

// test_context_cleanup_tensor_with_grad, _no_grad, _no_tensors, _nested_rpc
TEST_P(DistAutograd, cleanup_reaches_every_worker_that_took_part) {
  Cluster c(options());
  int64_t id = 0;
  c.run(0, [&] {
    Context context;
    id = context.id();
    rpc_sync<da_context>("worker3");
    rpc_sync<da_add>("worker2", ones({1}), ones({1}));
    rpc_sync<da_nested>("worker1", int64_t{3}, leaf({1}), leaf({1}));
  });
  c.runtime().sleep_for(500ms);
  for (int rank = 0; rank < c.size(); ++rank) c.run(rank, [&] { EXPECT_FALSE(dist_autograd::has_context(id)) << rank; });
}

// test_worker_ids_recorded
TEST_P(DistAutograd, every_called_worker_is_known_with_or_without_gradients) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    for (int to = 1; to < c.size(); ++to) rpc_sync<da_add>(to, to % 2 ? leaf({1}) : ones({1}), ones({1}));
    EXPECT_EQ(dist_autograd::known_workers(context.id()).size(), static_cast<size_t>(c.size() - 1));
  });
}

// test_error_in_context
TEST_P(DistAutograd, an_error_of_a_function_arrives_normally_in_a_context) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    EXPECT_THROW(rpc_sync<da_raise>("worker1"), ValueError);
  });
}

// test_backward_no_grad_on_tensor
TEST_P(DistAutograd, a_distributed_pass_leaves_grad_alone) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2}, 2), b = leaf({2}, 3);
    (a * b).sum().backward();
    const Tensor before = a.grad().clone();
    Context context;
    context.backward({rpc_sync<da_add>("worker1", a, b).sum()});
    EXPECT_TRUE(same_bits(a.grad(), before));
  });
}

// test_backward_different_dtypes, test_backward_different_tensor_dims
TEST_P(DistAutograd, dtypes_and_broadcast_sizes_come_back_as_they_went) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = full({4, 3}, 1.5, {.dtype = kFloat64}).requires_grad_(), b = full({3}, 2.0).requires_grad_();
    Context context;
    context.backward({rpc_sync<da_mul>("worker1", a, b).sum()});
    EXPECT_EQ(context.gradient(b).dtype(), kFloat32);
    EXPECT_TRUE(same_bits(context.gradient(b), full({3}, 6.0)));
    EXPECT_TRUE(same_bits(context.gradient(a), full({4, 3}, 2.0, {.dtype = kFloat64})));
  });
}

// test_backward_multiple_round_trips
TEST_P(DistAutograd, six_calls_over_rotating_workers_equal_local) {
  Cluster c(options());
  c.run(0, [&] {
    const auto run = [&](const Tensor& a, const Tensor& b, const Tensor& d, bool remote) {
      int to = 0;
      const auto add = [&](const Tensor& x, const Tensor& y) { return remote ? rpc_sync<da_add>(1 + to++ % (c.size() - 1), x, y) : x + y; };
      const auto mul = [&](const Tensor& x, const Tensor& y) { return remote ? rpc_sync<da_mul>(1 + to++ % (c.size() - 1), x, y) : x * y; };
      return add(mul(add(a, b), mul(b, d)), mul(add(a, d), a)).sum();
    };
    const auto make_leaf = [](double v) { return full({3, 3}, v).requires_grad_(); };
    const Tensor a = make_leaf(1.25), b = make_leaf(-2), d = make_leaf(0.5), la = make_leaf(1.25), lb = make_leaf(-2), ld = make_leaf(0.5);
    run(la, lb, ld, false).backward();
    Context context;
    context.backward({run(a, b, d, true)});
    EXPECT_TRUE(same_bits(context.gradient(a), la.grad()));
    EXPECT_TRUE(same_bits(context.gradient(b), lb.grad()));
    EXPECT_TRUE(same_bits(context.gradient(d), ld.grad()));
  });
}

// test_backward_multiple_roots
TEST_P(DistAutograd, four_roots_add_up) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2}, 3), b = leaf({2}, 4);
    Context context;
    std::vector<Tensor> roots;
    for (int i = 0; i < 4; ++i) roots.push_back(rpc_sync<da_mul>("worker1", a, b).sum());
    context.backward(roots);
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 16.0)));
  });
}

// test_backward_multiple_output_tensors
TEST_P(DistAutograd, three_of_five_outputs_used_is_enough) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor x = leaf({5, 2}, 2);
    Context context;
    const auto parts = rpc_sync<da_split>("worker1", x);
    context.backward({(parts[0] * parts[2] * parts[4]).sum()});
    const std::vector<double> g = context.gradient(x).to_vector<double>();
    EXPECT_EQ(g, (std::vector<double>{4, 4, 0, 0, 4, 4, 0, 0, 4, 4}));
  });
}

// test_trainer_ps
TEST_P(DistAutograd, three_trainers_use_one_shared_tensor_in_contexts_of_their_own) {
  Cluster c(options());
  c.run_all([&](int rank) {
    if (rank == 0) return;
    for (int i = 0; i < 10; ++i) {
      const Tensor x = full({2}, 1.0 * rank, {.dtype = kFloat64}).requires_grad_();
      Context context;
      context.backward({rpc_sync<da_use_shared>("worker0", x).sum()});
      ASSERT_EQ(rpc_sync<da_shared_gradient>("worker0", context.id()), rank);
      ASSERT_EQ(context.gradient(x).to_vector<double>()[0], 3);
    }
  });
}

// test_backward_accumulate_grads, test_multiple_backward (1000 retained passes)
TEST_P(DistAutograd, retained_passes_accumulate) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2}), b = leaf({2});
    Context context;
    const Tensor loss = rpc_sync<da_add>("worker1", a, b).sum();
    const int passes = c.simulated() ? 1000 : 100;
    for (int i = 0; i < passes; ++i) context.backward({loss}, {.retain_graph = true});
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 1.0 * passes)));
  });
}

// test_multiple_backward_with_errors, test_backward_autograd_engine_error, test_backward_python_udf_error
TEST_P(DistAutograd, failing_passes_leave_room_for_a_good_one_in_the_same_context) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2});
    Context context;
    const Tensor bad = rpc_sync<da_fails>("worker1", a).sum(), good = (a * 2.0).sum();
    for (int i = 0; i < 50; ++i) {
      try {
        context.backward({bad}, {.retain_graph = true, .mode = Backward::kSmart});
        FAIL() << "no error";
      } catch (const AutogradError& e) {
        ASSERT_NE(std::string(e.what()).find("exp"), std::string::npos) << e.what();
      }
    }
    context.backward({good}, {.mode = Backward::kSmart});
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 2.0)));
  });
}

// test_backward_unused_send_function: upstream asserts that FAST hangs
TEST_P(DistAutograd, an_unused_send_stalls_fast_with_its_name_and_not_smart) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2}), b = leaf({2});
    Context context;
    const Tensor used = rpc_sync<da_add>("worker1", a, b).sum();
    rpc_sync<da_mul>("worker1", a, b);
    EXPECT_THROW(context.backward({used}, {.retain_graph = true, .stall = 300ms}), AutogradError);
    context.backward({used}, {.mode = Backward::kSmart});
    EXPECT_TRUE(same_bits(context.gradient(a), ones({2})));
  });
}

// test_backward_node_failure, test_backward_node_failure_python_udf
TEST_P(DistAutograd, a_dead_worker_ends_the_pass_with_an_error) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2});
    Context context;
    const Tensor y = rpc_sync<da_nested>("worker1", int64_t{3}, a, a).sum();
    c.kill(3);
    EXPECT_THROW(context.backward({y}), Error);
  });
}

// test_clean_context_during_backward
TEST_P(DistAutograd, a_context_released_during_its_pass_ends_it_without_harm) {
  Cluster c(options());
  c.run(0, [&] {
    for (int i = 0; i < 5; ++i) {
      const Tensor a = leaf({2});
      auto context = std::make_unique<Context>();
      const int64_t id = context->id();
      const Tensor y = rpc_sync<da_nested>("worker1", int64_t{2}, a, a).sum();
      context.reset();
      EXPECT_THROW(dist_autograd::backward(id, {y}), AutogradError);
    }
  });
  EXPECT_EQ(c.agent(0)->debug_info().at("dist_autograd.num_current_backward_passes"), 0);
}

// test_backward_without_context, test_backward_without_rpc, test_backward_invalid_args
TEST_P(DistAutograd, bad_arguments_are_named_and_a_local_graph_needs_no_call) {
  Cluster c(options());
  c.run(0, [&] {
    EXPECT_THROW(dist_autograd::backward(99, {leaf({1}).sum()}), AutogradError);
    Context context;
    const Tensor a = leaf({2});
    EXPECT_THROW(context.backward({}), AutogradError);
    EXPECT_THROW(context.backward({ones({1})}), AutogradError);
    EXPECT_THROW(context.backward({a * 2.0}), AutogradError);
    EXPECT_THROW(context.backward({leaf({1})}), AutogradError);
    context.backward({(a * 2.0).sum()});
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 2.0)));
  });
}

// test_debug_info (autograd)
TEST_P(DistAutograd, counters_are_zero_before_and_after) {
  Cluster c(options());
  c.run(0, [&] {
    const auto info = [&](const char* key) { return c.agent(0)->debug_info().at(std::string("dist_autograd.") + key); };
    EXPECT_EQ(info("num_autograd_contexts"), 0);
    {
      Context context;
      EXPECT_EQ(info("num_autograd_contexts"), 1);
      context.backward({rpc_sync<da_add>("worker1", leaf({1}), leaf({1})).sum()});
      EXPECT_EQ(info("num_current_backward_passes"), 0);
    }
    EXPECT_EQ(info("num_autograd_contexts"), 0);
  });
}

// test_backward_verify_hooks, test_post_hooks
TEST_P(DistAutograd, tensor_hooks_act_on_the_contexts_gradient) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2}), b = leaf({2});
    const HookHandle handle = register_hook(a, [](const Tensor& g) { return g * 2.0; });
    Context context;
    context.backward({rpc_sync<da_add>("worker1", a, b).sum()});
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 2.0)));
    EXPECT_TRUE(same_bits(context.gradient(b), ones({2})));
  });
}

// test_thread_local_context_id
TEST_P(DistAutograd, the_context_follows_a_continuation) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    const int64_t seen = rpc_async<da_context>("worker1").then([](int64_t) { return dist_autograd::current_context_id(); }).wait();
    EXPECT_EQ(seen, context.id());
  });
}

// TestSendFunctionInvalidInputs, TestInitializedContextCleanup
TEST_P(DistAutograd, a_local_backward_over_a_remote_graph_says_what_to_call_instead) {
  Cluster c(options());
  c.run(0, [&] {
    Context context;
    const Tensor y = rpc_sync<da_add>("worker1", leaf({1}), leaf({1}));
    try {
      y.sum().backward();
      FAIL() << "no error";
    } catch (const AutogradError& e) {
      EXPECT_NE(std::string(e.what()).find("dist_autograd::backward"), std::string::npos) << e.what();
    }
  });
}

}  // namespace
