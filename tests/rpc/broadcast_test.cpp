// One call to many workers: broadcast and scatter, arguments that are encoded once, errors, and gradients in
// a context.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/autograd/edge_codec.h>
#include <weft/distributed/rpc/broadcast.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

/// A value that counts its encodings.
struct Counted {
  int64_t value = 0;
  static inline std::atomic<int> encodings{0};
};
template <> struct weft::rpc::Codec<Counted> {
  static std::string name() { return "Counted"; }
  static void encode(Encoder& out, const Counted& v) {
    ++Counted::encodings;
    out.number(v.value);
  }
  static Counted decode(Decoder& in) { return {in.number<int64_t>()}; }
};

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using test::Cluster;
using test::Over;

const std::vector<std::string> kThree{"worker1", "worker2", "worker3"};

Tensor scaled_here(const Tensor& x, const Counted& by) {
  return x * static_cast<double>(by.value + current_agent()->self().id.value);
}
WEFT_RPC(scaled_here);

int64_t value_of(const RRef<Tensor>& x, int64_t i) {
  return x.to_here().to_vector<int64_t>().at(static_cast<size_t>(i));
}
WEFT_RPC(value_of);

int64_t rank_unless(int64_t wrong) {
  const int64_t rank = current_agent()->self().id.value;
  if (rank == wrong) throw IndexError("this rank is wrong");
  return rank;
}
WEFT_RPC(rank_unless);

Tensor twice_of_leaf(const Tensor& x) { return x * 2.0; }
WEFT_RPC(twice_of_leaf);

std::atomic<int64_t> g_seen{0};
void see(int64_t value) { g_seen += value; }
WEFT_RPC(see);

Tensor rows_times(const Tensor& x, const Tensor& y, double by) { return x * y * by; }
WEFT_RPC(rows_times);

Tensor leaf(const std::vector<double>& values, const Shape& sizes) {
  return from_vector(values, sizes).requires_grad_();
}
std::vector<double> numbers(const Tensor& t) { return t.detach().to_vector<double>(); }

class Many : public ::testing::TestWithParam<Over> {};
INSTANTIATE_TEST_SUITE_P(Networks, Many, ::testing::Values(Over::kSim, Over::kGrpc),
                         [](const auto& info) { return to_string(info.param); });

TEST_P(Many, a_broadcast_is_encoded_once_and_answered_by_all) {
  Cluster c({.over = GetParam(), .size = 4});
  c.run(0, [&] {
    Counted::encodings = 0;
    const Tensor x = ones({2000}, {.dtype = kFloat64});  // more than travels inside a header
    const auto calls = broadcast<scaled_here>(kThree, x, Counted{10});
    EXPECT_EQ(Counted::encodings, 1);
    const std::vector<Tensor> results = calls.take();
    ASSERT_EQ(results.size(), 3u);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(numbers(results[i]), std::vector<double>(2000, 11.0 + static_cast<double>(i)));
    g_seen = 0;
    broadcast<see>({{"worker1", "worker2"}, 60s}, 5).all().wait();
    EXPECT_EQ(g_seen, 10);
  });
}

TEST_P(Many, a_broadcast_and_a_scatter_send_gradients_back_from_all_workers) {
  Cluster c({.over = GetParam(), .size = 4});
  c.run(0, [&] {
    std::vector<double> values(1500, 2.0);
    const Tensor w = leaf(values, {1500}), x = leaf({1, 2, 3, 4, 5, 6, 7}, {7, 1});
    const Tensor y = from_vector(std::vector<double>{7, 6, 5, 4, 3, 2, 1}, {7, 1});
    dist_autograd::Context context;
    const auto all = broadcast<scaled_here>(kThree, w, Counted{0}).take();  // times 1, 2 and 3
    const auto parts = scatter<rows_times>(kThree, x, y, 10.0).take();
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[0].size(0), 3);  // 7 rows: 3, 2 and 2
    EXPECT_EQ(parts[2].size(0), 2);
    const Tensor joined = cat(parts, 0);
    EXPECT_EQ(numbers(joined), (std::vector<double>{70, 120, 150, 160, 150, 120, 70}));
    context.backward({(all[0] + all[1] + all[2]).sum() + joined.sum()});
    EXPECT_EQ(numbers(context.gradient(w)), std::vector<double>(1500, 6.0));
    EXPECT_EQ(numbers(context.gradient(x)), (std::vector<double>{70, 60, 50, 40, 30, 20, 10}));
  });
}

TEST(ManyCalls, a_leaf_stays_a_leaf_and_is_not_rounded) {
  Cluster c({.size = 4});
  c.run(0, [&] {
    for (const std::string& name : kThree)
      dist_autograd::set_edge_codec(name, {.activations = dist_autograd::WireCodec::kInt8});
    const Tensor w = rand({3000}).requires_grad_();
    dist_autograd::Context context;
    for (const Tensor& y : broadcast<twice_of_leaf>(kThree, w).take())
      EXPECT_TRUE(equal(y.detach(), w.detach() * 2.0));
    const auto parts = broadcast<twice_of_leaf>(kThree, w.detach().narrow(0, 7, 2000)).take();
    EXPECT_TRUE(equal(parts[2], w.detach().narrow(0, 7, 2000) * 2.0));
  });
}

TEST(ManyCalls, references_are_encoded_for_each_worker) {
  Cluster c({.size = 4});
  c.run(0, [&] {
    {
      const RRef<Tensor> x(from_vector(std::vector<int64_t>{4, 5}, {2}));
      EXPECT_EQ(broadcast<value_of>(kThree, x, 1).take(), std::vector<int64_t>(3, 5));
    }
    EXPECT_TRUE(test::eventually(c, [&] { return c.agent(0)->debug_info().at("num_owner_rrefs") == 0; }));
  });
}

TEST(ManyCalls, a_failed_call_fails_the_joined_future_and_leaves_the_others) {
  Cluster c({.size = 4});
  c.run(0, [&] {
    const auto calls = broadcast<rank_unless>(kThree, 2);
    EXPECT_THROW(calls.take(), IndexError);
    EXPECT_EQ(calls.each[0].wait(), 1);
    EXPECT_EQ(calls.each[2].wait(), 3);
    WaitAll scope;
    broadcast<rank_unless>(kThree, 3);
    EXPECT_THROW(scope.wait(), IndexError);
  });
}

TEST(ManyCalls, wrong_destinations_and_rows_are_refused_before_anything_is_sent) {
  Cluster c({.size = 4});
  c.run(0, [&] {
    const Tensor x = ones({2, 1}), y = ones({3, 1});
    const int64_t before = c.agent(0)->debug_info().at("agent.client_calls");
    EXPECT_THROW(broadcast<rank_unless>({"worker1", "nobody"}, 0), ValueError);
    EXPECT_THROW(broadcast<rank_unless>(std::vector<std::string>(), 0), ValueError);
    EXPECT_THROW(scatter<rows_times>(kThree, x, x, 1.0), ValueError);                  // 2 rows, 3 workers
    EXPECT_THROW(scatter<rows_times>({"worker1", "worker2"}, x, y, 1.0), ValueError);  // 2 and 3 rows
    EXPECT_THROW(scatter<rows_times>({"worker1"}, full({}, 1.0), x, 1.0), ValueError);
    EXPECT_THROW(scatter<rows_times>({"worker1", "nobody"}, x, x, 1.0), ValueError);
    EXPECT_EQ(c.agent(0)->debug_info().at("agent.client_calls"), before);
  });
}

}  // namespace
