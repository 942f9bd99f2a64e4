// The claims of docs/conformance.md on gradients under device maps, and steps of distributed optimizers. The
// gradient of a tensor that travelled comes back to its device by the reversed map.
#include "chain.h"

namespace weft::test {

Tensor grad_add(const Tensor& x, const Tensor& y) { return add(x, y); }
WEFT_RPC(grad_add);
/// 3 x on another device of the callee; comes back from there.
Tensor grad_triple_on(const Tensor& x, const std::string& device) { return mul(x.to(Device(device)), 3); }
WEFT_RPC(grad_triple_on);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using dist_autograd::Backward;
using dist_autograd::Context;

class SimtDeviceBackward : public testing::TestWithParam<Backward> {
 protected:
  static Tensor leaf(const Tensor& x, Device device) {
    Tensor t = x.to(device).detach();
    return t.requires_grad_();
  }
  void run(const Context& context, const Tensor& loss) const {
    context.backward({loss}, {.mode = GetParam()});
  }
  static void expect_gradient(const Context& context, const Tensor& x, const std::vector<float>& wanted) {
    const Tensor g = context.gradient(x);
    ASSERT_TRUE(g.defined());
    EXPECT_EQ(g.device(), x.device());
    EXPECT_EQ(values(g), wanted);
  }
};
INSTANTIATE_TEST_SUITE_P(Mode, SimtDeviceBackward, testing::Values(Backward::kFast, Backward::kSmart),
                         [](const auto& info) { return info.param == Backward::kFast ? "fast" : "smart"; });

// test_gpu_simple
TEST_P(SimtDeviceBackward, a_pass_on_a_device_alone_fills_the_context_there) {
  Cluster c(mapped({}));
  c.run(0, [&] {
    const Tensor x = leaf(range(6, 1, kCpu), kGpu0), y = leaf(range(6, 2, kCpu), kGpu0);
    const Context context;
    run(context, mul(x, y).sum());
    expect_gradient(context, x, range_values(6, 2));
    expect_gradient(context, y, range_values(6, 1));
    EXPECT_FALSE(x.grad().defined());
  });
}

// test_gpu_to_cpu_continuation, test_gpu_to_cpu_continuation_gpu_root
TEST_P(SimtDeviceBackward, a_pass_hops_between_cpu_and_device) {
  Cluster c(mapped({}));
  c.run(0, [&] {
    for (const bool gpu_root : {false, true}) {
      const auto forward = [&](const Tensor& t1, const Tensor& t2, bool split) {
        const auto add_there = [&](const Tensor& a, const Tensor& b) {
          return split ? rpc_sync<grad_add>("worker1", a, b) : add(a, b);
        };
        const Tensor t3 = add_there(t2, t2), t4 = add(t3.to(kGpu0), t1), t5 = add_there(t4.to(kCpu), t2),
                     t6 = add(t5.to(kGpu0), t4);
        return gpu_root ? t6.sum() : add_there(t6.to(kCpu), t5).sum();
      };
      const Tensor x1 = leaf(range(4, 1, kCpu), kGpu0), x2 = leaf(range(4, 5, kCpu), kCpu);
      forward(x1, x2, false).backward();
      const Tensor t1 = leaf(x1, kGpu0), t2 = leaf(x2, kCpu);
      const Context context;
      run(context, forward(t1, t2, true));
      expect_gradient(context, t1, values(x1.grad()));
      expect_gradient(context, t2, values(x2.grad()));
    }
  });
}

// test_device_maps_backward_pass
TEST_P(SimtDeviceBackward, gradients_follow_the_reversed_map) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}, {kGpu1, kGpu0}}}}));
  c.run(0, [&] {
    const Tensor x = leaf(range(5, 1, kCpu), kGpu0), y = leaf(range(5, 7, kCpu), kGpu0);
    const Context context;
    const Tensor z = rpc_sync<grad_add>("worker1", x, y);
    EXPECT_EQ(z.device(), kGpu0);
    run(context, mul(z, range(5, 2, kGpu0)).sum());
    expect_gradient(context, x, range_values(5, 2));
    expect_gradient(context, y, range_values(5, 2));
  });
}

TEST_P(SimtDeviceBackward, the_cpu_end_of_a_map_gets_its_gradients_back) {
  Cluster c(mapped({{"worker1", {{kCpu, kGpu1}}}}));
  c.run(0, [&] {
    const Tensor x = leaf(range(5, 1, kCpu), kCpu);
    const Context context;
    // z: made on the cpu there
    const Tensor y = rpc_sync<grad_triple_on>("worker1", x, "cuda:1"),
                 z = rpc_sync<grad_triple_on>("worker1", y, "cpu");
    EXPECT_EQ(y.device(), kCpu);
    EXPECT_EQ(z.device(), kCpu);
    run(context, z.sum());
    expect_gradient(context, x, {9, 9, 9, 9, 9});
  });
}

