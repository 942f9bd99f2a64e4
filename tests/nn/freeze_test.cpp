// Frozen tensors: every write through weft is refused before it changes anything.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <weft/autograd/tape/gradcheck.h>
#include <weft/autograd/tape/inner/set_data.h>
#include <weft/kernels/packs.h>
#include <weft/weft.h>

#include "../support/errors.h"

namespace weft::freeze_tests {
namespace {

using test::error_of;
using test::has;

void expect_frozen(const char* path, const std::function<void()>& write) {
  EXPECT_TRUE(has(error_of<ValueError>(write), "frozen")) << path;
}

TEST(Freeze, refuses_every_write) {
  const NoGrad quiet;
  Tensor x = randn({6, 4});
  const Tensor view = x.narrow(0, 1, 2), alias = x.detach(), before = x.clone(), other = randn({6, 4});
  EXPECT_FALSE(x.is_frozen());
  EXPECT_TRUE(x.freeze().is_same(x));
  for (const Tensor& t : {x, view, alias}) EXPECT_TRUE(t.is_frozen());
  const uint32_t version = x.version();
  expect_frozen("mul_", [&] { x.mul_(2); });
  expect_frozen("copy_", [&] { x.copy_(other); });
  expect_frozen("a view", [&] { Tensor(view).zero_(); });
  expect_frozen("an alias", [&] { Tensor(alias).add_(1); });
  expect_frozen("an element", [&] { x[0] = 5; });
  expect_frozen("index_put_", [&] { x.index_put_({1, 2}, 3); });
  expect_frozen("normal_", [&] { x.normal_(); });
  expect_frozen("init", [&] { nn::init::uniform_(x, 0, 1); });
  expect_frozen("orthogonal_", [&] { nn::init::orthogonal_(x); });
  expect_frozen("set_data", [&] { set_data(x, other); });
  expect_frozen("data", [&] { x.data<float>(); });
  expect_frozen("accessor", [&] { x.accessor<float, 2>(); });
  expect_frozen("raw", [&] { x.raw(); });
  EXPECT_TRUE(x.equal(before));
  EXPECT_EQ(x.version(), version);

  EXPECT_EQ(x.data<const float>()[0], before.data<const float>()[0]);
  EXPECT_EQ((x.accessor<const float, 2>()[5][3]), before[5][3].item<float>());
  EXPECT_EQ(*static_cast<const float*>(x.const_raw()), before.data<const float>()[0]);
  Tensor copy = x.clone();
  EXPECT_FALSE(copy.is_frozen());
  copy.mul_(2);
}

TEST(Freeze, refuses_steps_of_optimizers_and_changes_no_other_parameter) {
  const Tensor a = randn({8}).requires_grad_(), b = randn({8}).requires_grad_();
  optim::Adam adam({a, b}, {.lr = 0.1});
  const auto gradients = [&] {
    adam.zero_grad();
    (a * b).sum().backward();
  };
  gradients();
  adam.step();
  b.freeze();
  const Tensor before = a.detach().clone();
  gradients();
  expect_frozen("step", [&] { adam.step(); });
  expect_frozen("step_clipped", [&] { adam.step_clipped(1); });
  EXPECT_TRUE(a.detach().equal(before));
  EXPECT_EQ(adam.steps(0), 1);
  b.set_grad(Tensor());  // a frozen parameter without a gradient stays as it is
  adam.step();
  EXPECT_FALSE(a.detach().equal(before));
  expect_frozen("a new optimizer", [&] { optim::SGD({b}, {.lr = 0.1}); });
}

TEST(Freeze, refuses_a_step_that_compile_recorded_before) {
  const Tensor w = randn({8}).requires_grad_(), x = randn({8});
  optim::SGD sgd({w}, {.lr = 0.1});
  auto f = compile([&] {
    sgd.zero_grad();
    const Tensor loss = (w * x).sum();
    loss.backward();
    sgd.step();
    return loss.detach();
  });
  for (int i = 0; i < 5; ++i) f();
  ASSERT_GT(f.stats().replays, 0);
  w.freeze();
  const Tensor before = w.detach().clone();
  expect_frozen("a replay", [&] { f(); });
  EXPECT_TRUE(w.detach().equal(before));
}

TEST(Freeze, a_module_freezes_its_parameters_and_buffers) {
  nn::Linear layer(4, 3), other(4, 3);
  const Tensor x = randn({2, 4}), y = layer.forward(x).detach();
  layer.freeze();
  for (const Tensor& p : layer.parameters()) EXPECT_TRUE(p.is_frozen());
  expect_frozen("load_state_dict", [&] { layer.load_state_dict(other.state_dict()); });
  expect_frozen("to", [&] { layer.to(kFloat64); });
  EXPECT_TRUE(layer.forward(x).detach().equal(y));
  layer.forward(x).sum().backward();  // gradients are other memory
  EXPECT_TRUE(layer.weight.grad().defined());
  EXPECT_FALSE(nn::clone(layer, 4, 3)->weight.is_frozen());
}

TEST(Freeze, and_concurrent_parameters_exclude_each_other) {
  const Tensor frozen = randn({4}).requires_grad_(), concurrent = randn({4}).requires_grad_();
  frozen.freeze();
  expect_frozen("mark_concurrent", [&] { mark_concurrent(frozen); });
  mark_concurrent(concurrent);
  EXPECT_TRUE(has(error_of<ValueError>([&] { concurrent.freeze(); }), "freeze"));
  EXPECT_FALSE(concurrent.is_frozen());
  expect_frozen("set_data", [&] { set_data(concurrent, frozen.detach()); });
  nn::Linear layer(4, 3);
  mark_concurrent(layer.bias);
  EXPECT_TRUE(has(error_of<ValueError>([&] { layer.freeze(); }), "freeze"));
  EXPECT_FALSE(layer.weight.is_frozen());
  expect_frozen("gradcheck", [] {
    const Tensor x = randn({2}, {.dtype = kFloat64, .requires_grad = true});
    x.freeze();
    gradcheck([](const std::vector<Tensor>& in) { return std::vector<Tensor>{in[0] * 2}; }, {x});
  });
  EXPECT_TRUE(has(error_of<ValueError>([] { Tensor().freeze(); }), "freeze"));
}

TEST(Freeze, frozen_memory_of_the_program_keeps_packs) {
  std::vector<float> memory(64 * 64, 0.25f);
  // more rows than any product in place takes
  const Tensor w = from_blob(memory.data(), {64, 64}), written = randn({64, 64}), x = randn({56, 64});
  written.data<float>()[3] = 7;
  const NoGrad quiet;
  for (const Tensor& t : {w, written}) {
    t.freeze();
    const Tensor want = linear(x, t);
    for (int i = 0; i < 2; ++i) linear(x, t);
    const int64_t before = pack_stats().reused;
    EXPECT_TRUE(linear(x, t).equal(want));
    EXPECT_EQ(pack_stats().reused, before + 1);
  }
}

}  // namespace
}  // namespace weft::freeze_tests
