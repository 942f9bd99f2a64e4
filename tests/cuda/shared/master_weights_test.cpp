// Parameters of a half type with float32 masters on the device, against the CPU's: each rule, memory off the
// borders of packs, writes from elsewhere, skipped and recorded steps.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "cuda/shared/device_test.h"
#include "support/golden.h"

namespace weft::test {
namespace {

using std::vector;

constexpr DType kHalves[] = {kBFloat16, kFloat16};

Tensor master_of(const optim::Optimizer& optimizer, size_t i) {
  for (const auto& [name, tensor] : optimizer.state_dict())
    if (name == std::to_string(i) + ".master_param") return tensor;
  ADD_FAILURE() << "no master of parameter " << i;
  return {};
}

/// Parameters of odd sizes on a device, each `shift` elements into its memory.
struct Halves {
  vector<Tensor> params;
  DType type;
  Device where;
  Halves(Device device, DType half, int64_t shift) : type(half), where(device) {
    for (const int64_t n : {3, 130, 1, 4099, 16})
      params.push_back(values(n + shift, n).slice(0, shift, n + shift).detach().requires_grad_());
  }
  Tensor values(int64_t n, int64_t seed, double scale = 1) const {
    Generator draws(static_cast<uint64_t>(seed));
    return (randn({n}, {}, &draws) * scale).to(type).to(where);
  }
  void new_gradients(int64_t step, double scale = 1) {
    for (const Tensor& p : params) Tensor(p).set_grad(values(p.numel(), 100 * step + p.numel(), scale));
  }
};

/// The masters are those of the CPU within the rounding of float32, and the parameters are them rounded.
void expect_same_masters(const optim::Optimizer& here, const optim::Optimizer& there, DType type) {
  for (size_t i = 0; i < here.parameters().size(); ++i) {
    const Tensor master = master_of(there, i).to(kCpu);
    EXPECT_EQ(master.dtype(), kFloat32);
    EXPECT_TRUE(testing::close(master, master_of(here, i), 1e-5, 2e-6)) << there.name() << " parameter " << i;
    EXPECT_TRUE(testing::same_bits(there.parameters()[i].detach().to(kCpu), master.to(type)))
        << there.name() << " parameter " << i;
  }
}

template <class Opt> void compare_masters(Device gpu, typename Opt::Options options) {
  options.master_weights = true;
  for (const DType type : kHalves)
    for (const int64_t shift : {0, 1}) {
      Halves a(kCpu, type, shift), b(gpu, type, shift);
      Opt here(a.params, options), there(b.params, options);
      for (int64_t step = 0; step < 3; ++step) {
        a.new_gradients(step), b.new_gradients(step);
        here.step(), there.step();
      }
      expect_same_masters(here, there, type);
      EXPECT_EQ(there.kernel_calls(), 3);
    }
}

DEVICE_TEST(MasterWeights, every_rule_steps_as_on_the_cpu) {
  using namespace optim;
#define WEFT_COMPARE(Name, ...) compare_masters<Name>(gpu, {.lr = 0.01});
  WEFT_OPTIMIZER_RULES(WEFT_COMPARE)
#undef WEFT_COMPARE
  compare_masters<SGD>(gpu, {.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1});
  compare_masters<AdamW>(gpu, {.lr = 0.01, .amsgrad = true});
}

DEVICE_TEST(MasterWeights, updates_that_a_half_type_loses_add_up) {
  for (const DType type : kHalves) {
    const Tensor p = ones({37}, {.dtype = type, .device = gpu}).requires_grad_();
    p.set_grad(ones({37}, {.dtype = type, .device = gpu}));
    optim::SGD sgd({p}, {.lr = 1e-4, .master_weights = true});
    for (int step = 0; step < 100; ++step) sgd.step();
    EXPECT_NEAR(p.to(kFloat32).mean().item<float>(), 0.99, 3e-3);
    EXPECT_NEAR(master_of(sgd, 0).mean().item<float>(), 0.99, 1e-5);
  }
}

DEVICE_TEST(MasterWeights, a_value_from_elsewhere_is_the_masters_new_value) {
  for (const DType type : kHalves) {
    Halves a(kCpu, type, 0), b(gpu, type, 0);
    optim::Adam here(a.params, {.lr = 1e-3, .master_weights = true}),
        there(b.params, {.lr = 1e-3, .master_weights = true});
    for (int64_t step = 0; step < 4; ++step) {
      a.new_gradients(step), b.new_gradients(step);
      here.step(), there.step();
      const NoGrad guard;
      for (Halves* const all : {&a, &b}) Tensor(all->params[3]).slice(0, step, 20 * step).fill_(step);
    }
    a.new_gradients(9), b.new_gradients(9);
    here.step(), there.step();
    expect_same_masters(here, there, type);
  }
}

DEVICE_TEST(MasterWeights, a_skipped_step_fills_fresh_blocks_and_leaves_the_masters) {
  Tensor w = tensor({1., 2., 3.}, {.dtype = kBFloat16}).to(gpu).requires_grad_();
  mark_concurrent(w);
  const vector<Tensor> grads{ones({3}, {.dtype = kBFloat16, .device = gpu})};
  optim::SGD sgd({w}, {.lr = 0.5, .master_weights = true});
  sgd.step(grads);
  const Tensor y = (w * w).sum();  // holds w's block
  for (const double skip : {1, 0}) {
    sgd.step(grads, full({}, skip, {.dtype = kFloat64, .device = gpu}));
    const double step = skip != 0 ? 0.5 : 1;
    EXPECT_EQ(w.detach().to(kCpu).to_vector<double>(), (vector<double>{1 - step, 2 - step, 3 - step}));
    EXPECT_EQ(master_of(sgd, 0).to(kCpu).to_vector<double>(), w.detach().to(kCpu).to_vector<double>());
  }
  EXPECT_EQ(sgd.steps(0), 2);
  y.backward();
}

/// Masters, step count and scale after eight iterations of scaled losses and clipped steps, of which two
/// overflow. On a device they are replays of one recording.
vector<vector<double>> masters_course(Device device, DType type) {
  Net net;
  net.to(device);
  net.to(type);
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9, .master_weights = true});
  optim::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  Generator g(5);
  const Tensor x = rand({6, 4}, {}, &g).to(type).to(device), y = rand({6, 3}, {}, &g).to(type).to(device);
  Tensor factor = ones({}, {.device = device});
  const auto iteration = [&] {
    sgd.zero_grad();
    scaler.scale(net.loss(x, y).to(kFloat32) * factor).backward();
    scaler.step_clipped(sgd, 0.5);
    scaler.update();
  };
  iteration();
  std::unique_ptr<cuda::Graph> graph;
  if (!device.is_cpu()) {
    graph = std::make_unique<cuda::Graph>(device);
    graph->capture(iteration);
  }
  vector<vector<double>> told;
  for (int i = 0; i < 8; ++i) {
    factor.fill_(i == 2 || i == 5 ? std::numeric_limits<double>::infinity() : 1);
    if (graph) graph->replay();
    else iteration();
    vector<double> now{static_cast<double>(sgd.steps(0)), scaler.scale()};
    for (size_t k = 0; k < sgd.parameters().size(); ++k) {
      const Tensor master = master_of(sgd, k).to(kCpu);
      EXPECT_TRUE(testing::same_bits(sgd.parameters()[k].detach().to(kCpu), master.to(type))) << i;
      for (const double v : master.to_vector<double>()) now.push_back(v);
    }
    told.push_back(now);
  }
  return told;
}

DEVICE_TEST(MasterWeights, a_recorded_iteration_clips_unscales_and_leaves_out_overflows_as_on_the_cpu) {
  for (const DType type : kHalves) {
    const auto here = masters_course(kCpu, type), there = masters_course(gpu, type);
    ASSERT_EQ(here.size(), there.size());
    for (size_t i = 0; i < here.size(); ++i) {
      ASSERT_EQ(here[i].size(), there[i].size());
      EXPECT_EQ(there[i][0], here[i][0]) << type << " steps after row " << i;
      EXPECT_EQ(there[i][1], here[i][1]) << type << " scale after row " << i;
      for (size_t k = 2; k < here[i].size(); ++k)
        EXPECT_NEAR(there[i][k], here[i][k], type == kBFloat16 ? 2e-2 : 5e-3)
            << type << " row " << i << " number " << k;
    }
    EXPECT_EQ(here.back()[0], 7) << "of nine";
    EXPECT_NE(there.back()[2], there.front()[2]);
  }
}

}  // namespace
}  // namespace weft::test
