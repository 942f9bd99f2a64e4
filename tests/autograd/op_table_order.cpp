// Rows of ops_order.h: order, counts and groups.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <weft/autograd/ops/ops_order.h>

#include "support/op_table.h"

namespace weft::op_table {

namespace {

// f(values along dim d) -> values, for every line of x.
Host each_line(const Host& x, int d,
               const std::function<std::vector<double>(const std::vector<double>&)>& f) {
  Shape firsts = x.sizes, sizes = x.sizes;
  firsts[d] = 1;
  std::map<std::vector<int64_t>, std::vector<double>> lines;
  for_each(firsts, [&](const Shape& at) {
    std::vector<double> line;
    for (int64_t i = 0; i < x.sizes[d]; ++i) line.push_back(x(with(at, d, i)));
    line = f(line);
    sizes[d] = static_cast<int64_t>(line.size());
    lines[{at.begin(), at.end()}] = line;
  });
  return build(sizes, [&](const Shape& at) {
    const Shape first = with(at, d, 0);
    return lines[{first.begin(), first.end()}][static_cast<size_t>(at[d])];
  });
}

std::vector<double> order_of(const std::vector<double>& v) {
  std::vector<double> at(v.size());
  for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<double>(i);
  std::stable_sort(at.begin(), at.end(), [&](double a, double b) {
    return before(v[static_cast<size_t>(a)], v[static_cast<size_t>(b)]);
  });
  return at;
}

// The position of the median, or of the first NaN, in sorted order.
size_t middle(const std::vector<double>& v) {
  const auto nans =
      static_cast<size_t>(std::count_if(v.begin(), v.end(), [](double x) { return std::isnan(x); }));
  return nans > 0 ? v.size() - nans : (v.size() - 1) / 2;
}

double median_of(std::vector<double> v) {
  std::sort(v.begin(), v.end(), before);
  return v[middle(v)];
}

double combined(ScatterReduce reduce, double a, double b) {
  switch (reduce) {
    case ScatterReduce::kProd: return a * b;
    case ScatterReduce::kAmax: return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b);
    case ScatterReduce::kAmin: return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b);
    default: return a + b;
  }
}

// scatter_reduce along dim 1 in plain loops.
Host reduced(const Host& x, const Host& index, const Host& src, ScatterReduce reduce, bool include_self) {
  Host y = x, count = build(x.sizes, [&](const Shape&) { return include_self ? 1 : 0; });
  for_each(index.sizes, [&](const Shape& at) {
    const Shape target = with(at, 1, static_cast<int64_t>(index(at)));
    y(target) = count(target) == 0 ? src(at) : combined(reduce, y(target), src(at));
    count(target) += 1;
  });
  if (reduce == ScatterReduce::kMean)
    for_each(x.sizes, [&](const Shape& at) { y(at) /= std::max(count(at), 1.0); });
  return y;
}

Row scatter_row(const std::string& name, ScatterReduce reduce, bool include_self,
                const std::vector<DType>& dtypes = floats()) {
  return {
      .name = "scatter_reduce_" + name,
      .args = {away({3, 5}, 0), ids({2, 7}, 5), away({2, 7}, 0)},
      .call = [=](const Tensors& x) -> Tensors {
        return {scatter_reduce(x[0], 1, x[1], x[2], reduce, include_self)};
      },
      .reference = [=](const Hosts& in) -> Hosts {
        return {reduced(in[0], in[1], in[2], reduce, include_self)};
      },
      .dtypes = dtypes,
      .sizes = {{{1, 5}, {1, 1}, {1, 1}}, {{3, 5}, {0, 7}, {0, 7}}, {{2, 5}, {2, 41}, {2, 41}}},
      .wrong = {{"IndexError", "5",
                 [=] {
                   scatter_reduce(zeros({3, 5}), 1, full({3, 2}, 5, {.dtype = kInt64}), ones({3, 2}), reduce);
                 }},
                {"ShapeError", "scatter_reduce",
                 [=] {
                   scatter_reduce(zeros({3, 5}), 1, zeros({3, 2}, {.dtype = kInt64}), ones({3, 1}), reduce);
                 }},
                {"DTypeError", "scatter_reduce",
                 [=] {
                   scatter_reduce(zeros({3, 5}), 1, zeros({3, 2}, {.dtype = kInt64}),
                                  ones({3, 2}, {.dtype = kFloat64}), reduce);
                 }}},
      .signed_zeros = false};  // without include_self a sum begins at +0; of two zeros either is an extreme
}

}  // namespace

