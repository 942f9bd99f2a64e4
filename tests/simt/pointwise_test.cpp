// Pointwise kernels, copies, fill and arange of the CUDA backend against the CPU's, over sizes around packs,
// warps and blocks, and over layouts.
#include <gtest/gtest.h>

#include <weft/kernels/cuda/layout.h>
#include "simt/compare.h"
#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using simt::device;
using simt::expect_same;
using simt::Operand;

constexpr int64_t kLengths[] = {1,  2,  3,   4,   5,   7,   8,   15,  16,   17,
                                31, 33, 127, 129, 255, 256, 257, 511, 1025, 4099};

double pointwise_tolerance(DType t) {
  return t == kFloat16 ? 1e-3 : t == kBFloat16 ? 8e-3 : t == kFloat32 ? 1e-6 : 1e-14;
}

struct Shapes {
  const char* name;
  Shape sizes, out, in;
  int64_t offset = 0;
};
/// Layouts of a [6, 5, 16] or like result and one operand of it.
const Shapes kLayouts[] = {
    {"dense", {6, 5, 16}, {80, 16, 1}, {80, 16, 1}},
    {"dense, off the boundary of a pack", {6, 5, 16}, {80, 16, 1}, {80, 16, 1}, 1},
    {"a row repeated", {30, 16}, {16, 1}, {0, 1}},
    {"a column repeated", {30, 16}, {16, 1}, {1, 0}},
    {"one element repeated", {30, 17}, {17, 1}, {0, 0}},
    {"rows with a gap", {30, 16}, {16, 1}, {24, 1}},
    {"rows with an odd gap", {30, 16}, {16, 1}, {19, 1}},
    {"rows of odd length", {30, 15}, {15, 1}, {16, 1}},
    {"the output with gaps", {30, 16}, {32, 1}, {16, 1}},
    {"every second element", {12, 40}, {40, 1}, {80, 2}},
    {"transposed", {33, 40}, {40, 1}, {1, 33}},
    {"transposed output", {40, 33}, {1, 40}, {33, 1}},
    {"both transposed", {40, 32}, {1, 40}, {1, 40}},
    {"middle dims exchanged", {3, 4, 5, 8}, {160, 40, 8, 1}, {160, 8, 32, 1}},
    {"planes transposed", {3, 20, 24}, {480, 24, 1}, {480, 1, 20}},
    {"six dims", {2, 3, 2, 2, 3, 4}, {144, 48, 24, 12, 4, 1}, {4, 8, 24, 48, 96, 1}},
    {"a scalar", {}, {}, {}},
};

void compare_unary(Unary op, DType dtype, DType out, const Shapes& s, double low, double high,
                   double relative) {
  Operand x(dtype, s.sizes, s.in, s.offset), y(out, s.sizes, s.out, s.offset);
  x.random(low, high, 3);
  Context c;
  backend(kCpu).unary(c, op, 0.5, 1.5, x.host(), y.host());
  device().unary(c, op, 0.5, 1.5, x.on_device(), y.on_device());
  expect_same(
      y, relative,
      std::string(to_string(op)) + " of " + to_string(dtype) + ", " + s.name + " " + to_string(s.sizes));
}
Shapes line(int64_t n) { return {"line", {n}, {1}, {1}}; }

TEST(SimtPointwise, unary_rows_take_every_length) {
  for (const int64_t n : kLengths)
    for (const DType t : {kFloat16, kBFloat16, kFloat32, kFloat64, kInt32, kInt64, kUInt8}) {
      compare_unary(Unary::kAddScalar, t, t, line(n), -8, 8, pointwise_tolerance(t));
      compare_unary(Unary::kGtScalar, t, kBool, line(n), -2, 2, 0);
    }
}

TEST(SimtPointwise, unary_rows_take_every_layout) {
  for (const Shapes& s : kLayouts)
    for (const DType t : {kFloat16, kFloat32, kFloat64, kUInt8, kInt32}) {
      compare_unary(Unary::kRelu, t, t, s, -4, 4, 0);
      compare_unary(Unary::kLogicalNot, t, kBool, s, -2, 2, 0);
    }
}

TEST(SimtPointwise, threads_go_on_where_the_work_exceeds_the_grid) {
  for (const DType t : {kFloat32, kFloat16, kFloat64, kUInt8}) {
    compare_unary(Unary::kSquare, t, t, line(150001), -4, 4, 0);
    compare_unary(Unary::kSquare, t, t, {"gaps", {9001}, {2}, {1}}, -4, 4, 0);
    for (const int64_t width : {4, 8, 16})  // an odd number of packs, and a last warp without a second one
      for (const int64_t packs : {33, 65, 97})
        compare_unary(Unary::kSquare, t, t, line(width * packs), -4, 4, 0);
  }
}

