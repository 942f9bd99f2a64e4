// Softmax, cross entropy and layer norm of the CUDA backend against the CPU's. Rows are of a few lanes, of a
// warp and of a block, on and off the borders of packs, or strided. A bad target is an error.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "simt/compare.h"
#include "support/errors.h"
#include "support/simt/operand.h"
#include "support/simt/thread.h"

namespace weft::cuda {
namespace {

using simt::device;
using simt::expect_same;
using simt::Operand;

double row_tolerance(DType t) {
  return t == kFloat16 ? 2e-3 : t == kBFloat16 ? 1.6e-2 : t == kFloat32 ? 4e-6 : 1e-13;
}

struct Rows {
  Shape sizes, strides;
  int64_t offset = 0;
};
std::string to_string(const Rows& r) { return str(r.sizes, " strides ", r.strides, " from ", r.offset); }

std::vector<Rows> row_cases() {
  std::vector<Rows> cases;
  for (const int64_t n : {1, 2, 3, 5, 8, 9, 16, 31, 33, 64, 67, 127, 130, 257, 511})
    cases.push_back({{3, n}, {n, 1}});
  cases.push_back({{70, 12}, {12, 1}});
  cases.push_back({{600, 20}, {20, 1}});       // more rows than teams of a block
  cases.push_back({{2, 700}, {700, 1}});       // a block per row
  cases.push_back({{2, 2051}, {2053, 1}, 3});  // off the borders of packs
  cases.push_back({{5, 33}, {1, 5}});          // columns apart
  cases.push_back({{4, 40}, {81, 2}});
  return cases;
}

void compare_softmax(DType t, const Rows& r, CudaBackend& gpu = device(), double low = -8) {
  const std::string where = str(t, " ", r);
  Context c;
  for (const bool log : {false, true}) {
    Operand x(t, r.sizes, r.strides, r.offset), y(t, r.sizes, r.strides, r.offset),
        dy(t, r.sizes, r.strides, r.offset), dx(t, r.sizes, r.strides, r.offset);
    x.random(low, low + 16, 1), dy.random(-1, 1, 2);
    backend(kCpu).softmax(c, log, x.host(), y.host());
    gpu.softmax(c, log, x.on_device(), y.on_device());
    expect_same(y, row_tolerance(t), where + (log ? " log" : ""));
    backend(kCpu).softmax_backward(c, log, y.host(), dy.host(), dx.host());
    gpu.softmax_backward(c, log, y.on_device(), dy.on_device(), dx.on_device());
    expect_same(dx, 8 * row_tolerance(t), where + " backward");
    backend(kCpu).softmax_backward(c, log, y.host(), dy.host(), dy.host());
    gpu.softmax_backward(c, log, y.on_device(), dy.on_device(), dy.on_device());
    expect_same(dy, 8 * row_tolerance(t), where + " backward in place");
    Operand lse(t, {r.sizes[0]});
    backend(kCpu).logsumexp(c, x.host(), lse.host());
    gpu.logsumexp(c, x.on_device(), lse.on_device());
    expect_same(lse, row_tolerance(t), where + " logsumexp");
    backend(kCpu).softmax(c, log, x.host(), x.host());
    gpu.softmax(c, log, x.on_device(), x.on_device());
    expect_same(x, row_tolerance(t), where + " in place");
  }
}

TEST(SimtRows, softmax_takes_every_length_and_layout) {
  for (const DType t : kFloats)
    for (const Rows& r : row_cases()) compare_softmax(t, r);
}

TEST(SimtRows, softmax_keeps_rows_up_to_what_a_block_holds) {
  compare_softmax(kFloat32, {{513, 516}, {516, 1}});  // many rows: few threads for each
  compare_softmax(kFloat16, {{513, 520}, {520, 1}});
  compare_softmax(kFloat64, {{2, 260}, {262, 1}, 2});
  for (const int64_t n : {8192, 8200})
    compare_softmax(kFloat32, {{2, n}, {n, 1}}), compare_softmax(kBFloat16, {{1, n}, {n, 1}});
  for (const int64_t n : {2048, 2050}) compare_softmax(kFloat64, {{2, n}, {n, 1}});
}

/// The longest row of which a block with so much shared memory keeps that many lines.
int64_t longest_kept(DType t, size_t shared, int lines) {
  const size_t before = kWarp * (t == kFloat64 ? sizeof(double[2]) : sizeof(float[2]));
  return static_cast<int64_t>((shared - before) / static_cast<size_t>(lines) / 16 * 16 - 16) / size_of(t);
}

TEST(SimtRows, softmax_keeps_longer_rows_in_shared_memory_as_far_as_the_device_has_it) {
  const struct {
    size_t shared;
    int processors;
    simt::Order order;
    unsigned char poison;
  } machines[] = {{size_t{64} << 10, 1, simt::Order::kReverse, 0x00},
                  {size_t{99} << 10, 4, simt::Order::kShuffled, 0x7F},
                  {size_t{163} << 10, 1, simt::Order::kShuffled, 0xFF},
                  {size_t{227} << 10, 1, simt::Order::kForward, 0xFF}};
  for (const auto& m : machines) {
    SCOPED_TRACE(str(m.shared >> 10, " KiB of shared memory"));
    simt::settings().shared_memory = m.shared, simt::settings().order = m.order,
    simt::settings().poison = m.poison;
    CudaBackend& gpu = simt::device_of(m.processors);
    Context c;
    for (const DType t : kFloats) {
      // the others are long rows again
      if (t != kFloat32 && !(t == kFloat16 && m.shared > size_t{200} << 10) && m.shared > size_t{64} << 10)
        continue;
      for (const int lines : {1, 2}) {
        const int64_t most = longest_kept(t, m.shared, lines);
        Operand y(t, {2, most + 2}), dy(t, {2, most + 2}), dx(t, {2, most + 2});
        const auto shared_of = [&](int64_t n, bool log, bool backward) {
          const auto part = [n](const Operand& o) {
            return View{o.on_device().data, o.on_device().dtype, {2, n}, {n + 1, 1}};
          };
          if (backward) gpu.softmax_backward(c, log, part(y), part(dy), part(dx));
          else gpu.softmax(c, log, part(y), part(dx));
          return simt::last_grid().shared;
        };
        for (const bool log : {false, true}) {
          if (lines == 1) {
            EXPECT_GT(shared_of(most, log, false), m.shared - 64);
            EXPECT_LT(shared_of(most + 1, log, false), kPlainShared) << "it is read twice";
          }
          EXPECT_GT(shared_of(most, log, true),
                    (log || lines == 1 ? m.shared / static_cast<size_t>(lines) : m.shared) - 512);
          if (lines == 1) EXPECT_LT(shared_of(most + 1, log, true), kPlainShared);
          else EXPECT_LT(shared_of(most + 1, log, true), m.shared / 2 + 512) << "dy is kept";
        }
        compare_softmax(t, {{2, most}, {most, 1}}, gpu);
        compare_softmax(t, {{3, most}, {most + 1, 1}, 1}, gpu);  // each row at another distance from a border
        compare_softmax(t, {{2, most + 1}, {most + 1, 1}}, gpu);
      }
    }
    compare_softmax(kFloat32, {{3, 2049}, {2051, 1}, 1}, gpu);
    compare_softmax(kFloat32, {{3, 8193}, {8193, 1}}, gpu);
    compare_softmax(kFloat32, {{2, 8196}, {8196, 1}}, gpu);
    compare_softmax(kBFloat16, {{3, 8191}, {8192, 1}}, gpu);
    compare_softmax(kFloat16, {{2, 16384}, {16384, 1}}, gpu);
    compare_softmax(kFloat32, {{2, 9000}, {1, 2}}, gpu);  // columns apart
    compare_softmax(kFloat64, {{3, 2100}, {6307, 3}}, gpu);
    compare_softmax(kFloat32, {{0, 9000}, {9000, 1}}, gpu);
    simt::settings() = {};
  }
}

TEST(SimtRows, a_row_has_the_same_bits_wherever_it_is_kept) {
  Context c;
  for (const int64_t n : {9001, 20000, 40000}) {
    Operand x(kFloat32, {2, n}), y(kFloat32, {2, n}), dx(kFloat32, {2, n});
    x.random(-8, 8, 1);
    for (const bool log : {false, true}) {
      std::vector<std::vector<float>> results;
      for (const size_t shared : {size_t{48} << 10, size_t{99} << 10, size_t{227} << 10}) {
        simt::settings().shared_memory = shared;
        CudaBackend& gpu = simt::device_of(4);
        gpu.softmax(c, log, x.on_device(), y.on_device());
        gpu.softmax_backward(c, log, y.on_device(), x.on_device(), dx.on_device());
        results.push_back(y.device_elements<float>());
        const auto backward = dx.device_elements<float>();
        results.back().insert(results.back().end(), backward.begin(), backward.end());
      }
      EXPECT_TRUE(results[0] == results[1] && results[1] == results[2]) << n << " log " << log;
      simt::settings() = {};
    }
  }
}

TEST(SimtRows, softmax_takes_operands_off_each_others_borders) {
  Context c;
  for (const DType t : {kFloat32, kBFloat16})
    for (const int64_t n : {40, 2051, 9001})
      for (const bool log : {false, true}) {
        const std::string where = str(t, " ", n, " log ", log);
        Operand x(t, {3, n}, {n, 1}, 1), y(t, {3, n}, {n + 2, 1}, 2), dy(t, {3, n}, {n, 1}),
            dx(t, {3, n}, {2 * n, 2}, 3);
        x.random(-8, 8, 1), dy.random(-1, 1, 2);
        backend(kCpu).softmax(c, log, x.host(), y.host());
        device().softmax(c, log, x.on_device(), y.on_device());
        expect_same(y, row_tolerance(t), where);
        backend(kCpu).softmax_backward(c, log, y.host(), dy.host(), dx.host());
        device().softmax_backward(c, log, y.on_device(), dy.on_device(), dx.on_device());
        expect_same(dx, 8 * row_tolerance(t), where + " backward");
      }
}

TEST(SimtRows, softmax_of_infinities_is_as_on_the_cpu) {
  for (const int64_t n : {5, 700, 8201}) {
    Operand x(kFloat32, {5, n}), y(kFloat32, {5, n}), lse(kFloat32, {5});
    x.random(-2, 2, 4);
    float* const p = x.host().as<float>();
    for (int64_t k = 0; k < n; ++k) p[k] = static_cast<float>(-kInf);
    p[n + 2] = static_cast<float>(kInf);
    p[2 * n + 2] = static_cast<float>(-kInf);
    p[3 * n + 1] = std::numeric_limits<float>::quiet_NaN();
    Context c;
    device().copy_from_host(c, p, x.on_device().data, static_cast<size_t>(5 * n) * sizeof(float));
    for (const bool log : {false, true}) {
      backend(kCpu).softmax(c, log, x.host(), y.host());
      device().softmax(c, log, x.on_device(), y.on_device());
      expect_same(y, 4e-6, log ? "log_softmax" : "softmax");
    }
    backend(kCpu).logsumexp(c, x.host(), lse.host());
    device().logsumexp(c, x.on_device(), lse.on_device());
    expect_same(lse, 4e-6, "logsumexp");
  }
}

struct Loss {
  bool weighted = false;
  double smoothing = 0;
  int64_t ignore = -100;
};

void compare_cross_entropy(DType t, const Rows& r, const Loss& o, double low = -8) {
  const std::string where =
      str(t, " ", r, " weighted ", o.weighted, " smoothing ", o.smoothing, " ignore ", o.ignore);
  const int64_t rows = r.sizes[0], count = r.sizes[1];
  Operand x(t, r.sizes, r.strides, r.offset), target(kInt64, {rows}), weight(t, {count}), loss(t, {rows}),
      log_sums(accumulate_type(t), {rows, 2}), g(t, {rows}), dx(t, r.sizes, r.strides, r.offset);
  x.random(low, low + 16, 1), target.random(0, static_cast<double>(count) - 0.01, 2),
      weight.random(0.5, 2, 3), g.random(-1, 1, 4);
  const View host_weight = o.weighted ? weight.host() : View{},
             device_weight = o.weighted ? weight.on_device() : View{};
  Context c;
  backend(kCpu).cross_entropy(c, x.host(), target.host(), host_weight, o.ignore, o.smoothing, loss.host(),
                              log_sums.host());
  device().cross_entropy(c, x.on_device(), target.on_device(), device_weight, o.ignore, o.smoothing,
                         loss.on_device(), log_sums.on_device());
  expect_same(loss, 4 * row_tolerance(t), where);
  expect_same(log_sums, row_tolerance(t), where);
  backend(kCpu).cross_entropy_backward(c, x.host(), log_sums.host(), target.host(), host_weight, o.ignore,
                                       o.smoothing, g.host(), dx.host());
  device().cross_entropy_backward(c, x.on_device(), log_sums.on_device(), target.on_device(), device_weight,
                                  o.ignore, o.smoothing, g.on_device(), dx.on_device());
  expect_same(dx, 4 * row_tolerance(t), where + " backward");
  View one = g.on_device(), one_host = g.host();  // the same gradient for every row, and dx over x
  one.strides[0] = one_host.strides[0] = 0;
  backend(kCpu).cross_entropy_backward(c, x.host(), log_sums.host(), target.host(), host_weight, o.ignore,
                                       o.smoothing, one_host, x.host());
  device().cross_entropy_backward(c, x.on_device(), log_sums.on_device(), target.on_device(), device_weight,
                                  o.ignore, o.smoothing, one, x.on_device());
  expect_same(x, 4 * row_tolerance(t), where + " in place");
}

TEST(SimtRows, cross_entropy_takes_every_length_and_option) {
  for (const DType t : kFloats)
    for (const Rows& r : row_cases()) compare_cross_entropy(t, r, {});
  for (const Rows& r : {Rows{{7, 9}, {9, 1}}, Rows{{3, 67}, {67, 1}}, Rows{{2, 701}, {701, 1}}})
    for (const bool weighted : {false, true})
      for (const double smoothing : {0.0, 0.1})
        for (const DType t : {kFloat32, kFloat64, kFloat16})
          compare_cross_entropy(t, r, {weighted, smoothing, 1});
}

TEST(SimtRows, large_numbers_keep_the_digits_of_their_differences) {
  for (const Rows& r : {Rows{{3, 64}, {64, 1}}, Rows{{3, 67}, {67, 1}}, Rows{{2, 8201}, {8201, 1}}}) {
    compare_softmax(kFloat32, r, device(), 1e6);
    compare_softmax(kFloat64, r, device(), 1e12);
    for (const double smoothing : {0.0, 0.25}) {
      compare_cross_entropy(kFloat32, r, {true, smoothing}, 1e6);
      compare_cross_entropy(kFloat16, r, {false, smoothing}, 2000);
    }
  }
}

TEST(SimtRows, a_bad_target_is_the_error_of_the_cpu) {
  Operand x(kFloat32, {4, 5}), target(kInt64, {4}), loss(kFloat32, {4}), log_sums(kFloat32, {4, 2});
  x.random(-1, 1, 1), target.set({1, 0, 7, 2});
  Context c;
  const std::string expected = test::error_of<IndexError>([&] {
    backend(kCpu).cross_entropy(c, x.host(), target.host(), View{}, -100, 0, loss.host(), log_sums.host());
  });
  const std::string got = test::error_of<IndexError>([&] {
    device().cross_entropy(c, x.on_device(), target.on_device(), View{}, -100, 0, loss.on_device(),
                           log_sums.on_device());
  });
  EXPECT_EQ(got, expected);
  EXPECT_TRUE(test::has(got, "target 7 in row 2"));
  target.set({1, 0, 4, 2});
  device().cross_entropy(c, x.on_device(), target.on_device(), View{}, -100, 0, loss.on_device(),
                         log_sums.on_device());
  EXPECT_GT(loss.device_values()[2], 0);
}

void compare_layer_norm(DType t, const Rows& r, bool weighted, bool biased) {
  const std::string where = str(t, " ", r, " weighted ", weighted, " biased ", biased);
  const int64_t rows = r.sizes[0], count = r.sizes[1];
  Operand x(t, r.sizes, r.strides, r.offset), y(t, r.sizes, r.strides, r.offset),
      dy(t, r.sizes, r.strides, r.offset), dx(t, r.sizes, r.strides, r.offset);
  Operand w(t, {count}), b(t, {count}), mean(t, {rows}), rstd(t, {rows}), dw(t, {count}), db(t, {count});
  x.random(-2, 2, 1), w.random(0.5, 2, 2), b.random(-1, 1, 3), dy.random(-1, 1, 4);
  Context c;
  backend(kCpu).layer_norm(c, x.host(), weighted ? w.host() : View{}, biased ? b.host() : View{}, 1e-5,
                           y.host(), mean.host(), rstd.host());
  device().layer_norm(c, x.on_device(), weighted ? w.on_device() : View{}, biased ? b.on_device() : View{},
                      1e-5, y.on_device(), mean.on_device(), rstd.on_device());
  const double close =
      (count < 3 ? 64 : 4) * row_tolerance(t);  // two numbers that nearly agree have few digits
  expect_same(y, close, where);
  expect_same(mean, close, where + " mean");
  expect_same(rstd, close, where + " rstd");
  const auto backward = [&](Backend& device, View (Operand::*of)() const) {
    device.layer_norm_backward(c, (x.*of)(), weighted ? (w.*of)() : View{}, (mean.*of)(), (rstd.*of)(),
                               (dy.*of)(), (dx.*of)(), weighted ? (dw.*of)() : View{},
                               biased ? (db.*of)() : View{});
  };
  backward(backend(kCpu), &Operand::host);
  backward(device(), &Operand::on_device);
  expect_same(dx, 8 * close, where + " dx");
  expect_same(dw, 4 * close, where + " dweight");
  expect_same(db, 4 * close, where + " dbias");
}

TEST(SimtRows, layer_norm_takes_every_length_and_layout) {
  for (const DType t : kFloats)
    for (const Rows& r : row_cases())
      if (r.sizes[1] > 1) compare_layer_norm(t, r, true, true);
  for (const bool weighted : {false, true})
    compare_layer_norm(kFloat32, {{7, 64}, {64, 1}}, weighted, !weighted);
  compare_layer_norm(kFloat32, {{3, 256}, {256, 1}}, false, false);
  // in registers: of a warp and of a block, with missing packs, and rows too long for them
  for (const DType t : kFloats)
    for (const int64_t n : {72, 520, 2048, 8192, 8320})
      compare_layer_norm(t, {{3, n}, {n, 1}}, true, n != 520);
  compare_layer_norm(kFloat32, {{3, 64}, {68, 1}}, true, true);
  // columns in packs, several parts of the rows
  for (const DType t : {kFloat32, kFloat16}) compare_layer_norm(t, {{300, 256}, {256, 1}}, true, true);
}

}  // namespace
}  // namespace weft::cuda
