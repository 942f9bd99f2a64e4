// Recurrent stacks in chunks on two streams against the same stack layer by layer, bit for bit. The cases
// have modes, dtypes, dropout, chunks that do not divide the steps, recordings and failures. The two streams
// run in the two extreme orders that their events allow, and with each of the events left out.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include <weft/kernels/cuda_settings.h>
#include <weft/tensor/cuda.h>
#include "support/errors.h"
#include "support/simt/device.h"
#include "support/simt/thread.h"
#include "support/stacks.h"

namespace weft::cuda {
namespace {

using simt::Others;
using std::vector;

struct SimtWavefront : testing::Test {
  void SetUp() override {
    simt::install();
    set_recurrent_wavefront(0);
    set_recurrent_persistent(false);  // a chunk has as many launches as its steps
  }
  void TearDown() override {
    set_recurrent_wavefront(0);
    set_recurrent_persistent(persistent);
    simt::left_out() = -1;
    simt::settings() = simt::settings_of_environment();
  }
  const Device gpu{DeviceType::kCuda, 0};
  const bool persistent = recurrent_persistent();
};

// Of a new process, where nothing has asked for the setting before.
TEST(SimtWavefrontSetting, begins_with_the_number_of_the_environment) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const auto& [text, chunks] : {std::pair{"6", 6}, {"1", 1}, {"", 0}, {"-2", 0}, {"6x", 0}, {"on", 0}}) {
    setenv("WEFT_RECURRENT_WAVEFRONT", text, 1);
    EXPECT_EXIT(std::_Exit(recurrent_wavefront()), testing::ExitedWithCode(chunks), "") << text;
  }
  unsetenv("WEFT_RECURRENT_WAVEFRONT");
}

/// Whether the numbers have the same bits; both on the CPU afterwards.
bool same_bits(const vector<Tensor>& a, const vector<Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const Tensor x = a[i].to(kCpu).contiguous(), y = b[i].to(kCpu).contiguous();
    if (x.sizes() != y.sizes() ||
        std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.numel() * size_of(x.dtype()))) != 0)
      return false;
  }
  return a.size() == b.size();
}

/// The results of f with so many chunks, from the same seed. `waits`: the waits of streams in it.
template <class F> vector<Tensor> with_chunks(int chunks, const F& f, int64_t* waits = nullptr) {
  set_recurrent_wavefront(chunks);
  manual_seed(5);
  const int64_t before = simt::stream_waits();
  vector<Tensor> out = f();
  if (waits) *waits = simt::stream_waits() - before;
  set_recurrent_wavefront(0);
  return out;
}

/// Outputs and gradients of a stack, and a number that is drawn behind it.
vector<Tensor> drawn(const Net& net) {
  vector<Tensor> out = net.run();
  out.push_back(rand({1}));
  return out;
}

/// A fork, an event for each chunk that a layer hands on, and a join; forward and backward.
int64_t waits_of(int64_t layers, int64_t chunks) { return 2 * ((layers - 1) * chunks + 2); }

TEST_F(SimtWavefront, has_the_bits_of_one_layer_after_the_other) {
  for (const RnnMode mode : {RnnMode::kLstm, RnnMode::kGru, RnnMode::kTanh, RnnMode::kRelu})
    for (const int64_t layers : {2, 3, 4})
      for (const double dropout : {0.0, 0.5})
        for (const bool some : {false, true}) {
          SCOPED_TRACE(
              str("mode ", static_cast<int>(mode), " layers ", layers, " dropout ", dropout, " bias ", some));
          const Case c{.mode = mode,
                       .options = {.num_layers = layers,
                                   .dropout = dropout,
                                   .bias = some,
                                   .batch_first = some,
                                   .dtype = some ? kFloat32 : kFloat64},
                       .states = some,
                       .steps = 7};
          const Net net(c, gpu);
          int64_t waits = 0, none = 0;
          const auto plain = with_chunks(
              0, [&] { return drawn(net); }, &none);
          // 7 steps in chunks of 3, 3, 1
          EXPECT_TRUE(same_bits(with_chunks(
                                    3, [&] { return drawn(net); }, &waits),
                                plain));
          EXPECT_EQ(none, 0);
          EXPECT_EQ(waits, waits_of(layers, 3));
          net.module->eval();
          EXPECT_TRUE(same_bits(with_chunks(3, [&] { return drawn(net); }),
                                with_chunks(0, [&] { return drawn(net); })));
        }
}

