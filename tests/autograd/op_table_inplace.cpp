// Rows of the in-place methods, on a fresh copy of x: forward, and gradients through the write, also through
// a view.
#include <algorithm>
#include <cmath>

#include "support/op_table.h"

namespace weft::op_table {

namespace {

using V = std::vector<double>;

double modulo(double a, double b) {  // Python's %
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

Row written(const std::string& name, std::function<void(Tensor&, const Tensor&)> op,
            double (*f)(double, double), Arg a = real({3, 5}), Arg b = real({3, 5})) {
  return {.name = name,
          .args = {a, b},
          .call = [op](const Tensors& x) -> Tensors {
            Tensor y = clone(x[0]);
            op(y, x[1]);
            return {y};
          },
          .reference = elementwise([f](const V& x) { return f(x[0], x[1]); }),
          .sizes = {{{3, 5}, {5}}, {{1}, {1}}, {{0}, {1}}, {{}, {}}},
          .wrong = {{"ShapeError", name.substr(0, name.find('_') + 1),
                     [op] {
                       Tensor x = zeros({5}).expand({3, 5});
                       op(x, zeros({5}));
                     }}},
          .large = {{307, 211}, {211}}};
}

}  // namespace

std::vector<Row> inplace_rows() {
  const Arg positive = real({3, 5}, 0.4, 2);
  std::vector<Row> rows = {
      written(
          "zero_", [](Tensor& y, const Tensor&) { y.zero_(); }, [](double, double) { return 0.0; }),
      written(
          "fill_", [](Tensor& y, const Tensor&) { y.fill_(3); }, [](double, double) { return 3.0; }),
      written(
          "copy_", [](Tensor& y, const Tensor& b) { y.copy_(b); }, [](double, double b) { return b; }),
      written(
          "add_", [](Tensor& y, const Tensor& b) { y.add_(b, 2); },
          [](double a, double b) { return a + 2 * b; }),
      written(
          "add_number_", [](Tensor& y, const Tensor&) { y.add_(3); }, [](double a, double) { return a + 3; }),
      written(
          "sub_", [](Tensor& y, const Tensor& b) { y -= b; }, [](double a, double b) { return a - b; }),
      written(
          "sub_scaled_", [](Tensor& y, const Tensor& b) { y.sub_(b, 2); },
          [](double a, double b) { return a - 2 * b; }),
      written(
          "sub_number_", [](Tensor& y, const Tensor&) { y -= 3; }, [](double a, double) { return a - 3; }),
      written(
          "masked_fill_", [](Tensor& y, const Tensor& b) { y.masked_fill_(b > 0, 7); },
          [](double a, double b) { return b > 0 ? 7 : a; }, real({3, 5}), fixed({3, 5})),
      written(
          "mul_", [](Tensor& y, const Tensor& b) { y *= b; }, [](double a, double b) { return a * b; }),
      written(
          "mul_number_", [](Tensor& y, const Tensor&) { y.mul_(3); }, [](double a, double) { return a * 3; }),
      written(
          "div_", [](Tensor& y, const Tensor& b) { y /= b; }, [](double a, double b) { return a / b; },
          real({3, 5}), positive),
      written(
          "div_number_", [](Tensor& y, const Tensor&) { y.div_(4); }, [](double a, double) { return a / 4; }),
      written(
          "exp_", [](Tensor& y, const Tensor&) { y.exp_(); }, [](double a, double) { return std::exp(a); }),
      written(
          "neg_", [](Tensor& y, const Tensor&) { y.neg_(); }, [](double a, double) { return -a; }),
      written(
          "pow_", [](Tensor& y, const Tensor& b) { y.pow_(b); },
          [](double a, double b) { return std::pow(a, b); }, positive, real({3, 5})),
      written(
          "pow_number_", [](Tensor& y, const Tensor&) { y.pow_(3); },
          [](double a, double) { return a * a * a; }),
      written(
          "remainder_", [](Tensor& y, const Tensor& b) { y %= b; }, modulo, real({3, 5}, 0.1, 0.9),
          real({3, 5}, -3, -1)),
      written(
          "remainder_number_", [](Tensor& y, const Tensor&) { y %= -3; },
          [](double a, double) { return modulo(a, -3); }, real({3, 5}, 0.1, 2.9)),
      written(
          "clamp_", [](Tensor& y, const Tensor&) { y.clamp_(-1, 5); },
          [](double a, double) { return std::clamp(a, -1.0, 5.0); }, away({3, 5}, -1)),
      written(
          "relu_", [](Tensor& y, const Tensor&) { y.relu_(); },
          [](double a, double) { return a <= 0 ? 0 : a; }, away({3, 5}, 0)),
  };
  rows[3].wrong.push_back({"ShapeError", "add_", [] { zeros({3}).add_(zeros({2, 3})); }});
  rows[3].wrong.push_back({"DTypeError", "add_", [] { zeros({3}, {.dtype = kInt64}).add_(zeros({3})); }});
  for (Row& row : rows)  // the second argument of the unary ones has no part in the result
    if (row.name == "zero_" || row.name == "fill_" || row.name.find("number") != std::string::npos ||
        row.name == "clamp_" || row.name == "relu_" || row.name == "exp_" || row.name == "neg_")
      row.args[1].grad = false;
  for (Row& row : rows)
    if (row.name == "zero_" || row.name == "fill_") row.twice = false;
  using Op = Tensor& (*)(Tensor&, Scalar);
  const auto takes = [&](const char* name, Number::Meets meets, Op op) {
    for (Row& row : rows)
      if (row.name == name)
        row.takes.push_back({meets, [op](const Tensor& x, Scalar s) {
                               Tensor y = x;
                               return op(y, s);
                             }});
  };
  takes("fill_", Number::Meets::kElement, [](Tensor& y, Scalar s) -> Tensor& { return y.fill_(s); });
  takes("add_", Number::Meets::kFactor,
        [](Tensor& y, Scalar s) -> Tensor& { return y.add_(ones_like(y), s); });
  takes("add_number_", Number::Meets::kFactor, [](Tensor& y, Scalar s) -> Tensor& { return y.add_(s); });
  takes("mul_number_", Number::Meets::kFactor, [](Tensor& y, Scalar s) -> Tensor& { return y.mul_(s); });
  takes("clamp_", Number::Meets::kFactor, [](Tensor& y, Scalar s) -> Tensor& { return y.clamp_(s, s); });
  using Meets = Number::Meets;
  takes("sub_number_", Meets::kFactor, [](Tensor& y, Scalar s) -> Tensor& { return y -= s; });
  takes("sub_scaled_", Meets::kFactor,
        [](Tensor& y, Scalar s) -> Tensor& { return y.sub_(ones_like(y), s); });
  takes("masked_fill_", Meets::kElement,
        [](Tensor& y, Scalar s) -> Tensor& { return y.masked_fill_(isnan(y), s); });
  takes("remainder_number_", Meets::kFactor,
        [](Tensor& y, Scalar s) -> Tensor& { return y %= s.d == 0 ? Scalar(1) : s; });
  takes("div_number_", Meets::kFactor, [](Tensor& y, Scalar s) -> Tensor& { return y /= s; });
  takes("pow_number_", Meets::kFactor, [](Tensor& y, Scalar s) -> Tensor& { return y.pow_(s); });
  for (Row& row : rows)  // quotients and powers by a fraction are no integers
    if (row.name == "div_number_" || row.name == "pow_number_") row.takes.back().dtypes = floats();
  const std::vector<Row> by_index = index_rows(), by_many = index_many_rows(), of_bits = bit_rows();
  // The row of the function, with the method on a copy of its first input.
  const auto method = [&](const std::vector<Row>& from, const std::string& name, auto write) {
    Row row = *std::find_if(from.begin(), from.end(), [&](const Row& r) { return r.name + "_" == name; });
    row.name = name;
    row.call = [write](const Tensors& x) -> Tensors {
      Tensors y;
      write([&]() -> Tensor& { return y.emplace_back(clone(x[0])); }, x);
      return y;
    };
    row.wrong.clear(), row.takes.clear();
    rows.push_back(std::move(row));
  };
  method(by_index, "scatter_", [](auto&& y, const Tensors& x) { y().scatter_(1, x[1], x[2]); });
  takes("scatter_", Meets::kElement, [](Tensor& y, Scalar s) -> Tensor& {
    return y.scatter_(0, zeros({1, 2}, {.dtype = kInt64, .device = y.device()}), s);
  });
  method(by_index, "scatter_add_", [](auto&& y, const Tensors& x) { y().scatter_add_(1, x[1], x[2]); });
  method(by_index, "index_add_", [](auto&& y, const Tensors& x) {
    y().index_add_(0, x[1], x[2]);
    y().index_add_(1, x[1], x[3]);
  });
  method(by_many, "masked_scatter_", [](auto&& y, const Tensors& x) {
    y().masked_scatter_(x[1], x[2]);
    y().masked_scatter_(x[1][2], x[2]);
  });
  method(of_bits, "bitwise_and_", [](auto&& y, const Tensors& x) { y() &= x[1]; });
  method(of_bits, "bitwise_or_", [](auto&& y, const Tensors& x) { y() |= x[1]; });
  method(of_bits, "bitwise_xor_", [](auto&& y, const Tensors& x) { y() ^= x[1]; });
  takes("bitwise_and_", Meets::kElement, [](Tensor& y, Scalar s) -> Tensor& { return y &= s; });
  takes("bitwise_or_", Meets::kElement, [](Tensor& y, Scalar s) -> Tensor& { return y |= s; });
  takes("bitwise_xor_", Meets::kElement, [](Tensor& y, Scalar s) -> Tensor& { return y ^= s; });
  for (Row& row : rows)
    if (row.name.starts_with("bitwise")) {
      row.takes.back().dtypes = whole_types();
      row.sizes.pop_back();  // x does not grow
    }
  rows.push_back({.name = "mul_through_a_view_",
                  .args = {real({3, 5}), real({5})},
                  .call = [](const Tensors& x) -> Tensors {
                    Tensor y = clone(x[0]);
                    Tensor row = y[1];
                    row.mul_(x[1]);
                    return {square(y), row};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    Host y = in[0], row({5});
                    for (int64_t c = 0; c < 5; ++c) row({c}) = y({1, c}) *= in[1]({c});
                    for (double& v : y.v) v *= v;
                    return {y, row};
                  }});
  rows.push_back({.name = "index_put_through_a_view_",
                  .args = {real({3, 5}), real({2}), flags({5})},
                  .call = [](const Tensors& x) -> Tensors {
                    Tensor y = clone(x[0]);
                    const Tensor at = tensor({3, 0}, {.dtype = kInt64}).to(y.device());
                    y[1].index_put_({at}, x[1]);
                    y[2][x[2]] *= 3;
                    return {square(y)};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    Host y = in[0];
                    y({1, 3}) = in[1]({0}), y({1, 0}) = in[1]({1});
                    for (int64_t c = 0; c < 5; ++c) y({2, c}) *= in[2]({c}) != 0 ? 3 : 1;
                    for (double& v : y.v) v *= v;
                    return {y};
                  }});
  takes("index_put_through_a_view_", Meets::kElement,
        [](Tensor& y, Scalar s) -> Tensor& { return y.index_put_({0}, s); });
  rows.push_back(
      {.name = "add_overlapping_",
       .args = {real({3, 3})},
       .call = [](const Tensors& x) -> Tensors {
         Tensor y = clone(x[0]);
         y.add_(y.t());
         return {y};
       },
       .reference = [](const Hosts& in) -> Hosts {
         return {build({3, 3}, [&](const Shape& at) { return in[0](at) + in[0]({at[1], at[0]}); })};
       }});
  return rows;
}

}  // namespace weft::op_table
