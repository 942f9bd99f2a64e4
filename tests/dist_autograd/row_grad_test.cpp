// Row-wise gradients in contexts have the bits of a local run, on the owner and over the wire. Their owners
// step and clip them. Messages that lie about their rows are refused.
#include <gtest/gtest.h>

#include <weft/autograd/tape/inner/packed_rows.h>
#include <weft/autograd/tape/row_grad.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/autograd/edge_codec.h>
#include <weft/distributed/autograd/inner/gradient_list.h>
#include <weft/distributed/optim/dist_optimizer.h>
#include <weft/distributed/rpc/batched.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/wire/codec.h>
#include <weft/nn/nn.h>
#include <weft/optim/optim.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"
#include "support/errors.h"
#include "support/golden.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using dist_autograd::Context;
using test::Cluster;
using test::error_of;
using test::has;
using test::Over;
using weft::testing::same_bits;

constexpr int64_t kCount = 500, kDim = 8;

Tensor ids_of_step(int64_t t) {
  return from_vector<int64_t>({t, 3 * t + 1, t, 450 - t, 3 * t + 2, 7}, {2, 3});
}

Tensor random_values(const Shape& sizes, uint64_t seed) {
  Generator draws(seed);
  return randn(sizes, {}, &draws);
}

/// A table on its owner.
struct RowTable {
  explicit RowTable(bool sparse) : rows(kCount, kDim, {.generator = &draws, .sparse = sparse}) {}
  Tensor forward(const Tensor& ids) const { return rows.forward(ids); }
  Tensor values() const { return rows.weight.detach().clone(); }
  RRef<Tensor> parameter() const { return RRef<Tensor>(rows.weight); }
  RowGrad row_gradient(int64_t context) const {
    return dist_autograd::get_row_gradient(context, rows.weight);
  }
  Tensor gradient(int64_t context) const { return dist_autograd::get_gradient(context, rows.weight).clone(); }
  Generator draws{11};
  nn::Embedding rows;
};
WEFT_RPC_CONSTRUCTOR(RowTable, bool);
WEFT_RPC_CLASS(RowTable, forward, values, parameter, row_gradient, gradient);

Tensor look_up_rows(const Tensor& weight, const Tensor& ids) { return embedding(weight, ids, -1, true); }
WEFT_RPC(look_up_rows);

RowGrad same_rows(const RowGrad& g) { return g; }
WEFT_RPC(same_rows);

const Tensor& batched_table() {
  static const Tensor w = random_values({kCount, kDim}, 21).requires_grad_();
  return w;
}
Tensor batched_look_up(const Tensor& ids) { return embedding(batched_table(), ids, -1, true); }
WEFT_RPC_BATCHED(batched_look_up, {.max_batch = 6, .max_wait = 1min});
RowGrad batched_gradient(int64_t context) {
  return dist_autograd::get_row_gradient(context, batched_table());
}
WEFT_RPC(batched_gradient);

class RowGradOver : public ::testing::TestWithParam<Over> {};
INSTANTIATE_TEST_SUITE_P(Networks, RowGradOver, ::testing::Values(Over::kSim, Over::kGrpc),
                         [](const auto& info) { return to_string(info.param); });

TEST_P(RowGradOver, of_a_remote_table_has_the_bits_of_a_local_one_over_passes_and_clipped_steps) {
  Cluster c({.over = GetParam(), .size = 2});
  for (const bool two_phase : {false, true})
    c.run(0, [&] {
      RowTable local(true);
      const auto there = remote<RowTable>("worker1", true);
      optim::SparseAdam local_adam({local.rows.weight}, {.lr = 0.1});
      auto adam = dist_optim::make<optim::SparseAdamRule>({there.rpc_sync<&RowTable::parameter>()},
                                                          {.lr = 0.1}, {.two_phase = two_phase});
      for (int64_t t = 0; t < 4; ++t) {
        const Tensor weights = random_values({2, 3, kDim}, 50 + static_cast<uint64_t>(t));
        local_adam.zero_grad();
        Context context;
        for (int64_t pass = 0; pass < 2; ++pass) {  // the second adds to the first
          (local.forward(ids_of_step(t + pass)) * weights).sum().backward();
          context.backward({(there.rpc_sync<&RowTable::forward>(ids_of_step(t + pass)) * weights).sum()});
        }
        const RowGrad mine = local.rows.weight.row_grad(),
                      theirs = there.rpc_sync<&RowTable::row_gradient>(context.id());
        ASSERT_TRUE(same_bits(theirs.rows, mine.rows));
        ASSERT_TRUE(same_bits(theirs.values, mine.values));
        ASSERT_EQ(theirs.sizes, mine.sizes);
        EXPECT_TRUE(same_bits(there.rpc_sync<&RowTable::gradient>(context.id()), local.rows.weight.grad()));
        EXPECT_EQ(adam.clip_grad_norm(context.id(), 0.9), optim::clip_grad_norm({{local.rows.weight}}, 0.9));
        adam.step(context.id());
        local_adam.step();
        ASSERT_TRUE(same_bits(there.rpc_sync<&RowTable::values>(), local.values())) << "step " << t;
      }
    });
}

