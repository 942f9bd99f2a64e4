// Indexing and assignment by masks, slices and positions; memory of somebody else's; elements in plain loops;
// threads per scope.
#include <gtest/gtest.h>
#include <weft/weft.h>

#include <thread>

#include "support/errors.h"

using namespace weft;
using test::error_of;
using test::has;

namespace {

using Values = std::vector<double>;
Values list_of(const Tensor& x) { return x.to_vector<double>(); }
Tensor doubles(std::initializer_list<double> v) { return tensor(v, {.dtype = kFloat64}); }
Tensor integers(std::initializer_list<double> v) { return tensor(v, {.dtype = kInt64}); }
Tensor two_rows() { return arange(6).reshape({2, 3}).to(kFloat64); }  // {{0, 1, 2}, {3, 4, 5}}

}  // namespace

TEST(Typed, a_mask_is_read_and_assigned_to) {
  Tensor x = two_rows();
  EXPECT_EQ(list_of(x[x > 3]), (Values{4, 5}));
  EXPECT_EQ(x[x > 3].sum().item<double>(), 9);
  EXPECT_EQ(sum(x[x > 3] * 2).item<double>(), 18);
  x[x > 3] = -1;
  EXPECT_EQ(list_of(x), (Values{0, 1, 2, 3, -1, -1}));
  x[x < 0] = doubles({7, 8});
  x[x == 0] += 0.5;
  x[x > 6] *= doubles({1, 2});
  EXPECT_EQ(list_of(x), (Values{0.5, 1, 2, 3, 7, 16}));
  x[x > 1] = x[x > 1] - 1;
  EXPECT_EQ(list_of(x), (Values{0.5, 1, 1, 2, 6, 15}));
  const Tensor rows = tensor({0, 1}, {.dtype = kBool});
  x[rows] = 9;
  EXPECT_EQ(list_of(x[rows]), (Values{9, 9, 9}));
  x[0][x[0] < 1] = 4;
  EXPECT_EQ(list_of(x), (Values{4, 1, 1, 9, 9, 9}));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { x[rows] = zeros({2}, {.dtype = kFloat64}); }),
                  "values [2] do not broadcast to [1, 3]"));
}

TEST(Typed, positions_are_read_and_assigned_to) {
  Tensor x = two_rows();
  EXPECT_EQ(list_of(x[integers({1, 0, 1})]), (Values{3, 4, 5, 0, 1, 2, 3, 4, 5}));
  x[integers({-1})] = 0;
  EXPECT_EQ(list_of(x), (Values{0, 1, 2, 0, 0, 0}));
  x[integers({0, 0})] += 1;  // read, added to, written: twice the same position counts once
  EXPECT_EQ(list_of(x[0]), (Values{1, 2, 3}));
  x.index_put_({integers({0, 0})}, 1, true);
  EXPECT_EQ(list_of(x[0]), (Values{3, 4, 5}));
  x.index_put_({Slice(), integers({2, 0})}, doubles({8, 7}));
  EXPECT_EQ(list_of(x), (Values{7, 4, 8, 7, 0, 8}));
  x.index_put_({Ellipsis, -2}, 6);
  EXPECT_EQ(list_of(x.index({Slice(), 1})), (Values{6, 6}));
  EXPECT_TRUE(has(error_of<IndexError>([&] { x[integers({2})]; }), "index 2 is outside dim 0 of [2, 3]"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { x[doubles({1})]; }), "index: indices must be int64 or int32"));
}

TEST(Typed, a_selection_with_a_name_is_a_tensor_of_its_own) {
  Tensor x = two_rows();
  auto y = x[x > 3];
  y = doubles({1});
  y += 1;
  EXPECT_EQ(list_of(y), (Values{2}));
  const Tensor z = x[x > 3];
  std::vector<Tensor> all{x[x > 4], z};
  EXPECT_EQ(list_of(all[0]), (Values{5}));
  EXPECT_EQ(list_of(x), (Values{0, 1, 2, 3, 4, 5}));
}

