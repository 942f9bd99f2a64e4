// The claims of docs/conformance.md on errors and timeouts.
#include "conformance/fixture.h"

#include <atomic>
#include <mutex>
#include <stdexcept>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/rpc/served_errors.h>
#include <weft/distributed/rref/rref.h>
#include <weft/tensor/factories.h>

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;
using test::text_of;

WEFT_CONFORMANCE(RpcErrors);

struct Odd : std::exception {
  const char* what() const noexcept override { return "odd"; }
};

void raise(int kind) {
  switch (kind) {
    case 0: throw ValueError("a value\nof two lines");
    case 1: throw ShapeError("a shape");
    case 2: throw IndexError("an index");
    case 3: throw std::invalid_argument("an argument");
    case 4: throw std::out_of_range("a range");
    case 5: throw std::runtime_error("plain");
    case 6: throw Odd();
    case 7: throw 7;
    default: throw AutogradError("a tape");
  }
}
WEFT_RPC(raise);
int64_t raise_instead(int kind) {
  raise(kind);
  return kind;
}
WEFT_RPC(raise_instead);
void raise_through(int kind) { rpc_sync<raise>("worker2", kind); }
WEFT_RPC(raise_through);
void nap(int ms) { current_runtime()->sleep_for(std::chrono::milliseconds(ms)); }
WEFT_RPC(nap);
test::Gate g_gate;
void stuck() { g_gate.pass(); }
WEFT_RPC_AS("errors::stuck", stuck);
int64_t one() { return 1; }
WEFT_RPC(one);

// test_py_raise_in_user_func, test_py_raise_in_user_func_escaped_str
TEST_P(RpcErrors, an_exception_arrives_as_its_own_type_with_the_worker_named) {
  Cluster c(options());
  c.run(0, [] {
    EXPECT_EQ(text_of<ValueError>([] { rpc_sync<raise>("worker1", 0); }),
              "On worker 'worker1': a value\nof two lines");
    EXPECT_EQ(text_of<ShapeError>([] { rpc_sync<raise>("worker1", 1); }), "On worker 'worker1': a shape");
    EXPECT_EQ(text_of<IndexError>([] { rpc_async<raise>("worker1", 2).wait(); }),
              "On worker 'worker1': an index");
    EXPECT_EQ(text_of<std::invalid_argument>([] { rpc_sync<raise>("worker1", 3); }),
              "On worker 'worker1': an argument");
    EXPECT_EQ(text_of<std::out_of_range>([] { rpc_sync<raise>("worker1", 4); }),
              "On worker 'worker1': a range");
    EXPECT_EQ(text_of<AutogradError>([] { rpc_sync<raise>("worker1", 9); }), "On worker 'worker1': a tape");
    EXPECT_EQ(text_of<ValueError>([] { rpc_sync<raise>("worker0", 0); }),
              "On worker 'worker0': a value\nof two lines");
  });
}

// test_py_raise_in_user_func: logged at the callee
TEST_P(RpcErrors, the_callee_is_told_what_its_functions_threw_and_whose_call_it_was) {
  std::mutex mutex;
  std::vector<std::string> log;
  Cluster c(options());
  const auto write = [&](const ServedError& e) {
    const std::lock_guard lock(mutex);
    log.push_back(str(e.caller.name, " called ", e.function, ": ", e.text));
  };
  on_served_error(*c.agent(1),
                  [](const ServedError&) { throw std::logic_error("of the log itself: dropped"); });
  on_served_error(*c.agent(1), write);
  c.run(0, [] {
    text_of<ValueError>([] { rpc_sync<raise>("worker1", 0); });
    text_of<ShapeError>([] { remote<raise_instead>("worker1", 1).to_here(); });
    text_of<IndexError>([] { rpc_sync<raise_through>("worker1", 2); });
    EXPECT_EQ(rpc_sync<one>("worker1"), 1);
  });
  c.run(3, [] { text_of<AutogradError>([] { rpc_async<raise>("worker1", 9).wait(); }); });
  const std::lock_guard lock(mutex);
  EXPECT_EQ(log, (std::vector<std::string>{"worker0 called raise: a value\nof two lines",
                                           "worker0 called raise_instead: a shape",
                                           "worker0 called raise_through: On worker 'worker2': an index",
                                           "worker3 called raise: a tape"}));
  const std::vector<int64_t> counts{0, 4, 1, 0};
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(c.agent(rank)->debug_info().at("agent.served_errors"), counts[static_cast<size_t>(rank)])
        << rank;
}

