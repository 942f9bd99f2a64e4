// Collectives between real processes: this program starts itself again, and a variable tells a child its
// task. Tests of one process need no Gloo.
#include <atomic>
#include <cmath>
#include <csignal>
#include <map>

#include "members.h"

namespace {

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;
using dist::ReduceOp;

// ---- jobs of the children

void reduce(int rank) {
  const Group group = join(rank);
  ASSERT_EQ(group->size(), 3);
  ASSERT_EQ(group->rank(), rank);
  for (const DType dtype : {kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64}) {
    for (const auto& [op, wanted] : {std::pair{ReduceOp::kSum, 9}, std::pair{ReduceOp::kProduct, 24},
                                     std::pair{ReduceOp::kMin, 2}, std::pair{ReduceOp::kMax, 4}}) {
      const Tensor x = full({7}, rank + 2, dtype);
      group->all_reduce(x, op);
      EXPECT_TRUE(x.equal(full({7}, wanted, dtype))) << dtype << ' ' << to_string(op) << ' ' << x;
    }
    if (!is_floating(dtype)) continue;
    const Tensor x = full({2, 3}, rank + 2, dtype);
    group->all_reduce(x, ReduceOp::kAvg);
    EXPECT_TRUE(x.equal(full({2, 3}, 3, dtype))) << dtype << ' ' << x;
  }
  Tensor sum = zeros({100001});
  for (uint64_t r = 0; r < 3; ++r) {
    Generator draws(r);
    sum += randn({100001}, {}, &draws);
  }
  Generator draws(static_cast<uint64_t>(rank));
  const Tensor x = randn({100001}, {}, &draws);
  group->all_reduce(x);
  EXPECT_TRUE(x.allclose(sum, 1e-5, 1e-5));
  EXPECT_TRUE(same_everywhere(group, x));
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax})
    for (int bad = 0; bad < 3; ++bad) {
      const Tensor number = full({4}, rank == bad ? std::nan("") : 1.0);
      group->all_reduce(number, op);
      EXPECT_TRUE(number.isnan().all().item<bool>()) << to_string(op) << ' ' << bad << ' ' << number;
    }
  const Tensor none = zeros({0, 3});
  group->all_reduce(none);
  const Tensor number = scalar_tensor(rank);
  group->all_reduce(number);
  EXPECT_EQ(number.item<float>(), 3);
  rpc::shutdown();
}

void spread(int rank) {
  const Group group = join(rank);
  const Tensor base = full({2, 3}, rank), column = base.select(1, 1);  // not contiguous
  const uint32_t version = base.version();
  group->broadcast(column, 2);
  EXPECT_TRUE(base.equal(tensor({{rank, 2, rank}, {rank, 2, rank}}))) << base;
  EXPECT_GT(base.version(), version);
  const Tensor leaf = full({4}, rank, {.dtype = kBool, .requires_grad = false});
  group->broadcast(leaf, 0);
  EXPECT_TRUE(leaf.equal(zeros({4}, kBool)));
  Tensor weight = full({3}, rank, {.requires_grad = true});
  group->broadcast(weight, 1);
  EXPECT_TRUE(weight.detach().equal(ones({3})));
  EXPECT_TRUE(weight.is_leaf() && weight.requires_grad());
  const std::vector<Tensor> all = group->all_gather(full({2}, rank, kInt64));
  ASSERT_EQ(all.size(), 3u);
  for (int r = 0; r < 3; ++r) EXPECT_TRUE(all[static_cast<size_t>(r)].equal(full({2}, r, kInt64)));
  group->barrier();
  std::vector<Tensor> xs;
  std::vector<rpc::Future<void>> running;
  for (int i = 0; i < 20; ++i) {
    xs.push_back(full({1000}, i + rank));
    running.push_back(group->all_reduce_async(xs.back()));
  }
  for (const auto& one : running) one.wait();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(xs[static_cast<size_t>(i)].equal(full({1000}, 3 * i + 3)));
  rpc::shutdown();
}

