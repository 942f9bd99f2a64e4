// Sorting, the first few of a row, and draws by weight on the emulated device against the CPU, to the bit: rows around the borders of the networks, of the tiles
// that are sorted by digits, and of what is selected, with equal values, NaN, infinities and both zeros.
#include "compare.h"

#include <weft/kernels/cuda/radix.h>

namespace weft::cuda {
namespace {

template <class T> void fill_rows(Array<T>& x, uint64_t seed, double spread) {
  x.random(seed, -spread, spread);
  if constexpr (!std::is_integral_v<T>)
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (i % 37 == 5) x[i] = T(NAN);
      if (i % 41 == 3) x[i] = T(-0.0f);
      if (i % 43 == 4) x[i] = T(0.0f);
      if (i % 97 == 6) x[i] = T(i % 2 ? INFINITY : -INFINITY);
    }
}

template <class T> void check_sort(CudaBackend& device, int64_t rows, int64_t n, int64_t keep, double spread = 9, bool transposed = false) {
  SCOPED_TRACE(std::to_string(keep) + " of " + std::to_string(rows) + " rows of " + std::to_string(n));
  Context c;
  const Shape strides = transposed ? Shape{1, rows} : Shape{n, 1};
  Array<T> x(Shape{rows, n}, strides), want(Shape{rows, keep}), got(Shape{rows, keep});
  Array<int64_t> want_at(Shape{rows, keep}), got_at(Shape{rows, keep});
  fill_rows(x, static_cast<uint64_t>(n), spread);
  for (const bool descending : {false, true}) {
    test::cpu().sort(c, descending, x.view(), want.view(), want_at.view());
    const Mirror in(x.view()), out(got.view()), at(got_at.view());
    device.sort(c, descending, in, out, at);
    out.fetch(), at.fetch();
    expect_same(want_at, got_at);
    expect_same(want, got);
  }
}

TEST(SimtSort, short_rows_are_sorted_stably) {
  each_device([](CudaBackend& device) {
    for (const int64_t n : {1, 2, 3, 31, 32, 33, 255, 257, 511, 512, 513, 1025, 2048}) check_sort<float>(device, 3, n, n);
    check_sort<float>(device, 70, 5, 5, 2);
    check_sort<float>(device, 300, 7, 3, 2, true);
    check_sort<double>(device, 3, 700, 700);
    check_sort<int64_t>(device, 3, 2048, 2048, 1e15);
    check_sort<int32_t>(device, 3, 100, 17, 1e9);
    check_sort<Half>(device, 3, 300, 300);
    check_sort<BFloat16>(device, 3, 300, 300);
    check_sort<uint8_t>(device, 3, 300, 300, 200);
    check_sort<bool>(device, 3, 300, 300, 1.5);
  });
}

TEST(SimtSort, long_rows_are_sorted_by_digits) {
  each_device([](CudaBackend& device) {
    check_sort<float>(device, 2, 2049, 2049);
    check_sort<float>(device, 1, 4500, 4500, 1e30);
    check_sort<Half>(device, 2, 2500, 2500);
    check_sort<bool>(device, 2, 2100, 2100, 1.5);
    check_sort<int32_t>(device, 1, 4096, 4096, 2e9);
    check_sort<int64_t>(device, 1, 2100, 2100, 1e15);
    check_sort<float>(device, 2, 3000, 1500, 9, true);
  });
}

TEST(SimtSort, the_first_of_long_rows_are_selected) {
  each_device([](CudaBackend& device) {
    for (const int64_t keep : {1, 2, 3, 50, 64, 65}) check_sort<float>(device, 2, 2500, keep, 3);
    check_sort<float>(device, 2, 2049, 1024);
    check_sort<float>(device, 1, 4000, 1000, 1e-3);
    check_sort<double>(device, 2, 2300, 100);
    check_sort<uint8_t>(device, 2, 2600, 700, 3);  // almost all are equal
    check_sort<BFloat16>(device, 2, 2600, 9, 1000, true);
    check_sort<int64_t>(device, 1, 2600, 5, 1e18);
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
        ASSERT_TRUE(i == 0 || sorted[i - 1] < sorted[i] || (sorted[i - 1] == sorted[i] && at[i - 1] < at[i])) << "place " << i << " of " << n;
      }
    }
  });
}

template <class T> void check_draws(CudaBackend& device, int64_t rows, int64_t k, int64_t n, bool replacement, const Shape& strides = {}) {
  SCOPED_TRACE(std::to_string(n) + " draws from " + std::to_string(rows) + " rows of " + std::to_string(k));
  Context c;
  Array<T> p(Shape{rows, k}, strides);
  Array<int64_t> want(Shape{rows, n}), got(Shape{rows, n});
  p.random(2, 0, 1);
  for (int64_t i = 0; i < p.numel(); i += 3)
    if (n * 2 < k) p[i] = T(0);
  const PhiloxKey key{77, uint64_t{1} << 33};
  test::cpu().multinomial(c, key, replacement, p.view(), want.view());
  const Mirror in(p.view()), out(got.view());
  device.multinomial(c, key, replacement, in, out);
  out.fetch();
  expect_same(want, got);
}

TEST(SimtSort, draws_by_weight_are_those_of_the_cpu) {
  each_device([](CudaBackend& device) {
    for (const bool replacement : {false, true}) {
      for (const int64_t k : {1, 4, 5, 255, 257, 1023, 1024, 1025, 3000}) check_draws<float>(device, 3, k, k < 7 ? 1 : 7, replacement);
      check_draws<double>(device, 40, 7, 3, replacement, {1, 40});
      check_draws<Half>(device, 2, 300, 20, replacement);
      check_draws<BFloat16>(device, 2, 30, 10, replacement);
    }
    check_draws<float>(device, 2, 5, 700, true);
    check_draws<float>(device, 2, 40, 40, false);
  });
}

TEST(SimtSort, weights_that_cannot_be_drawn_from_are_refused_as_on_the_cpu) {
  Context c;
  CudaBackend& device = simt::device();
  Array<float> p(Shape{2, 3});
  Array<int64_t> y(Shape{2, 2});
  const auto same = [&](bool replacement) {
    y.fill(-5);
    const std::string want = text_of<ValueError>([&] { test::cpu().multinomial(c, {1, 0}, replacement, p.view(), y.view()); });
    const Mirror in(p.view()), out(y.view());
    EXPECT_EQ(text_of<ValueError>([&] { device.multinomial(c, {1, 0}, replacement, in, out); }), want);
    out.fetch();
    EXPECT_EQ(y[2], -5);
    EXPECT_EQ(y[3], -5);
  };
  for (const float bad : {-1.0f, NAN, INFINITY}) {
    p.fill(1);
    p[4] = bad;
    same(true);
  }
  p.fill(1);
  p[3] = p[4] = p[5] = 0;
  same(true);
  p[4] = 1;
  same(false);
}

}  // namespace
}  // namespace weft::cuda
