// The claims of docs/conformance.md on distributed autograd: gradients, in the default mode, SMART.
// dist_autograd/backward_test.cpp has both modes and random graphs.
#include "conformance/dist_autograd_values.h"
#include "conformance/fixture.h"

#include <weft/autograd/tape/function.h>
#include <weft/autograd/tape/hooks.h>
#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/record.h>
#include <weft/autograd/tape/row_grad.h>

#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using dist_autograd::Backward;
using dist_autograd::Context;
using weft::testing::same_bits;

WEFT_CONFORMANCE(DistAutograd);

/// `there` over other workers gives the gradients of `here` run locally, for leaves of the same values.
template <class Here, class There>
void equal_local(const std::vector<Tensor>& values, Here here, There there) {
  std::vector<Tensor> a, b;
  for (const Tensor& v : values) {
    a.push_back(v.detach().clone().requires_grad_());
    b.push_back(v.detach().clone().requires_grad_());
  }
  const Tensor local = here(a);
  local.backward();
  Context context;
  const Tensor loss = there(b);
  ASSERT_TRUE(same_bits(loss.detach(), local.detach()));
  context.backward({loss});
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(context.gradient(b[i]).defined(), a[i].grad().defined()) << i;
    if (a[i].grad().defined()) {
      EXPECT_TRUE(same_bits(context.gradient(b[i]), a[i].grad())) << i;
    }
    EXPECT_FALSE(b[i].grad().defined());
  }
}

// test_backward_simple, test_backward_simple_self, test_backward_simple_python_udf
TEST_P(DistAutograd, a_call_of_any_kind_to_a_peer_or_oneself_gives_the_local_gradients) {
  Cluster c(options());
  for (const Way way : kWays)
    for (const int to : {1, 0})
      c.run(0, [&] {
        const std::vector<Tensor> values{randn({3, 3}), randn({3, 3})};
        equal_local(
            values, [](auto& x) { return (x[0] + x[1]).sum(); },
            [&](auto& x) { return test::call<builtin::add>(way, to, x[0], x[1]).sum(); });
        equal_local(
            values, [](auto& x) { return da_mul(x[0], x[1]).sum(); },
            [&](auto& x) { return test::call<da_mul>(way, to, x[0], x[1]).sum(); });
      });
}

// test_backward_complex_python_udf
TEST_P(DistAutograd, a_function_of_many_operations_gives_the_local_gradients) {
  Cluster c(options());
  for (const Way way : kWays)
    c.run(0, [&] {
      const std::vector<Tensor> values{randn({3, 3}), randn({3, 3})};
      equal_local(
          values, [](auto& x) { return da_complex(x[0], x[1]).sum(); },
          [&](auto& x) { return test::call<da_complex>(way, 1, x[0], x[1]).sum(); });
    });
}

// test_backwards_nested_python_udf
TEST_P(DistAutograd, a_function_that_calls_on_gives_the_local_gradients) {
  Cluster c(options());
  for (const Way way : kWays)
    c.run(0, [&] {
      const std::vector<Tensor> values{randn({3, 3}), randn({3, 3})};
      equal_local(
          values, [](auto& x) { return ((x[0] * x[1] + x[1]) * 2.0).sum(); },
          [&](auto& x) {
            return test::call<da_nested>(way, 1, int64_t{2}, rpc_sync<da_mul>(3, x[0], x[1]), x[1]).sum();
          });
    });
}

