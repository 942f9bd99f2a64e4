// Device memory lent between workers of one host. A process lends to itself here, with faults;
// lending_process_test.cpp has two.
#include "devices.h"
#include "support/simt/streams.h"
#include "support/simt/thread.h"

namespace weft::test {

Tensor lend_add(const Tensor& x, double y) { return add(x, y); }
WEFT_RPC(lend_add);
int64_t lend_count(const Tensor& x) { return x.numel(); }
WEFT_RPC(lend_count);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;

class SimtLending : public testing::Test {
 protected:
  SimtLending() { cuda::simt::settings().shares_memory = true; }
  ~SimtLending() override { cuda::simt::settings().shares_memory = false; }

  static ClusterOptions lending(bool all = true) {
    ClusterOptions o = mapped({});
    o.each = [all](int rank, AgentOptions& a) {
      a.cuda_ipc = all || rank == 0;
      if (rank == 0) a.device_maps = {{"worker1", {{kGpu0, kGpu1}, {kGpu1, kCpu}}}};
    };
    return o;
  }
  static int64_t count(Cluster& c, int rank, const char* what) {
    return c.agent(rank)->debug_info().at(what);
  }
  static void expect_all(const Tensor& t, double v) {
    const auto all = values(t);
    EXPECT_TRUE(std::all_of(all.begin(), all.end(), [&](float x) { return x == static_cast<float>(v); }));
  }
  static constexpr int64_t kLarge = 300000, kSmall = 1000;  // 1.2 MB, 4 KB
};

TEST_F(SimtLending, large_tensors_are_lent_both_ways_and_loans_end) {
  Cluster c(lending());
  c.run(0, [&] {
    const Tensor x = full({kLarge}, 2, {.device = kGpu0});
    const Tensor y = rpc_sync<lend_add>("worker1", x, 1.0);
    EXPECT_EQ(y.device(), kGpu0);
    expect_all(y, 3);
    EXPECT_EQ(x.body().storage->saves(), 0u);
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(count(c, rank, "devices.lent_tensors"), 1);
    EXPECT_EQ(count(c, rank, "devices.standing_loans"), 0);
  }
  c.shutdown();
}

TEST_F(SimtLending, small_tensors_and_the_cpu_are_carried) {
  Cluster c(lending());
  c.run(0, [&] {
    expect_all(rpc_sync<lend_add>("worker1", full({kSmall}, 2, {.device = kGpu0}), 1.0), 3);
    expect_all(rpc_sync<lend_add>("worker1", full({kLarge}, 2, {.device = kGpu1}), 1.0), 3);
    expect_all(rpc_sync<lend_add>("worker1", full({kLarge}, 2), 1.0), 3);
  });
  EXPECT_EQ(count(c, 0, "devices.lent_tensors"), 0);
}

TEST_F(SimtLending, nothing_is_lent_to_a_worker_that_does_not_allow_it_or_cannot_open_it) {
  {
    Cluster c(lending(false));
    c.run(0,
          [&] { expect_all(rpc_sync<lend_add>("worker1", full({kLarge}, 2, {.device = kGpu0}), 1.0), 3); });
    EXPECT_EQ(count(c, 0, "devices.lent_tensors"), 0);
  }
  cuda::simt::settings().shares_memory = false;
  Cluster c(lending());
  c.run(0, [&] { expect_all(rpc_sync<lend_add>("worker1", full({kLarge}, 2, {.device = kGpu0}), 1.0), 3); });
  EXPECT_EQ(count(c, 0, "devices.lent_tensors"), 0);
}

TEST_F(SimtLending, a_lent_tensor_leaves_after_the_work_of_the_callers_stream) {
  Cluster c(lending());
  const cuda::simt::Deferred slow;
  c.run(0, [&] {
    Tensor x = empty({kLarge}, {.device = kGpu0});
    x.fill_(5);
    const Future<Tensor> y = rpc_async<lend_add>("worker1", x, 1.0);
    EXPECT_GT(x.body().storage->saves(), 0u);
    expect_all(y.wait(), 6);
    EXPECT_EQ(x.body().storage->saves(), 0u);
  });
}

TEST_F(SimtLending, a_view_in_the_middle_of_a_block_is_lent_at_its_place) {
  Cluster c(lending());
  c.run(0, [&] {
    const Tensor base = arange(2 * kLarge).to(kFloat32).to(kGpu0);
    const auto all =
        values(rpc_sync<lend_add>("worker1", base.slice(0, kLarge / 2, kLarge / 2 + kLarge), 0.0));
    EXPECT_EQ(all.front(), static_cast<float>(kLarge / 2));
    EXPECT_EQ(all.back(), static_cast<float>(kLarge / 2 + kLarge - 1));
  });
  EXPECT_EQ(count(c, 0, "devices.lent_tensors"), 1);
}

TEST_F(SimtLending, a_part_of_a_block_is_lent_at_its_place_and_held_until_its_loan_ends) {
  Cluster c(lending());
  c.run(0, [&] {
    const size_t bytes = kLarge * sizeof(float);
    const Ref<Storage> whole = Storage::allocate(kGpu0, 2 * bytes);
    const auto part = [&](size_t at) {
      return Tensor(Ref<TensorBody>::adopt(
          new TensorBody(Storage::part(whole, at, bytes), 0, {kLarge}, {1}, kFloat32)));
    };
    const Tensor first = part(0).fill_(1), second = part(bytes).fill_(2);
    const Future<Tensor> y = rpc_async<lend_add>("worker1", second, 1.0);
    EXPECT_EQ(first.body().storage->saves(), 0u);
    EXPECT_GT(second.body().storage->saves(), 0u);
    expect_all(y.wait(), 3);
    EXPECT_EQ(second.body().storage->saves(), 0u);
    expect_all(first, 1);
  });
  EXPECT_EQ(count(c, 0, "devices.lent_tensors"), 1);
}

TEST_F(SimtLending, a_lost_message_is_sent_again_under_its_loan) {
  Cluster c(lending());
  c.net().add_rule(
      {.kind = static_cast<uint8_t>(Kind::kCall), .count = 2, .action = FaultRule::Action::kDrop});
  c.net().add_rule(
      {.kind = static_cast<uint8_t>(Kind::kReturn), .count = 1, .action = FaultRule::Action::kDrop});
  c.run(0, [&] { expect_all(rpc_sync<lend_add>("worker1", full({kLarge}, 2, {.device = kGpu0}), 1.0), 3); });
  EXPECT_EQ(count(c, 0, "devices.standing_loans"), 0);
}

TEST_F(SimtLending,
       a_loan_of_a_call_that_was_given_up_ends_a_lease_later_and_the_function_does_not_run_on_what_is_left) {
  ClusterOptions o = lending();
  o.agent.lease = std::chrono::seconds(2);
  Cluster c(o);
  c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kCall),
                    .count = 1,
                    .action = FaultRule::Action::kDelay,
                    .delay = std::chrono::seconds(4)});
  c.run(0, [&] {
    Tensor x = full({kLarge}, 2, {.device = kGpu0});
    const auto storage = x.body().storage;
    EXPECT_THROW((rpc_sync<lend_count>({"worker1", std::chrono::milliseconds(200)}, x)), Timeout);
    EXPECT_EQ(count(c, 0, "devices.standing_loans"), 1);
    EXPECT_GT(storage->saves(), 0u);
  });
  c.sim().run_for(std::chrono::seconds(3));
  EXPECT_EQ(count(c, 0, "devices.standing_loans"), 0);
  c.sim().run_for(std::chrono::seconds(3));
  c.run(0, [&] { EXPECT_EQ(rpc_sync<lend_count>("worker1", full({kLarge}, 2, {.device = kGpu0})), kLarge); });
}

