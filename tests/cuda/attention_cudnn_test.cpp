// Attention on cuDNN, where there is a device: against weft's kernels and against float64 on the CPU, with
// views as heads, repeated and recorded. A trace shows that cuDNN ran. test_simt_libraries runs it over an
// emulated cuDNN.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <weft/kernels/backend.h>
#include <weft/kernels/cuda/trace.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "support/folder.h"

namespace weft {
namespace {

struct CudaAttentionOnCudnn : testing::Test {
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    cuda::set_cudnn_attention(true);
  }
  void TearDown() override {
    cuda::set_cudnn_attention(before);
    cuda::set_ordered_attention(true);
  }
  const Device gpu{DeviceType::kCuda, 0};
  const bool before = cuda::cudnn_attention();
};

struct Case {
  DType dtype = kBFloat16;
  int64_t queries = 80, keys = 80, width = 64;
  bool causal = false;
  /// q, k and v [2, 3, time, width] are views of one projection [2, time, 3, 3, width].
  bool packed = false;
  bool low = false;  ///< scores are near -120

  /// Whether cuDNN gets the backward on a device of this capability.
  bool backward_on(int major) const { return major != 9 || causal || keys % 128 != 64; }
};
std::string name_of(const Case& c) {
  return str(c.dtype, ' ', c.queries, ' ', c.keys, ' ', c.width, " causal ", c.causal, " packed ", c.packed,
             " low ", c.low);
}

std::vector<Tensor> heads_of(const Case& c, Device device) {
  Generator numbers(5);
  const auto draw = [&](const Shape& sizes) { return randn(sizes, {}, &numbers).to(c.dtype).to(device); };
  if (c.low) {
    const auto around = [&](double middle, double far, int64_t rows) {
      return (randn({2, 3, rows, c.width}, {}, &numbers) * far + middle).to(c.dtype).to(device);
    };
    return {around(1, 0.1, c.queries), around(-15, 0.1, c.keys), draw({2, 3, c.keys, c.width})};
  }
  if (!c.packed)
    return {draw({2, 3, c.queries, c.width}), draw({2, 3, c.keys, c.width}), draw({2, 3, c.keys, c.width})};
  const Tensor all = draw({2, c.queries, 3, 3, c.width});
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < 3; ++i) parts.push_back(all.select(2, i).transpose(1, 2));
  return parts;
}

/// y and the gradients of q, k and v.
std::vector<Tensor> run(const Case& c, std::vector<Tensor> a) {
  for (Tensor& x : a) x = x.detach().requires_grad_();
  const Tensor y = scaled_dot_product_attention(a[0], a[1], a[2], {.causal = c.causal});
  Generator numbers(6);
  const Tensor g = randn(y.sizes(), {}, &numbers).to(y.dtype()).to(y.device());
  std::vector<Tensor> all{y.detach()};
  for (const Tensor& d : grad({y}, a, {g})) all.push_back(d);
  return all;
}
std::vector<Tensor> exact(const Case& c) {
  std::vector<Tensor> a;
  for (const Tensor& x : heads_of(c, kCpu)) a.push_back(x.to(kFloat64));
  return run(c, a);
}

/// Whether cuDNN has a plan for the call: it keeps one number per row.
bool on_cudnn(const Case& c, const std::vector<Tensor>& a) {
  const Tensor y = empty({2, 3, c.queries, c.width}, {.dtype = c.dtype, .device = a[0].device()});
  AttentionViews v;
  v.q = a[0].view_of(), v.k = a[1].view_of(), v.v = a[2].view_of(), v.y = y.view_of();
  v.causal = c.causal;
  Context context;
  return backend(a[0].device()).attention_stats(context, v, true) == 1;
}

void expect_near(const std::vector<Tensor>& a, const std::vector<Tensor>& b, DType dtype,
                 const std::string& name) {
  for (size_t i = 0; i < a.size(); ++i) {
    const Tensor expected = b[i].to(kCpu).to(kFloat64);
    EXPECT_LE((a[i].to(kCpu).to(kFloat64) - expected).abs().max().item<double>(),
              (dtype == kFloat16 ? 4e-3 : 3e-2) * std::max(1.0, expected.abs().max().item<double>()))
        << name << ", result " << i;
  }
}
bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!equal(a[i].to(kCpu), b[i].to(kCpu))) return false;
  return true;
}

