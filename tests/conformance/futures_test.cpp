// The claims of docs/conformance.md on futures and asynchronous functions.
#include "conformance/fixture.h"

#include <atomic>
#include <mutex>

#include <weft/tensor/factories.h>

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;

WEFT_CONFORMANCE(RpcFutures);

int64_t plus(int64_t a, int64_t b) { return a + b; }
WEFT_RPC_AS("futures::plus", plus);
int64_t broken() { throw ValueError("expected"); }
WEFT_RPC_AS("futures::broken", broken);

// Asynchronous functions: they return a future, and the caller gets its value.
Future<int64_t> later_plus(const std::string& to, int64_t a, int64_t b) { return rpc_async<plus>(to, a, b); }
WEFT_RPC(later_plus);
Future<int64_t> made_by_hand(const std::string& to, int64_t a, int64_t b) {
  Future<int64_t> out;
  rpc_async<plus>(to, a, b).then([out](int64_t v) { out.set_result(v + 1); });
  return out;
}
WEFT_RPC(made_by_hand);
Future<int64_t> chained(const std::string& to, int64_t a, int64_t b) {
  return rpc_async<plus>(to, a, b).then([a](int64_t v) { return v + a; });
}
WEFT_RPC(chained);
Future<int64_t> nested(const std::string& to, int64_t a, int64_t b) {
  return rpc_async<later_plus>(to, to, a, b).then([to, b](int64_t v) { return rpc_async<plus>(to, v, b); });
}
WEFT_RPC(nested);
Future<int64_t> many_in_a_row(const std::string& to, int64_t count, int64_t step) {
  Future<int64_t> sum = Future<int64_t>::ready(0);
  for (int64_t i = 0; i < count; ++i)
    sum = sum.then([to, step](int64_t v) { return rpc_async<plus>(to, v, step); });
  return sum;
}
WEFT_RPC(many_in_a_row);
Future<int64_t> many_at_once(const std::string& to, int64_t count, int64_t step) {
  std::vector<Future<int64_t>> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(rpc_async<plus>(to, i, step));
  return collect(all).then([](const std::vector<int64_t>& values) {
    int64_t sum = 0;
    for (const int64_t v : values) sum += v;
    return sum;
  });
}
WEFT_RPC(many_at_once);
Future<int64_t> raises_at_once(int) { throw std::out_of_range("before the future"); }
WEFT_RPC(raises_at_once);
Future<int64_t> raises_later(const std::string& to) { return rpc_async<broken>(to); }
WEFT_RPC(raises_later);
std::mutex g_mutex;
std::vector<Future<void>> g_open;
Future<void> never() {
  const std::lock_guard lock(g_mutex);
  return g_open.emplace_back();
}
WEFT_RPC(never);
struct Methods {
  static Future<int64_t> at_class(const std::string& to, int64_t a, int64_t b) {
    return rpc_async<plus>(to, a, b);
  }
};
WEFT_RPC_AS("Methods::at_class", &Methods::at_class);

// test_future_wait_twice
TEST_P(RpcFutures, twenty_failed_futures_throw_from_every_wait) {
  Cluster c(options());
  c.run(0, [] {
    std::vector<Future<int64_t>> all;
    for (int i = 0; i < 20; ++i) all.push_back(rpc_async<broken>("worker1"));
    for (int round = 0; round < 2; ++round)
      for (const auto& f : all) EXPECT_THROW(f.wait(), ValueError);
  });
}

// test_callback_simple
TEST_P(RpcFutures, a_continuation_sees_the_value_and_the_future_stays_readable) {
  Cluster c(options());
  c.run(0, [] {
    const auto f = rpc_async<plus>("worker1", 2, 3);
    EXPECT_EQ(f.then([](int64_t v) { return v * 10; }).wait(), 50);
    EXPECT_EQ(f.wait(), 5);
  });
}

