// Recorded graphs of tensor/cuda.h, and training steps replayed from one.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "cuda/shared/device_test.h"
#include "support/errors.h"

namespace weft::test {
namespace {

using std::vector;

DEVICE_TEST(Graph, a_replay_does_what_was_recorded_with_what_lies_there_now) {
  Tensor x = ones({3}, {.device = gpu});
  Tensor y;
  cuda::Graph graph(gpu);
  EXPECT_THROW(graph.replay(), ValueError);
  graph.capture([&] { y = (x * 2 + 1).relu(); });
  EXPECT_TRUE(graph.recorded());
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), (vector<float>{3, 3, 3}));
  x.copy_(tensor({1., -5., 4.}));
  const Tensor unrelated = zeros({3}, {.device = gpu});  // not on the graph's memory
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), (vector<float>{3, 0, 9}));
  EXPECT_EQ(unrelated.to_vector<float>(), (vector<float>{0, 0, 0}));
  EXPECT_THROW(graph.begin(), ValueError);
  graph.reset();
  EXPECT_FALSE(graph.recorded());
  EXPECT_EQ(y.to_vector<float>(), (vector<float>{3, 0, 9}));
}

DEVICE_TEST(Graph, a_concatenation_is_replayed_with_what_its_inputs_hold_then) {
  for (const int64_t count : {2, 60}) {
    vector<Tensor> xs;
    vector<float> expected;
    for (int64_t i = 0; i < count; ++i) xs.push_back(zeros({1 + i % 3}, {.device = gpu}));
    Tensor y;
    cuda::Graph graph(gpu);
    graph.capture([&] { y = cat(xs) + 0; });
    for (int64_t i = 0; i < count; ++i) {
      xs[static_cast<size_t>(i)].fill_(i + 1);
      expected.insert(expected.end(), static_cast<size_t>(1 + i % 3), static_cast<float>(i + 1));
    }
    graph.replay();
    EXPECT_EQ(y.to_vector<float>(), expected) << count;
  }
}

DEVICE_TEST(Graph, waiting_inside_a_recording_fails_and_leaves_the_device_usable) {
  const Tensor x = ones({3}, {.device = gpu});
  cuda::Graph graph(gpu);
  EXPECT_THROW(graph.capture([&] { (x + 1).sum().item<float>(); }), CudaError);
  EXPECT_FALSE(graph.recorded());
  EXPECT_EQ(cuda::current_stream(gpu), cuda::default_stream(gpu));
  EXPECT_THROW(graph.capture([] { throw ShapeError("mine"); }), ShapeError);
  cuda::Graph other(gpu);
  graph.begin();
  EXPECT_THROW(other.begin(), CudaError);
  const Tensor y = x + 1;
  graph.end();
  EXPECT_THROW(graph.end(), ValueError);
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), (vector<float>{2, 2, 2}));
}

DEVICE_TEST(Graph, another_thread_may_wait_for_the_device_meanwhile) {
  const Tensor x = ones({3}, {.device = gpu});
  const cuda::Stream side(gpu), other(gpu);
  Tensor y;
  cuda::Graph graph(gpu);
  graph.capture([&] {
    const cuda::Stream main = cuda::current_stream(gpu);
    side.wait_stream(main);
    {
      const cuda::StreamGuard guard(side);
      y = x * 5;
    }
    std::thread([&] {
      const Late late;
      for (const cuda::Stream& stream : {cuda::default_stream(gpu), other}) {
        const cuda::StreamGuard guard(stream);
        const Tensor z = x + 1;
        const cuda::Event done = stream.record_event();
        EXPECT_NO_THROW(cuda::synchronize(gpu));
        EXPECT_TRUE(done.query());
      }
    }).join();
    main.wait_stream(side);
    y = y + 1;
  });
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), (vector<float>{6, 6, 6}));
}

DEVICE_TEST(Graph, a_refused_wait_for_the_device_leaves_the_recording_as_it_is) {
  const Tensor x = ones({3}, {.device = gpu});
  Tensor y;
  cuda::Graph graph(gpu);
  graph.capture([&] {
    const std::string text = error_of<CudaError>([&] { cuda::synchronize(gpu); });
    EXPECT_TRUE(has(text, "records a graph on cuda:0")) << text;
    y = x + 1;
  });
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), (vector<float>{2, 2, 2}));
}

DEVICE_TEST(Graph, the_default_stream_takes_part_in_none) {
  Accelerator& device = accelerator(gpu);
  for (void* const stream : {static_cast<void*>(nullptr), device.default_stream()})
    EXPECT_TRUE(has(error_of<ValueError>([&] { device.begin_capture(stream); }), "make one with new_stream"));
  const Tensor x = ones({3}, {.device = gpu});
  Tensor y;
  cuda::Graph graph(gpu);
  graph.capture([&] {
    y = x + 1;
    const cuda::Event inside = cuda::current_stream(gpu).record_event();
    EXPECT_TRUE(has(error_of<CudaError>([&] { cuda::default_stream(gpu).wait_event(inside); }),
                    "takes part in no recording"));
    y = y * 2;
  });
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), (vector<float>{4, 4, 4}));
}

