// The claims of docs/conformance.md on calls and arguments. rpc_init_test.cpp has initialisation and values
// on the wire.
#include "conformance/fixture.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>

#include <weft/autograd/ops/ops.h>
#include <weft/distributed/rref/rref.h>
#include <weft/tensor/factories.h>

namespace {

using namespace weft;
using namespace weft::rpc;
using namespace std::chrono_literals;
using test::Cluster;
using test::has;
using test::text_of;

WEFT_CONFORMANCE(RpcBasics);

std::atomic<int> g_count{0};

int my_rank() { return current_agent()->self().id.value; }
WEFT_RPC(my_rank);
void count_up() { ++g_count; }
WEFT_RPC(count_up);
int64_t plus(int64_t a, int64_t b) { return a + b; }
WEFT_RPC(plus);
WorkerInfo echo_info(const WorkerInfo& w) { return w; }
WEFT_RPC(echo_info);
WorkerInfo who_called() { return current_agent()->worker_info(current_context()->caller); }
WEFT_RPC(who_called);
Tensor echo(const Tensor& t) { return t; }
WEFT_RPC(echo);
Tensor twice(const Tensor& t) { return rpc_sync<builtin::add>(my_rank(), t, t); }
WEFT_RPC(twice);
std::map<std::string, std::vector<Tensor>> swap_parts(std::map<std::string, std::vector<Tensor>> parts) {
  std::swap(parts["a"], parts["b"]);
  return parts;
}
WEFT_RPC(swap_parts);
/// A value of one's own that holds tensors in every place.
struct Parcel {
  std::string name{};
  Tensor whole{};
  std::vector<Tensor> parts{};
  std::map<std::string, Tensor> named{};
  std::optional<Tensor> maybe{}, none{};
};
WEFT_FIELDS(Parcel, name, whole, parts, named, maybe, none)
/// Everything in it doubled.
Parcel doubled(const Parcel& p) {
  Parcel out{.name = p.name + p.name, .whole = p.whole * 2.0};
  for (const Tensor& t : p.parts) out.parts.push_back(t * 2.0);
  for (const auto& [key, t] : p.named) out.named.emplace(key, t * 2.0);
  if (p.maybe) out.maybe = *p.maybe * 2.0;
  if (p.none) out.none = *p.none * 2.0;
  return out;
}
WEFT_RPC(doubled);
std::vector<Parcel> reversed(std::vector<Parcel> all) {
  std::reverse(all.begin(), all.end());
  return all;
}
WEFT_RPC(reversed);
int64_t call_back(int64_t n) {
  return n == 0 ? my_rank()
                : rpc_sync<plus>(current_context()->caller, n, rpc_sync<my_rank>(current_context()->caller));
}
WEFT_RPC(call_back);

void hop(int left);
WEFT_RPC(hop);
void hop(int left) {
  ++g_count;
  if (left > 0) rpc_async<hop>((my_rank() + 1) % 4, left - 1);
}

double heavy(const Tensor& a) {
  Tensor x = a;
  for (int i = 0; i < 3; ++i) x = x.matmul(a) / 50.0;
  return x.sum().item<double>();
}
WEFT_RPC(heavy);

struct Counter {
  static int64_t scaled(int64_t x) { return x * 3; }
};
WEFT_RPC_AS("Counter::scaled", &Counter::scaled);

// test_worker_id
TEST_P(RpcBasics, a_worker_knows_its_own_and_its_peers_names_and_ids) {
  Cluster c(options());
  c.run_all([&](int rank) {
    const WorkerInfo self = get_worker_info();
    EXPECT_EQ(self.name, str("worker", rank));
    EXPECT_EQ(self.id.value, rank);
    const WorkerInfo peer = get_worker_info(str("worker", (rank + 1) % 4));
    EXPECT_EQ(peer.id.value, (rank + 1) % 4);
    EXPECT_EQ(get_worker_info(peer.id).name, peer.name);
    try {
      get_worker_info("nobody");
      ADD_FAILURE();
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find("could not find destination"), std::string::npos);
    }
  });
}