// test_callback_multi
TEST_P(RpcFutures, ten_continuations_of_one_future) {
  Cluster c(options());
  c.run(0, [] {
    const auto f = rpc_async<plus>("worker1", 2, 3);
    std::vector<Future<int64_t>> all;
    for (int64_t i = 0; i < 10; ++i) all.push_back(f.then([i](int64_t v) { return v + i; }));
    for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(all[static_cast<size_t>(i)].wait(), 5 + i);
  });
}

// test_callback_chain
TEST_P(RpcFutures, a_chain_of_twenty_continuations) {
  Cluster c(options());
  c.run(0, [] {
    auto f = rpc_async<plus>("worker1", 1, 1);
    for (int i = 0; i < 20; ++i) f = f.then([](int64_t v) { return v + 1; });
    EXPECT_EQ(f.wait(), 22);
  });
}

// test_callback_in_rpc, test_callback_with_ret
TEST_P(RpcFutures, continuations_call_on_also_blocking) {
  Cluster c(options());
  c.run(0, [] {
    const auto sum =
        rpc_async<plus>("worker1", 1, 2).then([](int64_t v) { return rpc_sync<plus>("worker2", v, 10); });
    const auto later = sum.then([](int64_t v) { return rpc_async<plus>("worker3", v, 100); });
    EXPECT_EQ(sum.wait(), 13);
    EXPECT_EQ(later.wait(), 113);
  });
}

// test_callback_with_error
TEST_P(RpcFutures, a_continuation_may_swallow_an_error_and_throw_its_own) {
  Cluster c(options());
  c.run(0, [] {
    const auto f = rpc_async<broken>("worker1").then([](Future<int64_t> done) -> int64_t {
      EXPECT_THROW(done.wait(), ValueError);
      throw IndexError("another expected error");
    });
    EXPECT_THROW(f.wait(), IndexError);
  });
}

// test_add_done_callback
TEST_P(RpcFutures, a_done_callback_runs_once_and_changes_nothing) {
  Cluster c(options());
  c.run(0, [] {
    std::atomic<int> runs{0};
    const auto f = rpc_async<plus>("worker1", 1, 2);
    Future<void> ran;
    f.add_done_callback([&, ran](const Future<int64_t>& done) {
      EXPECT_EQ(done.value(), 3);
      ++runs;
      ran.set_result();
      throw std::logic_error("dropped");
    });
    ran.wait();
    EXPECT_EQ(f.wait(), 3);
    current_runtime()->sleep_for(5ms);
    EXPECT_EQ(runs, 1);
  });
}

// test_mark_future_twice
TEST_P(RpcFutures, a_second_outcome_is_an_error) {
  Cluster c(options());
  c.run(0, [] {
    const auto f = rpc_async<plus>("worker1", 1, 2);
    EXPECT_EQ(f.wait(), 3);
    EXPECT_THROW(f.set_result(4), RpcError);
    EXPECT_EQ(f.wait(), 3);
  });
}

// test_future_done, test_future_done_exception
TEST_P(RpcFutures, done_is_true_after_a_value_and_after_an_error) {
  Cluster c(options());
  c.run(0, [] {
    const auto good = rpc_async<plus>("worker1", 1, 2);
    const auto bad = rpc_async<broken>("worker1");
    EXPECT_EQ(good.wait(), 3);
    EXPECT_THROW(bad.wait(), ValueError);
    EXPECT_TRUE(good.done());
    EXPECT_FALSE(good.has_error());
    EXPECT_TRUE(bad.done());
    EXPECT_TRUE(bad.has_error());
  });
}

// test_pickle_future, test_return_future: refused at compile time (codec.h); the answer of a function that
// returns one is its value.
TEST_P(RpcFutures, a_function_that_returns_a_future_answers_with_its_value) {
  static_assert(std::is_same_v<decltype(rpc_sync<later_plus>("", "", 1, 1)), int64_t>);
  Cluster c(options());
  c.run(0, [] { EXPECT_EQ(rpc_sync<later_plus>("worker1", "worker2", 1, 2), 3); });
}

