// Collectives of tensors on devices, between real processes with an emulated device each, over the emulated
// NCCL. This program starts itself again, and a variable tells a child its task.
#include <csignal>
#include <map>
#include <optional>
#include <thread>

#include <weft/tensor/cuda.h>

#include "devices.h"
#include "support/simt/streams.h"

namespace {

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;
using dist::ReduceOp;
using dist::inner::nccl::Result;

// ---- jobs of the children

void reduce(int rank) {
  const Group group = join_with_device(rank);
  EXPECT_EQ(group->device(), kGpu);
  for (const DType dtype : {kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64}) {
    for (const auto& [op, wanted] : {std::pair{ReduceOp::kSum, 9}, std::pair{ReduceOp::kProduct, 24},
                                     std::pair{ReduceOp::kMin, 2}, std::pair{ReduceOp::kMax, 4}}) {
      const Tensor x = on_device({7}, rank + 2, dtype);
      group->all_reduce(x, op);
      EXPECT_TRUE(holds(x, full({7}, wanted, dtype))) << dtype << ' ' << to_string(op) << ' ' << x;
    }
    if (!is_floating(dtype)) continue;
    const Tensor x = on_device({2, 3}, rank + 2, dtype);
    group->all_reduce(x, ReduceOp::kAvg);
    EXPECT_TRUE(holds(x, full({2, 3}, 3, dtype))) << dtype << ' ' << x;
  }
  for (const DType dtype : {kFloat16, kBFloat16, kFloat32}) {  // sums in parts, and with roundings
    Tensor sum = zeros({50001});
    std::vector<Tensor> all;
    for (uint64_t r = 0; r < 3; ++r) {
      Generator draws(r);
      all.push_back(randn({50001}, {}, &draws).to(dtype));
      sum += all.back().to(kFloat32);
    }
    const Tensor x = all[static_cast<size_t>(rank)].to(kGpu);
    group->all_reduce(x);
    const double near = dtype == kFloat32 ? 1e-5 : dtype == kFloat16 ? 1e-2 : 1e-1;
    EXPECT_TRUE(x.to(kCpu).to(kFloat32).allclose(sum, near, near)) << dtype;
    EXPECT_TRUE(same_everywhere(group, x.to(kCpu))) << dtype;
  }
  group->all_reduce(on_device({0, 3}, 1));
  const Tensor here = full({3}, rank);  // Gloo is there beside NCCL
  group->all_reduce(here);
  EXPECT_TRUE(here.equal(full({3}, 3)));
  EXPECT_TRUE(
      has(error_of<DTypeError>([&] { group->all_reduce(on_device({2}, 1, kBool)); }), "takes numbers"));
  EXPECT_TRUE(
      has(error_of<DeviceError>([&] { group->all_reduce(full({2}, 1, {.device = Device("cuda:1")})); }),
          "the tensor lies on cuda:1, and the group takes tensors on the CPU and on cuda:0"));
  rpc::shutdown();
}

void spread(int rank) {
  const Group group = join_with_device(rank);
  const Tensor base = on_device({2, 3}, rank), column = base.select(1, 1);  // not contiguous
  const uint32_t version = base.version();
  group->broadcast(column, 2);
  EXPECT_TRUE(holds(base, tensor({{rank, 2, rank}, {rank, 2, rank}}))) << base;
  EXPECT_GT(base.version(), version);
  const Tensor flags = on_device({4}, rank, kBool);
  group->broadcast(flags, 0);
  EXPECT_TRUE(holds(flags, zeros({4}, kBool)));
  Tensor weight = on_device({3}, rank).requires_grad_();
  group->broadcast(weight, 1);
  EXPECT_TRUE(holds(weight.detach(), ones({3})));
  EXPECT_TRUE(weight.is_leaf() && weight.requires_grad());
  const std::vector<Tensor> all = group->all_gather(on_device({2}, rank, kInt64));
  ASSERT_EQ(all.size(), 3u);
  for (int r = 0; r < 3; ++r) EXPECT_TRUE(holds(all[static_cast<size_t>(r)], full({2}, r, kInt64)));
  std::vector<Tensor> xs;
  std::vector<rpc::Future<void>> running;
  for (int i = 0; i < 10; ++i) {
    xs.push_back(on_device({1000}, i + rank));
    running.push_back(group->all_reduce_async(xs.back()));
  }
  for (const auto& one : running) one.wait();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(holds(xs[static_cast<size_t>(i)], full({1000}, 3 * i + 3)));
  group->barrier();
  EXPECT_EQ(nccl_counts().queued.load(), nccl_counts().run.load());
  rpc::shutdown();
}

/// The device is slow: its work runs when a wait needs it.
void stay_ahead(int rank) {
  const Group group = join_with_device(rank);
  Tensor x = on_device({1000}, rank), y = on_device({1000}, rank), z = on_device({1000}, rank);
  const cuda::Stream side(kGpu);
  const int64_t before = nccl_counts().run.load();
  {
    const cuda::simt::Deferred slow;
    x.add_(1);
    group->all_reduce(x);
    x.mul_(10);
    EXPECT_EQ(nccl_counts().queued.load(), before + 1);
    EXPECT_EQ(nccl_counts().run.load(), before);  // no thread has waited for the device
    EXPECT_TRUE(holds(x, full({1000}, 30)));      // the order of the stream: (1 + 2) * 10

    const rpc::Future<void> done = group->all_reduce_async(y);
    EXPECT_TRUE(done.done());
    EXPECT_TRUE(holds(y, full({1000}, rank)));  // not ordered before the wait
    done.wait();
    EXPECT_TRUE(holds(y, ones({1000})));

    const cuda::StreamGuard guard(side);  // the stream of the caller counts
    z.add_(2);
    group->all_reduce(z);
    z.add_(1);
    EXPECT_TRUE(holds(z, full({1000}, 6)));
  }
  group->barrier();
  rpc::shutdown();
}

void differ(int rank) {
  rpc::init_rpc(str("worker", rank));
  open_devices();
  const auto fails = [&](const auto& call, const char* text) {
    const Group group = dist::new_group({}, {.device = kGpu});
    call(group);
    const std::string first = error_of<ValueError>([&] { group->barrier(); });
    EXPECT_TRUE(has(first, text)) << first;
    EXPECT_EQ(error_of<ValueError>([&] { group->all_reduce(on_device({3}, 1)); }), first);
  };
  fails(
      [rank](const Group& group) {
        try {
          if (rank == 1) group->broadcast(on_device({3}, 1), 1);
          else group->all_reduce(on_device({3}, 1));
        } catch (const ValueError&) {  // known before the library has taken the call
        }
      },
      "worker1 calls broadcast from 1 of float32 [3] on a device, worker0 all_reduce sum of float32 [3] on");
  fails(
      [rank](const Group& group) {
        try {
          group->all_reduce(full({3}, 1, {.device = rank == 0 ? kGpu : kCpu}));
        } catch (const ValueError&) {
        }
      },
      "worker1 calls all_reduce sum of float32 [3], worker0 all_reduce sum of float32 [3] on a device");
  EXPECT_EQ(nccl_counts().aborted.load(), 2);
  rpc::shutdown();
}

void lose(int rank) {
  Group group = join_with_device(rank, {.timeout = 40s});
  const Tensor x = on_device({1000}, 1);
  group->all_reduce(x);
  group->barrier();
  if (rank == 2) std::raise(SIGKILL);
  const std::string first = error_of<PeerLost>([&] {
    while (true) group->all_reduce(x);
  });
  EXPECT_TRUE(has(first, "the connection to worker")) << first;
  EXPECT_EQ(error_of<PeerLost>([&] { group->barrier(); }), first);
  group.reset();
  EXPECT_EQ(nccl_counts().aborted.load(), 1);
  rpc::shutdown({.graceful = false});
}

/// Worker 1 ends when the calls have been compared, and its device has not done its part. Nothing follows.
void lose_behind_the_comparison(int rank) {
  const Group group = join_with_device(rank, {.timeout = 40s});
  const Tensor x = on_device({1000}, 1);
  group->all_reduce(x);
  group->barrier();
  if (rank == 1) {
    nccl_settings().takes_no_part = true;
    group->all_reduce(x);
    std::this_thread::sleep_for(500ms);
    std::raise(SIGKILL);
  }
  EXPECT_TRUE(has(error_of<PeerLost>([&] { group->all_reduce(x); }), "the connection to worker1"));
  rpc::shutdown({.graceful = false});
}

void wait_in_vain(int rank) {
  Group group = join_with_device(rank, {.timeout = 3s});
  const Tensor x = on_device({3}, 1);
  if (rank == 1) nccl_settings().takes_no_part = true;
  if (rank == 0) {
    const std::string text = error_of<Timeout>([&] { group->all_reduce(x); });
    EXPECT_TRUE(has(text, "all_reduce sum of float32 [3] on a device in group 'default', worker0: "));
    EXPECT_TRUE(has(text, "within 3000 ms")) << text;
    EXPECT_EQ(error_of<Timeout>([&] { group->barrier(); }), text);
    group.reset();
    EXPECT_EQ(nccl_counts().aborted.load(), 1);
  } else {
    group->all_reduce(x);
  }
  rpc::barrier();
  if (rank == 1) {
    EXPECT_TRUE(has(error_of<PeerLost>([&] { group->barrier(); }), "worker0"));
  }
  rpc::shutdown();
}

/// The library takes the call, and the device is never done.
void hang(int rank) {
  const Group group = join_with_device(rank, {.timeout = 3s});
  const Tensor x = on_device({3}, 1);
  std::optional<cuda::simt::Deferred> never;
  if (rank == 0) never.emplace();
  group->broadcast(x, 1);
  if (rank == 0) {
    EXPECT_TRUE(has(error_of<Timeout>([&] { group->barrier(); }),
                    "[3] on a device in group 'default', worker0: the devices were not done within 3000 ms"));
    never.reset();
  }
  rpc::barrier();
  if (rank == 1) {
    EXPECT_FALSE(error_of<PeerLost>([&] { group->barrier(); }).empty());
  }
  rpc::shutdown();
}

void stay_away(int rank) {
  rpc::init_rpc(str("worker", rank));
  open_devices();
  nccl_settings().stays_away = rank == 1;
  const std::string text =
      error_of<Timeout>([&] { dist::new_group({}, {.init_timeout = 6s, .device = kGpu}); });
  EXPECT_TRUE(has(text, str("new_group: group 'default', worker", rank, ": ncclCommInitRankConfig"))) << text;
  EXPECT_EQ(nccl_counts().aborted.load(), 1);
  nccl_settings().stays_away = false;
  const Group group = dist::new_group({}, {.device = kGpu});
  const Tensor x = on_device({3}, rank);
  group->all_reduce(x);
  EXPECT_TRUE(holds(x, ones({3})));
  rpc::shutdown();
}

void hear_of_errors(int rank) {
  rpc::init_rpc(str("worker", rank));
  open_devices();
  for (const Result error : {Result::kRemoteError, Result::kInternalError}) {
    const Group group = dist::new_group({}, {.device = kGpu});
    const Tensor x = on_device({3}, 1);
    group->all_reduce(x);
    group->barrier();
    if (rank == 0) {
      nccl_settings().error = error;
      if (error == Result::kRemoteError) {
        EXPECT_TRUE(has(error_of<PeerLost>([&] { group->all_reduce(x); }), "network error (emulated)"));
      } else {
        EXPECT_TRUE(has(error_of<CudaError>([&] { group->all_reduce(x); }), "internal error (emulated)"));
      }
      nccl_settings().error = Result::kSuccess;
    } else {
      EXPECT_FALSE(error_of<PeerLost>([&] {
                     while (true) group->all_reduce(x);
                   }).empty());
    }
    rpc::barrier();
  }
  rpc::shutdown();
}

void give_up(int rank) {
  Group group = join_with_device(rank);
  const Tensor x = on_device({3}, 1);
  if (rank == 1) {
    group->abort("no data");
    EXPECT_TRUE(has(error_of<RpcError>([&] { group->barrier(); }), "group 'default' has failed: no data"));
    EXPECT_TRUE(has(error_of<RpcError>([&] { group->all_reduce(x); }), "no data"));
  } else {
    EXPECT_FALSE(error_of<PeerLost>([&] { group->all_reduce(x); }).empty());
  }
  group.reset();
  EXPECT_EQ(nccl_counts().aborted.load(), 1);
  group = dist::new_group({}, {.device = kGpu});
  group->all_reduce(x);
  group->barrier();
  rpc::shutdown();
}

void lack(int rank) {
  rpc::init_rpc(str("worker", rank));
  if (rank == 1) setenv("WEFT_NCCL_LIBRARY", "libweft_nowhere.so", 1);
  open_devices();
  EXPECT_EQ(dist::is_nccl_available(), rank != 1);
  const auto refused = [&](Device device) {
    return error_of<DeviceError>([&] { dist::new_group({}, {.device = device}); });
  };
  const std::string text = refused(kGpu);
  EXPECT_TRUE(has(text, rank == 1 ? "new_group: collectives between" : "new_group: worker1: collectives"))
      << text;
  EXPECT_TRUE(has(text, "libweft_nowhere.so") && has(text, "set WEFT_NCCL_LIBRARY")) << text;
  EXPECT_TRUE(has(refused(Device("cuda:7")), rank == 0 ? "new_group: cuda:7" : "new_group: worker0: cuda:7"));
  EXPECT_TRUE(has(
      error_of<ValueError>([&] { dist::new_group({}, {.device = rank == 1 ? kCpu : kGpu}); }),
      rank == 1 ? "worker0 has a device, and worker1 has no device" : "worker1 has no device, and worker0"));
  dist::new_group()->barrier();
  rpc::shutdown();
}

int device_child(const std::string& job, int rank) {
  const std::map<std::string, void (*)(int)> jobs{
      {"reduce", reduce},         {"spread", spread},   {"ahead", stay_ahead},
      {"differ", differ},         {"lose", lose},       {"lose behind", lose_behind_the_comparison},
      {"wait", wait_in_vain},     {"hang", hang},       {"stay away", stay_away},
      {"errors", hear_of_errors}, {"give up", give_up}, {"lack", lack}};
  jobs.at(job)(rank);
  return testing::Test::HasFailure() ? 1 : 0;
}

rpc::Children start(const std::string& job, int workers = 2) {
  return start_job("SimtCollectives.a_process_started_by_these_tests_does_its_job", job, workers);
}

// ---- tests

TEST(SimtCollectives, a_process_started_by_these_tests_does_its_job) { do_job(device_child); }

TEST(SimtCollectives, all_reduce_joins_every_dtype_by_every_op_with_the_same_bits_everywhere) {
  NEEDS_GLOO;
  expect_ended(start("reduce", 3));
}
TEST(SimtCollectives, broadcast_all_gather_and_calls_in_the_background) {
  NEEDS_GLOO;
  expect_ended(start("spread", 3));
}
TEST(SimtCollectives, no_thread_waits_for_the_device_and_streams_keep_the_order) {
  NEEDS_GLOO;
  expect_ended(start("ahead"));
}
TEST(SimtCollectives, calls_that_differ_end_the_group_with_the_same_error_everywhere) {
  NEEDS_GLOO;
  expect_ended(start("differ"));
}
TEST(SimtCollectives, a_killed_process_is_a_lost_peer_for_the_others_in_this_call_and_later) {
  NEEDS_GLOO;
  expect_ended(start("lose", 3), {2});
}
TEST(SimtCollectives, a_process_that_ends_behind_the_comparison_is_noticed) {
  NEEDS_GLOO;
  expect_ended(start("lose behind"), {1});
}
TEST(SimtCollectives, a_device_that_takes_no_part_is_a_timeout_and_an_abort) {
  NEEDS_GLOO;
  expect_ended(start("wait"));
}
TEST(SimtCollectives, work_that_is_never_done_is_a_timeout_of_the_next_call) {
  NEEDS_GLOO;
  expect_ended(start("hang"));
}
TEST(SimtCollectives, a_rank_that_never_comes_is_a_timeout_and_the_next_group_forms) {
  NEEDS_GLOO;
  expect_ended(start("stay away"));
}
TEST(SimtCollectives, errors_of_the_library_beside_its_calls_are_thrown_by_the_next) {
  NEEDS_GLOO;
  expect_ended(start("errors"));
}
TEST(SimtCollectives, an_abort_is_heard_at_once_and_a_new_group_works) {
  NEEDS_GLOO;
  expect_ended(start("give up"));
}
TEST(SimtCollectives, a_missing_library_or_device_is_named_in_all_processes) {
  NEEDS_GLOO;
  expect_ended(start("lack"));
}

TEST(SimtCollectives, a_group_of_one_runs_on_its_device_and_refuses_recordings) {
  open_devices();
  const auto served = rpc::serve_store("127.0.0.1:0");
  {
    const Group group = dist::new_group(served.store, 0, 1, {.device = kGpu});
    const Tensor x = on_device({3}, 5);
    group->all_reduce(x);
    group->all_reduce(x, ReduceOp::kAvg);
    group->broadcast(x);
    EXPECT_TRUE(holds(group->all_gather(x).front(), full({3}, 5)));
    group->barrier();
    EXPECT_TRUE(holds(x, full({3}, 5)));
    EXPECT_EQ(nccl_counts().run.load(), 4);
    cuda::Graph graph(kGpu);
    EXPECT_TRUE(has(error_of<CudaError>([&] { graph.capture([&] { group->all_reduce(x); }); }),
                    "the calling thread records a graph"));
    group->all_reduce(x);  // the group goes on
    EXPECT_TRUE(holds(x, full({3}, 5)));
  }
  EXPECT_EQ(nccl_counts().destroyed.load(), 1);
  EXPECT_EQ(nccl_counts().aborted.load(), 0);
  const Group without = dist::new_group(served.store, 0, 1);
  EXPECT_TRUE(without->device().is_cpu());
  EXPECT_TRUE(has(error_of<DeviceError>([&] { without->all_reduce(on_device({3}, 1)); }),
                  "lies on cuda:0, and the group takes tensors on the CPU; the option `device`"));
}

}  // namespace
