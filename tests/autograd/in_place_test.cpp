// In-place writes: rewritten histories, refusals, and that no gradient is silently wrong.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/gradcheck.h>
#include <weft/tensor/factories.h>

#include "support/errors.h"
#include "support/leaf.h"

namespace weft {
namespace {

using test::error_of;
using test::has;

constexpr TensorOptions kDouble{.dtype = kFloat64};
using test::leaf;
using test::values;
using Numbers = std::vector<double>;

/// gradcheck and gradgradcheck of a function of one list of inputs.
void check(const TensorFunction& f, const std::vector<Tensor>& inputs) {
  const GradcheckResult first = gradcheck(f, inputs);
  EXPECT_TRUE(first.ok) << first.message;
  const GradcheckResult second = gradgradcheck(f, inputs);
  EXPECT_TRUE(second.ok) << "second order: " << second.message;
}

TEST(InPlace, leaf_that_requires_grad_is_refused_and_unchanged) {
  Tensor p = leaf({1, 2});
  EXPECT_TRUE(has(error_of<AutogradError>([&] { p.add_(1); }), "add_"));
  EXPECT_TRUE(has(error_of<AutogradError>([&] { p.narrow(0, 0, 1).mul_(2); }), "view of a leaf"));
  EXPECT_EQ(values(p), (Numbers{1, 2}));
  NoGrad off;
  p.add_(1);
  p.narrow(0, 0, 1).mul_(2);
  EXPECT_EQ(values(p), (Numbers{4, 3}));
  EXPECT_TRUE(p.is_leaf());
  EXPECT_TRUE(p.requires_grad());
}

TEST(InPlace, saved_tensor_written_later_is_found_out) {
  const Tensor x = leaf({2, 3});
  Tensor y = mul(x, 2.0);
  const Tensor z = mul(y, y);
  y.add_(1);
  const std::string why = error_of<AutogradError>([&] { z.sum().backward(); });
  EXPECT_TRUE(has(why, "[2]"));
  EXPECT_TRUE(has(why, "found version 1, expected 0"));
}

TEST(InPlace, saved_parameter_written_under_no_grad_is_found_out) {
  Tensor p = leaf({2, 3});
  const Tensor y = mul(p, p).sum();
  {
    NoGrad off;
    p.mul_(2);
  }
  EXPECT_TRUE(has(error_of<AutogradError>([&] { y.backward(); }), "in place"));
}

TEST(InPlace, writes_before_the_save_are_fine) {
  check(
      [](const std::vector<Tensor>& in) {
        Tensor y = mul(in[0], 2.0);
        y.mul_(in[1]);
        y.add_(in[0], 3);
        return std::vector<Tensor>{tanh(y)};
      },
      {leaf({0.2, -0.3}), leaf({0.5, 0.7})});
}

TEST(InPlace, constant_becomes_recorded_by_a_write) {
  const Tensor p = leaf({5, 7});
  Tensor y = zeros({2}, kDouble);
  y.copy_(p);
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(y.is_leaf());
  y.sum().backward();
  EXPECT_EQ(values(p.grad()), (Numbers{1, 1}));
}

TEST(InPlace, write_to_a_view_of_a_constant_reaches_the_base) {
  const Tensor p = leaf({5, 7});
  const Tensor y = zeros({5}, kDouble);
  Tensor part = y.narrow(0, 1, 2);
  part.copy_(p);
  EXPECT_TRUE(y.requires_grad());
  EXPECT_TRUE(part.requires_grad());
  mul(y, y).sum().backward();
  EXPECT_EQ(values(p.grad()), (Numbers{10, 14}));
}

TEST(InPlace, write_to_a_view_of_a_result_rewrites_its_history) {
  check(
      [](const std::vector<Tensor>& in) {
        const Tensor y = mul(in[0], in[0]);
        y.narrow(0, 1, 2).mul_(in[1]);
        y.narrow(0, 0, 1).copy_(in[1].narrow(0, 1, 1));
        return std::vector<Tensor>{tanh(y)};
      },
      {leaf({0.2, -0.3, 0.6}), leaf({0.5, 0.7})});
}

TEST(InPlace, write_to_a_view_of_a_view_reaches_the_root) {
  check(
      [](const std::vector<Tensor>& in) {
        const Tensor y = mul(in[0], 2.0).view({2, 3});
        Tensor corner = y.t().narrow(0, 1, 2).select(1, 1);
        corner.mul_(in[1]);
        return std::vector<Tensor>{mul(y, y), corner};
      },
      {leaf({0.2, -0.3, 0.6, 1.1, -0.9, 0.4}), leaf({0.5, 0.7})});
}

TEST(InPlace, other_views_follow_a_write_to_the_base_or_a_sibling) {
  check(
      [](const std::vector<Tensor>& in) {
        Tensor y = mul(in[0], 3.0);
        const Tensor early = y.narrow(0, 0, 2), late = y.narrow(0, 1, 2);
        Tensor sibling = y.narrow(0, 1, 1);
        sibling.mul_(in[1]);
        y.add_(in[0]);
        return std::vector<Tensor>{tanh(early), tanh(late)};
      },
      {leaf({0.2, -0.3, 0.6}), leaf({0.5})});
}

TEST(InPlace, view_taken_before_the_base_got_a_history_follows_it) {
  const Tensor p = leaf({5, 7});
  Tensor y = zeros({2}, kDouble);
  const Tensor view = y.narrow(0, 1, 1);
  EXPECT_FALSE(view.requires_grad());
  y.copy_(p);
  EXPECT_TRUE(view.requires_grad());
  mul(view, 3.0).sum().backward();
  EXPECT_EQ(values(p.grad()), (Numbers{0, 3}));
}

TEST(InPlace, expanded_views_follow_their_base_with_summed_gradients) {
  const Tensor p = leaf({5, 7});
  Tensor y = zeros({2}, kDouble);
  const Tensor wide = y.expand({3, 2});
  y.copy_(p);
  wide.sum().backward();
  EXPECT_EQ(values(p.grad()), (Numbers{3, 3}));
}

TEST(InPlace, expanded_tensors_cannot_be_written) {
  const Tensor y = zeros({1, 2}, kDouble);
  EXPECT_THROW(y.expand({3, 2}).add_(1), ShapeError);
  EXPECT_EQ(values(y), (Numbers{0, 0}));
}

TEST(InPlace, overwritten_parts_get_no_gradient) {
  const Tensor x = leaf({1, 2, 3});
  Tensor y = mul(x, 2.0);
  y.narrow(0, 0, 2).zero_();
  y.sum().backward();
  EXPECT_EQ(values(x.grad()), (Numbers{0, 0, 2}));
}

TEST(InPlace, detached_alias_of_a_result_is_refused_in_grad_mode) {
  const Tensor x = leaf({1, 2});
  const Tensor y = mul(x, 2.0);
  Tensor d = y.detach();
  EXPECT_TRUE(has(error_of<AutogradError>([&] { d.mul_(3); }), "detached alias"));
  EXPECT_TRUE(has(error_of<AutogradError>([&] { d.narrow(0, 0, 1).zero_(); }), "detached alias"));
  EXPECT_EQ(values(y), (Numbers{2, 4}));
  y.sum().backward();
  EXPECT_EQ(values(x.grad()), (Numbers{2, 2}));
}

TEST(InPlace, detached_alias_is_free_once_the_result_is_gone) {
  const Tensor x = leaf({1, 2});
  Tensor d = mul(x, 2.0).detach();
  d.mul_(3);
  EXPECT_EQ(values(d), (Numbers{6, 12}));
}

TEST(InPlace, detached_alias_of_a_leaf_takes_values_but_no_history) {
  const Tensor p = leaf({1, 2}), q = leaf({3, 4});
  p.detach().mul_(2);
  EXPECT_EQ(values(p), (Numbers{2, 4}));
  EXPECT_TRUE(has(error_of<AutogradError>([&] { p.detach().copy_(q); }), "detached alias"));
  EXPECT_EQ(values(p), (Numbers{2, 4}));
}

TEST(InPlace, write_through_a_detached_alias_under_no_grad_is_found_by_its_users) {
  const Tensor x = leaf({1, 2});
  const Tensor y = mul(x, 2.0);
  const Tensor z = mul(y, y);
  {
    NoGrad off;
    y.detach().mul_(3);
  }
  EXPECT_TRUE(has(error_of<AutogradError>([&] { z.sum().backward(); }), "in place"));
}

TEST(InPlace, view_taken_under_no_grad_is_like_detach) {
  const Tensor x = leaf({1, 2});
  const Tensor y = mul(x, 2.0);
  Tensor view;
  {
    NoGrad off;
    view = y.narrow(0, 0, 1);
  }
  EXPECT_FALSE(view.requires_grad());
  EXPECT_TRUE(has(error_of<AutogradError>([&] { view.mul_(x.narrow(0, 0, 1)); }), "detached alias"));
  EXPECT_EQ(values(y), (Numbers{2, 4}));
}

TEST(InPlace, view_of_a_leaf_under_no_grad_takes_values) {
  const Tensor p = leaf({1, 2});
  NoGrad off;
  p.view({2, 1}).select(0, 1).add_(5);
  EXPECT_EQ(values(p), (Numbers{1, 7}));
  EXPECT_TRUE(p.is_leaf());
}

TEST(InPlace, recorded_view_of_a_leaf_sees_a_step_through_its_version) {
  const Tensor p = leaf({1, 2});
  const Tensor y = mul(p.narrow(0, 0, 1), p.narrow(0, 1, 1));
  {
    NoGrad off;
    Tensor(p).mul_(2);
  }
  EXPECT_TRUE(has(error_of<AutogradError>([&] { y.sum().backward(); }), "in place"));
}

TEST(InPlace, base_of_a_leaf_view_cannot_take_a_history) {
  const Tensor p = leaf({1, 2});
  Tensor y = zeros({2}, kDouble);
  Tensor view = y.narrow(0, 0, 1).requires_grad_();
  EXPECT_TRUE(has(error_of<AutogradError>([&] { y.copy_(p); }), "another tensor"));
  EXPECT_EQ(values(y), (Numbers{0, 0}));
}

TEST(InPlace, detach_of_a_view_is_refused_in_place) {
  const Tensor x = leaf({1, 2});
  Tensor view = mul(x, 2.0).narrow(0, 0, 1);
  EXPECT_TRUE(has(error_of<AutogradError>([&] { view.detach_(); }), "view"));
}

TEST(InPlace, integer_tensors_cannot_take_a_history) {
  const Tensor p = leaf({1, 2});
  Tensor y = zeros({2}, {.dtype = kInt64});
  EXPECT_ANY_THROW(y.copy_(p));
  EXPECT_EQ(values(y), (Numbers{0, 0}));
}

TEST(InPlace, write_of_a_tensor_into_itself_counts_both_ways) {
  check(
      [](const std::vector<Tensor>& in) {
        Tensor y = mul(in[0], 2.0);
        y.narrow(0, 0, 2).add_(y.narrow(0, 1, 2));
        return std::vector<Tensor>{tanh(y)};
      },
      {leaf({0.2, -0.3, 0.6})});
}

TEST(InPlace, loops_of_writes_to_slices_give_right_gradients) {
  check(
      [](const std::vector<Tensor>& in) {
        Tensor out = zeros({3, 2}, kDouble);
        Tensor h = in[0];
        for (int64_t t = 0; t < 3; ++t) {
          h = tanh(mul(h, in[1]));
          out.select(0, t).copy_(h);
        }
        return std::vector<Tensor>{out};
      },
      {leaf({0.2, -0.3}), leaf({0.5, 0.7})});
}

TEST(InPlace, saved_output_of_a_write_survives_double_backward) {
  check(
      [](const std::vector<Tensor>& in) {
        Tensor y = mul(in[0], in[0]);
        y.narrow(0, 0, 2).relu_();
        return std::vector<Tensor>{mul(y, y)};
      },
      {leaf({0.2, -0.3, 0.6})});
}

TEST(InPlace, retained_gradient_moves_with_the_history) {
  const Tensor x = leaf({1, 2});
  Tensor y = mul(x, 2.0);
  y.retain_grad();
  y.mul_(5);
  mul(y, 3.0).sum().backward();
  EXPECT_EQ(values(y.grad()), (Numbers{3, 3}));
  EXPECT_EQ(values(x.grad()), (Numbers{30, 30}));
}

TEST(InPlace, a_factor_in_overlapping_memory_is_kept_for_backward) {
  for (const bool divides : {false, true}) {
    double memory[] = {0, 0, 0, 0, 5};
    const Tensor w = leaf({1, 2, 3, 4});
    Tensor x = from_blob(memory, {4}, kDouble), y = from_blob(memory + 1, {4}, kDouble);
    x.copy_(w);
    divides ? x.div_(y) : x.mul_(y);
    EXPECT_EQ(values(x), divides ? (Numbers{0.5, 2. / 3, 0.75, 0.8}) : (Numbers{2, 6, 12, 20}));
    x.sum().backward();
    EXPECT_EQ(values(w.grad()), divides ? (Numbers{0.5, 1. / 3, 0.25, 0.2}) : (Numbers{2, 3, 4, 5}));
  }
}

TEST(InPlace, writes_do_not_keep_memory_in_a_cycle) {
  const Tensor x = leaf({1, 2});
  Tensor y = mul(x, 2.0);
  const Tensor square = mul(y, y);
  y.add_(square);
  Storage* storage = x.body().storage.get();
  y = Tensor();
  const_cast<Tensor&>(square) = Tensor();
  EXPECT_EQ(storage->use_count(), 1u);
}

}  // namespace
}  // namespace weft
