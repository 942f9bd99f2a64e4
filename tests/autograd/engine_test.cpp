// The tape: accumulation, retained graphs, grad(), many threads, long chains.
#include <thread>

#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/dot.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/gradcheck.h>

#include "support/errors.h"
#include "support/leaf.h"

namespace weft {
namespace {

using test::error_of;
using test::has;

using test::leaf;
using test::values;
using Numbers = std::vector<double>;

TEST(Backward, gradients_of_a_product_reach_both_leaves) {
  const Tensor a = leaf({2, 3}), b = leaf({5, 7});
  mul(a, b).sum().backward();
  EXPECT_EQ(values(a.grad()), (Numbers{5, 7}));
  EXPECT_EQ(values(b.grad()), (Numbers{2, 3}));
}

TEST(Backward, leaf_gradients_accumulate_until_zeroed) {
  const Tensor x = leaf({2});
  for (int i = 0; i < 3; ++i) mul(x, x).sum().backward();
  EXPECT_EQ(values(x.grad()), Numbers{12});
  x.zero_grad();
  EXPECT_FALSE(x.grad().defined());
}

TEST(Backward, a_tensor_used_twice_gets_the_sum) {
  const Tensor x = leaf({3});
  const Tensor y = mul(x, x);
  add(mul(y, y), y).sum().backward();
  EXPECT_EQ(values(x.grad()), Numbers{4 * 27 + 6});
}

TEST(Backward, broadcast_gradients_are_summed_back) {
  const Tensor a = ones({3, 1}, {.dtype = kFloat64, .requires_grad = true}), b = leaf({1, 2, 4, 8});
  mul(a, b).sum().backward();
  EXPECT_EQ(values(a.grad()), (Numbers{15, 15, 15}));
  EXPECT_EQ(values(b.grad()), (Numbers{3, 3, 3, 3}));
}

TEST(Backward, gradients_are_cast_to_the_leaf) {
  const Tensor x = tensor({2, 3}, {.dtype = kFloat32, .requires_grad = true});
  mul(x, leaf({5, 7})).sum().backward();
  EXPECT_EQ(x.grad().dtype(), kFloat32);
  EXPECT_EQ(values(x.grad()), (Numbers{5, 7}));
}

TEST(Backward, explicit_gradients_seed_non_scalars) {
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = mul(x, x);
  EXPECT_TRUE(has(error_of<AutogradError>([&] { y.backward(); }), "[3]"));
  EXPECT_THROW(y.backward(ones({2}, {.dtype = kFloat64})), ShapeError);
  y.backward(tensor({1, 10, 100}, {.dtype = kFloat64}));
  EXPECT_EQ(values(x.grad()), (Numbers{2, 40, 600}));
}

TEST(Backward, the_seed_is_never_written_to_or_kept) {
  const Tensor x = leaf({1, 2}), g = tensor({3, 5}, {.dtype = kFloat64});
  x.backward(g);
  x.backward(g);
  EXPECT_EQ(values(g), (Numbers{3, 5}));
  EXPECT_EQ(values(x.grad()), (Numbers{6, 10}));
  EXPECT_FALSE(x.grad().shares_storage(g));
}

TEST(Backward, borrowed_and_expanded_gradients_are_not_written_to) {
  double memory[2] = {3, 5};
  const Tensor x = leaf({1, 2});
  x.backward(from_blob(memory, {2}, {.dtype = kFloat64}));
  x.backward(tensor({1, 1}, {.dtype = kFloat64}));
  EXPECT_EQ(memory[0], 3);
  EXPECT_EQ(values(x.grad()), (Numbers{4, 6}));
  const Tensor one = ones({1}, {.dtype = kFloat64});
  x.set_grad(one.expand({2}));
  x.backward(tensor({1, 2}, {.dtype = kFloat64}));
  EXPECT_EQ(values(x.grad()), (Numbers{2, 3}));
  EXPECT_EQ(values(one), Numbers{1});
}

TEST(Backward, one_gradient_for_two_leaves_is_not_shared) {
  const Tensor a = leaf({1, 2}), b = leaf({3, 4});
  add(a, b).sum().backward();
  EXPECT_FALSE(a.grad().shares_storage(b.grad()));
  EXPECT_TRUE(a.grad().is_contiguous());
}

TEST(Backward, several_roots_run_in_one_pass) {
  const Tensor x = leaf({2});
  const Tensor y = mul(x, x), z = mul(y, x);
  const std::vector<Tensor> roots{y, z};
  backward(roots);
  EXPECT_EQ(values(x.grad()), Numbers{4 + 12});
}

TEST(Backward, constants_and_missing_graphs_are_errors) {
  EXPECT_TRUE(has(error_of<AutogradError>([] { ones({1}).backward(); }), "does not require grad"));
  const Tensor x = leaf({1});
  EXPECT_FALSE(mul(x.detach(), x.detach()).requires_grad());
  EXPECT_TRUE(has(error_of<AutogradError>([&] { backward({}); }), "no tensors"));
}

TEST(Backward, a_second_backward_says_retain_graph) {
  const Tensor x = leaf({3});
  const Tensor y = mul(x, x);
  y.backward();
  const std::string why = error_of<AutogradError>([&] { y.backward(); });
  EXPECT_TRUE(has(why, "second time"));
  EXPECT_TRUE(has(why, "retain_graph"));
  EXPECT_EQ(values(x.grad()), Numbers{6});
}

TEST(Backward, retained_graphs_run_again) {
  const Tensor x = leaf({3});
  const Tensor y = mul(x, x);
  y.backward({}, true);
  y.backward();
  EXPECT_EQ(values(x.grad()), Numbers{12});
}

TEST(Backward, create_graph_gives_differentiable_gradients) {
  const Tensor x = leaf({2});
  const Tensor y = mul(mul(x, x), x);
  const Tensor dx = grad({y}, {x}, {}, {.create_graph = true})[0];
  EXPECT_EQ(values(dx), Numbers{12});
  const Tensor d2x = grad({dx}, {x}, {}, {.create_graph = true})[0];
  EXPECT_EQ(values(d2x), Numbers{12});
  EXPECT_EQ(values(grad({d2x}, {x})[0]), Numbers{6});
  EXPECT_FALSE(x.grad().defined());
}

TEST(Backward, create_graph_through_saved_outputs_and_broadcast) {
  const Tensor x = leaf({0.3, -0.7}), b = leaf({0.5});
  const auto f = [](const std::vector<Tensor>& in) { return std::vector<Tensor>{mul(tanh(in[0]), in[1])}; };
  EXPECT_TRUE(gradcheck(f, {x, b})) << gradcheck(f, {x, b}).message;
  EXPECT_TRUE(gradgradcheck(f, {x, b})) << gradgradcheck(f, {x, b}).message;
}

TEST(Backward, create_graph_leaves_a_history_in_grad) {
  const Tensor x = leaf({2});
  mul(mul(x, x), x).backward({}, false, true);
  const Tensor g = x.grad();
  ASSERT_TRUE(g.requires_grad());
  x.zero_grad();
  g.backward();
  EXPECT_EQ(values(x.grad()), Numbers{12});
  x.zero_grad();
}

TEST(Backward, released_nodes_free_their_saved_tensors) {
  const Tensor x = leaf({3});
  const Tensor square = mul(x, x);
  Storage* held = x.body().storage.get();
  EXPECT_EQ(held->saves(), 2u);
  square.backward();
  EXPECT_EQ(held->saves(), 0u);
}

TEST(Backward, factors_of_constants_are_not_kept) {
  const Tensor x = leaf({3}), constant = tensor({5}, {.dtype = kFloat64});
  const Tensor y = mul(x, constant);
  EXPECT_EQ(x.body().storage->saves(), 0u);
  EXPECT_EQ(constant.body().storage->saves(), 1u);
  y.backward();
  EXPECT_EQ(values(x.grad()), Numbers{5});
}

TEST(Grad, unused_inputs_are_errors_unless_allowed) {
  const Tensor x = leaf({2}), unused = leaf({3});
  const Tensor y = mul(x, x);
  EXPECT_TRUE(has(error_of<AutogradError>([&] {
                    grad({y}, {x, unused}, {}, {.retain_graph = true});
                  }),
                  "not reached"));
  const std::vector<Tensor> g = grad({y}, {x, unused}, {}, {.allow_unused = true});
  EXPECT_EQ(values(g[0]), Numbers{4});
  EXPECT_FALSE(g[1].defined());
}

TEST(Grad, options_may_follow_the_inputs) {
  const Tensor x = leaf({2}), unused = leaf({3});
  const std::vector<Tensor> g =
      grad({mul(mul(x, x), x)}, {x, unused}, {.create_graph = true, .allow_unused = true});
  EXPECT_EQ(values(g[0]), Numbers{12});
  EXPECT_FALSE(g[1].defined());
  EXPECT_EQ(values(grad({g[0]}, {x}).front()), Numbers{12});
}

TEST(Grad, inner_results_and_repeated_inputs_are_captured) {
  const Tensor x = leaf({2});
  const Tensor y = mul(x, x);
  const Tensor z = mul(y, y);
  const std::vector<Tensor> g = grad({z}, {y, x, y});
  EXPECT_EQ(values(g[0]), Numbers{8});
  EXPECT_EQ(values(g[1]), Numbers{32});
  EXPECT_EQ(values(g[2]), Numbers{8});
}

TEST(Grad, other_leaves_are_left_alone) {
  const Tensor a = leaf({2}), b = leaf({3});
  EXPECT_EQ(values(grad({mul(a, b)}, {a})[0]), Numbers{3});
  EXPECT_FALSE(a.grad().defined());
  EXPECT_FALSE(b.grad().defined());
}

TEST(Grad, an_output_may_be_an_input) {
  const Tensor x = leaf({2});
  EXPECT_EQ(values(grad({x}, {x})[0]), Numbers{1});
}

TEST(Grad, parts_that_lead_nowhere_are_not_run) {
  const Tensor x = leaf({2});
  const Tensor y = mul(x, x);
  const Tensor z = mul(y, x);
  EXPECT_EQ(values(grad({z}, {y})[0]), Numbers{2});
  // y's own node was not run, so its saved tensors are still there.
  y.backward();
  EXPECT_EQ(values(x.grad()), Numbers{4});
}

TEST(GradMode, no_grad_records_nothing_and_is_per_thread) {
  const Tensor x = leaf({2});
  NoGrad off;
  EXPECT_FALSE(mul(x, x).requires_grad());
  {
    EnableGrad on;
    EXPECT_TRUE(mul(x, x).requires_grad());
  }
  bool inside = false;
  std::thread([&] { inside = mul(x, x).requires_grad(); }).join();
  EXPECT_TRUE(inside);
  EXPECT_FALSE(mul(x, x).requires_grad());
}

TEST(GradMode, inference_mode_restores_what_was) {
  {
    InferenceMode on;
    EXPECT_FALSE(grad_enabled());
    EXPECT_TRUE(autograd_state().inference);
  }
  EXPECT_TRUE(grad_enabled());
  EXPECT_FALSE(autograd_state().inference);
}

TEST(GradMode, a_view_taken_in_inference_mode_has_no_base) {
  const Tensor w = leaf({2}), x = zeros({2, 2}, {.dtype = kFloat64}), y = zeros({2, 2}, {.dtype = kFloat64});
  const Tensor plain = [&] {
    NoGrad off;
    return x.select(0, 0);
  }();
  const Tensor inferred = [&] {
    InferenceMode on;
    return y.select(0, 0);
  }();
  Tensor(plain).add_(w);
  Tensor(inferred).add_(w);
  EXPECT_TRUE(x.requires_grad());
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TRUE(inferred.requires_grad());
  EXPECT_EQ(values(y.select(0, 0)), Numbers({2, 2}));
  // the history of the view describes these bytes, so a write through another handle is refused
  EXPECT_TRUE(has(error_of<AutogradError>([&] { Tensor(y).mul_(2); }), "detached alias"));
}

TEST(Leaves, only_floating_leaves_may_require_grad) {
  EXPECT_TRUE(has(error_of<AutogradError>([] { ones({2}, {.dtype = kInt64}).requires_grad_(); }), "int64"));
  const Tensor x = leaf({2});
  Tensor y = mul(x, x);
  EXPECT_FALSE(y.is_leaf());
  EXPECT_STREQ(x.grad_fn_name(), "");
  EXPECT_STRNE(y.grad_fn_name(), "");
  EXPECT_TRUE(has(error_of<AutogradError>([&] { y.requires_grad_(false); }), y.grad_fn_name()));
  EXPECT_TRUE(y.requires_grad_(true).requires_grad());
  EXPECT_TRUE(ones({2}).is_leaf());
}

TEST(Leaves, requires_grad_can_be_switched_off) {
  Tensor x = leaf({2});
  x.requires_grad_(false);
  EXPECT_FALSE(mul(x, x).requires_grad());
  x.requires_grad_();
  mul(x, x).backward();
  EXPECT_EQ(values(x.grad()), Numbers{4});
}

TEST(Leaves, detach_cuts_and_shares) {
  const Tensor x = leaf({2});
  const Tensor y = mul(x, x), d = y.detach();
  EXPECT_TRUE(d.shares_storage(y));
  EXPECT_FALSE(d.requires_grad());
  EXPECT_TRUE(d.is_leaf());
  Tensor z = mul(x, x);
  z.detach_();
  EXPECT_FALSE(z.requires_grad());
  EXPECT_TRUE(z.is_leaf());
}

TEST(Leaves, set_grad_checks_and_retain_grad_keeps) {
  const Tensor x = leaf({2, 3});
  EXPECT_THROW(x.set_grad(ones({3}, {.dtype = kFloat64})), ShapeError);
  EXPECT_THROW(x.set_grad(ones({2})), DTypeError);
  x.set_grad(ones({2}, {.dtype = kFloat64}));
  const Tensor y = mul(x, x);
  y.retain_grad();
  y.retain_grad();
  y.sum().backward();
  EXPECT_EQ(values(y.grad()), (Numbers{1, 1}));
  EXPECT_EQ(values(x.grad()), (Numbers{5, 7}));
}

TEST(Leaves, retain_grad_of_a_dropped_tensor_is_harmless) {
  const Tensor x = leaf({2});
  Tensor z;
  {
    const Tensor y = mul(x, x);
    y.retain_grad();
    z = mul(y, y);
  }
  z.backward();
  EXPECT_EQ(values(x.grad()), Numbers{32});
}

TEST(Leaves, a_leaf_may_die_before_its_graph) {
  Tensor y;
  {
    const Tensor x = leaf({2});
    y = mul(x, x);
  }
  y.backward();
  EXPECT_TRUE(y.requires_grad());
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
// the sanitizers are up to 20 times slower; recursion would overflow here too
constexpr int kChain = 100'000;
#else
constexpr int kChain = 1'000'000;
#endif

TEST(Chain, a_million_nodes_run_and_die_without_recursion) {
  const Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < kChain; ++i) y = add(y, x.detach());
  y.backward();
  EXPECT_EQ(values(x.grad()), Numbers{1});
  y = Tensor();
  Tensor z = x;
  for (int i = 0; i < kChain; ++i) z = mul(z, x);
  z = Tensor();
  EXPECT_EQ(x.body().storage->saves(), 0u);
}

TEST(Chain, a_million_nodes_die_iteratively_on_another_thread) {
  Tensor y = leaf({1});
  for (int i = 0; i < kChain; ++i) y = add(y, y.detach());
  std::thread([moved = std::move(y)]() mutable { moved = Tensor(); }).join();
  EXPECT_FALSE(y.defined());
}

TEST(Threads, two_passes_run_over_one_retained_graph) {
  const Tensor x = leaf({0.5, -0.25, 2});
  Tensor y = x;
  for (int i = 0; i < 101; ++i) y = tanh(add(mul(y, x), x));
  const Tensor root = y.sum();
  const Numbers alone = values(grad({root}, {x}, {}, {.retain_graph = true})[0]);
  std::vector<std::thread> threads;
  std::vector<Numbers> found(4);
  for (size_t t = 0; t < found.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 7; ++i) found[t] = values(grad({root}, {x}, {}, {.retain_graph = true})[0]);
    });
  for (std::thread& t : threads) t.join();
  for (const Numbers& f : found) EXPECT_EQ(f, alone);
}

TEST(Threads, eight_threads_build_on_one_parameter) {
  const Tensor p = leaf({2, 3});
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 53; ++i) mul(p, p).sum().backward();
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(values(p.grad()), (Numbers{8 * 53 * 4, 8 * 53 * 6}));
}

TEST(Anomaly, nan_gradients_name_the_forward_call) {
  const Tensor x = leaf({0});
  DetectAnomaly on;
  const Tensor y = mul(sqrt(x), 0.0);
  const std::string why = error_of<AutogradError>([&] { y.sum().backward(); });
  EXPECT_TRUE(has(why, "NaN"));
  EXPECT_TRUE(has(why, "forward call: "));
}

TEST(Dot, lists_nodes_and_leaves) {
  const Tensor x = leaf({2});
  const std::string text = to_dot({mul(x, x).sum()});
  EXPECT_TRUE(text.starts_with("digraph")) << text;
  EXPECT_TRUE(has(text, "leaf"));
  EXPECT_TRUE(has(text, "n0 -> n1"));
  EXPECT_TRUE(has(error_of<AutogradError>([] { to_dot({ones({1})}); }), "history"));
}

}  // namespace
}  // namespace weft