void differ(int rank) {
  const Group group = join(rank);
  const Tensor x = full(rank == 1 ? Shape{4} : Shape{2, 2}, rank);
  EXPECT_TRUE(has(error_of<ShapeError>([&] { group->all_reduce(x); }),
                  "worker1 calls all_reduce sum of float32 [4], worker0 all_reduce sum of float32 [2, 2]"));
  const Tensor y = full({3}, rank, rank == 2 ? kInt64 : kInt32);
  EXPECT_TRUE(has(error_of<DTypeError>([&] { group->broadcast(y); }),
                  "worker2 calls broadcast from 0 of int64 [3], worker0 broadcast from 0 of int32 [3]"));
  const Tensor z = full({3}, rank);
  const std::string text = error_of<ValueError>([&] {
    if (rank == 2) group->barrier();
    else group->all_reduce(z, ReduceOp::kMax);
  });
  EXPECT_TRUE(has(text, "worker2 calls barrier, worker0 all_reduce max of float32 [3]"));
  EXPECT_TRUE(has(error_of<ValueError>([&] { group->broadcast(z, rank == 1 ? 1 : 0); }), "broadcast from 1"));
  for (const Tensor& t : {x, y, z}) EXPECT_TRUE(t.equal(full_like(t, rank))) << t;
  group->all_reduce(z);  // the group goes on
  EXPECT_TRUE(z.equal(full({3}, 3)));
  rpc::shutdown();
}

void lose(int rank) {
  const Group group = join(rank);
  const Tensor x = ones({1000});
  group->all_reduce(x);
  if (rank == 2) std::raise(SIGKILL);
  std::string first;
  try {
    while (true) group->all_reduce(x);
  } catch (const PeerLost& e) {
    first = e.what();
    EXPECT_EQ(e.peer.find("worker"), 0u) << e.peer;
    EXPECT_NE(e.peer, str("worker", rank));
  }
  EXPECT_TRUE(has(first, "the connection to worker"));
  EXPECT_EQ(error_of<PeerLost>([&] { group->barrier(); }), first);
  rpc::shutdown({.graceful = false});
}

void wait_in_vain(int rank) {
  const Group group = join(rank, {.timeout = 300ms});
  if (rank == 0) {
    const Tensor x = ones({3});
    const std::string text = error_of<Timeout>([&] { group->all_reduce(x); });
    EXPECT_TRUE(has(text, "all_reduce sum in group 'default', worker0: no answer"));
    EXPECT_TRUE(has(text, "within 300 ms"));
    EXPECT_EQ(error_of<Timeout>([&] { group->barrier(); }), text);
  }
  rpc::barrier();
  if (rank == 1) {
    EXPECT_TRUE(has(error_of<PeerLost>([&] { group->barrier(); }), "worker0"));
  }
  rpc::shutdown();
}

void give_up(int rank) {
  const Group group = join(rank);
  if (rank == 1) {
    group->abort("no data");
    EXPECT_TRUE(has(error_of<RpcError>([&] { group->barrier(); }), "group 'default' has failed: no data"));
  } else {
    EXPECT_FALSE(error_of<PeerLost>([&] { group->barrier(); }).empty());
  }
  const Group again = dist::new_group();
  again->barrier();
  rpc::shutdown();
}

void meet_in_part(int rank) {
  rpc::init_rpc(str("worker", rank));
  EXPECT_TRUE(
      has(error_of<ValueError>([&] { dist::new_group({}, {.name = rank == 1 ? "a" : "b"}); }), "where"));
  constexpr auto kEver = rpc::Duration::max();  // more than a clock can add to its time
  dist::new_group({}, {.init_timeout = kEver, .timeout = kEver})->barrier();
  const std::vector<std::string> two{"worker2", "worker0"};
  if (rank == 1) {
    EXPECT_TRUE(has(error_of<ValueError>([&] { dist::new_group(two); }), "'worker1', is not one of"));
    EXPECT_TRUE(has(error_of<ValueError>([&] { dist::new_group({"worker1", "worker1"}); }), "named twice"));
  } else {
    const Group group = dist::new_group(two);
    EXPECT_EQ(group->rank(), rank / 2);
    const Tensor x = full({3}, rank);
    group->all_reduce(x);
    EXPECT_TRUE(x.equal(full({3}, 2)));
  }
  rpc::shutdown();
}

void meet_at_store(int rank, const std::string& address) {
  const auto store = rpc::connect_store(address);
  for (int i = 0; i < 2; ++i) {  // the second one must not meet at the addresses of the first
    const Group group = dist::new_group(store, rank, 3, {.name = "trainers"});
    const Tensor x = full({3}, rank);
    group->all_reduce(x);
    EXPECT_TRUE(x.equal(full({3}, 3)));
  }
  for (const int first : {0, 1}) {  // a rank that gave up alone meets the others in its next call
    const Group before = dist::new_group(store, rank, 3);
    if (rank == first) {
      EXPECT_FALSE(error_of<Timeout>([&] {
                     dist::new_group(store, rank, 3, {.name = "again", .init_timeout = 200ms});
                   }).empty());
    }
    before->barrier();
    dist::new_group(store, rank, 3, {.name = "again"})->barrier();
    if (rank == first)
      store->set("collectives/again/round", "700 3 open", std::chrono::steady_clock::now() + 10s);
    before->barrier();
    dist::new_group(store, rank, 3, {.name = "again"})->barrier();  // beside the keys of a dead rank 0
  }
  const Group alone = dist::new_group(store, 0, 1);
  alone->barrier();
  if (rank == 0) return;
  EXPECT_TRUE(has(
      error_of<Timeout>([&] { dist::new_group(store, rank, 3, {.name = "late", .init_timeout = 300ms}); }),
      "new_group: group 'late', rank "));
}

