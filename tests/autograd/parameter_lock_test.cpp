// Parameters that threads read and step at once: no torn value, no invalidated graph.
#include <atomic>
#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/function.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/autograd/tape/inner/parameter_lock.h>
#include <weft/autograd/tape/inner/set_data.h>

#include "../support/errors.h"
#include "../support/leaf.h"

namespace weft {
namespace {

using test::leaf;
using test::values;
using Numbers = std::vector<double>;

/// The work of an optimizer: add `by` to every element, in place when nobody holds the block, else in a fresh
/// one. True: in place.
bool step(const Tensor& p, double by) {
  const auto lock = lock_parameter(p);
  Storage& storage = *p.body().storage;
  const double* from = static_cast<const double*>(p.raw());
  Ref<Storage> fresh;
  const bool in_place = !storage.is_held();
  if (!in_place) fresh = Storage::allocate(p.device(), storage.bytes());
  double* to = static_cast<double*>(in_place ? storage.data() : fresh->data());
  for (int64_t i = 0; i < p.numel(); ++i) to[i] = from[i] + by;
  if (in_place) storage.count_write();
  else swap_block(p, std::move(fresh));
  return in_place;
}

TEST(ParameterLock, a_step_writes_in_place_only_when_nobody_holds_the_block) {
  const Tensor p = leaf({2, 3});
  mark_concurrent(p);
  EXPECT_TRUE(is_concurrent(p));
  EXPECT_TRUE(step(p, 1));
  const Tensor y = mul(p, p).sum();
  EXPECT_FALSE(step(p, 1));
  EXPECT_EQ(values(p), (Numbers{4, 5}));
  y.backward();
  EXPECT_EQ(values(p.grad()), (Numbers{6, 8}));
  EXPECT_TRUE(step(p, 1));
}

TEST(ParameterLock, every_handle_reads_the_new_block_and_a_snapshot_the_old_one) {
  const Tensor p = leaf({2, 3});
  const Tensor early = p.detach();
  mark_concurrent(p);
  const Tensor view = p.narrow(0, 1, 1), detached = p.detach(), turned = p.detach().view({2, 1}).t(),
               same = p.contiguous().to(kFloat64).to(kCpu).reshape({2});
  Tensor kept = snapshot(p), part = kept.narrow(0, 0, 1);
  EXPECT_TRUE(is_concurrent(view) && is_concurrent(turned));
  EXPECT_FALSE(step(p, 10));
  for (const Tensor& alias : {p, early, detached, turned.view({2}), same})
    EXPECT_EQ(values(alias), (Numbers{12, 13}));
  EXPECT_EQ(values(view), Numbers{13});
  EXPECT_EQ(values(mul(view, 2.0)), Numbers{26});
  EXPECT_EQ(values(kept), (Numbers{2, 3}));
  view.sum().backward();
  EXPECT_EQ(values(p.grad()), (Numbers{0, 1}));
  EXPECT_TRUE(step(p, 1));  // nobody holds the new block
  kept = Tensor();
  EXPECT_EQ(values(part), Numbers{2});
}

TEST(ParameterLock, a_graph_built_on_a_view_keeps_the_values_of_its_forward) {
  const Tensor p = leaf({2, 3, 5});
  mark_concurrent(p);
  const Tensor view = p.narrow(0, 1, 2), y = mul(view, view).sum();
  EXPECT_FALSE(step(p, 10));
  const Tensor z = mul(view, p.detach().narrow(0, 0, 2)).sum();
  step(p, 10);
  y.backward();
  EXPECT_EQ(values(p.grad()), (Numbers{0, 6, 10}));
  p.zero_grad();
  z.backward();
  EXPECT_EQ(values(p.grad()), (Numbers{0, 12, 13}));
}

TEST(ParameterLock, a_write_by_hand_is_found_by_the_graph_that_holds_the_block) {
  Tensor p = leaf({2, 3});
  mark_concurrent(p);
  const Tensor y = mul(p, p).sum();
  {
    NoGrad off;
    p.add_(1);
  }
  EXPECT_THROW(y.backward(), AutogradError);
}

TEST(ParameterLock, a_graph_from_before_the_mark_throws_after_a_step_and_its_memory_stays) {
  const Tensor p = leaf({2, 3});
  const Tensor y = mul(p, p).sum();
  mark_concurrent(p);
  EXPECT_FALSE(step(p, 1));
  EXPECT_THROW(y.backward(), AutogradError);
}

TEST(ParameterLock, a_custom_function_sees_one_value) {
  struct Squared {
    static Tensor forward(FunctionContext& ctx, const Tensor& x, const std::vector<Tensor>& more) {
      ctx.save({x, more[0]});
      return mul(x, more[0]);
    }
    static GradList backward(FunctionContext& ctx, const GradList& g) {
      return {mul(g[0], ctx.saved(1)), mul(g[0], ctx.saved(0))};
    }
  };
  const Tensor p = leaf({2, 3});
  mark_concurrent(p);
  const Tensor y = apply_function<Squared>(p, std::vector<Tensor>{p}).sum();
  step(p, 10);
  y.backward();
  EXPECT_EQ(values(p.grad()), (Numbers{4, 6}));
}

TEST(ParameterLock, memory_that_somebody_else_owns_is_refused) {
  double memory[] = {1, 2};
  Tensor p = from_blob(memory, {2}, {.dtype = kFloat64});
  p.requires_grad_();
  EXPECT_TRUE(test::has(test::error_of<ValueError>([&] { mark_concurrent(p); }), "memory of from_blob()"));
  EXPECT_FALSE(is_concurrent(p));
}

TEST(ParameterLock, locks_of_tied_parameters_are_taken_once) {
  const Tensor p = leaf({2, 3}), q = leaf({1});
  mark_concurrent(p);
  mark_concurrent(q);
  const std::vector<Tensor> all{q, p, p.detach(), leaf({5}), p.narrow(0, 0, 1)};
  EXPECT_EQ(lock_parameters(all).size(), 2u);
}

TEST(ParameterLock, other_data_leaves_a_parameter_marked) {
  const Tensor p = leaf({2, 3});
  mark_concurrent(p);
  set_data(p, tensor({5, 7}, {.dtype = kFloat64}));
  EXPECT_TRUE(is_concurrent(p));
  const Tensor y = mul(p, p).sum();
  EXPECT_FALSE(step(p, 1));
  y.backward();
  EXPECT_EQ(values(p.grad()), (Numbers{10, 14}));
}

TEST(SetData, a_transposed_view_of_itself_becomes_its_values) {
  const Tensor w = tensor({{1, 2}, {3, 4}}, {.dtype = kFloat64, .requires_grad = true});
  set_data(w, w.t());
  EXPECT_EQ(values(w), (Numbers{1, 3, 2, 4}));
  EXPECT_TRUE(w.requires_grad() && w.is_contiguous());
  const Tensor two = tensor({1, 2, 3, 4}, {.dtype = kFloat64}), part = two.narrow(0, 0, 2);
  set_data(part, two.narrow(0, 2, 2));
  EXPECT_EQ(values(part), (Numbers{3, 4}));
}

TEST(ParameterLock, gradients_reach_the_parameter_after_its_block_was_swapped) {
  const Tensor p = leaf({2});
  mark_concurrent(p);
  const Tensor y = mul(p, p);
  step(p, 5);
  const Tensor z = mul(p, p);
  y.backward();
  z.backward();
  EXPECT_EQ(values(p.grad()), Numbers{4 + 14});
}

TEST(ParameterLock, in_place_rules_hold_for_marked_parameters) {
  Tensor p = leaf({2});
  mark_concurrent(p);
  EXPECT_THROW(p.add_(1), AutogradError);
  EXPECT_THROW(p.narrow(0, 0, 1).add_(1), AutogradError);
  NoGrad off;
  p.add_(1);
  EXPECT_EQ(values(p), Numbers{3});
}

TEST(ParameterLock, only_plain_leaves_can_be_marked) {
  const Tensor p = leaf({2, 3});
  EXPECT_THROW(mark_concurrent(mul(p, p)), AutogradError);
  const Tensor base = zeros({6});
  EXPECT_THROW(mark_concurrent(base.narrow(0, 0, 1)), AutogradError);
  Tensor own = zeros({6}).view({2, 3});  // nobody else holds its base
  own.requires_grad_();
  EXPECT_NO_THROW(mark_concurrent(own));
  EXPECT_THROW(swap_block(p, Storage::allocate(kCpu, 16)), ValueError);
  mark_concurrent(p);
  EXPECT_THROW(swap_block(p, Storage::allocate(kCpu, 8)), ShapeError);
}

TEST(ParameterLock, threads_that_train_and_threads_that_step_do_not_disturb_each_other) {
  // Every step adds the same number to all elements, so a torn read would show two different values in one
  // snapshot.
  const Tensor p = zeros({257}, {.dtype = kFloat64, .requires_grad = true});
  mark_concurrent(p);
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0}, wrong{0};
  std::vector<std::thread> steppers, trainers;
  for (int t = 0; t < 2; ++t)
    steppers.emplace_back([&] {
      while (!stop) step(p, 1);
    });
  for (int t = 0; t < 4; ++t)
    trainers.emplace_back([&] {
      for (int i = 0; i < 211; ++i) {
        const Tensor y = square(p);
        const Numbers v = values(y);
        for (const double x : v) torn += x != v[0];
        const Tensor g = grad({y.sum()}, {p})[0];
        wrong += std::abs(g.to_vector<double>()[0] - 2 * std::sqrt(v[0])) > 1e-6;
      }
    });
  for (std::thread& t : trainers) t.join();
  stop = true;
  for (std::thread& t : steppers) t.join();
  EXPECT_EQ(torn.load(), 0);
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_TRUE(step(p, 1));
}

TEST(ParameterLock, aliases_read_while_threads_step_show_whole_values) {
  const Tensor p = zeros({257}, {.dtype = kFloat64, .requires_grad = true});
  const Tensor early = p.detach();
  mark_concurrent(p);
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::vector<std::thread> steppers, readers;
  for (int t = 0; t < 2; ++t)
    steppers.emplace_back([&] {
      while (!stop) step(p, 1);
    });
  for (int t = 0; t < 3; ++t)
    readers.emplace_back([&] {
      for (int i = 0; i < 211; ++i) {
        const Tensor view = p.narrow(0, 3, 200);
        for (const Numbers& v :
             {values(view), values(early), values(mul(p.detach(), 1.0)), values(snapshot(view))})
          for (const double x : v) torn += x != v[0];
      }
    });
  for (std::thread& t : readers) t.join();
  stop = true;
  for (std::thread& t : steppers) t.join();
  EXPECT_EQ(torn.load(), 0);
  EXPECT_EQ(values(early), values(p));
}

}  // namespace
}  // namespace weft