// test_get_worker_infos
TEST_P(RpcBasics, all_members_are_listed_with_ids_from_zero) {
  Cluster c(options());
  c.run(2, [] {
    const auto all = get_worker_infos();
    ASSERT_EQ(all.size(), 4u);
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(all[static_cast<size_t>(i)], (WorkerInfo{str("worker", i), WorkerId{i}}));
  });
}

// test_invalid_names
TEST_P(RpcBasics, illegal_empty_and_long_names_are_refused) {
  for (const std::string& name : {std::string("abc*"), std::string(" "), std::string("a b"), std::string(""),
                                  std::string(128, 'a'), std::string("\xc3\xa4")}) {
    EXPECT_THROW(check_worker_name(name), ValueError) << name;
    auto o = options(1);
    o.each = [&](int, AgentOptions& a) { a.name = name; };
    EXPECT_THROW(Cluster{o}, ValueError) << name;
  }
  check_worker_name(std::string(127, 'a'));
  check_worker_name("Az09-_:");
}

// test_worker_info_pickle
TEST_P(RpcBasics, a_worker_info_survives_as_an_argument) {
  Cluster c(options());
  c.run(0, [] { EXPECT_EQ(rpc_sync<echo_info>("worker1", get_worker_info("worker3")), get_worker_info(3)); });
}

// test_duplicate_name, test_duplicate_name_2, of agents made by hand (init_rpc: init_process_test.cpp)
TEST_P(RpcBasics, two_workers_of_one_name_are_refused) {
  auto o = options(2);
  o.each = [](int, AgentOptions& a) { a.name = "duplicate_name"; };
  try {
    Cluster c(o);
    FAIL();
  } catch (const ValueError& e) {
    EXPECT_NE(std::string(e.what()).find("is not unique"), std::string::npos) << e.what();
  }
}

// test_world_size_one
TEST_P(RpcBasics, a_group_of_one_calls_itself) {
  Cluster c(options(1));
  c.run(0, [] {
    EXPECT_EQ(rpc_sync<plus>("worker0", 1, 2), 3);
    EXPECT_EQ(rpc_async<plus>("worker0", 3, 4).wait(), 7);
    EXPECT_EQ(remote<plus>("worker0", 5, 6).to_here(), 11);
  });
  c.shutdown();
}

// test_send_to_rank
TEST_P(RpcBasics, a_rank_is_a_destination_and_a_bad_one_an_error) {
  Cluster c(options());
  c.run(0, [] {
    EXPECT_EQ(rpc_sync<my_rank>(2), 2);
    EXPECT_EQ(rpc_async<my_rank>(3).wait(), 3);
    EXPECT_EQ(remote<my_rank>(1).to_here(), 1);
    for (const int bad : {4, -1, 100000}) {
      EXPECT_TRUE(has(text_of<ValueError>([&] { rpc_sync<my_rank>(bad); }), "could not find destination"));
      EXPECT_TRUE(has(text_of<ValueError>([&] { rpc_async<my_rank>(bad); }), "could not find destination"));
      EXPECT_TRUE(has(text_of<ValueError>([&] { remote<my_rank>(bad); }), "could not find destination"));
    }
  });
}

// test_int_callee, test_add_with_id
TEST_P(RpcBasics, rank_name_and_info_reach_the_same_worker) {
  Cluster c(options());
  c.run(1, [] {
    EXPECT_EQ(rpc_sync<my_rank>(2), 2);
    EXPECT_EQ(rpc_sync<my_rank>("worker2"), 2);
    EXPECT_EQ(rpc_sync<my_rank>(get_worker_info("worker2")), 2);
    EXPECT_EQ(rpc_sync<my_rank>(WorkerId{2}), 2);
  });
}

