// The claims of docs/conformance.md on streams. Work issued to a user's stream comes before the messages that
// read it; uses of an arrived tensor come after its arrival. The emulated streams are slow here (Deferred):
// nothing issued has run until somebody waits for it. So a missing order shows as poison. A comment names
// PyTorch's tests.
#include <cstring>

#include <weft/tensor/cuda.h>

#include "devices.h"
#include "support/simt/streams.h"

namespace weft::test {

/// A stream of one's own that is current for a scope. It goes on after the stream that was current. That one
/// goes on after it at the end, if wanted.
class OwnStream {
 public:
  explicit OwnStream(Device device, bool rejoin = true)
      : before_(cuda::current_stream(device)), mine_(device), guard_(mine_), rejoin_(rejoin) {
    mine_.wait_stream(before_);
  }
  ~OwnStream() {
    if (rejoin_) before_.wait_stream(mine_);
  }
  OwnStream(const OwnStream&) = delete;

 private:
  cuda::Stream before_, mine_;
  cuda::StreamGuard guard_;
  bool rejoin_;
};

/// n times v, written by a kernel.
inline Tensor filled(int64_t n, double v, Device device) {
  Tensor t = empty({n}, {.device = device});
  t.fill_(v);
  return t;
}

Tensor late_add(const Tensor& x, const Tensor& y) {
  const OwnStream own(x.device());
  return add(x, y);
}
WEFT_RPC(late_add);
Tensor late_plain_add(const Tensor& x, const Tensor& y) { return add(x, y); }
WEFT_RPC(late_plain_add);
Tensor late_nested_add(const Tensor& x, const Tensor& y, const std::string& next) {
  const OwnStream own(x.device());
  return rpc::rpc_sync<late_add>(next, x, y);
}
WEFT_RPC(late_nested_add);
/// A part of a large tensor: compacted before it is sent, after the kernel that made it.
Tensor late_view(int64_t i) {
  return filled(40000, static_cast<double>(i), kGpu0).view({4, 10000}).t().slice(0, 3, 2503);
}
WEFT_RPC(late_view);
/// The future is completed inside another stream than the handler's.
rpc::Future<Tensor> late_future(const Tensor& x) {
  const rpc::Future<Tensor> out;
  const OwnStream own(x.device(), false);
  out.set_result(add(x, 1));
  return out;
}
WEFT_RPC(late_future);
rpc::Future<Tensor> late_nested_future(const Tensor& x, const std::string& next) {
  return rpc::rpc_async<late_future>(next, x).then([](const Tensor& y) {
    const OwnStream own(y.device());
    return mul(y, 2);
  });
}
WEFT_RPC(late_nested_future);

struct LateBox {
  explicit LateBox(double v) : value(filled(1000, v, kGpu0)) {}
  Tensor forward(const Tensor& x) {
    const OwnStream own(x.device());
    return add(x, value);
  }
  Tensor value;
};
WEFT_RPC_CONSTRUCTOR(LateBox, double);
WEFT_RPC_CLASS(LateBox, forward);

Tensor late_fetch(const rpc::RRef<Tensor>& x) { return add(x.to_here(), 1); }
WEFT_RPC(late_fetch);
Tensor late_use(const rpc::RRef<LateBox>& box, const Tensor& x) { return box.rpc_sync<&LateBox::forward>(x); }
WEFT_RPC(late_use);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;

class SimtDeviceStreams : public testing::Test {
 protected:
  static void expect_all(const Tensor& t, double v) {
    for (const float x : values(t)) ASSERT_EQ(x, static_cast<float>(v));
  }
};

TEST_F(SimtDeviceStreams, the_slow_streams_show_a_missing_order) {
  open_devices();
  const cuda::simt::Deferred slow;
  const Tensor x = filled(10, 1, kGpu0);
  void* const other = accelerator(kGpu0).new_stream(false);
  std::vector<float> seen(10);
  void* const pinned = accelerator(kGpu0).allocate_pinned(40);
  weft::Context context{.stream = other};
  accelerator(kGpu0).copy_async(context, pinned, x.raw(), 40);
  accelerator(kGpu0).synchronize_stream(other);
  std::memcpy(seen.data(), pinned, 40);
  EXPECT_NE(seen[0], 1);
  accelerator(kGpu0).deallocate_pinned(pinned);
  accelerator(kGpu0).delete_stream(other);
  expect_all(x, 1);
}

// test_custom_stream
TEST_F(SimtDeviceStreams, an_argument_is_read_after_the_work_of_the_callers_stream) {
  for (const Over over : {Over::kSim, Over::kGrpc}) {
    Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}}}}, 2, over));
    const cuda::simt::Deferred slow;
    c.run(0, [&] {
      const OwnStream own(kGpu0);
      const Tensor y = rpc_sync<late_plain_add>("worker1", filled(1000, 1, kGpu0), filled(1000, 2, kGpu0));
      EXPECT_EQ(y.device(), kGpu0);
      expect_all(add(y, 1), 4);
    });
    c.shutdown();
  }
}

