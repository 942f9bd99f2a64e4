// Stacks of nn/rnn.h in one call of an emulated cuDNN, against layer by layer on the CPU: modes, directions,
// biases, states, inference, recordings, dropout.
#include <gtest/gtest.h>

#include <cmath>

#include <weft/kernels/cuda_settings.h>
#include <weft/tensor/cuda.h>
#include "support/errors.h"
#include "support/libraries/libraries.h"
#include "support/simt/device.h"
#include "support/simt/streams.h"
#include "support/stacks.h"

namespace weft::cuda {
namespace {

using libraries::counts;
using libraries::settings;
using std::vector;

constexpr RnnMode kModes[] = {RnnMode::kLstm, RnnMode::kGru, RnnMode::kTanh, RnnMode::kRelu};

struct EmulatedStacks : testing::Test {
  void TearDown() override {
    settings() = {};
    set_cudnn_dropout(false);
    set_recurrent_wavefront(0);
    set_use_cudnn(true);
  }
  const Device gpu{DeviceType::kCuda, 0};
};

vector<Case> cases() {
  vector<Case> all;
  for (const RnnMode mode : kModes)
    for (const int64_t layers : {1, 2, 3})
      for (const bool both : {false, true})
        for (const bool bias : {false, true})
          all.push_back(
              {.mode = mode,
               .options = {.num_layers = layers, .bias = bias, .batch_first = bias, .bidirectional = both},
               .states = both == bias});
  return all;
}

TEST_F(EmulatedStacks, match_layer_by_layer_on_the_cpu) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(str("mode ", static_cast<int>(c.mode), " layers ", c.options.num_layers, " both ",
                     c.options.bidirectional, " bias ", c.options.bias, " states ", c.states));
    const auto before = counts();
    const Net there(c, gpu), here(c, kCpu);
    expect_near(there.run(), here.run(), 1e-5);
    EXPECT_EQ(counts().rnn_training, before.rnn_training + 1);
    EXPECT_EQ(counts().rnn_backward_data, before.rnn_backward_data + 1);
    EXPECT_EQ(counts().rnn_backward_weights, before.rnn_backward_weights + 1);
    const NoGrad quiet;
    expect_near(there.forward(), here.forward(), 1e-5);
    EXPECT_EQ(counts().rnn_inference, before.rnn_inference + 1);
    EXPECT_EQ(counts().rnn_layers,
              before.rnn_layers + 2 * c.options.num_layers * (c.options.bidirectional ? 2 : 1));
  }
}

TEST_F(EmulatedStacks, take_every_floating_type) {
  for (const DType type : {kFloat64, kFloat16, kBFloat16}) {
    const Case c{.options = {.num_layers = 2, .bidirectional = true, .dtype = type}};
    expect_near(Net(c, gpu).run(), Net(c, kCpu).run(),
                type == kFloat64   ? 1e-12
                : type == kFloat16 ? 2e-2
                                   : 1e-1);
  }
}

TEST_F(EmulatedStacks, give_what_their_layers_give_on_the_own_cell) {
  const Case c{.mode = RnnMode::kGru, .options = {.num_layers = 2, .bidirectional = true}};
  const auto with = Net(c, gpu).run();
  set_use_cudnn(false);
  const auto before = counts();
  expect_near(Net(c, gpu).run(), with, 1e-5);
  EXPECT_EQ(counts().rnn_training, before.rnn_training);
}

TEST_F(EmulatedStacks, go_over_a_retained_graph_twice_and_heed_writes_to_weights) {
  const Case c;
  const Net net(c, gpu);
  const Tensor loss = net.loss();
  const auto first = grad({loss}, net.wanted(), {}, {.retain_graph = true});
  expect_near(grad({loss}, net.wanted(), {}, {.retain_graph = true}), first, 0);
  {
    const NoGrad quiet;
    net.module->parameters()[0].mul_(2);
  }
  EXPECT_TRUE(test::has(test::error_of<AutogradError>([&] { grad({loss}, net.wanted()); }), "lstm"));
}

