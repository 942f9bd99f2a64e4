// Lines as people type them, by habit from PyTorch. Each compiles, as a method and as a free function, and
// has the effect that it has there.
#include <gtest/gtest.h>
#include <weft/weft.h>

#include <sstream>
#include <type_traits>

#include "support/errors.h"
#include "support/leaf.h"

using namespace weft;
using test::error_of;
using test::has;
using test::values;

namespace {

using V = std::vector<double>;
Tensor numbers(std::initializer_list<double> v) { return tensor(v, {.dtype = kFloat64}); }
Tensor whole(std::initializer_list<double> v) { return tensor(v, {.dtype = kInt64}); }
Tensor grid() { return arange(6).reshape({2, 3}).to(kFloat64); }  // {{0, 1, 2}, {3, 4, 5}}

}  // namespace

TEST(Typed, a_number_is_added_and_multiplied_in_place) {
  Tensor x = numbers({1, 2, 4});
  const Tensor same = x;
  x += 1.0;
  x *= 0.5;
  x -= 0.5;
  x /= 2;
  EXPECT_EQ(values(same), (V{0.25, 0.5, 1}));
  Tensor n = whole({1, 2});
  n += 1;
  n -= 3;
  n *= 2;
  EXPECT_EQ(values(n), (V{-2, 0}));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { n /= 2; }), "div_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { n -= 0.5; }), "sub_"));
}

TEST(Typed, gradients_flow_through_numbers_in_place) {
  Tensor x = numbers({1, 2});
  x.requires_grad_();
  Tensor y = x * 1.0;
  y -= 3;
  y /= 2;
  y.sum().backward();
  EXPECT_EQ(values(x.grad()), (V{0.5, 0.5}));
}

TEST(Typed, a_reduction_takes_one_dim_or_a_list) {
  const Tensor x = grid();
  EXPECT_EQ(values(x.sum(0)), (V{3, 5, 7}));
  EXPECT_EQ(values(sum(x, 0)), (V{3, 5, 7}));
  EXPECT_EQ(values(x.sum({0})), (V{3, 5, 7}));
  EXPECT_EQ(values(x.sum({0, 1})), (V{15}));
  EXPECT_EQ(values(x.sum({})), (V{15}));
  EXPECT_EQ(x.sum(1, true).sizes(), (Shape{2, 1}));
  EXPECT_EQ(values(x.mean(-1)), (V{1, 4}));
  EXPECT_EQ(values(mean(x, -1)), (V{1, 4}));
  EXPECT_EQ(values(x.var(1)), (V{1, 1}));
  EXPECT_EQ(values(x.std(1, 0, true)), values(weft::std(x, {1}, 0, true)));
  EXPECT_EQ(values(x.var(0, 0)), (V{2.25, 2.25, 2.25}));
  EXPECT_EQ(values(x.max(0).values), (V{3, 4, 5}));
  EXPECT_EQ(values(x.min(1).indices), (V{0, 0}));
  EXPECT_EQ(values(x.amax(-1)), (V{2, 5}));
  EXPECT_EQ(values(x.argmax(1)), (V{2, 2}));
  EXPECT_EQ(values(x.argmin(0)), (V{0, 0, 0}));
  EXPECT_EQ(values(x.prod(1)), (V{0, 60}));
  EXPECT_EQ(values((x > 4).any(1)), (V{0, 1}));
  EXPECT_EQ(values((x > 2).all(1)), (V{0, 1}));
  EXPECT_TRUE((x > 4).any().item<bool>());
  EXPECT_FALSE((x > 4).all().item<bool>());
  EXPECT_EQ(x.logsumexp(1).sizes(), Shape{2});
  EXPECT_EQ(values(x.norm(1, 1)), (V{3, 12}));
  EXPECT_EQ(values(x.cumsum(0)), (V{0, 1, 2, 3, 5, 7}));
  EXPECT_EQ(values(x.topk(2).values), (V{2, 1, 5, 4}));
  EXPECT_EQ(values(x.flip(1)), (V{2, 1, 0, 5, 4, 3}));
}