TEST(SimtPointwise, every_unary_row_agrees_with_the_cpu_in_every_type_it_takes) {
  for (int i = 0; i < static_cast<int>(Unary::kCount); ++i)
    for (const DType t : kAll) {
      const auto op = static_cast<Unary>(i);
      const OpClass cls = op_class(op);
      if (!takes(cls, t)) {
        Operand x(t, {4}), y(t, {4});
        Context c;
        EXPECT_THROW(device().unary(c, op, 0, 0, x.on_device(), y.on_device()), DTypeError);
        continue;
      }
      compare_unary(op, t, cls == OpClass::kTest ? kBool : t, line(77), 0.25, 3, pointwise_tolerance(t));
    }
}

TEST(SimtPointwise, an_output_of_another_dtype_is_converted) {
  for (const DType from : {kFloat16, kFloat32, kFloat64, kInt32})
    for (const DType to : kAll)
      compare_unary(Unary::kAddScalar, from, to, kLayouts[11], 1, 9,
                    pointwise_tolerance(from) + pointwise_tolerance(to));
}

TEST(SimtPointwise, special_values_come_out_as_on_the_cpu) {
  for (const DType t : {kFloat32, kFloat64})
    for (int i = 0; i < static_cast<int>(Unary::kCount); ++i) {
      const auto op = static_cast<Unary>(i);
      Operand x(t, {9}), y(op_class(op) == OpClass::kTest ? kBool : t, {9});
      const double inf = std::numeric_limits<double>::infinity(),
                   values[] = {0, -0.0, inf, -inf, std::nan(""), 1e-30, -700, 90, 3e38};
      x.set(values);
      Context c;
      backend(kCpu).unary(c, op, 0.5, 1.5, x.host(), y.host());
      device().unary(c, op, 0.5, 1.5, x.on_device(), y.on_device());
      expect_same(y, 1e-6, to_string(op));
    }
}

TEST(SimtPointwise, every_binary_row_agrees_with_the_cpu_over_types_and_layouts) {
  for (int i = 0; i < static_cast<int>(Binary::kCount); ++i)
    for (const DType t : kAll) {
      const auto op = static_cast<Binary>(i);
      const OpClass cls = op_class(op);
      if (!takes(cls, t)) continue;
      const Shapes& s = kLayouts[static_cast<size_t>(i) % std::size(kLayouts)];
      Operand a(t, s.sizes, s.in, s.offset), b(t, s.sizes, s.out, s.offset),
          y(cls == OpClass::kTest ? kBool : t, s.sizes, s.out, s.offset);
      a.random(0.25, 4, 5), b.random(0.25, 4, 6);
      Context c;
      backend(kCpu).binary(c, op, 2, 3, a.host(), b.host(), y.host());
      device().binary(c, op, 2, 3, a.on_device(), b.on_device(), y.on_device());
      expect_same(y, 2 * pointwise_tolerance(t),
                  std::string(to_string(op)) + " of " + to_string(t) + ", " + s.name);
    }
}

TEST(SimtPointwise, binary_rows_mix_the_half_types_with_float) {
  for (const DType t : {kFloat16, kBFloat16, kFloat32, kFloat64, kInt32}) {
    Operand a(kFloat32, {5, 24}), b(t, {5, 24}, {0, 1}), y(kFloat32, {5, 24});
    a.random(-3, 3, 7), b.random(-3, 3, 8);
    Context c;
    backend(kCpu).binary(c, Binary::kAdd, 2, 0, a.host(), b.host(), y.host());
    device().binary(c, Binary::kAdd, 2, 0, a.on_device(), b.on_device(), y.on_device());
    expect_same(y, 1e-6, to_string(t));
  }
}

TEST(SimtPointwise, a_large_transposed_operand_is_read_tile_by_tile) {
  Operand a(kFloat32, {190, 180}, {1, 190}), b(kFloat32, {190, 180}, {0, 1}), y(kFloat32, {190, 180});
  a.random(-3, 3, 7), b.random(-3, 3, 8);
  Context c;
  backend(kCpu).binary(c, Binary::kMul, 0, 0, a.host(), b.host(), y.host());
  const int64_t before = simt::launches();
  device().binary(c, Binary::kMul, 0, 0, a.on_device(), b.on_device(), y.on_device());
  EXPECT_EQ(simt::launches() - before, 2);
  expect_same(y, 0, "mul");
}

TEST(SimtPointwise, an_operation_in_place_reads_before_it_writes) {
  for (const int64_t n : kLengths) {
    Operand x(kFloat32, {n});
    x.random(-3, 3, 9);
    Context c;
    backend(kCpu).binary(c, Binary::kMul, 0, 0, x.host(), x.host(), x.host());
    device().binary(c, Binary::kMul, 0, 0, x.on_device(), x.on_device(), x.on_device());
    expect_same(x, 0, "square in place");
  }
}

