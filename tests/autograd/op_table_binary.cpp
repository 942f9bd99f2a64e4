// Rows of the functions of two and three tensors and of a tensor and a number.
#include <algorithm>
#include <cmath>

#include "support/op_table.h"

namespace weft::op_table {

namespace {

using V = std::vector<double>;
std::vector<std::vector<Shape>> pair_sizes() {
  return {{{}, {}},     {{1}, {1}},       {{0}, {1}},   {{3, 1}, {5}}, {{2, 3, 5}, {3, 1}},
          {{3, 5}, {}}, {{5}, {2, 3, 5}}, {{0, 3}, {3}}};
}

Row pair(const std::string& name, std::function<Tensor(const Tensor&, const Tensor&)> op,
         double (*f)(double, double), Arg a, Arg b, const std::vector<DType>& dtypes = floats()) {
  Row row{.name = name,
          .args = {a, b},
          .call = [op](const Tensors& x) -> Tensors { return {op(x[0], x[1])}; },
          .reference = elementwise([f](const V& x) { return f(x[0], x[1]); }),
          .dtypes = dtypes,
          .sizes = pair_sizes(),
          .wrong = {{"ShapeError", "[3, 2]",
                     [op] {
                       op(zeros({3, 2}), zeros({3, 5}));
                     }}},
          .large = {{307, 211}, {211}}};
  return row;
}

Row triple(const std::string& name, std::function<Tensor(const Tensors&)> op,
           double (*f)(double, double, double), const std::vector<Arg>& args) {
  return {.name = name,
          .args = args,
          .call = [op](const Tensors& x) -> Tensors { return {op(x)}; },
          .reference = elementwise([f](const V& x) { return f(x[0], x[1], x[2]); }),
          .sizes = {{{}, {}, {}}, {{0}, {1}, {1}}, {{3, 1}, {5}, {2, 1, 1}}, {{1}, {1}, {1}}},
          .wrong = {{"ShapeError", "[3, 2]",
                     [op, kind = args[0].kind] {
                       op({zeros({3, 2}, {.dtype = kind == Arg::Kind::kFlags ? kBool : kFloat32}),
                           zeros({3, 5}), zeros({5})});
                     }}},
          .large = {{307, 211}, {211}, {1}}};
}

Row number(const std::string& name, std::function<Tensor(const Tensor&)> op, double (*f)(double),
           Arg a = real({3, 5}), const std::vector<DType>& dtypes = floats()) {
  return {.name = name,
          .args = {a},
          .call = [op](const Tensors& x) -> Tensors { return {op(x[0])}; },
          .reference = elementwise([f](const V& x) { return f(x[0]); }),
          .dtypes = dtypes,
          .sizes = {{{}}, {{1}}, {{0}}, {{2, 0, 3}}, {{3, 1, 5, 2}}},
          .large = {{307, 211}}};
}

double floor_mod(double a, double b) {  // Python's %
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double floor_quotient(double a, double b) {  // Python's //
  if (b == 0) return a / b;
  const double r = std::fmod(a, b);
  const double q = std::floor((a - r) / b + 0.5) - (r != 0 && (r < 0) != (b < 0) ? 1 : 0);
  return q == 0 ? std::copysign(q, a / b) : q;
}

double larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b); }
double smaller(double a, double b) { return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b); }

}  // namespace

