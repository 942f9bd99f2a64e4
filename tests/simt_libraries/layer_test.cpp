// kernels/cuda/toolkit/rnn_cudnn.cpp over an emulated cuDNN: the one that runs a layer, the state after a
// refusal or a failure, recordings, streams.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <future>

#include <weft/kernels/cuda_settings.h>
#include <weft/nn/rnn.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "support/errors.h"
#include "support/libraries/libraries.h"
#include "support/simt/device.h"
#include "support/simt/streams.h"

namespace weft::cuda {
namespace {

using libraries::counts;
using libraries::settings;

constexpr RnnMode kModes[] = {RnnMode::kLstm, RnnMode::kGru, RnnMode::kTanh, RnnMode::kRelu};

/// A layer on one device and its results: y, the gradients of x and of w_hh.
struct Layer {
  RnnMode mode = RnnMode::kLstm;
  int64_t steps = 3, batch = 2, inputs = 4, hidden = 5;

  std::vector<Tensor> arguments(Device device) const {
    Generator numbers(3);
    const int64_t rows = RnnLayer{mode}.gates() * hidden;
    std::vector<Tensor> all;
    for (const Shape& sizes : {Shape{steps, batch, inputs}, Shape{batch, hidden}, Shape{batch, hidden},
                               Shape{rows, inputs}, Shape{rows, hidden}, Shape{rows}, Shape{rows}})
      all.push_back((randn(sizes, {}, &numbers) * 0.4).to(device).requires_grad_());
    if (mode != RnnMode::kLstm) all[2] = Tensor();
    return all;
  }
  std::vector<Tensor> run(const std::vector<Tensor>& a) const {
    const RnnResult r = rnn_layer(mode, a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    const auto grads = grad({(r.y * r.y).sum() + r.hn.sum()}, {a[0], a[4]});
    return {r.y.detach(), grads[0], grads[1]};
  }
  std::vector<Tensor> run(Device device) const { return run(arguments(device)); }
};

void expect_near(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const Tensor expected = b[i].to(kCpu);
    EXPECT_LE((a[i].to(kCpu) - expected).abs().max().item<double>(),
              1e-5 * std::max(1.0, expected.abs().max().item<double>()))
        << "result " << i;
  }
}

/// Sizes that no other layer of this process has: cuDNN's answer for a layer is kept.
int64_t fresh() {
  static int64_t hidden = 20;
  return ++hidden;
}

struct EmulatedLayers : testing::Test {
  void TearDown() override { settings() = {}; }
  const Device gpu{DeviceType::kCuda, 0};
};

TEST_F(EmulatedLayers, run_on_cudnn) {
  for (const RnnMode mode : kModes) {
    const auto before = counts();
    const Layer layer{mode};
    expect_near(layer.run(gpu), layer.run(kCpu));
    EXPECT_EQ(counts().rnn_training, before.rnn_training + 1);
    EXPECT_EQ(counts().rnn_backward_data, before.rnn_backward_data + 1);
    EXPECT_EQ(counts().rnn_backward_weights, before.rnn_backward_weights + 1);
    const NoGrad inference;
    const auto a = layer.arguments(gpu);
    rnn_layer(mode, a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    EXPECT_EQ(counts().rnn_inference, before.rnn_inference + 1);
  }
}

TEST_F(EmulatedLayers, without_wanted_weights_only_the_data_go_backward) {
  const auto before = counts();
  const Layer layer;
  const auto a = layer.arguments(gpu), host = layer.arguments(kCpu);
  const auto dx = [](const std::vector<Tensor>& v) {
    return grad({rnn_layer(RnnMode::kLstm, v[0], v[1].detach(), v[2].detach(), v[3].detach(), v[4].detach(),
                           v[5].detach(), v[6].detach())
                     .hn.sum()},
                {v[0]});
  };
  expect_near(dx(a), dx(host));
  EXPECT_EQ(counts().rnn_backward_data, before.rnn_backward_data + 1);
  EXPECT_EQ(counts().rnn_backward_weights, before.rnn_backward_weights);
}

TEST_F(EmulatedLayers, a_refused_layer_runs_on_the_own_cell) {
  for (const char* call :
       {"cudnnSetRNNDescriptor_v8", "cudnnSetRNNDataDescriptor", "cudnnGetRNNWeightSpaceSize",
        "cudnnGetRNNTempSpaceSizes", "cudnnSetTensorNdDescriptor", "cudnnSetDropoutDescriptor"}) {
    settings().refuses = call;
    const auto before = counts();
    const Layer layer{.hidden = fresh()};
    expect_near(layer.run(gpu), layer.run(kCpu));
    settings() = {};
    expect_near(layer.run(gpu), layer.run(kCpu));  // still
    EXPECT_EQ(counts().rnn_training, before.rnn_training) << call;
    expect_near(Layer{}.run(gpu), Layer{}.run(kCpu));
    EXPECT_EQ(counts().rnn_training, before.rnn_training + 1) << call;  // others are taken
  }
}

TEST_F(EmulatedLayers, a_call_that_fails_is_named_and_the_next_one_works) {
  for (const char* call : {"cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8",
                           "cudnnGetRNNWeightParams", "cudnnSetStream"}) {
    settings().fails = call;
    EXPECT_TRUE(test::has(test::error_of<CudaError>([&] { Layer{}.run(gpu); }),
                          str(call, ": CUDNN_STATUS_INTERNAL_ERROR")));
    settings() = {};
    expect_near(Layer{}.run(gpu), Layer{}.run(kCpu));
  }
}

TEST_F(EmulatedLayers, descriptors_of_dropped_plans_are_destroyed) {
  set_use_cudnn(true);
  Context context;
  const auto ask = [&](int64_t steps) {
    const auto a = Layer{.steps = steps, .batch = 1, .inputs = 1, .hidden = 1}.arguments(gpu);
    const auto view = [](const Tensor& t) { return t.view_of(); };
    return backend(gpu)
        .rnn_reserve(context, {},
                     {view(a[0]), view(a[1]), view(a[2]), view(a[3]), view(a[4]), view(a[5]), view(a[6])})
        .size();
  };
  for (int64_t steps = 1; steps <= 300; ++steps) ASSERT_EQ(ask(steps), 1);
  EXPECT_LE(counts().live, 256 * 7);
}

TEST_F(EmulatedLayers, a_training_step_may_be_recorded_from_the_first_call_on) {
  for (const Device device : {Device("cuda:1"), gpu})
    for (const RnnMode mode : kModes) {
      auto before = counts();
      const Layer layer{.mode = mode, .hidden = fresh()};
      auto a = layer.arguments(device);
      std::vector<Tensor> out;
      Graph graph(device);
      graph.capture([&] {
        before = counts();
        out = layer.run(a);
      });
      EXPECT_EQ(counts().rnn_training, before.rnn_training + 1);
      auto host = layer.arguments(kCpu);
      for (const double factor : {1.0, 0.5}) {
        {
          const NoGrad quiet;
          a[0].copy_((layer.arguments(kCpu)[0] * factor).to(device));
          host[0].copy_(layer.arguments(kCpu)[0] * factor);
        }
        graph.replay();
        expect_near(out, layer.run(host));
        graph.replay();  // the output of a replay is no input of the next
        expect_near(out, layer.run(host));
      }
    }
}

TEST_F(EmulatedLayers, a_recording_that_cannot_ask_cudnn_does_not_decide_for_later_calls) {
  const Layer layer{.hidden = fresh()};
  const auto a = layer.arguments(gpu);
  std::vector<Tensor> out;
  {
    settings().refuses = "cudnnSetRNNDescriptor_v8";
    Graph graph(gpu);
    graph.capture([&] { out = layer.run(a); });
    graph.replay();
    expect_near(out, layer.run(kCpu));
    settings() = {};
  }
  const auto before = counts();
  layer.run(gpu);
  EXPECT_EQ(counts().rnn_training, before.rnn_training + 1);
}

TEST_F(EmulatedLayers, of_other_threads_take_no_part_in_a_recording) {
  const Layer layer{.hidden = fresh()};
  const auto a = layer.arguments(gpu);
  const auto expected = layer.run(kCpu);
  const auto elsewhere = [&] {  // with a plan that is made there, and with one that the recording has
    std::async(std::launch::async, [&] {
      const Layer other{.hidden = fresh()};
      expect_near(other.run(gpu), other.run(kCpu));
      expect_near(layer.run(gpu), expected);
    }).get();
  };
  std::vector<Tensor> first, second;
  Graph graph(gpu);
  graph.capture([&] {
    first = layer.run(a);
    elsewhere();
    second = layer.run(a);
  });
  elsewhere();
  graph.replay();
  expect_near(first, expected);
  expect_near(second, expected);
}

/// For the objects that the first call of a device makes: a process in which there was none.
#define IN_A_PROCESS(...)                                \
  GTEST_FLAG_SET(death_test_style, "threadsafe");        \
  EXPECT_EXIT(                                           \
      {                                                  \
        __VA_ARGS__;                                     \
        std::_Exit(testing::Test::HasFailure() ? 1 : 0); \
      },                                                 \
      testing::ExitedWithCode(0), "")

int64_t trained_by_cudnn(const Layer& layer, Device device) {
  const int64_t before = counts().rnn_training;
  expect_near(layer.run(device), layer.run(kCpu));
  return counts().rnn_training - before;
}

TEST_F(EmulatedLayers, a_handle_without_room_is_asked_for_once_more_and_by_the_next_call) {
  IN_A_PROCESS({
    settings().full = "cudnnCreate";
    settings().full_calls = 1;
    EXPECT_EQ(trained_by_cudnn({}, gpu), 1);
    settings().full_calls = 2;
    EXPECT_EQ(trained_by_cudnn({}, "cuda:1"), 0);
    EXPECT_EQ(settings().full_calls, 0);
    EXPECT_EQ(trained_by_cudnn({}, "cuda:1"), 1);
  });
}

TEST_F(EmulatedLayers, a_recording_without_room_for_a_handle_takes_the_own_cell) {
  IN_A_PROCESS({
    const Layer layer;
    EXPECT_EQ(trained_by_cudnn(layer, gpu), 1);
    const auto a = layer.arguments(gpu);
    settings().full = "cudnnCreate";
    settings().full_calls = 3;  // two before the recording, one in it
    for (const int64_t expected : {0, 1}) {
      auto before = counts();
      std::vector<Tensor> out;
      Graph graph(gpu);
      graph.capture([&] {
        before = counts();
        out = layer.run(a);
      });
      EXPECT_EQ(counts().rnn_training, before.rnn_training + expected);
      graph.replay();
      expect_near(out, layer.run(kCpu));
    }
  });
}

TEST_F(EmulatedLayers, a_recording_after_a_step_makes_no_first_call_on_a_handle) {
  IN_A_PROCESS({
    settings().new_handles_wait = true;
    const Layer layer;
    EXPECT_EQ(trained_by_cudnn(layer, gpu), 1);
    const auto a = layer.arguments(gpu);
    for (int i = 0; i < 2; ++i) {
      auto before = counts();
      std::vector<Tensor> out;
      Graph graph(gpu);
      graph.capture([&] {
        before = counts();
        out = layer.run(a);
      });
      EXPECT_EQ(counts().rnn_training, before.rnn_training + 1);
      graph.replay();
      expect_near(out, layer.run(kCpu));
    }
  });
}

TEST_F(EmulatedLayers, a_recording_that_a_new_handle_spoils_names_the_call) {
  IN_A_PROCESS({
    settings().new_handles_wait = true;
    const Layer layer;
    const auto a = layer.arguments(gpu);
    Graph graph(gpu);
    const std::string error = test::error_of<CudaError>([&] { graph.capture([&] { layer.run(a); }); });
    EXPECT_TRUE(test::has(error, "cudnnCreate")) << error;
    EXPECT_EQ(trained_by_cudnn(layer, gpu), 1);
    graph.capture([&] { layer.run(a); });
  });
}

TEST_F(EmulatedLayers, what_finds_no_room_once_is_not_refused_for_good) {
  for (const char* const call :
       {"cudnnCreateRNNDescriptor", "cudnnSetDropoutDescriptor", "cudnnGetRNNTempSpaceSizes"}) {
    const Layer layer{.hidden = fresh()};
    settings().full = call;
    settings().full_calls = 2;
    EXPECT_EQ(trained_by_cudnn(layer, gpu), 0) << call;
    settings().full_calls = 0;
    EXPECT_EQ(trained_by_cudnn(layer, gpu), 1) << call;
  }
}

TEST_F(EmulatedLayers, a_call_without_room_is_made_once_more_and_then_an_error) {
  const Layer layer{.hidden = fresh()};
  for (const char* const call :
       {"cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"}) {
    settings().full = call;
    settings().full_calls = 1;
    EXPECT_EQ(trained_by_cudnn(layer, gpu), 1) << call;
    EXPECT_EQ(settings().full_calls, 0) << call;
    settings().full_calls = 2;
    EXPECT_TRUE(test::has(test::error_of<OutOfMemoryError>([&] { layer.run(gpu); }), call));
    EXPECT_EQ(trained_by_cudnn(layer, gpu), 1) << call;
  }
}

TEST_F(EmulatedLayers, keep_to_their_streams) {
  const Layer layer{.hidden = fresh()};
  const auto a = layer.arguments(gpu);
  const auto expected = layer.run(kCpu);
  const Stream side(gpu);
  synchronize(gpu);
  const simt::Deferred late;
  Tensor x = (a[0].detach() * 2);
  side.wait_stream(current_stream(gpu));
  std::vector<Tensor> out;
  {
    const StreamGuard guard(side);
    auto b = a;
    b[0] = (x * 0.5).requires_grad_();
    out = layer.run(b);
    side.synchronize();
    expect_near(out, expected);
  }
}

// The last of its file: from here on this device's layers run on the own cell.
TEST_F(EmulatedLayers, where_cudnn_cannot_start_the_own_cell_does_the_work) {
  const Device other("cuda:1");
  settings().fails = "cudnnCreateRNNDescriptor";
  const auto before = counts();
  const Layer layer{.hidden = fresh()};
  expect_near(layer.run(other), layer.run(kCpu));
  settings() = {};
  const Layer second{.hidden = fresh()};
  expect_near(second.run(other), second.run(kCpu));
  EXPECT_EQ(counts().rnn_training, before.rnn_training);
  EXPECT_EQ(counts().live, before.live);
}

/// Run by itself, with no library to be found.
TEST(CudnnMissing, the_own_cell_does_the_work) {
  const Layer layer;
  const auto before = counts();
  expect_near(layer.run("cuda:0"), layer.run(kCpu));
  EXPECT_EQ(counts().rnn_training, before.rnn_training);
}

}  // namespace
}  // namespace weft::cuda