TEST(Typed, argmax_of_everything_counts_in_row_major_order) {
  const Tensor x = tensor({{1, 9, 2}, {3, -4, 5}});
  EXPECT_EQ(x.argmax().item<int64_t>(), 1);
  EXPECT_EQ(x.t().argmax().item<int64_t>(), 2);
  EXPECT_EQ(argmin(x).item<int64_t>(), 4);
  EXPECT_EQ(x.argmax().sizes(), Shape{});
  EXPECT_EQ(numbers({7}).reshape({}).argmax().item<int64_t>(), 0);
  EXPECT_TRUE(has(error_of<ShapeError>([&] { zeros({0, 2}).argmax(); }), "argmax"));
}

TEST(Typed, where_takes_numbers) {
  const Tensor m = whole({0, 1, 1}).to(kBool), x = tensor({1., 2., 3.}).requires_grad_();
  EXPECT_EQ(values(where(m, x, 0)), (V{0, 2, 3}));
  EXPECT_EQ(values(where(m, 1., x)), (V{1, 1, 1}));
  EXPECT_EQ(values(x.where(m, -1)), (V{-1, 2, 3}));
  where(m, x, 0).sum().backward();
  EXPECT_EQ(values(x.grad()), (V{0, 1, 1}));
  EXPECT_EQ(where(m, 2, x.to(kFloat16)).dtype(), kFloat16);
  EXPECT_EQ(where(m, whole({1, 2, 3}), 2.0).dtype(), kInt64);
  EXPECT_TRUE(has(error_of<DTypeError>([&] { where(m, whole({1, 2, 3}), 0.5); }), "where: the number 0.5"));
  EXPECT_EQ(where(m, 1, 0).dtype(), kInt64);
  EXPECT_EQ(where(m, 1, 0.5).dtype(), kFloat32);
  EXPECT_EQ(where(m, true, false).dtype(), kBool);
  EXPECT_EQ(values(where(m, 1., 0.)), (V{0, 1, 1}));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { where(x, x, 0); }), "where: the condition must be bool"));
  EXPECT_TRUE(has(error_of<ValueError>([&] { where(m, Tensor(), 0); }), "where: tensor argument 2"));
}

TEST(Typed, corrections_need_not_be_whole) {
  const Tensor x = numbers({1, 2, 3, 6});  // squares around the mean: 4 + 1 + 0 + 9
  EXPECT_EQ(x.var(0, 0.5).item<double>(), 14 / 3.5);
  EXPECT_EQ(var(x, {}, 1.5).item<double>(), 14 / 2.5);
  EXPECT_EQ(x.std(0, 0.5).item<double>(), std::sqrt(14 / 3.5));
  EXPECT_EQ(weft::std(x, {}, 3.5).item<double>(), std::sqrt(28.));
  EXPECT_TRUE(std::isinf(x.var(0, 4.5).item<double>()));
  const Tensor p = numbers({1, 2, 3, 6}).requires_grad_();
  p.var(0, 0.5).backward();
  EXPECT_EQ(values(p.grad()), (V{-4 / 3.5, -2 / 3.5, 0, 6 / 3.5}));
}

TEST(Typed, one_number_is_a_list_of_sizes) {
  EXPECT_EQ(zeros(3).sizes(), Shape{3});
  EXPECT_EQ(randn(4).sizes(), Shape{4});
  EXPECT_EQ(grid().view(-1).sizes(), Shape{6});
  EXPECT_EQ(grid().reshape(6).sizes(), Shape{6});
  EXPECT_EQ(layer_norm(grid(), 3).sizes(), (Shape{2, 3}));
}