std::vector<Row> binary_rows() {
  const Arg any = real({3, 5}), positive = real({3, 5}, 0.3, 2);
  std::vector<Row> rows = {
      pair(
          "add", [](const Tensor& a, const Tensor& b) { return add(a, b); },
          [](double a, double b) { return a + b; }, any, any, numbers()),
      pair(
          "add_alpha", [](const Tensor& a, const Tensor& b) { return add(a, b, 3); },
          [](double a, double b) { return a + 3 * b; }, any, any, numbers()),
      pair(
          "sub", [](const Tensor& a, const Tensor& b) { return sub(a, b); },
          [](double a, double b) { return a - b; }, any, any, numbers()),
      pair(
          "sub_alpha", [](const Tensor& a, const Tensor& b) { return sub(a, b, 2); },
          [](double a, double b) { return a - 2 * b; }, any, any, numbers()),
      pair(
          "mul", [](const Tensor& a, const Tensor& b) { return mul(a, b); },
          [](double a, double b) { return a * b; }, any, any, numbers()),
      pair(
          "div", [](const Tensor& a, const Tensor& b) { return div(a, b); },
          [](double a, double b) { return a / b; }, any, positive),
      pair(
          "pow", [](const Tensor& a, const Tensor& b) { return pow(a, b); },
          [](double a, double b) { return std::pow(a, b); }, positive, any),
      pair(
          "maximum", [](const Tensor& a, const Tensor& b) { return maximum(a, b); }, larger,
          real({3, 5}, -2, 0), real({3, 5}, -0.9, 1), numbers()),
      pair(
          "minimum", [](const Tensor& a, const Tensor& b) { return minimum(a, b); }, smaller,
          real({3, 5}, -2, 0), real({3, 5}, -0.9, 1), numbers()),
      pair(
          "remainder", [](const Tensor& a, const Tensor& b) { return remainder(a, b); }, floor_mod,
          real({3, 5}, 0.1, 0.9), real({3, 5}, -3, -1)),
      pair(
          "fmod", [](const Tensor& a, const Tensor& b) { return fmod(a, b); },
          [](double a, double b) { return std::fmod(a, b); }, real({3, 5}, -0.9, -0.1), real({3, 5}, 1, 3)),
      pair(
          "fmod_wrapped", [](const Tensor& a, const Tensor& b) { return fmod(a, b); },
          [](double a, double b) { return std::fmod(a, b); }, real({3, 5}, -2.9, -2.1),
          real({3, 5}, 1.1, 1.9), {kFloat32, kFloat64}),
      pair(
          "atan2", [](const Tensor& a, const Tensor& b) { return atan2(a, b); },
          [](double a, double b) { return std::atan2(a, b); }, any, positive),
      pair(
          "lerp_number", [](const Tensor& a, const Tensor& b) { return lerp(a, b, 0.25); },
          [](double a, double b) { return a + 0.25 * (b - a); }, any, any, {kFloat32, kFloat64}),
      triple(
          "lerp", [](const Tensors& x) { return lerp(x[0], x[1], x[2]); },
          [](double a, double b, double w) {
            return std::abs(w) < 0.5 ? a + w * (b - a) : b - (b - a) * (1 - w);
          },
          {any, any, any}),
      triple(
          "addcmul", [](const Tensors& x) { return addcmul(x[0], x[1], x[2], 0.5); },
          [](double x, double a, double b) { return x + 0.5 * a * b; }, {any, any, any}),
      triple(
          "addcdiv", [](const Tensors& x) { return addcdiv(x[0], x[1], x[2], 0.5); },
          [](double x, double a, double b) { return x + 0.5 * a / b; }, {any, any, positive}),
      triple(
          "clamp_tensors", [](const Tensors& x) { return clamp(x[0], x[1], x[2]); },
          [](double x, double low, double high) { return smaller(larger(x, low), high); },
          {real({3, 5}, -3, 3), real({3, 5}, -1, -0.5), real({3, 5}, 0.5, 1)}),
      triple(
          "where", [](const Tensors& x) { return where(x[0], x[1], x[2]); },
          [](double c, double a, double b) { return c != 0 ? a : b; }, {flags({3, 5}), any, any}),
  };
  Row quotient = pair(
      "floor_divide", [](const Tensor& a, const Tensor& b) { return floor_divide(a, b); }, floor_quotient,
      real({3, 5}, -9, 9), real({3, 5}, 1.1, 4), numbers());
  quotient.differentiable = false;
  quotient.wrong.push_back(
      {"ValueError", "0", [] { floor_divide(ones({2}, {.dtype = kInt64}), zeros({2}, {.dtype = kInt64})); }});
  for (Row& row : rows) {
    if (row.name == "maximum" || row.name == "minimum" || row.name == "clamp_tensors")
      row.signed_zeros = false;  // of two zeros either is the larger one
    if (row.name == "add_alpha")
      row.takes = {{Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return add(x, x, s); }}};
    if (row.name == "sub_alpha")
      row.takes = {{Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return sub(x, x, s); }}};
    if (row.name == "lerp_number")
      row.takes = {{Number::Meets::kReal, [](const Tensor& x, Scalar s) { return lerp(x, x, s); }}};
    if (row.name == "addcmul")
      row.takes = {{Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return addcmul(x, x, x, s); }}};
    if (row.name == "where")
      row.takes = {
          {Number::Meets::kElement, [](const Tensor& x, Scalar s) { return where(isnan(x), x, s); }},
          {Number::Meets::kElement, [](const Tensor& x, Scalar s) { return where(isnan(x), s, x); }}};
    if (row.name == "addcdiv")
      row.takes = {{Number::Meets::kReal, [](const Tensor& x, Scalar s) { return addcdiv(x, x, x, s); }}};
  }
  rows[3].wrong.push_back({"DTypeError", "sub: the number 0.5",
                           [] { sub(zeros({2}, {.dtype = kInt64}), zeros({2}, {.dtype = kInt64}), 0.5); }});
  rows.back().wrong.push_back({"DTypeError", "where", [] { where(zeros({2}), zeros({2}), zeros({2})); }});
  rows.back().dtypes = {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool};
  Row fill{.name = "masked_fill",
           .args = {any, flags({3, 5})},
           .call = [](const Tensors& x) -> Tensors { return {masked_fill(x[0], x[1], 7)}; },
           .reference = elementwise([](const V& x) { return x[1] != 0 ? 7 : x[0]; }),
           .dtypes = numbers(),
           .sizes = {{{}, {}}, {{0}, {1}}, {{3, 5}, {5}}, {{5}, {3, 1}}},
           .wrong = {{"DTypeError", "masked_fill", [] { masked_fill(zeros({2}), zeros({2}), 1); }},
                     {"ShapeError", "masked_fill",
                      [] { masked_fill(zeros({2}), zeros({3}, {.dtype = kBool}), 1); }}},
           .takes = {{Number::Meets::kElement,
                      [](const Tensor& x, Scalar s) { return masked_fill(x, isnan(x), s); }}}};
  rows.push_back(quotient);
  rows.push_back(fill);
  return rows;
}

