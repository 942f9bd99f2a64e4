// Rows of indexing: rows, gathers and scatters, masks.
#include <cmath>

#include "support/op_table.h"

namespace weft::op_table {

namespace {

int64_t id(const Host& h, const Shape& at) { return static_cast<int64_t>(h(at)); }

Host rows_at(const Host& w, const Host& at) {
  Shape sizes = at.sizes;
  sizes.push_back(w.sizes[1]);
  return build(sizes, [&](const Shape& k) {
    Shape i = k;
    i.erase(k.size() - 1);
    return w({id(at, i), k[k.size() - 1]});
  });
}

Tensor far_ids(const Shape& sizes, int64_t value) { return full(sizes, value, {.dtype = kInt64}); }

// scatter along d in plain loops: index [i] may repeat only when adding.
Host scattered(const Host& x, const Host& index, const Host& src, int d, bool add) {
  Host y = x;
  for_each(index.sizes, [&](const Shape& at) {
    double& to = y(with(at, d, id(index, at)));
    to = add ? to + src(at) : src(at);
  });
  return y;
}

}  // namespace

std::vector<Row> index_rows() {
  std::vector<Row> rows;
  rows.push_back({.name = "embedding",
                  .args = {real({7, 5}), ids({3, 2}, 7)},
                  .call = [](const Tensors& x) -> Tensors { return {embedding(x[0], x[1])}; },
                  .reference = [](const Hosts& in) -> Hosts { return {rows_at(in[0], in[1])}; },
                  .dtypes = numbers(),
                  .sizes = {{{7, 1}, {}}, {{7, 3}, {0}}, {{7, 3}, {11}}},
                  .wrong = {{"IndexError", "7",
                             [] {
                               embedding(zeros({7, 3}), far_ids({2}, 7));
                             }},
                            {"DTypeError", "embedding",
                             [] {
                               embedding(zeros({7, 3}), zeros({2}));
                             }},
                            {"ShapeError", "embedding", [] { embedding(zeros({7}), far_ids({2}, 0)); }},
                            {"IndexError", "padding_idx",
                             [] {
                               embedding(zeros({7, 3}), far_ids({2}, 0), 9);
                             }}},
                  .large = {{7, 211}, {307}}});
  rows.push_back({.name = "index_select",
                  .args = {real({3, 5, 2}), ids({7}, 3)},
                  .call = [](const Tensors& x) -> Tensors {
                    return {index_select(x[0], 0, x[1]), index_select(x[0], 1, x[1]),
                            index_select(transpose(x[0], 0, 2), -1, x[1])};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    const auto at = [&](int64_t i) { return id(in[1], {i}); };
                    return {build({7, 5, 2},
                                  [&](const Shape& k) {
                                    return in[0]({at(k[0]), k[1], k[2]});
                                  }),
                            build({3, 7, 2},
                                  [&](const Shape& k) {
                                    return in[0]({k[0], at(k[1]), k[2]});
                                  }),
                            build({2, 5, 7}, [&](const Shape& k) {
                              return in[0]({at(k[2]), k[1], k[0]});
                            })};
                  },
                  .dtypes = numbers(),
                  .wrong = {{"IndexError", "-1",
                             [] {
                               index_select(zeros({3, 2}), 0, far_ids({2}, -1));
                             }},
                            {"ShapeError", "index_select", [] {
                               index_select(zeros({3, 2}), 0, far_ids({2, 2}, 0));
                             }}}});
  rows.push_back(
      {.name = "gather",
       .args = {real({3, 5, 2}), ids({3, 7, 2}, 5)},
       .call = [](const Tensors& x) -> Tensors { return {gather(x[0], 1, x[1])}; },
       .reference = [](const Hosts& in) -> Hosts {
         return {build(in[1].sizes, [&](const Shape& at) { return in[0](with(at, 1, id(in[1], at))); })};
       },
       .dtypes = numbers(),
       .sizes = {{{1, 5, 1}, {1, 1, 1}}, {{3, 5, 2}, {2, 3, 1}}, {{3, 5, 2}, {3, 0, 2}}},
       .wrong = {{"IndexError", "5",
                  [] {
                    gather(zeros({3, 5}), 1, far_ids({3, 2}, 5));
                  }},
                 {"ShapeError", "gather",
                  [] {
                    gather(zeros({3, 5}), 1, far_ids({4, 2}, 0));
                  }},
                 {"DTypeError", "gather", [] {
                    gather(zeros({3, 5}), 1, zeros({3, 2}));
                  }}}});
  rows.push_back(
      {.name = "take_along",
       .args = {real({3, 5}), ids({1, 2}, 5)},
       .call = [](const Tensors& x) -> Tensors { return {take_along(x[0], x[1], 1)}; },
       .reference = [](const Hosts& in) -> Hosts {
         return {build({3, 2}, [&](const Shape& at) { return in[0]({at[0], id(in[1], {0, at[1]})}); })};
       },
       .wrong = {{"ShapeError", "take_along", [] {
                    take_along(zeros({3, 5}), far_ids({2}, 0), 1);
                  }}}});
  rows.push_back(
      {.name = "scatter",
       .args = {real({2, 5}), ids({2, 1}, 5), real({2, 1})},
       .call = [](const Tensors& x) -> Tensors { return {scatter(x[0], 1, x[1], x[2])}; },
       .reference = [](const Hosts& in) -> Hosts { return {scattered(in[0], in[1], in[2], 1, false)}; },
       .dtypes = numbers(),
       .wrong = {{"IndexError", "5",
                  [] {
                    scatter(zeros({3, 5}), 1, far_ids({3, 2}, 5), ones({3, 2}));
                  }},
                 {"ShapeError", "scatter",
                  [] {
                    scatter(zeros({3, 5}), 1, far_ids({3, 2}, 0), ones({3, 1}));
                  }}},
       .takes = {{Number::Meets::kElement, [](const Tensor& x, Scalar s) {
                    return scatter(x, 0, far_ids({1, 2}, 1).to(x.device()), s);
                  }}}});
  rows.push_back(
      {.name = "scatter_add",
       .args = {real({3, 5}), ids({2, 7}, 5), real({2, 7})},
       .call = [](const Tensors& x) -> Tensors { return {scatter_add(x[0], 1, x[1], x[2])}; },
       .reference = [](const Hosts& in) -> Hosts { return {scattered(in[0], in[1], in[2], 1, true)}; },
       .sizes = {{{1, 5}, {1, 1}, {1, 1}}, {{3, 5}, {0, 7}, {0, 7}}},
       .wrong = {{"DTypeError", "scatter_add", [] {
                    scatter_add(zeros({3, 5}), 1, far_ids({3, 2}, 0), ones({3, 2}, {.dtype = kFloat64}));
                  }}}});
  rows.push_back({.name = "index_add",
                  .args = {real({5, 3}), ids({7}, 3), real({7, 3}), real({5, 7})},
                  .call = [](const Tensors& x) -> Tensors {
                    return {index_add(x[0], 0, x[1], x[2]), index_add(x[0], 1, x[1], x[3])};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    Host a = in[0], b = in[0];
                    for (int64_t i = 0; i < 7; ++i) {
                      const int64_t k = id(in[1], {i});
                      for (int64_t c = 0; c < 3; ++c) a({k, c}) += in[2]({i, c});
                      for (int64_t r = 0; r < 5; ++r) b({r, k}) += in[3]({r, i});
                    }
                    return {a, b};
                  },
                  .wrong = {{"ShapeError", "index_add", [] {
                               index_add(zeros({5, 3}), 0, far_ids({2}, 0), zeros({3, 3}));
                             }}}});
  rows.push_back({.name = "masked_select",
                  .args = {real({3, 5}), flags({3, 5})},
                  .call = [](const Tensors& x) -> Tensors { return {masked_select(x[0], x[1])}; },
                  .reference = [](const Hosts& in) -> Hosts {
                    std::vector<double> kept;
                    for_each(in[0].sizes, [&](const Shape& at) {
                      if (in[1](at) != 0) kept.push_back(in[0](at));
                    });
                    const auto n = static_cast<int64_t>(kept.size());
                    return {Host({n}, kept)};
                  },
                  .dtypes = numbers(),
                  .sizes = {{{1}, {1}}, {{0}, {0}}},
                  .wrong = {{"DTypeError", "masked_select", [] { masked_select(zeros({2}), zeros({2})); }}}});
  rows.push_back(
      {.name = "nonzero",
       .args = {flags({3, 5})},
       .call = [](const Tensors& x) -> Tensors { return {nonzero(x[0])}; },
       .reference = [](const Hosts& in) -> Hosts {
         std::vector<double> found;
         for_each(in[0].sizes, [&](const Shape& at) {
           if (in[0](at) != 0) found.insert(found.end(), at.begin(), at.end());
         });
         return {Host({static_cast<int64_t>(found.size()) / in[0].sizes.size(), in[0].sizes.size()}, found)};
       },
       .differentiable = false,
       .sizes = {{{1}}, {{0}}, {{2, 3, 5}}}});
  rows.push_back({.name = "one_hot",
                  .args = {ids({3, 2}, 5)},
                  .call = [](const Tensors& x) -> Tensors { return {one_hot(x[0], 5)}; },
                  .reference = [](const Hosts& in) -> Hosts {
                    return {build({3, 2, 5}, [&](const Shape& at) {
                      return id(in[0], {at[0], at[1]}) == at[2] ? 1 : 0;
                    })};
                  },
                  .differentiable = false,
                  .wrong = {{"IndexError", "5", [] { one_hot(far_ids({2}, 5), 5); }},
                            {"DTypeError", "one_hot", [] { one_hot(zeros({2}), 5); }}}});
  return rows;
}

}  // namespace weft::op_table