/// A group that met at a store, and RPC in the same process. `first`: the group was there before.
void meet_beside_rpc(int rank, const std::string& address, bool first) {
  const auto meet = [&] {
    return dist::new_group(rpc::connect_store(address), rank, 3, {.name = first ? "before" : "behind"});
  };
  const auto expect_sum = [&](const Group& group) {
    const Tensor x = full({3}, rank);
    group->all_reduce(x);
    EXPECT_TRUE(x.equal(full({3}, 3))) << x;
  };
  Group group;
  if (first) {
    group = meet();
    expect_sum(group);
  }
  rpc::init_rpc(str("worker", rank));
  if (!first) group = meet();
  for (int i = 0; i < 3; ++i) {
    const auto sum = rpc::rpc_async<rpc::builtin::add>((rank + 1) % 3, full({2}, rank), full({2}, i));
    expect_sum(group);
    EXPECT_TRUE(sum.wait().equal(full({2}, rank + i)));
  }
  rpc::shutdown();
  expect_sum(group);  // it needs no agent
}
void meet_before_rpc(int rank, const std::string& address) { meet_beside_rpc(rank, address, true); }
void meet_behind_rpc(int rank, const std::string& address) { meet_beside_rpc(rank, address, false); }

std::atomic<bool> group_forms{false};
Tensor add_while_a_group_forms(const Tensor& a, const Tensor& b) {
  while (!group_forms) rpc::current_runtime()->sleep_for(1ms);
  rpc::current_runtime()->sleep_for(100ms);  // worker2 waits for worker1 by then
  return a + b;
}
WEFT_RPC(add_while_a_group_forms);

void call_while_others_form_a_group(int rank) {
  rpc::init_rpc(str("worker", rank));
  if (rank == 1) {
    const Tensor sum = rpc::rpc_sync<add_while_a_group_forms>("worker2", ones({2}), ones({2}));
    EXPECT_TRUE(sum.equal(full({2}, 2)));
  }
  group_forms = true;
  const Group group = dist::new_group();
  const Tensor x = full({3}, rank);
  group->all_reduce(x);
  EXPECT_TRUE(x.equal(full({3}, 3)));
  rpc::shutdown();
}

int group_child(const std::string& job, int rank) {
  const std::map<std::string, void (*)(int)> jobs{
      {"reduce", reduce},     {"spread", spread},
      {"differ", differ},     {"lose", lose},
      {"wait", wait_in_vain}, {"give up", give_up},
      {"part", meet_in_part}, {"call", call_while_others_form_a_group}};
  const std::map<std::string, void (*)(int, const std::string&)> at_store{
      {"store", meet_at_store}, {"before", meet_before_rpc}, {"behind", meet_behind_rpc}};
  const size_t space = job.rfind(' ');
  if (const auto at = jobs.find(job); at != jobs.end()) at->second(rank);
  else at_store.at(job.substr(0, space))(rank, job.substr(space + 1));
  return testing::Test::HasFailure() ? 1 : 0;
}

rpc::Children start(const std::string& job, int workers = 3) {
  return start_job("ProcessGroup.a_process_started_by_these_tests_does_its_job", job, workers);
}

// ---- tests

TEST(ProcessGroup, a_process_started_by_these_tests_does_its_job) { do_job(group_child); }

TEST(ProcessGroup, all_reduce_joins_every_dtype_by_every_op_with_the_same_bits_everywhere) {
  NEEDS_GLOO;
  expect_ended(start("reduce"));
}
TEST(ProcessGroup, broadcast_all_gather_barrier_and_calls_in_the_background) {
  NEEDS_GLOO;
  expect_ended(start("spread"));
}
TEST(ProcessGroup, calls_that_differ_throw_the_same_error_everywhere_and_change_nothing) {
  NEEDS_GLOO;
  expect_ended(start("differ"));
}
TEST(ProcessGroup, a_killed_process_is_a_lost_peer_for_the_others_in_this_call_and_later) {
  NEEDS_GLOO;
  expect_ended(start("lose", 4), {2});  // in the ring worker0 hears of it from others
}
TEST(ProcessGroup, a_process_that_does_not_come_is_a_timeout) {
  NEEDS_GLOO;
  expect_ended(start("wait", 2));
}
TEST(ProcessGroup, an_abort_is_heard_at_once_and_a_new_group_works) {
  NEEDS_GLOO;
  expect_ended(start("give up"));
}
TEST(ProcessGroup, some_workers_of_a_group_form_one) {
  NEEDS_GLOO;
  expect_ended(start("part"));
}
TEST(ProcessGroup, processes_without_rpc_meet_at_a_store_again_and_again) {
  NEEDS_GLOO;
  const auto served = rpc::serve_store("127.0.0.1:0");
  expect_ended(start("store " + served.address));
  for (const auto& value : served.store->peek(
           {"collectives/trainers/1/0", "collectives/trainers/2/0", "collectives/trainers/1/here/1",
            "collectives/trainers/round", "collectives/late/round", "collectives/late/1/here/1"},
           std::chrono::steady_clock::now() + 10s))
    EXPECT_FALSE(value.has_value());
}

