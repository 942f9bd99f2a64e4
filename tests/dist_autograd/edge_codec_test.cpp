// Codecs of edges: rounded values and their errors, values that travel exactly, and error feedback over
// steps.
#include <gtest/gtest.h>

#include <cmath>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/autograd/edge_codec.h>
#include <weft/distributed/autograd/inner/edge_codecs.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/wire/codec.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using dist_autograd::Backward;
using dist_autograd::Context;
using dist_autograd::EdgeCodec;
using dist_autograd::set_edge_codec;
using dist_autograd::WireCodec;
using test::Cluster;
using test::Over;

constexpr int64_t kSize = 3000;  // 12000 bytes, three blocks of int8

/// The last argument of the callee, which is written on a thread of its own over gRPC.
struct Arrived {
  std::vector<float> values;
  bool required_grad = false;
};
Mutex g_arrived_mutex;
Arrived g_arrived WEFT_GUARDED_BY(g_arrived_mutex);
Arrived arrived() {
  MutexLock lock(g_arrived_mutex);
  return g_arrived;
}

Tensor see_activation(const Tensor& x) {
  EXPECT_EQ(x.dtype(), kFloat32);
  EXPECT_EQ(x.sizes(), (Shape{2, kSize / 2}));
  {
    MutexLock lock(g_arrived_mutex);
    g_arrived = {x.detach().to_vector<float>(), x.requires_grad()};
  }
  return x * 1.0;
}
WEFT_RPC(see_activation);

Tensor of_two(const Tensor& x, const Tensor& y) { return (x * y).sum(); }
WEFT_RPC(of_two);

Tensor wave(double shift, double height = 1) {
  std::vector<float> values;
  for (int64_t i = 0; i < kSize; ++i)
    values.push_back(static_cast<float>(height * std::sin(0.37 * static_cast<double>(i) + shift)));
  return from_vector(values, {2, kSize / 2});
}

float worst(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(a[i] - b[i]));
  return a.size() == b.size() ? most : INFINITY;
}

class EdgeCodecOver : public ::testing::TestWithParam<Over> {};
INSTANTIATE_TEST_SUITE_P(Networks, EdgeCodecOver, ::testing::Values(Over::kSim, Over::kGrpc),
                         [](const auto& info) { return to_string(info.param); });

TEST_P(EdgeCodecOver, activations_are_rounded_within_the_bound_of_their_codec) {
  Cluster c({.over = GetParam(), .size = 2});
  for (const auto& [codec, bound, saved] :
       {std::tuple(WireCodec::kExact, 0.f, int64_t{0}), std::tuple(WireCodec::kFloat16, 0.0005f, kSize * 2),
        std::tuple(WireCodec::kInt8, 0.004f, kSize * 3 - 12)}) {
    c.run(0, [&, codec = codec, bound = bound, saved = saved] {
      set_edge_codec("worker1", {.activations = codec});
      const int64_t before = c.agent(0)->debug_info().at("dist_autograd.coded_bytes_saved");
      const Tensor leaf = wave(0.1).requires_grad_();
      Context context;
      const Tensor x = leaf * 1.0, y = rpc_sync<see_activation>("worker1", x);
      const Arrived there = arrived();
      EXPECT_TRUE(there.required_grad);
      const float error = worst(there.values, x.detach().to_vector<float>());
      EXPECT_LE(error, bound);
      EXPECT_EQ(error > 0, codec != WireCodec::kExact);
      EXPECT_EQ(y.detach().to_vector<float>(), there.values);  // the way back has no codec
      context.backward({y.sum()});
      EXPECT_EQ(context.gradient(leaf).to_vector<float>(), std::vector<float>(kSize, 1.f));
      EXPECT_EQ(c.agent(0)->debug_info().at("dist_autograd.coded_bytes_saved") - before, saved);
    });
  }
}

TEST(EdgeCodec, leaves_small_tensors_other_dtypes_infs_and_calls_outside_contexts_travel_exactly) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    set_edge_codec("worker1", {.activations = WireCodec::kInt8, .gradients = WireCodec::kInt8});
    const auto expect_exact = [&](const Tensor& x) {
      rpc_sync<see_activation>("worker1", x);
      const std::vector<float> sent = x.detach().to_vector<float>();
      EXPECT_EQ(std::memcmp(arrived().values.data(), sent.data(), sent.size() * sizeof(float)), 0);
    };
    expect_exact(wave(0.2));
    Context context;
    expect_exact(wave(0.3).requires_grad_());
    expect_exact(wave(0.4));
    for (const float odd : {INFINITY, NAN}) {
      Tensor x = wave(0.5);
      x.data<float>()[7] = odd;
      expect_exact(x.requires_grad_() * 1.0);
    }
    set_edge_codec("worker1", {.activations = WireCodec::kFloat16});
    expect_exact(wave(0.6, 70000).requires_grad_() * 1.0);  // beyond float16
    set_edge_codec("worker1", {.activations = WireCodec::kInt8, .min_bytes = kSize * 4 + 1});
    expect_exact(wave(0.7).requires_grad_() * 1.0);
    set_edge_codec("worker1", {.activations = WireCodec::kInt8, .min_bytes = 0});
    const Tensor a = full({5}, 0.3, {.dtype = kFloat64}).requires_grad_();
    EXPECT_DOUBLE_EQ((rpc_sync<of_two>("worker1", a * 1.0, a * 1.0).item<double>()), 5 * 0.3 * 0.3);
    EXPECT_EQ(c.agent(0)->debug_info().at("dist_autograd.coded_tensors"), 0);
    EXPECT_THROW(set_edge_codec("nobody", {}), ValueError);
    EXPECT_THROW(set_edge_codec("worker1", {.min_bytes = -1}), ValueError);
  });
}