// test_future_in_rpc, test_future_nested_callback
TEST_P(RpcFutures, a_future_made_by_hand_is_completed_by_a_nested_continuation) {
  Cluster c(options());
  c.run(0, [] {
    Future<int64_t> out;
    rpc_async<plus>("worker1", 1, 2).then([out](int64_t v) {
      rpc_async<plus>("worker2", v, 3).then([out](int64_t w) { out.set_result(w); });
    });
    EXPECT_EQ(out.wait(), 6);
  });
}

// test_async_function_simple, _with_future_ctor, _chained, _nested
TEST_P(RpcFutures, asynchronous_functions_of_every_make_answer) {
  Cluster c(options());
  c.run_all([](int rank) {
    const std::string to = str("worker", (rank + 1) % 4), other = str("worker", (rank + 2) % 4);
    EXPECT_EQ(rpc_sync<later_plus>(to, other, 1, 2), 3);
    EXPECT_EQ(rpc_sync<made_by_hand>(to, other, 1, 2), 4);
    EXPECT_EQ(rpc_sync<chained>(to, other, 1, 2), 4);
    EXPECT_EQ(rpc_sync<nested>(to, other, 1, 2), 5);
    EXPECT_EQ(rpc_async<nested>(to, other, 2, 3).wait(), 8);
  });
}

// test_async_function_multi_chained, _async
TEST_P(RpcFutures, twenty_nested_calls_one_after_the_other) {
  Cluster c(options());
  c.run(0, [] {
    EXPECT_EQ(rpc_sync<many_in_a_row>("worker1", "worker2", 20, 3), 60);
    EXPECT_EQ(rpc_async<many_in_a_row>("worker1", "worker2", 20, 3).wait(), 60);
  });
}

// test_async_function_multi_fanout, _async
TEST_P(RpcFutures, twenty_nested_calls_at_once) {
  Cluster c(options());
  c.run(0, [] {
    EXPECT_EQ(rpc_sync<many_at_once>("worker1", "worker2", 20, 1), 190 + 20);
    const auto later = rpc_async<many_at_once>("worker1", "worker2", 20, 1),
               other = rpc_async<many_at_once>("worker3", "worker2", 20, 2);
    EXPECT_EQ(later.wait(), 190 + 20);
    EXPECT_EQ(other.wait(), 190 + 40);
  });
}

// test_async_static_method, test_async_class_method
TEST_P(RpcFutures, static_methods_may_be_asynchronous) {
  Cluster c(options());
  c.run(0, [] { EXPECT_EQ(rpc_sync<&Methods::at_class>("worker1", "worker2", 4, 5), 9); });
}

// test_async_function_raise, _async
TEST_P(RpcFutures, an_exception_before_the_future_exists_and_one_of_the_future_arrive) {
  Cluster c(options());
  c.run(0, [] {
    EXPECT_THROW(rpc_sync<raises_at_once>("worker1", 1), std::out_of_range);
    EXPECT_THROW(rpc_async<raises_at_once>("worker1", 1).wait(), std::out_of_range);
    EXPECT_THROW(rpc_sync<raises_later>("worker1", "worker2"), ValueError);
  });
}

// The point of asynchronous functions: no thread waits. More of them open than the pool has threads.
TEST_P(RpcFutures, open_asynchronous_functions_hold_no_thread) {
  Cluster c(options(2));
  c.run(0, [&] {
    std::vector<Future<void>> open;
    for (int i = 0; i < 100; ++i) open.push_back(rpc_async<never>("worker1"));
    EXPECT_TRUE(test::eventually(
        c, [&] { return c.agent(1)->debug_info()["agent.server_active_async_calls"] == 100; }));
    EXPECT_EQ(rpc_sync<plus>("worker1", 1, 2), 3);
    EXPECT_EQ(c.agent(1)->debug_info()["agent.num_blocked_threads"], 0);
    EXPECT_THROW(rpc_sync<never>({"worker1", 20ms}), Timeout);
    std::vector<Future<void>> answers;
    {
      const std::lock_guard lock(g_mutex);
      answers.swap(g_open);
    }
    for (const auto& f : answers) f.set_result();
    for (const auto& f : open) f.wait();
  });
}

}  // namespace