// test_self_add
TEST_P(RpcBasics, a_worker_calls_itself_and_the_value_goes_through_serialisation) {
  Cluster c(options());
  c.run(1, [] {
    const Tensor t = ones({2, 3});
    const Tensor back = rpc_sync<echo>("worker1", t);
    EXPECT_FALSE(back.shares_storage(t));
    EXPECT_EQ(rpc_async<plus>("worker1", 2, 3).wait(), 5);
  });
}

// test_add, test_scalar_add, test_nonzero, test_py_built_in
TEST_P(RpcBasics, builtin_functions_take_tensors_and_scalars) {
  Cluster c(options());
  c.run(0, [] {
    const Tensor a = tensor({{1., 2.}, {3., 4.}});
    EXPECT_EQ(rpc_sync<builtin::add>("worker1", a, a).to_vector<float>(), (std::vector<float>{2, 4, 6, 8}));
    EXPECT_EQ(rpc_sync<builtin::add_scalar>("worker1", a, 10).to_vector<float>(),
              (std::vector<float>{11, 12, 13, 14}));
    EXPECT_EQ(rpc_sync<builtin::matmul>("worker1", a, a).to_vector<float>(),
              (std::vector<float>{7, 10, 15, 22}));
    const Tensor places = rpc_sync<builtin::nonzero>("worker1", tensor({{0., 2.}, {3., 0.}, {0., 0.}}));
    EXPECT_EQ(places.sizes(), (Shape{2, 2}));
    EXPECT_EQ(places.to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 1, 0}));
    EXPECT_EQ(rpc_sync<builtin::nonzero>("worker1", zeros({3})).sizes(), (Shape{0, 1}));
  });
}

// test_async_add
TEST_P(RpcBasics, a_future_yields_the_value) {
  Cluster c(options());
  c.run(0, [] {
    EXPECT_EQ(rpc_async<builtin::add>("worker1", ones({3}), ones({3})).wait().to_vector<float>(),
              (std::vector<float>{2, 2, 2}));
  });
}

// test_multi_rpc
TEST_P(RpcBasics, twenty_calls_one_after_the_other) {
  Cluster c(options());
  c.run_all([](int rank) {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(rpc_sync<plus>((rank + 1) % 4, i, rank), i + rank);
  });
}

// test_expected_src
TEST_P(RpcBasics, a_function_runs_on_the_peer_that_was_meant_and_sees_its_caller) {
  Cluster c(options());
  c.run_all([](int rank) {
    EXPECT_EQ(rpc_sync<my_rank>((rank + 1) % 4), (rank + 1) % 4);
    EXPECT_EQ(rpc_sync<who_called>((rank + 1) % 4).id.value, rank);
  });
}

// test_py_user_defined, test_py_class_static_method
TEST_P(RpcBasics, user_functions_and_static_methods_are_called) {
  Cluster c(options());
  c.run(0, [] {
    EXPECT_EQ(rpc_sync<plus>("worker1", 20, 22), 42);
    EXPECT_EQ(rpc_sync<&Counter::scaled>("worker1", 5), 15);
  });
}

// test_py_no_return_result
TEST_P(RpcBasics, a_function_without_a_result_is_awaited) {
  Cluster c(options());
  g_count = 0;
  c.run(0, [] {
    rpc_sync<count_up>("worker1");
    rpc_async<count_up>("worker1").wait();
  });
  EXPECT_EQ(g_count, 2);
}

// test_py_multi_async_call
TEST_P(RpcBasics, two_different_functions_in_flight) {
  Cluster c(options());
  c.run(0, [] {
    const auto a = rpc_async<plus>("worker1", 1, 2);
    const auto b = rpc_async<my_rank>("worker1");
    EXPECT_EQ(a.wait(), 3);
    EXPECT_EQ(b.wait(), 1);
  });
}

// test_py_tensors
TEST_P(RpcBasics, tensors_go_in_and_out_through_a_nested_call) {
  Cluster c(options());
  c.run(0, [] {
    EXPECT_EQ(rpc_sync<twice>("worker1", ones({3, 3})).to_vector<float>(), std::vector<float>(9, 2));
  });
}