std::vector<Row> scalar_rows() {
  const Arg positive = real({3, 5}, 0.3, 2);
  std::vector<Row> rows = {
      number(
          "add_number", [](const Tensor& x) { return x + 3; }, [](double x) { return x + 3; }, real({3, 5}),
          numbers()),
      number(
          "sub_number", [](const Tensor& x) { return x - 3; }, [](double x) { return x - 3; }, real({3, 5}),
          numbers()),
      number(
          "rsub_number", [](const Tensor& x) { return 3 - x; }, [](double x) { return 3 - x; }, real({3, 5}),
          numbers()),
      number(
          "mul_number", [](const Tensor& x) { return x * 3; }, [](double x) { return x * 3; }, real({3, 5}),
          numbers()),
      number(
          "div_number", [](const Tensor& x) { return x / 4; }, [](double x) { return x / 4; }),
      number(
          "rdiv_number", [](const Tensor& x) { return 2 / x; }, [](double x) { return 2 / x; }, positive),
      number(
          "pow_number", [](const Tensor& x) { return pow(x, 2.5); },
          [](double x) { return std::pow(x, 2.5); }, positive),
      number(
          "pow_cube", [](const Tensor& x) { return pow(x, 3); }, [](double x) { return x * x * x; }),
      number(
          "pow_square", [](const Tensor& x) { return pow(x, 2); }, [](double x) { return x * x; }),
      number(
          "rpow_number", [](const Tensor& x) { return pow(Scalar(1.7), x); },
          [](double x) { return std::pow(1.7, x); }),
      number(
          "maximum_number", [](const Tensor& x) { return maximum(x, 1); },
          [](double x) { return larger(x, 1); }, away({3, 5}, 1), numbers()),
      number(
          "minimum_number", [](const Tensor& x) { return minimum(x, 1); },
          [](double x) { return smaller(x, 1); }, away({3, 5}, 1), numbers()),
      number(
          "remainder_number", [](const Tensor& x) { return x % -3; },
          [](double x) { return floor_mod(x, -3); }, real({3, 5}, 0.1, 2.9), {kFloat32, kFloat64}),
      number(
          "rremainder_number", [](const Tensor& x) { return 2 % x; },
          [](double x) { return floor_mod(2, x); }, real({3, 5}, -1.9, -1.1), {kFloat32, kFloat64}),
      number(
          "remainder_number_integer", [](const Tensor& x) { return x.to(kInt64) % 2; },
          [](double x) { return floor_mod(std::trunc(x), 2); }, fixed({3, 5}, -50, 50), numbers()),
      number(
          "clamp", [](const Tensor& x) { return clamp(x, -1, 5); },
          [](double x) { return smaller(larger(x, -1), 5); }, away({3, 5}, -1), numbers()),
  };
  Row wrapped = number(
      "fmod_number", [](const Tensor& x) { return fmod(x, 3); }, [](double x) { return std::fmod(x, 3); },
      real({3, 5}, -2.9, -0.1), numbers());
  wrapped.wrong = {{"DTypeError", "fmod: the number 0.5", [] { fmod(zeros({2}, {.dtype = kInt64}), 0.5); }},
                   {"ValueError", "0", [] { fmod(zeros({2}, {.dtype = kInt64}), 0); }}};
  Row quotient = number(
      "floor_divide_number", [](const Tensor& x) { return floor_divide(x, -2); },
      [](double x) { return floor_quotient(x, -2); }, real({3, 5}, -9, 9), numbers());
  quotient.differentiable = false;
  const auto divisor = [](Scalar s) { return s.d == 0 ? Scalar(1) : s; };
  wrapped.takes = {{Number::Meets::kFactor, [=](const Tensor& x, Scalar s) { return fmod(x, divisor(s)); }}};
  quotient.takes = {
      {Number::Meets::kFactor, [=](const Tensor& x, Scalar s) { return floor_divide(x, divisor(s)); }},
      {Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return floor_divide(s, x); }}};
  Row replaced = number(
      "nan_to_num", [](const Tensor& x) { return nan_to_num(x, 3, 5, -5); },
      [](double x) { return std::isnan(x)   ? 3
                            : std::isinf(x) ? std::copysign(5, x)
                                            : x; });
  for (const auto op : {+[](const Tensor&x, Scalar s) { return nan_to_num(x, s); },
                        +[](const Tensor&x, Scalar s) { return nan_to_num(x, 0, s); },
                        +[](const Tensor&x, Scalar s) { return nan_to_num(x, 0, {}, s); }})
    replaced.takes.push_back({.meets = Number::Meets::kElement, .call = op, .dtypes = floats()});
  const std::vector<Row> more = {wrapped, quotient, replaced};
  using Op = Tensor (*)(const Tensor&, Scalar);
  const auto takes = [&](const char* name, Number::Meets meets, Op op) {
    for (Row& row : rows)
      if (row.name == name) row.takes.push_back({meets, op});
  };
  takes("add_number", Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return x + s; });
  takes("sub_number", Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return x - s; });
  takes("mul_number", Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return x * s; });
  takes("div_number", Number::Meets::kReal, [](const Tensor& x, Scalar s) { return x / s; });
  takes("rdiv_number", Number::Meets::kReal, [](const Tensor& x, Scalar s) { return s / x; });
  takes("maximum_number", Number::Meets::kElement, [](const Tensor& x, Scalar s) { return maximum(x, s); });
  takes("minimum_number", Number::Meets::kElement, [](const Tensor& x, Scalar s) { return minimum(x, s); });
  takes("clamp", Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return clamp(x, s, s); });
  takes("sub_number", Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return sub(s, x); });
  takes("pow_number", Number::Meets::kPower, [](const Tensor& x, Scalar s) {
    const bool fraction = !is_floating(x.dtype()) && s.integral && s.i < 0 && s.fits(x.dtype());
    return fraction ? x : pow(x, s);  // a negative power of integers is another error
  });
  takes("pow_number", Number::Meets::kPower, [](const Tensor& x, Scalar s) { return pow(s, x); });
  takes("remainder_number", Number::Meets::kFactor,
        [](const Tensor& x, Scalar s) { return x % (s.d == 0 ? Scalar(1) : s); });
  takes("remainder_number", Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return s % x; });
  for (Row& row : rows)
    if (row.name == "remainder_number_integer") row.differentiable = row.special = false;
  rows[0].wrong = {{"DTypeError", "add", [] { add(zeros({2}, {.dtype = kInt64}), 0.5); }}};
  rows[1].wrong = {{"DTypeError", "sub: the number 0.5", [] { sub(zeros({2}, {.dtype = kInt64}), 0.5); }},
                   {"DTypeError", "sub: the number 0.5", [] { sub(0.5, zeros({2}, {.dtype = kInt64})); }}};
  rows[3].wrong = {{"DTypeError", "mul", [] { mul(zeros({2}, {.dtype = kInt32}), 0.5); }}};
  static constexpr int64_t large = int64_t{1} << 53;  // from here on neighbours are one double
  rows.back().wrong = {{"ValueError", "clamp", [] { clamp(zeros({2}), 2, 1); }},
                       {"ValueError", "9007199254740993 is above high 9007199254740992",
                        [] { clamp(zeros({2}, {.dtype = kInt64}), large + 1, large); }},
                       {"ValueError", "9007199254740993 is above high",
                        [] { clamp(zeros({2}, {.dtype = kInt64}), large + 1, 0x1p53); }}};
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

}  // namespace weft::op_table
