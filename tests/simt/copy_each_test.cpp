// Many copies in one launch of the CUDA backend against as many of the CPU's, and the concatenations that are
// made of them.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include <weft/weft.h>
#include "simt/compare.h"

namespace weft::cuda {
namespace {

/// One copy from one operand to another of the same sizes.
struct CopyCase {
  const char* name;
  DType from, to;
  Shape sizes, out, in;
  int64_t out_offset = 0, in_offset = 0;
};
/// Those that one launch takes together.
const CopyCase kTogether[] = {
    {"dense", kFloat32, kFloat32, {40, 16}, {16, 1}, {16, 1}},
    {"more than a block of packs", kFloat32, kFloat32, {5003, 4}, {4, 1}, {4, 1}},
    {"one element", kFloat64, kFloat64, {1}, {1}, {1}},
    {"a scalar", kBFloat16, kBFloat16, {}, {}, {}},
    {"rows into wider rows", kFloat32, kFloat32, {30, 16}, {48, 1}, {16, 1}, 32},
    {"rows into wider rows off the borders of packs", kFloat32, kFloat32, {30, 15}, {37, 1}, {15, 1}, 3},
    {"off the borders of packs", kFloat16, kFloat16, {33, 31}, {31, 1}, {31, 1}, 1, 3},
    {"pairs of halves", kFloat16, kFloat16, {33, 2}, {6, 1}, {2, 1}, 2},
    {"bytes", kBool, kBool, {7, 131}, {133, 1}, {131, 1}, 2},
    {"bytes in packs", kUInt8, kUInt8, {9, 64}, {128, 1}, {64, 1}},
    {"long words", kInt64, kInt64, {11, 3}, {9, 1}, {3, 1}, 3},
    {"every second element", kInt32, kInt32, {12, 40}, {40, 1}, {80, 2}},
    {"a column each", kFloat32, kFloat32, {1030, 1}, {5, 1}, {1, 1}, 2},
    {"a row repeated", kFloat32, kFloat32, {30, 16}, {16, 1}, {0, 1}},
    {"one element repeated", kFloat32, kFloat32, {30, 17}, {17, 1}, {0, 0}},
    {"both transposed", kFloat32, kFloat32, {40, 32}, {1, 40}, {1, 40}},
    {"empty", kFloat32, kFloat32, {0, 16}, {16, 1}, {16, 1}},
};
/// Those that go one by one.
const CopyCase kAlone[] = {
    {"converted", kInt32, kFloat32, {9, 16}, {16, 1}, {16, 1}},
    {"transposed", kFloat32, kFloat32, {33, 40}, {40, 1}, {1, 33}},
    {"three dims that do not merge", kFloat32, kFloat32, {3, 4, 5}, {60, 10, 1}, {20, 5, 1}},
};

/// Operands of one call, the inputs drawn anew for each.
struct TensorPairs {
  std::vector<std::unique_ptr<Operand>> xs, ys;
  std::vector<View> from, to;
  void add(const CopyCase& c) {
    xs.push_back(std::make_unique<Operand>(c.from, c.sizes, c.in, c.in_offset));
    ys.push_back(std::make_unique<Operand>(c.to, c.sizes, c.out, c.out_offset));
    xs.back()->random(-100, 100, static_cast<uint32_t>(xs.size()));
    from.push_back(xs.back()->on_device()), to.push_back(ys.back()->on_device());
  }
  void expect_same_as_cpu(const std::string& where) {
    Context c;
    for (size_t i = 0; i < xs.size(); ++i) {
      if (xs[i]->host().numel() > 0) backend(kCpu).copy(c, xs[i]->host(), ys[i]->host());
      expect_same(*ys[i], 0, str(where, ", copy ", i));
    }
  }
};

TEST(SimtCopyEach, one_launch_takes_rows_of_runs_of_every_width) {
  each_device([](CudaBackend& gpu) {
    TensorPairs pairs;
    for (const CopyCase& c : kTogether) pairs.add(c);
    Context c;
    const int64_t before = simt::launches();
    gpu.copy_each(c, pairs.from, pairs.to);
    EXPECT_EQ(simt::launches() - before, 1);
    pairs.expect_same_as_cpu("together");
  });
}

TEST(SimtCopyEach, what_one_launch_cannot_take_goes_by_itself) {
  each_device([](CudaBackend& gpu) {
    TensorPairs pairs;
    for (const CopyCase& c : kAlone) pairs.add(c), pairs.add(kTogether[pairs.xs.size()]);
    Context c;
    const int64_t before = simt::launches();
    gpu.copy_each(c, pairs.from, pairs.to);
    EXPECT_EQ(simt::launches() - before, 4);
    pairs.expect_same_as_cpu("among others");
  });
}

TEST(SimtCopyEach, any_number_of_copies_takes_at_most_one_launch) {
  each_device([](CudaBackend& gpu) {
    for (const int count : {0, 1, 2, 47, 48, 49, 200}) {
      TensorPairs pairs;
      for (int i = 0; i < count; ++i)
        pairs.add({"",
                   kFloat32,
                   kFloat32,
                   {2, 1 + i % 7 * 300},
                   {1 + i % 7 * 300 + i % 3, 1},
                   {1 + i % 7 * 300, 1},
                   i % 4});
      Context c;
      const int64_t before = simt::launches();
      gpu.copy_each(c, pairs.from, pairs.to);
      EXPECT_LE(simt::launches() - before, 1) << count;
      pairs.expect_same_as_cpu(str(count, " copies"));
    }
  });
}

struct SimtCat : testing::Test {
  void SetUp() override { simt::install(); }
  const Device gpu{DeviceType::kCuda, 0};