// test_custom_stream_multi
TEST_F(SimtDeviceStreams, many_calls_from_streams_of_their_own) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}}}}));
  const cuda::simt::Deferred slow;
  c.run(0, [&] {
    std::vector<Future<Tensor>> all;
    for (int i = 0; i < 20; ++i) {
      const OwnStream own(kGpu0);
      all.push_back(rpc_async<late_add>("worker1", filled(500, i, kGpu0), filled(500, 1, kGpu0)));
    }
    for (int i = 0; i < 20; ++i) expect_all(all[static_cast<size_t>(i)].wait(), i + 1);
  });
}

// test_custom_stream_nested, test_custom_stream_nested_multi
TEST_F(SimtDeviceStreams, nested_calls_keep_the_order_through_a_third_worker) {
  ClusterOptions o = mapped({}, 3);
  o.each = [](int rank, AgentOptions& a) {
    if (rank == 0) a.device_maps = {{"worker1", {{kGpu0, kGpu1}}}};
    if (rank == 1) a.device_maps = {{"worker2", {{kGpu1, kGpu0}}}};
  };
  Cluster c(o);
  const cuda::simt::Deferred slow;
  c.run(0, [&] {
    std::vector<Future<Tensor>> all;
    for (int i = 0; i < 5; ++i) {
      const OwnStream own(kGpu0);
      all.push_back(rpc_async<late_nested_add>("worker1", filled(700, i, kGpu0), filled(700, 2, kGpu0),
                                               std::string("worker2")));
    }
    for (int i = 0; i < 5; ++i) expect_all(all[static_cast<size_t>(i)].wait(), i + 2);
  });
}

// test_tensor_view_as_return_value
TEST_F(SimtDeviceStreams, a_view_is_compacted_after_the_kernel_that_made_it) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu0}}}}));
  const cuda::simt::Deferred slow;
  c.run(0, [&] {
    std::vector<Future<Tensor>> all;
    for (int64_t i = 0; i < 5; ++i) all.push_back(rpc_async<late_view>("worker1", i));
    for (int i = 0; i < 5; ++i) {
      const Tensor y = all[static_cast<size_t>(i)].wait();
      EXPECT_EQ(y.sizes(), (Shape{2500, 4}));
      expect_all(y, i);
    }
  });
}

// test_async_execution_with_cuda_future, test_async_execution_nested_with_cuda_future
TEST_F(SimtDeviceStreams, a_future_completed_on_another_stream_is_sent_after_its_work) {
  ClusterOptions o = mapped({}, 3);
  o.each = [](int rank, AgentOptions& a) {
    if (rank == 0) a.device_maps = {{"worker1", {{kGpu0, kGpu1}}}, {"worker2", {{kGpu0, kGpu0}}}};
    if (rank == 1) a.device_maps = {{"worker2", {{kGpu1, kGpu0}}}};
  };
  Cluster c(o);
  const cuda::simt::Deferred slow;
  c.run(0, [&] {
    expect_all(rpc_sync<late_future>("worker1", filled(1000, 4, kGpu0)), 5);
    expect_all(rpc_sync<late_nested_future>("worker1", filled(1000, 4, kGpu0), std::string("worker2")), 10);
  });
}

// test_cuda_future_* (the portable part): value, callback and later waits come after the completer's stream
TEST_F(SimtDeviceStreams, a_future_carries_the_completers_stream_to_waits_and_continuations) {
  Cluster c(mapped({}));
  const cuda::simt::Deferred slow;
  c.run(0, [&] {
    Future<Tensor> f;
    const Future<Tensor> later = f.then([](const Tensor& t) {
      const OwnStream own(kGpu0);
      return add(t, 10);
    });
    {
      const OwnStream own(kGpu0, false);
      f.set_result(filled(300, 3, kGpu0));
    }
    expect_all(f.wait(), 3);
    {
      const OwnStream other(kGpu0, false);
      expect_all(add(f.value(), 1), 4);
      expect_all(f.then_inline([](const Tensor& t) { return mul(t, 2); }).wait(), 6);
    }
    expect_all(later.wait(), 13);
    expect_all(collect(std::vector<Future<Tensor>>{f, later}).wait()[1], 13);
  });
}

// test_rref_to_here_synchronization1 to 4
TEST_F(SimtDeviceStreams, to_here_brings_a_value_that_is_complete) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}}}}));
  const cuda::simt::Deferred slow;
  c.run(0, [&] {
    for (int i = 0; i < 5; ++i) {
      const auto there = remote<late_add>("worker1", filled(800, i, kGpu0), filled(800, 1, kGpu0));
      expect_all(there.to_here(), i + 1);
    }
    const RRef<Tensor> mine(filled(800, 7, kGpu0));
    expect_all(mine.to_here(), 7);
  });
}

