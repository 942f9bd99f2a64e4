// For tests of recurrent parameters that lie in cuDNN's weight space. The sizes are multiples of three, for
// which the emulated cuDNN joins the gates of a weight.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include <weft/autograd/tape/inner/set_data.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/optim/optim.h>
#include "support/libraries/libraries.h"
#include "support/simt/thread.h"
#include "support/stacks.h"

namespace weft::cuda {

struct EmulatedFlat : testing::Test {
  void TearDown() override {
    simt::settings().device_bytes = 0;
    set_cudnn_dropout(false);
    set_use_cudnn(true);
  }
  const Device gpu{DeviceType::kCuda, 0};
};

inline Case three_by(DType type = kFloat32, RnnMode mode = RnnMode::kLstm) {
  return {.mode = mode, .options = {.num_layers = 2, .bidirectional = true, .dtype = type}, .hidden = 3};
}

/// The memory of which all parameters are parts, or null.
inline const Storage* space_of(const std::vector<Tensor>& tensors) {
  const Storage* whole = tensors[0].body().storage->whole();
  for (const Tensor& t : tensors)
    if (t.body().storage->whole() != whole) whole = nullptr;
  return whole;
}
inline const Storage* space_of(const Net& net) { return space_of(net.module->parameters()); }
/// Gives each parameter memory of its own.
inline void separate(const Net& net) {
  for (const Tensor& p : net.module->parameters()) set_data(p, p.detach().clone());
}
/// The net, with parameters that cuDNN's weights are packed from.
inline Net packed(const Case& c, Device device) {
  Net net(c, device);
  separate(net);
  return net;
}
inline std::vector<Tensor> grads_of(const Net& net) {
  std::vector<Tensor> out;
  for (const Tensor& p : net.module->parameters()) out.push_back(p.grad());
  return out;
}
inline std::vector<Tensor> values_of(const Net& net) {
  std::vector<Tensor> out;
  for (const Tensor& p : net.module->parameters()) out.push_back(p.detach());
  return out;
}
inline void train(const Net& net, optim::Optimizer& optimizer) {
  net.loss().backward();
  optim::clip_grad_norm(net.module->parameters(), 0.5);
  optimizer.step();
  optimizer.zero_grad();
}
/// Whether a call of the module takes the weights from where they are. Its gradients are right.
inline bool runs_in_place(const Net& net) {
  const Storage* const whole = space_of(net);
  const auto out = net.run();
  const bool in_place = whole && libraries::counts().last_weights == whole->data();
  Net other(net.c, net.in[0].device());
  separate(other);
  other.module->load_state_dict(net.module->state_dict());
  EXPECT_TRUE(same(out, other.run()));
  return in_place;
}

}  // namespace weft::cuda
