// The reach of a write: copies that share nothing, views that share all, temporaries, memory that overlaps,
// and memory that is only read.
#include <limits>

#include <gtest/gtest.h>

#include <weft/weft.h>

#include "../support/errors.h"

namespace weft {
namespace {

using test::error_of;
using test::has;
using Numbers = std::vector<double>;

Numbers numbers_in(const Tensor& x) { return x.to_vector<double>(); }
Tensor positions(std::initializer_list<double> at) { return tensor(at, {.dtype = kInt64}); }

TEST(Writes, a_copy_shares_no_memory_with_its_source) {
  const Tensor x = tensor({{1., 2.}, {3., 4.}}), none = zeros({0, 2}), counts = positions({1, 1});
  for (const Tensor& y :
       {repeat_interleave(x, 1), repeat_interleave(x, 1, 0), repeat_interleave(x, 1, 1),
        repeat_interleave(x.narrow(0, 0, 1), 3, 0), repeat_interleave(x, counts, 1), repeat(x, {1, 1}),
        flip(x, {}), roll(x, 0, 0), tril(x, 5), pad(x, {0, 0}), nan_to_num(x), x.masked_select(x == x)})
    EXPECT_FALSE(y.shares_storage(x)) << to_string(y);
  EXPECT_TRUE(repeat_interleave(x.narrow(0, 0, 1), 3, 0).is_contiguous());
  EXPECT_FALSE(repeat_interleave(none, positions({}), 0).is_same(none));
  const Tensor whole = positions({1, 2});
  EXPECT_FALSE(nan_to_num(whole).shares_storage(whole));
  EXPECT_FALSE(round(whole).shares_storage(whole));
}

TEST(Writes, an_index_of_whole_dims_is_a_view_with_a_handle_of_its_own) {
  const Tensor x = tensor({{1., 2.}, {3., 4.}}, {.requires_grad = true});
  for (const std::vector<TensorIndex>& at :
       {std::vector<TensorIndex>{}, {Slice()}, {Ellipsis}, {Slice(), Ellipsis}, {Slice(), Slice()}}) {
    const Tensor h = x * 2, y = h.index(at);
    EXPECT_TRUE(y.shares_storage(h));
    EXPECT_FALSE(y.is_same(h));
    EXPECT_EQ(numbers_in(grad({y.sum()}, {x})[0]), (Numbers{2, 2, 2, 2}));
  }
  const Tensor h = x.detach() * 2;
  EXPECT_FALSE(x[Slice()].is_same(x));
  EXPECT_EQ(numbers_in(h.t().index({Slice()})), (Numbers{2, 6, 4, 8}));
  EXPECT_EQ(h.expand({3, 2, 2}).index({Slice()}).strides(), (Shape{0, 2, 1}));
  Tensor number = scalar_tensor(3);
  number.index({}).add_(1);
  EXPECT_EQ(number.item<double>(), 4);
}

TEST(Writes, overlapping_memory_of_two_tensors_is_read_before_it_is_written) {
  float a[4];
  const auto both = [&](auto&& f) {
    for (int i = 0; i < 4; ++i) a[i] = static_cast<float>(i + 1);
    Tensor p = from_blob(a, {3}), q = from_blob(a + 1, {3});
    f(p, q);
    return std::vector<float>(a, a + 4);
  };
  const std::vector<float> moved{1, 1, 2, 3};
  const Tensor all = arange(3);
  EXPECT_EQ(both([&](Tensor& p, Tensor& q) { q.index_put_({all}, p); }), moved);
  EXPECT_EQ(both([&](Tensor& p, Tensor& q) { q[all] = p; }), moved);
  const Tensor mask = ones({3}, {.dtype = kBool});
  EXPECT_EQ(both([&](Tensor& p, Tensor& q) { q.masked_scatter_(mask, p); }), moved);
  EXPECT_EQ(both([&](Tensor& p, Tensor& q) { q.copy_(p); }), moved);
  EXPECT_EQ(both([&](Tensor& p, Tensor& q) { q.add_(p); }), (std::vector<float>{1, 3, 5, 7}));
  EXPECT_EQ(both([&](Tensor& p, Tensor& q) { q.index_put_({all}, p, true); }),
            (std::vector<float>{1, 3, 5, 7}));
  for (const bool quotient : {false, true}) {
    const Tensor x = ones({3}, {.requires_grad = true});
    for (int i = 0; i < 4; ++i) a[i] = static_cast<float>(1 << i);
    Tensor b = from_blob(a, {3}), c = from_blob(a + 1, {3});
    b.copy_(x);
    a[3] = 8;
    const Tensor factor = c.clone();
    quotient ? b.div_(c) : b.mul_(c);
    EXPECT_EQ(numbers_in(grad({b.sum()}, {x})[0]), numbers_in(quotient ? 1 / factor : factor));
  }
}

TEST(Writes, every_compound_assignment_by_a_mask_or_positions_reaches_x) {
  const Tensor mask = tensor({1, 0, 1}, {.dtype = kBool}), at = positions({0, 2}), t = positions({6, 5});
  for (const Tensor& i : {mask, at}) {
    Tensor x = positions({12, 12, 12});
    x[i] &= t;
    EXPECT_EQ(numbers_in(x), (Numbers{4, 12, 4}));
    x[i] |= t;
    EXPECT_EQ(numbers_in(x), (Numbers{6, 12, 5}));
    x[i] ^= positions({1, 1});
    EXPECT_EQ(numbers_in(x), (Numbers{7, 12, 4}));
    x[i] += t, x[i] -= 1, x[i] *= 2;
    EXPECT_EQ(numbers_in(x), (Numbers{24, 12, 16}));
    auto named = x[i];
    named &= positions({0, 0});
    EXPECT_EQ(numbers_in(x), (Numbers{24, 12, 16}));
    EXPECT_EQ(numbers_in(named), (Numbers{0, 0}));
  }
}

TEST(Writes, an_assignment_to_a_copy_that_nothing_else_holds_is_refused) {
  Tensor x = tensor({{1., 2.}, {3., 4.}});
  const Tensor first = positions({0, 1}), grown = ones({2}, {.requires_grad = true});
  const auto refused = [](auto&& f) { EXPECT_TRUE(has(error_of<ValueError>(f), "x.index_put_(")); };
  refused([&] { (x + 0).index({first, 0}) = 3; });
  refused([&] { (x + 0).index({first, 0}) = first.to(kFloat32); });
  refused([&] { x.index_select(0, first) = 5; });
  refused([&] { x.masked_select(x > 1) = 7; });
  refused([&] { (x + 0)[0] = 5; });
  refused([&] { (x + 0)[0][Slice(0, 1)] = 5; });
  refused([&] { (grown + 0)[0] = 5; });
  refused([&] { (x + 0)[first] = 5; });
  refused([&] { (x + 0)[first] = x; });
  refused([&] { (x + 0)[x > 1] += 5; });
  refused([&] { (grown + 0)[Slice(0, 1)] = x[0][0]; });
  refused([&] { x[first][0] = 5; });
  refused([&] { x.t().reshape({4}) = 5; });
  EXPECT_EQ(numbers_in(x), (Numbers{1, 2, 3, 4}));

  x[0] = 5, x.t()[1] = x[1], x[0][first] = tensor({6, 8}), x.t()[first] += 0, x.reshape({4})[3] = 9;
  x[Slice(1, 2)][0][0] = 8;
  EXPECT_EQ(numbers_in(x), (Numbers{6, 8, 8, 9}));
  x.contiguous() = 1, x.to(kFloat32) = x, x.index({0, Slice()}) = 2;
  EXPECT_EQ(numbers_in(x), (Numbers{2, 2, 1, 1}));
  x.index({first, 0}) = 3, x.index({first, 1}) = first.to(kFloat32);
  EXPECT_EQ(numbers_in(x), (Numbers{3, 0, 3, 1}));
  float a[] = {1, 2};
  from_blob(a, {2}) = 7;
  from_blob(a, {2})[0] = 3;
  EXPECT_EQ(a[0], 3);
  EXPECT_EQ(a[1], 7);
  const Tensor h = grown * 1;
  h[0] = 4;
  EXPECT_EQ(numbers_in(h), (Numbers{4, 1}));
  EXPECT_EQ(numbers_in(grad({h.sum()}, {grown})[0]), (Numbers{0, 1}));
  Tensor none;
  EXPECT_TRUE(has(error_of<ValueError>([&] { std::move(none) = 3; }), "fill_"));
}

TEST(Writes, a_mask_without_dims_is_a_new_dim_of_one_place_or_none) {
  Tensor x = zeros({});
  x[x == 0] = 4;
  EXPECT_EQ(x.item<double>(), 4);
  x[x == 0] = 5;
  EXPECT_EQ(x.item<double>(), 4);
  x[x == 4] += 1;
  EXPECT_EQ(x.item<double>(), 5);
  EXPECT_EQ(x[x == 5].sizes(), (Shape{1}));
  EXPECT_EQ(x[x == 0].sizes(), (Shape{0}));
  Tensor m = tensor({{1., 2.}, {3., 4.}}, {.requires_grad = true});
  const Tensor yes = scalar_tensor(1, {.dtype = kBool}), no = scalar_tensor(0, {.dtype = kBool});
  EXPECT_EQ(m[yes].sizes(), (Shape{1, 2, 2}));
  EXPECT_EQ(m[no].sizes(), (Shape{0, 2, 2}));
  EXPECT_EQ(m.index({0, yes}).sizes(), (Shape{1, 2}));
  EXPECT_EQ(m.index({yes, positions({1, 0, 1})}).sizes(), (Shape{3, 2}));
  EXPECT_EQ(numbers_in(grad({m[yes].sum() + m[no].sum()}, {m})[0]), (Numbers{1, 1, 1, 1}));
  Tensor y = m * 1;
  y.index_put_({1, yes}, tensor({{7., 8.}}));
  EXPECT_EQ(numbers_in(y), (Numbers{1, 2, 7, 8}));
  EXPECT_EQ(numbers_in(grad({y.sum()}, {m})[0]), (Numbers{1, 1, 0, 0}));
}

TEST(Writes, subtracting_a_number_in_place_is_sub) {
  for (const DType t : {kUInt8, kInt32, kInt64, kFloat32}) {
    const Tensor x = tensor({0, 3}, {.dtype = t});
    Tensor y = x.clone();
    y -= 1;
    EXPECT_EQ(numbers_in(y), numbers_in(x - 1)) << to_string(t);
  }
  Tensor byte = zeros({1}, {.dtype = kUInt8});
  byte -= 1;
  EXPECT_EQ(byte.item<int>(), 255);
  Tensor word = full({1}, -1, {.dtype = kInt32}), wide = full({1}, -1, {.dtype = kInt64});
  word -= std::numeric_limits<int32_t>::min();
  EXPECT_EQ(word.item<int64_t>(), std::numeric_limits<int32_t>::max());
  wide.sub_(std::numeric_limits<int64_t>::min());
  EXPECT_EQ(wide.item<int64_t>(), std::numeric_limits<int64_t>::max());
  Tensor half = full({1}, 1, {.dtype = kFloat16});
  half -= 1e5;
  EXPECT_EQ(numbers_in(half), numbers_in(full({1}, 1, {.dtype = kFloat16}) - 1e5));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { byte -= 300; }), "sub_: the number 300"));
  EXPECT_TRUE(has(error_of<DTypeError>([] { ones({1}, {.dtype = kBool}).sub_(1); }), "sub_"));
}