// test_rref_as_arg_synchronization1 to 5
TEST_F(SimtDeviceStreams, a_reference_as_argument_is_fetched_complete) {
  ClusterOptions o = mapped({}, 3);
  o.each = [](int rank, AgentOptions& a) {
    if (rank == 0) a.device_maps = {{"worker1", {{kGpu0, kGpu1}}}, {"worker2", {{kGpu0, kGpu0}}}};
    if (rank == 1) a.device_maps = {{"worker0", {{kGpu1, kGpu0}}}, {"worker2", {{kGpu1, kGpu0}}}};
  };
  Cluster c(o);
  const cuda::simt::Deferred slow;
  c.run(0, [&] {
    const OwnStream own(kGpu0);
    const RRef<Tensor> mine(filled(600, 2, kGpu0));
    const auto theirs = remote<late_add>("worker2", filled(600, 3, kGpu0), filled(600, 4, kGpu0));
    expect_all(rpc_sync<late_fetch>("worker1", mine), 3);
    expect_all(rpc_sync<late_fetch>("worker1", theirs), 8);
  });
}

// test_rref_forward_synchronization1 to 4, test_owner_rref_forward_synchronization1 to 4
TEST_F(SimtDeviceStreams, a_method_through_a_reference_and_a_remote_result_agree) {
  for (const char* owner : {"worker0", "worker1"}) {
    Cluster c(mapped({{owner, {{kGpu0, kGpu0}}}}));
    const cuda::simt::Deferred slow;
    c.run(0, [&] {
      const auto box = remote<LateBox>(owner, 5.0);
      for (int i = 0; i < 5; ++i) {
        const OwnStream own(kGpu0);
        const Tensor x = filled(1000, i, kGpu0);
        expect_all(box.remote<&LateBox::forward>(x).to_here(), i + 5);
        expect_all(box.rpc_sync<&LateBox::forward>(x), i + 5);
      }
      expect_all(rpc_sync<late_use>("worker0", box, filled(1000, 1, kGpu0)), 6);
    });
  }
}

// test_dist_autograd_sync_streams
TEST_F(SimtDeviceStreams, a_backward_pass_comes_after_the_forward_work_of_other_streams) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}}}}));
  const cuda::simt::Deferred slow;
  c.run(0, [&] {
    for (int i = 1; i < 5; ++i) {
      const OwnStream own(kGpu0);
      Tensor x = filled(400, 2, kGpu0), y = filled(400, 3, kGpu0);
      x.requires_grad_(), y.requires_grad_();
      const dist_autograd::Context context;
      const Tensor z = rpc_sync<late_add>("worker1", mul(x, x), y);
      context.backward({mul(z, i).sum()});
      expect_all(context.gradient(x), 4 * i);
      expect_all(context.gradient(y), i);
    }
  });
}

TEST_F(SimtDeviceStreams, a_storage_counts_as_saved_until_its_copy_has_left) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}}}}));
  const cuda::simt::Deferred slow;
  c.run(0, [&] {
    const Tensor x = filled(5000, 1, kGpu0);
    const auto storage = x.body().storage;
    const Future<Tensor> f = rpc_async<late_plain_add>("worker1", x, x);
    EXPECT_GT(storage->saves(), 0u);
    expect_all(f.wait(), 2);
    EXPECT_EQ(storage->saves(), 0u);
  });
}

TEST_F(SimtDeviceStreams, a_lost_message_of_a_device_is_sent_again) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}}}}));
  const cuda::simt::Deferred slow;
  c.net().add_rule(
      {.kind = static_cast<uint8_t>(Kind::kCall), .count = 2, .action = FaultRule::Action::kDrop});
  c.net().add_rule({.kind = static_cast<uint8_t>(static_cast<uint8_t>(Kind::kCall) | kReplyBit),
                    .count = 2,
                    .action = FaultRule::Action::kDrop});
  c.run(0, [&] {
    expect_all(rpc_sync<late_add>("worker1", filled(3000, 1, kGpu0), filled(3000, 2, kGpu0)), 3);
  });
}

TEST_F(SimtDeviceStreams, a_call_that_ends_before_its_copy_leaves_nothing) {
  Cluster c(mapped({{"worker1", {{kGpu0, kGpu1}}}}));
  const cuda::simt::Deferred slow;
  c.run(0, [&] {
    const Tensor x = filled(3000, 1, kGpu0);
    const auto storage = x.body().storage;
    c.net().partition({WorkerId{0}}, {WorkerId{1}});
    EXPECT_THROW((rpc_sync<late_plain_add>({"worker1", std::chrono::seconds(1)}, x, x)), Timeout);
    c.net().heal();
    expect_all(rpc_sync<late_plain_add>("worker1", x, x), 2);
    EXPECT_EQ(storage->saves(), 0u);
  });
}

}  // namespace