TEST_P(RowGradOver, of_a_table_that_travelled_comes_back_as_exact_rows) {
  Cluster c({.over = GetParam(), .size = 2});
  c.run(1, [&] {  // no codec rounds them
    dist_autograd::set_edge_codec("worker0", {.gradients = dist_autograd::WireCodec::kInt8, .min_bytes = 0});
  });
  c.run(0, [&] {
    const RowTable local(true);
    const Tensor weight = local.values().requires_grad_(), ids = ids_of_step(5),
                 scale = random_values({2, 3, kDim}, 3);
    (local.forward(ids) * scale).sum().backward();
    Context context;
    context.backward({(rpc_sync<look_up_rows>("worker1", weight, ids) * scale).sum()});
    const RowGrad g = context.row_gradient(weight), mine = local.rows.weight.row_grad();
    ASSERT_TRUE(g.defined());
    EXPECT_EQ(g.rows.to_vector<int64_t>(), (std::vector<int64_t>{5, 7, 16, 17, 445}));
    EXPECT_TRUE(same_bits(g.values, mine.values));
    EXPECT_EQ(g.sizes, weight.sizes());
    ASSERT_EQ(context.gradients().size(), 1u);
    EXPECT_TRUE(same_bits(context.gradients()[0].second, local.rows.weight.grad()));
  });
  EXPECT_EQ(c.agent(1)->debug_info().at("dist_autograd.coded_bytes_saved"), 0);
}

TEST_P(RowGradOver, of_a_batched_look_up_stays_row_wise) {
  Cluster c({.over = GetParam(), .size = 2});
  c.run(0, [&] {
    const Tensor w = batched_table().detach().clone().requires_grad_(), ids = ids_of_step(9).view({6});
    embedding(w, ids, -1, true).sum().backward();
    Context context;
    context.backward({rpc_sync<batched_look_up>("worker1", ids).sum()});
    const RowGrad g = rpc_sync<batched_gradient>("worker1", context.id());
    ASSERT_TRUE(g.defined());
    EXPECT_TRUE(same_bits(g.rows, w.row_grad().rows));
    EXPECT_TRUE(same_bits(g.values, w.row_grad().values));
  });
}

TEST_P(RowGradOver, becomes_dense_in_the_context_beside_a_dense_one) {
  Cluster c({.over = GetParam(), .size = 2});
  c.run(0, [&] {
    const Tensor weight = random_values({kCount, kDim}, 1).requires_grad_(), x = random_values({2, kDim}, 2);
    const auto losses = [&](const Tensor& w) {
      return std::vector<Tensor>{embedding(w, ids_of_step(1), -1, true).sum(), linear(x, w).sum()};
    };
    const Tensor local = weight.detach().clone().requires_grad_();
    for (const Tensor& loss : losses(local)) loss.backward();
    Context context;
    for (const Tensor& loss : losses(weight)) context.backward({loss});
    EXPECT_FALSE(context.row_gradient(weight).defined());
    EXPECT_TRUE(same_bits(context.gradient(weight), local.grad()));
  });
}

