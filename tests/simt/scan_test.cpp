// Scans over warps and blocks, and the operations made of them: running sums and products, and the places of
// non-zero elements, against the CPU.
#include "compare.h"

#include <weft/kernels/cuda/blocks/scan.h>

namespace weft::cuda {
namespace {

/// x -> a x + b modulo 2^32, packed in 8 bytes: combining two is associative but not commutative.
struct Then {
  WEFT_DEVICE uint64_t operator()(uint64_t first, uint64_t second) const {
    const auto a1 = static_cast<uint32_t>(first >> 32), b1 = static_cast<uint32_t>(first),
               a2 = static_cast<uint32_t>(second >> 32), b2 = static_cast<uint32_t>(second);
    return (uint64_t{a1 * a2} << 32 & 0xFFFFFFFF00000000u) | static_cast<uint32_t>(a2 * b1 + b2);
  }
};
constexpr uint64_t kSame = uint64_t{1} << 32;

struct ScanOnce {
  const uint64_t* x;
  uint64_t* before;
  uint64_t* total;
  WEFT_DEVICE void operator()(Thread t) const {
    const auto scanned = block_scan(t, x[t.id()], kSame, Then(), t.shared<uint64_t>());
    before[t.id()] = scanned.before, total[t.id()] = scanned.total;
    // the room may be used again at once
    const auto again = block_scan(t, uint64_t{1}, uint64_t{0}, Plus(), t.shared<uint64_t>());
    if (again.before != static_cast<uint64_t>(t.id()) || again.total != static_cast<uint64_t>(t.count()))
      before[t.id()] = 0;
  }
};

TEST(SimtScan, a_block_combines_in_the_order_of_its_threads) {
  each_device([](CudaBackend&) {
    for (const int threads : {32, 64, 96, 256, 992, 1024}) {
      Operand x(kInt64, {threads}), before(kInt64, {threads}), total(kInt64, {threads});
      x.random(0, 9e18, static_cast<uint32_t>(threads));
      launch(nullptr, "scan_once", {.threads = threads, .shared = kScanRoom * sizeof(uint64_t)},
             ScanOnce{x.on_device().as<uint64_t>(), before.on_device().as<uint64_t>(),
                      total.on_device().as<uint64_t>()});
      const auto in = x.device_elements<uint64_t>(), out = before.device_elements<uint64_t>();
      uint64_t sum = kSame;
      for (size_t i = 0; i < in.size(); ++i) {
        ASSERT_EQ(out[i], sum) << "thread " << i << " of " << threads;
        sum = Then()(sum, in[i]);
      }
      EXPECT_EQ(total.device_elements<uint64_t>(), std::vector<uint64_t>(in.size(), sum));
    }
  });
}

void check_cumulate(CudaBackend& device, DType type, const Shape& sizes, int dim, const Shape& strides = {}) {
  Context c;
  const double tolerance = type == kFloat64 ? 1e-11 : type == kFloat32 ? 1e-6 : is_half(type) ? 0.01 : 0;
  for (const Reduce op : {Reduce::kSum, Reduce::kProd}) {
    Operand x(type, sizes, strides), y(type, sizes);
    if (op == Reduce::kProd && is_floating(type)) x.random(0.9, 1.1, 1);
    else x.random(-3, 3, 1);
    backend(kCpu).cumulate(c, op, dim, x.host(), y.host());
    device.cumulate(c, op, dim, x.on_device(), y.on_device());
    expect_same(y, tolerance, str(sizes, " along ", dim, ", ", type));
  }
}

TEST(SimtScan, lines_of_any_length_are_cumulated) {
  each_device([](CudaBackend& device) {
    for (const int64_t n : {1, 2, 31, 63, 64, 65, 127, 129, 255, 257, 1023, 1025, 4097}) {
      check_cumulate(device, kFloat32, {3, n}, 1);
      check_cumulate(device, kFloat32, {n, 3}, 0);
    }
    check_cumulate(device, kFloat32, {1}, 0);
  });
}

TEST(SimtScan, long_lines_are_cut_into_chunks) {
  each_device([](CudaBackend& device) {
    check_cumulate(device, kFloat32, {21000}, 0);
    check_cumulate(device, kFloat64, {2, 9001}, 1);
    check_cumulate(device, kFloat64, {1025, 40}, 0);
    check_cumulate(device, kFloat16, {2, 5001}, 1);
  });
}

TEST(SimtScan, every_dtype_and_dim_is_cumulated) {
  each_device([](CudaBackend& device) {
    for (int dim = 0; dim < 3; ++dim) {
      check_cumulate(device, kFloat64, {5, 70, 3}, dim);
      check_cumulate(device, kFloat32, {5, 70, 3}, dim, {1, 5, 350});
      check_cumulate(device, kBFloat16, {2, 3, 68}, dim);
      check_cumulate(device, kInt64, {5, 70, 3}, dim);
      check_cumulate(device, kInt64, {5, 7, 300}, dim);
      check_cumulate(device, kInt64, {5, 7, 300}, dim, {1, 5, 35});
    }
  });
}

TEST(SimtScan, a_running_sum_has_the_same_bits_in_every_run_and_order) {
  Context c;
  Operand x(kFloat64, {9001});
  x.random(-1, 1, 5);
  std::vector<double> first;
  each_device([&](CudaBackend& device) {
    if (&device != &simt::device_of(4)) return;  // how lines are cut depends on the device
    const Operand y(kFloat64, {9001});
    device.cumulate(c, Reduce::kSum, 0, x.on_device(), y.on_device());
    if (first.empty()) first = y.device_values();
    EXPECT_EQ(y.device_values(), first);
  });
}

void check_nonzero(CudaBackend& device, DType type, const Shape& sizes, double share,
                   const Shape& strides = {}) {
  SCOPED_TRACE(str(sizes, " with ", share, ", ", type));
  Context c;
  Operand x(type, sizes, strides);
  std::mt19937 engine(3);
  x.random(1, 9, 4).each(
      [&](size_t, double old) { return static_cast<double>(engine()) * 0x1p-32 < share ? old : 0; });
  const int64_t count = backend(kCpu).count_nonzero(c, x.host());
  ASSERT_EQ(device.count_nonzero(c, x.on_device()), count);
  const Operand y(kInt64, {count, sizes.size()});
  backend(kCpu).nonzero(c, x.host(), y.host());
  device.nonzero(c, x.on_device(), y.on_device());
  expect_same(y);
}

TEST(SimtScan, nonzero_elements_are_found_in_row_major_order) {
  each_device([](CudaBackend& device) {
    for (const double share : {0.0, 0.3, 1.0}) {
      for (const int64_t n : {1, 15, 16, 17, 1023, 1025, 4096, 9000})
        check_nonzero(device, kFloat32, {n}, share);
      check_nonzero(device, kBool, {3, 2000}, share);
      check_nonzero(device, kFloat16, {7, 5, 11}, share, {1, 7, 35});
      check_nonzero(device, kFloat64, {40, 60}, share, {1, 40});
      check_nonzero(device, kInt64, {5, 1, 3, 2}, share);
      check_nonzero(device, kInt32, {700, 3}, share, {4, 1});
    }
    check_nonzero(device, kFloat32, {0, 3}, 1);
  });
}

TEST(SimtScan, minus_zero_is_zero_and_nan_is_not) {
  Context c;
  Operand x(kFloat32, {40}), y(kBFloat16, {40});
  x.each([](size_t i, double) { return i == 7 ? NAN : i == 39 ? -1e-45 : -0.0; });
  y.each([](size_t i, double) { return i == 39 ? NAN : -0.0; });
  EXPECT_EQ(simt::device().count_nonzero(c, x.on_device()), 2);
  EXPECT_EQ(simt::device().count_nonzero(c, y.on_device()), 1);
}

}  // namespace
}  // namespace weft::cuda
