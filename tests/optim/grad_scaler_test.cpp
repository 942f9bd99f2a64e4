// The loss scaler: scaled and unscaled steps agree, overflowing ones are left out, and the scale follows.
#include <weft/optim/grad_scaler.h>

#include <gtest/gtest.h>

#include <limits>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/optim/clip.h>
#include <weft/optim/rules.h>
#include <weft/tensor/factories.h>

#include "../support/errors.h"

namespace weft::optim {
namespace {

Tensor parameter() { return (ones({3}) * 2).detach().requires_grad_(); }

TEST(GradScaler, a_power_of_two_changes_no_bit_of_the_step) {
  const Tensor a = parameter(), b = parameter();
  SGD plain({a}, {.lr = 0.1}), scaled({b}, {.lr = 0.1});
  GradScaler scaler;
  for (int i = 0; i < 3; ++i) {
    plain.zero_grad(), scaled.zero_grad();
    sum(square(a)).backward();
    plain.step();
    scaler.scale(sum(square(b))).backward();
    scaler.step(scaled);
    EXPECT_FALSE(scaler.found_nonfinite());
    scaler.update();
  }
  EXPECT_TRUE(equal(a, b));
}

TEST(GradScaler, an_overflow_skips_the_step_and_halves_the_scale) {
  const Tensor p = parameter();
  SGD opt({p}, {.lr = 0.1});
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  const Tensor before = p.detach().clone();
  scaler.scale(sum(p * std::numeric_limits<double>::infinity())).backward();
  scaler.step(opt);
  EXPECT_TRUE(scaler.found_nonfinite());
  EXPECT_EQ(opt.steps(0), 0);
  EXPECT_TRUE(equal(p, before));
  scaler.update();
  EXPECT_EQ(scaler.scale(), 4);
  for (int i = 0; i < 2; ++i) {
    opt.zero_grad();
    scaler.scale(sum(p)).backward();
    scaler.step(opt);
    EXPECT_FALSE(scaler.found_nonfinite());
    scaler.update();
  }
  EXPECT_EQ(scaler.scale(), 8) << "doubled after two good steps";
  scaler.update();
  EXPECT_EQ(scaler.state().good_steps, 0) << "an iteration without gradients counts for nothing";
}

TEST(GradScaler, unscaling_first_lets_gradients_be_clipped) {
  const Tensor p = parameter();
  SGD opt({p}, {.lr = 1});
  GradScaler scaler({.init_scale = 1024});
  scaler.scale(sum(p * 3)).backward();
  scaler.unscale(opt.parameters());
  EXPECT_EQ(p.grad().to_vector<float>(), (std::vector<float>{3, 3, 3}));
  EXPECT_THROW(scaler.unscale(opt.parameters()), ValueError);
  clip_grad_value(opt.parameters(), 1);
  scaler.step(opt);
  EXPECT_FALSE(scaler.found_nonfinite());
  EXPECT_EQ(p.detach().to_vector<float>(), (std::vector<float>{1, 1, 1}));
}

TEST(GradScaler, a_skipped_step_is_not_counted_and_writes_no_copy_of_a_parameter_in_use) {
  const Tensor p = parameter();
  mark_concurrent(p);
  Adam opt({p}, {.lr = 0.1});
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  const Tensor kept = sum(square(p));  // holds the parameter's block: a step writes to a fresh one
  const std::vector<float> before = p.detach().to_vector<float>();
  scaler.scale(sum(p * std::numeric_limits<double>::infinity())).backward();
  scaler.step(opt);
  scaler.update();
  EXPECT_EQ(p.detach().to_vector<float>(), before);
  for (const auto& entry : opt.state_dict()) EXPECT_NE(entry.first, "0.step") << "no step was taken";
  opt.zero_grad();
  scaler.scale(sum(p)).backward();
  scaler.step(opt);
  EXPECT_EQ(opt.steps(0), 1);
  EXPECT_NE(p.detach().to_vector<float>(), before);
}

TEST(GradScaler, a_loss_of_a_half_type_is_scaled_in_float32) {
  const Tensor loss = GradScaler().scale(ones({}, {.dtype = kFloat16}));
  EXPECT_EQ(loss.dtype(), kFloat32);
  EXPECT_EQ(loss.item<float>(), 65536);
}

TEST(GradScaler, disabled_it_passes_through) {
  const Tensor p = parameter();
  SGD opt({p}, {.lr = 1});
  GradScaler scaler({.enabled = false});
  scaler.scale(sum(p)).backward();
  scaler.step(opt);
  EXPECT_FALSE(scaler.found_nonfinite());
  scaler.update();
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_EQ(p.detach().to_vector<float>(), (std::vector<float>{1, 1, 1}));
}

TEST(GradScaler, refuses_a_step_that_would_unscale_the_rest_of_half_gradients_in_place) {
  const Tensor p = parameter(), h = ones({3}, {.dtype = kFloat16}).requires_grad_();
  SGD opt({p, h}, {.lr = 1, .master_weights = true});
  GradScaler scaler;
  const auto small = [&] { return sum(h.to(kFloat32) * 1e-9); };  // which float16 holds only while scaled
  scaler.scale(sum(p) + small()).backward();
  scaler.unscale(std::vector<Tensor>{p});
  const Tensor before = h.grad().clone();
  EXPECT_TRUE(test::has(test::error_of<ValueError>([&] { scaler.step(opt); }), "all or none"));
  EXPECT_TRUE(equal(h.grad(), before));
  EXPECT_EQ(opt.steps(0), 0);
  scaler.update();
  p.set_grad(Tensor());
  scaler.unscale(std::vector<Tensor>{p});  // nothing
  scaler.step(opt);
  EXPECT_EQ(opt.steps(1), 1);
  EXPECT_TRUE(equal(h.grad(), before));
}

TEST(GradScaler, refuses_options_and_states_out_of_range) {
  EXPECT_THROW(GradScaler({.init_scale = 0}), ValueError);
  EXPECT_THROW(GradScaler({.growth = 1}), ValueError);
  EXPECT_THROW(GradScaler({.backoff = 1}), ValueError);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), ValueError);
  GradScaler scaler;
  EXPECT_THROW(scaler.load_state({-1, 0}), ValueError);
  scaler.load_state({128, 5});
  EXPECT_EQ(scaler.scale(), 128);
}

}  // namespace
}  // namespace weft::optim