TEST(Typed, remainders_have_the_sign_of_the_divisor) {
  const Tensor x = whole({-5, -1, 0, 1, 5}), d = whole({3, -3, 3, -3, 3});
  EXPECT_EQ(values(x % 3), (V{1, 2, 0, 1, 2}));
  EXPECT_EQ(values(x % -3), (V{-2, -1, 0, -2, -1}));
  EXPECT_EQ(values(x % d), (V{1, -1, 0, -2, 2}));
  EXPECT_EQ(values(7 % whole({2, -2})), (V{1, -1}));
  EXPECT_EQ(values(remainder(x, 2)), (V{1, 1, 0, 1, 1}));
  EXPECT_EQ(values(x.remainder(2)), (V{1, 1, 0, 1, 1}));
  EXPECT_EQ(values(numbers({-0.5, 2.5}) % 2), (V{1.5, 0.5}));
  EXPECT_TRUE(has(error_of<ValueError>([&] { x % 0; }), "remainder"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { x % 0.5; }), "remainder"));
}

TEST(Typed, methods_in_place_are_the_functions) {
  const Tensor x = numbers({0.5, 1.5, 2.5}), n = whole({5, -3, 6}), m = n > 0;
  const auto same = [](const Tensor& x, const Tensor& y, const Tensor& a, const Tensor& b) {
    EXPECT_TRUE(y.is_same(x) && a.equal(b)) << a << b;
  };
  const auto check = [&](const Tensor& start, const std::function<Tensor(Tensor&)>& write,
                         const Tensor& want) {
    Tensor y = start.clone();
    const Tensor before = y;
    same(before, write(y), y, want);
  };
  check(
      x, [](Tensor& y) { return y.exp_(); }, exp(x));
  check(
      x, [](Tensor& y) { return y.neg_(); }, -x);
  check(
      n, [](Tensor& y) { return y.neg_(); }, -n);
  check(
      x, [](Tensor& y) { return y.pow_(2); }, x * x);
  check(
      n, [](Tensor& y) { return y.pow_(2); }, n * n);
  check(
      x, [&](Tensor& y) { return y.pow_(x); }, pow(x, x));
  check(
      x, [](Tensor& y) { return y %= 2; }, x % 2);
  check(
      n, [&](Tensor& y) { return y %= n + 1; }, n % (n + 1));
  check(
      n, [](Tensor& y) { return y &= 1; }, n & 1);
  check(
      n, [](Tensor& y) { return y |= 2; }, n | 2);
  check(
      n, [](Tensor& y) { return y ^= 3; }, n ^ 3);
  check(
      m, [](Tensor& y) { return y |= true; }, ones_like(m));
  check(
      m, [](Tensor& y) { return y &= false; }, zeros_like(m));
  const Tensor at = whole({2, 0, 2});
  for (const DType t : {kFloat64, kFloat32, kFloat16, kInt64, kInt32}) {
    const Tensor v = tensor({1, 2, 4}, {.dtype = t}), g = ones({2, 3}, {.dtype = t});
    check(
        v, [&](Tensor& y) { return y.scatter_add_(0, at, v); }, scatter_add(v, 0, at, v));
    check(
        v, [&](Tensor& y) { return y.scatter_(0, at, v); }, scatter(v, 0, at, v));
    check(
        v, [&](Tensor& y) { return y.scatter_(0, at, 3); }, tensor({3, 2, 3}, {.dtype = t}));
    check(
        v, [&](Tensor& y) { return y.index_add_(-1, at, y); }, index_add(v, 0, at, v));
    check(
        g, [&](Tensor& y) { return y.index_add_(1, at, g); }, index_add(g, 1, at, g));
    check(
        v[0], [&](Tensor& y) { return y.index_add_(0, at[1], v[2]); }, v[0] + v[2]);
  }
  Tensor base = zeros({3, 2}), column = base.select(1, 1);
  column.index_add_(0, at, ones({3}));
  EXPECT_EQ(values(base), (V{0, 1, 0, 0, 0, 2}));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { n.clone().exp_(); }), "exp_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { n.clone().pow_(0.5); }), "pow_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { m.clone().remainder_(2); }), "remainder_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { m.clone().neg_(); }), "neg_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { x.clone().bitwise_and_(1); }), "bitwise_and_"));
  Tensor bits = n.clone();
  EXPECT_TRUE(has(error_of<DTypeError>([&] { bits |= 0.5; }), "bitwise_or_"));
  Tensor y = x.clone();
  EXPECT_TRUE(has(error_of<IndexError>([&] { y.scatter_add_(0, at + 1, x); }), "scatter_add_: index 3"));
  EXPECT_TRUE(has(error_of<IndexError>([&] { y.index_add_(0, at - 1, x); }), "index_add_: index -1"));
  EXPECT_TRUE(has(error_of<ShapeError>([&] {
                    y.index_add_(0, at, x[{0, 2}]);
                  }),
                  "index_add_: src must be [3]"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { y.scatter_add_(0, at, n); }), "scatter_add_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { y.scatter_(0, at, n); }), "scatter_"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { n.clone().scatter_(0, at, 0.5); }), "scatter_"));
  EXPECT_TRUE(has(error_of<IndexError>([&] { y.scatter_(0, at + 1, x); }), "scatter_: index 3"));
  EXPECT_TRUE(y.equal(x));
}