// test_py_tensors_multi_async_call
TEST_P(RpcBasics, a_hundred_sizes_in_flight_come_back_in_order) {
  Cluster c(options());
  c.run(0, [] {
    std::vector<Future<Tensor>> all;
    for (int64_t n = 0; n < 100; ++n) all.push_back(rpc_async<echo>("worker1", ones({n, n})));
    for (int64_t n = 0; n < 100; ++n) {
      const Tensor t = all[static_cast<size_t>(n)].wait();
      EXPECT_EQ(t.sizes(), (Shape{n, n}));
      EXPECT_EQ(t.sum().item<double>(), static_cast<double>(n * n));
    }
  });
}

// test_py_tensors_in_container
TEST_P(RpcBasics, containers_of_tensors_travel) {
  Cluster c(options());
  c.run(0, [] {
    const auto back = rpc_sync<swap_parts>(
        "worker1", std::map<std::string, std::vector<Tensor>>{{"a", {ones({2})}}, {"b", {}}});
    EXPECT_TRUE(back.at("a").empty());
    EXPECT_EQ(back.at("b").at(0).to_vector<float>(), (std::vector<float>{1, 1}));
  });
}

// test_py_tensors_in_container: objects holding tensors
TEST_P(RpcBasics, a_struct_that_holds_tensors_goes_and_comes_back) {
  Cluster c(options());
  c.run(0, [] {
    const Parcel mine{.name = "ab",
                      .whole = full({2, 3}, 1.5),
                      .parts = {ones({1}), full({3000}, 2.0)},
                      .named = {{"x", full({2}, 3.0)}, {"y", zeros({0})}},
                      .maybe = ones({1})};
    const auto check = [](const Parcel& back, float factor) {
      EXPECT_EQ(back.whole.sizes(), (Shape{2, 3}));
      EXPECT_EQ(back.whole.to_vector<float>(), std::vector<float>(6, 1.5f * factor));
      ASSERT_EQ(back.parts.size(), 2u);
      EXPECT_EQ(back.parts[0].to_vector<float>(), std::vector<float>{factor});
      EXPECT_EQ(back.parts[1].to_vector<float>(), std::vector<float>(3000, 2 * factor));
      ASSERT_EQ(back.named.size(), 2u);
      EXPECT_EQ(back.named.at("x").to_vector<float>(), std::vector<float>(2, 3 * factor));
      EXPECT_EQ(back.named.at("y").sizes(), (Shape{0}));
      ASSERT_TRUE(back.maybe.has_value());
      EXPECT_EQ(back.maybe->to_vector<float>(), std::vector<float>{factor});
      EXPECT_FALSE(back.none.has_value());
    };
    const Parcel back = rpc_sync<doubled>("worker1", mine);
    EXPECT_EQ(back.name, "abab");
    check(back, 2);
    check(remote<doubled>("worker2", rpc_async<doubled>("worker1", mine).wait()).to_here(), 4);
    const std::vector<Parcel> turned = rpc_sync<reversed>("worker3", std::vector<Parcel>{mine, back});
    ASSERT_EQ(turned.size(), 2u);
    check(turned[0], 2);
    check(turned[1], 1);
  });
}

// test_non_cont_tensors
TEST_P(RpcBasics, a_view_that_is_not_contiguous_stays_so) {
  Cluster c(options());
  c.run(0, [] {
    const Tensor view = rand({5, 5}).narrow(1, 2, 2);
    ASSERT_FALSE(view.is_contiguous());
    const Tensor back = rpc_sync<echo>("worker1", view);
    EXPECT_FALSE(back.is_contiguous());
    EXPECT_EQ(back.strides(), view.strides());
    EXPECT_EQ(back.to_vector<float>(), view.to_vector<float>());
  });
}

// test_nested_rpc
TEST_P(RpcBasics, a_callee_calls_its_caller_back) {
  Cluster c(options());
  c.run_all([](int rank) { EXPECT_EQ(rpc_sync<call_back>((rank + 1) % 4, 100), 100 + rank); });
}

