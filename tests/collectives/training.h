// A training with all processes of a group, against one process with the joined batch.
#pragma once

#include <algorithm>

#include "collectives/members.h"

namespace weft::test {

inline constexpr int64_t kRows = 4;  // of each process's part

struct Net : nn::Module {
  nn::Linear first{5, 8}, second{8, 8}, last{8, 2};
  Tensor scale;
  explicit Net(uint64_t seed, Device device = kCpu) {
    add("first", first), add("second", second), add("last", last);
    add_buffer("scale", &Net::scale, full({2}, static_cast<int64_t>(seed)));
    Generator draws(seed);
    for (nn::Linear* layer : {&first, &second, &last}) layer->reset_parameters(&draws);
    to(kFloat64), to(device);
  }
  Tensor forward(const Tensor& x) const { return last.forward(tanh(second.forward(tanh(first.forward(x))))); }
};

struct Batch {
  Tensor x, y;
  Batch part(int64_t rank) const {
    return {x.slice(0, rank * kRows, (rank + 1) * kRows), y.slice(0, rank * kRows, (rank + 1) * kRows)};
  }
  Batch to(Device device) const { return {x.to(device), y.to(device)}; }
};
inline Batch batch_of(int64_t step, int64_t parts) {
  Generator draws(static_cast<uint64_t>(100 + step));
  const Tensor x = randn({parts * kRows, 5}, {.dtype = kFloat64}, &draws);
  return {x, x.sum({1}, true).sin().expand({parts * kRows, 2}).contiguous()};
}

/// Trains with all processes on the group's device and, beside, alone with the joined batches on the CPU. The
/// two differ by roundings.
inline void train(const Group& group, int rank, const dist::DataParallelOptions& options, size_t buckets) {
  const Device device = group->device();
  Net net(static_cast<uint64_t>(rank) + 1, device), whole(1);
  dist::DistributedDataParallel parallel(net, group, options);
  EXPECT_EQ(parallel.buckets().size(), buckets);
  EXPECT_EQ(parallel.buckets().front().front(), "last.bias");  // the last one of the forward pass
  EXPECT_TRUE(net.scale.to(kCpu).equal(whole.scale));
  optim::Adam adam(net.parameters(), {.lr = 0.01}), reference(whole.parameters(), {.lr = 0.01});
  for (int64_t step = 0; step < 6; ++step) {
    const Batch batch = batch_of(step, group->size()), part = batch.part(rank).to(device);
    adam.zero_grad();
    parallel.backward(mse_loss(net.forward(part.x), part.y));
    adam.step();
    reference.zero_grad();
    mse_loss(whole.forward(batch.x), batch.y).backward();
    reference.step();
  }
  const auto trained = net.named_parameters(), wanted = whole.named_parameters();
  for (size_t i = 0; i < trained.size(); ++i) {
    const Tensor a = trained[i].second.detach().to(kCpu), b = wanted[i].second.detach();
    EXPECT_TRUE(a.allclose(b, 1e-10, 1e-10)) << trained[i].first << ' ' << a << ' ' << b;
    EXPECT_TRUE(same_everywhere(group, a)) << trained[i].first;
  }
}

/// Trains with 4 - 2 r batches for rank r, and 1 for each in a second epoch. `clear`: gradients are cleared
/// before a join() too.
inline void train_unevenly(const Group& group, int rank, const dist::DataParallelOptions& options,
                           bool clear = true) {
  const Device device = group->device();
  Net net(static_cast<uint64_t>(rank) + 1, device), whole(1);
  dist::DistributedDataParallel parallel(net, group, options);
  optim::Adam adam(net.parameters(), {.lr = 0.01}), reference(whole.parameters(), {.lr = 0.01});
  for (const int epoch : {0, 1}) {
    const auto inputs = [&](int r) { return epoch == 1 ? 1 : std::max(0, 4 - 2 * r); };
    int step = 0;
    for (;; ++step) {
      const Batch batch = batch_of(4 * epoch + step, group->size()), part = batch.part(rank).to(device);
      if (clear || step < inputs(rank)) adam.zero_grad();
      if (step < inputs(rank)) parallel.backward(mse_loss(net.forward(part.x), part.y));
      else if (!parallel.join()) break;
      adam.step();
      reference.zero_grad();
      for (int r = 0; r < group->size(); ++r)
        if (step < inputs(r))
          (mse_loss(whole.forward(batch.part(r).x), batch.part(r).y) / group->size()).backward();
      reference.step();
    }
    EXPECT_EQ(step, inputs(0));
    EXPECT_EQ(net.first.weight.grad().defined(), !clear);
  }
  for (size_t i = 0; i < net.parameters().size(); ++i) {
    const Tensor p = net.parameters()[i].detach().to(kCpu);
    EXPECT_TRUE(p.allclose(whole.parameters()[i].detach(), 1e-10, 1e-10)) << i;
    EXPECT_TRUE(same_everywhere(group, p)) << i;
  }
}

}  // namespace weft::test
