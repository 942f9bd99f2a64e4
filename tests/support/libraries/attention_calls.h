// Calls of attention for the tests over an emulated cuDNN.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <weft/kernels/cuda_settings.h>
#include <weft/weft.h>
#include "support/libraries/libraries.h"

namespace weft::cuda {

using libraries::counts;
using libraries::settings;

/// A call and its loss: y, and the gradients of the wanted ones of q, k and v.
struct Call {
  DType dtype = kBFloat16;
  int64_t batch = 2, heads = 2, queries = 20, keys = 20, width = 16, values = 16;
  bool causal = false;
  std::optional<double> scale = {};
  std::vector<bool> wants = {true, true, true};
  /// q, k and v are the parts of one projection [batch, time, 3, heads, width].
  bool packed = false;

  std::vector<Tensor> arguments(Device device) const {
    Generator numbers(3);
    const auto draw = [&](const Shape& sizes) { return randn(sizes, {}, &numbers).to(dtype).to(device); };
    if (!packed)
      return {draw({batch, heads, queries, width}), draw({batch, heads, keys, width}),
              draw({batch, heads, keys, values})};
    const Tensor all = draw({batch, queries, 3, heads, width});
    std::vector<Tensor> parts;
    for (int64_t i = 0; i < 3; ++i) parts.push_back(all.select(2, i).transpose(1, 2));
    return parts;
  }
  Tensor forward(const std::vector<Tensor>& a) const {
    return scaled_dot_product_attention(a[0], a[1], a[2], {.causal = causal, .scale = scale});
  }
  std::vector<Tensor> run(std::vector<Tensor> a) const {
    std::vector<Tensor> wanted;
    for (size_t i = 0; i < 3; ++i)
      if (wants[i]) wanted.push_back(a[i].requires_grad_());
    const Tensor y = forward(a);
    std::vector<Tensor> results{y.detach()};
    if (wanted.empty()) return results;
    for (const Tensor& d : grad({(y.to(kFloat32) * y.to(kFloat32)).sum()}, wanted)) results.push_back(d);
    return results;
  }
  std::vector<Tensor> run(Device device) const { return run(arguments(device)); }
};

inline void expect_near(const std::vector<Tensor>& a, const std::vector<Tensor>& b, DType dtype) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const Tensor expected = b[i].to(kCpu).to(kFloat64);
    EXPECT_EQ(a[i].dtype(), dtype);
    EXPECT_LE((a[i].to(kCpu).to(kFloat64) - expected).abs().max().item<double>(),
              (dtype == kFloat16 ? 4e-3 : 3e-2) * std::max(1.0, expected.abs().max().item<double>()))
        << "result " << i;
  }
}

/// Runs the call on the device and compares it with the CPU's. Returns the number of cuDNN's forward and
/// backward runs.
inline std::pair<int64_t, int64_t> by_cudnn(const Call& call, Device device = "cuda:0") {
  const auto before = counts();
  expect_near(call.run(device), call.run(kCpu), call.dtype);
  return {counts().attention_forward - before.attention_forward,
          counts().attention_backward - before.attention_backward};
}
using Runs = std::pair<int64_t, int64_t>;

/// Sizes that no other call of this process has: cuDNN's answer for a kind is kept.
inline int64_t fresh() {
  static int64_t keys = 20;
  return ++keys;
}

/// Attention is allowed on cuDNN.
struct AttentionOnCudnn : testing::Test {
  void SetUp() override { set_cudnn_attention(true); }
  void TearDown() override {
    settings() = {};
    set_cudnn_attention(before);
    set_ordered_attention(true);
  }
  const bool before = cudnn_attention();
  const Device gpu{DeviceType::kCuda, 0};
};

}  // namespace weft::cuda