TEST(SimtPointwise, integers_wrap_around) {
  for (const DType t : {kInt32, kInt64, kUInt8}) {
    Operand x(t, {3}), y(t, {3});
    const double values[] = {2147483647, 200, 9e18};
    x.set(values);
    Context c;
    backend(kCpu).binary(c, Binary::kAdd, 3, 0, x.host(), x.host(), y.host());
    device().binary(c, Binary::kAdd, 3, 0, x.on_device(), x.on_device(), y.on_device());
    expect_same(y, 0, to_string(t));
  }
}

TEST(SimtPointwise, ternary_rows_agree_with_the_cpu) {
  for (int i = 0; i < static_cast<int>(Ternary::kCount); ++i)
    for (const Shapes& s : kLayouts)
      for (const DType t : {kFloat16, kFloat32, kFloat64, kInt32, kUInt8}) {
        const auto op = static_cast<Ternary>(i);
        if (!is_floating(t) && op_class(op) == OpClass::kFloat) continue;
        Operand a(t, s.sizes, s.in, s.offset), b(t, s.sizes, s.out, s.offset), d(t, s.sizes, s.in, s.offset),
            y(t, s.sizes, s.out, s.offset);
        a.random(1, 4, 5), b.random(1, 4, 6), d.random(1, 4, 7);
        Context c;
        backend(kCpu).ternary(c, op, 2, a.host(), b.host(), d.host(), y.host());
        device().ternary(c, op, 2, a.on_device(), b.on_device(), d.on_device(), y.on_device());
        expect_same(y, 2 * pointwise_tolerance(t),
                    std::string(to_string(op)) + " of " + to_string(t) + ", " + s.name);
      }
}

TEST(SimtPointwise, where_chooses_in_every_type_and_layout) {
  for (const DType t : kAll)
    for (const Shapes& s : kLayouts) {
      Operand cond(kBool, s.sizes, s.in, s.offset), a(t, s.sizes, s.in, s.offset),
          b(t, s.sizes, s.out, s.offset), y(t, s.sizes, s.out, s.offset);
      cond.random(-1, 1, 4), a.random(0, 9, 5), b.random(0, 9, 6);
      Context c;
      backend(kCpu).where(c, cond.host(), a.host(), b.host(), y.host());
      device().where(c, cond.on_device(), a.on_device(), b.on_device(), y.on_device());
      expect_same(y, 0, std::string(to_string(t)) + ", " + s.name);
    }
}

void compare_copy(DType from, DType to, const Shapes& s) {
  Operand x(from, s.sizes, s.in, s.offset), y(to, s.sizes, s.out, s.offset);
  x.random(-300, 300, 11);
  Context c;
  backend(kCpu).copy(c, x.host(), y.host());
  device().copy(c, x.on_device(), y.on_device());
  expect_same(
      y, 0, std::string(to_string(from)) + " to " + to_string(to) + ", " + s.name + " " + to_string(s.sizes));
}

TEST(SimtPointwise, copy_converts_between_all_types_in_every_layout) {
  for (const DType from : kAll)
    for (const DType to : kAll)
      for (const Shapes& s : kLayouts) compare_copy(from, to, s);
}

TEST(SimtPointwise, floating_numbers_outside_an_integers_range_saturate_as_on_the_cpu) {
  const double inf = std::numeric_limits<double>::infinity(),
               values[] = {1e20, -1e20, std::nan(""), 300, -3, inf, -inf, 0x1p31, -0x1p31, 0x1p63, 255.5};
  for (const DType from : {kFloat16, kBFloat16, kFloat32, kFloat64})
    for (const DType to : {kBool, kUInt8, kInt32, kInt64}) {
      Operand x(from, {11}), y(to, {11});
      x.set(values);
      Context c;
      const std::string where = str(from, " to ", to);
      backend(kCpu).copy(c, x.host(), y.host());
      device().copy(c, x.on_device(), y.on_device());
      expect_same(y, 0, "copy, " + where);
    }
}

TEST(SimtPointwise, copy_takes_every_length) {
  for (const int64_t n : kLengths) {
    compare_copy(kFloat32, kFloat16, line(n));
    compare_copy(kUInt8, kFloat64, line(n));
    compare_copy(kInt64, kInt64, {"gaps", {n}, {1}, {2}});
    compare_copy(kFloat16, kFloat16, {"repeated", {n}, {1}, {0}});
  }
  compare_copy(kFloat32, kFloat16, line(70001));
  compare_copy(kFloat32, kFloat32, {"rows with a gap", {2101, 32}, {32, 1}, {36, 1}});
  compare_copy(kFloat32, kFloat32, {"gaps", {9001}, {1}, {2}});
}

