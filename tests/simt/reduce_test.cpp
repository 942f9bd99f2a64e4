// Reductions, extremes along a dim and moments of the CUDA backend against the CPU's. Lengths lie around
// packs, warps, blocks and segments, and layouts lead to each form of the kernels.
#include <gtest/gtest.h>

#include <limits>

#include "simt/compare.h"
#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using simt::device;
using simt::expect_same;
using simt::Operand;

constexpr Reduce kOps[] = {Reduce::kSum, Reduce::kProd,   Reduce::kMax,        Reduce::kMin,   Reduce::kAny,
                           Reduce::kAll, Reduce::kSumAbs, Reduce::kSumSquares, Reduce::kMaxAbs};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double reduce_tolerance(DType t) {
  return t == kFloat16 ? 1e-3 : t == kBFloat16 ? 8e-3 : t == kFloat32 ? 1e-6 : t == kFloat64 ? 1e-12 : 0;
}

struct ReduceCase {
  const char* name;
  Shape sizes, strides;
  std::vector<int> dims;  // reduced
  int64_t offset = 0;
};

Shape kept(const ReduceCase& c) {
  Shape sizes = c.sizes;
  for (const int d : c.dims) sizes[d] = 1;
  return sizes;
}

void compare_reduce(Reduce op, DType dtype, const ReduceCase& c) {
  const bool test = op == Reduce::kAny || op == Reduce::kAll,
             extreme = op == Reduce::kMax || op == Reduce::kMin;
  const DType result = test ? kBool : extreme || is_floating(dtype) ? dtype : kInt64;
  Operand x(dtype, c.sizes, c.strides, c.offset), y(result, kept(c));
  op == Reduce::kProd ? x.random(0.98, 1.02, 5) : x.random(-3, 3, 5);
  Context context;
  backend(kCpu).reduce(context, op, x.host(), y.host());
  device().reduce(context, op, x.on_device(), y.on_device());
  expect_same(y, reduce_tolerance(result),
              str("op ", static_cast<int>(op), " of ", dtype, ", ", c.name, " ", c.sizes));
}

const ReduceCase kCases[] = {
    {"short rows", {37, 5}, {5, 1}, {1}},
    {"rows of a few lanes", {9, 67}, {67, 1}, {1}},
    {"rows of a block", {3, 2500}, {2500, 1}, {1}},
    {"rows off the boundary of a pack", {3, 2501}, {2503, 1}, {1}, 1},
    {"a line of segments", {40003}, {1}, {0}},
    {"two lines of segments", {2, 17001}, {17001, 1}, {1}},
    {"columns in packs", {40, 512}, {512, 1}, {0}},
    {"columns one by one", {41, 131}, {131, 1}, {0}},
    {"columns off the boundary of a pack", {20, 512}, {520, 1}, {0}, 1},
    {"columns in segments", {400, 36}, {36, 1}, {0}},
    {"planes of columns", {3, 150, 40}, {6000, 40, 1}, {1}},
    {"few rows of columns", {7, 64}, {64, 1}, {0}},
    {"two dims under a dense one", {4, 5, 6, 32}, {960, 192, 32, 1}, {0, 2}},
    {"first and last", {5, 7, 9}, {63, 9, 1}, {0, 2}},
    {"transposed rows", {33, 40}, {1, 33}, {1}},
    {"transposed columns", {33, 40}, {1, 33}, {0}},
    {"every second element", {12, 40}, {80, 2}, {1}},
    {"a row repeated", {30, 16}, {0, 1}, {0}},
    {"a column repeated", {30, 16}, {1, 0}, {1}},
    {"nothing but a copy", {6, 7}, {7, 1}, {}},
    {"size 1 dims", {1, 6, 1, 7}, {42, 7, 7, 1}, {0, 1, 2}},
    {"a scalar", {}, {}, {}},
};

