// The way of recurrent parameters into cuDNN's weight space and out of it, on the emulated cuDNN
// (nn::Recurrent::flatten_parameters): moves, files, other holders and recordings.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include <weft/autograd/tape/concurrent_parameter.h>
#include <weft/autograd/tape/inner/set_data.h>
#include <weft/kernels/cuda/host/runtime.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/optim/optim.h>
#include <weft/tensor/cuda.h>
#include "simt_libraries/flat.h"
#include "support/libraries/libraries.h"
#include "support/simt/memory.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using libraries::counts;
using std::vector;

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

TEST_F(EmulatedFlat, a_move_to_where_they_are_leaves_a_recording_its_parameters) {
  set_use_cudnn(false);
  struct Model : nn::Module {
    nn::Linear in{4, 4};
    nn::LSTM rnn{4, 3};
    Model() { add("in", in), add("rnn", rnn); }
  } model;
  model.to(gpu);
  const Tensor x = ones({2, 1, 4}, {.device = gpu});
  const NoGrad quiet;
  const Tensor expected = model.rnn.forward(x).y;
  Tensor y;
  Graph graph(gpu);
  graph.capture([&] { y = model.rnn.forward(x).y; });
  const vector<Tensor> all = model.rnn.parameters();
  vector<const void*> places;
  for (const Tensor& p : all) places.push_back(p.address());
  const auto stayed = [&] {
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].address() != places[i]) return false;
    return true;
  };
  set_use_cudnn(true);
  model.to(gpu);
  EXPECT_TRUE(stayed());
  model.to(kFloat32);
  EXPECT_TRUE(stayed());
  model.in.to(kCpu);
  model.to(gpu);  // moves another child
  EXPECT_TRUE(stayed());
  if (!stayed()) return;  // the recording reads memory that was freed
  graph.replay();
  EXPECT_TRUE(same({y}, {expected}));
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

}  // namespace
}  // namespace weft::cuda
