// Optimizers whose parameters change their dtype, or whose options change the state of the rule, between two
// steps; and concurrent parameters under Autocast.
#include <gtest/gtest.h>

#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/weft.h>

#include "../support/errors.h"
#include "../support/golden.h"

namespace weft::optim {
namespace {

using test::error_of;
using test::has;
using testing::same_bits;

void learn(const nn::Linear& layer, DType dtype) {
  layer.zero_grad();
  layer.forward(full({2, layer.weight.size(1)}, 0.5, dtype)).square().sum().backward();
}

TEST(MovedParameters, state_follows_to_another_dtype) {
  for (const auto& [from, to] : {std::pair(kFloat32, kFloat64), std::pair(kFloat64, kFloat32)}) {
    nn::Linear layer(67, 3), twin(67, 3);
    layer.to(from);
    Adam adam(layer.parameters(), {.lr = 0.1});
    learn(layer, from);
    adam.step();
    layer.to(to);
    twin.to(to);
    twin.load_state_dict(layer.state_dict());
    Adam fresh(twin.parameters(), {.lr = 0.1});
    fresh.load_state_dict(adam.state_dict());
    for (int step = 0; step < 2; ++step) {
      learn(layer, to);
      learn(twin, to);
      adam.step();
      fresh.step();
    }
    EXPECT_TRUE(same_bits(layer.weight, twin.weight)) << to_string(to);
    EXPECT_TRUE(layer.weight.isfinite().all().item<bool>());
  }
}

TEST(MovedParameters, a_step_of_a_half_type_is_refused_before_any_change) {
  for (const DType half : {kFloat16, kBFloat16}) {
    nn::Linear layer(67, 3);
    SGD sgd(layer.parameters(), {.lr = 0.1});
    layer.to(half);
    const Tensor before = layer.weight.detach().clone();
    learn(layer, half);
    EXPECT_TRUE(has(error_of<DTypeError>([&] { sgd.step(); }), "parameter 0 is"));
    EXPECT_TRUE(same_bits(layer.weight, before));
  }
}

TEST(ChangedOptions, a_state_dict_has_the_state_of_the_present_options) {
  nn::Linear layer(3, 2);
  SGD sgd(layer.parameters(), {.lr = 0.1, .momentum = 0.9});
  Adam adam(layer.parameters(), {.lr = 0.1, .amsgrad = true});
  learn(layer, kFloat32);
  sgd.step();
  adam.step();
  sgd.set_options(0, {.lr = 0.1});
  adam.set_options(0, {.lr = 0.1});
  for (const auto& [name, tensor] : sgd.state_dict()) EXPECT_FALSE(has(name, "momentum")) << name;
  for (const auto& [name, tensor] : adam.state_dict()) EXPECT_FALSE(has(name, "max_exp")) << name;
  Adam resumed(layer.parameters(), {.lr = 0.2});
  resumed.load_state_dict(adam.state_dict());
  EXPECT_EQ(resumed.steps(0), 1);
}

TEST(ChangedOptions, a_state_dict_has_the_state_that_the_next_step_begins_with) {
  nn::Linear layer(3, 2), twin(3, 2);
  SGD sgd(layer.parameters(), {.lr = 0.1});
  learn(layer, kFloat32);
  sgd.step();
  sgd.set_options(0, {.lr = 0.1, .momentum = 0.9});
  twin.load_state_dict(layer.state_dict());
  SGD resumed(twin.parameters(), {.lr = 0.1, .momentum = 0.9});
  resumed.load_state_dict(sgd.state_dict());
  for (int step = 0; step < 2; ++step) {
    learn(layer, kFloat32), learn(twin, kFloat32);
    sgd.step(), resumed.step();
    EXPECT_TRUE(same_bits(twin.weight, layer.weight)) << step;
  }
}

TEST(ConcurrentAutocast, casts_of_concurrent_parameters_keep_no_old_blocks) {
  nn::Linear layer(64, 64);
  for (const Tensor& p : layer.parameters()) mark_concurrent(p);
  SGD sgd(layer.parameters(), {.lr = 0.01});
  const Tensor x = full({4, 64}, 0.5);
  const Autocast mixed(kBFloat16);
  int64_t in_use = 0;
  for (int step = 0; step < 20; ++step) {
    layer.zero_grad();
    layer.forward(x).to(kFloat32).square().mean().backward();
    sgd.step();
    if (step == 5) in_use = memory_stats().in_use;
  }
  EXPECT_EQ(memory_stats().in_use, in_use);
}

}  // namespace
}  // namespace weft::optim
