// The calls of attention that cuDNN gets, over the emulated one: its limits and faults, memory that is short,
// recordings of other threads, and statistics that change between the implementations.
#include <gtest/gtest.h>

#include <any>
#include <cmath>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <weft/kernels/backend.h>
#include <weft/kernels/cuda/host/attention_seam.h>
#include <weft/kernels/cuda/host/cuda_backend.h>
#include <weft/tensor/cuda.h>
#include "support/libraries/attention_calls.h"

namespace weft::cuda {
namespace {

using libraries::counts;
using libraries::settings;

struct EmulatedChoice : AttentionOnCudnn {
  CudaBackend& device = dynamic_cast<CudaBackend&>(backend(gpu));
};

/// The tensors of a call of bfloat16 with heads of 8 numbers, uninitialised, and their views.
struct Room {
  Tensor q, k, v, y, stats;
  AttentionViews views;
  Room(const Device& device, int64_t batch, int64_t heads, int64_t queries, int64_t keys) {
    const auto room = [&](int64_t rows, int64_t width, DType t) {
      return empty({batch, heads, rows, width}, {.dtype = t, .device = device});
    };
    q = room(queries, 8, kBFloat16), k = room(keys, 8, kBFloat16), v = room(keys, 8, kBFloat16);
    y = room(queries, 8, kBFloat16), stats = room(queries, 1, kFloat32);
    views.q = q.view_of(), views.k = k.view_of(), views.v = v.view_of(), views.y = y.view_of();
    views.stats = stats.view_of();
  }
};

TEST_F(EmulatedChoice, a_factor_that_is_not_positive_is_wefts) {
  for (const double scale : {-0.25, 0.0, 1e-60}) {  // the last is 0 as a float
    EXPECT_EQ(by_cudnn({.keys = fresh(), .scale = scale}), Runs(0, 0)) << scale;
  }
}

TEST_F(EmulatedChoice, a_single_key_is_wefts) {
  EXPECT_EQ(by_cudnn({.keys = 1}), Runs(0, 0));
  EXPECT_EQ(by_cudnn({.keys = 2}), Runs(1, 1));
}

TEST_F(EmulatedChoice, batches_and_heads_beyond_cudnns_limit_are_wefts) {
  Context context;
  for (const auto& [batch, heads, kept] :
       {std::tuple<int64_t, int64_t, int64_t>{65535, 1, 1}, {65536, 1, 2}, {1, 65535, 1}, {1, 65536, 2}}) {
    const Room room(gpu, batch, heads, 2, 2);
    EXPECT_EQ(device.attention_stats(context, room.views, true), kept) << batch << ' ' << heads;
  }
}

TEST_F(EmulatedChoice, a_backward_that_is_wrong_on_capability_9_is_wefts) {
  ASSERT_EQ(device.major(), 9);
  for (const int64_t keys : {64, 192, 128, 100})
    for (const bool causal : {false, true}) {
      const bool wrong = keys % 128 == 64 && !causal;
      EXPECT_EQ(by_cudnn({.keys = keys, .causal = causal}), Runs(1, wrong ? 0 : 1)) << keys << ' ' << causal;
    }
}

TEST_F(EmulatedChoice, an_ordered_backward_of_too_much_workspace_makes_no_plan) {
  Room room(gpu, 1, 1, 32832, 32832);
  room.views.dy = room.y.view_of();
  Context context;
  const auto before = counts();
  EXPECT_FALSE(cudnn::attention_backward(device, context, room.views));
  EXPECT_EQ(counts().attention_plans, before.attention_plans);
}

TEST_F(EmulatedChoice, the_first_engine_of_many_is_taken) {
  settings().found = 40;
  EXPECT_EQ(by_cudnn({.keys = fresh()}), Runs(1, 1));
}

TEST_F(EmulatedChoice, a_forward_without_room_for_its_workspace_is_wefts) {
  settings().extra_work = 8 << 20;
  const Call call{.keys = fresh(), .causal = true};
  auto a = call.arguments(gpu);
  for (Tensor& x : a) x.requires_grad_();
  const auto expected = call.run(kCpu);
  const auto gradients = [&](const Tensor& y) {
    return grad({(y.to(kFloat32) * y.to(kFloat32)).sum()}, a, {}, {.retain_graph = true});
  };
  empty_cache(gpu);
  set_memory_limit(memory_stats(gpu).reserved + (4 << 20), gpu);
  const auto before = counts();
  const Tensor y = call.forward(a);
  EXPECT_EQ(counts().attention_plans, before.attention_plans + 1);
  EXPECT_EQ(counts().attention_forward, before.attention_forward);
  const auto converted = gradients(y);
  set_memory_limit(0, gpu);
  expect_near({y.detach(), converted[0], converted[1], converted[2]}, expected, kBFloat16);
  EXPECT_EQ(by_cudnn(call), Runs(0, 0));  // each try would empty the cache
}

/// The first row of q has no finite score with the keys, and all of the others' are 0.
void lose_first_row(std::vector<Tensor>& a) {
  const NoGrad quiet;
  Tensor row = a[0].select(2, 0);
  a[0].fill_(0), row.fill_(1e30), a[1].fill_(-1e30);
}

TEST_F(EmulatedChoice, a_row_of_scores_without_a_number_has_no_gradient) {
  const Call call{.keys = fresh()};
  auto a = call.arguments(gpu);
  lose_first_row(a);
  const Tensor y = zeros({2, 2, 20, 16}, {.dtype = kBFloat16, .device = gpu}), g = ones_like(y),
               stats = full({2, 2, 20, 1}, std::log(call.keys), {.device = gpu});
  for (const double kept : {INFINITY, -INFINITY}) {  // as weft's forward and cuDNN's may keep it
    {
      const NoGrad quiet;
      Tensor row = stats.select(2, 0);
      row.fill_(kept);
    }
    const Tensor dq = empty_like(a[0]), dk = empty_like(a[1]), dv = empty_like(a[2]);
    AttentionViews v;
    v.q = a[0].view_of(), v.k = a[1].view_of(), v.v = a[2].view_of(), v.y = y.view_of();
    v.stats = stats.view_of(), v.dy = g.view_of(), v.scale = 0.25;
    v.dq = dq.view_of(), v.dk = dk.view_of(), v.dv = dv.view_of();
    set_cudnn_attention(false);
    Context context;
    device.attention_backward(context, v);
    EXPECT_EQ(dq.select(2, 0).to(kCpu).to(kFloat32).abs().max().item<float>(), 0) << kept;
    for (const Tensor& d : {dq, dk, dv}) EXPECT_FALSE(d.to(kCpu).isnan().any().item<bool>()) << kept;
  }
}

TEST_F(EmulatedChoice, hooks_may_give_saved_tensors_other_strides) {
  const auto turned = [](const Tensor& x) {
    return x.dim() < 4 ? x : x.transpose(1, 2).contiguous().transpose(1, 2);
  };
  for (const bool causal : {false, true}) {
    const Call call{.queries = 30, .keys = 30, .causal = causal};
    const auto expected = call.run(kCpu);
    for (const auto& [at, on] : {std::pair<Device, bool>{gpu, true}, {gpu, false}, {kCpu, false}}) {
      set_cudnn_attention(on);
      auto a = call.arguments(at);
      for (Tensor& x : a) x.requires_grad_();
      Tensor y;
      {
        const SavedTensorHooks strides([](const Tensor& x) -> std::any { return x; },
                                       [&](const std::any& x) { return turned(std::any_cast<Tensor>(x)); });
        y = call.forward(a);
      }
      const auto d = grad({(y.to(kFloat32) * y.to(kFloat32)).sum()}, a);
      expect_near({y.detach(), d[0], d[1], d[2]}, expected, kBFloat16);
    }
  }
}

TEST_F(EmulatedChoice, a_recording_leaves_other_threads_their_choice) {
  const Call known{.keys = fresh(), .causal = true}, other{.keys = fresh(), .causal = true};
  known.run(gpu);
  const auto mine = known.arguments(gpu), theirs = known.arguments(gpu), unknown = other.arguments(gpu);
  std::vector<Tensor> recorded, beside, of_other;
  auto before = counts();
  Graph graph(gpu);
  graph.capture([&] {
    before = counts();
    recorded = known.run(mine);
    std::thread([&] {
      beside = known.run(theirs);
      of_other = other.run(unknown);
    }).join();
  });
  EXPECT_EQ(counts().attention_plans, before.attention_plans);  // a plan might disturb the recording
  EXPECT_EQ(counts().attention_forward, before.attention_forward + 2);
  EXPECT_EQ(counts().attention_backward, before.attention_backward + 2);
  graph.replay();
  expect_near(recorded, known.run(kCpu), kBFloat16);
  expect_near(beside, known.run(kCpu), kBFloat16);
  expect_near(of_other, other.run(kCpu), kBFloat16);
  EXPECT_EQ(by_cudnn(other), Runs(1, 1));
}

}  // namespace
}  // namespace weft::cuda
