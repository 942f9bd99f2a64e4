// Sorting, the first few of a row, and draws by weight on the emulated device against the CPU, to the bit.
// Rows lie around the borders of the networks, of the tiles that are sorted by digits, and of the selection.
// They have equal values, NaN, infinities and both zeros.
#include "compare.h"

#include <weft/kernels/cuda/blocks/radix.h>

namespace weft::cuda {
namespace {

void fill_rows(Operand& x, uint32_t seed, double spread) {
  x.random(-spread, spread, seed);
  if (!is_floating(x.host().dtype)) return;
  x.each([](size_t i, double old) {
    if (i % 97 == 6) return i % 2 ? static_cast<double>(INFINITY) : -static_cast<double>(INFINITY);
    return i % 43 == 4 ? 0.0 : i % 41 == 3 ? -0.0 : i % 37 == 5 ? static_cast<double>(NAN) : old;
  });
}

void check_sort(CudaBackend& device, DType type, int64_t rows, int64_t n, int64_t keep, double spread = 9,
                bool transposed = false) {
  const std::string where = str(keep, " of ", rows, " rows of ", n, ", ", type);
  Context c;
  Operand x(type, {rows, n}, transposed ? Shape{1, rows} : Shape{n, 1}), y(type, {rows, keep}),
      at(kInt64, {rows, keep});
  fill_rows(x, static_cast<uint32_t>(n), spread);
  for (const bool descending : {false, true}) {
    backend(kCpu).sort(c, descending, x.host(), y.host(), at.host());
    device.sort(c, descending, x.on_device(), y.on_device(), at.on_device());
    expect_same(at, 0, where);
    expect_same(y, 0, where);
  }
}

TEST(SimtSort, short_rows_are_sorted_stably) {
  each_device([](CudaBackend& device) {
    for (const int64_t n : {1, 2, 3, 31, 32, 33, 255, 257, 511, 512, 513, 1025, 2048})
      check_sort(device, kFloat32, 3, n, n);
    check_sort(device, kFloat32, 70, 5, 5, 2);
    check_sort(device, kFloat32, 300, 7, 3, 2, true);
    check_sort(device, kFloat64, 3, 700, 700);
    check_sort(device, kInt64, 3, 2048, 2048, 1e15);
    check_sort(device, kInt32, 3, 100, 17, 1e9);
    check_sort(device, kFloat16, 3, 300, 300);
    check_sort(device, kBFloat16, 3, 300, 300);
    check_sort(device, kUInt8, 3, 300, 300, 200);
    check_sort(device, kBool, 3, 300, 300, 1.5);
  });
}

TEST(SimtSort, long_rows_are_sorted_by_digits) {
  each_device([](CudaBackend& device) {
    check_sort(device, kFloat32, 2, 2049, 2049);
    check_sort(device, kFloat32, 1, 4500, 4500, 1e30);
    check_sort(device, kFloat16, 2, 2500, 2500);
    check_sort(device, kBool, 2, 2100, 2100, 1.5);
    check_sort(device, kInt32, 1, 4096, 4096, 2e9);
    check_sort(device, kInt64, 1, 2100, 2100, 1e15);
    check_sort(device, kFloat32, 2, 3000, 1500, 9, true);
  });
}

TEST(SimtSort, the_first_of_long_rows_are_selected) {
  each_device([](CudaBackend& device) {
    for (const int64_t keep : {1, 2, 3, 50, 64, 65}) check_sort(device, kFloat32, 2, 2500, keep, 3);
    check_sort(device, kFloat32, 2, 2049, 1024);
    check_sort(device, kFloat32, 1, 4000, 1000, 1e-3);
    check_sort(device, kFloat64, 2, 2300, 100);
    check_sort(device, kUInt8, 2, 2600, 700, 3);  // almost all are equal
    check_sort(device, kBFloat16, 2, 2600, 9, 1000, true);
    check_sort(device, kInt64, 1, 2600, 5, 1e18);
  });
}

TEST(SimtSort, pairs_keep_the_order_of_equal_keys) {
  each_device([](CudaBackend& device) {
    Context c;
    for (const int64_t n : {1, 33, 4096, 4097, 5000}) {
      const PairRoom<uint32_t> room(device, c, n);
      std::vector<uint32_t> keys(static_cast<size_t>(n)), sorted(keys.size());
      std::vector<int32_t> at(keys.size());
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<uint32_t>(i * 2654435761u >> 7) % 300;
      device.copy_from_host(c, keys.data(), room.first().keys, keys.size() * 4);
      const Pairs<uint32_t> result = sort_pairs(device, c, room.first(), room.second(), 1, n, 9);
      device.copy_to_host(c, result.keys, sorted.data(), keys.size() * 4);
      device.copy_to_host(c, result.at, at.data(), keys.size() * 4);
      for (size_t i = 0; i < keys.size(); ++i) {
        ASSERT_EQ(sorted[i], keys[static_cast<size_t>(at[i])]);
        ASSERT_TRUE(i == 0 || sorted[i - 1] < sorted[i] || (sorted[i - 1] == sorted[i] && at[i - 1] < at[i]))
            << "place " << i << " of " << n;
      }
    }
  });
}

void check_draws(CudaBackend& device, DType type, int64_t rows, int64_t k, int64_t n, bool replacement,
                 const Shape& strides = {}) {
  Context c;
  Operand p(type, {rows, k}, strides), y(kInt64, {rows, n});
  p.random(0, 1, 2);
  if (n * 2 < k) p.each([](size_t i, double old) { return i % 3 == 0 ? 0 : old; });
  const PhiloxKey key{77, uint64_t{1} << 33};
  backend(kCpu).multinomial(c, key, replacement, p.host(), y.host());
  device.multinomial(c, key, replacement, p.on_device(), y.on_device());
  expect_same(y, 0, str(n, " draws from ", rows, " rows of ", k, ", ", type));
}

TEST(SimtSort, draws_by_weight_are_those_of_the_cpu) {
  each_device([](CudaBackend& device) {
    for (const bool replacement : {false, true}) {
      for (const int64_t k : {1, 4, 5, 255, 257, 1023, 1024, 1025, 3000})
        check_draws(device, kFloat32, 3, k, k < 7 ? 1 : 7, replacement);
      check_draws(device, kFloat64, 40, 7, 3, replacement, {1, 40});
      check_draws(device, kFloat16, 2, 300, 20, replacement);
      check_draws(device, kBFloat16, 2, 30, 10, replacement);
    }
    check_draws(device, kFloat32, 2, 5, 700, true);
    check_draws(device, kFloat32, 2, 40, 40, false);
  });
}

TEST(SimtSort, weights_that_cannot_be_drawn_from_are_refused_as_on_the_cpu) {
  Context c;
  CudaBackend& device = simt::device();
  Operand p(kFloat32, {2, 3}), y(kInt64, {2, 2});
  const auto same = [&](bool replacement) {
    y.fill(-5);
    const std::string want = error_of<ValueError>([&] {
      backend(kCpu).multinomial(c, {1, 0}, replacement, p.host(), y.host());
    });
    EXPECT_EQ(error_of<ValueError>([&] {
                device.multinomial(c, {1, 0}, replacement, p.on_device(), y.on_device());
              }),
              want);
    EXPECT_EQ(y.device_values()[2], -5);
    EXPECT_EQ(y.device_values()[3], -5);
  };
  for (const double bad : {-1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    p.set({1, 1, 1, 1, bad, 1});
    same(true);
  }
  p.set({1, 1, 1, 0, 0, 0});
  same(true);
  p.set({1, 1, 1, 0, 1, 0});
  same(false);
}

}  // namespace
}  // namespace weft::cuda