TEST(Typed, gradients_flow_through_methods_in_place) {
  const Tensor at = whole({2, 0, 2});
  const auto check = [](const std::function<void(Tensor&, const Tensor&)>& write,
                        const std::function<Tensor(const Tensor&, const Tensor&)>& op) {
    std::vector<Tensor> grads;
    for (const bool in_place : {true, false}) {
      Tensor a = numbers({0.5, 1.5, 2.5}).requires_grad_(), b = numbers({2, 3, 4}).requires_grad_();
      Tensor y = a * 3;
      if (in_place) write(y, b);
      else y = op(y, b);
      (y * numbers({1, 10, 100})).sum().backward();
      grads.push_back(a.grad());
      grads.push_back(b.grad().defined() ? b.grad() : zeros({}));
    }
    EXPECT_TRUE(grads[0].allclose(grads[2]) && grads[1].allclose(grads[3])) << grads[0] << grads[2];
  };
  using T = const Tensor&;
  check([](Tensor& y, T) { y.exp_(); }, [](T y, T) { return exp(y); });
  check([](Tensor& y, T) { y.neg_(); }, [](T y, T) { return -y; });
  check([](Tensor& y, T) { y.pow_(3); }, [](T y, T) { return pow(y, 3); });
  check([](Tensor& y, T b) { y.pow_(b); }, [](T y, T b) { return pow(y, b); });
  check([](Tensor& y, T) { y.pow_(y); }, [](T y, T) { return pow(y, y); });
  check([](Tensor& y, T) { y %= 2; }, [](T y, T) { return y % 2; });
  check([](Tensor& y, T b) { y %= b; }, [](T y, T b) { return y % b; });
  check([&](Tensor& y, T b) { y.scatter_add_(0, at, b); },
        [&](T y, T b) { return scatter_add(y, 0, at, b); });
  const Tensor once = whole({2, 0});
  check([&](Tensor& y, T b) { y.scatter_(0, once, b.slice(0, 1, 3)); },
        [&](T y, T b) { return scatter(y, 0, once, b.slice(0, 1, 3)); });
  check([&](Tensor& y, T) { y.scatter_(0, at, 4); }, [&](T y, T) { return scatter(y, 0, at, 4); });
  check([](Tensor& y, T) { y.clamp_({}, 5); }, [](T y, T) { return clamp(y, {}, 5); });
  check([](Tensor& y, T) { y.clamp_(4); }, [](T y, T) { return maximum(y, 4); });
  check([&](Tensor& y, T b) { y.index_add_(0, at, b); }, [&](T y, T b) { return index_add(y, 0, at, b); });
  Tensor leaf = numbers({1}).requires_grad_();
  EXPECT_TRUE(has(error_of<AutogradError>([&] { leaf.pow_(2); }), "pow_"));
  EXPECT_TRUE(has(error_of<AutogradError>([&] { leaf.exp_(); }), "exp_"));
}

