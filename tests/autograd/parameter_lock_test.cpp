// Parameters that threads read and step at once: no torn value, no invalidated graph.
#include <atomic>
#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include <weft/autograd/engine.h>
#include <weft/autograd/grad_mode.h>
#include <weft/autograd/ops.h>
#include <weft/autograd/parameter_lock.h>

namespace weft {
namespace {

Tensor leaf(std::initializer_list<double> values) {
  return tensor(values, {.dtype = kFloat64, .requires_grad = true});
}
std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }
using Numbers = std::vector<double>;

/// What an optimizer does: add `by` to every element, in place when nobody holds the block, else in a fresh one. True: in place.
bool step(const Tensor& p, double by) {
  const auto lock = lock_parameter(p);
  TensorBody& b = p.body();
  const double* from = static_cast<const double*>(p.raw());
  Ref<Storage> fresh;
  const bool in_place = b.storage->saves() == 0;
  if (!in_place) fresh = Storage::allocate(p.device(), b.storage->bytes());
  double* to = static_cast<double*>(in_place ? b.storage->data() : fresh->data());
  for (int64_t i = 0; i < p.numel(); ++i) to[i] = from[i] + by;
  if (in_place) b.storage->bump_version();
  else swap_storage(p, std::move(fresh));
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

TEST(ParameterLock, views_and_snapshots_hold_the_value_they_saw) {
  const Tensor p = leaf({2, 3});
  mark_concurrent(p);
  Tensor view = p.narrow(0, 1, 1), kept = snapshot(p);
  EXPECT_FALSE(step(p, 10));
  EXPECT_EQ(values(view), Numbers{3});
  EXPECT_EQ(values(kept), (Numbers{2, 3}));
  EXPECT_EQ(values(p), (Numbers{12, 13}));
  view.sum().backward();
  EXPECT_EQ(values(p.grad()), (Numbers{0, 1}));
  view = Tensor();
  kept = Tensor();
  EXPECT_TRUE(step(p, 1));
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
  EXPECT_THROW(swap_storage(p, Storage::allocate(kCpu, 8)), ShapeError);
}

TEST(ParameterLock, threads_that_train_and_threads_that_step_do_not_disturb_each_other) {
  // Every step adds the same number to all elements, so a torn read would show two different values in one snapshot.
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
  EXPECT_EQ(p.body().storage->saves(), 0u);
  EXPECT_TRUE(step(p, 1));
}

}  // namespace
}  // namespace weft
