// The claims of docs/conformance.md on asynchronous functions in their `remote` forms, methods of objects
// held by reference among them. Also references without an agent. The plain forms are in futures_test.cpp.
#include "conformance/fixture.h"
#include "conformance/rref_values.h"

namespace weft::test {

Future<Tensor> row_async_add(int64_t to, const Tensor& a, const Tensor& b) {
  return rpc::rpc_async<row_add>(static_cast<int>(to), a, b);
}
WEFT_RPC(row_async_add);
Future<Tensor> row_async_chained(int64_t to, const Tensor& a, const Tensor& b, const Tensor& c) {
  return row_async_add(to, a, b).then([c](const Tensor& sum) { return add(sum, c); });
}
WEFT_RPC(row_async_chained);
Future<Tensor> row_async_nested(int64_t to, const Tensor& a, const Tensor& b) {
  return rpc::rpc_async<row_async_add>(static_cast<int>(to), to, a, b);
}
WEFT_RPC(row_async_nested);
/// Adds `step` n times, each call begun by the end of the one before.
Future<Tensor> row_async_row(int64_t to, int64_t n, const Tensor& start, const Tensor& step) {
  Future<Tensor> sum = Future<Tensor>::ready(start);
  for (int64_t i = 0; i < n; ++i)
    sum = sum.then(
        [to, step](const Tensor& t) { return rpc::rpc_async<row_add>(static_cast<int>(to), t, step); });
  return sum;
}
WEFT_RPC(row_async_row);
/// The same, each call nested in the one before, by turns here and on worker `to`.
Future<Tensor> row_async_down(int64_t to, int64_t n, const Tensor& start, const Tensor& step);
WEFT_RPC(row_async_down);
Future<Tensor> row_async_down(int64_t to, int64_t n, const Tensor& start, const Tensor& step) {
  if (n == 0) return Future<Tensor>::ready(start);
  const int64_t self = rpc::get_worker_info().id.value;
  return rpc::rpc_async<row_async_down>(static_cast<int>(to), self, n - 1, start, step)
      .then([step](const Tensor& t) { return add(t, step); });
}
Future<Tensor> row_async_fan(int64_t to, int64_t n, const Tensor& a) {
  std::vector<Future<Tensor>> all;
  for (int64_t i = 0; i < n; ++i) all.push_back(rpc::rpc_async<row_add>(static_cast<int>(to), a, a));
  return rpc::collect(all).then([](const std::vector<Tensor>& parts) {
    Tensor sum = parts.at(0);
    for (size_t i = 1; i < parts.size(); ++i) sum = add(sum, parts[i]);
    return sum;
  });
}
WEFT_RPC(row_async_fan);
Future<Tensor> row_async_fail(const Tensor& a) {
  throw ValueError(str("no future for ", a.numel(), " numbers"));
}
WEFT_RPC(row_async_fail);

class RowAsync {
 public:
  static Future<Tensor> fixed(int64_t to, const Tensor& a) {
    return rpc::rpc_async<row_add>(static_cast<int>(to), a, a);
  }
  Future<Tensor> bound(int64_t to, const Tensor& a) const {
    return rpc::rpc_async<row_add>(static_cast<int>(to), a, a).then([k = factor_](const Tensor& t) {
      return mul(t, k);
    });
  }

 private:
  double factor_ = 3;
};
WEFT_RPC_CLASS(RowAsync, bound);
WEFT_RPC_AS("RowAsync::fixed", &RowAsync::fixed);

}  // namespace weft::test

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace weft::test;

WEFT_CONFORMANCE(AsyncRows);
double total(const Tensor& t) { return t.sum().item<double>(); }

// test_async_function_simple, _with_future_ctor_remote, _chained_remote, _nested_remote
TEST_P(AsyncRows, a_reference_made_by_an_asynchronous_function_gives_its_value) {
  Cluster c(options());
  c.run(0, [&] {
    EXPECT_EQ(total(remote<row_async_add>("worker1", 2, ones({2}), ones({2})).to_here()), 4);
    EXPECT_EQ(total(remote<row_async_chained>("worker1", 2, ones({2}), ones({2}), ones({2})).to_here()), 6);
    EXPECT_EQ(total(remote<row_async_nested>("worker1", 2, ones({2}), ones({2})).to_here()), 4);
    EXPECT_EQ(total(remote<row_async_add>("worker0", 0, ones({2}), ones({2})).to_here()), 4);
  });
}

// test_async_function_multi_chained_remote, test_async_function_multi_fanout_remote
TEST_P(AsyncRows, twenty_calls_in_a_row_and_at_once_inside_an_asynchronous_creation) {
  Cluster c(options());
  c.run(0, [&] {
    EXPECT_EQ(total(remote<row_async_fan>("worker1", 2, 20, ones({2})).to_here()), 80);
    EXPECT_EQ(total(remote<row_async_row>("worker1", 2, 20, ones({2}), full({2}, 3.0)).to_here()), 122);
    EXPECT_EQ(total(remote<row_async_down>("worker1", 2, 20, ones({2}), full({2}, 3.0)).to_here()), 122);
  });
}

// test_async_function_raise_remote
TEST_P(AsyncRows,
       an_asynchronous_function_that_throws_before_its_future_exists_is_an_error_in_the_reference) {
  Cluster c(options());
  c.run(0, [&] {
    const auto r = remote<row_async_fail>("worker1", ones({7}));
    try {
      r.to_here();
      ADD_FAILURE() << "no error";
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find("no future for 7 numbers"), std::string::npos) << e.what();
    }
  });
}

// test_async_static_method(_remote), test_async_class_method(_remote), test_async_class_rref_proxy, _async,
// _remote
TEST_P(AsyncRows, asynchronous_methods_run_through_a_reference_in_three_kinds) {
  Cluster c(options());
  c.run(0, [&] {
    const auto object = remote<RowAsync>("worker1");
    EXPECT_EQ(total(object.rpc_sync<&RowAsync::bound>(2, ones({2}))), 12);
    EXPECT_EQ(total(object.rpc_async<&RowAsync::bound>(2, ones({2})).wait()), 12);
    EXPECT_EQ(total(object.remote<&RowAsync::bound>(2, ones({2})).to_here()), 12);
    EXPECT_EQ(total(rpc_sync<&RowAsync::fixed>("worker1", 2, ones({2}))), 4);
    EXPECT_EQ(total(remote<&RowAsync::fixed>("worker1", 2, ones({2})).to_here()), 4);
  });
}

// test_pg_init_no_rpc_init
TEST(AsyncRowsAlone, a_reference_without_an_agent_is_a_clear_error) {
  ASSERT_EQ(default_agent(), nullptr);
  for (const auto& make : std::vector<std::function<void()>>{
           [] { RRef<Tensor>(ones({2})); }, [] { remote<row_add>("worker1", ones({2}), ones({2})); }}) {
    try {
      make();
      ADD_FAILURE() << "no error";
    } catch (const RpcError& e) {
      EXPECT_NE(std::string(e.what()).find("RPC has not been initialized"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
