// The rows of pointwise.h against closed forms in double, for every dtype of the row and each instruction
// set. Operands are dense, strided, broadcast, in place, empty or of one element, with guard zones around all
// of them.
#include <cmath>
#include <functional>

#include "arrays.h"

namespace weft {
namespace {

using test::Array;
using test::as_bool;
using test::cpu;
using test::each_isa;

struct UnaryCase {
  Unary op;
  std::function<double(double)> right;
  double low, high;  // inputs are drawn from here
};

constexpr double kS = 1.5, kT = 3.0;  // the scalar parameters of all cases

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::log1p(std::exp(-std::fabs(x))) + std::max(x, 0.0); }
double cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double gelu_inner(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

std::vector<UnaryCase> unary_cases() {
  using U = Unary;
  return {
      {U::kNeg, [](double x) { return -x; }, -9, 9},
      {U::kAbs, [](double x) { return std::fabs(x); }, -9, 9},
      {U::kSign, [](double x) { return double((x > 0) - (x < 0)); }, -3, 3},
      {U::kSquare, [](double x) { return x * x; }, -9, 9},
      {U::kExp, [](double x) { return std::exp(x); }, -5, 5},
      {U::kExpm1, [](double x) { return std::expm1(x); }, -5, 5},
      {U::kLog, [](double x) { return std::log(x); }, 0.1, 9},
      {U::kLog1p, [](double x) { return std::log1p(x); }, -0.5, 9},
      {U::kLog2, [](double x) { return std::log2(x); }, 0.1, 9},
      {U::kSqrt, [](double x) { return std::sqrt(x); }, 0, 9},
      {U::kRsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.5, 9},
      {U::kReciprocal, [](double x) { return 1 / x; }, 0.5, 9},
      {U::kSin, [](double x) { return std::sin(x); }, -9, 9},
      {U::kCos, [](double x) { return std::cos(x); }, -9, 9},
      {U::kTan, [](double x) { return std::tan(x); }, -1, 1},
      {U::kTanh, [](double x) { return std::tanh(x); }, -5, 5},
      {U::kSigmoid, sigmoid, -9, 9},
      {U::kLogSigmoid, [](double x) { return -softplus(-x); }, -9, 9},
      {U::kErf, [](double x) { return std::erf(x); }, -4, 4},
      {U::kGelu, [](double x) { return x * cdf(x); }, -5, 5},
      {U::kGeluTanh, [](double x) { return 0.5 * x * (1 + std::tanh(gelu_inner(x))); }, -5, 5},
      {U::kSilu, [](double x) { return x * sigmoid(x); }, -9, 9},
      {U::kSoftplus, softplus, -9, 9},
      {U::kRelu, [](double x) { return std::max(x, 0.0); }, -5, 5},
      {U::kLeakyRelu, [](double x) { return x > 0 ? x : kS * x; }, -5, 5},
      {U::kElu, [](double x) { return x > 0 ? x : kS * std::expm1(x); }, -5, 5},
      {U::kFloor, [](double x) { return std::floor(x); }, -5, 5},
      {U::kCeil, [](double x) { return std::ceil(x); }, -5, 5},
      {U::kRound, [](double x) { return std::nearbyint(x); }, -5, 5},
      {U::kTrunc, [](double x) { return std::trunc(x); }, -5, 5},
      {U::kAddScalar, [](double x) { return x + kS; }, -5, 5},
      {U::kMulScalar, [](double x) { return x * kS; }, -5, 5},
      {U::kDivScalar, [](double x) { return x / kS; }, -5, 5},
      {U::kRsubScalar, [](double x) { return kS - x; }, -5, 5},
      {U::kRdivScalar, [](double x) { return kS / x; }, 0.5, 5},
      {U::kPowScalar, [](double x) { return std::pow(x, kS); }, 0, 5},
      {U::kRpowScalar, [](double x) { return std::pow(kS, x); }, -5, 5},
      {U::kClamp, [](double x) { return std::min(std::max(x, kS), kT); }, -5, 5},
      {U::kEqScalar, [](double x) { return double(x == kS); }, -5, 5},
      {U::kNeScalar, [](double x) { return double(x != kS); }, -5, 5},
      {U::kLtScalar, [](double x) { return double(x < kS); }, -5, 5},
      {U::kLeScalar, [](double x) { return double(x <= kS); }, -5, 5},
      {U::kGtScalar, [](double x) { return double(x > kS); }, -5, 5},
      {U::kGeScalar, [](double x) { return double(x >= kS); }, -5, 5},
      {U::kLogicalNot, [](double x) { return double(x == 0); }, -2, 2},
      {U::kIsNan, [](double) { return 0.0; }, -5, 5},
      {U::kIsInf, [](double) { return 0.0; }, -5, 5},
      {U::kIsFinite, [](double) { return 1.0; }, -5, 5},
      {U::kNanToNum, [](double x) { return std::min(std::max(x, -kT), kT); }, -5, 5},
  };
}

template <class T> double relative() {
  return std::is_same_v<T, double>  ? 1e-13
         : std::is_same_v<T, float> ? 2e-6
         : std::is_same_v<T, Half>  ? 2e-3
                                    : 1.6e-2;
}

const std::vector<std::pair<Shape, Shape>>& layouts() {  // sizes and strides
  static const std::vector<std::pair<Shape, Shape>> all = {
      {{}, {}},
      {{1}, {}},
      {{0, 3}, {}},
      {{5, 7}, {}},
      {{5, 7}, {1, 5}},
      {{5, 7}, {19, 2}},
      {{3, 1, 11}, {50, 7, 3}},
      {{1031}, {3}},
      {{2, 1031}, {1, 2}},
      {{1600}, {}},
  };
  return all;
}

template <class T> void check_unary(const UnaryCase& c) {
  SCOPED_TRACE(std::string(to_string(c.op)) + " " + to_string(dtype_of<T>));
  const bool test = op_class(c.op) == OpClass::kTest;
  Context context;
  uint64_t seed = 1;
  for (const auto& [sizes, strides] : layouts()) {
    Array<T> x(sizes, strides);
    x.random(seed++, std::is_integral_v<T> && c.low < 0 && !std::is_signed_v<T> ? 0 : c.low, c.high);
    const auto want = [&](int64_t i) {
      double s = kS, t = kT;
      (void)s, (void)t;
      return c.right(x.at(i));
    };
    if (test) {
      Array<uint8_t> y(sizes, strides);
      cpu().unary(context, c.op, kS, kT, x.view(), as_bool(y.view()));
      for (int64_t i = 0; i < x.numel(); ++i) ASSERT_EQ(y.at(i), want(i)) << x.at(i);
      continue;
    }
    Array<T> y(sizes);
    cpu().unary(context, c.op, kS, kT, x.view(), y.view());
    for (int64_t i = 0; i < x.numel(); ++i)
      ASSERT_NEAR(y.at(i), want(i), relative<T>() * std::max(1.0, std::fabs(want(i)))) << x.at(i);
    std::vector<double> wanted;
    for (int64_t i = 0; i < x.numel(); ++i) wanted.push_back(y.at(i));
    cpu().unary(context, c.op, kS, kT, x.view(), x.view());  // in place: the same numbers
    for (int64_t i = 0; i < x.numel(); ++i) ASSERT_EQ(x.at(i), wanted[static_cast<size_t>(i)]);
  }
}

TEST(Pointwise, every_unary_row_meets_its_closed_form) {
  const auto cases = unary_cases();
  ASSERT_EQ(cases.size(), static_cast<size_t>(Unary::kCount));
  each_isa([&] {
    for (const UnaryCase& c : cases) {
      check_unary<float>(c);
      check_unary<double>(c);
      check_unary<Half>(c);
      check_unary<BFloat16>(c);
    }
  });
}

struct BinaryCase {
  Binary op;
  std::function<double(double, double)> right;
  double low, high;  // of the second operand
};

std::vector<BinaryCase> binary_cases() {
  using B = Binary;
  return {
      {B::kAdd, [](double a, double b) { return a + kS * b; }, -5, 5},
      {B::kSub, [](double a, double b) { return a - b; }, -5, 5},
      {B::kMul, [](double a, double b) { return a * b; }, -5, 5},
      {B::kDiv, [](double a, double b) { return a / b; }, 0.5, 5},
      {B::kPow, [](double a, double b) { return std::pow(std::fabs(a), b); }, 0, 2},
      {B::kMaximum, [](double a, double b) { return std::max(a, b); }, -5, 5},
      {B::kMinimum, [](double a, double b) { return std::min(a, b); }, -5, 5},
      {B::kRemainder, [](double a, double b) { return a - b * std::floor(a / b); }, 1, 5},
      {B::kFmod, [](double a, double b) { return std::fmod(a, b); }, 1, 5},
      {B::kFloorDivide, [](double a, double b) { return std::floor(a / b); }, 1, 5},
      {B::kAtan2, [](double a, double b) { return std::atan2(a, b); }, -5, 5},
      {B::kEq, [](double a, double b) { return double(a == b); }, -2, 2},
      {B::kNe, [](double a, double b) { return double(a != b); }, -2, 2},
      {B::kLt, [](double a, double b) { return double(a < b); }, -5, 5},
      {B::kLe, [](double a, double b) { return double(a <= b); }, -5, 5},
      {B::kGt, [](double a, double b) { return double(a > b); }, -5, 5},
      {B::kGe, [](double a, double b) { return double(a >= b); }, -5, 5},
      {B::kLogicalAnd, [](double a, double b) { return double(a != 0 && b != 0); }, -1, 1},
      {B::kLogicalOr, [](double a, double b) { return double(a != 0 || b != 0); }, -1, 1},
      {B::kLogicalXor, [](double a, double b) { return double((a != 0) != (b != 0)); }, -1, 1},
      {B::kTanhGrad, [](double g, double y) { return g * (1 - y * y); }, -1, 1},
      {B::kSigmoidGrad, [](double g, double y) { return g * y * (1 - y); }, 0, 1},
      {B::kReluGrad, [](double g, double y) { return y > 0 ? g : 0; }, -1, 1},
      {B::kLeakyReluGrad, [](double g, double x) { return x > 0 ? g : kS * g; }, -1, 1},
      {B::kEluGrad, [](double g, double x) { return x > 0 ? g : g * kS * std::exp(x); }, -3, 3},
      {B::kGeluGrad,
       [](double g, double x) { return g * (cdf(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI)); }, -4,
       4},
      {B::kGeluTanhGrad,
       [](double g, double x) {
         const double h = std::tanh(gelu_inner(x));
         return g *
                (0.5 * (1 + h) + 0.5 * x * (1 - h * h) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x));
       },
       -4, 4},
      {B::kSiluGrad, [](double g, double x) { return g * sigmoid(x) * (1 + x * (1 - sigmoid(x))); }, -4, 4},
      {B::kSoftplusGrad, [](double g, double x) { return g * sigmoid(x); }, -4, 4},
      {B::kAbsGrad, [](double g, double x) { return g * ((x > 0) - (x < 0)); }, -4, 4},
      {B::kClampGrad, [](double g, double x) { return x >= kS && x <= kT ? g : 0; }, -1, 5},
      {B::kLogisticLoss, [](double x, double t) { return std::log1p(std::exp(x)) - x * t; }, 0, 1},
  };
}

template <class T> void check_binary(const BinaryCase& c) {
  SCOPED_TRACE(std::string(to_string(c.op)) + " " + to_string(dtype_of<T>));
  const bool test = op_class(c.op) == OpClass::kTest;
  Context context;
  const std::vector<std::pair<Shape, Shape>> second = {
      {{5, 7}, {}},     {{5, 7}, {1, 5}},    {{5, 7}, {0, 1}},      {{5, 7}, {1, 0}},
      {{5, 7}, {0, 0}}, {{3, 1201}, {1, 0}}, {{3, 1201}, {2410, 2}}};
  uint64_t seed = 5;
  for (const auto& [sizes, strides] : second) {
    Array<T> a(sizes), b(sizes, strides);
    a.random(seed++, c.op == Binary::kPow ? 0.0 : -3.0, 3);
    b.random(seed++, c.low, c.high);
    if (test) {
      Array<uint8_t> y(sizes);
      cpu().binary(context, c.op, kS, kT, a.view(), b.view(), as_bool(y.view()));
      for (int64_t i = 0; i < a.numel(); ++i)
        ASSERT_EQ(y.at(i), c.right(a.at(i), b.at(i))) << a.at(i) << " " << b.at(i);
      continue;
    }
    Array<T> y(sizes, {1, sizes[0]});
    cpu().binary(context, c.op, kS, kT, a.view(), b.view(), y.view());
    for (int64_t i = 0; i < a.numel(); ++i) {
      const double want = c.right(a.at(i), b.at(i));
      const double off = std::fabs(y.at(i) - want);
      // a / b rounded across a whole number
      if (c.op == Binary::kRemainder && std::fabs(off - b.at(i)) < 1e-2) continue;
      ASSERT_LE(off, relative<T>() * std::max(1.0, 2 * std::fabs(want))) << a.at(i) << " " << b.at(i);
    }
    std::vector<double> wanted;
    for (int64_t i = 0; i < a.numel(); ++i) wanted.push_back(y.at(i));
    cpu().binary(context, c.op, kS, kT, a.view(), b.view(), a.view());
    for (int64_t i = 0; i < a.numel(); ++i) ASSERT_EQ(a.at(i), wanted[static_cast<size_t>(i)]);
  }
}

TEST(Pointwise, every_binary_row_meets_its_closed_form) {
  const auto cases = binary_cases();
  size_t floating = 0;  // the rows on bits have a test of their own
  for (int op = 0; op < static_cast<int>(Binary::kCount); ++op)
    floating += op_class(static_cast<Binary>(op)) != OpClass::kBits;
  ASSERT_EQ(cases.size(), floating);
  each_isa([&] {
    for (const BinaryCase& c : cases) {
      check_binary<float>(c);
      check_binary<double>(c);
      check_binary<Half>(c);
      check_binary<BFloat16>(c);
    }
  });
}

template <class T> void check_ternary() {
  Context context;
  const Shape sizes{3, 101};
  Array<T> a(sizes), b(sizes, {1, 3}), c(sizes, {0, 1}), y(sizes);
  a.random(1, -3, 3), b.random(2, -3, 3), c.random(3, 1, 2);
  const std::pair<Ternary, std::function<double(double, double, double)>> rows[] = {
      {Ternary::kAddcmul, [](double x, double u, double v) { return x + kS * u * v; }},
      {Ternary::kAddcdiv, [](double x, double u, double v) { return x + kS * u / v; }},
      {Ternary::kLerp, [](double x, double u, double v) { return x + v * (u - x); }},
      {Ternary::kLogisticLossGrad, [](double g, double x, double t) { return g * (sigmoid(x) - t); }}};
  for (const auto& [op, right] : rows) {
    cpu().ternary(context, op, kS, a.view(), b.view(), c.view(), y.view());
    for (int64_t i = 0; i < y.numel(); ++i) {
      const double want = right(a.at(i), b.at(i), c.at(i));
      ASSERT_NEAR(y.at(i), want, relative<T>() * std::max(4.0, std::fabs(want))) << to_string(op);
    }
  }
}

TEST(Pointwise, every_ternary_row_meets_its_closed_form) {
  each_isa([] {
    check_ternary<float>();
    check_ternary<double>();
    check_ternary<Half>();
    check_ternary<BFloat16>();
  });
}

}  // namespace
}  // namespace weft