/// The sum of the gradients of `steps` steps at the caller of of_two, whose callee codes its gradients.
std::vector<double> sum_of_gradients(Cluster& c, const EdgeCodec& codec, int steps, const Tensor& y) {
  c.run(1, [&] { set_edge_codec("worker0", codec); });
  std::vector<double> sum(kSize, 0);
  c.run(0, [&] {
    for (int step = 0; step < steps; ++step) {
      const Tensor x = wave(0).requires_grad_();
      Context context;
      const Tensor loss = rpc_sync<of_two>("worker1", x * 1.0, y);
      context.backward({loss}, {.mode = step % 2 == 0 ? Backward::kSmart : Backward::kFast});
      const std::vector<float> g = context.gradient(x).to_vector<float>();
      for (size_t i = 0; i < g.size(); ++i) sum[i] += g[i];
    }
  });
  return sum;
}

TEST(EdgeCodec, error_feedback_keeps_the_sum_of_gradients_within_one_rounding) {
  constexpr int kSteps = 50;
  const Tensor y = wave(1.1);  // the gradient of each step
  const std::vector<float> gradient = y.to_vector<float>();
  const auto worst_of = [&](const std::vector<double>& sum) {
    double most = 0;
    for (size_t i = 0; i < sum.size(); ++i)
      most = std::max(most, std::fabs(sum[i] - kSteps * static_cast<double>(gradient[i])));
    return most;
  };
  for (const auto& [codec, quantum] :
       {std::pair(WireCodec::kInt8, 1.0 / 127), std::pair(WireCodec::kFloat16, 1.0 / 1024)}) {
    Cluster with({.size = 2}), without({.size = 2});
    const double kept = worst_of(sum_of_gradients(with, {.gradients = codec}, kSteps, y));
    const double lost =
        worst_of(sum_of_gradients(without, {.gradients = codec, .error_feedback = false}, kSteps, y));
    EXPECT_LE(kept, 1.02 * quantum);
    EXPECT_GT(lost, 10 * kept);
    EXPECT_LE(lost, kSteps * 0.51 * quantum);
    EXPECT_EQ(with.agent(1)->debug_info().at("dist_autograd.feedback_bytes"), kSize * 4);
    EXPECT_EQ(without.agent(1)->debug_info().at("dist_autograd.feedback_bytes"), 0);
  }
}

TEST(EdgeCodec, the_memory_of_error_feedback_has_a_limit_and_ends_with_the_peer) {
  Cluster c({.size = 2, .agent = {.lease = std::chrono::seconds(1)}});
  const Tensor y = wave(1.1);
  const auto held = [&] { return c.agent(1)->debug_info().at("dist_autograd.feedback_bytes"); };
  c.run(1, [&] {
    set_edge_codec("worker0", {.gradients = WireCodec::kInt8});
    dist_autograd::set_feedback_limit(3 * kSize * 4);
    EXPECT_THROW(dist_autograd::set_feedback_limit(-1), ValueError);
  });
  c.run(0, [&] {
    const Tensor x = wave(0).requires_grad_();
    Context context;
    std::vector<Tensor> losses;
    for (int i = 0; i < 8; ++i) losses.push_back(rpc_sync<of_two>("worker1", x * 1.0, y));
    context.backward(losses);
    EXPECT_EQ(held(), 3 * kSize * 4);
    c.run(1, [] { dist_autograd::set_feedback_limit(kSize * 4); });
    EXPECT_EQ(held(), kSize * 4);
  });
  c.agent(1)->declare_lost(WorkerId{0}, "the test says so");
  EXPECT_TRUE(test::eventually(c, [&] { return held() == 0; }));
}

TEST(EdgeCodec, a_malformed_list_of_coded_tensors_is_refused) {
  using dist_autograd::detail::EdgeCodecs;
  EdgeCodecs codecs;
  codecs.set(WorkerId{1}, {.activations = WireCodec::kInt8});
  Message good;
  good.tensors = {wave(0.1).requires_grad_() * 1.0};
  codecs.code_activations(WorkerId{1}, good);
  ASSERT_EQ(good.extensions.size(), 1u);
  const std::string list = good.extensions[0].bytes;
  const auto decode = [&](const std::string& bytes, const Tensor& coded) {
    Message m = good;
    m.extensions[0].bytes = bytes;
    m.tensors[0] = coded;
    EdgeCodecs::decode(m);
    return m.tensors[0];
  };
  EXPECT_EQ(decode(list, good.tensors[0]).sizes(), (Shape{2, kSize / 2}));
  for (size_t length = 1; length < list.size(); ++length)
    EXPECT_THROW(decode(list.substr(0, length), good.tensors[0]), WireError) << length;
  for (size_t at = 0; at < list.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = list;
      bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
      try {
        EXPECT_EQ(decode(bad, good.tensors[0]).numel(), kSize);  // "requires grad" alone may change
      } catch (const WireError&) {
      }
    }
  EXPECT_THROW(decode(list, zeros({10}, {.dtype = kUInt8})), WireError);
  EXPECT_THROW(decode(list, wave(0)), WireError);
}

}  // namespace