TEST(Typed, a_write_to_a_selection_by_any_operator_or_method_goes_to_x) {
  Tensor x = two_rows();
  const Tensor last = tensor({0, 0, 1}, {.dtype = kBool}), at = integers({-1, 0});
  x.index({0, last}) += 100;
  EXPECT_EQ(list_of(x), (Values{0, 1, 102, 3, 4, 5}));
  x.index({Slice(), at}).mul_(2);
  EXPECT_EQ(list_of(x), (Values{0, 1, 204, 6, 4, 10}));
  x.index({1, last}) = 7;
  x.index({Slice(0, 1), at}) = doubles({8, 9});
  EXPECT_EQ(list_of(x), (Values{9, 1, 8, 6, 4, 7}));
  x[x > 7].fill_(77);
  EXPECT_EQ(list_of(x), (Values{77, 1, 77, 6, 4, 7}));
  x[x > 70].zero_().add_(2).neg_();
  EXPECT_EQ(list_of(x), (Values{-2, 1, -2, 6, 4, 7}));
  x[x < 0].copy_(doubles({3, 5}));
  x[x == 1].index_put_({0}, 4);
  EXPECT_EQ(list_of(x), (Values{3, 4, 5, 6, 4, 7}));
  x.index({x > 4}) %= 5;
  EXPECT_EQ(list_of(x), (Values{3, 4, 0, 1, 4, 2}));
  x.index({0}) *= 2;  // a view
  x.index({Ellipsis, 1}).clamp_(5, 6);
  x.index({1, Slice(0, 1)}) = x.index({0, Slice(0, 1)});
  EXPECT_EQ(list_of(x), (Values{6, 6, 0, 6, 5, 2}));
  Tensor y = x[x > 5].mul_(10), named = x.index({last.nonzero().select(1, 0) - 1});
  named.zero_();
  EXPECT_EQ(list_of(y), (Values{60, 60, 60}));
  EXPECT_EQ(list_of(x), (Values{60, 60, 0, 60, 5, 2}));
  Tensor w = doubles({1, 2, 3}).requires_grad_(), z = w * 2;
  z.index({w > 1}) *= 3;
  z.sum().backward();
  EXPECT_EQ(list_of(w.grad()), (Values{2, 6, 6}));
}