TEST(SimtPointwise, transposes_of_every_width_and_side) {
  for (const DType t : {kUInt8, kFloat16, kFloat32, kFloat64})
    for (const int64_t rows : {8, 31, 32, 33, 64, 65, 130})
      for (const int64_t columns : {8, 32, 63, 66})
        compare_copy(t, t, {"transposed", {rows, columns}, {columns, 1}, {1, rows}});
  compare_copy(kFloat32, kFloat16, {"transposed", {190, 180}, {180, 1}, {1, 190}});
  for (const DType t : {kFloat16, kFloat32}) {  // packs of both types fit
    compare_copy(t, t, {"in packs", {72, 136}, {136, 1}, {1, 72}});
    compare_copy(t, t, {"planes in packs", {3, 24, 16}, {384, 16, 1}, {384, 1, 24}});
    compare_copy(t, t, {"in packs with gaps", {72, 40}, {48, 1}, {1, 80}});
    compare_copy(t, t, {"off the boundary of a pack", {72, 40}, {40, 1}, {1, 72}, 1});
    compare_copy(t, t, {"rows off the boundary", {72, 40}, {41, 1}, {1, 72}});
  }
}

TEST(SimtPointwise, fill_writes_every_type_and_layout) {
  for (const DType t : kAll)
    for (const Shapes& s : kLayouts)
      for (const double value : {0.0, 1.0, 77.0}) {
        Operand y(t, s.sizes, s.out, s.offset);
        y.random(2, 3, 1);
        Context c;
        backend(kCpu).fill(c, value, y.host());
        device().fill(c, value, y.on_device());
        expect_same(y, 0, std::string(to_string(t)) + ", " + s.name);
      }
}

TEST(SimtPointwise, arange_counts_in_every_type) {
  for (const DType t : kAll)
    for (const int64_t n : {0, 1, 33, 300})
      for (const bool whole : {true, false}) {
        Operand y(t, {n}, {2});
        Context c;
        const Scalar start = whole ? Scalar(3) : Scalar(0.5), step = whole ? Scalar(2) : Scalar(0.125);
        backend(kCpu).arange(c, start, step, y.host());
        device().arange(c, start, step, y.on_device());
        expect_same(y, t == kFloat32 ? 1e-6 : 0, to_string(t));
      }
}

TEST(SimtPointwise, empty_operands_launch_nothing) {
  const int64_t before = simt::launches();
  Operand x(kFloat32, {0, 3}), y(kFloat32, {0, 3}), z(kFloat16, {0, 3}), cond(kBool, {0, 3});
  Context c;
  device().unary(c, Unary::kExp, 0, 0, x.on_device(), y.on_device());
  device().binary(c, Binary::kAdd, 1, 0, x.on_device(), x.on_device(), y.on_device());
  device().ternary(c, Ternary::kLerp, 0, x.on_device(), x.on_device(), x.on_device(), y.on_device());
  device().where(c, cond.on_device(), x.on_device(), x.on_device(), y.on_device());
  device().copy(c, x.on_device(), z.on_device());
  device().fill(c, 1, y.on_device());
  EXPECT_EQ(simt::launches(), before);
}

TEST(SimtPointwise, positions_beyond_31_bits_are_located) {
  const Shape sizes{70000, 3, 50000}, strides{1, 70000, 210000};
  View v{nullptr, kFloat32, sizes, strides};
  const View* const views[] = {&v};
  const Layout<1> l = layout_of(views, false);
  ASSERT_FALSE(l.narrow);
  int64_t at[1];
  for (const int64_t i :
       {int64_t{0}, int64_t{149999}, int64_t{150000}, int64_t{10499999999}, int64_t{5000000001}}) {
    l.locate(i, at);
    EXPECT_EQ(at[0], i / 150000 + i / 50000 % 3 * 70000 + i % 50000 * 210000);
  }
}

TEST(SimtPointwise, division_by_a_fixed_number_is_exact) {
  for (const int64_t d : {1, 2, 3, 5, 7, 10, 641, 65535, 65536, 65537, 1000003, 2147483647}) {
    const Divider by(d);
    for (const int64_t n : {int64_t{0}, int64_t{1}, d - 1, d, d + 1, 2 * d - 1, 2 * d, int64_t{2147483646},
                            int64_t{2147483647}})
      if (n <= 2147483647) {
        EXPECT_EQ(by.quotient(static_cast<uint32_t>(n)), n / d) << n << " / " << d;
      }
  }
}

}  // namespace
}  // namespace weft::cuda
