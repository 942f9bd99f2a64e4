// Futures: outcomes, continuations, collections; over simulated and over real threads.
#include <gtest/gtest.h>

#include <atomic>

#include <weft/autograd/tape/grad_mode.h>
#include <weft/distributed/rpc/rpc.h>
#include <weft/distributed/sim/sim_runtime.h>

#include "support/cluster.h"

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;

class FutureOn : public ::testing::TestWithParam<bool> {
 protected:
  FutureOn()
      : runtime(GetParam() ? std::shared_ptr<Runtime>(std::make_shared<SimRuntime>())
                           : make_threaded_runtime({.threads = 2})) {}
  ~FutureOn() override { runtime->stop(); }
  std::shared_ptr<Runtime> runtime;
};
INSTANTIATE_TEST_SUITE_P(Runtimes, FutureOn, ::testing::Bool(),
                         [](const auto& i) { return i.param ? "simulated" : "threads"; });

TEST_P(FutureOn, gives_its_value_to_every_wait) {
  Future<int> f(runtime);
  EXPECT_FALSE(f.done());
  runtime->post([f] { f.set_result(7); });
  EXPECT_EQ(f.wait(), 7);
  EXPECT_EQ(f.wait(), 7);
  EXPECT_EQ(f.value(), 7);
  EXPECT_TRUE(f.done());
}

TEST_P(FutureOn, throws_its_error_from_every_wait) {
  Future<int> f(runtime);
  f.set_error(ValueError("no"));
  EXPECT_TRUE(f.done());
  EXPECT_TRUE(f.has_error());
  for (int i = 0; i < 3; ++i) EXPECT_THROW(f.wait(), ValueError);
}

TEST_P(FutureOn, takes_one_outcome_only) {
  Future<int> f(runtime);
  f.set_result(1);
  EXPECT_THROW(f.set_result(2), RpcError);
  EXPECT_THROW(f.set_error(ValueError("late")), RpcError);
  EXPECT_EQ(f.wait(), 1);
}

TEST_P(FutureOn, wait_for_gives_up_and_leaves_it_open) {
  Future<int> f(runtime);
  EXPECT_THROW(f.wait_for(5ms), Timeout);
  EXPECT_THROW(f.value(), RpcError);
  f.set_result(3);
  EXPECT_EQ(f.wait_for(5ms), 3);
}

TEST_P(FutureOn, continuations_take_the_value_or_the_future_and_flatten) {
  Future<int> f(runtime);
  const Future<std::string> by_value = f.then([](int x) { return std::to_string(x); });
  const Future<bool> by_future = f.then([](Future<int> done) { return done.has_error(); });
  const Future<int> flat = f.then([rt = runtime](int x) {
    Future<int> inner(rt);
    rt->post([inner, x] { inner.set_result(x * 10); });
    return inner;
  });
  const Future<void> nothing = f.then([](int) {});
  f.set_result(4);
  EXPECT_EQ(by_value.wait(), "4");
  EXPECT_FALSE(by_future.wait());
  EXPECT_EQ(flat.wait(), 40);
  nothing.wait();
}

TEST_P(FutureOn, an_error_passes_by_continuations_of_values) {
  Future<int> f(runtime);
  std::atomic<int> ran{0};
  const auto a = f.then([&](int) {
    ++ran;
    return 1;
  });
  const auto b = f.then([](Future<int> done) { return done.has_error() ? 5 : 6; });
  f.set_error(IndexError("out"));
  EXPECT_THROW(a.wait(), IndexError);
  EXPECT_EQ(b.wait(), 5);
  EXPECT_EQ(ran, 0);
}

TEST_P(FutureOn, a_continuation_that_throws_fails_its_own_future_only) {
  Future<int> f(runtime);
  const auto g = f.then([](int) -> int { throw std::out_of_range("mine"); });
  f.set_result(1);
  EXPECT_THROW(g.wait(), std::out_of_range);
  EXPECT_EQ(f.wait(), 1);
}

TEST_P(FutureOn, an_abandoned_one_fails_its_followers) {
  Future<int> follower(runtime);
  {
    Future<int> f(runtime);
    follower = f.then([](int x) { return x; });
  }
  EXPECT_THROW(follower.wait(), RpcError);
}

TEST_P(FutureOn, collections_give_all_values_in_order_or_the_first_error) {
  std::vector<Future<int>> list;
  for (int i = 0; i < 5; ++i) list.emplace_back(runtime);
  const auto all = collect(list);
  for (int i = 4; i >= 0; --i) runtime->post([f = list[static_cast<size_t>(i)], i] { f.set_result(i * i); });
  EXPECT_EQ(all.wait(), (std::vector<int>{0, 1, 4, 9, 16}));
  EXPECT_EQ(wait_all(list), (std::vector<int>{0, 1, 4, 9, 16}));

  std::vector<Future<void>> voids{Future<void>(runtime), Future<void>(runtime)};
  const auto both = collect(voids);
  voids[1].set_error(ValueError("one"));
  EXPECT_THROW(both.wait(), ValueError);  // while the other is still open

  Future<int> a(runtime);
  Future<std::string> b(runtime);
  const auto mixed = collect(a, b);
  a.set_result(1);
  b.set_result("x");
  EXPECT_EQ(mixed.wait(), std::tuple(1, std::string("x")));
}

TEST_P(FutureOn, moves_a_value_that_cannot_be_copied) {
  Future<std::unique_ptr<int>> f(runtime);
  f.set_result(std::make_unique<int>(3));
  EXPECT_EQ(*f.take(), 3);
}

TEST_P(FutureOn, many_waiters_all_wake) {
  Future<int> f(runtime);
  std::atomic<int> sum{0};
  std::vector<Future<void>> all;
  for (int i = 0; i < 20; ++i) {
    all.emplace_back(runtime);
    runtime->post([f, &sum, done = all.back()] {
      sum += f.wait();
      done.set_result();
    });
  }
  runtime->sleep_for(5ms);
  f.set_result(2);
  wait_all(all);
  EXPECT_EQ(sum, 40);
}

TEST(Future, a_continuation_runs_in_the_context_and_grad_mode_of_then) {
  test::Cluster c({.size = 2});
  Future<int> f(c.agent(0)->runtime());
  Future<std::string> g = f.then([](int) { return std::string(current_agent_or_null() ? "some" : "none"); });
  Future<std::pair<int64_t, bool>> h(c.agent(0)->runtime());
  {
    CallContext context;
    context.endpoint = c.agent(1);
    context.autograd_context = 77;
    const CallScope scope(context);
    const NoGrad off;
    h = f.then([](int) { return std::pair(current_context()->autograd_context, grad_enabled()); });
  }
  f.set_result(1);
  EXPECT_EQ(g.wait(), "none");
  EXPECT_EQ(h.wait(), (std::pair<int64_t, bool>(77, false)));
  EXPECT_TRUE(grad_enabled());
}

}  // namespace