// test_backward_unused_tensors
TEST_P(DistAutograd, a_slice_that_is_not_used_gets_zeros_as_locally) {
  Cluster c(options());
  for (const Way way : kWays)
    c.run(0, [&] {
      const auto ends = [](auto& x) {
        const Tensor s = stack({x[0], x[1], x[2]});
        return std::pair(s.narrow(0, 0, 1).view({3, 3}), s.narrow(0, 2, 1).view({3, 3}));
      };
      equal_local(
          {randn({3, 3}), randn({3, 3}), randn({3, 3})},
          [&](auto& x) { return ends(x).first.matmul(ends(x).second).sum(); },
          [&](auto& x) { return test::call<builtin::matmul>(way, 1, ends(x).first, ends(x).second).sum(); });
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
    const Tensor a = full({4, 3}, 1.5, {.dtype = kFloat64}).requires_grad_(),
                 b = full({3}, 2.0).requires_grad_();
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
  for (const Way way : kWays)
    c.run(0, [&] {
      const auto run = [&](auto& x, bool remote) {
        int to = 0;
        const auto add = [&](const Tensor& p, const Tensor& q) {
          return remote ? test::call<da_add>(way, 1 + to++ % (c.size() - 1), p, q) : p + q;
        };
        const auto mul = [&](const Tensor& p, const Tensor& q) {
          return remote ? test::call<da_mul>(way, 1 + to++ % (c.size() - 1), p, q) : p * q;
        };
        return add(mul(add(x[0], x[1]), mul(x[1], x[2])), mul(add(x[0], x[2]), x[0])).sum();
      };
      // exact, since the order of three summands may differ
      const std::vector<Tensor> values{full({3, 3}, 1.25), full({3, 3}, -2), full({3, 3}, 0.5)};
      equal_local(
          values, [&](auto& x) { return run(x, false); }, [&](auto& x) { return run(x, true); });
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

// test_async_dist_autograd
TEST_P(DistAutograd, twenty_threads_on_each_of_three_workers_hammer_one_node) {
  Cluster c(options());
  std::atomic<int> right{0};
  c.run_all([&](int rank) {
    if (rank == 0) return;
    std::vector<Future<void>> threads;
    for (int i = 0; i < 20; ++i) {
      threads.emplace_back();
      current_runtime()->post(
          [&right, done = threads.back(), agent = current_agent(), value = 0.25 * (rank + i)] {
            try {
              const AgentScope scope(agent);
              const auto run = [](auto& x, auto add, auto mul) {
                const Tensor t3 = add(x[0], x[1]), t4 = mul(x[1], t3), t5 = t3.matmul(t4);
                return add(t4, t5).sum();
              };
              equal_local(
                  {full({3, 3}, value), full({3, 3}, 0.5 - value)},
                  [&](auto& x) { return run(x, da_add, da_mul); },
                  [&](auto& x) {
                    return run(
                        x, [](const Tensor& a, const Tensor& b) { return rpc_sync<builtin::add>(0, a, b); },
                        [](const Tensor& a, const Tensor& b) { return rpc_sync<builtin::mul>(0, a, b); });
                  });
              ++right;
              done.set_result();
            } catch (...) {
              done.set_error(std::current_exception());
            }
          });
    }
    wait_all(threads);
  });
  EXPECT_EQ(right, 60);
  EXPECT_TRUE(eventually(c, [&] { return counted(c, "dist_autograd.num_autograd_contexts") == 0; }));
  EXPECT_EQ(counted(c, "dist_autograd.num_current_backward_passes"), 0);
}

// test_backward_accumulate_grads, test_multiple_backward (1000 retained passes)
TEST_P(DistAutograd, retained_passes_accumulate) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2}), b = leaf({2});
    Context context;
    const Tensor loss = rpc_sync<da_add>("worker1", a, b).sum();
    for (int i = 0; i < 1000; ++i) context.backward({loss}, {.retain_graph = true});
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 1000.0)));
  });
}

// test_nested_backward_accumulate_grads
TEST_P(DistAutograd, two_passes_through_a_nested_call_double_every_workers_gradients) {
  Cluster c(options());
  for (const Way way : kWays)
    c.run(0, [&] {
      const Tensor a = leaf({2}, 3), b = leaf({2}, 4);
      Context context;
      const RRef<Tensor> theirs = remote<da_own_leaf>("worker2");
      const Tensor nested = test::call<da_nested>(way, 1, int64_t{3}, a, b);
      const Tensor loss =
          (nested.sum() + rpc_sync<da_nested_add_rref>("worker1", int64_t{2}, theirs, ones({3, 3})).sum());
      context.backward({loss}, {.retain_graph = true});
      EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 2.0)));
      EXPECT_TRUE(same_bits(*rpc_sync<da_gradient_of>("worker2", context.id(), theirs), ones({3, 3})));
      context.backward({loss});
      EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 4.0)));
      EXPECT_TRUE(same_bits(context.gradient(b), full({2}, 4.0)));
      EXPECT_TRUE(same_bits(*rpc_sync<da_gradient_of>("worker2", context.id(), theirs), full({3, 3}, 2.0)));
    });
}

/// An embedding that lives on its worker.
struct RemoteEmbedding {
  explicit RemoteEmbedding(int64_t rows)
      : weight(arange(rows * 3).to(kFloat32).view({rows, 3}).detach().requires_grad_()) {}
  Tensor forward(const Tensor& ids, const Tensor& scale) const { return embedding(weight, ids) * scale; }
  Tensor gradient(int64_t context_id) const { return dist_autograd::get_gradient(context_id, weight); }
  Tensor weight;
};
WEFT_RPC_CONSTRUCTOR(RemoteEmbedding, int64_t);
WEFT_RPC_CLASS(RemoteEmbedding, forward, gradient);