/// loss and gradients of a chain of layers in this process, on the CPU.
std::pair<double, std::vector<std::vector<Tensor>>> local_chain(const Tensor& x, int layers) {
  std::vector<std::unique_ptr<ChainLayer>> chain;
  for (int i = 0; i < layers; ++i) chain.push_back(std::make_unique<ChainLayer>(5, 5, i + 1, "cpu"));
  Tensor y = x;
  for (const auto& layer : chain) y = layer->forward(y);
  const Tensor loss = y.mean();
  loss.backward();
  std::vector<std::vector<Tensor>> out;
  for (const auto& layer : chain) {
    out.emplace_back();
    for (const Tensor& p : layer->parameters()) out.back().push_back(p.grad());
  }
  return {loss.item<double>(), out};
}

// test_gradients_synchronizations, with two devices and four workers
TEST_P(SimtDeviceBackward, a_chain_over_workers_and_devices_has_the_gradients_of_a_local_one) {
  Cluster c(mapped(
      {{"worker1", {{kGpu0, kGpu1}}}, {"worker2", {{kGpu0, kGpu0}}}, {"worker3", {{kCpu, kGpu1}}}}, 4));
  c.run(0, [&] {
    const Tensor x = reshape(range(10, -3, kCpu), {2, 5});
    const auto [loss, gradients] = local_chain(x, 3);
    const RRef<ChainLayer> layers[] = {remote<ChainLayer>("worker1", 5, 5, 1, "cuda:1"),
                                       remote<ChainLayer>("worker2", 5, 5, 2, "cuda:0"),
                                       remote<ChainLayer>("worker3", 5, 5, 3, "cuda:1")};
    for (int pass = 0; pass < 3; ++pass) {
      const Context context;
      Tensor y = x.to(kGpu0);
      y = layers[0].rpc_sync<&ChainLayer::forward>(y);
      y = layers[1].rpc_sync<&ChainLayer::forward>(y);
      y = layers[2].rpc_sync<&ChainLayer::forward>(y.to(kCpu));
      const Tensor there = y.mean();
      EXPECT_NEAR(there.item<double>(), loss, 1e-5 * std::abs(loss));
      run(context, there);
      for (size_t i = 0; i < 3; ++i) {
        const auto g = layers[i].rpc_sync<&ChainLayer::gradients>(context.id());
        ASSERT_EQ(g.size(), gradients[i].size());
        for (size_t k = 0; k < g.size(); ++k)
          EXPECT_TRUE(allclose(g[k], gradients[i][k], 1e-5, 1e-6)) << i << " " << k;
      }
    }
  });
}

TEST_P(SimtDeviceBackward, a_distributed_optimizer_steps_on_the_devices) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}}}}));
  c.run(0, [&] {
    const Tensor x = reshape(range(10, -3, kCpu), {2, 5});
    ChainLayer first(5, 5, 1, "cpu"), second(5, 5, 2, "cpu");
    std::vector<Tensor> parameters = first.parameters();
    for (const Tensor& p : second.parameters()) parameters.push_back(p);
    optim::Adam adam(parameters, {.lr = 0.01});

    ChainLayer here(5, 5, 1, "cuda:0");
    const auto there = remote<ChainLayer>("worker1", 5, 5, 2, "cuda:1");
    std::vector<RRef<Tensor>> references = here.parameter_rrefs();
    for (auto& p : there.rpc_sync<&ChainLayer::parameter_rrefs>()) references.push_back(p);
    auto split = dist_optim::make<optim::AdamRule>(references, {.lr = 0.01});
    for (int step = 0; step < 4; ++step) {
      adam.zero_grad();
      const Tensor loss = second.forward(first.forward(x)).mean();
      loss.backward();
      const double norm = optim::clip_grad_norm(parameters, 0.1);
      adam.step();

      const Context context;
      const Tensor same = there.rpc_sync<&ChainLayer::forward>(here.forward(x.to(kGpu0))).mean();
      EXPECT_NEAR(same.item<double>(), loss.item<double>(), 1e-4);
      run(context, same);
      EXPECT_NEAR(split.clip_grad_norm(context.id(), 0.1), norm, 1e-4 * norm);
      split.step(context.id());
    }
    const auto mine = here.state(), theirs = there.rpc_sync<&ChainLayer::state>();
    for (size_t k = 0; k < 2; ++k) {
      EXPECT_TRUE(allclose(mine[k], first.parameters()[k].detach(), 1e-4, 1e-4));
      EXPECT_TRUE(allclose(theirs[k], second.parameters()[k].detach(), 1e-4, 1e-4));
    }
  });
}

TEST(SimtDeviceGraph, a_receive_node_knows_its_device) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}}}}));
  c.run(0, [&] {
    Tensor x = range(3, 1, kGpu0);
    x.requires_grad_();
    const Context context;
    const Tensor y = rpc_sync<grad_add>("worker1", x, x);
    int received = 0;
    for (const auto& node : dist_autograd::graph(context.id()))
      received += !node.is_send && node.node->device() == kGpu0;
    EXPECT_EQ(received, 1);
  });
}

}  // namespace