// test_multi_layer_nested_async_rpc
TEST_P(RpcBasics, a_chain_of_twenty_calls_nobody_waits_for_ends_before_the_shutdown) {
  g_count = 0;
  Cluster c(options());
  c.run(0, [] { rpc_async<hop>(1, 20); });
  c.shutdown();
  EXPECT_EQ(g_count, 21);
}

// test_stress_light_rpc
TEST_P(RpcBasics, a_thousand_empty_calls) {
  Cluster c(options());
  g_count = 0;
  c.run(0, [] {
    std::vector<Future<void>> all;
    for (int i = 0; i < 1000; ++i) all.push_back(rpc_async<count_up>(1));
    wait_all(all);
  });
  EXPECT_EQ(g_count, 1000);
}

// test_stress_heavy_rpc
TEST_P(RpcBasics, twenty_calls_that_compute) {
  Cluster c(options());
  c.run(0, [] {
    const Tensor a = ones({50, 50});
    std::vector<Future<double>> all;
    for (int i = 0; i < 20; ++i) all.push_back(rpc_async<heavy>(1 + i % 3, a));
    for (const double v : wait_all(all)) EXPECT_NEAR(v, 2500.0, 1e-2);
  });
}

// test_all_gather
TEST_P(RpcBasics, all_gather_gives_every_worker_every_value_by_name) {
  Cluster c(options());
  c.run_all([](int rank) {
    for (int round = 0; round < 3; ++round) {
      const auto all = all_gather(std::pair<int, Tensor>(rank * 10 + round, full({2}, rank)));
      ASSERT_EQ(all.size(), 4u);
      for (int r = 0; r < 4; ++r) {
        EXPECT_EQ(all.at(str("worker", r)).first, r * 10 + round);
        EXPECT_EQ(all.at(str("worker", r)).second.to_vector<float>(),
                  std::vector<float>(2, static_cast<float>(r)));
      }
    }
  });
}

// test_rpc_barrier_all
TEST_P(RpcBasics, nobody_passes_a_barrier_before_all_have_come) {
  Cluster c(options());
  std::atomic<int> arrived{0};
  c.run_all([&](int rank) {
    current_runtime()->sleep_for(std::chrono::milliseconds(2 * rank));
    ++arrived;
    barrier();
    EXPECT_EQ(arrived, 4);
  });
}

// test_rpc_barrier_subset
TEST_P(RpcBasics, barriers_of_two_disjoint_subsets_do_not_mix) {
  Cluster c(options());
  std::array<std::atomic<int>, 2> arrived{};
  c.run_all([&](int rank) {
    const auto half = static_cast<size_t>(rank % 2);
    ++arrived[half];
    barrier(half == 0 ? std::vector<std::string>{"worker0", "worker2"}
                      : std::vector<std::string>{"worker1", "worker3"});
    EXPECT_EQ(arrived[half], 2);
  });
}

// test_rpc_barrier_partial_subset
TEST_P(RpcBasics, a_barrier_of_one_does_not_block) {
  Cluster c(options());
  c.run(2, [] { barrier({"worker2"}); });
  c.run(2, [] { EXPECT_THROW(barrier({"worker1"}), ValueError); });  // not among those named
}

// test_rpc_barrier_multithreaded
TEST_P(RpcBasics, three_barriers_at_once_on_each_worker_do_not_hang) {
  Cluster c(options());
  c.run_all([](int) {
    std::vector<Future<void>> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back();
      current_runtime()->post([done = threads.back(), agent = current_agent()] {
        agent->barrier();
        done.set_result();
      });
    }
    wait_all(threads);
  });
}

// C++ TensorpipeSerialize.NoDeleterTensors
TEST_P(RpcBasics, borrowed_memory_travels) {
  Cluster c(options());
  c.run(0, [] {
    std::vector<float> mine(3000, 2.0f);
    const Tensor t = from_blob(mine.data(), {3000}, {});
    EXPECT_EQ(rpc_sync<echo>("worker1", t).sum().item<double>(), 6000.0);
  });
}

}  // namespace
