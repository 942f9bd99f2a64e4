// Scans over warps and blocks, and what is made of them: running sums and products, and the places of non-zero elements, against the CPU.
#include "compare.h"

#include <weft/kernels/cuda/scan.h>

namespace weft::cuda {
namespace {

/// x -> a x + b modulo 2^32, packed in 8 bytes: combining two is associative but not commutative.
struct Then {
  WEFT_DEVICE uint64_t operator()(uint64_t first, uint64_t second) const {
    const auto a1 = static_cast<uint32_t>(first >> 32), b1 = static_cast<uint32_t>(first), a2 = static_cast<uint32_t>(second >> 32), b2 = static_cast<uint32_t>(second);
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
    const auto again = block_scan(t, uint64_t{1}, uint64_t{0}, Plus(), t.shared<uint64_t>());  // the room may be used again at once
    if (again.before != static_cast<uint64_t>(t.id()) || again.total != static_cast<uint64_t>(t.count())) before[t.id()] = 0;
  }
};

TEST(SimtScan, a_block_combines_in_the_order_of_its_threads) {
  each_device([](CudaBackend&) {
    for (const int threads : {32, 64, 96, 256, 992, 1024}) {
      Array<int64_t> x(Shape{threads}), before(Shape{threads}), total(Shape{threads});
      x.random(static_cast<uint64_t>(threads), 0, 9e18);
      const Mirror in(x.view()), out(before.view()), all(total.view());
      launch(nullptr, "scan_once", {.threads = threads, .shared = kScanRoom * sizeof(uint64_t)},
             ScanOnce{in.view().as<uint64_t>(), out.view().as<uint64_t>(), all.view().as<uint64_t>()});
      out.fetch(), all.fetch();
      uint64_t sum = kSame;
      for (int i = 0; i < threads; ++i) {
        ASSERT_EQ(static_cast<uint64_t>(before[i]), sum) << "thread " << i << " of " << threads;
        sum = Then()(sum, static_cast<uint64_t>(x[i]));
      }
      for (int i = 0; i < threads; ++i) ASSERT_EQ(static_cast<uint64_t>(total[i]), sum);
    }
  });
}

template <class T, class U = T> void check_cumulate(CudaBackend& device, const Shape& sizes, int dim, const Shape& strides = {}) {
  SCOPED_TRACE(to_string(sizes) + " along " + std::to_string(dim));
  Context c;
  const double tolerance = std::is_same_v<T, double> ? 1e-11 : std::is_same_v<T, float> ? 1e-6 : sizeof(T) == 2 ? 0.01 : 0;
  for (const Reduce op : {Reduce::kSum, Reduce::kProd}) {
    Array<T> x(sizes, strides);
    Array<U> want(sizes), got(sizes);
    if (op == Reduce::kProd && !std::is_integral_v<T>) x.random(1, 0.9, 1.1);
    else x.random(1, -3, 3);
    test::cpu().cumulate(c, op, dim, x.view(), want.view());
    const Mirror in(x.view()), out(got.view());
    device.cumulate(c, op, dim, in, out);
    out.fetch();
    expect_same(want, got, tolerance);
  }
}

TEST(SimtScan, lines_of_any_length_are_cumulated) {
  each_device([](CudaBackend& device) {
    for (const int64_t n : {1, 2, 31, 63, 64, 65, 127, 129, 255, 257, 1023, 1025, 4097}) {
      check_cumulate<float>(device, {3, n}, 1);
      check_cumulate<float>(device, {n, 3}, 0);
    }
    check_cumulate<float>(device, {1}, 0);
  });
}

TEST(SimtScan, long_lines_are_cut_into_chunks) {
  each_device([](CudaBackend& device) {
    check_cumulate<float>(device, {21000}, 0);
    check_cumulate<double>(device, {2, 9001}, 1);
    check_cumulate<double>(device, {1025, 40}, 0);
    check_cumulate<Half>(device, {2, 5001}, 1);
  });
}

TEST(SimtScan, every_dtype_and_dim_is_cumulated) {
  each_device([](CudaBackend& device) {
    for (int dim = 0; dim < 3; ++dim) {
      check_cumulate<double>(device, {5, 70, 3}, dim);
      check_cumulate<float>(device, {5, 70, 3}, dim, {1, 5, 350});
      check_cumulate<BFloat16>(device, {2, 3, 68}, dim);
      check_cumulate<int64_t>(device, {5, 70, 3}, dim);
      check_cumulate<int32_t, int64_t>(device, {5, 7, 300}, dim);
      check_cumulate<uint8_t, int64_t>(device, {2, 3, 90}, dim);
      check_cumulate<bool, int64_t>(device, {2, 3, 90}, dim);
      check_cumulate<int32_t>(device, {2, 3, 90}, dim);
    }
  });
}

TEST(SimtScan, a_running_sum_has_the_same_bits_in_every_run_and_order) {
  Context c;
  Array<double> x(Shape{9001}), first(Shape{9001});
  x.random(5);
  bool begun = false;
  each_device([&](CudaBackend& device) {
    if (&device != &simt::device_of(4)) return;  // how lines are cut depends on the device
    Array<double> y(Shape{9001});
    const Mirror in(x.view()), out(y.view());
    device.cumulate(c, Reduce::kSum, 0, in, out);
    out.fetch();
    if (begun) expect_same(first, y);
    for (int64_t i = 0; i < 9001; ++i) first[i] = y[i];
    begun = true;
  });
}

template <class T> void check_nonzero(CudaBackend& device, const Shape& sizes, double share, const Shape& strides = {}) {
  SCOPED_TRACE(to_string(sizes) + " with " + std::to_string(share));
  Context c;
  Array<T> x(sizes, strides);
  Array<double> chance(sizes);
  chance.random(3, 0, 1), x.random(4, 1, 9);
  for (int64_t i = 0; i < x.numel(); ++i)
    if (chance[i] >= share) x[i] = T(0);
  const Mirror in(x.view());
  const int64_t count = test::cpu().count_nonzero(c, x.view());
  ASSERT_EQ(device.count_nonzero(c, in), count);
  Array<int64_t> want(Shape{count, sizes.size()}), got(Shape{count, sizes.size()});
  test::cpu().nonzero(c, x.view(), want.view());
  const Mirror out(got.view());
  device.nonzero(c, in, out);
  out.fetch();
  expect_same(want, got);
}

TEST(SimtScan, nonzero_elements_are_found_in_row_major_order) {
  each_device([](CudaBackend& device) {
    for (const double share : {0.0, 0.3, 1.0}) {
      for (const int64_t n : {1, 15, 16, 17, 1023, 1025, 4096, 9000}) check_nonzero<float>(device, {n}, share);
      check_nonzero<bool>(device, {3, 2000}, share);
      check_nonzero<Half>(device, {7, 5, 11}, share, {1, 7, 35});
      check_nonzero<double>(device, {40, 60}, share, {1, 40});
      check_nonzero<int64_t>(device, {5, 1, 3, 2}, share);
      check_nonzero<int32_t>(device, {700, 3}, share, {4, 1});
    }
    check_nonzero<float>(device, {0, 3}, 1);
  });
}

TEST(SimtScan, minus_zero_is_zero_and_nan_is_not) {
  Context c;
  Array<float> x(Shape{40});
  Array<BFloat16> y(Shape{40});
  x.fill(-0.0), y.fill(-0.0);
  x[7] = NAN, x[39] = -1e-45f, y[39] = BFloat16(NAN);
  const Mirror a(x.view()), b(y.view());
  EXPECT_EQ(simt::device().count_nonzero(c, a), 2);
  EXPECT_EQ(simt::device().count_nonzero(c, b), 1);
}

}  // namespace
}  // namespace weft::cuda