DEVICE_TEST(Graph, a_side_stream_that_waits_takes_part) {
  const Tensor x = ones({3}, {.device = gpu});
  const cuda::Stream side(gpu);
  Tensor y;
  cuda::Graph graph(gpu);
  graph.capture([&] {
    const cuda::Stream main = cuda::current_stream(gpu);
    side.wait_stream(main);
    {
      const cuda::StreamGuard guard(side);
      y = x * 5;
    }
    main.wait_stream(side);
    y = y + 1;
  });
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), (vector<float>{6, 6, 6}));
}

DEVICE_TEST(Graph, a_side_stream_that_is_not_joined_back_fails_and_leaves_the_device_usable) {
  const Tensor x = ones({3}, {.device = gpu});
  const cuda::Stream side(gpu);
  Tensor y;
  const auto record = [&](bool joined) {
    const cuda::Stream main = cuda::current_stream(gpu);
    side.wait_stream(main);
    {
      const cuda::StreamGuard guard(side);
      y = x * 5;
    }
    if (joined) main.wait_stream(side);
  };
  cuda::Graph graph(gpu);
  EXPECT_THROW(graph.capture([&] { record(false); }), CudaError);
  EXPECT_FALSE(graph.recorded());
  EXPECT_EQ(cuda::current_stream(gpu), cuda::default_stream(gpu));
  graph.capture([&] { record(true); });
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), (vector<float>{5, 5, 5}));
}

DEVICE_TEST(Graph, each_replay_draws_new_numbers_and_the_first_draws_the_recordings_own) {
  Generator g(9), plain(9);
  Tensor y;
  cuda::Graph graph(gpu);
  graph.capture([&] { y = rand({8}, {.device = gpu}, &g); });
  const auto draw = [&] {
    graph.replay();
    return y.to_vector<float>();
  };
  const vector<float> first = draw(), second = draw(), third = draw();
  EXPECT_EQ(first, rand({8}, {}, &plain).to_vector<float>());
  EXPECT_NE(second, first);
  EXPECT_NE(third, second);
  EXPECT_EQ(rand({8}, {.device = gpu}, &g).to_vector<float>(), rand({8}, {}, &plain).to_vector<float>());
}

/// Losses of six steps over changing batches and rates; `captured`: from the third on replayed from a graph.
template <class Optimizer>
vector<float> losses_of_steps(Device gpu, bool captured, const typename Optimizer::Options& options) {
  Net net;
  net.to(gpu);
  Optimizer optimizer(net.parameters(), options);
  Tensor x = zeros({6, 4}, {.device = gpu}), y = zeros({6, 3}, {.device = gpu}), loss;
  const auto step = [&] {
    net.zero_grad();
    loss = net.loss(x, y);
    loss.backward();
    optim::clip_grad_norm_async(net.parameters(), 0.5);
    optimizer.step();
  };
  vector<float> losses;
  cuda::Graph graph(gpu);
  for (int i = 0; i < 6; ++i) {
    Generator g(static_cast<uint64_t>(i));
    x.copy_(rand({6, 4}, {}, &g));
    y.copy_(rand({6, 3}, {}, &g));
    if (i == 4) optimizer.set_lr(options.lr / 4);
    if (captured && i == 2) graph.capture(step);
    if (graph.recorded()) graph.replay();
    else step();
    losses.push_back(loss.item<float>());
  }
  for (size_t i = 0; i < net.parameters().size(); ++i) EXPECT_EQ(optimizer.steps(i), 6);
  return losses;
}

DEVICE_TEST(Graph, a_captured_training_step_takes_the_course_of_plain_steps) {
  EXPECT_EQ(losses_of_steps<optim::SGD>(gpu, true, {.lr = 0.1, .momentum = 0.9}),
            losses_of_steps<optim::SGD>(gpu, false, {.lr = 0.1, .momentum = 0.9}));
  EXPECT_EQ(losses_of_steps<optim::Adam>(gpu, true, {.lr = 0.05}),
            losses_of_steps<optim::Adam>(gpu, false, {.lr = 0.05}));
}

DEVICE_TEST(Graph, replays_on_several_streams_take_each_its_own_rate) {
  const auto after = [&](bool replayed) {
    Net net;
    net.to(gpu);
    net.loss(ones({2, 4}, {.device = gpu}), zeros({2, 3}, {.device = gpu})).backward();
    optim::Adam adam(net.parameters(), {.lr = 0.1});
    adam.step();
    const cuda::Stream streams[] = {cuda::Stream(gpu), cuda::Stream(gpu), cuda::Stream(gpu)};
    cuda::Graph graph(gpu);
    if (replayed) graph.capture([&] { adam.step(); });
    cuda::synchronize(gpu);
    {
      const Late late;
      for (size_t i = 0; i < 6; ++i) {
        adam.set_lr(0.4 / static_cast<double>(1 + i));
        const cuda::StreamGuard guard(replayed ? streams[i % 3] : cuda::default_stream(gpu));
        if (replayed) graph.replay();
        else adam.step();
      }
      if (replayed) streams[2].synchronize();
    }
    cuda::synchronize(gpu);
    return net.parameters()[0].to_vector<float>();
  };
  EXPECT_EQ(after(true), after(false));
}