TEST_F(SimtLending, loans_to_a_lost_worker_end_with_it) {
  ClusterOptions o = lending();
  o.agent.lease = std::chrono::seconds(2);
  Cluster c(o);
  c.net().add_rule({.kind = static_cast<uint8_t>(Kind::kReturn), .action = FaultRule::Action::kDrop});
  c.run(0, [&] {
    const Future<int64_t> f = rpc_async<lend_count>("worker1", full({kLarge}, 2, {.device = kGpu0}));
    c.sim().run_for(std::chrono::milliseconds(50));
    EXPECT_EQ(count(c, 0, "devices.standing_loans"), 1);
    c.kill(1);
    EXPECT_THROW(f.wait(), PeerLost);
    EXPECT_EQ(count(c, 0, "devices.standing_loans"), 0);
  });
}

TEST_F(SimtLending, gradients_and_references_go_over_loans_too) {
  Cluster c(lending());
  c.run(0, [&] {
    Tensor x = full({kLarge}, 2, {.device = kGpu0});
    x.requires_grad_();
    const dist_autograd::Context context;
    context.backward({rpc_sync<lend_add>("worker1", x, 1.0).sum()});
    expect_all(context.gradient(x), 1);
    const auto there = remote<lend_add>("worker1", full({kLarge}, 4, {.device = kGpu0}), 1.0);
    expect_all(there.to_here(), 5);
  });
  EXPECT_EQ(count(c, 0, "devices.lent_tensors"), 2);  // the gradient of a sum is one number, repeated
  EXPECT_GE(count(c, 1, "devices.lent_tensors"), 2);
}

}  // namespace
