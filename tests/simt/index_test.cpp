// Rows, gathers, scatters and triangles on the emulated device against the CPU: sizes around the borders of packs, warps, blocks and grids, rows that cannot be
// moved 16 bytes at a time, indices that repeat, and indices that are out of range.
#include "compare.h"

namespace weft::cuda {
namespace {

template <class T, class I> void check_take(CudaBackend& device, int64_t v, int64_t n, int64_t k, int64_t padding, bool transposed) {
  Context c;
  Array<T> x(Shape{v, k}, transposed ? Shape{1, v} : Shape{k + padding, 1}), want(Shape{n, k}, {k + padding, 1}), got(Shape{n, k}, {k + padding, 1});
  Array<I> index(Shape{n}, {2});
  x.random(1, -9, 9), index.random(2, 0, static_cast<double>(v));
  test::cpu().take_rows(c, x.view(), index.view(), want.view());
  const Mirror at(index.view()), from(x.view()), to(got.view());
  device.take_rows(c, from, at, to);
  to.fetch();
  expect_same(want, got);
}

TEST(SimtIndex, rows_are_taken_whatever_their_width) {
  each_device([](CudaBackend& device) {
    for (const int64_t k : {1, 2, 3, 4, 5, 8, 31, 32, 33, 64, 257, 1100})
      for (const int64_t n : {1, 31, 300}) {
        SCOPED_TRACE(std::to_string(n) + " rows of " + std::to_string(k));
        check_take<float, int64_t>(device, 11, n, k, 0, false);
        check_take<Half, int32_t>(device, 11, n, k, 0, false);
        check_take<double, int64_t>(device, 7, n, k, 1, false);
        check_take<uint8_t, int32_t>(device, 7, n, k, 0, true);
      }
    check_take<float, int64_t>(device, 5, 3, 40000, 0, false);  // few rows: a second grid dimension
    check_take<int64_t, int64_t>(device, 5, 20000, 1, 0, false);
  });
}

TEST(SimtIndex, rows_off_a_16_byte_border_are_taken) {
  each_device([](CudaBackend& device) {
    Context c;
    Array<float> x(Shape{5, 9}), want(Shape{4, 8}), got(Shape{4, 8});
    Array<int64_t> index(Shape{4});
    x.random(1), index.random(2, 0, 5);
    const auto shifted = [](View v) {
      v.data = v.as<float>() + 1;
      v.sizes[1] = 8;
      return v;
    };
    test::cpu().take_rows(c, shifted(x.view()), index.view(), want.view());
    const Mirror from(x.view()), at(index.view()), to(got.view());
    device.take_rows(c, shifted(from), at, to);
    to.fetch();
    expect_same(want, got);
  });
}

template <class T, class I> void check_add(CudaBackend& device, int64_t v, int64_t n, int64_t k, int64_t skip, int64_t padding = 0, bool transposed = false) {
  SCOPED_TRACE(std::to_string(n) + " rows of " + std::to_string(k) + " into " + std::to_string(v));
  Context c;
  Array<T> dy(Shape{n, k}, transposed ? Shape{1, n} : Shape{k + padding, 1}), want(Shape{v, k}), got(Shape{v, k});
  Array<I> index(Shape{n}, {3});
  dy.random(1, -9, 9), want.random(3, -9, 9), got.random(3, -9, 9);
  index.random(2, 0, static_cast<double>(v));
  if (skip == -1) index[n / 2] = static_cast<I>(-1);
  if constexpr (sizeof(T) == 2) {  // added up in float and rounded once
    Array<float> wide_dy(Shape{n, k}), wide(Shape{v, k});
    for (int64_t i = 0; i < n * k; ++i) wide_dy[i] = dy[i];
    for (int64_t i = 0; i < v * k; ++i) wide[i] = want[i];
    test::cpu().add_rows(c, index.view(), wide_dy.view(), skip, wide.view());
    for (int64_t i = 0; i < v * k; ++i) want[i] = T(wide[i]);
  } else {
    test::cpu().add_rows(c, index.view(), dy.view(), skip, want.view());
  }
  const Mirror at(index.view()), from(dy.view()), to(got.view());
  device.add_rows(c, at, from, skip, to);
  to.fetch();
  expect_same(want, got);
}

TEST(SimtIndex, rows_are_added_with_the_bits_of_the_plain_loop) {
  each_device([](CudaBackend& device) {
    for (const int64_t n : {1, 2, 31, 33, 256, 700}) {
      check_add<float, int64_t>(device, 50, n, 8, 3);
      check_add<float, int32_t>(device, 2, n, 7, -1);
      check_add<double, int64_t>(device, 9, n, 34, INT64_MIN);
      check_add<Half, int64_t>(device, 9, n, 16, 0);
      check_add<BFloat16, int32_t>(device, 70, n, 5, -100);
      check_add<int64_t, int64_t>(device, 7, n, 3, 1, 2);
      check_add<uint8_t, int64_t>(device, 7, n, 3, 1, 0, true);
      check_add<bool, int64_t>(device, 7, n, 3, 1);
    }
    check_add<float, int64_t>(device, 1, 300, 1300, -1);
    check_add<float, int64_t>(device, 3000, 40, 4, -1);
  });
}

TEST(SimtIndex, many_rows_are_grouped_by_digits) {
  each_device([](CudaBackend& device) {
    check_add<float, int64_t>(device, 5, 4097, 4, 2);
    check_add<float, int32_t>(device, 300, 4500, 3, -1);
    check_add<double, int64_t>(device, 70000, 6200, 1, 7);
  });
}

TEST(SimtIndex, the_text_of_an_index_error_is_that_of_the_cpu) {
  each_device([](CudaBackend& device) {
    Context c;
    Array<float> x(Shape{5, 3}), y(Shape{4, 3});
    Array<int64_t> index(Shape{4});
    x.random(1), y.random(2);
    for (const int64_t bad : {int64_t{5}, int64_t{-1}, int64_t{1} << 40}) {
      index.fill(1);
      index[2] = bad;
      View columns = index.view(), column = index.view();
      columns.sizes = {4, 3}, columns.strides = {1, 0};
      column.sizes = {4, 1}, column.strides = {1, 1};
      const Mirror at(index.view()), dx(x.view()), dy(y.view());
      View device_column = column;
      device_column.data = at.view().data;
      const auto same = [&](const auto& op, const View& host_index, const View& device_index) {
        const std::string want = text_of<IndexError>([&] { op(test::cpu(), x.view(), host_index, y.view()); });
        EXPECT_EQ(text_of<IndexError>([&] { op(device, dx, device_index, dy); }), want);
        EXPECT_NE(want.find(std::to_string(bad)), std::string::npos) << want;
      };
      same([&](Backend& b, View v, View i, View w) { b.take_rows(c, v, i, w); }, index.view(), at);
      same([&](Backend& b, View v, View i, View w) { b.add_rows(c, i, w, -100, v); }, index.view(), at);
      const auto narrow = [](View v) { return v.sizes[1] = 1, v; };
      same([&](Backend& b, View v, View i, View w) { b.gather(c, 0, narrow(v), i, narrow(w)); }, column, device_column);
      same([&](Backend& b, View v, View i, View w) { b.scatter(c, true, 0, i, narrow(w), narrow(v)); }, column, device_column);
      same([&](Backend& b, View v, View i, View w) { b.scatter(c, false, 0, i, narrow(w), narrow(v)); }, column, device_column);
    }
  });
}

TEST(SimtIndex, rows_with_a_bad_index_are_left_out_and_the_others_done) {
  each_device([](CudaBackend& device) {
    Context c;
    Array<float> x(Shape{5, 3}), y(Shape{40, 3});
    Array<int32_t> index(Shape{40});
    x.fill(1), y.fill(7), index.random(1, 0, 5);
    index[33] = 77;
    const Mirror at(index.view()), from(x.view()), to(y.view());
    EXPECT_THROW(device.take_rows(c, from, at, to), IndexError);
    to.fetch();
    for (int64_t i = 0; i < 120; ++i) ASSERT_EQ(y[i], i / 3 == 33 ? 7.0f : 1.0f);
    index[33] = 0;
    const Mirror good(index.view());
    EXPECT_NO_THROW(device.take_rows(c, from, good, to));
  });
}

TEST(SimtIndex, rows_of_nothing_and_no_rows_do_nothing) {
  Context c;
  CudaBackend& device = simt::device();
  Array<float> none(Shape{0, 3}), flat(Shape{5, 0}), x(Shape{5, 3});
  Array<int64_t> index(Shape{0}), four(Shape{4});
  four.fill(4);
  const Mirror n(none.view()), f(flat.view()), m(x.view()), i(index.view()), j(four.view());
  const int64_t before = simt::launches();
  device.take_rows(c, m, i, n);
  device.add_rows(c, i, n, -1, m);
  EXPECT_EQ(simt::launches(), before);
  View out = f;
  out.sizes[0] = 4;
  device.take_rows(c, f, j, out);
  device.add_rows(c, j, out, -1, f);
  four[1] = 5;
  const Mirror bad(four.view());
  EXPECT_THROW(device.take_rows(c, f, bad, out), IndexError);
  EXPECT_THROW(device.add_rows(c, bad, out, -1, f), IndexError);
}

template <class T, class I> void check_along(CudaBackend& device, const Shape& sizes, const Shape& picked, int dim, const Shape& strides = {}) {
  SCOPED_TRACE(to_string(picked) + " of " + to_string(sizes) + " along " + std::to_string(dim));
  Context c;
  Shape index_strides = contiguous_strides(picked);
  for (int64_t& s : index_strides) s *= 2;
  Array<T> x(sizes, strides), want(picked), got(picked);
  Array<I> index(picked, index_strides);
  x.random(1, -9, 9), index.random(2, 0, static_cast<double>(sizes[dim]));
  const auto reached = [&](View v) {
    for (int d = 0; d < v.ndim(); ++d)
      if (d != dim) v.sizes[d] = picked[d];
    return v;
  };
  test::cpu().gather(c, dim, reached(x.view()), index.view(), want.view());
  const Mirror from(x.view()), at(index.view()), to(got.view());
  device.gather(c, dim, reached(from), at, to);
  to.fetch();
  expect_same(want, got);

  for (const bool add : {false, true}) {
    Array<T> host(sizes, strides), scattered(sizes, strides);
    host.random(3, -9, 9), scattered.random(3, -9, 9);
    test::cpu().scatter(c, add, dim, index.view(), want.view(), reached(host.view()));
    const Mirror onto(scattered.view());
    device.scatter(c, add, dim, at, to, reached(onto));
    onto.fetch();
    expect_same(host, scattered, add && sizeof(T) == 2 ? 0.05 : 0);  // halves of a long line are rounded once
  }
}

TEST(SimtIndex, gathers_and_scatters_follow_every_dim) {
  each_device([](CudaBackend& device) {
    for (int dim = 0; dim < 3; ++dim) {
      Shape picked{5, 7, 3};
      picked[dim] = 4;
      check_along<float, int64_t>(device, {5, 7, 3}, picked, dim, {1, 5, 35});
      check_along<double, int32_t>(device, {6, 7, 4}, picked, dim);
      check_along<Half, int64_t>(device, {6, 7, 4}, picked, dim);
      check_along<bool, int64_t>(device, {6, 7, 4}, picked, dim);
    }
    check_along<int64_t, int64_t>(device, {3000}, {2500}, 0);
    check_along<int32_t, int32_t>(device, {9, 5}, {9, 1}, 1);
  });
}

TEST(SimtIndex, long_lines_scatter_in_order_too) {
  each_device([](CudaBackend& device) {
    check_along<float, int64_t>(device, {10}, {900}, 0);           // one line, many equal indices
    check_along<float, int32_t>(device, {40000}, {5000}, 0);       // sorted by digits
    check_along<double, int64_t>(device, {3, 50, 2}, {3, 100, 2}, 1, {100, 1, 50});
    check_along<BFloat16, int64_t>(device, {4, 6}, {4, 60}, 1);
    check_along<uint8_t, int64_t>(device, {60, 4}, {33, 4}, 0);
    check_along<float, int64_t>(device, {200, 6}, {200, 40}, 1);   // many lines: a thread each
  });
}

template <class T> void check_triangle(CudaBackend& device, const Shape& sizes, const Shape& strides) {
  Context c;
  const int64_t n = sizes[sizes.size() - 2];
  Array<T> x(sizes, strides), want(sizes), got(sizes);
  x.random(1, 1, 9);
  const Mirror from(x.view());
  for (const int64_t k : {-n - 1, -n + 1, int64_t{-1}, int64_t{0}, int64_t{2}, sizes.back() - 1, sizes.back() + 1})
    for (const bool upper : {false, true}) {
      SCOPED_TRACE(to_string(sizes) + (upper ? " upper " : " lower ") + std::to_string(k));
      test::cpu().triangle(c, upper, k, x.view(), want.view());
      const Mirror to(got.view());
      device.triangle(c, upper, k, from, to);
      to.fetch();
      expect_same(want, got);
    }
}

TEST(SimtIndex, triangles_keep_their_side_of_the_diagonal) {
  each_device([](CudaBackend& device) {
    check_triangle<float>(device, {7, 8}, {});
    check_triangle<float>(device, {2, 5, 7}, {35, 1, 5});
    check_triangle<Half>(device, {3, 33, 16}, {});
    check_triangle<uint8_t>(device, {2, 2, 3, 48}, {});
    check_triangle<int64_t>(device, {1, 700}, {});
    check_triangle<double>(device, {301, 1}, {});
  });
}

}  // namespace
}  // namespace weft::cuda
