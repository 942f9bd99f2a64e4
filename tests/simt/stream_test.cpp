// Streams and events of tensor/cuda.h that only the emulation has: a second device, events that stay open,
// reports by hand. The rest is in tests/cuda/shared.
#include <gtest/gtest.h>

#include <vector>

#include <weft/kernels/cuda/host/fault.h>
#include <weft/kernels/cuda/host/runtime.h>
#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "cuda/shared/device_test.h"
#include "support/simt/streams.h"

namespace weft::test {
namespace {

using std::vector;

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
  }
  EXPECT_EQ(cuda::current_stream(gpu), cuda::default_stream(gpu));
  EXPECT_FALSE(a == b);
}

TEST_F(SimtStream, nothing_goes_to_the_default_stream_of_cuda) {
  const int64_t before = cuda::simt::works_of_default_stream();
  Net net;
  net.to(gpu);
  optim::Adam adam(net.parameters(), {.lr = 0.1});
  const Tensor x = rand({6, 4}, {.device = gpu}), y = rand({6, 3}).pin_memory().to(gpu, true);
  net.loss(x, y).backward();
  optim::clip_grad_norm(net.parameters(), 0.5);
  adam.step();
  EXPECT_EQ(argsort(cat({x, x}), 0).numel(), 48);
  EXPECT_EQ(embedding(x, from_vector<int64_t>({1, 2}, {2}, gpu)).to("cuda:1").to(kCpu).numel(), 8);
  cuda::synchronize(gpu);
  EXPECT_EQ(cuda::simt::works_of_default_stream(), before);
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

/// 2 * (1 + 1), with the last product on a side stream, and read on the default stream. Either may lack its
/// wait for the other.
float through_a_side_stream(cuda::simt::Others others, bool side_waits, bool reader_waits, bool recorded) {
  const Device gpu{DeviceType::kCuda, 0};
  const cuda::Stream side(gpu);
  const Tensor x = ones({1}, {.device = gpu});
  Tensor y = zeros({1}, {.device = gpu}), read = y.clone();
  cuda::Graph graph(gpu);
  const auto work = [&] {
    const cuda::Stream main = cuda::current_stream(gpu);
    side.wait_stream(main);  // it takes part in a recording from here on
    const Tensor z = x + 1;
    if (side_waits) side.wait_stream(main);
    {
      const cuda::StreamGuard guard(side);
      y.copy_(z * 2);
    }
    if (reader_waits) main.wait_stream(side);
    read.copy_(y);
    main.wait_stream(side);
  };
  if (recorded) graph.capture(work);
  const cuda::simt::Deferred later(others);
  if (recorded) graph.replay();
  else work();
  return read.item<float>();
}

TEST_F(SimtStream, a_missing_order_shows_when_the_other_stream_is_late_or_early) {
  using cuda::simt::Others;
  for (const bool recorded : {false, true}) {
    for (const Others others : {Others::kLate, Others::kEarly})
      EXPECT_EQ(through_a_side_stream(others, true, true, recorded), 4);
    EXPECT_NE(through_a_side_stream(Others::kEarly, false, true, recorded), 4);
    EXPECT_EQ(through_a_side_stream(Others::kLate, false, true, recorded), 4);
    EXPECT_NE(through_a_side_stream(Others::kLate, true, false, recorded), 4);
    EXPECT_EQ(through_a_side_stream(Others::kEarly, true, false, recorded), 4);
  }
}

TEST_F(SimtStream, a_wait_may_be_left_out_by_its_number) {
  using cuda::simt::Others;
  const int64_t before = cuda::simt::stream_waits();
  EXPECT_EQ(through_a_side_stream(Others::kEarly, true, true, false), 4);
  EXPECT_EQ(cuda::simt::stream_waits(), before + 4);
  cuda::simt::left_out() = before + 5;
  EXPECT_NE(through_a_side_stream(Others::kEarly, true, true, false), 4);
  cuda::simt::left_out() = -1;
}

TEST_F(SimtStream, a_tensor_is_told_of_the_streams_that_use_it) {
  const cuda::Stream side(gpu);
  const Tensor x = ones({4}, {.device = gpu});
  cuda::record_stream(x, side);
  EXPECT_THROW(cuda::record_stream(x, cuda::Stream("cuda:1")), DeviceError);
  EXPECT_THROW(cuda::record_stream(ones({4}), side), DeviceError);
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
  // 2 MiB; a recording has as much for small things
  const auto make = [&] { return zeros({static_cast<int64_t>(kMega / 2)}, {.device = gpu}); };
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

}  // namespace
}  // namespace weft::test