// The same claims: exceptions of types that the caller may not know.
TEST_P(RpcErrors, an_exception_of_another_type_arrives_as_a_remote_error_with_worker_kind_and_text) {
  Cluster c(options());
  c.run(0, [] {
    try {
      rpc_sync<raise>("worker1", 6);
      FAIL();
    } catch (const RemoteError& e) {
      EXPECT_EQ(e.worker, "worker1");
      EXPECT_NE(e.kind.find("Odd"), std::string::npos) << e.kind;
      EXPECT_EQ(std::string(e.what()), "On worker 'worker1': " + e.kind + ": odd");
    }
    try {
      rpc_sync<raise>("worker1", 5);
      FAIL();
    } catch (const RemoteError& e) {
      EXPECT_EQ(e.kind, "std::runtime_error");
    }
    EXPECT_EQ(text_of<RemoteError>([] { rpc_sync<raise>("worker1", 7); }),
              "On worker 'worker1': int: an exception that is not a std::exception");
  });
}

// test_py_raise_in_user_func (nested)
TEST_P(RpcErrors, an_exception_that_passes_several_workers_names_each) {
  Cluster c(options());
  c.run(0, [] {
    EXPECT_EQ(text_of<IndexError>([] { rpc_sync<raise_through>("worker1", 2); }),
              "On worker 'worker1': On worker 'worker2': an index");
    try {
      rpc_sync<raise_through>("worker1", 6);
      FAIL();
    } catch (const RemoteError& e) {
      EXPECT_NE(e.kind.find("Odd"), std::string::npos) << e.kind;
      EXPECT_EQ(std::string(e.what()), "On worker 'worker1': On worker 'worker2': " + e.kind + ": odd");
    }
  });
}

// test_op_with_invalid_args
TEST_P(RpcErrors, a_builtin_with_unfit_arguments_reports_at_the_caller) {
  Cluster c(options());
  c.run(0, [] {
    EXPECT_THROW(rpc_sync<builtin::matmul>("worker1", ones({2, 3}), ones({5, 7})), ShapeError);
  });
}

// test_py_function_exception, test_function_not_on_callee: at compile time, or as
// UnknownFunction / SignatureMismatch (function_test.cpp)
TEST_P(RpcErrors, a_function_the_callee_does_not_know_is_an_error_and_no_crash) {
  Cluster c(options());
  c.run(0, [] {
    FunctionEntry missing = function_entry<one>();
    missing.id = stable_hash("no such function");
    Message m;
    {
      Encoder out(m);
      put_function(out, missing);
    }
    const auto f = send_call<int64_t>(*current_agent(), WorkerId{1}, Kind::kCall, std::move(m),
                                      {.timeout = {}, .what = "gone"});
    EXPECT_EQ(text_of<UnknownFunction>([&] { f.wait(); }),
              "On worker 'worker1': no function 'gone' is registered there");
    EXPECT_EQ(rpc_sync<one>("worker1"), 1);
  });
}

// test_handle_send_exceptions
TEST_P(RpcErrors, a_dead_callee_is_an_exception_that_names_it) {
  auto o = options();
  o.net.connect_timeout = 500ms;
  Cluster c(o);
  c.run(0, [&] {
    EXPECT_EQ(rpc_sync<one>("worker1"), 1);
    c.kill(1);
    try {
      rpc_sync<one>("worker1");
      FAIL();
    } catch (const PeerLost& e) {
      EXPECT_EQ(e.peer, "worker1");
    }
    EXPECT_EQ(rpc_sync<one>("worker2"), 1);
  });
}

// test_set_and_get_default_rpc_timeout, test_tensorpipe_set_default_timeout
TEST_P(RpcErrors, the_default_timeout_is_read_back) {
  auto o = options();
  o.agent.rpc_timeout = 5s;
  Cluster c(o);
  c.run(0, [] {
    EXPECT_EQ(get_rpc_timeout(), 5s);
    set_rpc_timeout(30s);
    EXPECT_EQ(get_rpc_timeout(), 30s);
    EXPECT_THROW(set_rpc_timeout(-1s), ValueError);
  });
  EXPECT_EQ(c.agent(1)->rpc_timeout(), 5s);
  auto bad = options(1);
  bad.agent.rpc_timeout = -1s;
  EXPECT_THROW(Cluster{bad}, ValueError);
}