// test_embedding_bag_with_no_grad_tensors (with a dense gradient: weft has no sparse tensors)
TEST_P(DistAutograd, the_weights_of_an_embedding_accumulate_remotely_over_two_passes) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor ids = tensor({1, 2, 4, 5, 4, 3, 2, 9}, {.dtype = kInt64}),
                 scale = rand({8, 1}).requires_grad_(), local_scale = scale.detach().clone().requires_grad_();
    const RemoteEmbedding local(10);
    const Tensor local_loss = local.forward(ids, local_scale).sum();
    const auto table = remote<RemoteEmbedding>("worker1", 10);
    Context context;
    const Tensor loss = table.rpc_sync<&RemoteEmbedding::forward>(ids, scale).sum();
    for (int pass = 0; pass < 2; ++pass) {
      local_loss.backward({}, true);
      context.backward({loss}, {.retain_graph = true});
      EXPECT_TRUE(same_bits(table.rpc_sync<&RemoteEmbedding::gradient>(context.id()), local.weight.grad()));
      EXPECT_TRUE(same_bits(context.gradient(scale), local_scale.grad()));
    }
  });
}

// test_backward_without_rpc
TEST_P(DistAutograd, a_local_graph_fills_the_context_without_a_call) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2});
    Context context;
    context.backward({(a * 2.0).sum()});
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 2.0)));
    EXPECT_FALSE(a.grad().defined());
    EXPECT_EQ(counted(c, "dist_autograd.num_current_backward_passes"), 0);
  });
}

// test_backward_unused_send_function: upstream asserts that FAST hangs
TEST_P(DistAutograd, an_unused_send_stalls_fast_with_peer_function_and_age_and_not_smart) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2}), b = leaf({2});
    Context context;
    const Tensor used = rpc_sync<da_add>("worker1", a, b).sum();
    rpc_sync<da_mul>("worker1", a, b);
    const std::string text = text_of<AutogradError>([&] {
      context.backward(
          {used}, {.retain_graph = true, .mode = Backward::kFast, .stall = std::chrono::milliseconds(300)});
    });
    EXPECT_TRUE(has(text, "still awaited: send #"));
    EXPECT_TRUE(has(text, "of worker 'worker1' to worker 'worker0' (the result of 'da_mul', "));
    EXPECT_TRUE(has(text, " s old)"));
    EXPECT_FALSE(has(text, "da_add"));
    context.backward({used});
    EXPECT_TRUE(same_bits(context.gradient(a), ones({2})));
  });
}

// test_backward_verify_hooks
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

// test_post_hooks
TEST_P(DistAutograd, hooks_after_the_accumulation_run_once_each) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = leaf({2}), b = leaf({2});
    int one = 0, ten = 0;
    register_post_accumulate_hook(a, [&](const Tensor& t) { one += t.is_same(a); });
    register_post_accumulate_hook(a, [&](const Tensor&) { ten += 10; });
    Context context;
    const Tensor y = rpc_sync<da_add>("worker1", a, b) + a;  // two ways to a
    context.backward({y.sum()}, {.retain_graph = true});
    EXPECT_EQ(one, 1);
    EXPECT_EQ(ten, 10);
    context.backward({y.sum()});
    EXPECT_EQ(one, 2);
    EXPECT_EQ(ten, 20);
    EXPECT_TRUE(same_bits(context.gradient(a), full({2}, 4.0)));
  });
}

// ---- test_no_grad_copy

const void* g_seen = nullptr;
/// Hands one gradient to both of its inputs.
struct ToBoth {
  static Tensor forward(FunctionContext&, const Tensor& a, const Tensor& b) { return a + b; }
  static GradList backward(FunctionContext&, const GradList& g) {
    g_seen = g[0].raw();
    return {g[0], g[0]};
  }
};
struct ToOne {
  static Tensor forward(FunctionContext&, const Tensor& a) { return a * 1.0; }
  static GradList backward(FunctionContext&, const GradList& g) {
    g_seen = g[0].raw();
    return {g[0]};
  }
};
/// Its gradient is one number seen as many.
struct Spread {
  static Tensor forward(FunctionContext& ctx, const Tensor& a) {
    ctx.put(a.sizes());
    return ones({1});
  }
  static GradList backward(FunctionContext& ctx, const GradList&) {
    return {ones({1}).expand(ctx.get<Shape>())};
  }
};