/// The blocks that the stack of a net keeps between forward and backward.
RnnStackRoom room_of(const Net& net) {
  const auto view = [](const Tensor& t) { return t.view_of(); };
  const vector<Tensor> w = net.module->parameters();
  vector<RnnWeights> cells;
  for (size_t i = 0; i < w.size(); i += 4)
    cells.push_back({view(w[i]), view(w[i + 1]), view(w[i + 2]), view(w[i + 3])});
  Context context;
  return backend(net.in[0].device())
      .rnn_stack(context, {.layers = net.c.options.num_layers},
                 {view(net.in[0]), view(net.in[1]), view(net.in[2]), cells})
      .value();
}

TEST_F(EmulatedStacks, keep_packed_weights_up_to_the_size_of_the_rest_and_pack_larger_ones_again) {
  Case c{.options = {.num_layers = 2, .dtype = kFloat64}, .inputs = 20, .steps = 1};
  const auto kept = [&] {
    const RnnStackRoom room = room_of(Net(c, gpu));
    return room.weights <= room.reserve;
  };
  ASSERT_FALSE(kept());
  while (!kept()) ++c.steps;
  const int64_t border = c.steps, blocks = 2 * 16;
  for (const int64_t steps : {border - 1, border}) {
    SCOPED_TRACE(str(steps, " steps, weights are kept from ", border, " on"));
    c.steps = steps;
    const Net net(c, gpu), by_layers(c, gpu);
    const auto before = counts();
    const Tensor loss = net.loss();
    const auto given = grad({loss}, net.wanted(), {}, {.retain_graph = true});
    expect_near(grad({loss}, net.wanted()), given, 0);
    EXPECT_EQ(counts().rnn_training, before.rnn_training + 1);
    // The forward packs all blocks, each of two backwards takes the gradients from them, and packs them
    // before that where they were not kept.
    EXPECT_EQ(counts().weight_blocks, before.weight_blocks + blocks * (steps < border ? 5 : 3));
    set_use_cudnn(false);
    expect_near(given, grad({by_layers.loss()}, by_layers.wanted()), 1e-10);
    set_use_cudnn(true);
  }
}

TEST_F(EmulatedStacks, only_what_is_wanted_is_computed) {
  const Net net({}, gpu), host({}, kCpu);
  const auto before = counts();
  for (const Net* n : {&net, &host})
    for (Tensor p : n->module->parameters()) p.requires_grad_(false);
  expect_near(grad({net.loss()}, {net.in[0]}), grad({host.loss()}, {host.in[0]}), 1e-5);
  EXPECT_EQ(counts().rnn_backward_data, before.rnn_backward_data + 1);
  EXPECT_EQ(counts().rnn_backward_weights, before.rnn_backward_weights);
}

TEST_F(EmulatedStacks, have_second_gradients) {
  for (const RnnMode mode : {RnnMode::kLstm, RnnMode::kTanh}) {
    const Case c{
        .mode = mode, .options = {.num_layers = 2, .bidirectional = true, .dtype = kFloat64}, .steps = 2};
    const auto second = [&](const Net& n) {
      const Tensor dx = grad({n.loss()}, {n.in[0]}, {}, {.create_graph = true})[0];
      return grad({(dx * dx).sum()}, n.wanted());
    };
    expect_near(second(Net(c, gpu)), second(Net(c, kCpu)), 1e-10);
  }
}

TEST_F(EmulatedStacks, are_recorded) {
  const Case c{.options = {.num_layers = 2, .bidirectional = true}, .hidden = 6};
  const Net net(c, gpu), host(c, kCpu);
  vector<Tensor> out;
  Graph graph(gpu);
  graph.capture([&] { out = net.run(); });
  for (const double factor : {1.0, 0.25}) {
    {
      const NoGrad quiet;
      Tensor(net.in[0]).copy_((Net(c, kCpu).in[0] * factor).to(gpu));
      Tensor(host.in[0]).copy_(Net(c, kCpu).in[0] * factor);
    }
    graph.replay();
    expect_near(out, host.run(), 1e-5);
  }
}

TEST_F(EmulatedStacks, are_cast_by_an_autocast) {
  const Case c{.options = {.num_layers = 2}};
  const auto before = counts();
  const Net net(c, gpu);
  {
    const Autocast half(kBFloat16);
    EXPECT_EQ(net.forward()[0].dtype(), kBFloat16);
  }
  EXPECT_EQ(counts().rnn_layers, before.rnn_layers + 2);
  EXPECT_EQ(counts().rnn_training, before.rnn_training + 1);
}