// test_default_timeout_used
TEST_P(RpcErrors, the_default_timeout_holds_for_later_calls_and_zero_is_no_limit) {
  Cluster c(options());
  c.run(0, [] {
    g_gate.close();
    const auto before = rpc_async<stuck>("worker1");
    set_rpc_timeout(20ms);
    const auto after = rpc_async<stuck>("worker1");
    EXPECT_THROW(after.wait(), Timeout);
    EXPECT_FALSE(before.done());
    g_gate.open = true;
    before.wait();  // begun under the old one
    set_rpc_timeout(0s);
    rpc_sync<nap>("worker1", 60);
  });
}

// test_rpc_timeouts
TEST_P(RpcErrors, a_time_of_its_own_overrides_the_default_both_ways) {
  Cluster c(options());
  c.run(0, [] {
    g_gate.close();
    const std::string text = text_of<Timeout>([] { rpc_sync<stuck>({"worker1", 20ms}); });
    EXPECT_EQ(text, "'errors::stuck' on worker 'worker1' ran for more than the timeout of 20 ms");
    EXPECT_THROW(rpc_async<stuck>({"worker1", 20ms}).wait(), Timeout);
    g_gate.open = true;
    set_rpc_timeout(20ms);
    rpc_sync<nap>({"worker1", 60s}, 100);
    rpc_async<nap>({1, 0s}, 100).wait();
    EXPECT_THROW(rpc_sync<nap>({"worker1", -1s}, 1), ValueError);
  });
}

// test_all_gather_timeout
TEST_P(RpcErrors, a_gather_that_misses_somebody_names_who_on_every_worker) {
  Cluster c(options());
  std::atomic<int> named{0};
  std::vector<std::string> texts(4);
  // a worker that stood still for longer is rightly named, or not told in time
  for (const Duration limit : {300ms, 3000ms, 15000ms}) {
    if (named == 3 || (simulated() && limit > 300ms)) break;
    named = 0;
    c.run_all([&](int rank) {
      if (rank == 2) return;
      std::string& text = texts[static_cast<size_t>(rank)];
      text = text_of<Timeout>([limit] { all_gather(1, {}, limit); });
      if (text.find("still waiting for 'worker2'") != std::string::npos) ++named;
    });
  }
  EXPECT_EQ(named, 3) << ::testing::PrintToString(texts);
}

// test_wait_all, test_wait_all_multiple_call
TEST_P(RpcErrors, a_scope_waits_for_its_calls_then_forgets_them) {
  Cluster c(options());
  c.run(0, [] {
    WaitAll scope;
    std::vector<Future<int64_t>> all;
    for (int i = 0; i < 20; ++i) all.push_back(rpc_async<one>(i % 4));
    scope.wait();
    for (const auto& f : all) EXPECT_TRUE(f.done());
    scope.wait();
  });
}

// test_wait_all_timeout, _raise_in_user_func, _raise_in_body
TEST_P(RpcErrors, a_scope_throws_the_error_of_a_call_and_is_clean_after_it) {
  Cluster c(options());
  c.run(0, [] {
    WaitAll scope;
    rpc_async<raise>("worker1", 0);
    EXPECT_THROW(scope.wait(), ValueError);
    scope.wait();
    g_gate.close();
    rpc_async<stuck>({"worker1", 20ms});
    EXPECT_THROW(scope.wait(), Timeout);
    g_gate.open = true;
    scope.wait();
    try {
      WaitAll inner;
      rpc_async<raise>("worker1", 0);
      throw std::logic_error("of the body");
    } catch (const std::logic_error&) {
    }
    EXPECT_EQ(WaitAll::current(), &scope);
    scope.wait();
  });
}

// test_wait_all_exit_early_python, _builtin
TEST_P(RpcErrors, waiting_for_all_fails_at_the_first_error_while_another_call_is_stuck) {
  Cluster c(options());
  c.run(0, [] {
    g_gate.close();
    const auto open = rpc_async<stuck>("worker1");
    const auto broken = rpc_async<raise>("worker2", 0);
    EXPECT_THROW(wait_all(std::vector<Future<void>>{open, broken}), ValueError);
    EXPECT_FALSE(open.done());
    g_gate.open = true;
    open.wait();
  });
}

// test_wait_all_with_exception, _with_partial_exception
TEST_P(RpcErrors, one_failure_fails_the_set) {
  Cluster c(options());
  c.run(0, [] {
    std::vector<Future<void>> all;
    for (int i = 0; i < 10; ++i) all.push_back(rpc_async<nap>("worker1", 1));
    wait_all(all);
    all.push_back(rpc_async<raise>("worker1", 1));
    EXPECT_THROW(wait_all(all), ShapeError);
  });
}

}  // namespace
