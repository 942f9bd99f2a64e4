// The Pass itself: marking, deliveries from several threads, sinks, boundaries, failure.
#include <thread>

#include <gtest/gtest.h>

#include <weft/autograd/ops/ops.h>
#include <weft/autograd/tape/engine.h>
#include <weft/autograd/tape/grad_mode.h>

#include "support/errors.h"
#include "support/leaf.h"

namespace weft {
namespace {

using test::error_of;
using test::has;

using test::leaf;
using test::values;
using Numbers = std::vector<double>;

TEST(Pass, deliveries_may_come_from_several_threads) {
  const Tensor x = leaf({1});
  std::vector<Tensor> roots;
  std::vector<Edge> edges;
  for (int i = 1; i <= 23; ++i) roots.push_back(mul(x, static_cast<double>(i)));
  for (const Tensor& r : roots) edges.push_back(gradient_edge(r));
  Pass pass({});
  pass.mark(edges);
  EXPECT_EQ(pass.pending(), 24u);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < edges.size(); ++i)
    threads.emplace_back([&, i] {
      pass.deliver(edges[i], ones({1}, {.dtype = kFloat64}));
      pass.run();
    });
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(pass.finished());
  EXPECT_EQ(values(x.grad()), Numbers{23 * 24 / 2});
}

TEST(Pass, a_pass_waits_for_each_marked_root) {
  const Tensor x = leaf({1});
  const Tensor a = mul(x, 2.0), b = mul(x, 3.0);
  const Edge edges[] = {gradient_edge(a), gradient_edge(b)};
  Pass pass({});
  pass.mark(edges);
  pass.deliver(edges[0], ones({1}, {.dtype = kFloat64}));
  pass.run();
  EXPECT_EQ(pass.pending(), 2u);
  EXPECT_FALSE(x.grad().defined());
  pass.deliver(edges[1], Tensor());
  pass.run();
  EXPECT_TRUE(pass.finished());
  EXPECT_EQ(values(x.grad()), Numbers{2});
  EXPECT_TRUE(has(error_of<AutogradError>([&] { pass.deliver(edges[0], Tensor()); }), "awaits no gradient"));
  const Tensor other = mul(x, 5.0);
  EXPECT_TRUE(has(error_of<AutogradError>([&] { pass.deliver(gradient_edge(other), Tensor()); }),
                  "not part of this pass"));
}

TEST(Pass, absent_gradients_are_skipped_not_zeroed) {
  const Tensor x = leaf({1}), y = leaf({1});
  const Tensor a = mul(x, x), b = mul(y, y);
  const Edge edges[] = {gradient_edge(a), gradient_edge(b)};
  Pass pass({});
  pass.mark(edges);
  pass.deliver(edges[0], ones({1}, {.dtype = kFloat64}));
  pass.deliver(edges[1], Tensor());
  pass.run();
  EXPECT_TRUE(pass.finished());
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(y.grad().defined());
}

TEST(Pass, leaf_gradients_go_to_the_sink) {
  struct Sink final : GradSink {
    void accumulate(const Tensor& leaf, Tensor grad, bool) override { seen.emplace_back(leaf, grad); }
    std::vector<std::pair<Tensor, Tensor>> seen;
  } sink;
  const Tensor x = leaf({3});
  const Tensor y = mul(x, x);
  const Edge edge = gradient_edge(y);
  Pass pass({.sink = &sink});
  pass.mark({&edge, 1});
  pass.deliver(edge, ones({1}, {.dtype = kFloat64}));
  pass.run();
  ASSERT_EQ(sink.seen.size(), 1u);
  EXPECT_TRUE(sink.seen[0].first.is_same(x));
  EXPECT_EQ(values(sink.seen[0].second), Numbers{6});
  EXPECT_FALSE(x.grad().defined());
}

TEST(Pass, boundaries_are_reported_once_and_run_last) {
  struct Recv final : Node {
    Recv() : Node("recv") {
      slots().push_back({Shape({1}), kFloat64, kCpu});
      slots().push_back({Shape({1}), kFloat64, kCpu});
    }
    GradList apply(GradList grads, Pass&) override {
      got = grads;
      return {};
    }
    bool is_boundary() const override { return true; }
    GradList got;
  };
  Ref<Recv> recv = Ref<Recv>::adopt(new Recv);
  std::vector<Tensor> outs{ones({1}, {.dtype = kFloat64}), ones({1}, {.dtype = kFloat64})};
  detail::link(recv, outs, std::span<const Tensor>());
  const Tensor y = mul(add(outs[0], outs[0]), 3.0);
  const Edge edge = gradient_edge(y);
  std::vector<uint32_t> reported;
  Pass pass({});
  pass.mark({&edge, 1}, [&](Node& node, uint32_t slot) {
    EXPECT_EQ(&node, recv.get());
    reported.push_back(slot);
  });
  EXPECT_EQ(reported, std::vector<uint32_t>{0});
  pass.deliver(edge, ones({1}, {.dtype = kFloat64}));
  pass.run();
  EXPECT_TRUE(pass.finished());
  ASSERT_EQ(recv->got.size(), 2u);
  EXPECT_EQ(values(recv->got[0]), Numbers{6});
  EXPECT_FALSE(recv->got[1].defined());
}

TEST(Pass, failure_from_outside_ends_it) {
  const Tensor x = leaf({1});
  const Tensor y = mul(x, x);
  const Edge edge = gradient_edge(y);
  Pass pass({});
  pass.mark({&edge, 1});
  pass.fail(std::make_exception_ptr(IoError("the other side is gone")));
  pass.deliver(edge, ones({1}, {.dtype = kFloat64}));
  EXPECT_THROW(pass.run(), IoError);
  EXPECT_THROW(pass.run(), IoError);
  EXPECT_FALSE(x.grad().defined());
}

TEST(Pass, an_exception_of_a_node_is_kept) {
  struct Bad final : Node {
    Bad() : Node("bad") { slots().push_back({Shape({1}), kFloat64, kCpu}); }
    GradList apply(GradList, Pass&) override { throw ValueError("bad luck"); }
  };
  const Edge edge{Ref<Node>::adopt(new Bad), 0};
  Pass pass({});
  pass.mark({&edge, 1});
  pass.deliver(edge, ones({1}, {.dtype = kFloat64}));
  EXPECT_THROW(pass.run(), ValueError);
  EXPECT_THROW(pass.run(), ValueError);
  EXPECT_FALSE(pass.finished());
  EXPECT_EQ(autograd_state().current, nullptr);
}

TEST(Pass, wrong_gradients_of_a_node_are_named) {
  const Tensor x = leaf({1, 2});
  const Tensor y = record("odd", x.detach().clone(), {x},
                          [](const Tensor&, Needs) -> GradList { return {ones({3}, {.dtype = kFloat64})}; });
  EXPECT_TRUE(has(error_of<AutogradError>([&] { y.sum().backward(); }), "[3]"));
  const Tensor z = record("short", x.detach().clone(), {x}, [](const Tensor& g, Needs) -> GradList {
    return {g, g};
  });
  EXPECT_TRUE(has(error_of<AutogradError>([&] { z.sum().backward(); }),
                  "short: backward returned 2 gradients for 1"));
}

}  // namespace
}  // namespace weft