TEST_F(SimtWavefront, may_be_cut_into_any_chunks) {
  for (const int64_t steps : {2, 5, 8, 13})
    for (const int chunks : {2, 3, 6, 100}) {
      SCOPED_TRACE(str(steps, " steps in ", chunks));
      const Net net({.options = {.num_layers = 2, .dropout = 0.25, .dtype = kFloat64}, .steps = steps}, gpu);
      const int64_t each = (steps + chunks - 1) / chunks;
      int64_t waits = 0;
      const auto cut = with_chunks(
          chunks, [&] { return drawn(net); }, &waits);
      EXPECT_TRUE(same_bits(cut, with_chunks(0, [&] { return drawn(net); })));
      EXPECT_EQ(waits, waits_of(2, (steps + each - 1) / each));
    }
}

// A block of dropout's numbers has four elements. Here a step has 3 * 2 of them, so a chunk has two steps.
TEST_F(SimtWavefront, begins_chunks_with_a_block_of_masks) {
  const Net net({.options = {.num_layers = 3, .dropout = 0.5}, .hidden = 3, .steps = 5}, gpu);
  int64_t waits = 0;
  const auto cut = with_chunks(
      5, [&] { return drawn(net); }, &waits);
  EXPECT_TRUE(same_bits(cut, with_chunks(0, [&] { return drawn(net); })));
  EXPECT_EQ(waits, waits_of(3, 3));
}

TEST_F(SimtWavefront, takes_half_types_and_an_autocast) {
  for (const DType type : {kFloat16, kBFloat16}) {
    const Net net({.options = {.num_layers = 3, .dropout = 0.5, .dtype = type}, .steps = 6}, gpu);
    EXPECT_TRUE(
        same_bits(with_chunks(3, [&] { return drawn(net); }), with_chunks(0, [&] { return drawn(net); })));
    const Net wide({.options = {.num_layers = 2, .dropout = 0.5}, .steps = 6}, gpu);
    const auto lowered = [&] {
      const Autocast cast(type);
      return drawn(wide);
    };
    EXPECT_TRUE(same_bits(with_chunks(3, lowered), with_chunks(0, lowered)));
  }
}

TEST_F(SimtWavefront, leaves_other_stacks_to_their_layers) {
  const auto waits_of_case = [&](const Case& c) {
    int64_t waits = 0;
    with_chunks(
        4, [&] { return Net(c, gpu).run(); }, &waits);
    return waits;
  };
  EXPECT_GT(waits_of_case({}), 0);
  EXPECT_EQ(waits_of_case({.options = {.num_layers = 1}}), 0);
  EXPECT_EQ(waits_of_case({.options = {.num_layers = 2, .bidirectional = true}}), 0);
  EXPECT_EQ(waits_of_case({.steps = 1}), 0);
  // a chunk that begins with a block of masks has all 4 steps
  EXPECT_EQ(waits_of_case({.options = {.num_layers = 2, .dropout = 0.5}, .hidden = 1, .steps = 2}), 0);
  set_use_cudnn(true);
  EXPECT_EQ(waits_of_case({}), 0);
  set_use_cudnn(false);
  int64_t waits = 0;
  with_chunks(
      1, [&] { return Net({}, gpu).run(); }, &waits);
  EXPECT_EQ(waits, 0);
}

TEST_F(SimtWavefront, tells_the_errors_of_layers) {
  EXPECT_TRUE(test::has(test::error_of<ValueError>([] { set_recurrent_wavefront(-1); }),
                        "set_recurrent_wavefront: takes 0 or a number of chunks, got -1"));
  EXPECT_EQ(recurrent_wavefront(), 0);
  const Net net({}, gpu);
  const auto told = [&](const Tensor& x, const Tensor& h) {
    const auto error = [&] { return test::error_of<ShapeError>([&] { net.module->forward(x, h); }); };
    set_recurrent_wavefront(0);
    const std::string plain = error();
    set_recurrent_wavefront(4);
    EXPECT_EQ(error(), plain);
    return plain;
  };
  EXPECT_TRUE(test::has(told(ones({0, 2, 3}, {.device = gpu}), {}), "the sequence is empty"));
  EXPECT_TRUE(test::has(told(ones({5, 2, 4}, {.device = gpu}), {}), "x must be"));
  EXPECT_TRUE(test::has(told(net.in[0], ones({3, 2, 4}, {.device = gpu})), "h0 must be"));
  EXPECT_EQ(net.module->forward(ones({5, 0, 3}, {.device = gpu})).y.sizes(), (Shape{5, 0, 4}));
}

