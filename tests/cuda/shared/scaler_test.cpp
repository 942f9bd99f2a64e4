// Training in float16 with a scaled loss on the device: gradients that float16 would lose, steps that
// overflow, and the CPU's course.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
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
vector<double> scaled_course(Device device) {
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
    scaler.step(sgd);
    EXPECT_EQ(scaler.found_nonfinite(), overflows) << i;
    EXPECT_EQ(sgd.steps(0), i + (i < 2)) << i;
    EXPECT_EQ(net.first.weight.to_vector<float>() == before, overflows) << i;
    scaler.update();
    told.push_back(loss.item<double>());
    told.push_back(scaler.scale());
  }
  return told;
}

DEVICE_TEST(Scaler, float16_training_leaves_an_overflowing_step_out_as_the_cpu_does) {
  const vector<double> here = scaled_course(kCpu), there = scaled_course(gpu);
  ASSERT_EQ(here.size(), there.size());
  for (size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(there[i], here[i], i % 2 == 0 ? 2e-3 : 0) << i;
  EXPECT_LT(there[10], there[0]);
}

/// Parameters, step count and scale after some of eight iterations of which two overflow. The whole iteration
/// is a recording unless on the CPU, and the next one the turn of the next recording.
vector<vector<double>> recorded_course(Device device, size_t recordings = 1) {
  Net net;
  net.to(device);
  optim::Adam adam(net.parameters(), {.lr = 0.05});
  optim::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  Generator g(5);
  const Tensor x = rand({6, 4}, {}, &g).to(device), y = rand({6, 3}, {}, &g).to(device);
  Tensor factor = ones({}, {.device = device});
  const auto iteration = [&] {
    adam.zero_grad();
    scaler.scale(net.loss(x, y) * factor).backward();
    scaler.unscale(adam.parameters());
    optim::clip_grad_norm_async(adam.parameters(), 0.5);
    scaler.step(adam);
    scaler.update();
  };
  iteration();
  vector<std::unique_ptr<cuda::Graph>> graphs;
  for (size_t i = 0; i < recordings && !device.is_cpu(); ++i) {
    graphs.push_back(std::make_unique<cuda::Graph>(device));
    graphs.back()->capture(iteration);
  }
  vector<vector<double>> told;
  for (int i = 0; i < 8; ++i) {
    factor.fill_(i == 2 || i == 5 ? std::numeric_limits<double>::infinity() : 1);
    if (device.is_cpu()) iteration();
    else graphs[static_cast<size_t>(i) % recordings]->replay();
    if (i % 3 != 0) continue;  // nobody asks: the next replay settles the count
    vector<double> now{static_cast<double>(adam.steps(0)), scaler.scale()};
    for (const Tensor& p : adam.parameters())
      for (const float v : p.to_vector<float>()) now.push_back(v);
    told.push_back(now);
  }
  return told;
}

DEVICE_TEST(Scaler, a_recorded_iteration_leaves_out_the_steps_that_overflow) {
  const auto here = recorded_course(kCpu);
  for (const size_t recordings : {1, 2}) {
    const auto there = recorded_course(gpu, recordings);
    ASSERT_EQ(here.size(), there.size());
    for (size_t i = 0; i < here.size(); ++i) {
      ASSERT_EQ(here[i].size(), there[i].size());
      EXPECT_EQ(there[i][0], here[i][0]) << "steps after row " << i;
      EXPECT_EQ(there[i][1], here[i][1]) << "scale after row " << i;
      for (size_t k = 2; k < here[i].size(); ++k) EXPECT_NEAR(there[i][k], here[i][k], 1e-5) << i << " " << k;
    }
  }
  EXPECT_EQ(here.back()[0], 6) << "of eight";
}

DEVICE_TEST(Scaler, a_step_that_was_replayed_on_another_stream_is_counted_right) {
  Net net;
  net.to(gpu);
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  const Tensor skip = zeros({}, {.dtype = kFloat64, .device = gpu});
  const vector<Tensor> grads{ones({5, 4}, {.device = gpu}), ones({5}, {.device = gpu}),
                             ones({3, 5}, {.device = gpu}), ones({3}, {.device = gpu})};
  sgd.step(grads, skip);
  cuda::Graph graph(gpu);
  graph.capture([&] { sgd.step(grads, skip); });
  cuda::synchronize(gpu);
  const cuda::Stream side(gpu);
  const Late late;
  for (const double skipped : {0, 1, 0}) {
    const cuda::StreamGuard there(side);
    Tensor(skip).fill_(skipped);
    graph.replay();
  }
  EXPECT_EQ(sgd.steps(0), 3);
}

DEVICE_TEST(Scaler, is_recorded_only_once_its_scale_lies_on_the_device) {
  Net net;
  net.to(gpu);
  optim::GradScaler scaler;
  const Tensor x = ones({2, 4}, {.device = gpu}), y = zeros({2, 3}, {.device = gpu});
  net.loss(x, y).backward();
  cuda::Graph graph(gpu);
  EXPECT_THROW(graph.capture([&] { scaler.scale(net.loss(x, y)); }), ValueError);
  scaler.scale(net.loss(x, y));
  graph.capture([&] { scaler.scale(net.loss(x, y)); });
}

DEVICE_TEST(Scaler, no_step_waits_for_its_own_iteration) {
  Net net;
  net.to(gpu);
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  optim::GradScaler scaler;
  const Tensor x = ones({2, 4}, {.device = gpu}), y = zeros({2, 3}, {.device = gpu});
  const Late late;
  const auto iteration = [&] {
    sgd.zero_grad();
    scaler.scale(net.loss(x, y)).backward();
    scaler.step(sgd);
    scaler.update();
    cuda::Event behind(gpu);
    behind.record();
    return behind;
  };
  iteration();
  const cuda::Event behind = iteration();
#if defined(WEFT_SIMT)  // a device may be done by now
  EXPECT_FALSE(behind.query());
#endif
  EXPECT_EQ(sgd.steps(0), 2);
}

}  // namespace
}  // namespace weft::test
