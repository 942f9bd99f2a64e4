// Recurrent parameters that lie in cuDNN's weight space (nn::Recurrent::flatten_parameters), on the emulated
// cuDNN. The same bits as with packed weights, and no copies in a step. Each parameter stays a tensor of its
// own for optimizers, files, moves and other holders. The sizes are multiples of three, for which the
// emulated cuDNN joins the gates of a weight.
#include <gtest/gtest.h>

#include <algorithm>
#include <any>
#include <cstdio>
#include <filesystem>

#include <weft/autograd/ops/inner/rnn_stack.h>
#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/autograd/tape/inner/set_data.h>
#include <weft/autograd/tape/saved_hooks.h>
#include <weft/kernels/accelerator.h>
#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/optim/optim.h>
#include <weft/tensor/cuda.h>
#include "support/libraries/libraries.h"
#include "support/simt/device.h"
#include "support/simt/memory.h"
#include "support/simt/thread.h"
#include "support/stacks.h"

namespace weft::cuda {
namespace {

using libraries::counts;
using std::vector;

struct EmulatedFlat : testing::Test {
  void TearDown() override {
    simt::settings().device_bytes = 0;
    set_cudnn_dropout(false);
    set_use_cudnn(true);
  }
  const Device gpu{DeviceType::kCuda, 0};
};

Case three_by(DType type = kFloat32, RnnMode mode = RnnMode::kLstm) {
  return {.mode = mode, .options = {.num_layers = 2, .bidirectional = true, .dtype = type}, .hidden = 3};
}

/// The memory of which all parameters are parts, or null.
const Storage* space_of(const vector<Tensor>& tensors) {
  const Storage* whole = tensors[0].body().storage->whole();
  for (const Tensor& t : tensors)
    if (t.body().storage->whole() != whole) whole = nullptr;
  return whole;
}
const Storage* space_of(const Net& net) { return space_of(net.module->parameters()); }
/// Gives each parameter memory of its own.
void separate(const Net& net) {
  for (const Tensor& p : net.module->parameters()) set_data(p, p.detach().clone());
}
/// The net, with parameters that cuDNN's weights are packed from.
Net packed(const Case& c, Device device) {
  Net net(c, device);
  separate(net);
  return net;
}
vector<Tensor> grads_of(const Net& net) {
  vector<Tensor> out;
  for (const Tensor& p : net.module->parameters()) out.push_back(p.grad());
  return out;
}
vector<Tensor> values_of(const Net& net) {
  vector<Tensor> out;
  for (const Tensor& p : net.module->parameters()) out.push_back(p.detach());
  return out;
}
void train(const Net& net, optim::Optimizer& optimizer) {
  net.loss().backward();
  optim::clip_grad_norm(net.module->parameters(), 0.5);
  optimizer.step();
  optimizer.zero_grad();
}
/// Whether a call of the module takes the weights from where they are. Its gradients are right.
bool runs_in_place(const Net& net) {
  const Storage* const whole = space_of(net);
  const auto out = net.run();
  const bool in_place = whole && counts().last_weights == whole->data();
  Net other(net.c, net.in[0].device());
  separate(other);
  other.module->load_state_dict(net.module->state_dict());
  EXPECT_TRUE(same(out, other.run()));
  return in_place;
}

TEST_F(EmulatedFlat, parameters_give_the_bits_of_packed_ones) {
  for (const RnnMode mode : {RnnMode::kLstm, RnnMode::kGru, RnnMode::kTanh, RnnMode::kRelu})
    for (const int64_t layers : {1, 3})
      for (const bool both : {false, true})
        for (const bool bias : {false, true})
          for (const DType type : {kFloat32, kFloat16}) {
            const Case c{
                .mode = mode,
                .options = {.num_layers = layers, .bias = bias, .bidirectional = both, .dtype = type},
                .hidden = 3};
            SCOPED_TRACE(str("mode ", static_cast<int>(mode), " layers ", layers, " both ", both, " bias ",
                             bias, " ", type));
            const Net flat(c, gpu), other = packed(c, gpu);
            ASSERT_NE(space_of(flat), nullptr);
            ASSERT_EQ(space_of(other), nullptr);
            const auto out = flat.run();
            EXPECT_EQ(counts().last_weights, space_of(flat)->data());
            EXPECT_TRUE(same(out, other.run()));
            EXPECT_NE(counts().last_weights, space_of(flat)->data());
          }
  for (const DType type : {kFloat64, kBFloat16})
    EXPECT_TRUE(same(Net(three_by(type), gpu).run(), packed(three_by(type), gpu).run())) << type;
}

TEST_F(EmulatedFlat, parameters_are_not_copied_in_a_step) {
  Case c = three_by();
  const auto blocks_of_steps = [&](const Net& net) {
    optim::Adam adam(net.module->parameters());
    train(net, adam);
    const int64_t before = counts().weight_blocks;
    for (int i = 0; i < 3; ++i) train(net, adam);
    const NoGrad quiet;
    net.forward();
    return counts().weight_blocks - before;
  };
  EXPECT_EQ(blocks_of_steps(Net(c, gpu)), 0);
  // a forward packs, a backward of short sequences packs too; the gradients lie in cuDNN's space in any case
  EXPECT_GT(blocks_of_steps(packed(c, gpu)), 0);
  c.steps = 9;
  EXPECT_EQ(blocks_of_steps(Net(c, gpu)), 0);
  // a size whose gates cuDNN separates is packed, and its gradients are gathered
  c.hidden = 4;
  EXPECT_EQ(space_of(Net(c, gpu)), nullptr);
  EXPECT_GT(blocks_of_steps(Net(c, gpu)), 0);
}

TEST_F(EmulatedFlat, gradients_are_tensors_of_their_own) {
  const Net net(three_by(), gpu), host(three_by(), kCpu);
  net.loss().backward(), host.loss().backward();
  const Storage* const sums = space_of(grads_of(net));
  ASSERT_NE(sums, nullptr);
  EXPECT_EQ(counts().last_sums, sums->data());  // the leaves took over the memory that cuDNN wrote
  expect_near(grads_of(net), grads_of(host), 1e-5);

  net.loss().backward(), host.loss().backward();  // adds to them
  EXPECT_EQ(space_of(grads_of(net)), sums);
  expect_near(grads_of(net), grads_of(host), 1e-5);

  vector<Tensor> grads = grads_of(net);
  const Tensor first = grads[0], second = grads[1].clone();
  const uint32_t version = grads[1].version();
  {
    const NoGrad quiet;
    grads[0].detach().zero_();
  }
  EXPECT_EQ(grads[1].version(), version);
  EXPECT_FALSE(first.shares_storage(grads[1]));
  EXPECT_TRUE(same({grads[1]}, {second}));

  Tensor last = grads_of(net).back();  // alone, it keeps the memory
  const vector<double> numbers = last.to(kCpu).to(kFloat64).to_vector<double>();
  net.module->zero_grad();
  grads.clear();
  const Net more(three_by(), gpu);
  more.run();
  EXPECT_EQ(last.to(kCpu).to(kFloat64).to_vector<double>(), numbers);
}

TEST_F(EmulatedFlat, gradients_of_some_parameters_or_of_a_graph_used_twice_are_right) {
  const Net net(three_by(), gpu), host(three_by(), kCpu);
  for (const Net* n : {&net, &host}) n->module->parameters()[5].requires_grad_(false);
  const auto some = [](const Net& n) {
    const vector<Tensor> p = n.module->parameters();
    return grad({n.loss()}, {p[0], p[3], p[4], n.in[0]});
  };
  expect_near(some(net), some(host), 1e-5);
  const Net twice(three_by(), gpu);
  const Tensor loss = twice.loss();
  const auto given = grad({loss}, twice.wanted(), {}, {.retain_graph = true});
  EXPECT_TRUE(same(grad({loss}, twice.wanted()), given));
  const auto second = [](const Net& n) {
    const Tensor dx = grad({n.loss()}, {n.in[0]}, {}, {.create_graph = true})[0];
    return grad({(dx * dx).sum()}, n.wanted());
  };
  Case c = three_by(kFloat64);
  c.steps = 2;
  expect_near(second(Net(c, gpu)), second(Net(c, kCpu)), 1e-10);
}

TEST_F(EmulatedFlat, optimizers_step_them_as_packed_ones) {
  for (const DType type : {kFloat32, kFloat16}) {
    const Case c = three_by(type, RnnMode::kGru);  // odd places for the packs of a step
    const Net flat(c, gpu), other = packed(c, gpu);
    const auto steps = [&](const Net& net) {
      optim::AdamW adam(net.module->parameters(), {.lr = 0.01, .master_weights = type == kFloat16});
      for (int i = 0; i < 3; ++i) train(net, adam);
      return values_of(net);
    };
    EXPECT_TRUE(same(steps(flat), steps(other))) << type;
    EXPECT_TRUE(runs_in_place(flat)) << type;
  }
}

TEST_F(EmulatedFlat, a_write_to_one_parameter_is_seen_by_the_graphs_that_saved_it) {
  const Net net(three_by(), gpu);
  const Tensor w = net.module->parameters()[0], other = net.module->parameters()[1];
  const Tensor squared = (other * other).sum();  // saved `other` alone
  const Tensor loss = net.loss();
  {
    const NoGrad quiet;
    Tensor(w).mul_(2);
  }
  EXPECT_THROW(loss.backward(), AutogradError);
  squared.backward();
  EXPECT_TRUE(same({other.grad()}, {other.detach() * 2}));
  EXPECT_TRUE(runs_in_place(net));
}

TEST_F(EmulatedFlat, a_saved_parameter_is_not_its_whole_space) {
  const Net net(three_by(), gpu);
  const auto path = [](const char* name) { return (std::filesystem::temp_directory_path() / name).string(); };
  const std::string flat_file = path("weft_flat.safetensors"), plain_file = path("weft_plain.safetensors");
  net.module->save(flat_file);
  const Net host(three_by(), kCpu);
  host.module->load_state_dict(net.module->state_dict());
  host.module->save(plain_file);
  EXPECT_EQ(std::filesystem::file_size(flat_file), std::filesystem::file_size(plain_file));
  const Net loaded(three_by(), gpu);
  {
    const NoGrad quiet;
    for (const Tensor& p : loaded.module->parameters()) Tensor(p).zero_();
  }
  loaded.module->load(flat_file);
  EXPECT_TRUE(same(values_of(loaded), values_of(net)));
  EXPECT_TRUE(runs_in_place(loaded));  // values are copied into the space
  std::remove(flat_file.c_str()), std::remove(plain_file.c_str());
}

TEST_F(EmulatedFlat, modules_are_cloned_moved_and_converted) {
  nn::LSTM lstm(4, 3, {.num_layers = 2});
  lstm.to(gpu);
  const vector<Tensor> mine = lstm.parameters();
  const Tensor x = ones({2, 1, 4}, {.device = gpu});
  const auto y_of = [&](const nn::LSTM& m) { return m.forward(x).y.detach(); };
  const Tensor y = y_of(lstm);
  const auto copy = nn::clone(lstm, 4, 3, nn::RnnOptions{.num_layers = 2});
  EXPECT_EQ(copy->parameters()[0].device(), kCpu);
  copy->to(gpu);
  EXPECT_NE(space_of(copy->parameters()), nullptr);
  EXPECT_NE(space_of(copy->parameters()), space_of(mine));
  {
    const NoGrad quiet;
    Tensor(copy->parameters()[0]).zero_();
  }
  EXPECT_TRUE(same({y_of(lstm)}, {y}));

  nn::LSTM taken(std::move(lstm));
  EXPECT_EQ(space_of(taken.parameters()), space_of(mine));
  EXPECT_TRUE(same({y_of(taken)}, {y}));

  taken.to(kFloat16);
  ASSERT_NE(space_of(mine), nullptr);
  EXPECT_EQ(mine[0].dtype(), kFloat16);
  taken.forward(x.to(kFloat16));
  EXPECT_EQ(counts().last_weights, space_of(mine)->data());
  taken.to(kCpu);
  for (const Tensor& p : mine) {
    EXPECT_EQ(p.body().storage->whole(), nullptr);
    EXPECT_EQ(static_cast<int64_t>(p.body().storage->bytes()), p.numel() * 2);
  }
  taken.to(gpu);
  const Storage* const space = space_of(mine);
  taken.to(gpu);  // they stay where they are
  EXPECT_EQ(space_of(mine), space);
}

TEST_F(EmulatedFlat, a_child_of_a_moved_model_lies_so_too) {
  struct Model : nn::Module {
    nn::Linear in{4, 3};
    nn::GRU rnn{3, 3};
    Model() { add("in", in), add("rnn", rnn); }
  } model;
  model.to(gpu);
  EXPECT_NE(space_of(model.rnn.parameters()), nullptr);
  EXPECT_EQ(model.in.weight.body().storage->whole(), nullptr);
}

TEST_F(EmulatedFlat, flatten_parameters_keeps_gradients_hooks_and_optimizers) {
  set_use_cudnn(false);
  const Net net(three_by(), gpu), other(three_by(), gpu);
  EXPECT_EQ(space_of(net), nullptr);
  set_use_cudnn(true);
  const auto used = [](const Net& n, bool flattens) {
    optim::Adam adam(n.module->parameters());
    int calls = 0;
    const Tensor first = n.module->parameters()[0];
    const ScopedHook hook(first.register_hook([&](const Tensor& g) { return ++calls, g; }));
    train(n, adam);
    n.loss().backward();
    if (flattens) n.module->flatten_parameters();
    n.loss().backward();
    EXPECT_EQ(calls, 3);
    adam.step();
    return values_of(n);
  };
  EXPECT_TRUE(same(used(net, true), used(other, false)));
  EXPECT_NE(space_of(net), nullptr);
  EXPECT_EQ(space_of(other), nullptr);
  set_use_cudnn(false);  // the own cell takes them too
  expect_near(net.run(), other.run(), 1e-5);
}

TEST_F(EmulatedFlat, memory_that_others_use_stays_where_it_is) {
  const auto stays = [&](const auto& use) {
    const Net net = packed(three_by(), gpu);
    [[maybe_unused]] const auto held = use(net);
    net.module->flatten_parameters();
    EXPECT_FALSE(runs_in_place(net));
    return space_of(net) == nullptr;
  };
  EXPECT_TRUE(stays([](const Net& n) { return n.module->state_dict(); }));
  EXPECT_TRUE(stays([](const Net& n) { return n.loss(); }));  // a graph saved them
  EXPECT_TRUE(stays([](const Net& n) { return n.module->freeze(), 0; }));
  EXPECT_TRUE(stays([](const Net& n) { return mark_concurrent(n.module->parameters()[2]), 0; }));
  EXPECT_TRUE(stays([&](const Net& n) {  // two modules with one weight
    const Net tied = packed(three_by(), gpu);
    set_data(tied.module->parameters()[0], n.module->parameters()[0]);
    return tied;
  }));
  const Net net = packed(three_by(), gpu);
  {
    Graph graph(gpu);
    graph.capture([&] { net.module->flatten_parameters(); });
  }
  EXPECT_EQ(space_of(net), nullptr);
  net.module->flatten_parameters();
  EXPECT_TRUE(runs_in_place(net));
}

TEST_F(EmulatedFlat, without_room_for_a_second_copy_parameters_stay_and_are_packed_later) {
  const Net net = packed(three_by(), gpu);
  size_t available = 0, total = 0;
  runtime::memory_info(&available, &total);
  simt::settings().device_bytes = total - available;
  net.module->to(gpu);
  EXPECT_EQ(space_of(net), nullptr);
  EXPECT_THROW(net.module->flatten_parameters(), OutOfMemoryError);
  simt::settings().device_bytes = 0;
  EXPECT_FALSE(runs_in_place(net));
}

TEST_F(EmulatedFlat, a_parameter_that_left_the_space_is_packed) {
  const Net net(three_by(), gpu);
  const Tensor w = net.module->parameters()[2];
  set_data(w, w.detach() * 2);
  EXPECT_FALSE(runs_in_place(net));
  net.module->flatten_parameters();
  EXPECT_TRUE(runs_in_place(net));

  // Steps replace the memory of a parameter that a graph holds.
  const void* const space = space_of(net)->data();
  for (const Tensor& p : net.module->parameters()) mark_concurrent(p);
  optim::SGD sgd(net.module->parameters(), {.lr = 0.1});
  const Tensor loss = net.loss();
  EXPECT_EQ(counts().last_weights, space);
  net.loss().backward();
  sgd.step();
  const vector<Tensor> late = grad({loss}, net.wanted());  // of the values at its forward
  const Net same_start(three_by(), gpu);
  set_data(same_start.module->parameters()[2], same_start.module->parameters()[2].detach() * 2);
  EXPECT_TRUE(same(late, grad({same_start.loss()}, same_start.wanted())));
  EXPECT_FALSE(runs_in_place(net));
}

TEST_F(EmulatedFlat, an_autocast_and_packed_saved_tensors_take_copies) {
  const Net net(three_by(), gpu), other = packed(three_by(), gpu);
  const auto lowered = [](const Net& n) {
    const Autocast half(kFloat16);
    return n.run();
  };
  EXPECT_TRUE(same(lowered(net), lowered(other)));
  const auto hooked = [](const Net& n) {
    Tensor loss;
    {
      const SavedTensorHooks hooks(
          [](const Tensor& x) { return std::any(x.detach().to(kCpu)); },
          [&](const std::any& x) { return std::any_cast<Tensor>(x).to(n.in[0].device()); });
      loss = n.loss();
    }
    return grad({loss}, n.wanted());
  };
  EXPECT_TRUE(same(hooked(net), hooked(other)));
}

TEST_F(EmulatedFlat, one_bias_of_two_is_packed_beside_zeros) {
  const Net net(three_by(), gpu);
  const auto run = [&](bool both) {
    vector<Tensor> weights = net.module->parameters();
    for (size_t i = 3; i < weights.size(); i += 4)
      weights[i] = both ? zeros_like(weights[i]).requires_grad_() : Tensor();
    const auto r =
        rnn_stack({.layers = 2, .both = true}, net.in[0], net.in[1], net.in[2], weights, default_generator());
    return grad({(r->y * r->y).sum()}, {net.in[0], weights[0], weights[2], weights[6]});
  };
  EXPECT_TRUE(same(run(false), run(true)));
}

TEST_F(EmulatedFlat, parts_of_one_space_in_another_order_are_packed) {
  const Case c{.options = {.num_layers = 2}, .inputs = 3, .hidden = 3};
  const Net net(c, gpu), other = packed(c, gpu);
  const auto exchanged = [](const Net& n) {
    vector<Tensor> weights = n.module->parameters();
    std::rotate(weights.begin(), weights.begin() + 4, weights.end());
    const auto r = rnn_stack({.layers = 2}, n.in[0], n.in[1], n.in[2], weights, default_generator());
    vector<Tensor> out = grad({(r->y * r->y).sum()}, weights);
    out.push_back(r->y.detach());
    return out;
  };
  EXPECT_TRUE(same(exchanged(net), exchanged(other)));
  EXPECT_TRUE(runs_in_place(net));
}

TEST_F(EmulatedFlat, a_recorded_step_trains_them) {
  Case c = three_by();
  const Net net(c, gpu), other = packed(c, gpu);
  const auto trained = [&](const Net& n) {
    optim::SGD sgd(n.module->parameters(), {.lr = 0.1, .momentum = 0.9});
    const auto step = [&] {
      n.loss().backward();
      sgd.step();
      n.module->zero_grad();
    };
    step();
    Graph graph(gpu);
    graph.capture(step);
    for (int i = 0; i < 3; ++i) graph.replay();
    synchronize(gpu);
    return values_of(n);
  };
  EXPECT_TRUE(same(trained(net), trained(other)));
  EXPECT_TRUE(runs_in_place(net));
}

TEST_F(EmulatedFlat, dropout_takes_them_in_one_call_and_layer_by_layer) {
  Case c = dropping();
  c.hidden = 12;
  for (const bool of_cudnn : {true, false}) {
    set_cudnn_dropout(of_cudnn);
    const auto drawn = [](const Net& n) {
      manual_seed(5);
      return n.run();
    };
    EXPECT_TRUE(same(drawn(Net(c, gpu)), drawn(packed(c, gpu)))) << of_cudnn;
  }
}

TEST_F(EmulatedFlat, the_memory_is_shared_and_freed_as_a_whole) {
  const int64_t before = memory_stats(gpu).in_use;
  {
    const Net net(three_by(), gpu);
    const Tensor p = net.module->parameters()[3];
    EXPECT_EQ(p.body().storage->allocation(), space_of(net)->data());
    Accelerator& device = accelerator(gpu);
    const SharedBlock block = device.share(p.address()), whole = device.share(p.body().storage->allocation());
    EXPECT_EQ(block.segment, whole.segment);
    EXPECT_EQ(block.offset - whole.offset,
              static_cast<char*>(p.address()) - static_cast<char*>(p.body().storage->allocation()));
    const Stream side(gpu);
    record_stream(p, side);
  }
  synchronize(gpu);
  EXPECT_EQ(memory_stats(gpu).in_use, before);
}

}  // namespace
}  // namespace weft::cuda
