// Streams and events of tensor/cuda.h, and training step by step.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "cuda/shared/device_test.h"

namespace weft::test {
namespace {

using std::vector;

DEVICE_TEST(Stream, a_guard_makes_a_stream_the_current_one_and_restores_the_one_before) {
  const cuda::Stream a(gpu), b(gpu, true);
  {
    const cuda::StreamGuard outer(a);
    EXPECT_EQ(cuda::current_stream(gpu), a);
    {
      const cuda::StreamGuard inner(b);
      EXPECT_EQ(cuda::current_stream(gpu), b);
      EXPECT_EQ((ones({3}, {.device = gpu}) * 2).sum().item<float>(), 6);
    }
    EXPECT_EQ(cuda::current_stream(gpu), a);
    std::thread([&] { EXPECT_EQ(cuda::current_stream(gpu), cuda::default_stream(gpu)); }).join();
  }
  EXPECT_EQ(cuda::current_stream(gpu), cuda::default_stream(gpu));
}

DEVICE_TEST(Stream, the_default_stream_is_one_handle_for_all_threads) {
  Accelerator& device = accelerator(gpu);
  void* const handle = cuda::default_stream(gpu).handle();
  EXPECT_NE(handle, nullptr);
  EXPECT_EQ(device.default_stream(), handle);
  std::thread([&] { EXPECT_EQ(cuda::current_stream(gpu).handle(), handle); }).join();
  const cuda::Stream side(gpu);
  {
    const cuda::StreamGuard outer(side);
    {
      const cuda::StreamGuard inner(cuda::default_stream(gpu));
      EXPECT_EQ(device.current_stream(), handle);
    }
    EXPECT_EQ(device.current_stream(), side.handle());
    device.set_current_stream(nullptr);  // null names it
    EXPECT_EQ(device.current_stream(), handle);
  }
  Tensor x = ones({8}, {.device = gpu}) * 3;
  Context context;  // its null stream is the current one
  device.fill(context, 2, x.view_of());
  device.synchronize_stream(nullptr);
  EXPECT_TRUE(device.stream_done(nullptr));
  EXPECT_EQ(x.sum().item<float>(), 16);
}

DEVICE_TEST(Stream, handles_come_back_for_the_next_stream) {
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

DEVICE_TEST(Stream, an_event_is_done_once_it_was_waited_for_and_tells_the_time_between) {
  const cuda::Stream a(gpu), b(gpu);
  cuda::Event start(gpu, true), end(gpu, true), plain(gpu);
  EXPECT_TRUE(plain.query());
  Tensor x = ones({1 << 12}, {.device = gpu});
  a.wait_stream(cuda::current_stream(gpu));
  {
    const cuda::StreamGuard guard(a);
    start.record();
    x = x * 2 + 1;
    end.record();
  }
  b.wait_event(end);
  {
    const cuda::StreamGuard guard(b);
    EXPECT_EQ(x.sum().item<float>(), 3 << 12);
  }
  end.synchronize();
  EXPECT_TRUE(end.query());
  EXPECT_GE(start.elapsed_time(end), 0);
  EXPECT_THROW(start.elapsed_time(plain), ValueError);
  a.synchronize();
  EXPECT_TRUE(a.query());
  cuda::Event moved = std::move(end);
  EXPECT_TRUE(moved.query());
}

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

DEVICE_TEST(Stream, training_takes_the_cpus_course_with_its_state_on_the_device) {
  const auto compare = [&](const auto& make) {
    const vector<float> here = train(kCpu, 6, make), there = train(gpu, 6, make);
    for (size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(there[i], here[i], 1e-5) << i;
  };
  compare([](const vector<Tensor>& p) { return optim::SGD(p, {.lr = 0.1, .momentum = 0.9}); });
  compare([](const vector<Tensor>& p) { return optim::Adam(p, {.lr = 0.01}); });
}

DEVICE_TEST(Stream, a_bad_index_is_told_to_the_thread_that_issued_it) {
  const Tensor table = ones({4, 2}, {.device = gpu}), good = from_vector<int64_t>({1, 2}, {2}, gpu),
               bad = from_vector<int64_t>({1, 9}, {2}, gpu);
  const Late work;
  std::thread([&] {
    const Tensor y = embedding(table, bad);
    cuda::Event done(gpu);
    done.record();
    // it waits for all, but the fault is not its own
    std::thread([&] { EXPECT_EQ(embedding(table, good).sum().item<float>(), 4); }).join();
    EXPECT_THROW(done.synchronize(), IndexError);
    done.synchronize();
  }).join();
  std::thread([&] { embedding(table, bad); }).join();  // nobody waits before it ends
  EXPECT_THROW(embedding(table, good).sum().item<float>(), IndexError);
  EXPECT_EQ(embedding(table, good).sum().item<float>(), 4);
}

DEVICE_TEST(Stream, a_backward_on_another_stream_keeps_what_forward_saved) {
  const cuda::Stream side(gpu);
  Tensor x = full({1024}, 3.0, {.device = gpu}).requires_grad_(), loss;
  side.wait_stream(cuda::current_stream(gpu));  // for x
  const Late work;
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
    // memory that the backward let go must not come back here while it still runs
    const cuda::StreamGuard guard(side);
    for (int i = 0; i < 4; ++i) over = full({1024}, -1.0, {.device = gpu});
    side.synchronize();
  }
  EXPECT_EQ(x.grad().to_vector<float>(), vector<float>(1024, 24));
}

DEVICE_TEST(Stream, optimizer_state_follows_a_moved_parameter) {
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

}  // namespace
}  // namespace weft::test
