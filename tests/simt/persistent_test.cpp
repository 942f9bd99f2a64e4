// LSTMs with one kernel for all steps of a pass. They are compared with the CPU. Their bits do not depend on
// the number of processors, though the plans do. Other layers have a kernel per step. The emulation looks for
// races of the blocks in each launch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <weft/kernels/cuda/ops/rnn_persistent.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/tensor/cuda.h>
#include "simt/rnn_calls.h"
#include "support/stacks.h"

namespace weft::cuda::persistent_test {
namespace {

using rnn_calls::Options;
using rnn_calls::Sizes;
using simt::Order;

constexpr Order kOrders[] = {Order::kForward, Order::kReverse, Order::kShuffled};

struct SimtPersistent : testing::Test {
  void SetUp() override {
    simt::install();
    set_recurrent_persistent(true);
    start_trace("nvtx");
    simt::take_ranges();
  }
  void TearDown() override {
    finish_trace();
    simt::take_ranges();
    set_recurrent_wavefront(0);
    set_recurrent_persistent(before);
    simt::settings() = simt::settings_of_environment();
  }
  const bool before = recurrent_persistent();
  /// How many launches of a kernel there were since the last call.
  static std::vector<int64_t> launches_of(const std::vector<std::string>& kernels) {
    const std::vector<std::string> ranges = simt::take_ranges();
    std::vector<int64_t> counts;
    for (const std::string& kernel : kernels)
      counts.push_back(std::count(ranges.begin(), ranges.end(), kernel));
    return counts;
  }
  /// Whether each forward, and each backward if there was one, had a kernel for all of its steps. They may
  /// not mix the forms.
  static bool persists() {
    const auto counts =
        launches_of({"rnn_lstm_persistent", "rnn_lstm_persistent_backward", "rnn_cell", "rnn_cell_backward"});
    EXPECT_EQ(counts[0] == 0, counts[2] > 0);
    EXPECT_TRUE(counts[0] > 0 ? counts[3] == 0 : counts[1] == 0);
    return counts[0] > 0;
  }
  /// A device of so many processors, whose capacity later launches have too.
  static CudaBackend& device_of(int processors) {
    simt::settings().processors = processors;
    return simt::device_of(processors);
  }
  static void check(DType t, bool reverse, const Sizes& s, const Options& o = {}, bool keep = true) {
    rnn_calls::check_rnn(device_of(4), t, {RnnMode::kLstm, reverse}, s, o, keep);
  }
};

TEST_F(SimtPersistent, matches_the_cpu) {
  for (const bool reverse : {false, true})
    for (const bool keep : {true, false}) {
      check(kFloat32, reverse, {4, 3, 7, 11}, {}, keep);
      check(kFloat32, reverse, {2, 9, 3, 130}, {}, keep);
      check(kFloat32, reverse, {5, 1, 1, 1}, {}, keep);
      check(kFloat16, reverse, {3, 2, 5, 7}, {}, keep);
      check(kBFloat16, reverse, {3, 17, 5, 20}, {}, keep);
      EXPECT_TRUE(persists());
    }
}

TEST_F(SimtPersistent, matches_the_cpu_with_parts_absent_or_strided) {
  for (const bool reverse : {false, true})
    for (const DType t : {kFloat32, kBFloat16}) {
      check(t, reverse, {3, 2, 3, 5}, {.bias = false});
      check(t, reverse, {3, 2, 3, 5}, {.state = false});
      check(t, reverse, {3, 2, 3, 5}, {.one_bias = true});
      check(t, reverse, {3, 2, 3, 5}, {.cotangents = false});
      check(t, reverse, {3, 2, 3, 5}, {.weights_only = true});
      check(t, reverse, {3, 2, 3, 5}, {.strided = true});
      check(t, reverse, {3, 2, 3, 8}, {.strided = true}, false);
      EXPECT_TRUE(persists());
    }
}

TEST_F(SimtPersistent, the_order_of_threads_and_blocks_does_not_matter) {
  for (const Order order : kOrders)
    for (const unsigned char poison : {0x00, 0xFF}) {
      simt::settings() = {.order = order, .poison = poison, .race_check = simt::RaceCheck::kAll};
      check(kFloat32, false, {3, 11, 5, 37});
      check(kFloat16, true, {3, 3, 5, 12});
      EXPECT_TRUE(persists());
    }
}

// 24 rows of the batch in parts. A block's shared memory has room for 16 in a forward, and for eight and two
// gates in a backward.
TEST_F(SimtPersistent, takes_a_batch_in_parts) {
  for (const int processors : {4, 7}) {
    simt::settings().shared_memory = 14 << 10;
    rnn_calls::check_rnn(device_of(processors), kFloat32, {RnnMode::kLstm, false}, {3, 24, 3, 60}, {}, true);
    EXPECT_EQ(persists(), processors == 7);  // 15 units of 60 numbers and four gates have no room
    simt::settings().shared_memory = 12 << 10;
    rnn_calls::check_rnn(device_of(processors), kBFloat16, {RnnMode::kLstm, true}, {3, 20, 3, 60}, {}, true);
    EXPECT_TRUE(persists());
  }
}

TEST_F(SimtPersistent, plans_of_devices_of_two_sizes_differ) {
  const RnnLayer lstm{RnnMode::kLstm};
  const auto plans = [&](int processors, const persistent::Sizes& s) {
    CudaBackend& device = device_of(processors);
    return std::pair(persistent::plan_forward<float>(device, lstm, s),
                     persistent::plan_backward<float>(device, lstm, s));
  };
  const persistent::Sizes s{35, 35, 20, 650};
  const auto [forward, backward] = plans(132, s);
  ASSERT_TRUE(forward && backward);
  EXPECT_EQ(forward->units, 5);
  EXPECT_EQ(forward->blocks, 130);
  // 24 rows of four gates have no room
  EXPECT_EQ(backward->gates, 4);
  EXPECT_EQ(backward->rows, 16);
  const auto [fewer_forward, fewer_backward] = plans(66, s);  // 10 units of a block
  ASSERT_TRUE(fewer_forward);
  EXPECT_EQ(fewer_forward->units, 10);
  EXPECT_EQ(fewer_forward->blocks, 65);
  ASSERT_TRUE(fewer_backward);
  EXPECT_EQ(fewer_backward->units, 10);
  EXPECT_LT(fewer_backward->gates * fewer_backward->rows, backward->gates * backward->rows);
  const auto [none, none_backward] = plans(20, s);
  EXPECT_FALSE(none || none_backward);
}

TEST_F(SimtPersistent, a_backward_reads_little_and_keeps_its_warps_at_work) {
  const RnnLayer lstm{RnnMode::kLstm};
  const auto plan = [&]<class S>(S, int64_t batch, int64_t hidden) {
    CudaBackend& device = device_of(132);
    EXPECT_TRUE(persistent::plan_forward<S>(device, lstm, {35, 35, batch, hidden})) << batch << " " << hidden;
    return persistent::plan_backward<S>(device, lstm, {35, 35, batch, hidden});
  };
  // 128 blocks read 32 MiB, or more
  EXPECT_TRUE(plan(0.0F, 64, 256));
  EXPECT_FALSE(plan(0.0F, 64, 264));
  EXPECT_FALSE(plan(0.0F, 64, 512));
  EXPECT_FALSE(plan(0.0F, 64, 1000));
  EXPECT_TRUE(plan(BFloat16(), 32, 1024));
  // a part of 24 rows and a gate has room, with 9 products for 16 warps
  const auto half = plan(BFloat16(), 20, 1500);
  ASSERT_TRUE(half);
  EXPECT_EQ(half->gates, 1);
  EXPECT_EQ(half->rows, 24);
  // parts of two gates and eight rows, with 4 products for 16 warps, take six rounds instead of two
  simt::settings().shared_memory = 96 << 10;
  EXPECT_FALSE(plan(0.0F, 20, 652));
}

TEST_F(SimtPersistent, has_a_kernel_per_step_while_kernels_wait_for_other_processes) {
  const auto is_taken = [] {
    check(kFloat32, false, {2, 2, 3, 5});
    return persists();
  };
  {
    const WaitingKernels one;
    {
      const WaitingKernels other;
      EXPECT_FALSE(is_taken());
    }
    EXPECT_FALSE(is_taken());
  }
  EXPECT_TRUE(is_taken());
}

/// The bits of all results of a layer.
std::vector<std::vector<char>> bits_of(CudaBackend& device, DType t, const Sizes& s) {
  const RnnLayer lstm{RnnMode::kLstm};
  const rnn_calls::Layer k(t, lstm, s, {});
  const rnn_calls::Results r(t, lstm, s, false);
  k.run(device, r, true, [](const simt::Operand& a) { return a.on_device(); });
  std::vector<std::vector<char>> all;
  for (const simt::Operand* const each :
       {&r.y, &r.hn, &r.cn, &r.dx, &r.dh0, &r.dc0, &r.dw_ih, &r.dw_hh, &r.db_ih, &r.db_hh}) {
    const View v = each->on_device();
    std::vector<char>& host = all.emplace_back(static_cast<size_t>(v.numel() * size_of(v.dtype)));
    Context c;
    device.copy_to_host(c, v.data, host.data(), host.size());
  }
  return all;
}

TEST_F(SimtPersistent, has_the_same_bits_on_any_number_of_processors) {
  for (const DType t : {kFloat32, kFloat16})
    for (const Sizes& s : {Sizes{4, 3, 5, 23}, Sizes{3, 18, 5, 40}}) {
      const auto first = bits_of(device_of(1), t, s);
      EXPECT_TRUE(persists());
      for (const int processors : {2, 3, 4, 7, 16})
        for (const Order order : kOrders) {
          simt::settings().order = order;
          EXPECT_EQ(bits_of(device_of(processors), t, s), first) << processors;
          EXPECT_TRUE(persists());
          const int64_t units = blocks_for(s.hidden, processors);
          EXPECT_LE(blocks_for(s.hidden, units), processors);
        }
    }
}

TEST_F(SimtPersistent, leaves_other_layers_to_a_kernel_per_step) {
  const auto is_taken = [](DType t, const Sizes& s, RnnMode mode = RnnMode::kLstm,
                           CudaBackend& device = simt::device()) {
    rnn_calls::check_rnn(device, t, {mode, false}, s, {}, true);
    return persists();
  };
  EXPECT_TRUE(is_taken(kFloat32, {2, 2, 3, 5}));
  for (const RnnMode mode : {RnnMode::kGru, RnnMode::kTanh, RnnMode::kRelu})
    EXPECT_FALSE(is_taken(kFloat32, {2, 2, 3, 5}, mode));
  EXPECT_FALSE(is_taken(kFloat64, {2, 2, 3, 5}));
  EXPECT_FALSE(is_taken(kFloat32, {1, 2, 3, 5}));
  EXPECT_TRUE(is_taken(kFloat32, {2, 64, 3, 5}));
  EXPECT_FALSE(is_taken(kFloat32, {2, 65, 3, 5}));
  EXPECT_TRUE(is_taken(kFloat16, {2, 32, 3, 5}));
  EXPECT_FALSE(is_taken(kFloat16, {2, 33, 3, 5}));
  set_recurrent_persistent(false);
  EXPECT_FALSE(is_taken(kFloat32, {2, 2, 3, 5}));
  set_recurrent_persistent(true);
  simt::settings().together = false;
  EXPECT_FALSE(is_taken(kFloat32, {2, 2, 3, 5}));
  simt::settings().together = true;
  CudaBackend& larger = simt::device_of(16);  // than the device of the launches, which holds eight blocks
  simt::settings().processors = 2;
  EXPECT_TRUE(is_taken(kFloat32, {2, 2, 3, 8}, RnnMode::kLstm, larger));
  EXPECT_FALSE(is_taken(kFloat32, {2, 2, 3, 16}, RnnMode::kLstm, larger));
}

TEST_F(SimtPersistent, needs_room_for_the_weights_and_eight_rows) {
  // 20 units with four rows each, and eight of h or of a gate's gradients, of 20 numbers
  const size_t forward = 88 * 20 * sizeof(float), backward = forward + 4 * 8 * 20 * sizeof(float);
  for (const size_t room : {forward - 1, forward, backward - 1, backward}) {
    simt::settings().shared_memory = room;
    rnn_calls::check_rnn(device_of(1), kFloat32, {RnnMode::kLstm, false}, {2, 2, 3, 20});
    const auto counts = launches_of({"rnn_lstm_persistent", "rnn_lstm_persistent_backward"});
    EXPECT_EQ(counts[0], room >= forward) << room;
    EXPECT_EQ(counts[1], room >= backward) << room;
  }
}

TEST_F(SimtPersistent, leaves_stacks_in_chunks_to_a_kernel_per_step) {
  const Net net({.options = {.num_layers = 2, .dropout = 0.5}, .steps = 6}, Device{DeviceType::kCuda, 0});
  for (const int chunks : {0, 3}) {
    set_recurrent_wavefront(chunks);
    net.run();
    EXPECT_EQ(persists(), chunks == 0);
  }
  set_recurrent_wavefront(3);
  const Tensor loss = net.loss();
  set_recurrent_wavefront(0);
  grad({loss}, net.wanted());
  EXPECT_FALSE(persists());
}

TEST_F(SimtPersistent, is_recorded_and_replayed) {
  const Device gpu{DeviceType::kCuda, 0};
  Generator numbers(4);
  nn::LSTM rnn(6, 9, {.generator = &numbers});
  rnn.to(gpu);
  Tensor x = randn({5, 3, 6}, {}, &numbers).to(gpu);
  const auto step = [&] {
    const nn::RnnOutput r = rnn.forward(x);
    std::vector<Tensor> out = {r.y, r.h, r.c};
    for (const Tensor& g : grad({(r.y * r.y).sum() + r.c.sum()}, rnn.parameters())) out.push_back(g);
    return out;
  };
  std::vector<Tensor> recorded;
  Graph graph(gpu);
  graph.capture([&] { recorded = step(); });
  EXPECT_TRUE(persists());
  for (int i = 0; i < 2; ++i) {
    {
      const NoGrad quiet;
      x.mul_(0.5);
    }
    graph.replay();
    const std::vector<Tensor> wanted = step();
    for (size_t k = 0; k < wanted.size(); ++k)
      EXPECT_EQ((recorded[k].to(kCpu) - wanted[k].to(kCpu)).abs().max().item<float>(), 0) << k;
  }
}

// Of a new process, where nothing has asked for the setting before.
TEST(SimtPersistentSetting, begins_as_the_environment_says) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const auto& [text, on] : {std::pair{"0", 0}, {"1", 1}, {"", 0}, {"on", 0}}) {
    setenv("WEFT_RECURRENT_PERSISTENT", text, 1);
    EXPECT_EXIT(std::_Exit(recurrent_persistent()), testing::ExitedWithCode(on), "") << text;
  }
  unsetenv("WEFT_RECURRENT_PERSISTENT");
}

}  // namespace
}  // namespace weft::cuda::persistent_test
