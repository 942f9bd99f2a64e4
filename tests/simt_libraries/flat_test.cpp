// Recurrent parameters that lie in cuDNN's weight space, on the emulated cuDNN: calls and steps. They give
// the same bits as packed weights, without copies. Each gradient is a tensor of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <any>

#include <weft/autograd/ops/inner/rnn_stack.h>
#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/inner/set_data.h>
#include <weft/autograd/tape/saved_hooks.h>
#include <weft/kernels/accelerator.h>
#include <weft/kernels/cuda_settings.h>
#include <weft/optim/optim.h>
#include <weft/tensor/cuda.h>
#include "simt_libraries/flat.h"
#include "support/libraries/libraries.h"

namespace weft::cuda {
namespace {

using libraries::counts;
using std::vector;

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

TEST_F(EmulatedFlat, a_layout_is_asked_for_once_for_all_sequences_and_never_for_a_single_layer) {
  Case c = three_by();
  c.hidden = 15, c.options.dropout = 0.5;  // a size of this test alone
  const auto queries_of = [](const auto& work) {
    const int64_t before = counts().weight_blocks;
    work();
    return counts().weight_blocks - before;
  };
  const int64_t of_all = 4 * 2 * 4;  // cells, matrices of each, gates
  EXPECT_EQ(queries_of([&] { Net(c, gpu); }), of_all);
  const Net net(c, gpu);
  set_cudnn_dropout(true);
  EXPECT_EQ(queries_of([&] {
              for (const int64_t steps : {2, 3, 9})
                for (const int64_t n : {1, 4}) {
                  const Tensor x = ones({steps, n, c.inputs}, {.device = gpu});
                  net.module->train();
                  net.module->forward(x);
                  net.module->eval();
                  net.module->forward(x);
                }
            }),
            0);
  const vector<Tensor> w = net.module->parameters();
  const auto layer = [&](int64_t steps) {
    return queries_of([&] {
      const NoGrad quiet;
      const TensorOptions there{.device = gpu};
      rnn_layer(RnnMode::kLstm, ones({steps, 2, c.inputs}, there), zeros({2, c.hidden}, there),
                zeros({2, c.hidden}, there), w[0], w[1], w[2], w[3]);
    });
  };
  const int64_t first = layer(2);  // packs
  EXPECT_EQ(layer(2), first);
  EXPECT_EQ(layer(5), first);
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

TEST_F(EmulatedFlat, saved_tensor_hooks_see_the_reserve_and_packed_weights) {
  Case c = three_by();
  c.steps = 9;  // longer than the border from which packed weights are kept
  const auto saved_by = [](const Net& n) {
    int count = 0;
    const SavedTensorHooks hooks([&](const Tensor& x) { return ++count, std::any(x.clone()); },
                                 [](const std::any& x) { return std::any_cast<Tensor>(x); });
    n.forward();
    return count;
  };
  const Net flat(c, gpu);
  const int arguments = static_cast<int>(flat.wanted().size()), results = 3;
  EXPECT_EQ(saved_by(flat), arguments + results + 1);
  EXPECT_EQ(saved_by(packed(c, gpu)), arguments + results + 2);
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