TEST_P(RowGradOver, is_refused_by_a_rule_of_dense_gradients_on_the_owner) {
  Cluster c({.over = GetParam(), .size = 2});
  c.run(0, [&] {
    const auto there = remote<RowTable>("worker1", true);
    auto adam = dist_optim::make<optim::AdamRule>({there.rpc_sync<&RowTable::parameter>()});
    const Tensor before = there.rpc_sync<&RowTable::values>();
    Context context;
    context.backward({there.rpc_sync<&RowTable::forward>(ids_of_step(1)).sum()});
    EXPECT_TRUE(has(error_of<ValueError>([&] { adam.step(context.id()); }), "no exact form over rows"));
    EXPECT_TRUE(same_bits(there.rpc_sync<&RowTable::values>(), before));
  });
}

TEST_P(RowGradOver, travels_as_a_value) {
  Cluster c({.over = GetParam(), .size = 2});
  c.run(0, [&] {
    const RowGrad g{{kCount, kDim}, from_vector<int64_t>({3, 99}, {2}), random_values({2, kDim}, 1)};
    const RowGrad back = rpc_sync<same_rows>("worker1", g);
    EXPECT_EQ(back.sizes, g.sizes);
    EXPECT_TRUE(same_bits(back.rows, g.rows));
    EXPECT_TRUE(same_bits(back.values, g.values));
    EXPECT_FALSE(rpc_sync<same_rows>("worker1", RowGrad()).defined());
  });
}

TEST(RowGradWire, sends_rows_and_not_the_table) {
  using namespace dist_autograd::detail;
  RecvNode* const made = new RecvNode(Life{WorkerId{0}}, 1);
  const Ref<Node> kept = Ref<Node>::adopt(made);
  made->origins = {kCpu, kCpu, kCpu};
  const RowGrad rows{{int64_t{1} << 40, kDim},
                     from_vector<int64_t>({3, int64_t{1} << 33}, {2}),
                     random_values({2, kDim}, 1)};
  const Tensor dense = random_values({3}, 2);
  Message message;
  {
    Encoder out(message);
    const GradList all{weft::detail::pack_rows(rows), Tensor(), dense};
    EXPECT_EQ(put_gradients(out, *made, all, false), (std::vector<int64_t>{-1, -1, 2}));
  }
  int64_t bytes = 0;
  for (const Tensor& t : message.tensors) bytes += t.numel() * size_of(t.dtype());
  EXPECT_EQ(bytes, 2 * 8 + 2 * kDim * 4 + 3 * 4);
  Decoder in(message);
  const GradientsOfSlots found = get_slot_gradients(in);
  in.expect_end();
  EXPECT_EQ(found.present, (SlotSet{true, false, true}));
  ASSERT_EQ(found.tensors.size(), 2u);
  EXPECT_TRUE(same_bits(weft::detail::unpack_rows(found.tensors[0]).values, rows.values));
  EXPECT_EQ(weft::detail::grad_sizes(found.tensors[0]), rows.sizes);
  EXPECT_TRUE(same_bits(found.tensors[1], dense));
  for (const uint8_t form : {uint8_t{3}, uint8_t{255}}) {
    Message bad;
    {
      Encoder out(bad);
      out.size(1);
      out.number(form);
    }
    Decoder again(bad);
    EXPECT_THROW(get_slot_gradients(again), WireError);
  }
}

TEST(RowGradWire, refuses_rows_that_lie) {
  const Tensor values = random_values({2, kDim}, 1);
  const auto rows = [](int64_t a, int64_t b) { return from_vector<int64_t>({a, b}, {2}); };
  for (const RowGrad& g :
       {RowGrad{{kCount, kDim}, rows(4, 3), values}, RowGrad{{kCount, kDim}, rows(3, 3), values},
        RowGrad{{kCount, kDim}, rows(-1, 3), values}, RowGrad{{kCount, kDim}, rows(3, kCount), values},
        RowGrad{{kCount, kDim + 1}, rows(3, 4), values}, RowGrad{{kCount}, rows(3, 4), values},
        RowGrad{{kCount, kDim}, from_vector<int64_t>({1, 2, 3}, {3}), values},
        RowGrad{{kCount, kDim}, rows(3, 4).to(kInt32), values}}) {
    Message message;
    {
      Encoder out(message);
      out.put(g);
    }
    Decoder in(message);
    EXPECT_THROW(in.get<RowGrad>(), WireError);
  }
}

}  // namespace