TEST_F(EmulatedStacks, that_are_refused_go_layer_by_layer) {
  const Case c{.hidden = 9};
  settings().refuses = "cudnnSetRNNDescriptor_v8";
  const auto before = counts();
  const auto out = Net(c, gpu).run();
  settings() = {};
  expect_near(out, Net(c, kCpu).run(), 1e-5);
  EXPECT_EQ(counts().rnn_training, before.rnn_training);
  EXPECT_THROW(Net(c, gpu).module->forward(ones({0, 2, 3}, {.device = gpu})), ShapeError);
  EXPECT_THROW(Net(c, gpu).module->forward(ones({5, 2, 3}, {.dtype = kFloat64, .device = gpu})), DTypeError);
}

TEST_F(EmulatedStacks, with_dropout_draw_what_the_cpu_draws_unless_told) {
  const Case c = dropping();
  const auto before = counts();
  manual_seed(5);
  const auto there = Net(c, gpu).run();
  manual_seed(5);
  expect_near(there, Net(c, kCpu).run(), 1e-10);
  EXPECT_EQ(counts().rnn_training, before.rnn_training + 3);  // layer by layer
  const Net net(c, gpu), host(c, kCpu);
  net.module->eval(), host.module->eval();
  expect_near(net.run(), host.run(), 1e-10);
  EXPECT_EQ(counts().rnn_training, before.rnn_training + 4);  // in evaluation at once
}

TEST_F(EmulatedStacks, with_dropout_of_cudnn_repeat_their_numbers) {
  set_cudnn_dropout(true);
  const auto before = counts();
  const Net net(dropping(), gpu);
  manual_seed(5);
  const auto first = net.run(), second = net.run();
  EXPECT_FALSE(same(first, second));
  manual_seed(5);
  EXPECT_TRUE(same(net.run(), first));
  EXPECT_TRUE(same(net.run(), second));
  manual_seed(6);
  EXPECT_FALSE(same(net.run(), first));
  EXPECT_EQ(counts().rnn_training, before.rnn_training + 5);
  manual_seed(5);
  {
    const NoGrad quiet;  // it draws there too
    expect_near({net.forward()[0]}, {first[0]}, 0);
  }
  const Net other({.options = {.num_layers = 2, .dropout = 0.25, .dtype = kFloat64}, .hidden = 8}, gpu);
  manual_seed(5);
  const auto elsewhere = other.run();
  manual_seed(5);
  net.run();
  EXPECT_FALSE(same(other.run(), elsewhere));  // one module's numbers go on from the other's
  net.module->eval();
  const Net host(dropping(), kCpu);
  host.module->eval();
  expect_near(net.run(), host.run(), 1e-10);
}

TEST_F(EmulatedStacks, with_dropout_of_cudnn_have_the_gradients_of_their_masks) {
  set_cudnn_dropout(true);
  const Net net(dropping(), gpu);
  manual_seed(7);
  const auto wanted = net.wanted();
  const auto given = grad({net.loss()}, wanted);
  const NoGrad quiet;
  for (size_t w = 0; w < wanted.size(); ++w) {
    const Tensor value = wanted[w].detach().clone(),
                 change = randn(value.sizes(), {.dtype = kFloat64}).to(gpu) * 1e-5;
    const auto loss_at = [&](double sign) {
      Tensor(wanted[w]).copy_(value + change * sign);
      manual_seed(7);
      return net.loss().item<double>();
    };
    const double along = (given[w] * change).sum().item<double>(), measured = (loss_at(1) - loss_at(-1)) / 2;
    Tensor(wanted[w]).copy_(value);
    EXPECT_NEAR(measured, along, 1e-4 * std::abs(along) + 1e-9) << "tensor " << w;
  }
}