TEST(Typed, a_number_may_stand_first_in_a_function) {
  const Tensor x = numbers({-1, 0.5, 2}), n = whole({2, -3});
  EXPECT_EQ(values(maximum(0, x)), values(maximum(x, 0)));
  EXPECT_EQ(values(minimum(0, x)), values(minimum(x, 0)));
  EXPECT_EQ(values(floor_divide(5, x)), (V{-5, 10, 2}));
  EXPECT_EQ(values(floor_divide(5, n)), (V{2, -2}));
  EXPECT_EQ(floor_divide(5, n).dtype(), kInt64);
  EXPECT_TRUE(has(error_of<ValueError>([&] { floor_divide(5, n - 2); }), "floor_divide"));
}

TEST(Typed, a_slice_reaches_to_the_end_and_a_tensor_is_expanded_as_another) {
  Tensor x = grid();
  EXPECT_EQ(values(x.slice(1, 1)), (V{1, 2, 4, 5}));
  EXPECT_EQ(values(slice(x, 1, -1)), (V{2, 5}));
  x.slice(0, 1) = 0;
  EXPECT_EQ(values(x), (V{0, 1, 2, 0, 0, 0}));
  EXPECT_EQ(x[0].expand_as(x).sizes(), x.sizes());
}

TEST(Typed, a_number_may_stand_first_in_a_comparison) {
  const Tensor x = numbers({-1, 0, 1});
  EXPECT_EQ(values(0 < x), (V{0, 0, 1}));
  EXPECT_EQ(values(0 <= x), (V{0, 1, 1}));
  EXPECT_EQ(values(0 > x), (V{1, 0, 0}));
  EXPECT_EQ(values(0.0 >= x), (V{1, 1, 0}));
  EXPECT_EQ(values(0 == x), (V{0, 1, 0}));
  EXPECT_EQ(values(0 != x), (V{1, 0, 1}));
  EXPECT_EQ(values(x.lt(0)), (V{1, 0, 0}));
  EXPECT_EQ(values(x.ge(x)), (V{1, 1, 1}));
}

TEST(Typed, masks_combine_by_operators) {
  const Tensor a = tensor({0, 0, 1, 1}, {.dtype = kBool}), b = tensor({0, 1, 0, 1}, {.dtype = kBool});
  EXPECT_EQ(values(a & b), (V{0, 0, 0, 1}));
  EXPECT_EQ(values(a | b), (V{0, 1, 1, 1}));
  EXPECT_EQ(values(a ^ b), (V{0, 1, 1, 0}));
  EXPECT_EQ(values(!a), (V{1, 1, 0, 0}));
  EXPECT_EQ(values(~a), (V{1, 1, 0, 0}));
  EXPECT_EQ((a & b).dtype(), kBool);
  EXPECT_EQ((~a).dtype(), kBool);
  Tensor m = a.clone();
  m &= b;
  EXPECT_EQ(values(m), (V{0, 0, 0, 1}));
  m |= a;
  EXPECT_EQ(values(m), (V{0, 0, 1, 1}));
  m ^= b;
  EXPECT_EQ(values(m), (V{0, 1, 1, 0}));
  const Tensor x = numbers({1, 2, 3, 4});
  EXPECT_EQ(values((x > 1) & (x < 4)), (V{0, 1, 1, 0}));
}