std::vector<Row> order_rows() {
  std::vector<Row> rows;
  rows.push_back({.name = "argsort",
                  .args = {real({3, 7, 2})},
                  .call = [](const Tensors& x) -> Tensors {
                    return {argsort(x[0], 1), argsort(neg(x[0]), 1, true)};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    return {each_line(in[0], 1, order_of), each_line(in[0], 1, order_of)};
                  },
                  .differentiable = false,
                  .dtypes = {kFloat32, kFloat64, kInt64, kInt32},
                  .wrong = {{"IndexError", "argsort", [] { argsort(zeros({3}), 1); }}},
                  .special = false});  // negated and descending, NaN comes first; sort has such rows
  rows.push_back({.name = "median",
                  .args = {real({3, 5})},
                  .call = [](const Tensors& x) -> Tensors { return {median(x[0])}; },
                  .reference = [](const Hosts& in) -> Hosts { return {Host({}, {median_of(in[0].v)})}; },
                  .dtypes = numbers(),
                  .sizes = {{{}}, {{1}}, {{2}}, {{4, 3}}},
                  .wrong = {{"ShapeError", "median", [] {
                               median(zeros({0, 3}));
                             }}}});
  rows.push_back({.name = "median_dim",
                  .args = {real({3, 6, 2})},
                  .call = [](const Tensors& x) -> Tensors {
                    return {median(x[0], 1).values, median(x[0], -2, true).values, median(x[0], 1).indices};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    const Host kept = each_line(in[0], 1, [](const std::vector<double>& v) {
                      return std::vector<double>{median_of(v)};
                    });
                    const Host at = each_line(in[0], 1, [](const std::vector<double>& v) {
                      return std::vector<double>{order_of(v)[middle(v)]};
                    });
                    return {Host({3, 2}, kept.v), kept, Host({3, 2}, at.v)};
                  },
                  .dtypes = {kFloat32, kFloat64, kInt64},
                  .wrong = {{"ShapeError", "median",
                             [] {
                               median(zeros({3, 0}), 1);
                             }},
                            {"IndexError", "median", [] {
                               median(zeros({3, 2}), 2);
                             }}}});
  rows.push_back({.name = "unique",
                  .args = {ids({5, 7}, 6)},
                  .call = [](const Tensors& x) -> Tensors {
                    const UniqueResult u = unique(x[0], {.inverse = true, .counts = true});
                    return {u.values, u.inverse, u.counts, unique(x[0].to(kFloat32)).values};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    std::map<double, double> found;
                    for (const double v : in[0].v) found[v] += 1;
                    std::vector<double> values, counts;
                    for (const auto& [v, n] : found) values.push_back(v), counts.push_back(n);
                    const auto n = static_cast<int64_t>(values.size());
                    const Host inverse = build(in[0].sizes, [&](const Shape& at) {
                      return static_cast<double>(std::lower_bound(values.begin(), values.end(), in[0](at)) -
                                                 values.begin());
                    });
                    return {Host({n}, values), inverse, Host({n}, counts), Host({n}, values)};
                  },
                  .differentiable = false,
                  .sizes = {{{1}}, {{0}}, {{2, 0}}, {{}}}});
  rows.push_back(
      {.name = "bincount",
       .args = {ids({11}, 5), real({11})},
       .call = [](const Tensors& x) -> Tensors {
         return {bincount(x[0], Tensor(), 7), bincount(x[0], x[1], 5)};
       },
       .reference = [](const Hosts& in) -> Hosts {
         Host count({7}), total({5});
         for (int64_t i = 0; i < in[0].numel(); ++i)
           count({static_cast<int64_t>(in[0]({i}))}) += 1,
               total({static_cast<int64_t>(in[0]({i}))}) += in[1]({i});
         return {count, total};
       },
       .sizes = {{{1}, {1}}, {{0}, {0}}},
       .wrong = {{"IndexError", "-1", [] { bincount(full({2}, -1, {.dtype = kInt64})); }},
                 {"DTypeError", "bincount", [] { bincount(zeros({2})); }},
                 {"ShapeError", "bincount",
                  [] {
                    bincount(zeros({2, 1}, {.dtype = kInt64}));
                  }},
                 {"ShapeError", "bincount", [] { bincount(zeros({2}, {.dtype = kInt64}), ones({3})); }},
                 {"ValueError", "-1", [] { bincount(zeros({2}, {.dtype = kInt64}), Tensor(), -1); }}}});
  rows.push_back(
      {.name = "repeat_interleave",
       .args = {real({3, 5}), ids({5}, 4)},
       .call = [](const Tensors& x) -> Tensors {
         return {repeat_interleave(x[0], 2), repeat_interleave(x[0], 3, 1),
                 repeat_interleave(x[0], x[1], -1)};
       },
       .reference = [](const Hosts& in) -> Hosts {
         std::vector<double> flat;
         for (const double v : in[0].v) flat.insert(flat.end(), 2, v);
         const auto n = static_cast<int64_t>(flat.size());
         const auto times = [&](const std::function<double(size_t)>& count) {
           return each_line(in[0], 1, [&](const std::vector<double>& line) {
             std::vector<double> out;
             for (size_t i = 0; i < line.size(); ++i)
               out.insert(out.end(), static_cast<size_t>(count(i)), line[i]);
             return out;
           });
         };
         return {Host({n}, flat), times([](size_t) { return 3.0; }),
                 times([&](size_t i) { return in[1].v[i]; })};
       },
       .dtypes = numbers(),
       .wrong = {{"ValueError", "-2", [] { repeat_interleave(zeros({2}), -2); }},
                 {"ValueError", "-2",
                  [] { repeat_interleave(zeros({2}), full({2}, -2, {.dtype = kInt64})); }},
                 {"ShapeError", "repeat_interleave",
                  [] { repeat_interleave(zeros({2}), ones({3}, {.dtype = kInt64})); }},
                 {"DTypeError", "repeat_interleave", [] { repeat_interleave(zeros({2}), ones({2})); }}}});
  rows.push_back(scatter_row("sum", ScatterReduce::kSum, true, numbers()));
  rows.push_back(scatter_row("sum_of_src", ScatterReduce::kSum, false));
  rows.push_back(scatter_row("prod", ScatterReduce::kProd, true, {kFloat32, kFloat64, kInt64}));
  rows.push_back(scatter_row("prod_of_src", ScatterReduce::kProd, false, {kFloat32, kFloat64}));
  rows.push_back(scatter_row("mean", ScatterReduce::kMean, true));
  rows.push_back(scatter_row("mean_of_src", ScatterReduce::kMean, false));
  rows.push_back(scatter_row("amax", ScatterReduce::kAmax, true, every_type()));
  rows.push_back(scatter_row("amax_of_src", ScatterReduce::kAmax, false, numbers()));
  rows.push_back(scatter_row("amin", ScatterReduce::kAmin, true, every_type()));
  rows.push_back(scatter_row("amin_of_src", ScatterReduce::kAmin, false, numbers()));
  return rows;
}

}  // namespace weft::op_table
