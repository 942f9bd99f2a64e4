// Rows of the reductions, running sums and sorts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "support/op_table.h"

namespace weft::op_table {

namespace {

using Fold = double (*)(const std::vector<double>&);

// Every group of elements that go into one result, folded.
Host folded(const Host& x, const Shape& dims, bool keepdim, Fold f) {
  bool gone[kMaxDims] = {};
  for (int d = 0; d < x.sizes.size(); ++d) gone[d] = dims.empty();
  for (int64_t d : dims) gone[d < 0 ? d + x.sizes.size() : d] = true;
  Shape kept = x.sizes, out;
  for (int d = 0; d < kept.size(); ++d) {
    if (gone[d]) kept[d] = 1;
    if (!gone[d] || keepdim) out.push_back(kept[d]);
  }
  std::vector<std::vector<double>> groups(static_cast<size_t>(kept.numel()));
  Host index(kept);
  for (size_t i = 0; i < index.v.size(); ++i) index.v[i] = static_cast<double>(i);
  for_each(x.sizes,
           [&](const Shape& at) { groups[static_cast<size_t>(index.broadcast_at(at))].push_back(x(at)); });
  Host y(out);
  for (size_t i = 0; i < groups.size(); ++i) y.v[i] = f(groups[i]);
  return y;
}

using Full = std::function<Tensor(const Tensor&)>;
using Dimmed = std::function<Tensor(const Tensor&, const Shape&, bool)>;
struct Forms {
  Full full;
  Dimmed dimmed;
};

// Three rows: over everything, over the middle dim kept, over two dims from the end.
void add_forms(std::vector<Row>& rows, const std::string& name, const Forms& op, Fold f,
               const std::vector<DType>& dtypes, Arg arg, bool differentiable = true,
               bool empty_is_fine = true) {
  const auto make = [&](const std::string& suffix, const Shape& dims, bool keepdim,
                        const std::function<Tensor(const Tensor&)>& call) {
    Row row{.name = name + suffix,
            .args = {arg},
            .call = [call](const Tensors& x) -> Tensors { return {call(x[0])}; },
            .reference = [=](const Hosts& in) -> Hosts { return {folded(in[0], dims, keepdim, f)}; },
            .differentiable = differentiable,
            .dtypes = dtypes,
            .large = {{37, 41, 53}}};
    row.sizes = {{{1, 1, 1}}, {{2, 3, 2}}};
    if (empty_is_fine) row.sizes.push_back({{2, 0, 3}});
    row.wrong = {{"IndexError", name.substr(0, name.find('_')),
                  [op] {
                    op.dimmed(zeros({2, 3}), {2}, false);
                  }},
                 {"ShapeError", "twice", [op] {
                    op.dimmed(zeros({2, 3}), {0, -2}, false);
                  }}};
    if (!op.dimmed) row.wrong = {};
    rows.push_back(row);
  };
  if (op.full) {
    make("", {}, false, op.full);
    rows.back().sizes.push_back({{}});
    rows.back().sizes.push_back({{7}});
  }
  if (!op.dimmed) return;
  make("_dim1_keep", {1}, true, [op](const Tensor& x) { return op.dimmed(x, {1}, true); });
  make("_dims", {0, 2}, false, [op](const Tensor& x) { return op.dimmed(x, {-1, 0}, false); });
}

double total(const std::vector<double>& v) {
  double s = 0;
  for (double x : v) s += x;
  return s;
}
double spread(const std::vector<double>& v, double correction) {
  const double m = total(v) / static_cast<double>(v.size());
  double s = 0;
  for (double x : v) s += (x - m) * (x - m);
  return s / std::max(static_cast<double>(v.size()) - correction, 0.0);
}
// A NaN is the largest and the smallest number, as in PyTorch.
double greater_of(double a, double b) { return before(a, b) ? b : a; }
double lesser_of(double a, double b) { return std::isnan(b) || b < a ? b : a; }
double power_norm(const std::vector<double>& v, double p) {
  double s = 0;
  for (double x : v) s += std::pow(std::abs(x), p);
  return std::pow(s, 1 / p);
}

// Values and positions of the extreme along dim 1 of [A, B, C].
Hosts best_along(const Host& x, bool largest) {
  const Shape out{x.sizes[0], x.sizes[2]};
  Host values(out), at(out);
  for_each(out, [&](const Shape& k) {
    int64_t best = 0;
    for (int64_t i = 1; i < x.sizes[1]; ++i) {
      const double a = x({k[0], i, k[1]}), b = x({k[0], best, k[1]});
      if (largest ? before(b, a) : !std::isnan(b) && (std::isnan(a) || a < b)) best = i;
    }
    values(k) = x({k[0], best, k[1]});
    at(k) = static_cast<double>(best);
  });
  return {values, at};
}

Hosts sorted_along(const Host& x, bool descending, int64_t k) {  // along dim 0 of [A, B]
  Host values({k, x.sizes[1]}), at({k, x.sizes[1]});
  for (int64_t c = 0; c < x.sizes[1]; ++c) {
    std::vector<int64_t> order(static_cast<size_t>(x.sizes[0]));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return descending ? before(x({b, c}), x({a, c})) : before(x({a, c}), x({b, c}));
    });
    for (int64_t i = 0; i < k; ++i) {
      values({i, c}) = x({order[static_cast<size_t>(i)], c});
      at({i, c}) = static_cast<double>(order[static_cast<size_t>(i)]);
    }
  }
  return {values, at};
}

