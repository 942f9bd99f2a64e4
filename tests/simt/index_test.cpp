// Rows, gathers, scatters and triangles on the emulated device against the CPU. Sizes lie around the borders
// of packs, warps, blocks and grids. Some rows cannot be moved 16 bytes at a time; some indices repeat or are
// out of range.
#include "compare.h"

#include <weft/weft.h>

#include "support/simt/device.h"

namespace weft::cuda {
namespace {

void check_take(CudaBackend& device, DType type, DType index_type, int64_t v, int64_t n, int64_t k,
                int64_t padding, bool transposed) {
  Context c;
  Operand x(type, {v, k}, transposed ? Shape{1, v} : Shape{k + padding, 1}),
      y(type, {n, k}, {k + padding, 1}), index(index_type, {n}, {2});
  x.random(-9, 9, 1), index.random(0, static_cast<double>(v), 2);
  backend(kCpu).take_rows(c, x.host(), index.host(), y.host());
  device.take_rows(c, x.on_device(), index.on_device(), y.on_device());
  expect_same(y);
}

TEST(SimtIndex, rows_are_taken_whatever_their_width) {
  each_device([](CudaBackend& device) {
    for (const int64_t k : {1, 2, 3, 4, 5, 8, 31, 32, 33, 64, 257, 1100})
      for (const int64_t n : {1, 31, 300}) {
        SCOPED_TRACE(std::to_string(n) + " rows of " + std::to_string(k));
        check_take(device, kFloat32, kInt64, 11, n, k, 0, false);
        check_take(device, kFloat16, kInt32, 11, n, k, 0, false);
        check_take(device, kFloat64, kInt64, 7, n, k, 1, false);
        check_take(device, kUInt8, kInt32, 7, n, k, 0, true);
      }
    check_take(device, kFloat32, kInt64, 5, 3, 40000, 0, false);  // few rows: a second grid dimension
    check_take(device, kInt64, kInt64, 5, 20000, 1, 0, false);
  });
}

TEST(SimtIndex, rows_off_a_16_byte_border_are_taken) {
  each_device([](CudaBackend& device) {
    Context c;
    Operand x(kFloat32, {5, 8}, {9, 1}, 1), y(kFloat32, {4, 8}), index(kInt64, {4});
    x.random(-1, 1, 1), index.random(0, 5, 2);
    backend(kCpu).take_rows(c, x.host(), index.host(), y.host());
    device.take_rows(c, x.on_device(), index.on_device(), y.on_device());
    expect_same(y);
  });
}

void check_add(CudaBackend& device, DType type, DType index_type, int64_t v, int64_t n, int64_t k,
               int64_t skip, int64_t padding = 0, bool transposed = false, double tolerance = 0) {
  SCOPED_TRACE(std::to_string(n) + " rows of " + std::to_string(k) + " into " + std::to_string(v));
  Context c;
  Operand dy(type, {n, k}, transposed ? Shape{1, n} : Shape{k + padding, 1}), y(type, {v, k}),
      index(index_type, {n}, {3});
  dy.random(-9, 9, 1), y.random(-9, 9, 3);
  index.random(0, static_cast<double>(v), 2);
  if (skip == -1)
    index.each([&](size_t i, double old) { return static_cast<int64_t>(i) == n / 2 * 3 ? -1 : old; });
  if (is_half(type)) {  // added up in float and rounded once
    Operand wide_dy(kFloat32, {n, k}), wide(kFloat32, {v, k});
    backend(kCpu).copy(c, dy.host(), wide_dy.host());
    backend(kCpu).copy(c, y.host(), wide.host());
    backend(kCpu).add_rows(c, index.host(), wide_dy.host(), skip, wide.host());
    backend(kCpu).copy(c, wide.host(), y.host());
  } else {
    backend(kCpu).add_rows(c, index.host(), dy.host(), skip, y.host());
  }
  device.add_rows(c, index.on_device(), dy.on_device(), skip, y.on_device());
  expect_same(y, tolerance);
}

TEST(SimtIndex, rows_are_added_with_the_bits_of_the_plain_loop) {
  each_device([](CudaBackend& device) {
    for (const int64_t n : {1, 2, 31, 33, 256, 700}) {
      check_add(device, kFloat32, kInt64, 50, n, 8, 3);
      check_add(device, kFloat32, kInt32, 2, n, 7, -1);
      check_add(device, kFloat64, kInt64, 9, n, 34, INT64_MIN);
      check_add(device, kFloat16, kInt64, 9, n, 16, 0);
      check_add(device, kBFloat16, kInt32, 70, n, 5, -100);
      check_add(device, kInt64, kInt64, 7, n, 3, 1, 2);
      check_add(device, kUInt8, kInt64, 7, n, 3, 1, 0, true);
      check_add(device, kBool, kInt64, 7, n, 3, 1);
    }
    check_add(device, kFloat32, kInt64, 1, 300, 1300, -1);
    check_add(device, kFloat32, kInt64, 3000, 40, 4, -1);
  });
}

TEST(SimtIndex, long_runs_are_added_in_pieces) {
  each_device([](CudaBackend& device) {
    for (const int64_t n : {1024, 1025, 1026, 1536, 1537, 2600}) {
      check_add(device, kInt64, kInt64, 1, n, 3, -1);
      check_add(device, kFloat32, kInt64, 1, n, 4, -1, 0, false, 1e-4);
      check_add(device, kFloat16, kInt32, 2, n, 16, -1, 0, false, 0.05);
    }
    check_add(device, kFloat64, kInt64, 2, 3300, 3, 1, 0, true, 1e-12);
    check_add(device, kBool, kInt64, 2, 2700, 5, -1);
  });
}

TEST(SimtIndex, many_rows_are_grouped_by_digits) {
  each_device([](CudaBackend& device) {
    check_add(device, kFloat32, kInt64, 5, 4097, 4, 2);
    check_add(device, kFloat32, kInt32, 300, 4500, 3, -1);
    check_add(device, kFloat64, kInt64, 70000, 6200, 1, 7);
  });
}

TEST(SimtIndex, the_text_of_an_index_error_is_that_of_the_cpu) {
  each_device([](CudaBackend& device) {
    Context c;
    Operand x(kFloat32, {5, 3}), y(kFloat32, {4, 3}), index(kInt64, {4});
    x.random(-1, 1, 1), y.random(-1, 1, 2);
    for (const int64_t bad : {int64_t{5}, int64_t{-1}, int64_t{1} << 40}) {
      index.set({1, 1, static_cast<double>(bad), 1});
      const auto same = [&](const auto& op, const auto& shaped) {
        const std::string want =
            error_of<IndexError>([&] { op(backend(kCpu), x.host(), shaped(index.host()), y.host()); });
        EXPECT_EQ(error_of<IndexError>(
                      [&] { op(device, x.on_device(), shaped(index.on_device()), y.on_device()); }),
                  want);
        EXPECT_TRUE(has(want, std::to_string(bad)));
      };
      const auto whole = [](View v) { return v; };
      const auto column = [](View v) { return v.sizes = {4, 1}, v.strides = {1, 1}, v; };
      const auto narrow = [](View v) { return v.sizes[1] = 1, v; };
      same([&](Backend& b, View v, View i, View w) { b.take_rows(c, v, i, w); }, whole);
      same([&](Backend& b, View v, View i, View w) { b.add_rows(c, i, w, -100, v); }, whole);
      same([&](Backend& b, View v, View i, View w) { b.gather(c, 0, narrow(v), i, narrow(w)); }, column);
      same([&](Backend& b, View v, View i,
               View w) { b.scatter(c, ScatterRule::kAdd, 0, i, narrow(w), narrow(v)); },
           column);
      same([&](Backend& b, View v, View i,
               View w) { b.scatter(c, ScatterRule::kAssign, 0, i, narrow(w), narrow(v)); },
           column);
    }
  });
}

TEST(SimtIndex, rows_with_a_bad_index_are_left_out_and_the_others_done) {
  each_device([](CudaBackend& device) {
    Context c;
    Operand x(kFloat32, {5, 3}), y(kFloat32, {40, 3}), index(kInt32, {40});
    x.fill(1), y.fill(7), index.random(0, 5, 1);
    index.each([](size_t i, double old) { return i == 33 ? 77 : old; });
    EXPECT_THROW(device.take_rows(c, x.on_device(), index.on_device(), y.on_device()), IndexError);
    const std::vector<double> got = y.device_values();
    for (size_t i = 0; i < 120; ++i) ASSERT_EQ(got[i], i / 3 == 33 ? 7 : 1);
    index.each([](size_t i, double old) { return i == 33 ? 0 : old; });
    EXPECT_NO_THROW(device.take_rows(c, x.on_device(), index.on_device(), y.on_device()));
  });
}

TEST(SimtIndex, rows_of_nothing_and_no_rows_do_nothing) {
  Context c;
  CudaBackend& device = simt::device();
  const Operand none(kFloat32, {0, 3}), flat(kFloat32, {5, 0}), x(kFloat32, {5, 3}), index(kInt64, {0});
  Operand four(kInt64, {4});
  four.fill(4);
  const int64_t before = simt::launches();
  device.take_rows(c, x.on_device(), index.on_device(), none.on_device());
  device.add_rows(c, index.on_device(), none.on_device(), -1, x.on_device());
  EXPECT_EQ(simt::launches(), before);
  View out = flat.on_device();
  out.sizes[0] = 4;
  device.take_rows(c, flat.on_device(), four.on_device(), out);
  device.add_rows(c, four.on_device(), out, -1, flat.on_device());
  four.set({4, 5});
  EXPECT_THROW(device.take_rows(c, flat.on_device(), four.on_device(), out), IndexError);
  EXPECT_THROW(device.add_rows(c, four.on_device(), out, -1, flat.on_device()), IndexError);
}

void check_along(CudaBackend& device, DType type, DType index_type, const Shape& sizes, const Shape& picked,
                 int dim, const Shape& strides = {}, int64_t spacing = 2) {
  SCOPED_TRACE(str(picked, " of ", sizes, " along ", dim, ", ", type));
  Context c;
  Shape index_strides = contiguous_strides(picked);
  for (int64_t& s : index_strides) s *= spacing;
  Operand x(type, sizes, strides), y(type, picked), index(index_type, picked, index_strides);
  x.random(-9, 9, 1), index.random(0, static_cast<double>(sizes[dim]), 2);
  const auto reached = [&](View v) {
    for (int d = 0; d < v.ndim(); ++d)
      if (d != dim) v.sizes[d] = picked[d];
    return v;
  };
  backend(kCpu).gather(c, dim, reached(x.host()), index.host(), y.host());
  device.gather(c, dim, reached(x.on_device()), index.on_device(), y.on_device());
  expect_same(y);

  for (const ScatterRule rule :
       {ScatterRule::kAssign, ScatterRule::kAdd, ScatterRule::kMul, ScatterRule::kMax, ScatterRule::kMin}) {
    // an absolute bound says nothing of a product; the op table has these
    if (is_half(type) && rule == ScatterRule::kMul) continue;
    Operand to(type, sizes, strides);
    to.random(-9, 9, 3);
    backend(kCpu).scatter(c, rule, dim, index.host(), y.host(), reached(to.host()));
    device.scatter(c, rule, dim, index.on_device(), y.on_device(), reached(to.on_device()));
    // halves of a long line are rounded once
    expect_same(to, is_half(type) && rule == ScatterRule::kAdd ? 0.05 : 0);
  }
}

TEST(SimtIndex, gathers_and_scatters_follow_every_dim) {
  each_device([](CudaBackend& device) {
    for (int dim = 0; dim < 3; ++dim) {
      Shape picked{5, 7, 3};
      picked[dim] = 4;
      check_along(device, kFloat32, kInt64, {5, 7, 3}, picked, dim, {1, 5, 35});
      check_along(device, kFloat64, kInt32, {6, 7, 4}, picked, dim);
      check_along(device, kFloat16, kInt64, {6, 7, 4}, picked, dim);
      check_along(device, kBool, kInt64, {6, 7, 4}, picked, dim);
    }
    check_along(device, kInt64, kInt64, {3000}, {2500}, 0);
    check_along(device, kInt32, kInt32, {9, 5}, {9, 1}, 1);
  });
}

TEST(SimtIndex, long_lines_scatter_in_order_too) {
  each_device([](CudaBackend& device) {
    check_along(device, kFloat32, kInt64, {10}, {900}, 0);      // one line, many equal indices
    check_along(device, kFloat32, kInt32, {40000}, {5000}, 0);  // sorted by digits
    check_along(device, kFloat64, kInt64, {3, 50, 2}, {3, 100, 2}, 1, {100, 1, 50});
    check_along(device, kBFloat16, kInt64, {4, 6}, {4, 60}, 1);
    check_along(device, kUInt8, kInt64, {60, 4}, {33, 4}, 0);
    check_along(device, kFloat32, kInt64, {1030, 6}, {1030, 33}, 1);         // many lines
    check_along(device, kFloat32, kInt64, {1030, 6}, {1030, 33}, 1, {}, 1);  // and along memory: a warp each
    check_along(device, kBFloat16, kInt32, {1024, 50}, {1024, 40}, 1, {}, 1);
    check_along(device, kBool, kInt64, {1025, 5}, {1025, 64}, 1, {}, 1);
    check_along(device, kInt64, kInt32, {1024, 3}, {1024, 34}, 1, {}, 1);
  });
}

void check_triangle(CudaBackend& device, DType type, const Shape& sizes, const Shape& strides) {
  Context c;
  const int64_t n = sizes[sizes.size() - 2];
  Operand x(type, sizes, strides), y(type, sizes);
  x.random(1, 9, 1);
  for (const int64_t k :
       {-n - 1, -n + 1, int64_t{-1}, int64_t{0}, int64_t{2}, sizes.back() - 1, sizes.back() + 1})
    for (const bool upper : {false, true}) {
      backend(kCpu).triangle(c, upper, k, x.host(), y.host());
      device.triangle(c, upper, k, x.on_device(), y.on_device());
      expect_same(y, 0, str(sizes, upper ? " upper " : " lower ", k));
    }
}

TEST(SimtIndex, triangles_keep_their_side_of_the_diagonal) {
  each_device([](CudaBackend& device) {
    check_triangle(device, kFloat32, {7, 8}, {});
    check_triangle(device, kFloat32, {2, 5, 7}, {35, 1, 5});
    check_triangle(device, kFloat16, {3, 33, 16}, {});
    check_triangle(device, kUInt8, {2, 2, 3, 48}, {});
    check_triangle(device, kInt64, {1, 700}, {});
    check_triangle(device, kFloat64, {301, 1}, {});
  });
}

TEST(SimtIndex, sums_of_many_half_numbers_are_rounded_once) {
  simt::install();
  for (const DType t : {kBFloat16, kFloat16}) {
    const TensorOptions half{.dtype = t, .device = "cuda:0"};
    const Tensor at = zeros({3000}, {.dtype = kInt64, .device = "cuda:0"});
    const Tensor src = ones({3000}, half), to = zeros({1}, half);
    const double all = full({1}, 3000, half).item<double>();
    EXPECT_EQ(scatter_add(to, 0, at, src).item<double>(), all);
    EXPECT_EQ(index_add(to, 0, at, src).item<double>(), all);
    EXPECT_EQ(bincount(at, src).item<double>(), all);
    EXPECT_EQ(scatter_reduce(to, 0, at, src, ScatterReduce::kMean, false).item<double>(), 1);
    const Tensor x = ones({70000}, {.dtype = t, .device = "cuda:0", .requires_grad = true});
    max(x).backward(full({}, 512, half));
    EXPECT_EQ(x.grad().max().item<double>(), full({1}, 512. / 70000, half).item<double>());
  }
}

}  // namespace
}  // namespace weft::cuda