TEST(Typed, bits_of_integers_combine_by_operators) {
  for (const DType t : {kUInt8, kInt32, kInt64}) {
    const Tensor a = tensor({12, 10, 255}, {.dtype = t}), b = tensor({10, 6, 15}, {.dtype = t});
    EXPECT_EQ(values(a & b), (V{8, 2, 15}));
    EXPECT_EQ(values(a | b), (V{14, 14, 255}));
    EXPECT_EQ(values(a ^ b), (V{6, 12, 240}));
    EXPECT_EQ(values(a & 3), (V{0, 2, 3}));
    EXPECT_EQ(values(1 | a), (V{13, 11, 255}));
    EXPECT_EQ(values(~~a), values(a));
    EXPECT_EQ((~a).dtype(), t);
  }
  EXPECT_EQ(values(~whole({0, 5, -1})), (V{-1, -6, 0}));
  EXPECT_EQ(values(~tensor({0, 5}, {.dtype = kUInt8})), (V{255, 250}));
  EXPECT_EQ(values(whole({-1}) & 255), (V{255}));
  EXPECT_EQ((tensor({1}, {.dtype = kInt32}) & whole({1})).dtype(), kInt64);
  EXPECT_TRUE(has(error_of<DTypeError>([&] { numbers({1}) & numbers({1}); }), "bitwise_and"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { ~numbers({1}); }), "bitwise_not"));
  EXPECT_TRUE(has(error_of<DTypeError>([&] { whole({1}) | 0.5; }), "bitwise_or"));
  Tensor small = tensor({1}, {.dtype = kInt32});
  EXPECT_TRUE(has(error_of<DTypeError>([&] { small |= whole({1}); }), "bitwise_or_"));
}

TEST(Typed, tensors_go_into_streams) {
  std::ostringstream out;
  out << tensor({1, 2}) << " " << Tensor() << " " << Shape{2, 3} << " " << kFloat32 << " " << kCpu;
  EXPECT_EQ(out.str(), to_string(tensor({1, 2})) + " tensor(undefined) [2, 3] float32 cpu");
}

TEST(Typed, to_takes_a_device_and_a_dtype) {
  Tensor x = tensor({1, 2}).requires_grad_();
  const Tensor y = x.to(kCpu, kFloat64), z = to(x, "cpu", kFloat16);
  EXPECT_EQ(y.dtype(), kFloat64);
  EXPECT_EQ(z.dtype(), kFloat16);
  (y.sum() * 2).backward();
  EXPECT_EQ(values(x.grad()), (V{2, 2}));
  EXPECT_TRUE(x.to(kCpu, kFloat32).is_same(x));
}

