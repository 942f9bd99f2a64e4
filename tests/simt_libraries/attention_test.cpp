// kernels/cuda/toolkit/attention_cudnn.cpp over the graphs of an emulated cuDNN: results and gradients
// against the CPU's, refusals and failures, recordings, the plans that are kept. attention_choice_test.cpp
// has the calls that cuDNN does not get.
#include <gtest/gtest.h>

#include <any>
#include <cstdlib>
#include <utility>
#include <vector>

#include <weft/kernels/cuda/trace.h>
#include <weft/nn/attention.h>
#include <weft/tensor/cuda.h>
#include "support/errors.h"
#include "support/libraries/attention_calls.h"
#include "support/simt/device.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using libraries::counts;
using libraries::settings;
using EmulatedAttention = AttentionOnCudnn;

TEST_F(EmulatedAttention, of_half_types_runs_on_cudnn_from_the_first_call_on) {
  for (const DType dtype : {kFloat16, kBFloat16})
    for (const bool causal : {false, true})
      for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{20, 20}, {33, 18}, {2, 40}})
        for (const auto& [width, values] : {std::pair<int64_t, int64_t>{16, 16}, {24, 8}, {64, 64}}) {
          const Call call{.dtype = dtype,
                          .queries = queries,
                          .keys = keys,
                          .width = width,
                          .values = values,
                          .causal = causal};
          EXPECT_EQ(by_cudnn(call), Runs(1, 1)) << queries << ' ' << keys << ' ' << width << ' ' << causal;
        }
}

TEST_F(EmulatedAttention, takes_its_factor_from_each_call) {
  Call call{.keys = fresh()};
  EXPECT_EQ(by_cudnn(call), Runs(1, 1));
  const auto before = counts();
  for (const double scale : {0.5, 2.0}) {
    call.scale = scale;
    EXPECT_EQ(by_cudnn(call), Runs(1, 1)) << scale;
  }
  EXPECT_EQ(counts().attention_plans, before.attention_plans);
}

TEST_F(EmulatedAttention, reads_heads_that_are_views_of_one_projection) {
  for (const bool causal : {false, true}) {
    const auto before = counts();
    const Call call{.queries = 24, .keys = 24, .causal = causal, .packed = true};
    EXPECT_EQ(by_cudnn(call), Runs(1, 1));
    const Call dense{.queries = 24, .keys = 24, .causal = causal};
    EXPECT_EQ(by_cudnn(dense), Runs(1, 1));
    EXPECT_EQ(counts().attention_plans, before.attention_plans + 4);  // other strides are another kind
  }
}

TEST_F(EmulatedAttention, gives_each_wanted_gradient) {
  const int64_t keys = fresh();
  for (const std::vector<bool>& wants : {std::vector<bool>{true, false, false},
                                         {false, true, false},
                                         {false, false, true},
                                         {false, true, true}}) {
    const Call call{.keys = keys, .causal = true, .wants = wants};
    const auto before = counts();
    by_cudnn(call);
    EXPECT_GT(counts().attention_backward, before.attention_backward);
  }
}

TEST_F(EmulatedAttention, keeps_no_statistics_without_a_backward) {
  const Call call{.keys = fresh(), .wants = {false, false, false}};
  EXPECT_EQ(by_cudnn(call), Runs(1, 0));
  const auto before = counts();
  call.run(gpu);
  EXPECT_EQ(counts().attention_forward, before.attention_forward + 1);
  EXPECT_EQ(counts().attention_plans, before.attention_plans);
}

TEST_F(EmulatedAttention, one_plan_serves_all_calls_of_a_kind) {
  const Call call{.keys = fresh()};
  const auto before = counts();
  for (int i = 0; i < 5; ++i) call.run(gpu);
  EXPECT_EQ(counts().attention_plans, before.attention_plans + 2);
  EXPECT_EQ(counts().attention_forward, before.attention_forward + 5);
  EXPECT_EQ(counts().attention_backward, before.attention_backward + 5);
}

TEST_F(EmulatedAttention, has_a_limit_of_plans_which_are_kept) {
  const Device other("cuda:1");
  const auto before = counts();
  for (int64_t keys = 100; keys < 700; ++keys) {
    const Call call{.batch = 1,
                    .heads = 1,
                    .queries = 2,
                    .keys = keys,
                    .width = 8,
                    .values = 8,
                    .wants = {false, false, false}};
    call.run(other);
  }
  EXPECT_EQ(counts().attention_plans, before.attention_plans + 512);
  EXPECT_EQ(counts().attention_forward, before.attention_forward + 512);
  EXPECT_LE(counts().graph_nodes, before.graph_nodes + 512 * 50);
}