TEST(SimtReduce, every_op_takes_every_type) {
  for (const Reduce op : kOps)
    for (const DType t : kAll)
      for (const int64_t n : {1, 7, 33, 300}) compare_reduce(op, t, {"rows", {3, n}, {n, 1}, {1}});
}

TEST(SimtReduce, every_form_agrees_with_the_cpu) {
  for (const ReduceCase& c : kCases) {
    for (const DType t : {kFloat32, kFloat16, kInt32}) compare_reduce(Reduce::kSum, t, c);
    compare_reduce(Reduce::kMax, kFloat64, c);
    compare_reduce(Reduce::kAny, kUInt8, c);
    compare_reduce(Reduce::kSumSquares, kBFloat16, c);
  }
}

TEST(SimtReduce, lengths_around_packs_warps_and_blocks) {
  for (const int64_t n :
       {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 127, 129, 255, 257, 511, 513, 1025, 2047, 2049, 4099})
    for (const DType t : {kFloat32, kFloat16, kFloat64, kUInt8}) {
      compare_reduce(Reduce::kSum, t, {"a line", {n}, {1}, {0}});
      compare_reduce(Reduce::kMin, t, {"columns", {17, n}, {n, 1}, {0}});
    }
}

TEST(SimtReduce, an_empty_reduction_gives_the_identity) {
  for (const Reduce op : {Reduce::kSum, Reduce::kProd, Reduce::kAny, Reduce::kAll, Reduce::kMax}) {
    compare_reduce(op, kFloat32, {"no elements", {3, 0}, {1, 1}, {1}});
    compare_reduce(op, kInt64, {"no elements", {0, 20}, {20, 1}, {0}});
    compare_reduce(op, kFloat32, {"no outputs", {0, 5}, {5, 1}, {1}});
  }
}

TEST(SimtReduce, a_nan_wins_and_sums_of_integers_wrap) {
  Operand x(kFloat32, {5}), y(kFloat32, {1});
  x.set({1, kNan, 9, -4, 2});
  Context c;
  for (const Reduce op : {Reduce::kMax, Reduce::kMin, Reduce::kMaxAbs, Reduce::kSum}) {
    device().reduce(c, op, x.on_device(), y.on_device());
    EXPECT_TRUE(y.device_values()[0] != y.device_values()[0]) << static_cast<int>(op);
  }
  Operand big(kInt64, {2}), total(kInt64, {1});
  big.set({0x1p62, 0x1p62});
  device().reduce(c, Reduce::kSum, big.on_device(), total.on_device());
  EXPECT_EQ(total.device_values()[0], -0x1p63);
}

TEST(SimtReduce, a_floating_total_saturates_in_an_integer_as_on_the_cpu) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType from : {kFloat32, kFloat64})
    for (const DType to : {kUInt8, kInt32, kInt64}) {
      Operand x(from, {6, 2}), y(to, {6, 1});
      x.set({1e20, 1e20, -1e20, -1, kNan, 1, 200, 100, inf, 1, -inf, 1});
      Context c;
      backend(kCpu).reduce(c, Reduce::kSum, x.host(), y.host());
      device().reduce(c, Reduce::kSum, x.on_device(), y.on_device());
      expect_same(y, 0, str(from, " to ", to));
    }
}

TEST(SimtReduce, has_the_same_bits_in_every_order_of_threads) {
  const ReduceCase many[] = {
      {"a line", {40003}, {1}, {0}}, {"columns", {400, 36}, {36, 1}, {0}}, {"rows", {9, 67}, {67, 1}, {1}}};
  for (const ReduceCase& c : many) {
    std::vector<std::vector<double>> results;
    for (const simt::Order order : {simt::Order::kForward, simt::Order::kReverse, simt::Order::kShuffled}) {
      const simt::Settings before = simt::settings();
      simt::settings().order = order;
      Operand x(kFloat32, c.sizes, c.strides), y(kFloat64, kept(c));
      x.random(-1, 1, 9);
      Context context;
      device().reduce(context, Reduce::kSum, x.on_device(), y.on_device());
      results.push_back(y.device_values());
      simt::settings() = before;
    }
    EXPECT_EQ(results[0], results[1]) << c.name;
    EXPECT_EQ(results[0], results[2]) << c.name;
  }
}

