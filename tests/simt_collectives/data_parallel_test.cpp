// DistributedDataParallel on devices, between real processes with an emulated device each: the gradients of
// one process with the joined batch, and the overlap with a backward pass.
#include <map>
#include <optional>

#include <weft/autograd/tape/hooks.h>
#include <weft/autograd/tape/inner/set_data.h>
#include <weft/tensor/cuda.h>

#include "collectives/training.h"
#include "devices.h"
#include "support/simt/streams.h"

namespace {

using namespace weft;
using namespace weft::test;
using namespace std::chrono_literals;
using dist::DistributedDataParallel;

constexpr dist::DataParallelOptions kTinyBuckets{.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6};

// ---- jobs of the children

void match(int rank) {
  const Group group = join_with_device(rank);
  train(group, rank, {}, 1);
  train(group, rank, {.overlap = false}, 1);
  train(group, rank, kTinyBuckets, 6);
  train(group, rank, {.bucket_cap_mb = 520.0 / (1 << 20), .first_bucket_cap_mb = 16.0 / (1 << 20)}, 3);
  rpc::shutdown();
}

void run_out(int rank) {
  const Group group = join_with_device(rank);
  train_unevenly(group, rank, {});
  train_unevenly(group, rank, kTinyBuckets, false);
  rpc::shutdown();
}

/// Parameters in half types, with gradients in their own precision.
void train_halves(int rank) {
  const Group group = join_with_device(rank);
  for (const DType dtype : {kFloat16, kBFloat16}) {
    manual_seed(3);
    nn::Linear layer(5, 3), whole(5, 3);
    layer.to(dtype);
    {
      const NoGrad off;
      whole.weight.copy_(layer.weight), whole.bias.copy_(layer.bias);
    }
    layer.to(kGpu);
    DistributedDataParallel parallel(layer, group, kTinyBuckets);
    const Tensor x = batch_of(0, group->size()).x.to(dtype).to(kFloat32);
    const Tensor mine = x.slice(0, rank * kRows, (rank + 1) * kRows).to(dtype).to(kGpu);
    parallel.backward(layer.forward(mine).square().mean());
    whole.forward(x).square().mean().backward();
    for (size_t i = 0; i < 2; ++i) {
      const Tensor g = layer.parameters()[i].grad();
      EXPECT_EQ(g.dtype(), dtype);
      const double near = dtype == kFloat16 ? 1e-2 : 5e-2;
      EXPECT_TRUE(g.to(kCpu).to(kFloat32).allclose(whole.parameters()[i].grad(), near, near)) << dtype << g;
      EXPECT_TRUE(same_everywhere(group, g.to(kCpu))) << dtype;
    }
  }
  rpc::shutdown();
}

/// Rank 0 uses `first` and `second`, the others `first` alone; none uses `last`.
void leave_out(int rank) {
  const Group group = join_with_device(rank);
  const Tensor x = full({2, 5}, rank + 1, {.dtype = kFloat64, .device = kGpu});
  const auto loss_of = [&](const Net& net) {
    Tensor y = net.first.forward(x);
    if (rank == 0) y = net.second.forward(y);
    return y.sum();
  };
  Net net(3, kGpu);
  {
    DistributedDataParallel strict(net, group, kTinyBuckets);
    EXPECT_TRUE(has(error_of<AutogradError>([&] { strict.backward(loss_of(net)); }),
                    "4 parameters have no gradient in all processes: 'second.weight' (1 of 2)"));
  }
  net.zero_grad();
  DistributedDataParallel parallel(net, group, {.find_unused_parameters = true});
  parallel.backward(loss_of(net));
  EXPECT_FALSE(net.last.weight.grad().defined());
  const Tensor bias = net.second.bias.grad().to(kCpu);  // 2 rows in rank 0, nothing in the other
  EXPECT_TRUE(bias.allclose(ones({8}, kFloat64), 1e-12, 1e-12)) << bias;
  EXPECT_TRUE(same_everywhere(group, net.first.weight.grad().to(kCpu)));
  rpc::shutdown();
}

/// The gradients come in another order in each process, and the buckets go in one.
void reorder(int rank) {
  const Group group = join_with_device(rank);
  Net net(3, kGpu);
  DistributedDataParallel parallel(net, group, kTinyBuckets);
  const auto buckets = parallel.buckets();
  ASSERT_EQ(buckets.size(), 6u);
  EXPECT_EQ(buckets.front().front(), "last.bias");
  EXPECT_EQ(buckets.back().front(), "first.weight");
  const Tensor x = full({4, 5}, rank + 1, {.dtype = kFloat64, .device = kGpu}),
               h = full({4, 8}, rank + 1, {.dtype = kFloat64, .device = kGpu});
  const auto early = [&] { return net.first.forward(x).sum(); };
  const auto late = [&] { return net.second.forward(h).sum() + net.last.forward(h).sum(); };
  Tensor loss;
  if (rank == 0) loss = early(), loss = loss + late();
  else loss = late(), loss = loss + early();
  parallel.backward(loss);
  for (const Tensor& p : net.parameters()) {
    const Tensor g = p.grad().to(kCpu);
    EXPECT_TRUE(g.allclose(full_like(g, p.dim() == 1 ? 4 : 6), 1e-12, 1e-12)) << g;
  }
  rpc::shutdown();
}

/// Parameters that are parts of one block, as those of recurrent layers on cuDNN.
void train_parts(int rank) {
  const Group group = join_with_device(rank);
  Net net(static_cast<uint64_t>(rank) + 1, kGpu);
  const Net whole(1);
  constexpr size_t kEach = 1024;
  const std::vector<Tensor> parameters = net.parameters();
  const Ref<Storage> block = Storage::allocate(kGpu, kEach * parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Shape& sizes = parameters[i].sizes();
    Tensor part(Ref<TensorBody>::adopt(
        new TensorBody(Storage::part(block, i * kEach, static_cast<size_t>(sizes.numel()) * sizeof(double)),
                       0, sizes, contiguous_strides(sizes), kFloat64)));
    set_data(parameters[i], part.copy_(parameters[i].detach()));
  }
  DistributedDataParallel parallel(net, group, {.bucket_cap_mb = 520.0 / (1 << 20)});
  optim::SGD mine(parameters, {.lr = 0.1}), theirs(whole.parameters(), {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    const Batch batch = batch_of(step, group->size()), part = batch.part(rank).to(kGpu);
    mine.zero_grad(), theirs.zero_grad();
    parallel.backward(mse_loss(net.forward(part.x), part.y));
    mse_loss(whole.forward(batch.x), batch.y).backward();
    mine.step(), theirs.step();
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(parameters[i].body().storage->whole(), block.get());
    EXPECT_TRUE(parameters[i].detach().to(kCpu).allclose(whole.parameters()[i].detach(), 1e-10, 1e-10)) << i;
  }
  rpc::shutdown();
}

/// The device is slow, and yet backward returns. Then the work comes in the order of the streams.
void overlap(int rank) {
  const Group group = join_with_device(rank);
  Net net(1, kGpu);
  const Net whole(1);
  DistributedDataParallel parallel(net, group, kTinyBuckets);
  const Batch batch = batch_of(0, group->size()), part = batch.part(rank).to(kGpu);
  group->barrier();
  const int64_t before = nccl_counts().run.load();
  {
    const cuda::simt::Deferred slow;
    parallel.backward(mse_loss(net.forward(part.x), part.y));
    EXPECT_EQ(nccl_counts().queued.load(), before + 6);
    EXPECT_EQ(nccl_counts().run.load(), before);
    optim::SGD sgd(net.parameters(), {.lr = 1});
    sgd.step();
    mse_loss(whole.forward(batch.x), batch.y).backward();
    for (size_t i = 0; i < net.parameters().size(); ++i) {
      const Tensor p = whole.parameters()[i];
      EXPECT_TRUE(net.parameters()[i].detach().to(kCpu).allclose(p.detach() - p.grad(), 1e-10, 1e-10)) << i;
    }
  }
  rpc::shutdown();
}

/// A module on the CPU and on the device. Its buckets go over Gloo and NCCL.
void divide(int rank) {
  const Group group = join_with_device(rank);
  Net net(static_cast<uint64_t>(rank) + 1);
  const Net whole(1);
  net.last.to(kGpu);
  const auto forward = [](const Net& n, const Tensor& x) {
    const Tensor h = tanh(n.second.forward(tanh(n.first.forward(x))));
    return n.last.forward(h.to(n.last.weight.device())).to(kCpu);
  };
  DistributedDataParallel parallel(net, group);
  ASSERT_EQ(parallel.buckets().size(), 2u);
  EXPECT_EQ(parallel.buckets()[0], (std::vector<std::string>{"last.bias", "last.weight"}));
  const Batch batch = batch_of(0, group->size()), part = batch.part(rank);
  parallel.backward(mse_loss(forward(net, part.x), part.y));
  mse_loss(forward(whole, batch.x), batch.y).backward();
  for (size_t i = 0; i < net.parameters().size(); ++i)
    EXPECT_TRUE(net.parameters()[i].grad().to(kCpu).allclose(whole.parameters()[i].grad(), 1e-10, 1e-12))
        << i;
  net.last.to(Device("cuda:1"));
  EXPECT_TRUE(has(error_of<DeviceError>([&] { DistributedDataParallel other(net, group); }),
                  "'last.weight' lies on cuda:1, which is neither the CPU nor the option `device`"));
  rpc::shutdown();
}

struct Wide : nn::Module {
  nn::Linear narrow{4, 512}, wide{512, 1024};
  Wide() {
    add("narrow", narrow), add("wide", wide);
    Generator draws(1);
    for (nn::Linear* layer : {&narrow, &wide}) layer->reset_parameters(&draws);
    to(kGpu);
  }
};

/// Worker 1 has no memory for the second bucket, of 2 MiB, when its pass is done.
void run_out_of_memory(int rank) {
  const Group group = join_with_device(rank, {.timeout = 20s});
  Wide net;
  DistributedDataParallel parallel(net, group,
                                   {.bucket_cap_mb = 1e-6, .first_bucket_cap_mb = 1e-6, .overlap = false});
  ASSERT_EQ(parallel.buckets()[1].front(), "wide.weight");
  std::vector<Tensor> rest;
  const auto leave_no_room = [&](const Tensor&) {
    cuda::empty_cache(kGpu);
    cuda::set_memory_limit(cuda::memory_stats(kGpu).reserved, kGpu);
    try {
      while (true) rest.push_back(empty({512, 1024}, {.device = kGpu}));
    } catch (const OutOfMemoryError&) {
    }
  };
  std::optional<ScopedHook> hook;
  if (rank == 1) hook.emplace(register_post_accumulate_hook(net.narrow.weight, leave_no_room));
  const auto backward = [&] {
    parallel.backward(net.wide.forward(net.narrow.forward(on_device({2, 4}, 1))).sum());
  };
  if (rank == 1) {
    EXPECT_FALSE(error_of<OutOfMemoryError>(backward).empty());
    hook.reset();
    rest.clear();
    cuda::set_memory_limit(0, kGpu);
    EXPECT_TRUE(has(error_of<RpcError>(backward), "has failed: a backward pass failed: "));
  } else {
    EXPECT_TRUE(has(error_of<PeerLost>(backward), "worker1"));
  }
  rpc::shutdown();
}

int device_trainer_child(const std::string& job, int rank) {
  const std::map<std::string, void (*)(int)> jobs{
      {"match", match},      {"halves", train_halves}, {"leave out", leave_out},         {"reorder", reorder},
      {"overlap", overlap},  {"divide", divide},       {"no memory", run_out_of_memory}, {"run out", run_out},
      {"parts", train_parts}};
  jobs.at(job)(rank);
  return testing::Test::HasFailure() ? 1 : 0;
}

void run_trainers(const std::string& job, int workers = 2) {
  expect_ended(start_job("SimtDataParallel.a_process_started_by_these_tests_does_its_job", job, workers));
}

// ---- tests

TEST(SimtDataParallel, a_process_started_by_these_tests_does_its_job) { do_job(device_trainer_child); }

TEST(SimtDataParallel, two_and_three_processes_train_as_one_with_the_joined_batch) {
  NEEDS_GLOO;
  run_trainers("match", 2);
  run_trainers("match", 3);
}
TEST(SimtDataParallel, a_process_without_inputs_joins_the_steps_of_the_others) {
  NEEDS_GLOO;
  run_trainers("run out");
}
TEST(SimtDataParallel, parameters_of_half_types_get_averages_of_their_dtype) {
  NEEDS_GLOO;
  run_trainers("halves");
}
TEST(SimtDataParallel, parameters_that_are_parts_of_one_block_train_as_others) {
  NEEDS_GLOO;
  run_trainers("parts");
}
TEST(SimtDataParallel, a_missing_gradient_is_an_error_everywhere_or_counts_as_zero) {
  NEEDS_GLOO;
  run_trainers("leave out");
}
TEST(SimtDataParallel, buckets_go_in_one_order_whatever_the_order_of_the_gradients) {
  NEEDS_GLOO;
  run_trainers("reorder");
}
TEST(SimtDataParallel, backward_returns_before_the_device_is_done_and_a_step_follows) {
  NEEDS_GLOO;
  run_trainers("overlap");
}
TEST(SimtDataParallel, a_module_on_cpu_and_device_has_buckets_for_each) {
  NEEDS_GLOO;
  run_trainers("divide");
}
TEST(SimtDataParallel, a_process_without_memory_behind_its_pass_ends_the_group_at_once) {
  NEEDS_GLOO;
  run_trainers("no memory");
}

}  // namespace
