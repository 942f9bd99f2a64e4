// The claims of docs/conformance.md on remote modules. Devices are in tests/simt_distributed/module_test.cpp;
// PyTorch's tests of scripts and pickling have no counterpart.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rref/remote_module.h>
#include <weft/nn/layers.h>
#include <weft/nn/linear.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace weft::test {

using rpc::RemoteModule;

/// y = (W x + b), dropped out while training, times `scale`.
struct RowNet : nn::Module {
  RowNet(int64_t in, int64_t out) : fc(in, out) {
    if (in <= 0) throw ValueError(str("RowNet: in is ", in));
    add("fc", fc);
    add("drop", drop);
  }
  Tensor forward(const Tensor& x, double scale) { return mul(drop.forward(fc.forward(x)), scale); }
  nn::Linear fc;
  nn::Dropout drop{0.5};
};
WEFT_RPC_CLASS(RowNet, forward);

struct NoModule {
  Tensor forward(const Tensor& x) { return x; }
};

double row_use_net(const RemoteModule<RowNet>& net, const Tensor& x) {
  return net.forward(x, 1.0).sum().item<double>();
}
WEFT_RPC(row_use_net);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;

class RemoteModuleRows : public ::testing::TestWithParam<Over> {
 protected:
  Cluster c{{.over = GetParam(), .size = 3}};
  static double total(const Tensor& t) { return t.sum().item<double>(); }
};
INSTANTIATE_TEST_SUITE_P(Over, RemoteModuleRows, ::testing::Values(Over::kSim, Over::kGrpc),
                         [](const auto& info) { return weft::test::to_string(info.param); });

// test_bad_module: uses that upstream refuses at run time do not compile here; an error of the constructor
// shows at the first use
TEST_P(RemoteModuleRows, a_class_that_is_no_module_is_refused_and_a_failed_constructor_shows_at_first_use) {
  static_assert(HeldRemotely<RowNet>);
  static_assert(!HeldRemotely<NoModule>);
  static_assert(!HeldRemotely<nn::Module>);
  c.run(0, [&] {
    const RemoteModule<RowNet> bad("worker1", -1, 2);
    EXPECT_THROW(bad.forward(ones({2, 3}), 1.0), Error);
    EXPECT_THROW(bad.remote_parameters(), Error);
    EXPECT_THROW(RemoteModule<RowNet>().forward(ones({2, 3}), 1.0), RpcError);
    EXPECT_THROW(RemoteModule<RowNet>("nobody", 3, 2), ValueError);
  });
}

// test_forward_sync, test_forward_async, test_forward_with_kwargs
TEST_P(RemoteModuleRows, forward_runs_on_the_owner_sync_and_async_with_all_arguments) {
  c.run(0, [&] {
    const NoGrad guard;
    const RemoteModule<RowNet> net("worker1", 3, 2);
    net.eval();
    const Tensor x = ones({5, 3});
    const Tensor y = net.forward(x, 1.0);
    EXPECT_EQ(y.size(0), 5);
    EXPECT_EQ(y.size(1), 2);
    EXPECT_NEAR(total(net.forward_async(x, 2.0).wait()), 2 * total(y), 1e-5);
    const auto p = net.remote_parameters();
    const Tensor expected = matmul(x, p[0].to_here().t());
    EXPECT_NEAR(total(y), total(add(expected, p[1].to_here())), 1e-4);
  });
}

// test_remote_parameters
TEST_P(RemoteModuleRows, remote_parameters_are_references_on_the_owner) {
  c.run(0, [&] {
    const RemoteModule<RowNet> net("worker1", 3, 2);
    const auto all = net.remote_parameters();
    ASSERT_EQ(all.size(), 2u);
    EXPECT_TRUE(net.remote_parameters(false).empty());
    for (const auto& p : all) EXPECT_EQ(p.owner_name(), "worker1");
    EXPECT_EQ(all[0].to_here().numel(), 6);
    EXPECT_FALSE(all[0].to_here().requires_grad());
    const dist_autograd::Context context;
    EXPECT_TRUE(all[0].to_here().requires_grad());
  });
}

// test_get_module_rref, test_create_remote_module_from_module_rref
TEST_P(RemoteModuleRows, several_handles_hold_one_module) {
  c.run(0, [&] {
    const NoGrad guard;
    const RemoteModule<RowNet> net("worker1", 3, 2);
    const RemoteModule<RowNet> same(net.get_module_rref());
    EXPECT_EQ(net.get_module_rref().owner_name(), "worker1");
    net.eval();
    EXPECT_FALSE(same.is_training());
    EXPECT_EQ(total(net.forward(ones({2, 3}), 1.0)), total(same.forward(ones({2, 3}), 1.0)));
  });
}

// test_train_eval
TEST_P(RemoteModuleRows, train_and_eval_switch_on_the_owner) {
  c.run(0, [&] {
    const NoGrad guard;
    const RemoteModule<RowNet> net("worker1", 3, 64);
    EXPECT_TRUE(net.is_training());
    net.eval();
    EXPECT_FALSE(net.is_training());
    const Tensor x = ones({2, 3});
    EXPECT_TRUE(equal(net.forward(x, 1.0), net.forward(x, 1.0)));
    net.train();
    EXPECT_TRUE(net.is_training());
    EXPECT_FALSE(equal(net.forward(x, 1.0), net.forward(x, 1.0)));  // 128 numbers, each dropped or not
  });
}

// test_send_remote_module_over_the_wire
TEST_P(RemoteModuleRows, a_third_worker_calls_forward_through_a_handle_it_was_sent) {
  c.run(0, [&] {
    const NoGrad guard;
    const RemoteModule<RowNet> net("worker1", 3, 2);
    net.eval();
    const Tensor x = ones({2, 3});
    const double here = total(net.forward(x, 1.0));
    for (const int to : {0, 1, 2}) EXPECT_EQ(rpc_sync<row_use_net>(to, net, x), here);
  });
}

// test_unsupported_methods: values that a handle does not have go through the state; a state that does not
// fit is refused and changes nothing
TEST_P(RemoteModuleRows, state_moves_between_modules_and_one_that_does_not_fit_is_refused) {
  c.run(0, [&] {
    const NoGrad guard;
    const RemoteModule<RowNet> a("worker1", 3, 2), b("worker2", 3, 2), other("worker2", 4, 2);
    a.eval(), b.eval();
    b.load_state_dict(a.state_dict());
    const Tensor x = ones({2, 3});
    EXPECT_TRUE(equal(a.forward(x, 1.0), b.forward(x, 1.0)));
    EXPECT_THROW(b.load_state_dict(other.state_dict()), ShapeError);
    EXPECT_TRUE(equal(a.forward(x, 1.0), b.forward(x, 1.0)));
  });
}

TEST_P(RemoteModuleRows, random_streams_are_exported_and_loaded) {
  c.run(0, [&] {
    const NoGrad guard;
    const RemoteModule<RowNet> net("worker1", 3, 64);
    EXPECT_TRUE(net.generator_state().empty());
    net.seed(5, "net");
    const auto streams = net.generator_state();
    EXPECT_EQ(streams.size(), 3u);  // the module, "fc" and "drop"
    const Tensor x = ones({2, 3}), y = net.forward(x, 1.0);
    EXPECT_FALSE(equal(net.forward(x, 1.0), y));
    net.load_generator_state(streams);
    EXPECT_TRUE(equal(net.forward(x, 1.0), y));
    EXPECT_THROW(net.load_generator_state({{"third", streams[0].second}}), ValueError);
  });
}

}  // namespace
