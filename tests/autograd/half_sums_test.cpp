// Sums and counts of half types: they are rounded once, however many numbers go into them.
#include <cmath>

#include <gtest/gtest.h>

#include <weft/weft.h>

namespace weft {
namespace {

using Numbers = std::vector<double>;
Numbers elements(const Tensor& x) { return x.to_vector<double>(); }
Tensor same_place(int64_t n) { return zeros({n}, {.dtype = kInt64}); }

TEST(HalfSums, many_numbers_that_meet_at_one_place) {
  for (const DType t : {kBFloat16, kFloat16}) {
    const TensorOptions half{.dtype = t};
    const Tensor at = same_place(3000), src = ones({3000}, half), to = zeros({1}, half);
    const double all = full({1}, 3000, half).item<double>();
    EXPECT_EQ(elements(scatter_add(to, 0, at, src)), (Numbers{all}));
    EXPECT_EQ(elements(index_add(to, 0, at, src)), (Numbers{all}));
    EXPECT_EQ(elements(scatter_reduce(to, 0, at, src, ScatterReduce::kSum)), (Numbers{all}));
    for (const bool own : {false, true})
      EXPECT_EQ(elements(scatter_reduce(ones({1}, half), 0, at, src, ScatterReduce::kMean, own)),
                (Numbers{1}));
    EXPECT_EQ(elements(bincount(at, src)), (Numbers{all}));
  }
  const Tensor many = ones({70000}, {.dtype = kFloat16}), none = zeros({1}, {.dtype = kFloat16});
  EXPECT_EQ(elements(scatter_reduce(none, 0, same_place(70000), many, ScatterReduce::kMean, false)),
            (Numbers{1}));
  const Tensor factors = full({3000}, 1 + 0x1p-10, {.dtype = kFloat16});
  const Tensor product = scatter_reduce(none + 1, 0, same_place(3000), factors, ScatterReduce::kProd);
  EXPECT_NEAR(product.item<double>(), std::pow(1 + 0x1p-10, 3000), 0.02);
}

TEST(HalfSums, gradients_that_meet_at_one_place) {
  const double all = full({1}, 3000, {.dtype = kBFloat16}).item<double>();
  const Tensor at = same_place(3000);
  const auto gradient = [&](const Shape& sizes, auto&& f) {
    const Tensor x = ones(sizes, {.dtype = kBFloat16, .requires_grad = true});
    f(x).sum().backward();
    return elements(x.grad())[0];
  };
  EXPECT_EQ(gradient({1}, [&](const Tensor& x) { return gather(x, 0, at); }), all);
  EXPECT_EQ(gradient({1}, [&](const Tensor& x) { return index_select(x, 0, at); }), all);
  EXPECT_EQ(gradient({1}, [&](const Tensor& x) { return x[at]; }), all);
  EXPECT_EQ(gradient({1, 2}, [&](const Tensor& x) { return embedding(x, at); }), all);
}

TEST(HalfSums, ties_share_a_gradient_however_many_they_are) {
  const int64_t n = 70000;
  const double g = 512, share = full({1}, g / static_cast<double>(n), {.dtype = kFloat16}).item<double>();
  const auto check = [&](const char* name, auto&& f) {
    const Tensor x = ones({n}, {.dtype = kFloat16, .requires_grad = true});
    f(x).backward(full({}, g, {.dtype = kFloat16}));
    const Numbers found = elements(x.grad());
    EXPECT_EQ(found.front(), share) << name;
    EXPECT_EQ(found.back(), share) << name;
  };
  check("max", [](const Tensor& x) { return max(x); });
  check("min", [](const Tensor& x) { return min(x); });
  check("amax", [](const Tensor& x) { return amax(x, {0}); });
  check("median", [](const Tensor& x) { return median(x); });
  check("norm", [](const Tensor& x) { return norm(x, INFINITY); });
  for (const ScatterReduce rule : {ScatterReduce::kAmax, ScatterReduce::kAmin})
    check("scatter_reduce", [&](const Tensor& x) {
      return scatter_reduce(zeros({1}, {.dtype = kFloat16}), 0, same_place(n), x, rule, false).sum();
    });
}

}  // namespace
}  // namespace weft