TEST(ProcessGroup, rpc_starts_after_a_group_and_ends_before_it) {
  NEEDS_GLOO;
  const auto served = rpc::serve_store("127.0.0.1:0");
  expect_ended(start("before " + served.address));
}
TEST(ProcessGroup, a_group_forms_after_the_start_of_rpc_and_outlives_it) {
  NEEDS_GLOO;
  const auto served = rpc::serve_store("127.0.0.1:0");
  expect_ended(start("behind " + served.address));
}
TEST(ProcessGroup, a_worker_that_waits_for_a_call_joins_the_group_that_its_callee_forms) {
  NEEDS_GLOO;
  expect_ended(start("call"));
}

TEST(ProcessGroup, a_group_of_one_needs_no_engine_and_checks_its_calls) {
  const auto served = rpc::serve_store("127.0.0.1:0");
  const Group group = dist::new_group(served.store, 0, 1);
  const Tensor x = full({3}, 5);
  group->all_reduce(x);
  group->all_reduce(x, ReduceOp::kAvg);
  group->broadcast(x);
  group->barrier();
  EXPECT_TRUE(x.equal(full({3}, 5)));
  EXPECT_TRUE(group->all_gather(x).front().equal(x));
  EXPECT_TRUE(has(error_of<ValueError>([&] { group->all_reduce(Tensor()); }), "undefined"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { group->all_reduce(x > 0); }), "got bool"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { group->all_reduce(zeros({1}, kInt64), ReduceOp::kAvg); }),
                  "average needs a floating dtype, got int64"));
  EXPECT_TRUE(has(error_of<ValueError>([&] { group->broadcast(x, 1); }), "no rank 1 in a group of 1"));
  EXPECT_TRUE(has(error_of<ValueError>([&] { group->all_reduce(zeros({1}).expand({3})); }), "twice"));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { group->all_gather(zeros({1, 1, 1, 1, 1, 1, 1, 1})); }), "dims"));
}

TEST(ProcessGroup, bad_ranks_timeouts_and_open_hosts_are_refused) {
  const auto served = rpc::serve_store("127.0.0.1:0");
  const auto refused = [&](int rank, const dist::ProcessGroupOptions& options) {
    return error_of<ValueError>([&] { dist::new_group(served.store, rank, 2, options); });
  };
  EXPECT_TRUE(has(refused(2, {}), "rank 2 is not in 0..1"));
  EXPECT_TRUE(has(refused(-1, {}), "rank -1 is not in 0..1"));
  EXPECT_TRUE(has(refused(0, {.timeout = 0s}), "must be positive"));
  if (dist::is_gloo_available()) {
    EXPECT_TRUE(has(refused(0, {.host = "192.0.2.1"}), "the host '192.0.2.1' needs insecure = true"));
    EXPECT_TRUE(has(refused(0, {.host = "", .insecure = true}), "no address that others can reach"));
    const dist::ProcessGroupOptions unknown{.host = "no such host", .insecure = true};
    EXPECT_TRUE(has(error_of<RpcError>([&] { dist::new_group(served.store, 0, 2, unknown); }),
                    "the host 'no such host': "));
  }
  EXPECT_TRUE(has(error_of<ValueError>([] { dist::new_group(nullptr, 0, 1); }), "no store"));
  EXPECT_TRUE(has(error_of<RpcError>([] { dist::new_group(); }), "RPC has not been initialized"));
}

TEST(ProcessGroup, without_gloo_the_error_says_so) {
  if (dist::is_gloo_available()) GTEST_SKIP() << "weft was built with Gloo";
  const auto served = rpc::serve_store("127.0.0.1:0");
  EXPECT_TRUE(has(error_of<RpcError>([&] { dist::new_group(served.store, 0, 2); }), "without Gloo"));
}

}  // namespace