TEST(Typed, methods_are_the_free_functions) {
  const Tensor x = numbers({0.2, 0.4, 0.9}), y = numbers({0.5, 0.1, 0.3}),
               m = rand({3, 3}, {.dtype = kFloat64});
  const auto same = [](const Tensor& a, const Tensor& b) { EXPECT_TRUE(a.equal(b)); };
  same(x.sin(), sin(x)), same(x.cos(), cos(x)), same(x.tan(), tan(x)), same(x.exp(), exp(x)),
      same(x.expm1(), expm1(x)), same(x.log(), log(x));
  same(x.log1p(), log1p(x)), same(x.log2(), log2(x)), same(x.rsqrt(), rsqrt(x)),
      same(x.reciprocal(), reciprocal(x)), same(x.erf(), erf(x));
  same(x.floor(), floor(x)), same(x.ceil(), ceil(x)), same(x.round(), round(x)), same(x.trunc(), trunc(x)),
      same(x.sign(), sign(x));
  same(x.add(y), x + y), same(x.add(y, 2), add(x, y, 2)), same(x.add(1), x + 1), same(x.sub(y), x - y),
      same(x.sub(1), x - 1), same(x.mul(y), x * y);
  same(x.mul(2), x * 2), same(x.div(y), x / y), same(x.div(2), x / 2), same(x.pow(y), pow(x, y)),
      same(x.pow(2), pow(x, 2));
  same(x.maximum(y), maximum(x, y)), same(x.minimum(0.3), minimum(x, 0.3)), same(x.atan2(y), atan2(x, y)),
      same(x.lerp(y, 0.5), lerp(x, y, 0.5));
  same(x.where(x > y, y), where(x > y, x, y)), same(x.addcmul(x, y), addcmul(x, x, y)),
      same(x.addcdiv(x, y), addcdiv(x, x, y));
  same(x.eq(y), x == y), same(x.isnan(), isnan(x)), same(x.isfinite(), isfinite(x)),
      same(x.logical_not(), !x), same(x.logical_and(y), logical_and(x, y));
  same(x.cumprod(0), cumprod(x, 0)), same(x.prod(), prod(x)), same(x.dot(y), dot(x, y)),
      same(x.outer(y), outer(x, y)), same(m.mv(x), mv(m, x)), same(m.mm(m), mm(m, m));
  same(m.addmm(m, m), addmm(m, m, m)), same(m.tril(), tril(m)), same(m.triu(1), triu(m, 1)),
      same(m.diagonal(), diagonal(m)), same(x.roll(1, 0), roll(x, 1, 0));
  same(m.roll(-4), roll(m, -4)), same(roll(m, -4), roll(m.view(-1), -4, 0).view({3, 3})),
      same(add(1, x), x + 1), same(mul(2, x), x * 2), same(x.clamp(y, y + 1), clamp(x, y, y + 1));
  same(x.repeat(2), repeat(x, {2})), same(x.sort().indices, sort(x).indices), same(x.nonzero(), nonzero(x)),
      same(x.masked_select(x > y), masked_select(x, x > y));
  same(m.scatter_add(0, whole({0, 1, 2}).view({1, 3}), x.view({1, 3})),
       scatter_add(m, 0, whole({0, 1, 2}).view({1, 3}), x.view({1, 3})));
  same(m.index_add(0, whole({1}), x.view({1, 3})), index_add(m, 0, whole({1}), x.view({1, 3})));
  const Tensor n = whole({5, -3, 5}), at = whole({1, 0, 1}), row = at.view({1, 3}), part = x.view({1, 3});
  same(x.fmod(y), fmod(x, y)), same(x.fmod(0.3), fmod(x, 0.3)),
      same(n.floor_divide(at + 1), floor_divide(n, at + 1)), same(n.floor_divide(2), floor_divide(n, 2));
  same(x.isinf(), isinf(x)), same((x / 0).nan_to_num(0, 9), nan_to_num(x / 0, 0, 9)),
      same(n.bitwise_and(at), n & at), same(n.bitwise_or(1), n | 1);
  same(n.bitwise_xor(at), n ^ at), same(n.bitwise_not(), ~n), same(x.argsort(0, true), argsort(x, 0, true)),
      same(x.median(), median(x));
  same(m.median(1).indices, median(m, 1).indices), same(n.unique().values, unique(n).values),
      same(n.unique({.counts = true}).counts, whole({1, 2}));
  same(at.bincount(), bincount(at)), same(x.repeat_interleave(2), repeat_interleave(x, 2)),
      same(x.repeat_interleave(at), repeat_interleave(x, at));
  same(x.diag(1), diag(x, 1)), same(x.index_put({at}, y), index_put(x, {at}, y)),
      same(x.masked_scatter(x > y, y), masked_scatter(x, x > y, y));
  same(m.scatter_reduce(0, row, part, ScatterReduce::kAmax),
       scatter_reduce(m, 0, row, part, ScatterReduce::kAmax));
  same(m.take_along(row, 0), take_along(m, row, 0)), same(m.sum_to(3), sum_to(m, 3));
  EXPECT_TRUE(x.allclose(x + 1e-12));
  EXPECT_EQ(x.split({1, 2}).size(), 2u);
  EXPECT_EQ(x.multinomial(2).sizes(), Shape{2});
  EXPECT_EQ(x.bernoulli().sizes(), Shape{3});
}