/// The text of a trace of f().
template <class F> std::string traced(const F& f) {
  const test::Folder folder;
  const std::string file = folder / "trace.json";
  cuda::start_trace(file);
  f();
  cuda::finish_trace();
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {kFloat16, kBFloat16})
    for (const bool causal : {false, true}) {
      for (const int64_t width : {16, 128})
        all.push_back({.dtype = dtype, .queries = 70, .keys = 70, .width = width, .causal = causal});
      all.push_back({.dtype = dtype, .queries = 33, .keys = 75, .causal = causal});
      all.push_back({.dtype = dtype, .queries = 75, .keys = 33, .causal = causal});
      all.push_back({.dtype = dtype, .causal = causal, .packed = true});
    }
  for (const int64_t keys : {64, 192, 128, 100})
    for (const int64_t queries : {2, 64}) all.push_back({.queries = queries, .keys = keys, .low = true});
  return all;
}

TEST_F(CudaAttentionOnCudnn, attention_on_cudnn_matches_wefts_kernels) {
  const int major = cuda::device_properties(gpu).major;
  if (major != 8 && major != 9) GTEST_SKIP() << "cuDNN's attention is for compute capability 8 and 9";
  if (!on_cudnn({}, heads_of({}, gpu))) GTEST_SKIP() << "there is no cuDNN here that takes attention";
  for (const Case& c : cases()) {
    const auto a = heads_of(c, gpu);
    std::vector<Tensor> first;
    const std::string spans = traced([&] { first = run(c, a); });
    EXPECT_NE(spans.find("\"cudnn_attention\""), std::string::npos) << name_of(c);
    EXPECT_EQ(spans.find("\"cudnn_attention_backward\"") != std::string::npos, c.backward_on(major))
        << name_of(c);
    const auto expected = exact(c);
    expect_near(first, expected, c.dtype, name_of(c));
    EXPECT_TRUE(same_bits(run(c, a), first)) << name_of(c);
    cuda::set_ordered_attention(false);
    expect_near(run(c, a), expected, c.dtype, name_of(c) + " unordered");
    cuda::set_ordered_attention(true);
    cuda::set_cudnn_attention(false);
    expect_near(run(c, a), expected, c.dtype, name_of(c) + " by weft's kernels");
    cuda::set_cudnn_attention(true);
  }
}

TEST_F(CudaAttentionOnCudnn, a_backward_may_have_another_implementation_than_its_forward) {
  const Case c{.queries = 48, .keys = 48, .causal = true};
  const auto expected = exact(c);
  for (const bool first : {true, false}) {
    auto a = heads_of(c, gpu);
    for (Tensor& x : a) x.requires_grad_();
    cuda::set_cudnn_attention(first);
    const Tensor y = scaled_dot_product_attention(a[0], a[1], a[2], {.causal = true});
    cuda::set_cudnn_attention(!first);
    Generator numbers(6);
    const auto d = grad({y}, a, {randn(y.sizes(), {}, &numbers).to(c.dtype).to(gpu)});
    expect_near({y.detach(), d[0], d[1], d[2]}, expected, c.dtype, name_of(c));
  }
}

TEST_F(CudaAttentionOnCudnn, a_step_is_recorded_with_and_without_a_plan) {
  for (const int64_t keys : {40, 56}) {
    const Case c{.queries = 40, .keys = keys, .causal = true};
    auto a = heads_of(c, gpu);
    if (keys == 40) run(c, a);
    std::vector<Tensor> out;
    cuda::Graph graph(gpu);
    const Tensor g = randn({2, 3, 40, c.width}).to(c.dtype).to(gpu);
    for (Tensor& x : a) x.requires_grad_();
    graph.capture([&] {
      const Tensor y = scaled_dot_product_attention(a[0], a[1], a[2], {.causal = true});
      out = grad({y}, a, {g});
    });
    graph.replay();
    graph.replay();
    const Tensor y = scaled_dot_product_attention(a[0], a[1], a[2], {.causal = true});
    expect_near(out, grad({y}, a, {g}), c.dtype, name_of(c));
  }
}

}  // namespace
}  // namespace weft