TEST(Writes, a_gradient_in_memory_that_is_only_read_is_replaced_by_the_sum) {
  const float g[] = {1, 2};
  const Tensor p = ones({2}, {.requires_grad = true});
  p.set_grad(from_blob(g, {2}));
  (p * 3).sum().backward();
  EXPECT_EQ(numbers_in(p.grad()), (Numbers{4, 5}));
  EXPECT_EQ(g[0], 1);
  EXPECT_EQ(g[1], 2);
}

TEST(Writes, memory_that_was_refused_is_not_released) {
  static int released;
  released = 0;
  int64_t n[] = {1, 2};
  const auto release = [](void*) { ++released; };
  EXPECT_THROW(from_blob(n, {-2}, {.dtype = kInt64}, release), ShapeError);
  EXPECT_THROW(from_blob(n, {2}, Shape{1, 1}, {.dtype = kInt64}, release), ShapeError);
  const TensorOptions graph{.dtype = kInt64, .requires_grad = true};
  EXPECT_TRUE(has(error_of<AutogradError>([&] { from_blob(n, {2}, graph, release); }), "from_blob"));
  EXPECT_EQ(released, 0);
  from_blob(n, {2}, {.dtype = kInt64}, release);
  EXPECT_EQ(released, 1);
}

TEST(Writes, errors_name_the_operation_that_was_called) {
  const Tensor most = full({1}, INT64_MAX, {.dtype = kInt64});
  EXPECT_TRUE(has(error_of<ShapeError>([&] { bincount(most); }), "bincount: "));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { repeat_interleave(ones({2}), most); }), "repeat_interleave: "));
  EXPECT_TRUE(
      has(error_of<ShapeError>([&] { repeat_interleave(ones({2}), INT64_MAX); }), "repeat_interleave: "));
}

}  // namespace
}  // namespace weft