TEST(Typed, assigning_to_an_element_writes_it) {
  Tensor x = zeros({3, 2});
  const Tensor alias = x;
  x[0] = tensor({1, 2});
  x[1] = 5;
  x.slice(0, 2, 3) = x[0];
  EXPECT_EQ(values(alias), (V{1, 2, 5, 5, 1, 2}));
  x[2][0] = x[1][1] = -1;
  EXPECT_EQ(values(alias), (V{1, 2, 5, -1, -1, 2}));
  x.t()[0] = 7;
  x[{1, 3}] = 9.0;
  EXPECT_EQ(values(alias), (V{7, 2, 9, 9, 9, 9}));
  EXPECT_TRUE(has(error_of<ShapeError>([&] { x[0] = zeros({3}); }), "copy_"));
  EXPECT_TRUE(has(error_of<ValueError>([&] { Tensor() = x; }), "copy_: tensor argument 1 is undefined"));
}

TEST(Typed, assigning_to_a_name_refers_to_another_tensor) {
  Tensor x = zeros({2}), y = ones({2}), before = x;
  x = y;
  EXPECT_TRUE(x.is_same(y));
  EXPECT_EQ(values(before), (V{0, 0}));
  std::swap(x, before);
  EXPECT_TRUE(before.is_same(y));
  x = {};
  EXPECT_FALSE(x.defined());
  std::vector<Tensor> list(2, y);
  list[0] = before = zeros({3});
  list.erase(list.begin());
  std::optional<Tensor> maybe = y;
  maybe = list[0];
  MaxResult pair{before, before};
  pair = max(grid(), 0);
  std::tie(x, before) = std::pair(y, list[0]);
  EXPECT_TRUE(x.is_same(y) && maybe->is_same(y) && before.is_same(y));
  EXPECT_EQ(values(y), (V{1, 1}));
  EXPECT_TRUE((std::is_nothrow_move_assignable_v<Tensor> && std::is_nothrow_move_constructible_v<Tensor>));
  EXPECT_EQ(sizeof(Tensor), sizeof(void*));
}

TEST(Typed, assigning_to_an_element_is_recorded) {
  Tensor w = numbers({2, 3}).requires_grad_(), v = numbers({5}).requires_grad_();
  Tensor y = w * 1.0;
  y[0] = v[0] * 2;
  (y * y).sum().backward();
  EXPECT_EQ(values(w.grad()), (V{0, 6}));
  EXPECT_EQ(values(v.grad()), (V{40}));
  EXPECT_TRUE(has(error_of<AutogradError>([&] { w[0] = 1; }), "leaf"));
}

TEST(Typed, a_sequential_gives_its_modules_by_index) {
  nn::Sequential net;
  net.append<nn::Linear>(4, 3);
  net.append<nn::ReLU>();
  EXPECT_EQ(net[0].name(), "Linear(in=4, out=3)");
  EXPECT_EQ(net[-1].name(), "ReLU");
  EXPECT_EQ(net.at<nn::Linear>(0).weight.sizes(), (Shape{3, 4}));
  EXPECT_TRUE(has(error_of<IndexError>([&] { net[2]; }), "outside 2 modules"));
  EXPECT_TRUE(has(error_of<ValueError>([&] { net.at<nn::Linear>(1); }), "ReLU"));
}

TEST(Typed, a_const_model_infers) {
  struct Model : nn::Module {
    nn::Embedding table{7, 4};
    nn::LSTM lstm{4, 3, {.num_layers = 2, .dropout = 0.5}};
    nn::Dropout drop{0.5};
    nn::Sequential head;
    Model() {
      add("table", table), add("lstm", lstm), add("drop", drop), add("head", head);
      head.append<nn::Linear>(3, 2);
      head.append<nn::Dropout>(0.1);
      head.append<nn::LogSoftmax>();
    }
    Tensor forward(const Tensor& ids) const {
      return head.forward(drop.forward(lstm.forward(table.forward(ids)).y));
    }
  } model;
  model.eval();
  const Model& seen = model;
  const nn::GRU gru(4, 3);
  const nn::RNN rnn(4, 3);
  EXPECT_EQ(seen.forward(whole({1, 2}).view({2, 1})).sizes(), (Shape{2, 1, 2}));
  EXPECT_EQ(gru.forward(zeros({2, 1, 4})).y.sizes(), rnn.forward(zeros({2, 1, 4})).y.sizes());
}
