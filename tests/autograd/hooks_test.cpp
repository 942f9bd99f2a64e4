// Hooks on tensors, nodes and saved tensors.
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/hooks.h>
#include <weft/autograd/tape/saved_hooks.h>

#include "support/leaf.h"

namespace weft {
namespace {

using test::leaf;
using test::values;
using Numbers = std::vector<double>;

TEST(Hooks, tensor_hooks_see_and_replace_the_whole_gradient) {
  const Tensor x = leaf({2});
  const Tensor y = mul(x, x);
  int calls = 0;
  register_hook(y, [&](const Tensor& g) {
    ++calls;
    EXPECT_EQ(values(g), Numbers{7});
    return mul(g, 10.0);
  });
  add(mul(y, 3.0), mul(y, 4.0)).backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(values(x.grad()), Numbers{280});
}

TEST(Hooks, hooks_of_a_leaf_run_before_accumulation_in_order) {
  const Tensor x = leaf({2});
  std::string order;
  register_hook(x, [&](const Tensor& g) {
    order += "a";
    return mul(g, 2.0);
  });
  register_hook(x, [&](const Tensor&) {
    order += "b";
    return Tensor();
  });
  register_post_accumulate_hook(x, [&](const Tensor& p) {
    order += "c";
    EXPECT_EQ(values(p.grad()), Numbers{8});
  });
  mul(x, x).backward();
  EXPECT_EQ(order, "abc");
  EXPECT_EQ(values(x.grad()), Numbers{8});
}

TEST(Hooks, removed_hooks_are_not_called) {
  const Tensor x = leaf({2});
  int calls = 0;
  HookHandle handle = register_hook(x, [&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  {
    const ScopedHook scoped(register_hook(x, [&](const Tensor&) {
      calls += 100;
      return Tensor();
    }));
    mul(x, x).backward();
  }
  EXPECT_EQ(calls, 101);
  mul(x, x).backward();
  EXPECT_EQ(calls, 102);
  handle.remove();
  handle.remove();
  mul(x, x).backward();
  EXPECT_EQ(calls, 102);
}

TEST(Hooks, a_handle_may_outlive_its_tensor) {
  HookHandle handle;
  {
    const Tensor x = leaf({2});
    handle = register_hook(x, [](const Tensor&) { return Tensor(); });
  }
  EXPECT_NO_THROW(handle.remove());
}

TEST(Hooks, a_hook_may_remove_itself) {
  const Tensor x = leaf({2});
  int calls = 0;
  HookHandle handle;
  handle = register_hook(x, [&](const Tensor&) {
    ++calls;
    handle.remove();
    return Tensor();
  });
  mul(x, x).backward();
  mul(x, x).backward();
  EXPECT_EQ(calls, 1);
}

TEST(Hooks, hooks_run_for_grad_and_before_capture) {
  const Tensor x = leaf({3});
  register_hook(x, [](const Tensor& g) { return mul(g, 2.0); });
  EXPECT_EQ(values(grad({mul(x, x)}, {x})[0]), Numbers{12});
}

TEST(Hooks, node_hooks_see_both_sides) {
  const Tensor x = leaf({3});
  const Tensor y = mul(x, 5.0);
  register_pre_hook(gradient_edge(y).node, [](GradList& g) { g[0] = mul(g[0], 2.0); });
  register_post_hook(gradient_edge(y).node, [](GradList& inputs, const GradList& outputs) {
    EXPECT_EQ(values(outputs[0]), Numbers{2});
    EXPECT_EQ(values(inputs[0]), Numbers{10});
    inputs[0] = mul(inputs[0], 3.0);
  });
  y.backward();
  EXPECT_EQ(values(x.grad()), Numbers{30});
}

TEST(Hooks, wrong_uses_are_errors) {
  const Tensor x = leaf({3}), constant = ones({1});
  EXPECT_THROW(register_hook(constant, [](const Tensor&) { return Tensor(); }), AutogradError);
  EXPECT_THROW(register_post_accumulate_hook(mul(x, x), [](const Tensor&) {}), AutogradError);
  EXPECT_THROW(register_hook(x, TensorHook()), ValueError);
  const ScopedHook scoped(register_hook(x, [](const Tensor&) { return ones({2}, {.dtype = kFloat64}); }));
  EXPECT_THROW(mul(x, x).backward(), AutogradError);
}

TEST(SavedTensorHooks, saved_tensors_go_through_pack_and_unpack) {
  const Tensor x = leaf({2, 3});
  int packed = 0, unpacked = 0;
  Tensor y;
  {
    const SavedTensorHooks hooks(
        [&](const Tensor& t) -> std::any {
          ++packed;
          return t.to(kFloat32).to_vector<float>();
        },
        [&](const std::any& kept) {
          ++unpacked;
          return from_vector(std::any_cast<const std::vector<float>&>(kept), {2}).to(kFloat64);
        });
    y = tanh(mul(x, x));
  }
  EXPECT_EQ(packed, 3);
  EXPECT_EQ(x.body().storage->saves(), 0u);
  mul(x, x);
  EXPECT_EQ(packed, 3);
  const Tensor dx = grad({y.sum()}, {x}, {}, {.create_graph = true})[0];
  EXPECT_GE(unpacked, 3);
  EXPECT_NEAR(values(dx)[0], 4 * (1 - std::tanh(4.0) * std::tanh(4.0)), 1e-6);
  EXPECT_TRUE(dx.requires_grad());
}

TEST(SavedTensorHooks, results_that_only_backward_needs_go_through_them_too) {
  const Tensor x = leaf({1, 4, 7}), row = from_vector(std::vector<int64_t>{1}, {1});
  const auto packed = [&](const std::function<Tensor()>& f) {
    int count = 0;
    const SavedTensorHooks hooks([&](const Tensor& t) -> std::any { return ++count, t.clone(); },
                                 [](const std::any& kept) { return std::any_cast<Tensor>(kept); });
    x.zero_grad();
    f().sum().backward();
    return count;
  };
  EXPECT_EQ(packed([&] { return var(x); }), 2);
  EXPECT_EQ(values(x.grad()), (Numbers{-3, 0, 3}));
  EXPECT_EQ(packed([&] { return std(x); }), 3);
  EXPECT_EQ(packed([&] { return layer_norm(x, {3}); }), 3);
  EXPECT_EQ(packed([&] { return cross_entropy(reshape(x, {1, 3}), row); }), 3);
  EXPECT_EQ(packed([&] { return linear_cross_entropy(reshape(x, {1, 3}), ones({2, 3}), Tensor(), row); }), 4);
  EXPECT_EQ(packed([&] { return clone(x).clamp_(2, 5); }), 1);
  EXPECT_EQ(values(x.grad()), (Numbers{0, 1, 0}));
  const auto lstm = [&] {
    const TensorOptions like{.dtype = x.dtype()};
    return rnn_layer(RnnMode::kLstm, reshape(x, {3, 1, 1}), zeros({1, 1}, like), zeros({1, 1}, like),
                     ones({4, 1}, like), ones({4, 1}, like), Tensor(), Tensor())
        .y;
  };
  EXPECT_EQ(packed(lstm), 9);
  const Numbers through_hooks = values(x.grad());
  x.zero_grad();
  lstm().sum().backward();
  EXPECT_EQ(values(x.grad()), through_hooks);
}

TEST(SavedTensorHooks, a_wrong_unpack_is_an_error) {
  const Tensor x = leaf({2, 3});
  const SavedTensorHooks hooks([](const Tensor&) -> std::any { return 1; },
                               [](const std::any&) { return ones({3}); });
  EXPECT_THROW(mul(x, x).sum().backward(), AutogradError);
}

}  // namespace
}  // namespace weft