TEST_F(EmulatedAttention, others_run_on_wefts_kernels) {
  const int64_t keys = fresh();
  EXPECT_EQ(by_cudnn({.keys = keys, .width = 12}), Runs(0, 0));   // no whole packs
  EXPECT_EQ(by_cudnn({.queries = 1, .keys = keys}), Runs(0, 0));  // a step of a decoder
  const auto before = counts();
  for (const DType dtype : {kFloat32, kFloat64}) {
    const Call call{.dtype = dtype, .keys = keys};
    for (int i = 0; i < 2; ++i) call.run(gpu);
  }
  Call call{.keys = keys};
  auto a = call.arguments(gpu);
  const Tensor mask = ones({20, keys}, {.dtype = kBool, .device = gpu});
  const Tensor one_head = a[1].select(1, 0).unsqueeze(1);
  for (int i = 0; i < 2; ++i) {
    scaled_dot_product_attention(a[0], a[1], a[2], {.mask = mask});
    scaled_dot_product_attention(a[0], one_head, a[2]);  // k repeats over the heads
  }
  const Tensor odd = empty({2 * 2 * 20 * 16 + 1}, {.dtype = kBFloat16, .device = gpu});
  Tensor q = odd.slice(0, 1).view({2, 2, 20, 16});  // its address is no multiple of 16
  for (int i = 0; i < 2; ++i) scaled_dot_product_attention(q.copy_(a[0]), a[1], a[2]);
  EXPECT_EQ(counts().attention_forward, before.attention_forward);
}

TEST_F(EmulatedAttention, can_be_switched_off) {
  const Call call{.keys = fresh()};
  set_cudnn_attention(false);
  EXPECT_EQ(by_cudnn(call), Runs(0, 0));
  set_cudnn_attention(true);
  EXPECT_EQ(by_cudnn(call), Runs(1, 1));
}

// Of a new process, where nothing has asked for the setting before.
TEST(EmulatedAttentionSetting, begins_with_the_word_of_the_environment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const auto& [text, on] : {std::pair{"0", 0}, {"1", 1}, {"", 0}}) {
    setenv("WEFT_CUDNN_ATTENTION", text, 1);
    EXPECT_EXIT(std::_Exit(cudnn_attention()), testing::ExitedWithCode(on), "") << text;
  }
  unsetenv("WEFT_CUDNN_ATTENTION");
}

TEST_F(EmulatedAttention, a_backward_may_have_another_implementation_than_its_forward) {
  for (const bool causal : {false, true}) {
    const Call call{.keys = fresh(), .causal = causal};
    EXPECT_EQ(by_cudnn(call), Runs(1, 1));
    const auto expected = call.run(kCpu);
    for (const bool first : {true, false}) {
      auto a = call.arguments(gpu);
      for (Tensor& x : a) x.requires_grad_();
      const auto before = counts();
      set_cudnn_attention(first);
      const Tensor y = call.forward(a);
      set_cudnn_attention(!first);
      const auto d = grad({(y.to(kFloat32) * y.to(kFloat32)).sum()}, a);
      expect_near({y.detach(), d[0], d[1], d[2]}, expected, kBFloat16);
      EXPECT_EQ(counts().attention_forward, before.attention_forward + first);
      EXPECT_EQ(counts().attention_backward, before.attention_backward);
    }
    set_cudnn_attention(true);
  }
}

TEST_F(EmulatedAttention, a_refused_kind_runs_on_wefts_kernels_for_good) {
  for (const char* call :
       {"cudnnBackendFinalize: graph", "cudnnBackendFinalize: plan", "cudnnBackendGetAttribute: engines",
        "cudnnBackendGetAttribute: ordered", "cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute"}) {
    const Call kind{.keys = fresh()};
    const auto before = counts();
    settings().refuses = call;
    EXPECT_EQ(by_cudnn(kind), Runs(0, 0)) << call;
    settings() = {};
    EXPECT_EQ(by_cudnn(kind), Runs(0, 0)) << call;
    EXPECT_EQ(counts().graph_nodes, before.graph_nodes) << call;
    EXPECT_EQ(by_cudnn({.keys = fresh()}), Runs(1, 1)) << call;  // others are taken
  }
}

