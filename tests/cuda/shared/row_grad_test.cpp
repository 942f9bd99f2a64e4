// Row-wise gradients of tables on a device: the bits of the dense gradient, and the steps of the CPU.
#include <gtest/gtest.h>

#include <vector>

#include <weft/tensor/cuda.h>
#include <weft/weft.h>
#include "cuda/shared/device_test.h"
#include "support/errors.h"
#include "support/golden.h"

namespace weft::test {
namespace {

struct Course {
  std::vector<int64_t> rows;
  Tensor gradient, weight;  ///< of the last step, on the CPU
};

/// Three steps of a table with repeated look-ups and a padding row.
template <class Opt> Course course_of_a_table(Device device, bool sparse, double clip) {
  nn::Embedding table(19, 6, {.padding_idx = 4, .sparse = sparse});
  Generator draws(7);
  {
    NoGrad guard;
    table.weight.copy_(randn({19, 6}, {}, &draws));
  }
  table.to(device);
  Opt opt(table.parameters(), {.lr = 0.1});
  Course out;
  for (int64_t t = 0; t < 3; ++t) {
    const Tensor ids = from_vector<int64_t>({t, 8, 3 * t + 1, 4, 8, 9}, {2, 3}).to(device);
    table.zero_grad();
    table.forward(ids).backward(randn({2, 3, 6}, {}, &draws).to(device));
    if (clip > 0) opt.step_clipped(clip);
    else opt.step();
  }
  if (const RowGrad g = table.weight.row_grad(); g.defined()) {
    EXPECT_TRUE(g.rows.device().is_cpu());
    EXPECT_EQ(g.values.device(), device);
    out.rows = g.rows.to_vector<int64_t>();
  }
  out.gradient = table.weight.grad().to(kCpu);
  out.weight = table.weight.detach().to(kCpu);
  return out;
}

DEVICE_TEST(RowGrad, on_the_device_has_the_bits_of_the_dense_one_there) {
  const Course sparse = course_of_a_table<optim::SGD>(gpu, true, 0),
               dense = course_of_a_table<optim::SGD>(gpu, false, 0);
  EXPECT_EQ(sparse.rows, (std::vector<int64_t>{2, 7, 8, 9}));
  EXPECT_TRUE(dense.rows.empty());
  EXPECT_TRUE(testing::same_bits(sparse.gradient, dense.gradient));
  EXPECT_TRUE(testing::same_bits(sparse.weight, dense.weight));
}

DEVICE_TEST(RowGrad, takes_the_cpus_lazy_steps_on_the_device) {
  for (const double clip : {0.0, 0.5}) {
    const Course here = course_of_a_table<optim::SparseAdam>(kCpu, true, clip),
                 there = course_of_a_table<optim::SparseAdam>(gpu, true, clip);
    EXPECT_EQ(there.rows, here.rows);
    EXPECT_TRUE(testing::close(there.weight, here.weight, 1e-5, 1e-6));
  }
}

DEVICE_TEST(RowGrad, adds_up_on_the_device_and_may_have_no_rows) {
  const Tensor w = ones({5, 2}, {.device = gpu}).requires_grad_();
  for (const auto& ids : {std::vector<int64_t>{3, 1, 3}, std::vector<int64_t>{1, 0}})
    embedding(w, from_vector(ids, {static_cast<int64_t>(ids.size())}).to(gpu), -1, true).sum().backward();
  EXPECT_EQ(w.row_grad().rows.to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 3}));
  EXPECT_EQ(w.row_grad().values.to(kCpu).to_vector<float>(), (std::vector<float>{1, 1, 2, 2, 2, 2}));
  w.zero_grad();
  embedding(w, zeros({0}, {.dtype = kInt64, .device = gpu}), -1, true).sum().backward();
  EXPECT_EQ(w.row_grad().rows.numel(), 0);
  const Tensor before = w.detach().clone();
  optim::SparseAdam({w}, {.lr = 0.1}).step();
  EXPECT_TRUE(testing::same_bits(w, before));
}

DEVICE_TEST(RowGrad, is_refused_there_by_rules_whose_rows_catch_up_later) {
  const Tensor w = ones({5, 2}, {.device = gpu}).requires_grad_();
  optim::SGD sgd({w}, {.lr = 0.1, .momentum = 0.9});
  embedding(w, from_vector<int64_t>({3, 1}, {2}).to(gpu), -1, true).sum().backward();
  EXPECT_TRUE(has(error_of<ValueError>([&] { sgd.step(); }), "a parameter on a device does not allow"));
  EXPECT_TRUE(testing::same_bits(w, ones({5, 2})));
}

DEVICE_TEST(RowGrad, has_no_recorded_step) {
  const Tensor w = ones({5, 2}, {.device = gpu}).requires_grad_();
  optim::SparseAdam adam({w}, {.lr = 0.1});
  embedding(w, from_vector<int64_t>({3, 1}, {2}).to(gpu), -1, true).sum().backward();
  adam.step();
  cuda::Graph graph(gpu);
  const std::string text = error_of<ValueError>([&] { graph.capture([&] { adam.step(); }); });
  EXPECT_TRUE(has(text, "SparseAdam: parameter 0 has a row-wise gradient"));
  EXPECT_EQ(adam.steps(0), 1);
}

}  // namespace
}  // namespace weft::test