DEVICE_TEST(Graph, a_step_without_state_is_not_recorded) {
  Net net;
  net.to(gpu);
  net.loss(ones({2, 4}, {.device = gpu}), zeros({2, 3}, {.device = gpu})).backward();
  optim::SGD plain(net.parameters(), {.lr = 0.1}), momentum(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  cuda::Graph graph(gpu);
  EXPECT_THROW(graph.capture([&] { momentum.step(); }), ValueError);
  EXPECT_EQ(momentum.steps(0), 0);
  graph.capture([&] { plain.step(); });
  EXPECT_EQ(plain.steps(0), 0);  // recorded, not taken
  const vector<float> before = net.parameters()[0].to_vector<float>();
  graph.replay();
  EXPECT_EQ(plain.steps(0), 1);
  EXPECT_NE(net.parameters()[0].to_vector<float>(), before);
}

DEVICE_TEST(Graph, what_a_recorded_step_keeps_is_memory_in_use) {
  Net net;
  net.to(gpu);
  net.loss(ones({2, 4}, {.device = gpu}), zeros({2, 3}, {.device = gpu})).backward();
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  const auto in_use = [&](bool step) {
    const int64_t before = cuda::memory_stats(gpu).in_use;
    cuda::Graph graph(gpu);
    graph.capture([&] {
      if (step) sgd.step();
    });
    const int64_t held = cuda::memory_stats(gpu).in_use - before;
    graph.reset();
    EXPECT_EQ(cuda::memory_stats(gpu).in_use, before);
    return held;
  };
  EXPECT_GT(in_use(true), in_use(false));
}

DEVICE_TEST(Graph, a_replay_says_when_the_optimizer_is_another_or_gone) {
  Net net;
  net.to(gpu);
  net.loss(ones({2, 4}, {.device = gpu}), zeros({2, 3}, {.device = gpu})).backward();
  auto sgd = std::make_unique<optim::SGD>(net.parameters(), optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
  sgd->step();
  cuda::Graph graph(gpu);
  graph.capture([&] { sgd->step(); });
  graph.replay();
  EXPECT_EQ(sgd->steps(0), 2);
  const auto state = sgd->state_dict();
  const vector<float> before = net.parameters()[0].to_vector<float>();
  sgd->load_state_dict(state);
  EXPECT_THROW(graph.replay(), ValueError);
  EXPECT_EQ(sgd->steps(0), 2);
  sgd.reset();
  EXPECT_THROW(graph.replay(), ValueError);
  EXPECT_EQ(net.parameters()[0].to_vector<float>(), before);
}

DEVICE_TEST(Graph, dropout_in_a_captured_step_is_the_same_forward_and_backward) {
  Tensor x = ones({64}, {.device = gpu, .requires_grad = true});
  Generator g(4);
  Tensor y;
  const auto step = [&] {
    x.zero_grad();
    y = dropout(x, 0.5, true, &g);
    y.sum().backward();
  };
  step();
  cuda::Graph graph(gpu);
  graph.capture(step);
  vector<float> before;
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    EXPECT_EQ(x.grad().to_vector<float>(), y.to_vector<float>());  // 2 or 0 in both
    EXPECT_NE(y.to_vector<float>(), before);
    before = y.to_vector<float>();
  }
}

DEVICE_TEST(Graph, autocast_around_a_recording_casts_the_parameters_anew_in_each_replay) {
  Tensor w = full({4, 4}, 1.0, {.device = gpu}).requires_grad_(), y;
  const Tensor x = ones({2, 4}, {.device = gpu});
  cuda::Graph graph(gpu);
  {
    const Autocast mixed(kBFloat16);
    y = linear(x, w);
    graph.capture([&] { y = linear(x, w); });
    y = Tensor(y);
  }
  {
    NoGrad quiet;
    w.fill_(2);
  }
  graph.replay();
  EXPECT_EQ(y.to(kFloat32).to_vector<float>(), vector<float>(8, 8));
}

DEVICE_TEST(Graph, weighted_draws_and_checks_of_their_weights_can_be_recorded) {
  Tensor weights = tensor({1., 0., 3.}).to(gpu), chances = tensor({0., 1.}).to(gpu), drawn, hit;
  cuda::Graph graph(gpu);
  graph.capture([&] {
    drawn = multinomial(weights, 5, true);
    hit = bernoulli(chances);
  });
  graph.replay();
  EXPECT_EQ(hit.to_vector<double>(), (vector<double>{0, 1}));
  for (const int64_t k : drawn.to_vector<int64_t>()) EXPECT_NE(k, 1);
  EXPECT_THROW(bernoulli(tensor({0.5, 1.5}).to(gpu)).to(kCpu), ValueError);
  EXPECT_THROW(bernoulli(tensor({0.5, std::nan("")}).to(gpu)).to(kCpu), ValueError);
  EXPECT_THROW(multinomial(tensor({1., -1.}).to(gpu), 1, true).to(kCpu), ValueError);
}

}  // namespace
}  // namespace weft::test
