// The loss scaler: scaled and unscaled steps agree, overflowing ones are left out, and the scale follows.
#include <weft/optim/grad_scaler.h>

#include <gtest/gtest.h>

#include <limits>

#include <weft/autograd/ops.h>
#include <weft/optim/clip.h>
#include <weft/optim/rules.h>
#include <weft/tensor/factories.h>

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
    EXPECT_TRUE(scaler.step(scaled));
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
  EXPECT_FALSE(scaler.step(opt));
  EXPECT_TRUE(equal(p, before));
  scaler.update();
  EXPECT_EQ(scaler.scale(), 4);
  for (int i = 0; i < 2; ++i) {
    opt.zero_grad();
    scaler.scale(sum(p)).backward();
    EXPECT_TRUE(scaler.step(opt));
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
  EXPECT_TRUE(scaler.step(opt));
  EXPECT_EQ(p.detach().to_vector<float>(), (std::vector<float>{1, 1, 1}));
}

TEST(GradScaler, disabled_it_passes_through) {
  const Tensor p = parameter();
  SGD opt({p}, {.lr = 1});
  GradScaler scaler({.enabled = false});
  scaler.scale(sum(p)).backward();
  EXPECT_TRUE(scaler.step(opt));
  scaler.update();
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_EQ(p.detach().to_vector<float>(), (std::vector<float>{1, 1, 1}));
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