void compare_best(bool largest, DType dtype, const Shape& sizes, const Shape& strides, int dim,
                  bool with_values, int64_t offset = 0) {
  Shape out = sizes;
  out[dim] = 1;
  Operand x(dtype, sizes, strides, offset), values(dtype, out), indices(kInt64, out);
  x.random(-3, 3, 7);
  Context c;
  backend(kCpu).arg_reduce(c, largest, dim, x.host(), with_values ? values.host() : View{}, indices.host());
  device().arg_reduce(c, largest, dim, x.on_device(), with_values ? values.on_device() : View{},
                      indices.on_device());
  const std::string where = str(largest ? "max of " : "min of ", dtype, " ", sizes, " dim ", dim);
  expect_same(indices, 0, where);
  expect_same(values, 0, where);
}

TEST(SimtReduce, the_place_of_the_extreme_is_the_first_one) {
  for (const DType t : kAll)
    for (const bool largest : {true, false}) {
      for (const int64_t n : {1, 2, 7, 33, 131, 700}) compare_best(largest, t, {4, n}, {n, 1}, 1, true);
      compare_best(largest, t, {3, 2100}, {2100, 1}, 1, true);
      compare_best(largest, t, {3, 2101}, {2103, 1}, 1, true, 1);
      compare_best(largest, t, {6, 5, 4}, {20, 4, 1}, 1, false);
      compare_best(largest, t, {9, 40}, {1, 9}, 0, true);
    }
  compare_best(true, kFloat32, {20001}, {1}, 0, true);  // segments
  compare_best(false, kInt32, {2, 17001}, {17001, 1}, 1, true);
  compare_best(true, kFloat32, {3, 20000}, {20000, 1}, 0, true);  // a thread per output
}

TEST(SimtReduce, the_first_nan_is_the_extreme) {
  Operand x(kFloat32, {2, 6}), values(kFloat32, {2, 1}), indices(kInt64, {2, 1});
  x.set({1, 9, kNan, 3, kNan, 10, 4, 4, 2, 2, 4, 4});
  Context c;
  device().arg_reduce(c, true, 1, x.on_device(), values.on_device(), indices.on_device());
  EXPECT_EQ(indices.device_values(), (std::vector<double>{2, 0}));
  device().arg_reduce(c, false, 1, x.on_device(), View{}, indices.on_device());
  EXPECT_EQ(indices.device_values(), (std::vector<double>{2, 2}));
}

void compare_moments(DType t, const Shape& sizes, const Shape& strides, double correction) {
  Operand x(t, sizes, strides), mean(t, {sizes[0]}), var(t, {sizes[0]});
  x.random(99, 101, 3);
  Context c;
  backend(kCpu).mean_var(c, correction, x.host(), mean.host(), var.host());
  device().mean_var(c, correction, x.on_device(), mean.on_device(), var.on_device());
  const std::string where = str(t, " ", sizes);
  expect_same(mean, reduce_tolerance(t), where);
  expect_same(var, reduce_tolerance(t), where);
}

TEST(SimtReduce, moments_keep_their_digits_far_from_zero) {
  for (const DType t : kFloats) {
    for (const int64_t n : {1, 2, 5, 33, 127, 700, 2050}) {
      compare_moments(t, {3, n}, {n, 1}, 1);
      compare_moments(t, {3, n}, {n + 1, 1}, 0);
    }
    compare_moments(t, {5, 33}, {1, 5}, 1);
  }
  compare_moments(kFloat32, {2, 17001}, {17001, 1}, 1);  // segments
}

}  // namespace
}  // namespace weft::cuda
