// Gathering, scattering, counting and triangles against plain loops, with bad indices refused before anything
// is written.
#include <limits>

#include "arrays.h"

namespace weft {
namespace {

using test::Array;
using test::cpu;
using test::each_isa;

template <class T, class I> void check_rows() {
  Context context;
  const int64_t v = 11, n = 29, k = 7;
  Array<T> x(Shape{v, k}, {1, v}), y(Shape{n, k}), dx(Shape{v, k});
  Array<I> index(Shape{n}, {2});
  x.random(1, 0, 9);
  index.random(2, 0, v);
  cpu().take_rows(context, x.view(), index.view(), y.view());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j) ASSERT_EQ(y.at(i * k + j), x.at(static_cast<int64_t>(index[i]) * k + j));
  dx.fill(1);
  cpu().add_rows(context, index.view(), y.view(), 3, dx.view());
  std::vector<double> want(static_cast<size_t>(v * k), 1.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j)
      if (index[i] != 3) want[static_cast<size_t>(index[i] * k + j)] += y.at(i * k + j);
  for (int64_t i = 0; i < v * k; ++i)
    ASSERT_NEAR(dx.at(i), want[static_cast<size_t>(i)],
                test::tolerance<T>(8) * std::max(1.0, want[static_cast<size_t>(i)]));
}

TEST(Index, rows_are_taken_and_added) {
  each_isa([] {
    check_rows<float, int64_t>();
    check_rows<double, int32_t>();
    check_rows<Half, int64_t>();
    check_rows<int64_t, int32_t>();
  });
}

TEST(Index, adding_rows_gives_the_same_bits_for_any_thread_count) {
  test::expect_same_bits_for_any_thread_count([] {
    Context context;
    Array<float> dy(Shape{4001, 37}), dx(Shape{53, 37});
    Array<int64_t> index(Shape{4001});
    dy.random(1);
    index.random(2, 0, 53);
    dx.fill(0);
    cpu().add_rows(context, index.view(), dy.view(), -1, dx.view());
    return dx.bytes();
  });
}

TEST(Index, sums_of_integers_wrap_around) {
  each_isa([] {
    Context context;
    Array<int32_t> y(Shape{3, 20}), src(Shape{2, 20});
    Array<int32_t> rows(Shape{2}), index(Shape{2, 20});
    y.fill(std::numeric_limits<int32_t>::max()), src.fill(std::numeric_limits<int32_t>::max()), rows.fill(1),
        index.fill(2);
    cpu().add_rows(context, rows.view(), src.view(), -1, y.view());
    cpu().scatter(context, ScatterRule::kAdd, 0, index.view(), src.view(), y.view());
    for (int64_t j = 0; j < 20; ++j) {
      EXPECT_EQ(y[j], std::numeric_limits<int32_t>::max());
      EXPECT_EQ(y[20 + j], std::numeric_limits<int32_t>::max() - 2);  // 3 (2^31 - 1) - 2^32
      EXPECT_EQ(y[40 + j], std::numeric_limits<int32_t>::max() - 2);
    }
  });
}

TEST(Index, bad_indices_are_refused_before_anything_is_written) {
  Context context;
  Array<float> x(Shape{5, 3}), y(Shape{4, 3}), dx(Shape{5, 3});
  Array<int64_t> index(Shape{4});
  x.random(1);
  for (int64_t bad : {int64_t{5}, int64_t{-1}, int64_t{1} << 40}) {
    y.fill(7), dx.fill(7), index.fill(1);
    index[2] = bad;
    EXPECT_THROW(cpu().take_rows(context, x.view(), index.view(), y.view()), IndexError);
    EXPECT_THROW(cpu().add_rows(context, index.view(), y.view(), -100, dx.view()), IndexError);
    View column = index.view();
    column.sizes = {4, 3}, column.strides = {1, 0};
    EXPECT_THROW(cpu().gather(context, 0, x.view(), column, y.view()), IndexError);
    EXPECT_THROW(cpu().scatter(context, ScatterRule::kAdd, 0, column, y.view(), dx.view()), IndexError);
    for (int64_t i = 0; i < 12; ++i) ASSERT_EQ(y[i], 7.0f);
    for (int64_t i = 0; i < 15; ++i) ASSERT_EQ(dx[i], 7.0f);
  }
}

TEST(Index, gather_and_scatter_follow_every_dim) {
  each_isa([] {
    Context context;
    const Shape sizes{5, 7, 3};
    for (int dim = 0; dim < 3; ++dim) {
      Shape picked = sizes;
      picked[dim] = 4;
      Array<float> x(sizes, {1, 5, 35}), y(picked), sum(sizes), last(sizes);
      Array<int64_t> index(picked, {84, 12, 1});
      x.random(1);
      index.random(2, 0, static_cast<double>(sizes[dim]));
      cpu().gather(context, dim, x.view(), index.view(), y.view());
      sum.fill(1), last.fill(1);
      cpu().scatter(context, ScatterRule::kAdd, dim, index.view(), y.view(), sum.view());
      cpu().scatter(context, ScatterRule::kAssign, dim, index.view(), y.view(), last.view());
      std::vector<double> want_sum(static_cast<size_t>(sizes.numel()), 1.0), want_last = want_sum;
      for (int64_t i = 0; i < picked.numel(); ++i) {
        int64_t at[3], rest = i;
        for (int d = 2; d >= 0; --d) at[d] = rest % picked[d], rest /= picked[d];
        at[dim] = index[i];
        const auto from = static_cast<size_t>((at[0] * 7 + at[1]) * 3 + at[2]);
        ASSERT_EQ(y[i], x[static_cast<int64_t>(from)]);
        want_sum[from] += y.at(i);
        want_last[from] = y.at(i);
      }
      for (int64_t i = 0; i < sizes.numel(); ++i) {
        ASSERT_NEAR(sum.at(i), want_sum[static_cast<size_t>(i)], 1e-5);
        ASSERT_EQ(last.at(i), want_last[static_cast<size_t>(i)]);
      }
    }
  });
}

// An index that is the same all across the other dims moves rows at once.
TEST(Index, a_scatter_of_rows_is_that_of_their_elements) {
  each_isa([] {
    test::expect_same_bits_for_any_thread_count([] {
      Context context;
      std::vector<char> all;
      for (const Shape& strides : {Shape{}, Shape{1, 6, 1800}, Shape{1800, 1, 600}})
        for (int dim = 0; dim < 2; ++dim)
          for (const ScatterRule rule : {ScatterRule::kAssign, ScatterRule::kAdd, ScatterRule::kMul,
                                         ScatterRule::kMax, ScatterRule::kMin}) {
            Shape sizes{6, 300, 3}, picked = sizes, once{1, 1, 1}, broadcast(3, 0), place(3, 0);
            picked[dim] = once[dim] = 40;
            broadcast[dim] = 1, place[dim] = 1;
            Array<float> src(picked), rows(sizes, dim == 0 ? strides : Shape{}), elements(sizes);
            Array<int64_t> line(once, place), full(picked);
            src.random(1), rows.random(2), elements.random(2);
            line.random(3, 0, static_cast<double>(sizes[dim]));
            const View index{line.data(), kInt64, picked, broadcast};
            for (int64_t i = 0; i < picked.numel(); ++i) full[i] = line[i / (dim == 0 ? 900 : 3) % 40];
            cpu().scatter(context, rule, dim, index, src.view(), rows.view());
            cpu().scatter(context, rule, dim, full.view(), src.view(), elements.view());
            EXPECT_TRUE(rows.bytes() == elements.bytes())
                << "dim " << dim << ", rule " << static_cast<int>(rule) << ", strides " << to_string(strides);
            const std::vector<char> bytes = rows.bytes();
            all.insert(all.end(), bytes.begin(), bytes.end());
          }
      return all;
    });
  });
  Context context;
  Array<float> y(Shape{2, 3}), src(Shape{2, 3});
  Array<int32_t> bad(Shape{2});
  bad[0] = 0, bad[1] = 2;
  y.fill(1);
  EXPECT_THROW(cpu().scatter(context, ScatterRule::kAssign, 0, {bad.data(), kInt32, {2, 3}, {1, 0}},
                             src.view(), y.view()),
               IndexError);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y[i], 1);
}

