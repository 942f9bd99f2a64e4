// The marks of SMART passes: marks known from replies cost no message, and all others are asked for.
// The gradients are exact in both cases.
#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/autograd/dist_autograd.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/tensor/factories.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace std::chrono_literals;
using dist_autograd::Backward;
using dist_autograd::Context;
using rpc::Kind;
using rpc::rpc_sync;
using test::Cluster;

Tensor marked(double v) { return full({3}, v, {.dtype = kFloat64}).requires_grad_(); }
double first(const Tensor& g) { return g.defined() ? g.to_vector<double>()[0] : 0; }

Tensor sum_there(const Tensor& a, const Tensor& b) { return a + b; }
WEFT_RPC(sum_there);
std::vector<Tensor> twice_each(const Tensor& a, const Tensor& b) { return {a * 2.0, b * 3.0}; }
WEFT_RPC(twice_each);
/// Keeps twice a for the next call, which returns it beside three times b: two tensors of different calls.
Tensor& kept_twice() {
  static Tensor kept;
  return kept;
}
void keep_twice(const Tensor& a) { kept_twice() = a * 2.0; }
WEFT_RPC(keep_twice);
std::vector<Tensor> kept_and_new(const Tensor& b) { return {std::exchange(kept_twice(), Tensor()), b * 3.0}; }
WEFT_RPC(kept_and_new);
Tensor sum_behind(const Tensor& a, int64_t worker) {
  return rpc_sync<sum_there>(static_cast<int>(worker), a, a);
}
WEFT_RPC(sum_behind);
/// A graph of more nodes than a reply walks through.
Tensor long_way(const Tensor& a) {
  Tensor y = a;
  for (int i = 0; i < 400; ++i) y = y * 1.0;
  return y;
}
WEFT_RPC(long_way);

/// Counts the messages between different workers, by kind and in all.
struct Counted {
  explicit Counted(Cluster& c) {
    for (const Kind kind : {Kind::kMark, Kind::kPassDone, Kind::kGradients}) {
      const auto number = static_cast<uint8_t>(kind);
      for (const uint8_t both : {number, static_cast<uint8_t>(number | rpc::kReplyBit)})
        c.net().add_rule({.kind = both, .match = [this, kind](const std::string&) {
                            ++of[kind];
                            return false;
                          }});
    }
  }
  int64_t all() { return of[Kind::kMark] + of[Kind::kPassDone] + of[Kind::kGradients]; }
  std::map<Kind, int64_t> of;
};

TEST(DistMarks, a_pass_with_workers_that_called_nobody_costs_the_messages_of_fast) {
  std::map<Backward, int64_t> messages;
  for (const Backward mode : {Backward::kFast, Backward::kSmart}) {
    Cluster c({.size = 3});
    Counted counted(c);
    c.run(0, [&] {
      const Tensor a = marked(1), b = marked(2);
      Context context;
      const Tensor y = rpc_sync<sum_there>(1, a, b);
      const Tensor z = rpc_sync<sum_there>(2, y, a) + rpc_sync<sum_there>(1, y, b);
      context.backward({z.sum()}, {.mode = mode});
      EXPECT_EQ(first(context.gradient(a)), 3);
      EXPECT_EQ(first(context.gradient(b)), 3);
    });
    EXPECT_EQ(counted.of[Kind::kMark] + counted.of[Kind::kPassDone], 0);
    messages[mode] = counted.all();
  }
  EXPECT_EQ(messages[Backward::kSmart], messages[Backward::kFast]);
  EXPECT_EQ(messages[Backward::kSmart], 12);  // three calls; a request and its answer each way
}

TEST(DistMarks, each_tensor_of_a_reply_has_marks_of_its_own) {
  for (const bool far : {false, true}) {
    Cluster c({.size = 3});
    Counted counted(c);
    c.run(0, [&] {
      const Tensor a = marked(1), b = marked(2);
      Context context;
      // the graph of b goes through two calls; the loss does not use it
      const Tensor u = rpc_sync<sum_there>(1, a, a), v = rpc_sync<sum_there>(2, b, b);
      const std::vector<Tensor> both = rpc_sync<twice_each>(1, far ? rpc_sync<sum_behind>(1, u, 2) : u, v);
      context.backward({both[0].sum()}, {.timeout = 60s});
      EXPECT_EQ(first(context.gradient(a)), far ? 8 : 4);
      EXPECT_FALSE(context.gradient(b).defined());
    });
    EXPECT_EQ(counted.of[Kind::kMark] > 0, far);
  }
}

TEST(DistMarks, a_tensor_that_is_not_used_leaves_the_call_that_it_came_from_alone) {
  for (const size_t used : {0, 1}) {
    Cluster c({.size = 2});
    Counted counted(c);
    c.run(0, [&] {
      const Tensor a = marked(1), b = marked(2);
      Context context;
      rpc_sync<keep_twice>(1, a);
      const Tensor y = rpc_sync<kept_and_new>(1, b)[used];
      context.backward({y.sum()}, {.timeout = 60s});  // no gradients come for the other call
      EXPECT_EQ(first(context.gradient(used == 0 ? a : b)), used == 0 ? 2 : 3);
      EXPECT_FALSE(context.gradient(used == 0 ? b : a).defined());
    });
    EXPECT_EQ(counted.of[Kind::kMark], 0);
  }
}

TEST(DistMarks, a_reply_that_does_not_know_is_asked) {
  Cluster c({.size = 3});
  Counted counted(c);
  c.run(0, [&] {
    const Tensor a = marked(1);
    int64_t asked = 0;
    for (const bool far : {true, false}) {
      Context context;
      const Tensor y = far ? rpc_sync<sum_behind>(1, a, 2) : rpc_sync<long_way>(1, a);
      context.backward({y.sum()});
      EXPECT_EQ(first(context.gradient(a)), far ? 2 : 1);
      EXPECT_GT(counted.of[Kind::kMark], asked) << far;
      asked = counted.of[Kind::kMark];
    }
  });
}

TEST(DistMarks, calls_to_oneself_and_passes_over_retained_graphs_need_no_question) {
  Cluster c({.size = 2});
  Counted counted(c);
  c.run(0, [&] {
    const Tensor a = marked(1), b = marked(2);
    Context context;
    const Tensor y = rpc_sync<sum_there>(0, rpc_sync<sum_there>(1, a, b), a);
    for (int pass = 1; pass <= 3; ++pass) {
      context.backward({y.sum()}, {.retain_graph = true});
      EXPECT_EQ(first(context.gradient(a)), 2 * pass);
      EXPECT_EQ(first(context.gradient(b)), pass);
    }
    EXPECT_EQ(c.agent(1)->debug_info().at("dist_autograd.num_current_backward_passes"), 0);
  });
  EXPECT_EQ(counted.of[Kind::kMark], 0);
}

TEST(DistMarks, a_context_of_many_calls_to_one_worker_has_exact_gradients) {
  Cluster c({.size = 2});
  c.run(0, [&] {
    for (const int calls : {60, 70}) {
      const Tensor a = marked(1);
      Context context;
      Tensor y = a;
      for (int i = 0; i < calls; ++i) y = rpc_sync<sum_there>(1, y, a);
      context.backward({y.sum()});
      EXPECT_EQ(first(context.gradient(a)), calls + 1);
    }
  });
}

}  // namespace
