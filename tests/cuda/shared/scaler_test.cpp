// Training in float16 with a scaled loss on the device: gradients that float16 would lose, steps that overflow, and the CPU's course.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "cuda/shared/device_test.h"

namespace weft::test {
namespace {

using std::vector;

DEVICE_TEST(Scaler, a_gradient_below_float16_survives_when_the_loss_is_scaled) {
  const Tensor x = ones({4, 8}, {.device = gpu});
  const auto gradient = [&](optim::GradScaler scaler) {
    const Tensor w = ones({3, 8}, {.device = gpu}).requires_grad_();
    Tensor loss;
    {
      const Autocast mixed(kFloat16);
      loss = linear(x, w).to(kFloat32).sum() * 1e-9;
    }
    scaler.scale(loss).backward();
    scaler.unscale(vector<Tensor>{w});
    EXPECT_FALSE(scaler.found_nonfinite());
    return w.grad().abs().max().item<float>();
  };
  EXPECT_EQ(gradient(optim::GradScaler({.enabled = false})), 0);
  EXPECT_NEAR(gradient(optim::GradScaler()), 4e-9, 1e-11);
}

/// Losses and scales of steps of which the third overflows.
vector<double> course(Device device) {
  Net net;
  net.to(device);
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  optim::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  Generator g(5);
  const Tensor x = rand({6, 4}, {}, &g).to(device), y = rand({6, 3}, {}, &g).to(device);
  vector<double> told;
  for (int i = 0; i < 6; ++i) {
    sgd.zero_grad();
    Tensor loss;
    {
      const Autocast mixed(kFloat16);
      loss = net.loss(x, y);
    }
    const bool overflows = i == 2;
    scaler.scale(overflows ? loss * std::numeric_limits<double>::infinity() : loss).backward();
    scaler.unscale(sgd.parameters());
    if (!overflows) optim::clip_grad_norm(net.parameters(), 0.5);
    const vector<float> before = net.first.weight.to_vector<float>();
    EXPECT_EQ(scaler.step(sgd), !overflows) << i;
    EXPECT_EQ(net.first.weight.to_vector<float>() == before, overflows) << i;
    scaler.update();
    told.push_back(loss.item<double>());
    told.push_back(scaler.scale());
  }
  return told;
}

DEVICE_TEST(Scaler, float16_training_leaves_an_overflowing_step_out_as_the_cpu_does) {
  const vector<double> here = course(kCpu), there = course(gpu);
  ASSERT_EQ(here.size(), there.size());
  for (size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(there[i], here[i], i % 2 == 0 ? 2e-3 : 0) << i;
  EXPECT_LT(there[10], there[0]);
}

}  // namespace
}  // namespace weft::test
