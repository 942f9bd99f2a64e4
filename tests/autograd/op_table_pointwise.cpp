// Rows of the functions of one tensor and of the tests.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "support/op_table.h"

namespace weft::op_table {

namespace {

using One = double (*)(double);

std::vector<std::vector<Shape>> unary_sizes() {
  return {{{}}, {{1}}, {{0}}, {{2, 0, 3}}, {{7}}, {{3, 1, 5, 2}}};
}

template <class A> Row unary(const char* name, Tensor (*op)(A), One f, Arg arg = real({3, 5})) {
  return {.name = name,
          .args = {arg},
          .call = [op](const Tensors& x) -> Tensors { return {op(x[0])}; },
          .reference = elementwise([f](const std::vector<double>& x) { return f(x[0]); }),
          .dtypes = floats(),
          .sizes = unary_sizes(),
          .large = {{307, 211}}};
}

template <class A> Row numeric(const char* name, Tensor (*op)(A), One f, Arg arg = real({3, 5})) {
  Row row = unary(name, op, f, arg);
  row.dtypes = numbers();
  return row;
}

// gradient zero: nothing to differentiate twice
template <class A> Row flat(const char* name, Tensor (*op)(A), One f, Arg arg) {
  Row row = unary(name, op, f, arg);
  row.twice = false;
  return row;
}

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

std::vector<Row> pointwise_rows() {
  std::vector<Row> rows = {
      numeric("neg", neg, [](double x) { return -x; }),
      numeric(
          "abs", abs, [](double x) { return std::abs(x); }, away({3, 5}, 0)),
      numeric("square", square, [](double x) { return x * x; }),
      unary("exp", exp, [](double x) { return std::exp(x); }),
      unary("expm1", expm1, [](double x) { return std::expm1(x); }),
      unary(
          "log", log, [](double x) { return std::log(x); }, real({3, 5}, 0.2, 3)),
      unary(
          "log1p", log1p, [](double x) { return std::log1p(x); }, real({3, 5}, -0.7, 3)),
      unary(
          "log2", log2, [](double x) { return std::log2(x); }, real({3, 5}, 0.2, 3)),
      unary(
          "sqrt", sqrt, [](double x) { return std::sqrt(x); }, real({3, 5}, 0.2, 3)),
      unary(
          "rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, real({3, 5}, 0.3, 3)),
      unary(
          "reciprocal", reciprocal, [](double x) { return 1 / x; }, real({3, 5}, 0.3, 3)),
      unary("sin", sin, [](double x) { return std::sin(x); }),
      unary("cos", cos, [](double x) { return std::cos(x); }),
      unary(
          "tan", tan, [](double x) { return std::tan(x); }, real({3, 5}, -1, 1)),
      unary("tanh", tanh, [](double x) { return std::tanh(x); }),
      unary("sigmoid", sigmoid, sigmoid_of),
      unary("log_sigmoid", log_sigmoid, [](double x) { return -std::log1p(std::exp(-x)); }),
      unary("erf", erf, [](double x) { return std::erf(x); }),
      numeric(
          "relu", relu, [](double x) { return x <= 0 ? 0 : x; }, away({3, 5}, 0)),
      unary("gelu", gelu, [](double x) { return x / 2 * (1 + std::erf(x / std::numbers::sqrt2)); }),
      unary("gelu_tanh", gelu_tanh,
            [](double x) {
              return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
            }),
      unary("silu", silu, [](double x) { return x * sigmoid_of(x); }),
      unary("softplus", softplus, [](double x) { return std::log1p(std::exp(x)); }),
      flat(
          "sign", sign, [](double x) { return std::isnan(x) ? x : static_cast<double>((x > 0) - (x < 0)); },
          away({3, 5}, 0)),
      flat(
          "floor", floor, [](double x) { return std::floor(x); }, real({3, 5}, 0.1, 0.9)),
      flat(
          "ceil", ceil, [](double x) { return std::ceil(x); }, real({3, 5}, 0.1, 0.9)),
      flat(
          "round", round, [](double x) { return std::nearbyint(x); }, real({3, 5}, 0.6, 1.4)),
      flat(
          "trunc", trunc, [](double x) { return std::trunc(x); }, real({3, 5}, 1.1, 1.9)),
  };
  Row leaky = unary<In>(
      "leaky_relu", nullptr, [](double x) { return x > 0 ? x : 0.2 * x; }, away({3, 5}, 0));
  leaky.call = [](const Tensors& x) -> Tensors { return {leaky_relu(x[0], 0.2)}; };
  leaky.takes = {{Number::Meets::kReal, [](const Tensor& x, Scalar s) { return leaky_relu(x, s.d); }}};
  rows.push_back(leaky);
  Row e = unary<In>(
      "elu", nullptr, [](double x) { return x > 0 ? x : 0.7 * std::expm1(x); }, away({3, 5}, 0));
  e.call = [](const Tensors& x) -> Tensors { return {elu(x[0], 0.7)}; };
  e.takes = {{Number::Meets::kReal, [](const Tensor& x, Scalar s) { return elu(x, s.d); }}};
  rows.push_back(e);
  return rows;
}

namespace {

using Two = bool (*)(long double, long double);
using BinaryOp = Tensor (*)(In, In);
using ScalarOp = Tensor (*)(In, Scalar);

Row test(const std::string& name, BinaryOp op, Two f) {
  Row row{.name = name,
          .args = {fixed({3, 5}), fixed({3, 5})},
          .call = [op](const Tensors& x) -> Tensors { return {op(x[0], x[1])}; },
          .reference = elementwise([f](const std::vector<double>& x) { return f(x[0], x[1]) ? 1.0 : 0.0; }),
          .differentiable = false,
          .dtypes = every_type(),
          .sizes = {{{}, {}}, {{0}, {1}}, {{1}, {1}}, {{3, 1}, {5}}, {{2, 3, 5}, {3, 1}}},
          .large = {{307, 211}, {211}}};
  row.wrong = {{"ShapeError", name, [op] { op(zeros({3, 2}), zeros({3, 5})); }}};
  return row;
}

Row test_number(const std::string& name, ScalarOp op, Two f) {
  return {.name = name,
          .args = {fixed({3, 5})},
          .call = [op](const Tensors& x) -> Tensors {
            return {op(x[0], 1), op(x[0], 0.5)};
          },
          .reference = [f](const Hosts& in) -> Hosts {
            return {build(in[0].sizes, [&](const Shape& at) { return f(in[0](at), 1); }),
                    build(in[0].sizes, [&](const Shape& at) { return f(in[0](at), 0.5); })};
          },
          .differentiable = false,
          .dtypes = every_type(),
          .sizes = unary_sizes(),
          .takes = {{Number::Meets::kElement, [op](const Tensor& x, Scalar s) { return op(x, s); }, f}}};
}

template <class A> Row test_one(const char* name, Tensor (*op)(A), One f) {
  Row row = unary(name, op, f);
  row.differentiable = false;
  row.dtypes = every_type();
  return row;
}

Row isinf_row() {
  Row row = test_one("isinf", isinf, [](double x) { return std::isinf(1 / std::trunc(x)) ? 1.0 : 0.0; });
  row.call = [](const Tensors& x) -> Tensors { return {isinf(reciprocal(trunc(x[0])))}; };
  return row;
}

}  // namespace

std::vector<Row> test_rows() {
  return {
      test("eq", eq, [](long double a, long double b) { return a == b; }),
      test("ne", ne, [](long double a, long double b) { return a != b; }),
      test("lt", lt, [](long double a, long double b) { return a < b; }),
      test("le", le, [](long double a, long double b) { return a <= b; }),
      test("gt", gt, [](long double a, long double b) { return a > b; }),
      test("ge", ge, [](long double a, long double b) { return a >= b; }),
      test_number("eq_number", eq, [](long double a, long double b) { return a == b; }),
      test_number("ne_number", ne, [](long double a, long double b) { return a != b; }),
      test_number("lt_number", lt, [](long double a, long double b) { return a < b; }),
      test_number("le_number", le, [](long double a, long double b) { return a <= b; }),
      test_number("gt_number", gt, [](long double a, long double b) { return a > b; }),
      test_number("ge_number", ge, [](long double a, long double b) { return a >= b; }),
      test("logical_and", logical_and, [](long double a, long double b) { return a != 0 && b != 0; }),
      test("logical_or", logical_or, [](long double a, long double b) { return a != 0 || b != 0; }),
      test("logical_xor", logical_xor, [](long double a, long double b) { return (a != 0) != (b != 0); }),
      test_one("logical_not", logical_not, [](double x) { return x == 0 ? 1.0 : 0.0; }),
      test_one("isnan", isnan, [](double x) { return std::isnan(x) ? 1.0 : 0.0; }),
      isinf_row(),
      test_one("isfinite", isfinite, [](double x) { return std::isfinite(x) ? 1.0 : 0.0; }),
  };
}

}  // namespace weft::op_table