TEST_F(EmulatedAttention, a_refused_backward_reads_the_statistics_of_cudnns_forward) {
  const Call kind{.keys = fresh(), .causal = true};
  auto a = kind.arguments(gpu);
  for (Tensor& x : a) x.requires_grad_();
  const Tensor y = kind.forward(a);
  settings().refuses = "cudnnBackendFinalize: plan";
  const auto before = counts();
  const auto d = grad({(y.to(kFloat32) * y.to(kFloat32)).sum()}, a);
  EXPECT_EQ(counts().attention_backward, before.attention_backward);
  expect_near({y.detach(), d[0], d[1], d[2]}, kind.run(kCpu), kBFloat16);
}

TEST_F(EmulatedAttention, a_call_that_fails_is_named_and_the_next_one_works) {
  const Call call{.keys = fresh()};
  EXPECT_EQ(by_cudnn(call), Runs(1, 1));
  for (const char* name : {"cudnnBackendExecute", "cudnnSetStream"}) {
    settings().fails = name;
    EXPECT_TRUE(test::has(test::error_of<CudaError>([&] { call.run(gpu); }),
                          str(name, ": CUDNN_STATUS_INTERNAL_ERROR")));
    settings() = {};
    EXPECT_EQ(by_cudnn(call), Runs(1, 1));
  }
}

TEST_F(EmulatedAttention, repeats_its_bits_unless_another_order_is_allowed) {
  const Call call{.keys = fresh()};
  EXPECT_EQ(by_cudnn(call), Runs(1, 1));
  const auto before = counts();
  set_ordered_attention(false);
  EXPECT_EQ(by_cudnn(call), Runs(1, 1));
  EXPECT_EQ(counts().attention_plans, before.attention_plans + 1);  // another one for the backward alone
  set_ordered_attention(true);
  EXPECT_EQ(by_cudnn(call), Runs(1, 1));
}

TEST_F(EmulatedAttention, what_finds_no_room_once_is_not_refused_for_good) {
  for (const char* const call : {"cudnnBackendCreateDescriptor", "cudnnBackendFinalize: plan"}) {
    const Call kind{.keys = fresh(), .wants = {false, false, false}};
    settings().full = call;
    settings().full_calls = 1;  // once more with an empty cache
    auto before = counts();
    expect_near(kind.run(gpu), kind.run(kCpu), kBFloat16);
    EXPECT_EQ(counts().attention_forward, before.attention_forward + 1) << call;
    const Call other{.keys = fresh(), .wants = {false, false, false}};
    settings().full_calls = 2;
    before = counts();
    expect_near(other.run(gpu), other.run(kCpu), kBFloat16);
    EXPECT_EQ(settings().full_calls, 0);
    EXPECT_EQ(counts().attention_forward, before.attention_forward) << call;
    settings() = {};
    EXPECT_EQ(by_cudnn(other), Runs(1, 0)) << call;
  }
}

TEST_F(EmulatedAttention, a_run_without_room_is_made_once_more_and_then_an_error) {
  const Call call{.keys = fresh()};
  EXPECT_EQ(by_cudnn(call), Runs(1, 1));
  settings().full = "cudnnBackendExecute";
  settings().full_calls = 1;
  expect_near(call.run(gpu), call.run(kCpu), kBFloat16);
  EXPECT_EQ(settings().full_calls, 0);
  settings().full_calls = 2;
  EXPECT_TRUE(test::has(test::error_of<OutOfMemoryError>([&] { call.run(gpu); }), "cudnnBackendExecute"));
  EXPECT_EQ(by_cudnn(call), Runs(1, 1));
}

TEST_F(EmulatedAttention, a_backward_without_room_for_its_workspace_needs_none) {
  // 2 MiB of workspace, and a limit that leaves less
  const Call call{
      .batch = 1, .heads = 4, .queries = 512, .keys = 512 + fresh() / 64, .width = 8, .values = 8};
  auto a = call.arguments(gpu);
  for (Tensor& x : a) x.requires_grad_();
  const auto loss = [&] {
    const Tensor y = call.forward(a);
    return (y.to(kFloat32) * y.to(kFloat32)).sum();
  };
  const auto expected = grad({loss()}, a);
  auto before = counts();
  expect_near(grad({loss()}, a), expected, kBFloat16);
  EXPECT_EQ(counts().attention_backward, before.attention_backward + 1);
  const Tensor l = loss();
  empty_cache(gpu);
  set_memory_limit(memory_stats(gpu).reserved + (1 << 20), gpu);
  before = counts();
  const auto d = grad({l}, a);
  set_memory_limit(0, gpu);
  expect_near(d, expected, kBFloat16);
  expect_near(grad({loss()}, a), expected, kBFloat16);  // nor later: each try would empty the cache
  EXPECT_EQ(counts().attention_backward, before.attention_backward);
}