TEST(Typed, a_write_that_would_be_lost_is_refused) {
  Tensor x = two_rows();
  const Tensor at = integers({0}), mask = x > 3;
  const auto lost = [](const char* write, const std::function<void()>& f) {
    EXPECT_TRUE(has(error_of<ValueError>(f), write)) << write;
  };
  lost("operator+=: the tensor that is written to, of sizes [1, 3], is a copy",
       [&] { x.index_select(0, at) += 1; });
  lost("index_put_", [&] { x.clone() += 1; });
  lost("operator+=", [&] { (x * 1) += 3; });
  lost("operator-=", [&] { x.clone()[0] -= x[0]; });
  lost("operator*=", [&] { x.gather(1, integers({0}).view({1, 1})) *= 2; });
  lost("operator/=", [&] { x.masked_select(mask) /= 2; });
  lost("operator%=", [&] { (x + 1) %= 2; });
  lost("operator&=", [&] { (x > 1) &= mask; });
  lost("operator|=", [&] { (x > 1) |= true; });
  lost("operator^=", [&] { (!mask) ^= mask; });
  lost("operator+=", [&] { (x + 1)[mask] += 1; });
  lost("fill_", [&] { (x + 1)[mask].fill_(1); });
  lost("operator=", [&] { (x + 1).index({0}) = 1; });
  lost("mul_", [&] { (x + 1).index({0, at}).mul_(2); });
  EXPECT_EQ(list_of(x), (Values{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(list_of(x.clone().mul_(2)), list_of(x * 2));  // its result is used
  const auto alias = [&] { return x; };
  alias() += 1;
  x.t()[0] += 1;
  x.slice(1, 1) -= 1;
  EXPECT_EQ(list_of(x), (Values{2, 1, 2, 5, 4, 5}));
}

TEST(Typed, index_takes_numbers_slices_new_dims_and_the_rest) {
  const Tensor x = arange(24).reshape({2, 3, 4});
  EXPECT_EQ(list_of(x.index({1, 2})), (Values{20, 21, 22, 23}));
  EXPECT_EQ(x.index({None, Ellipsis, 0}).sizes(), (Shape{1, 2, 3}));
  EXPECT_EQ(list_of(x.index({0, Slice(None, None, 2), -1})), (Values{3, 11}));
  EXPECT_EQ(list_of(x[{1, 2}][0][0]), list_of(x[1][0]));
  EXPECT_EQ(x.index({Slice(), integers({0, 1}), integers({2, 3})}).sizes(), (Shape{2, 2}));
  EXPECT_EQ(x.index({integers({0, 1}), Slice(), integers({2, 3})}).sizes(), (Shape{2, 3}));
  EXPECT_TRUE(x.index({Slice(0, 1)}).shares_storage(x));
  EXPECT_EQ(x.index({integers({})}).sizes(), (Shape{0, 3, 4}));
}

TEST(Typed, a_position_without_dims_beside_others_is_a_number) {
  const Tensor x = arange(120).reshape({2, 3, 4, 5}), one = tensor(1).to(kInt64),
               two = tensor({1, 3}).to(kInt64);
  EXPECT_EQ(one.dim(), 0);
  const Tensor expected = x[1].index({Slice(), two});
  EXPECT_EQ(expected.sizes(), Shape({3, 2, 5}));
  for (const Tensor& at : {one, one.to(kInt32), one - 2})
    EXPECT_TRUE(x.index({at, Slice(), two}).equal(expected));
  const Tensor zero_one = tensor({0, 1}).to(kInt64);
  EXPECT_TRUE(x.index({zero_one, Slice(), one}).equal(x.select(2, 1).index({zero_one})));
  EXPECT_EQ(x.index({one, Slice(), Slice(), ones({}, kBool)}).sizes(), Shape({3, 4, 1, 5}));
  EXPECT_TRUE(x.index({one, Slice(), one}).equal(x.select(0, 1).select(1, 1)));
  Tensor y = x.clone();
  y.index({one, Slice(), two}) = -expected;
  EXPECT_TRUE(y[1].index({Slice(), two}).equal(-expected));
  EXPECT_TRUE(y[0].equal(x[0]) && y[1].index({Slice(), 0}).equal(x[1].index({Slice(), 0})));
  EXPECT_THROW(x.index({one + 1, Slice(), two}), IndexError);
}

TEST(Typed, writes_by_index_carry_gradients) {
  Tensor w = doubles({1, 2, 3}).requires_grad_(), v = doubles({5}).requires_grad_();
  Tensor y = w * 2;
  y[y > 3] = v;
  y[integers({0})] *= 3;
  (y * doubles({1, 10, 100})).sum().backward();
  EXPECT_EQ(list_of(w.grad()), (Values{6, 0, 0}));
  EXPECT_EQ(list_of(v.grad()), (Values{110}));
  Tensor u = doubles({1, 2, 3}).requires_grad_();
  u[u > 1].sum().backward();
  EXPECT_EQ(list_of(u.grad()), (Values{0, 1, 1}));
  EXPECT_TRUE(has(error_of<AutogradError>([&] { u[u > 1] = 0; }), "leaf"));
}

TEST(Typed, a_masked_scatter_writes_in_order) {
  Tensor x = two_rows();
  x.masked_scatter_(x > 2, doubles({9, 8, 7, 6}));
  EXPECT_EQ(list_of(x), (Values{0, 1, 2, 9, 8, 7}));
  EXPECT_EQ(list_of(x.masked_scatter(x < 1, doubles({5}))), (Values{5, 1, 2, 9, 8, 7}));
}

TEST(Typed, an_accessor_reads_and_writes_elements) {
  Tensor x = two_rows();
  const auto a = x.t().accessor<double, 2>();
  EXPECT_EQ(a.size(0), 3);
  double total = 0;
  for (int64_t i = 0; i < a.size(0); ++i)
    for (int64_t j = 0; j < a.size(1); ++j) total += a[i][j] * static_cast<double>(i + 1);
  EXPECT_EQ(total, 3 + 2 * 5 + 3 * 7);
  a[2][1] = -1;
  x.accessor<double, 2>()[0][0] = 4;
  EXPECT_EQ(list_of(x), (Values{4, 1, 2, 3, 4, -1}));
  const auto read = x.accessor<const double, 2>();
  EXPECT_EQ(read[1][1], 4);
  EXPECT_TRUE(has(error_of<DTypeError>([&] { x.accessor<float, 2>(); }), "float64"));
  EXPECT_TRUE(
      has(error_of<ShapeError>([&] { x.accessor<double, 1>(); }), "asked for 1 dims, the tensor is [2, 3]"));
  const Accessor<double, 2, true> checked(x.data<double>(), x.sizes().data(), x.strides().data());
  EXPECT_TRUE(has(error_of<IndexError>([&] { checked[1][3]; }), "index 3 is outside a dim of 3"));
  EXPECT_TRUE(has(error_of<IndexError>([&] { checked[-1]; }), "index -1"));
}

TEST(Typed, memory_given_as_const_is_read_and_never_written) {
  static const float table[] = {1, 2, 3, 4, 5, 6};
  int released = 0;
  {
    Tensor x = from_blob(
        table, {2, 2}, {3, 1}, {}, [](void* n) { ++*static_cast<int*>(n); }, &released);
    EXPECT_EQ(list_of(x), (Values{1, 2, 4, 5}));
    EXPECT_EQ(list_of(from_blob(table, {3}, {2}, {})), (Values{1, 3, 5}));
    EXPECT_EQ(list_of(from_blob(table, 6).view({2, 3}).sum(1)), (Values{6, 15}));
    EXPECT_EQ(*x.data<const float>(), 1);
    for (const std::function<void()>& write : std::vector<std::function<void()>>{
             [&] { x += 1; }, [&] { x[0] = 5; }, [&] { x[x > 1] = 0; }, [&] { x.detach().zero_(); }}) {
      const NoGrad quiet;
      EXPECT_TRUE(has(error_of<ValueError>(write), "from_blob was given as const"));
    }
    Tensor weight = from_blob(table, {6}, {.requires_grad = true});
    (weight * 2).sum().backward();
    EXPECT_EQ(list_of(weight.grad()), Values(6, 2));
    EXPECT_TRUE(has(error_of<ValueError>([&] { optim::SGD({weight}, {.lr = 0.1}); }), "given as const"));
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
  EXPECT_EQ(table[0], 1);
}

TEST(Typed, a_release_without_a_context_gets_the_memory) {
  static std::vector<void*> freed;
  freed.clear();
  const auto release = [](void* p) {
    freed.push_back(p);
    delete[] static_cast<float*>(p);
  };
  const auto fresh = [] { return new float[3]{1, 2, 3}; };
  std::vector<void*> given;
  for (float* p : {fresh(), fresh(), fresh(), fresh()}) {
    const float* read = p;
    const Shape unit{1};
    const size_t way = given.size();
    const Tensor x = way == 0   ? from_blob(p, {3}, {}, release)
                     : way == 1 ? from_blob(p, {3}, unit, {}, release)
                     : way == 2 ? from_blob(read, {3}, {}, release)
                                : from_blob(read, {3}, unit, {}, release);
    EXPECT_EQ(list_of(x), (Values{1, 2, 3}));
    given.push_back(p);
  }
  EXPECT_EQ(freed, given);
}

TEST(Typed, memory_with_strides_is_wrapped_in_place) {
  double memory[6] = {1, 2, 3, 4, 5, 6};
  Tensor x = from_blob(memory, {3, 2}, {1, 3}, {.dtype = kFloat64});
  EXPECT_EQ(list_of(x), (Values{1, 4, 2, 5, 3, 6}));
  x[0] = 0;
  EXPECT_EQ(memory[3], 0);
  EXPECT_TRUE(has(error_of<ShapeError>([&] { from_blob(memory, {3}, {1, 1}, {}); }), "differ in length"));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { from_blob(memory, {3}, {-1}, {}); }), "[-1]"));
}

TEST(Typed, a_thread_scope_is_its_threads_own) {
  const int before = num_threads();
  set_num_threads(3);
  {
    const ThreadScope one(1);
    EXPECT_EQ(num_threads(), 1);
    const Tensor alone = sum(arange(300000).to(kFloat32).sin());
    {
      const ThreadScope two(2);
      EXPECT_EQ(num_threads(), 2);
      EXPECT_TRUE(sum(arange(300000).to(kFloat32).sin()).equal(alone));
    }
    EXPECT_EQ(num_threads(), 1);
    int elsewhere = 0;
    std::thread([&] { elsewhere = num_threads(); }).join();
    EXPECT_EQ(elsewhere, 3);
    set_num_threads(4);
    EXPECT_EQ(num_threads(), 1);
  }
  EXPECT_EQ(num_threads(), 4);
  EXPECT_THROW(ThreadScope(0), ValueError);
  set_num_threads(before);
}