TEST_F(SimtWavefront, runs_only_the_layers_that_are_wanted) {
  const Net net({.options = {.num_layers = 3, .dropout = 0.5}, .steps = 6}, gpu);
  const vector<Tensor> all = net.module->parameters();
  for (Tensor t : net.in) t.requires_grad_(false);
  for (size_t i = 0; i < 8; ++i) Tensor(all[i]).requires_grad_(false);
  const vector<Tensor> top(all.begin() + 8, all.end());
  const auto gradients = [&] { return grad({net.loss()}, top); };
  const int64_t before = simt::launches();
  const auto plain = with_chunks(0, gradients);
  const int64_t between = simt::launches();
  EXPECT_TRUE(same_bits(with_chunks(3, gradients), plain));
  // the same steps, and dropout in three chunks for each of two borders
  EXPECT_LE(simt::launches() - between, between - before + 4 + 2);
}

TEST_F(SimtWavefront, keeps_its_form_from_forward_to_backward) {
  const Net net({.options = {.num_layers = 3, .dropout = 0.5}, .steps = 6}, gpu);
  const auto given = [&](int first, int second) {
    return with_chunks(first, [&] {
      const Tensor loss = net.loss();
      set_recurrent_wavefront(second);
      auto out = grad({loss}, net.wanted(), {}, {.retain_graph = true});
      for (const Tensor& t : grad({loss}, net.wanted())) out.push_back(t);
      return out;
    });
  };
  const auto plain = given(0, 0);
  EXPECT_TRUE(same_bits(given(3, 0), plain));
  EXPECT_TRUE(same_bits(given(0, 3), plain));
}

TEST_F(SimtWavefront, repeats_its_masks_in_a_checkpoint) {
  const Net net({.options = {.num_layers = 3, .dropout = 0.5}, .steps = 6}, gpu);
  const auto gradients = [&](bool kept) {
    const auto stack = [&](const vector<Tensor>& in) {
      return vector<Tensor>{net.module->forward(in[0], in[1], in[2]).y};
    };
    for (const Tensor& p : net.wanted()) p.zero_grad();
    const Tensor y = kept ? stack(net.in)[0] : checkpoint(stack, net.in)[0];
    (y * y).sum().backward();
    vector<Tensor> out;
    for (const Tensor& p : net.wanted()) out.push_back(p.grad().clone());
    return out;
  };
  const auto plain = with_chunks(0, [&] { return gradients(true); });
  EXPECT_TRUE(same_bits(with_chunks(3, [&] { return gradients(false); }), plain));
}

TEST_F(SimtWavefront, has_second_gradients) {
  const Net net({.options = {.num_layers = 2, .dropout = 0.5, .dtype = kFloat64}, .steps = 4}, gpu);
  const auto second = [&] {
    const Tensor dx = grad({net.loss()}, {net.in[0]}, {}, {.create_graph = true})[0];
    return grad({(dx * dx).sum()}, net.wanted());
  };
  expect_near(with_chunks(2, second), with_chunks(0, second), 1e-12);
}

/// The results of a stack whose inputs are still being computed.
vector<Tensor> deferred(Others others, const Net& net) {
  const simt::Deferred later(others);
  const Net twin = [&] {
    Net other = net;
    for (Tensor& t : other.in) t = (t * 1.5).detach().requires_grad_();
    return other;
  }();
  vector<Tensor> out;
  for (const Tensor& t : twin.run()) out.push_back(t.to(kCpu));
  return out;
}

TEST_F(SimtWavefront, orders_its_streams_by_events) {
  for (const int64_t layers : {2, 3, 4}) {
    SCOPED_TRACE(layers);
    const Net net({.options = {.num_layers = layers, .dropout = 0.5}, .steps = 6}, gpu);
    const auto plain = with_chunks(0, [&] { return deferred(Others::kLate, net); });
    for (const Others others : {Others::kLate, Others::kEarly})
      EXPECT_TRUE(same_bits(with_chunks(3, [&] { return deferred(others, net); }), plain));
    const Stream side(gpu);
    const StreamGuard guard(side);
    EXPECT_TRUE(same_bits(with_chunks(3, [&] { return deferred(Others::kEarly, net); }), plain));
  }
}

TEST_F(SimtWavefront, needs_each_of_its_events) {
  for (const int64_t layers : {2, 3}) {
    const Net net({.options = {.num_layers = layers, .dropout = 0.5}, .steps = 6}, gpu);
    const auto plain = with_chunks(0, [&] { return deferred(Others::kLate, net); });
    const int64_t waits = waits_of(layers, 3);
    for (int64_t left_out = 0; left_out < waits; ++left_out) {
      const auto differs = [&](Others others) {
        return !same_bits(with_chunks(3,
                                      [&] {
                                        simt::left_out() = simt::stream_waits() + left_out;
                                        return deferred(others, net);
                                      }),
                          plain);
      };
      // Three layers end on the caller's stream, behind all of the other: there is nothing left to join.
      const bool needed = layers != 3 || left_out + 1 != waits / 2;
      EXPECT_EQ(differs(Others::kLate) || differs(Others::kEarly), needed)
          << "wait " << left_out << " of " << waits << ", layers " << layers;
      simt::left_out() = -1;
    }
  }
}