TEST(Index, nonzero_lists_coordinates_in_row_major_order) {
  Context context;
  Array<float> x(Shape{5, 7}, {1, 5});
  x.fill(0);
  x[3] = 1, x[8] = -2, x[34] = NAN;
  ASSERT_EQ(cpu().count_nonzero(context, x.view()), 3);
  Array<int64_t> out(Shape{3, 2});
  cpu().nonzero(context, x.view(), out.view());
  const int64_t want[] = {0, 3, 1, 1, 4, 6};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(out[i], want[i]);
  Array<int32_t> none(Shape{0, 4});
  EXPECT_EQ(cpu().count_nonzero(context, none.view()), 0);
}

TEST(Index, triangles_keep_their_side_of_the_diagonal) {
  each_isa([] {
    Context context;
    Array<double> x(Shape{2, 5, 7}, {35, 1, 5}), y(Shape{2, 5, 7});
    x.random(1, 1, 2);
    for (int64_t k : {-6, -2, 0, 1, 3, 9})
      for (bool upper : {false, true}) {
        cpu().triangle(context, upper, k, x.view(), y.view());
        for (int64_t i = 0; i < 70; ++i) {
          const int64_t above = i % 7 - i / 7 % 5;
          ASSERT_EQ(y[i], (upper ? above >= k : above <= k) ? x[i] : 0.0);
        }
      }
  });
}

}  // namespace
}  // namespace weft
