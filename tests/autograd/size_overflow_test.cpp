// Sizes whose product, sum or reach is beyond int64: a ShapeError in the op's name, before anything is
// allocated or read.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include <weft/autograd/ops/ops.h>

#include "support/errors.h"
#include "support/leaf.h"

namespace weft {
namespace {

using test::kMost;
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kLarge = int64_t{1} << 32;
using test::error_of;
using test::has;

TEST(SizeOverflow, expand_and_broadcasting) {
  EXPECT_TRUE(has(error_of<ShapeError>([] {
                    ones({1}).expand({kLarge, kLarge});
                  }),
                  "expand: [4294967296, 4294967296] has more elements"));
  const Tensor tall = ones({1, 1}).expand({kLarge, 1}), wide = ones({1}).expand({kLarge});
  EXPECT_TRUE(has(error_of<ShapeError>([&] { add(tall, wide); }), "add: "));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { where(ones({1}, {.dtype = kBool}), tall, wide); }), "where: "));
}

TEST(SizeOverflow, factories) {
  EXPECT_TRUE(has(error_of<ShapeError>([] {
                    empty({kLarge, kLarge});
                  }),
                  "more elements than an int64 counts"));
  EXPECT_TRUE(has(error_of<ShapeError>([] {
                    zeros({kLarge, kLarge, 0});
                  }),
                  "more elements than an int64 counts"));
  EXPECT_TRUE(has(error_of<ShapeError>([] {
                    full({kLarge, int64_t{1} << 30}, 1, {.dtype = kFloat64});
                  }),
                  "too large"));
  EXPECT_TRUE(has(error_of<ShapeError>([] { from_vector<float>({}, {kLarge, kLarge}); }), "more elements"));
  EXPECT_TRUE(has(error_of<ShapeError>([] { eye(kLarge); }), "more elements"));
}

TEST(SizeOverflow, views) {
  EXPECT_TRUE(has(error_of<ShapeError>([] {
                    zeros({0}).view({kLarge, kLarge});
                  }),
                  "view: [4294967296, 4294967296]"));
  EXPECT_TRUE(has(error_of<ShapeError>([] { zeros({0}).reshape({-1, kLarge, kLarge}); }), "reshape: "));
  const Tensor x = arange(10);
  EXPECT_EQ(slice(x, 0, 2, 10, kMost).to_vector<int64_t>(), std::vector<int64_t>{2});
  EXPECT_EQ(chunk(x, kMost).size(), 10u);
  EXPECT_TRUE(has(error_of<ShapeError>([&] { split(x, Shape{kMost, kMost, 12}, 0); }), "split: "));
}

TEST(SizeOverflow, as_strided_reaches_nothing_beyond_its_tensor) {
  const Tensor x = ones({4});
  const int64_t far = int64_t{1} << 62;
  for (const Shape& strides : {Shape{far, far}, Shape{far, 1}, Shape{kMost, kMost}})
    EXPECT_TRUE(has(error_of<ShapeError>([&] {
                      as_strided(x, {5, 3}, strides);
                    }),
                    "as_strided: "))
        << to_string(strides);
  EXPECT_TRUE(has(error_of<ShapeError>([&] { as_strided(x, {2}, {1}, kMost); }), "as_strided: "));
  EXPECT_TRUE(has(error_of<ShapeError>([&] {
                    as_strided(x, {kLarge, kLarge}, {0, 0});
                  }),
                  "as_strided: [4294967296, 4294967296] has more"));
  EXPECT_EQ(as_strided(x, {1, 2}, {far, 1}).numel(), 2);  // a single row goes nowhere
  EXPECT_TRUE(has(error_of<IndexError>([&] { alias(x, {5, 3}, {far, far}, 0); }), "alias: "));
}

TEST(SizeOverflow, arrangements) {
  const Tensor x = ones({2}), wide = ones({1}).expand({kMost});
  EXPECT_TRUE(has(error_of<ShapeError>([&] { repeat(x, {kMost}); }), "repeat: "));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { repeat(x, {kLarge, kLarge}); }), "repeat: "));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { pad(x, {kMost, kMost}); }), "pad: "));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { cat({wide, wide, x}); }), "cat: "));
  EXPECT_TRUE(
      has(error_of<ShapeError>([&] { outer(ones({1}).expand({kLarge}), ones({1}).expand({kLarge})); }),
          "more elements"));
}

TEST(SizeOverflow, a_diagonal_far_away) {
  const Tensor x = arange(3), m = ones({2, 3});
  for (const int64_t k : {kMost, -kMost, kLeast, kMost - 2, kLarge})
    EXPECT_TRUE(has(error_of<ShapeError>([&] { diag(x, k); }), "diag: ")) << k;
  for (const int64_t k : {kMost, kLeast}) {
    EXPECT_EQ(diag(m, k).sizes(), (Shape{0}));
    EXPECT_EQ(diagonal(m, k).sizes(), (Shape{0}));
    EXPECT_EQ(tril(m, k).sum().item<int>(), k == kMost ? 6 : 0);
    EXPECT_EQ(triu(m, k).sum().item<int>(), k == kMost ? 0 : 6);
    EXPECT_EQ(roll(x, k, 0).sizes(), (Shape{3}));
  }
}

TEST(SizeOverflow, the_error_names_the_operation) {
  const auto starts = [](const char* name, const std::function<void()>& call) {
    EXPECT_TRUE(error_of<ShapeError>(call).starts_with(std::string(name) + ": ")) << name;
  };
  const int64_t bytes = kMost / 4;  // elements that an int64 counts, bytes that it does not
  const Tensor ids = zeros({2}, {.dtype = kInt64}), x = ones({2});
  starts("linspace", [] { linspace(0, 1, kMost); });
  starts("arange", [] { arange(kMost); });
  starts("eye", [] { eye(kLarge); });
  starts("eye", [] { eye(kLarge / 2, {.dtype = kFloat64}); });
  starts("one_hot", [&] { one_hot(ids, kMost); });
  starts("one_hot", [&] { one_hot(ids, bytes); });
  starts("bincount", [&] { bincount(ids, Tensor(), kMost); });
  starts("multinomial", [&] { multinomial(x, kMost, true); });
  starts("multinomial", [&] { multinomial(ones({3, 2}), bytes * 2, true); });
  for (const Shape& sizes : {Shape{kLarge, kLarge}, Shape{-1}, Shape{kMost}}) {
    starts("zeros", [&] { zeros(sizes); });
    starts("ones", [&] { ones(sizes); });
    starts("full", [&] { full(sizes, 2); });
    starts("empty", [&] { empty(sizes); });
    starts("rand", [&] { rand(sizes); });
    starts("randn", [&] { randn(sizes); });
    starts("randint", [&] { randint(0, 3, sizes); });
  }
  starts("randperm", [] { randperm(kMost); });
  starts("repeat", [&] { repeat(x, {bytes}); });
  starts("pad", [&] { pad(x, {bytes, bytes}); });
  starts("repeat_interleave", [&] { repeat_interleave(x, bytes); });
  starts("outer", [] { outer(ones({1}).expand({kLarge}), ones({1}).expand({kLarge})); });
}

}  // namespace
}  // namespace weft