  /// cat on the device and on the CPU: the same values, type and gradients, in so many launches.
  void expect_cat(const std::vector<Tensor>& host, int64_t dim, int64_t launches, const std::string& where) {
    std::vector<Tensor> xs;
    for (const Tensor& x : host) xs.push_back(x.to(gpu));
    expect_cat(host, xs, dim, launches, where);
  }
  void expect_cat(const std::vector<Tensor>& host, const std::vector<Tensor>& xs, int64_t dim,
                  int64_t launches, const std::string& where) {
    const Tensor expected = cat(host, dim);
    const int64_t before = simt::launches();
    const Tensor got = cat(xs, dim);
    EXPECT_EQ(simt::launches() - before, launches) << where;
    EXPECT_EQ(got.dtype(), expected.dtype()) << where;
    EXPECT_TRUE(got.device() == gpu && equal(got.to(kCpu), expected)) << where;
  }
};

TEST_F(SimtCat, joins_one_two_and_many_in_one_launch) {
  Generator g(5);
  const auto draw = [&](const Shape& sizes) { return rand(sizes, {}, &g); };
  expect_cat({draw({3, 4})}, 0, 0, "one, a copy of the runtime's");
  expect_cat({draw({3, 4}), draw({2, 4})}, 0, 1, "rows");
  expect_cat({draw({3, 4}), draw({3, 9})}, 1, 1, "columns");
  expect_cat({draw({2, 3, 4}), draw({2, 5, 4}), draw({2, 1, 4})}, 1, 1, "a middle dim");
  expect_cat({draw({0, 4}), draw({3, 4}), draw({0, 4}), draw({2, 4})}, 0, 1, "empty ones among them");
  expect_cat({draw({0, 4}), draw({0, 4})}, 0, 0, "empty ones alone");
  std::vector<Tensor> many;
  for (int i = 0; i < 130; ++i) many.push_back(draw({3, i % 6}));
  expect_cat(many, 1, 1, "many");
  many.clear();
  for (int i = 0; i < 60; ++i) many.push_back(draw({300}));
  const Tensor expected = stack(many, 1);
  for (Tensor& x : many) x = x.to(gpu);
  const int64_t before = simt::launches();
  const Tensor got = stack(many, 1);
  EXPECT_EQ(simt::launches() - before, 1);
  EXPECT_TRUE(equal(got.to(kCpu), expected));
}

TEST_F(SimtCat, takes_strided_and_mixed_inputs_and_every_type) {
  Generator g(6);
  for (const DType t : {kBool, kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64})
    expect_cat({(rand({3, 5}, {}, &g) * 100).to(t), (rand({3, 2}, {}, &g) * 100).to(t)}, 1, 1, to_string(t));
  expect_cat({ones({2, 3}, {.dtype = kInt32}), rand({2, 3}, {}, &g), ones({1, 3}, {.dtype = kFloat16})}, 0, 2,
             "two are converted");
  const Tensor x = rand({40, 30}, {}, &g), on_gpu = x.to(gpu);
  const auto parts = [](const Tensor& v) {
    return std::vector<Tensor>{v.slice(1, 0, 30, 3), v.slice(1, 5, 6).expand({40, 10}), v.slice(1, 20, 30)};
  };
  expect_cat(parts(x), parts(on_gpu), 0, 1, "strided");
  const auto turned = [](const Tensor& v) { return std::vector<Tensor>{v.t(), v.t(), v.t().contiguous()}; };
  expect_cat(turned(x), turned(on_gpu), 1, 3, "transposed: tile by tile");
}

TEST_F(SimtCat, gives_each_input_its_gradient) {
  Generator g(7);
  std::vector<Tensor> host, xs;
  for (const int64_t n : {2, 1, 4}) {
    host.push_back(rand({3, n}, {}, &g).requires_grad_());
    xs.push_back(host.back().detach().to(gpu).requires_grad_());
  }
  const Tensor weight = rand({3, 7}, {}, &g);
  (cat(host, 1) * weight).sum().backward();
  (cat(xs, 1) * weight.to(gpu)).sum().backward();
  for (size_t i = 0; i < xs.size(); ++i) EXPECT_TRUE(equal(xs[i].grad().to(kCpu), host[i].grad())) << i;
}

}  // namespace
}  // namespace weft::cuda