Row running(const char* name, std::function<Tensor(const Tensor&, int64_t)> op, double start,
            double (*step)(double, double)) {
  return {.name = name,
          .args = {real({3, 5, 2})},
          .call = [op](const Tensors& x) -> Tensors {
            return {op(x[0], 1), op(x[0], -1)};
          },
          .reference = [=](const Hosts& in) -> Hosts {
            const auto along = [&](int d) {
              return build(in[0].sizes, [&](const Shape& at) {
                double s = start;
                for (int64_t i = 0; i <= at[d]; ++i) s = step(s, in[0](with(at, d, i)));
                return s;
              });
            };
            return {along(1), along(2)};
          },
          .dtypes = {kFloat32, kFloat64, kInt64, kInt32},
          .sizes = {{{1, 1, 1}}, {{2, 0, 3}}},
          .wrong = {{"IndexError", name,
                     [op] {
                       op(zeros({2, 3}), 2);
                     }}},
          .large = {{31, 67, 29}}};
}

}  // namespace

std::vector<Row> reduce_rows() {
  std::vector<Row> rows;
  const Arg any_values = real({3, 5, 2});
  add_forms(rows, "sum",
            {[](const Tensor& x) { return sum(x); },
             [](const Tensor& x, const Shape& d, bool k) { return sum(x, d, k); }},
            total, every_type(), any_values);
  add_forms(
      rows, "mean",
      {[](const Tensor& x) { return mean(x); },
       [](const Tensor& x, const Shape& d, bool k) { return mean(x, d, k); }},
      [](const std::vector<double>& v) { return total(v) / static_cast<double>(v.size()); }, floats(),
      any_values);
  rows.back().wrong.push_back({"DTypeError", "mean", [] { mean(zeros({2}, {.dtype = kInt64})); }});
  const Fold product = [](const std::vector<double>& v) {
    double p = 1;
    for (double x : v) p *= x;
    return p;
  };
  add_forms(rows, "prod", {[](const Tensor& x) { return prod(x); }, nullptr}, product, every_type(),
            any_values);
  rows.push_back({.name = "prod_dim",
                  .args = {any_values},
                  .call = [](const Tensors& x) -> Tensors {
                    return {prod(x[0], 1), prod(x[0], -1, true)};
                  },
                  .reference = [product](const Hosts& in) -> Hosts {
                    return {folded(in[0], {1}, false, product), folded(in[0], {2}, true, product)};
                  },
                  .dtypes = every_type(),
                  .sizes = {{{2, 0, 3}}, {{1, 1, 1}}},
                  .wrong = {{"IndexError", "prod", [] { prod(zeros({2}), 1); }}}});
  const Fold largest = [](const std::vector<double>& v) {
    return std::accumulate(v.begin(), v.end(), v[0], greater_of);
  };
  const Fold smallest = [](const std::vector<double>& v) {
    return std::accumulate(v.begin(), v.end(), v[0], lesser_of);
  };
  add_forms(rows, "max", {[](const Tensor& x) { return max(x); }, nullptr}, largest, every_type(), any_values,
            true, false);
  rows.back().wrong = {{"ShapeError", "max", [] { max(zeros({0})); }}};
  add_forms(rows, "min", {[](const Tensor& x) { return min(x); }, nullptr}, smallest, every_type(),
            any_values, true, false);
  rows.back().wrong = {{"ShapeError", "min", [] { min(zeros({0})); }}};
  add_forms(rows, "amax", {nullptr, [](const Tensor& x, const Shape& d, bool k) { return amax(x, d, k); }},
            largest, every_type(), any_values, true, false);
  add_forms(rows, "amin", {nullptr, [](const Tensor& x, const Shape& d, bool k) { return amin(x, d, k); }},
            smallest, every_type(), any_values, true, false);
  for (const bool up : {true, false}) {
    rows.push_back({.name = up ? "max_dim" : "min_dim",
                    .args = {any_values},
                    .call = [up](const Tensors& x) -> Tensors {
                      const MaxResult r = up ? max(x[0], 1) : min(x[0], 1);
                      return {r.values, r.indices};
                    },
                    .reference = [up](const Hosts& in) { return best_along(in[0], up); },
                    .dtypes = every_type(),
                    .sizes = {{{1, 1, 1}}, {{0, 2, 3}}},
                    .wrong = {{"ShapeError", up ? "max" : "min", [up] {
                                 up ? max(zeros({2, 0}), 1) : min(zeros({2, 0}), 1);
                               }}}});
    rows.push_back({.name = up ? "argmax_all" : "argmin_all",
                    .args = {fixed({3, 5, 2})},
                    .call = [up](const Tensors& x) -> Tensors { return {up ? argmax(x[0]) : argmin(x[0])}; },
                    .reference = [up](const Hosts& in) -> Hosts {
                      const auto& v = in[0].v;
                      auto best = std::find_if(v.begin(), v.end(), [](double x) { return std::isnan(x); });
                      if (best == v.end())
                        best =
                            up ? std::max_element(v.begin(), v.end()) : std::min_element(v.begin(), v.end());
                      return {Host({}, {static_cast<double>(best - v.begin())})};
                    },
                    .differentiable = false,
                    .dtypes = every_type(),
                    .sizes = {{{}}, {{1}}},
                    .wrong = {{"ShapeError", up ? "argmax" : "argmin",
                               [up] { up ? argmax(zeros({0})) : argmin(zeros({0})); }}}});
    rows.push_back(
        {.name = up ? "argmax" : "argmin",
         .args = {fixed({3, 5, 2})},
         .call = [up](const Tensors& x) -> Tensors { return {up ? argmax(x[0], 1) : argmin(x[0], 1)}; },
         .reference = [up](const Hosts& in) -> Hosts { return {best_along(in[0], up)[1]}; },
         .differentiable = false,
         .dtypes = every_type(),
         .sizes = {{{1, 1, 1}}, {{0, 2, 3}}},
         .wrong = {{"IndexError", up ? "argmax" : "argmin",
                    [up] { up ? argmax(zeros({2}), 1) : argmin(zeros({2}), 1); }}}});
  }
  for (Row& row : rows)  // of several zeros any is the extreme
    if (row.name.starts_with("max") || row.name.starts_with("min") || row.name.starts_with("amax") ||
        row.name.starts_with("amin"))
      row.signed_zeros = false;
  add_forms(
      rows, "any",
      {[](const Tensor& x) { return any(x); },
       [](const Tensor& x, const Shape& d, bool k) { return any(x, d, k); }},
      [](const std::vector<double>& v) {
        return std::any_of(v.begin(), v.end(), [](double x) { return x != 0; }) ? 1.0 : 0.0;
      },
      every_type(), fixed({3, 5, 2}), false);
  add_forms(
      rows, "all",
      {[](const Tensor& x) { return all(x); },
       [](const Tensor& x, const Shape& d, bool k) { return all(x, d, k); }},
      [](const std::vector<double>& v) {
        return std::all_of(v.begin(), v.end(), [](double x) { return x != 0; }) ? 1.0 : 0.0;
      },
      every_type(), fixed({3, 5, 2}), false);
  add_forms(
      rows, "var",
      {[](const Tensor& x) { return var(x); },
       [](const Tensor& x, const Shape& d, bool k) { return var(x, d, 1, k); }},
      [](const std::vector<double>& v) { return spread(v, 1); }, {kFloat32, kFloat64}, any_values, true,
      false);
  add_forms(
      rows, "std",
      {[](const Tensor& x) { return std(x); },
       [](const Tensor& x, const Shape& d, bool k) { return std(x, d, 1, k); }},
      [](const std::vector<double>& v) { return std::sqrt(spread(v, 1)); }, {kFloat32, kFloat64}, any_values,
      true, false);
  for (Row& row : rows)  // one element has no unbiased variance
    if (row.name.starts_with("var") || row.name.starts_with("std")) row.sizes = {{{2, 3, 2}}, {{5, 7, 3}}};
  add_forms(
      rows, "var_population",
      {[](const Tensor& x) { return var(x, {}, 0); },
       [](const Tensor& x, const Shape& d, bool k) { return var(x, d, 0, k); }},
      [](const std::vector<double>& v) { return spread(v, 0); }, {kFloat32, kFloat64}, any_values, true,
      false);
  const auto norms = [](double p) {
    return Forms{[p](const Tensor& x) { return norm(x, p); },
                 [p](const Tensor& x, const Shape& d, bool k) { return norm(x, p, d, k); }};
  };
  add_forms(
      rows, "norm", norms(2), [](const std::vector<double>& v) { return power_norm(v, 2); }, floats(),
      any_values);
  add_forms(
      rows, "norm_1", norms(1), [](const std::vector<double>& v) { return power_norm(v, 1); },
      {kFloat32, kFloat64}, away({3, 5, 2}, 0));
  add_forms(
      rows, "norm_3", norms(3), [](const std::vector<double>& v) { return power_norm(v, 3); },
      {kFloat32, kFloat64}, away({3, 5, 2}, 0));
  for (const double p : {1e300, 1e-300})
    rows.back().wrong.push_back({"DTypeError", "norm: the number ", [p] { norm(zeros({2}), p); }});
  add_forms(
      rows, "norm_inf", norms(std::numeric_limits<double>::infinity()),
      [](const std::vector<double>& v) {
        double m = 0;
        for (double x : v) m = greater_of(m, std::abs(x));
        return m;
      },
      {kFloat32, kFloat64}, any_values, true, false);
  rows.push_back({.name = "sum_to",
                  .args = {any_values},
                  .call = [](const Tensors& x) -> Tensors {
                    return {sum_to(x[0], {5, 1}), sum_to(x[0], {})};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    Host y = folded(in[0], {0, 2}, false, total);
                    y.sizes = {5, 1};
                    return {y, folded(in[0], {}, false, total)};
                  },
                  .wrong = {{"ShapeError", "sum_to", [] {
                               sum_to(zeros({2, 3}), {2});
                             }}}});
  rows.push_back(running(
      "cumsum", [](const Tensor& x, int64_t d) { return cumsum(x, d); }, 0,
      [](double s, double x) { return s + x; }));
  rows.push_back(running(
      "cumprod", [](const Tensor& x, int64_t d) { return cumprod(x, d); }, 1,
      [](double s, double x) { return s * x; }));
  rows.back().large = {};
  for (const bool down : {false, true}) {
    rows.push_back(
        {.name = down ? "sort_descending" : "sort",
         .args = {real({7, 3})},
         .call = [down](const Tensors& x) -> Tensors {
           const MaxResult r = sort(x[0], 0, down);
           return {r.values, r.indices};
         },
         .reference = [down](const Hosts& in) { return sorted_along(in[0], down, in[0].sizes[0]); },
         .dtypes = {kFloat32, kFloat64, kInt64, kInt32, kUInt8},
         .sizes = {{{1, 1}}, {{0, 3}}, {{5, 0}}},
         .wrong = {{"IndexError", "sort", [] { sort(zeros({2}), 1); }}}});
    rows.push_back({.name = down ? "topk" : "topk_smallest",
                    .args = {real({7, 3})},
                    .call = [down](const Tensors& x) -> Tensors {
                      const MaxResult r = topk(x[0], 3, 0, down);
                      return {r.values, r.indices};
                    },
                    .reference = [down](const Hosts& in) { return sorted_along(in[0], down, 3); },
                    .dtypes = {kFloat32, kFloat64, kInt64},
                    .sizes = {{{3, 1}}},
                    .wrong = {{"ShapeError", "topk", [] { topk(zeros({2}), 3); }}}});
  }
  return rows;
}

}  // namespace weft::op_table
