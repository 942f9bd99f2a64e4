// Streams, events and recorded graphs of tensor/cuda.h, and training on the emulated device, step by step and replayed.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "support/simt/device.h"
#include "support/simt/thread.h"

namespace weft {
namespace {

using std::vector;

struct SimtStream : testing::Test {
  SimtStream() {
    cuda::simt::install();
    cuda::simt::settings() = cuda::simt::settings_of_environment();
  }
  ~SimtStream() override { cuda::simt::settings() = cuda::simt::settings_of_environment(); }
  const Device gpu = "cuda";
};
using SimtGraph = SimtStream;

TEST_F(SimtStream, a_guard_sets_the_current_stream_of_its_thread_and_device) {
  const cuda::Stream a(gpu), b(gpu, true), other("cuda:1");
  EXPECT_EQ(cuda::current_stream(gpu), cuda::default_stream(gpu));
  {
    const cuda::StreamGuard outer(a);
    EXPECT_EQ(cuda::current_stream(gpu), a);
    EXPECT_EQ(cuda::current_stream("cuda:1"), cuda::default_stream("cuda:1"));
    {
      const cuda::StreamGuard inner(b), elsewhere(other);
      EXPECT_EQ(cuda::current_stream(gpu), b);
      EXPECT_EQ(cuda::current_stream("cuda:1"), other);
      EXPECT_EQ((ones({3}, {.device = gpu}) * 2).sum().item<float>(), 6);
    }
    EXPECT_EQ(cuda::current_stream(gpu), a);
    std::thread([&] { EXPECT_EQ(cuda::current_stream(gpu), cuda::default_stream(gpu)); }).join();
  }
  EXPECT_EQ(cuda::current_stream(gpu), cuda::default_stream(gpu));
  EXPECT_FALSE(a == b);
}

TEST_F(SimtStream, handles_come_back_for_the_next_stream) {
  void* first;
  {
    const cuda::Stream a(gpu);
    first = a.handle();
    const cuda::Stream copy = a;
    EXPECT_EQ(copy, a);
  }
  const cuda::Stream again(gpu), fresh(gpu);
  EXPECT_EQ(again.handle(), first);
  EXPECT_NE(fresh.handle(), first);
}

TEST_F(SimtStream, events_tell_what_is_done) {
  const cuda::Stream a(gpu), b(gpu);
  cuda::Event start(gpu, true), end(gpu, true), plain(gpu);
  start.record(a);
  end.record(a);
  EXPECT_GE(start.elapsed_time(end), 0);
  EXPECT_THROW(start.elapsed_time(plain), ValueError);
  cuda::simt::settings().hold_events = true;
  EXPECT_FALSE(end.query());
  EXPECT_FALSE(a.query());
  b.wait_event(end);
  b.wait_stream(a);
  end.synchronize();
  EXPECT_TRUE(end.query());
  a.synchronize();
  EXPECT_THROW(plain.record(cuda::Stream("cuda:1")), DeviceError);
  cuda::Event moved = std::move(end);
  EXPECT_TRUE(moved.query());
}

TEST_F(SimtStream, a_tensor_is_told_of_the_streams_that_use_it) {
  const cuda::Stream side(gpu);
  const Tensor x = ones({4}, {.device = gpu});
  cuda::record_stream(x, side);
  EXPECT_THROW(cuda::record_stream(x, cuda::Stream("cuda:1")), DeviceError);
  EXPECT_THROW(cuda::record_stream(ones({4}), side), DeviceError);
}

/// Two layers with dropout between, and their data.
struct Net : nn::Module {
  nn::Linear first{4, 5}, second{5, 3};
  double p;
  explicit Net(double dropout = 0) : p(dropout) {
    add("first", first);
    add("second", second);
    Generator g(3);
    NoGrad quiet;
    for (Tensor& t : parameters()) t.copy_(rand(t.sizes(), {}, &g) - 0.5);
    seed(11);
  }
  Tensor loss(const Tensor& x, const Tensor& y) {
    return (second.forward(dropout(tanh(first.forward(x)), p, true, &generator())) - y).square().mean();
  }
};

template <class Make> vector<float> train(Device device, int steps, const Make& make) {
  Net net;
  net.to(device);
  auto optimizer = make(net.parameters());
  Generator g(5);
  vector<float> losses;
  for (int i = 0; i < steps; ++i) {
    const Tensor x = rand({6, 4}, {.device = device}, &g), y = rand({6, 3}, {.device = device}, &g);
    optimizer.zero_grad();
    const Tensor loss = net.loss(x, y);
    loss.backward();
    optim::clip_grad_norm(net.parameters(), 0.5);
    optimizer.step();
    losses.push_back(loss.item<float>());
  }
  for (const auto& [name, tensor] : optimizer.state_dict()) {
    if (tensor.dim() == 0) continue;  // the count of steps stays on the CPU
    EXPECT_EQ(tensor.device(), device) << name;
  }
  return losses;
}

TEST_F(SimtStream, training_takes_the_cpus_course_with_its_state_on_the_device) {
  const auto compare = [&](const auto& make) {
    const vector<float> here = train(kCpu, 6, make), there = train(gpu, 6, make);
    for (size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(there[i], here[i], 2e-6) << i;
  };
  compare([](const vector<Tensor>& p) { return optim::SGD(p, {.lr = 0.1, .momentum = 0.9}); });
  compare([](const vector<Tensor>& p) { return optim::Adam(p, {.lr = 0.01}); });
}

TEST_F(SimtStream, a_bad_index_is_told_to_the_thread_that_issued_it) {
  const Tensor table = ones({4, 2}, {.device = gpu}), good = from_vector<int64_t>({1, 2}, {2}, gpu), bad = from_vector<int64_t>({1, 9}, {2}, gpu);
  const cuda::simt::Deferred later;
  std::thread([&] {
    const Tensor y = embedding(table, bad);
    cuda::Event done(gpu);
    done.record();
    std::thread([&] { EXPECT_EQ(embedding(table, good).sum().item<float>(), 4); }).join();  // it waits for all, but the fault is not its own
    EXPECT_THROW(done.synchronize(), IndexError);
    done.synchronize();
  }).join();
  std::thread([&] { embedding(table, bad); }).join();  // nobody waits before it ends
  EXPECT_THROW(embedding(table, good).sum().item<float>(), IndexError);
  EXPECT_EQ(embedding(table, good).sum().item<float>(), 4);
}

TEST_F(SimtStream, a_report_that_is_still_written_stays_for_whoever_waits_for_its_kernel) {
  cuda::Fault* const mine = cuda::simt::device().fault();
  mine->kind = cuda::Fault::kClaimed;
  mine->value = 9;
  cuda::synchronize(gpu);
  EXPECT_EQ(mine->kind, cuda::Fault::kClaimed);
  EXPECT_EQ(mine->value, 9);
  mine->kind = cuda::Fault::kIndex;
  EXPECT_THROW(cuda::synchronize(gpu), IndexError);
  EXPECT_EQ(mine->kind, cuda::Fault::kNone);
}

TEST_F(SimtStream, a_backward_on_another_stream_keeps_what_forward_saved) {
  const cuda::Stream side(gpu);
  Tensor x = full({1024}, 3.0, {.device = gpu}).requires_grad_(), loss;
  const cuda::simt::Deferred later;
  {
    const cuda::StreamGuard guard(side);
    const Tensor y = x * 2;
    loss = (y * y).sum();
  }
  cuda::current_stream(gpu).wait_stream(side);
  loss.backward();
  loss = Tensor();
  Tensor over;
  {
    const cuda::StreamGuard guard(side);  // what the backward let go must not come back here while it still runs
    for (int i = 0; i < 4; ++i) over = full({1024}, -1.0, {.device = gpu});
    side.synchronize();
  }
  EXPECT_EQ(x.grad().to_vector<float>(), vector<float>(1024, 24));
}

TEST_F(SimtStream, optimizer_state_follows_a_moved_parameter) {
  Net net;
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  const auto step = [&](Device device) {
    net.zero_grad();
    net.loss(ones({2, 4}, {.device = device}), zeros({2, 3}, {.device = device})).backward();
    sgd.step();
  };
  step(kCpu);
  net.to(gpu);
  step(gpu);
  step(gpu);
  for (const auto& [name, tensor] : sgd.state_dict()) {
    if (tensor.dim() == 0) continue;
    EXPECT_EQ(tensor.device(), gpu) << name;
  }
  net.zero_grad();
  vector<Tensor> grads;
  for (const Tensor& p : net.parameters()) grads.push_back(zeros(p.sizes()));
  EXPECT_THROW(sgd.step(grads), DeviceError);
}

TEST_F(SimtGraph, a_replay_does_what_was_recorded_with_what_lies_there_now) {
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

TEST_F(SimtGraph, letting_it_go_waits_for_every_stream_of_a_replay) {
  const cuda::Stream a(gpu), b(gpu);
  const Tensor x = ones({3}, {.device = gpu});
  Tensor y, read;
  cuda::Graph graph(gpu);
  graph.capture([&] { y = x * 2; });
  const cuda::simt::Deferred later;
  for (const cuda::Stream& each : {a, b}) {
    const cuda::StreamGuard guard(each);
    graph.replay();
    if (each == a) read = y + 1;  // behind the replay, and not the last one's stream
  }
  EXPECT_FALSE(a.query());
  EXPECT_FALSE(b.query());
  graph.reset();
  EXPECT_TRUE(a.query());
  EXPECT_TRUE(b.query());
  EXPECT_EQ(read.to_vector<float>(), (vector<float>{3, 3, 3}));
}

TEST_F(SimtGraph, cached_memory_does_not_keep_a_recording_from_getting_its_own) {
  constexpr size_t kMega = size_t{1} << 20;
  cuda::empty_cache(gpu);
  size_t available = 0, total = 0;
  cuda::runtime::memory_info(&available, &total);
  cuda::simt::settings().device_bytes = total - available + 5 * kMega;
  const auto make = [&] { return zeros({static_cast<int64_t>(kMega / 2)}, {.device = gpu}); };  // 2 MiB; a recording has as much for small things
  Tensor x;
  {
    cuda::Graph first(gpu);
    first.capture([&] { x = make(); });
  }
  x = Tensor();  // cached, and of no use to a recording
  EXPECT_GE(cuda::memory_stats(gpu).cached, static_cast<int64_t>(2 * kMega));
  cuda::Graph second(gpu);
  second.capture([&] { x = make(); });
  EXPECT_TRUE(second.recorded());
}

TEST_F(SimtGraph, waiting_inside_a_recording_fails_and_leaves_the_device_usable) {
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

TEST_F(SimtGraph, a_side_stream_that_waits_takes_part) {
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

TEST_F(SimtGraph, each_replay_draws_new_numbers_and_the_first_draws_the_recordings_own) {
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
template <class Optimizer> vector<float> course(Device gpu, bool captured, const typename Optimizer::Options& options) {
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

TEST_F(SimtGraph, a_captured_training_step_takes_the_course_of_plain_steps) {
  EXPECT_EQ(course<optim::SGD>(gpu, true, {.lr = 0.1, .momentum = 0.9}), course<optim::SGD>(gpu, false, {.lr = 0.1, .momentum = 0.9}));
  EXPECT_EQ(course<optim::Adam>(gpu, true, {.lr = 0.05}), course<optim::Adam>(gpu, false, {.lr = 0.05}));
}

TEST_F(SimtGraph, a_step_without_state_is_not_recorded) {
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

TEST_F(SimtGraph, a_replay_says_when_the_optimizer_is_another_or_gone) {
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

TEST_F(SimtGraph, dropout_in_a_captured_step_is_the_same_forward_and_backward) {
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

TEST_F(SimtGraph, autocast_around_a_recording_casts_the_parameters_anew_in_each_replay) {
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

TEST_F(SimtGraph, weighted_draws_and_checks_of_their_weights_can_be_recorded) {
  Tensor weights = tensor({1., 0., 3.}).to(gpu), chances = tensor({0., 1.}).to(gpu), drawn, hit;
  cuda::Graph graph(gpu);
  graph.capture([&] {
    drawn = multinomial(weights, 5, true);
    hit = bernoulli(chances);
  });
  graph.replay();
  EXPECT_EQ(hit.to_vector<double>(), (vector<double>{0, 1}));
  for (const int64_t k : drawn.to_vector<int64_t>()) EXPECT_NE(k, 1);
  EXPECT_THROW(bernoulli(tensor({0.5, 1.5}).to(gpu)), ValueError);
  EXPECT_THROW(bernoulli(tensor({0.5, std::nan("")}).to(gpu)), ValueError);
  EXPECT_THROW(multinomial(tensor({1., -1.}).to(gpu), 1, true), ValueError);
}

}  // namespace
}  // namespace weft