/// The results of three replays of a recorded step, and of a step between the last two.
vector<Tensor> replayed(Others others, const Net& net) {
  vector<Tensor> out, told;
  Graph graph(net.in[0].device());
  graph.capture([&] { out = net.run(); });
  for (int i = 0; i < 3; ++i) {
    const simt::Deferred later(others);
    {
      const NoGrad quiet;
      Tensor(net.in[0]).mul_(0.5);
    }
    graph.replay();
    for (const Tensor& t : out) told.push_back(t.to(kCpu));
    if (i == 1)
      for (const Tensor& t : net.run()) told.push_back(t.to(kCpu));
  }
  return told;
}

Net recorded_net(int64_t layers) {
  return Net({.options = {.num_layers = layers, .dropout = 0.5}, .steps = 6}, Device{DeviceType::kCuda, 0});
}

TEST_F(SimtWavefront, is_recorded_and_replayed_with_new_masks) {
  for (const int64_t layers : {2, 3}) {
    const auto plain = with_chunks(0, [&] { return replayed(Others::kLate, recorded_net(layers)); });
    int64_t waits = 0;
    const auto late = with_chunks(
        3, [&] { return replayed(Others::kLate, recorded_net(layers)); }, &waits);
    EXPECT_TRUE(same_bits(late, plain));
    EXPECT_GE(waits, 2 * waits_of(layers, 3));
    EXPECT_TRUE(
        same_bits(with_chunks(3, [&] { return replayed(Others::kEarly, recorded_net(layers)); }), plain));
  }
}

TEST_F(SimtWavefront, needs_each_of_its_events_in_a_recording) {
  const auto plain = with_chunks(0, [&] { return replayed(Others::kLate, recorded_net(2)); });
  const int64_t waits = waits_of(2, 3);
  for (int64_t left_out = 0; left_out < waits; ++left_out) {
    bool found = false;
    for (const Others others : {Others::kLate, Others::kEarly}) {
      const Net net = recorded_net(2);
      try {
        found = found || !same_bits(with_chunks(3,
                                                [&] {
                                                  simt::left_out() = simt::stream_waits() + left_out;
                                                  return replayed(others, net);
                                                }),
                                    plain);
      } catch (const CudaError&) {  // such as a stream that was not joined back
        found = true;
      }
    }
    EXPECT_TRUE(found) << "wait " << left_out << " of " << waits;
    simt::left_out() = -1;
  }
}

TEST_F(SimtWavefront, runs_beside_recordings_of_other_threads) {
  const auto seeded = [&] {
    Net net = recorded_net(3);
    net.module->seed(5);
    return net;
  };
  const auto plain = with_chunks(0, [&] { return seeded().run(); });
  set_recurrent_wavefront(3);
  std::mutex one_at_a_time;
  vector<vector<Tensor>> given(4);
  vector<std::thread> threads;
  for (size_t i = 0; i < given.size(); ++i)
    threads.emplace_back([&, i] {
      const Net net = seeded();
      if (i % 2 == 0) {  // two threads share the default stream
        given[i] = net.run();
        return;
      }
      const std::lock_guard lock(one_at_a_time);
      Graph graph(gpu);
      vector<Tensor> out;
      graph.capture([&] { out = net.run(); });
      graph.replay();
      for (const Tensor& t : out) given[i].push_back(t.to(kCpu));
    });
  for (std::thread& t : threads) t.join();
  for (const auto& each : given) EXPECT_TRUE(same_bits(each, plain));
}

TEST_F(SimtWavefront, recovers_from_a_device_that_is_full) {
  const Net net({.options = {.num_layers = 3, .dropout = 0.5}, .steps = 6}, gpu);
  const auto plain = with_chunks(0, [&] { return drawn(net); });
  size_t available = 0, total = 0;
  runtime::memory_info(&available, &total);
  const size_t used = total - available;
  const int64_t in_use = memory_stats(gpu).in_use;
  int failed = 0, passed = 0;
  for (size_t more = 0; passed == 0; more += 1024) {
    simt::settings().device_bytes = used + more;
    try {
      with_chunks(3, [&] { return net.forward(); });
      ++passed;
    } catch (const OutOfMemoryError&) {
      ++failed;
    }
    simt::settings().device_bytes = 0;
  }
  EXPECT_GT(failed, 3);
  EXPECT_EQ(memory_stats(gpu).in_use, in_use);
  EXPECT_TRUE(same_bits(with_chunks(3, [&] { return drawn(net); }), plain));
  EXPECT_EQ(memory_stats(gpu).in_use, in_use);
}

}  // namespace
}  // namespace weft::cuda
