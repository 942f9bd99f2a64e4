// A leaf whose requires_grad is switched off, or which gets another dtype, between forward and backward. Its
// gradient arrives, is left out, or throws, and its hooks stay.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/hooks.h>
#include <weft/autograd/tape/inner/set_data.h>

#include "../support/errors.h"
#include "../support/leaf.h"

namespace weft {
namespace {

using test::error_of;
using test::has;
using test::leaf;
using test::values;
using Numbers = std::vector<double>;

TEST(FrozenLeaf, a_leaf_that_is_switched_on_again_gets_the_gradient_of_an_older_graph) {
  Tensor w = leaf({2, 3});
  const Tensor y = mul(w, w).sum();
  w.requires_grad_(false);
  EXPECT_FALSE(mul(w, w).requires_grad());
  w.requires_grad_();
  const Tensor later = mul(w, w).sum();
  y.backward();
  later.backward();
  EXPECT_EQ(values(w.grad()), (Numbers{8, 12}));
}

TEST(FrozenLeaf, a_leaf_that_is_off_during_the_backward_gets_no_gradient) {
  Tensor w = leaf({2, 3});
  const Tensor x = leaf({5, 7}), y = mul(w, x).sum();
  w.requires_grad_(false);
  y.backward();
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(values(x.grad()), (Numbers{2, 3}));
}

TEST(FrozenLeaf, data_of_the_same_dtype_changes_nothing_for_an_older_graph) {
  const Tensor w = leaf({2, 3}), y = mul(w, w).sum();
  set_data(w, full({2}, 9, {.dtype = kFloat64}));
  y.backward();
  EXPECT_EQ(values(w.grad()), (Numbers{4, 6}));
}

TEST(FrozenLeaf, a_backward_to_a_leaf_of_another_dtype_or_with_a_history_throws) {
  Tensor w = leaf({2, 3});
  const Tensor y = mul(w, w).sum();
  set_data(w, w.detach().to(kFloat32));
  EXPECT_TRUE(has(error_of<AutogradError>([&] { y.backward(); }), "moved to another dtype or device"));
  EXPECT_FALSE(w.grad().defined());
  Tensor v = leaf({2, 3});
  const Tensor x = leaf({5, 7}), z = (v * 2).sum();
  v.requires_grad_(false);
  v.mul_(x);
  EXPECT_TRUE(has(error_of<AutogradError>([&] { z.backward(); }), "written to in place"));
  v.sum().backward();
  EXPECT_EQ(values(x.grad()), (Numbers{2, 3}));
}

TEST(FrozenLeaf, hooks_stay_until_their_handle_removes_them) {
  Tensor w = leaf({2, 3});
  int calls = 0;
  HookHandle handle = register_hook(w, [&](const Tensor& g) {
    ++calls;
    return g;
  });
  w.requires_grad_(false);
  w.requires_grad_();
  w.sum().backward();
  EXPECT_EQ(calls, 1);
  set_data(w, w.detach().to(kFloat32));
  set_data(w, w.detach().to(kFloat64));
  w.sum().backward();
  EXPECT_EQ(calls, 2);
  handle.remove();
  w.sum().backward();
  EXPECT_EQ(calls, 2);
}

TEST(FrozenLeaf, a_graph_outlives_a_leaf_that_was_switched_off) {
  const Tensor x = leaf({5, 7});
  Tensor y;
  {
    Tensor w = leaf({2, 3});
    y = mul(w, x).sum();
    w.requires_grad_(false);
  }
  y.backward();
  EXPECT_EQ(values(x.grad()), (Numbers{2, 3}));
}

}  // namespace
}  // namespace weft