TEST_F(EmulatedStacks, with_dropout_of_cudnn_repeat_their_masks_in_a_checkpoint) {
  set_cudnn_dropout(true);
  nn::LSTM first(4, 4, {.num_layers = 2, .dropout = 0.5, .dtype = kFloat64}),
      second(4, 4, {.num_layers = 2, .dropout = 0.5, .dtype = kFloat64});
  first.to(gpu), second.to(gpu);
  const Tensor x = ones({5, 3, 4}, {.dtype = kFloat64, .device = gpu});
  const auto gradients = [&](bool kept) {
    manual_seed(5);
    const Tensor between = first.forward(x).y;
    default_generator().renew();  // as a checkpoint begins
    const Tensor y =
        kept ? second.forward(between).y
             : checkpoint([&](const vector<Tensor>& in) { return vector<Tensor>{second.forward(in[0]).y}; },
                          {between})[0];
    vector<Tensor> wanted = first.parameters();
    for (const Tensor& p : second.parameters()) wanted.push_back(p);
    for (const Tensor& p : wanted) p.zero_grad();
    (y * y).sum().backward();
    vector<Tensor> out;
    for (const Tensor& p : wanted) out.push_back(p.grad().to(kCpu));
    return out;
  };
  EXPECT_TRUE(same(gradients(false), gradients(true)));
}

TEST_F(EmulatedStacks, with_dropout_of_cudnn_have_no_second_gradients) {
  set_cudnn_dropout(true);
  const Net net(dropping(), gpu);
  EXPECT_TRUE(test::has(
      test::error_of<AutogradError>([&] { grad({net.loss()}, {net.in[0]}, {}, {.create_graph = true}); }),
      "dropout 0.5"));
}

TEST_F(EmulatedStacks, with_dropout_of_cudnn_are_recorded_layer_by_layer) {
  set_cudnn_dropout(true);
  const Net net(dropping(), gpu);
  net.run();
  auto before = counts();
  vector<Tensor> out;
  Graph graph(gpu);
  graph.capture([&] {
    before = counts();
    out = net.run();
  });
  EXPECT_EQ(counts().rnn_training, before.rnn_training + 3);
  graph.replay();
  const Tensor y = out[0].to(kCpu);
  graph.replay();
  EXPECT_GT((out[0].to(kCpu) - y).abs().max().item<double>(), 0);  // each replay draws anew
}

TEST_F(EmulatedStacks, with_dropout_of_cudnn_draw_on_one_stream_after_the_other) {
  set_cudnn_dropout(true);
  const Net net(dropping(), gpu);
  manual_seed(9);
  net.run();
  const auto second = net.run();
  const Stream side(gpu);
  manual_seed(9);
  synchronize(gpu);
  vector<Tensor> first, there;
  {
    const simt::Deferred late;
    first = net.run();  // has not begun when the other asks
    const StreamGuard guard(side);
    there = net.run();
    side.synchronize();
    EXPECT_TRUE(same(there, second));
  }
}

// The emulated cuBLASLt chooses by the sizes of a product, so sums may differ in their order.
TEST_F(EmulatedStacks, in_chunks_match_layer_by_layer_with_the_masks_of_the_cpu) {
  set_use_cudnn(false);
  const Net net(dropping(), gpu), host(dropping(), kCpu);
  const auto given = [](const Net& which, int chunks) {
    set_recurrent_wavefront(chunks);
    manual_seed(5);
    const simt::Deferred late(chunks == 3 ? simt::Others::kEarly : simt::Others::kLate);
    return which.run();
  };
  const auto before = counts();
  const auto plain = given(net, 0);
  for (const int chunks : {2, 3}) expect_near(given(net, chunks), plain, 1e-10);
  expect_near(given(net, 3), given(host, 3), 1e-10);
  EXPECT_EQ(counts().rnn_training, before.rnn_training);
}

TEST_F(EmulatedStacks, in_chunks_are_recorded) {
  set_use_cudnn(false);
  const Net net(dropping(), gpu);
  const auto replayed = [&](int chunks) {
    set_recurrent_wavefront(chunks);
    manual_seed(5);
    vector<Tensor> out, told;
    Graph graph(gpu);
    graph.capture([&] { out = net.run(); });
    for (int i = 0; i < 2; ++i) {
      graph.replay();
      for (const Tensor& t : out) told.push_back(t.to(kCpu));
    }
    return told;
  };
  expect_near(replayed(3), replayed(0), 1e-10);
}

}  // namespace
}  // namespace weft::cuda