TEST_F(EmulatedAttention, a_step_may_be_recorded) {
  for (const int64_t planned : {0, 1}) {
    const Call call{.keys = fresh(), .causal = true};
    if (planned) call.run(gpu);
    auto a = call.arguments(gpu);
    auto before = counts();
    std::vector<Tensor> out;
    Graph graph(gpu);
    graph.capture([&] {
      before = counts();
      out = call.run(a);
    });
    // a recording makes no plans
    EXPECT_EQ(counts().attention_forward, before.attention_forward + planned);
    EXPECT_EQ(counts().attention_backward, before.attention_backward + planned);
    EXPECT_EQ(counts().attention_plans, before.attention_plans);
    auto host = call.arguments(kCpu);
    for (const double factor : {1.0, 0.5}) {
      {
        const NoGrad quiet;
        a[0].copy_((call.arguments(kCpu)[0] * factor).to(gpu));
        host[0].copy_(call.arguments(kCpu)[0] * factor);
      }
      graph.replay();
      expect_near(out, call.run(host), kBFloat16);
    }
  }
}

TEST_F(EmulatedAttention, shows_the_way_taken_in_a_trace) {
  const Call call{.keys = fresh()};
  const auto spans_of = [&] {
    simt::take_ranges();
    start_trace("nvtx");
    call.run(gpu);
    finish_trace();
    std::string all;
    for (const auto& name : simt::take_ranges()) all += name + ' ';
    return all;
  };
  const std::string theirs = spans_of();
  set_cudnn_attention(false);
  const std::string own = spans_of();
  EXPECT_EQ(own.find("cudnn"), std::string::npos) << own;
  EXPECT_TRUE(test::has(own, "attention_keys"));
  EXPECT_TRUE(test::has(theirs, "cudnn_attention "));
  EXPECT_TRUE(test::has(theirs, "cudnn_attention_backward "));
  EXPECT_EQ(theirs.find("attention_keys"), std::string::npos) << theirs;
}

TEST_F(EmulatedAttention, keeps_its_statistics_through_hooks_of_saved_tensors) {
  const Call call{.keys = fresh(), .causal = true};
  auto a = call.arguments(gpu);
  for (Tensor& x : a) x.requires_grad_();
  const auto before = counts();
  Tensor y;
  {
    const SavedTensorHooks on_host([](const Tensor& x) -> std::any { return x.to(kCpu); },
                                   [&](const std::any& x) { return std::any_cast<Tensor>(x).to(gpu); });
    y = call.forward(a);
  }
  const auto d = grad({(y.to(kFloat32) * y.to(kFloat32)).sum()}, a);
  expect_near({y.detach(), d[0], d[1], d[2]}, call.run(kCpu), kBFloat16);
  EXPECT_EQ(counts().attention_forward, before.attention_forward + 1);
  EXPECT_EQ(counts().attention_backward, before.attention_backward + 1);
}

TEST_F(EmulatedAttention, of_a_layer_trains_on_cudnn) {
  nn::MultiheadAttention layer(32, 4);
  layer.to(kBFloat16);
  layer.to(gpu);
  const Tensor x = randn({2, 12, 32}).to(kBFloat16).to(gpu);
  const auto before = counts();
  for (int i = 0; i < 3; ++i) layer.forward(x).to(kFloat32).sum().backward();
  EXPECT_EQ(counts().attention_forward, before.attention_forward + 3);
  EXPECT_EQ(counts().attention_backward, before.attention_backward + 3);
}

/// Run by itself, with no library to be found.
TEST(CudnnMissing, attention_runs_on_wefts_kernels) {
  const bool before = cudnn_attention();
  set_cudnn_attention(true);
  EXPECT_EQ(by_cudnn({}), Runs(0, 0));
  set_cudnn_attention(before);
}

}  // namespace
}  // namespace weft::cuda