TEST_P(DistAutograd, a_gradient_is_kept_without_a_copy_only_when_it_is_whole_and_nobody_elses) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = randn({5, 6}).requires_grad_(), b = randn({5, 6}).requires_grad_();
    const auto at = [](const Context& context, const Tensor& t) { return context.gradient(t).raw(); };
    {
      Context context;  // not contiguous: copied
      context.backward({apply_function<Spread>(apply_function<ToBoth>(a, b))});
      EXPECT_TRUE(context.gradient(a).is_contiguous() && context.gradient(b).is_contiguous());
      EXPECT_NE(at(context, a), g_seen);
      EXPECT_NE(at(context, b), g_seen);
      EXPECT_NE(at(context, a), at(context, b));
    }
    {
      Context context;  // of one leaf alone: taken as it is
      context.backward({apply_function<ToOne>(a)[1][0]});
      EXPECT_EQ(at(context, a), g_seen);
    }
    Context context;  // of two leaves: not the same memory
    context.backward({apply_function<ToBoth>(a, b)[1][0]});
    EXPECT_NE(at(context, a), at(context, b));
    EXPECT_TRUE(same_bits(context.gradient(a), context.gradient(b)));
  });
}

// ---- test_no_grad_copy_sparse, test_grad_copy_sparse_indices_extra_ref

constexpr int64_t kTable = 7, kWide = 3;

/// Rows 2 and 5 of a gradient of sizes [kTable, kWide] in new memory, which g_seen has.
RowGrad two_rows() {
  const RowGrad g{{kTable, kWide}, tensor({2, 5}, {.dtype = kInt64}), ones({2, kWide}) * 0.5};
  g_seen = g.values.raw();
  return g;
}
/// A loss with this gradient at each of the leaves.
template <class Make> Tensor with_gradient(std::initializer_list<InputRef> leaves, Make make) {
  const auto backward = [make, n = leaves.size()](const Tensor&, Needs) {
    const Tensor g = weft::detail::pack_rows(make());
    GradList out;
    for (size_t i = 0; i < n; ++i) out.push_back(g);
    return out;
  };
  return record("TwoRows", zeros({}), leaves, backward);
}

TEST_P(DistAutograd, a_row_wise_gradient_is_kept_without_a_copy_only_when_its_values_are_nobody_elses) {
  Cluster c(options());
  c.run(0, [&] {
    const Tensor a = randn({kTable, kWide}).requires_grad_(), b = randn({kTable, kWide}).requires_grad_();
    const auto gradient_of = [&](const Tensor& loss, const Tensor& leaf) {
      Context context;
      context.backward({loss});
      RowGrad g = context.row_gradient(leaf);
      EXPECT_EQ(g.rows.to_vector<int64_t>(), (std::vector<int64_t>{2, 5}));
      EXPECT_TRUE(g.values.is_contiguous() && same_bits(g.values, full({2, kWide}, 0.5)));
      EXPECT_THROW(g.rows.fill_(0), ValueError);  // so rows may be shared
      return g;
    };
    EXPECT_EQ(gradient_of(with_gradient({a}, two_rows), a).values.raw(), g_seen);  // taken as it is
    RowGrad held;
    const auto hold = [&](bool rows) {
      return [&held, rows] {
        RowGrad g = two_rows();
        (rows ? held.rows : held.values) = rows ? g.rows : g.values;
        return g;
      };
    };
    EXPECT_EQ(gradient_of(with_gradient({a}, hold(true)), a).values.raw(), g_seen);
    EXPECT_NE(gradient_of(with_gradient({a}, hold(false)), a).values.raw(), g_seen);
    const auto turned = [] {
      RowGrad g = two_rows();
      g.values = g.values.t().contiguous().t();  // not contiguous
      g_seen = g.values.raw();
      return g;
    };
    EXPECT_NE(gradient_of(with_gradient({a}, turned), a).values.raw(), g_seen);
    Context context;  // of two leaves: not the same values
    context.backward({with_gradient({a, b}, two_rows)});
    RowGrad left = context.row_gradient(a), right = context.row_gradient(b);
    EXPECT_NE(left.values.raw(), right.values.raw());
    left.values.fill_(9);
    EXPECT_TRUE(same_bits(context.row_gradient(b).values, full({2, kWide}, 0.5)));
  });
}

}  // namespace
