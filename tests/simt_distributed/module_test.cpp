// The claims of docs/conformance.md on remote modules with devices (PyTorch: test_valid_device,
// test_invalid_devices, test_input_moved_to_cuda_device), and other properties of a module on another
// worker's device.
#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/rref/remote_module.h>
#include <weft/nn/linear.h>

#include "devices.h"

namespace weft::test {

struct PlacedNet : nn::Module {
  PlacedNet(int64_t in, int64_t out) : fc(in, out) { add("fc", fc); }
  /// fc(x) * scales[0] where all lie on one device, as the module does.
  Tensor forward(const Tensor& x, const std::vector<Tensor>& scales) {
    return mul(fc.forward(x), scales.at(0));
  }
  nn::Linear fc;
};
WEFT_RPC_CLASS(PlacedNet, forward);

std::string placed_use(const rpc::RemoteModule<PlacedNet>& net, const Tensor& x) {
  return to_string(net.forward(x, std::vector<Tensor>{ones({1})}).device());
}
WEFT_RPC(placed_use);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;
using Net = RemoteModule<PlacedNet>;

// test_valid_device
TEST(SimtRemoteModule, a_device_is_given_behind_the_worker_or_its_rank) {
  Cluster c(mapped({}));
  c.run(0, [] {
    for (const char* where : {"worker1/cuda:1", "rank:1/cuda:1"}) {
      const Net net(where, 3, 2);
      EXPECT_EQ(net.device(), kGpu1);
      EXPECT_EQ(net.owner().name, "worker1");
    }
    EXPECT_EQ(Net("worker1/cpu", 3, 2).device(), kCpu);
    EXPECT_EQ(Net("worker1", 3, 2).device(), kCpu);
    EXPECT_EQ(Net({"worker1/cuda", std::chrono::seconds(5)}, 3, 2).device(), kGpu0);
  });
}

// test_invalid_devices
TEST(SimtRemoteModule, bad_remote_devices_are_refused_with_their_text) {
  Cluster c(mapped({}));
  c.run(0, [] {
    for (const char* bad :
         {"worker1/", "/", "/cuda:0", "worker1/cuda:0/cuda:1", "rank:x/cuda:0", "rank:/cpu", "rank:-1/cpu"})
      EXPECT_TRUE(has(error_of<ValueError>([&] { Net net(bad, 3, 2); }), bad)) << bad;
    for (const char* bad : {"worker1/foo", "worker1/cpu2", "worker1/cuda:"})
      EXPECT_THROW(Net(bad, 3, 2), DeviceError) << bad;
    EXPECT_TRUE(has(error_of<DeviceError>([] { Net net("worker1/cuda:100", 3, 2); }), "On worker 'worker1'"));
    EXPECT_THROW(Net("nobody/cuda:0", 3, 2), ValueError);
    EXPECT_THROW(Net("rank:7/cuda:0", 3, 2), ValueError);
    const NoGrad guard;
    EXPECT_EQ(Net("worker1/cuda:0", 3, 2).forward(ones({2, 3}), std::vector<Tensor>{ones({1})}).sizes(),
              (Shape{2, 2}));
  });
}

// test_input_moved_to_cuda_device
TEST(SimtRemoteModule, inputs_follow_the_module_and_results_come_home) {
  Cluster c(mapped({}));
  c.run(0, [] {
    const NoGrad guard;
    const Net net("worker1/cuda:1", 3, 2), plain("worker1", 3, 2);
    plain.load_state_dict(net.state_dict());
    const Tensor x = reshape(range(6, 1, kCpu), {2, 3});
    const std::vector<Tensor> scales{full({1}, 0.5)};
    const Tensor y = net.forward(x, scales);
    EXPECT_EQ(y.device(), kCpu);
    EXPECT_TRUE(allclose(y, plain.forward(x, scales), 1e-5, 1e-6));
    // from another device, without a map
    EXPECT_TRUE(allclose(net.forward_async(x.to(kGpu0), scales).wait(), y, 0, 0));
    EXPECT_EQ(net.state_dict()[0].second.device(), kCpu);
  });
}

TEST(SimtRemoteModule, results_follow_a_device_map_where_there_is_one) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}}}}));
  c.run(0, [] {
    const NoGrad guard;
    const Net net("worker1/cuda:1", 3, 2);
    EXPECT_EQ(net.forward(ones({2, 3}), std::vector<Tensor>{ones({1})}).device(), kGpu0);
  });
}

TEST(SimtRemoteModule, a_handle_that_travels_keeps_its_device) {
  Cluster c(mapped({}, 3));
  c.run(0, [] {
    const NoGrad guard;
    const Net net("worker1/cuda:0", 3, 2);
    EXPECT_EQ(rpc_sync<placed_use>("worker2", net, ones({2, 3})), "cpu");
  });
}

TEST(SimtRemoteModule, gradients_of_inputs_and_parameters_are_those_of_a_local_module) {
  Cluster c(mapped({}));
  c.run(0, [] {
    const Net net("worker1/cuda:1", 3, 2);
    PlacedNet local(3, 2);
    local.load_state_dict(net.state_dict());
    const std::vector<Tensor> scales{full({1}, 0.5)};
    Tensor x = reshape(range(6, 1, kCpu), {2, 3}), same = x.clone();
    x.requires_grad_(), same.requires_grad_();
    local.forward(same, scales).sum().backward();
    const dist_autograd::Context context;
    context.backward({net.forward(x, scales).sum()});
    EXPECT_EQ(context.gradient(x).device(), kCpu);
    EXPECT_TRUE(allclose(context.gradient(x), same.grad(), 1e-5, 1e-6));
    auto sgd = dist_optim::make<optim::SGDRule>(net.remote_parameters(), {.lr = 0.1});
    sgd.step(context.id());
    optim::SGD(local.parameters(), {.lr = 0.1}).step();
    const auto state = net.state_dict();
    for (size_t i = 0; i < state.size(); ++i)
      EXPECT_TRUE(allclose(state[i].second, local.state_dict()[i].second, 1e-5, 1e-6));
  });
}

}  // namespace
