// Memory for the random numbers of cuDNN's dropout that is not to be had at first, or at all.
// A device makes its states once in a process, so the test of that has "cuda:1" to itself. It runs before
// those of layer_test.cpp, which leave that device without cuDNN.
#include <gtest/gtest.h>

#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/tensor/cuda.h>
#include "support/errors.h"
#include "support/libraries/libraries.h"
#include "support/simt/memory.h"
#include "support/simt/thread.h"
#include "support/stacks.h"

namespace weft::cuda {
namespace {

using libraries::counts;
using libraries::settings;

struct EmulatedDropoutMemory : testing::Test {
  void SetUp() override { set_cudnn_dropout(true); }
  void TearDown() override {
    settings() = {};
    simt::settings().device_bytes = 0;
    set_cudnn_dropout(false);
  }
  static std::vector<Tensor> drawn(const Net& net) {
    manual_seed(5);
    return net.run();
  }
  /// From here on there is room for the present blocks alone.
  static void fill_device() {
    size_t available = 0, total = 0;
    runtime::memory_info(&available, &total);
    simt::settings().device_bytes = total - available;
  }
  /// Leaves memory that an emptied cache gives back: under the emulation that of recordings alone is cached.
  static void cache_some(Device device) {
    Tensor x;
    {
      Graph graph(device);
      graph.capture([&] { x = zeros({16}, {.device = device}); });
    }
    x = Tensor();
    ASSERT_GT(memory_stats(device).cached, 0);
  }
};

TEST_F(EmulatedDropoutMemory,
       the_first_states_of_a_device_leave_nothing_behind_without_room_and_find_it_in_the_cache) {
  const Device fresh("cuda:1");
  const Net net(dropping(), fresh), host(dropping(), kCpu);
  set_cudnn_dropout(false);
  drawn(net);  // makes the memory that layers keep
  {
    Graph graph(fresh);
    graph.capture([] {});  // makes the memory that recordings keep
  }
  empty_cache(fresh);
  set_cudnn_dropout(true);
  const auto before = counts();
  const int blocks = simt::live_blocks();

  settings().full = "cudnnSetDropoutDescriptor: states", settings().full_calls = 2;
  expect_near(drawn(net), drawn(host), 1e-10);  // layer by layer
  EXPECT_EQ(settings().full_calls, 0);
  EXPECT_EQ(counts().dropout_sizes, before.dropout_sizes + 1);
  EXPECT_EQ(counts().rnn_training, before.rnn_training + 3);
  EXPECT_EQ(simt::live_blocks(), blocks);

  fill_device();
  EXPECT_THROW(drawn(net), OutOfMemoryError);
  simt::settings().device_bytes = 0;
  EXPECT_EQ(counts().dropout_sizes, before.dropout_sizes + 2);
  EXPECT_EQ(counts().rnn_training, before.rnn_training + 3);
  EXPECT_EQ(counts().live, before.live);
  EXPECT_EQ(simt::live_blocks(), blocks);

  cache_some(fresh);
  fill_device();
  const auto made = drawn(net);
  simt::settings().device_bytes = 0;
  EXPECT_EQ(memory_stats(fresh).cached, 0);
  EXPECT_EQ(counts().dropout_sizes, before.dropout_sizes + 3);
  EXPECT_EQ(counts().rnn_training, before.rnn_training + 4);  // at once
  EXPECT_TRUE(same(made, drawn(Net(dropping(), "cuda:0"))));
  EXPECT_TRUE(same(made, drawn(net)));
}

TEST_F(
    EmulatedDropoutMemory,
    numbers_that_are_set_going_anew_find_room_in_the_cache_or_are_an_error_that_the_next_call_does_not_feel) {
  const Device gpu("cuda:0");
  const Net net(dropping(), gpu);
  const auto first = drawn(net), second = [&] {
    manual_seed(5);
    default_generator().take(1);  // as the call before it does
    return net.run();
  }();
  EXPECT_FALSE(same(first, second));
  for (const bool on_host : {false, true}) {
    settings().on_host = on_host;
    cache_some(gpu);
    settings().full = "cudnnSetDropoutDescriptor: states", settings().full_calls = 1;
    EXPECT_TRUE(same(drawn(net), first));
    EXPECT_EQ(settings().full_calls, 0);
    EXPECT_EQ(memory_stats(gpu).cached, 0);

    const int blocks = simt::live_blocks();
    settings().full = "cudnnSetDropoutDescriptor: states", settings().full_calls = 2;
    EXPECT_TRUE(
        test::has(test::error_of<OutOfMemoryError>([&] { drawn(net); }), "random numbers of dropout"));
    EXPECT_FALSE(libraries::left_out_of_memory());
    EXPECT_EQ(simt::live_blocks(), blocks);
    EXPECT_TRUE(same(net.run(), second));
  }
}

}  // namespace
}  // namespace weft::cuda
