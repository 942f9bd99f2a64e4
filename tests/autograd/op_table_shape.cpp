// Rows of views, copies and arrangements, and of the ops that draw (their references only where the outcome
// is certain).
#include <algorithm>
#include <cmath>

#include "support/op_table.h"

namespace weft::op_table {

namespace {

// A row whose outputs only move elements: each output is given by its sizes and, per index, the index in x.
struct Moved {
  Shape sizes;
  std::function<Shape(const Shape&)> from;
};
Row moved(const std::string& name, const Shape& x, std::function<Tensors(const Tensor&)> call,
          const std::vector<Moved>& outputs, const std::vector<Wrong>& wrong) {
  return {.name = name,
          .args = {real(x)},
          .call = [call](const Tensors& in) { return call(in[0]); },
          .reference = [outputs](const Hosts& in) -> Hosts {
            Hosts all;
            for (const Moved& m : outputs)
              all.push_back(build(m.sizes, [&](const Shape& at) { return in[0](m.from(at)); }));
            return all;
          },
          .dtypes = every_type(),
          .wrong = wrong};
}

Shape same(const Shape& at) { return at; }
// Row-major position in `sizes` of the index `at` of `from`.
std::function<Shape(const Shape&)> unflat(const Shape& from, const Shape& sizes) {
  return [=](const Shape& at) {
    int64_t k = 0;
    for (int d = 0; d < from.size(); ++d) k = k * from[d] + at[d];
    Shape out(sizes.size(), 0);
    for (int d = sizes.size() - 1; d >= 0; --d) {
      out[d] = k % sizes[d];
      k /= sizes[d];
    }
    return out;
  };
}

}  // namespace

std::vector<Row> shape_rows() {
  const Shape s{2, 3, 5};
  const auto z = [] { return zeros({2, 3}); };
  std::vector<Row> rows;
  rows.push_back(moved("view", s,
                       [](const Tensor& x) -> Tensors {
                         return {view(contiguous(x), {6, -1}), view(contiguous(x), {5, 3, 1, 2})};
                       },
                       {{{6, 5}, unflat({6, 5}, s)}, {{5, 3, 1, 2}, unflat({5, 3, 1, 2}, s)}},
                       {{"ShapeError", "view", [z] { view(z(), {4}); }},
                        {"ShapeError", "reshape", [z] { view(transpose(z(), 0, 1), {6}); }}}));
  rows.push_back(
      moved("reshape", s,
            [](const Tensor& x) -> Tensors {
              return {reshape(x, {-1}), reshape(x, {3, 10}), reshape(x, {2, 3, 1, 5})};
            },
            {{{30}, unflat({30}, s)}, {{3, 10}, unflat({3, 10}, s)}, {{2, 3, 1, 5}, unflat({2, 3, 1, 5}, s)}},
            {{"ShapeError", "reshape", [z] {
                reshape(z(), {-1, 4});
              }}}));
  rows.push_back(moved("flatten", s,
                       [](const Tensor& x) -> Tensors {
                         return {flatten(x), flatten(x, 1)};
                       },
                       {{{30}, unflat({30}, s)}, {{2, 15}, unflat({2, 15}, s)}},
                       {{"ShapeError", "flatten", [z] { flatten(z(), 1, 0); }}}));
  rows.push_back(moved("transpose", s,
                       [](const Tensor& x) -> Tensors {
                         return {transpose(x, 0, -1), select(x, 0, 0).t()};
                       },
                       {{{5, 3, 2},
                         [](const Shape& a) -> Shape {
                           return {a[2], a[1], a[0]};
                         }},
                        {{5, 3},
                         [](const Shape& a) -> Shape {
                           return {0, a[1], a[0]};
                         }}},
                       {{"IndexError", "transpose", [z] { transpose(z(), 0, 2); }}}));
  rows.push_back(moved("permute", s,
                       [](const Tensor& x) -> Tensors {
                         return {permute(x, {2, 0, 1})};
                       },
                       {{{5, 2, 3},
                         [](const Shape& a) -> Shape {
                           return {a[1], a[2], a[0]};
                         }}},
                       {{"ShapeError", "permute",
                         [z] {
                           permute(z(), {0, 0});
                         }},
                        {"ShapeError", "permute", [z] { permute(z(), {0}); }}}));
  rows.push_back(moved("expand", {3, 1},
                       [](const Tensor& x) -> Tensors {
                         return {expand(x, {2, -1, 5})};
                       },
                       {{{2, 3, 5},
                         [](const Shape& a) -> Shape {
                           return {a[1], 0};
                         }}},
                       {{"ShapeError", "expand: [2, 3] does not expand to [2, 4]", [z] {
                           expand(z(), {2, 4});
                         }}}));
  rows.push_back(moved("squeeze", {2, 1, 3, 1},
                       [](const Tensor& x) -> Tensors {
                         return {squeeze(x), squeeze(x, 1), squeeze(x, 0)};
                       },
                       {{{2, 3},
                         [](const Shape& a) -> Shape {
                           return {a[0], 0, a[1], 0};
                         }},
                        {{2, 3, 1},
                         [](const Shape& a) -> Shape {
                           return {a[0], 0, a[1], 0};
                         }},
                        {{2, 1, 3, 1}, same}},
                       {{"IndexError", "squeeze", [z] { squeeze(z(), 2); }}}));
  rows.push_back(moved("unsqueeze", {2, 3},
                       [](const Tensor& x) -> Tensors {
                         return {unsqueeze(x, 0), unsqueeze(x, -1)};
                       },
                       {{{1, 2, 3},
                         [](const Shape& a) -> Shape {
                           return {a[1], a[2]};
                         }},
                        {{2, 3, 1},
                         [](const Shape& a) -> Shape {
                           return {a[0], a[1]};
                         }}},
                       {{"IndexError", "unsqueeze", [z] { unsqueeze(z(), 3); }}}));
  rows.push_back(moved("narrow", s, [](const Tensor& x) -> Tensors { return {narrow(x, 2, 1, 3)}; },
                       {{{2, 3, 3},
                         [](const Shape& a) -> Shape {
                           return {a[0], a[1], a[2] + 1};
                         }}},
                       {{"IndexError", "narrow", [z] { narrow(z(), 1, 2, 2); }}}));
  rows.push_back(moved("select", s,
                       [](const Tensor& x) -> Tensors {
                         return {select(x, 1, 2), x[-1]};
                       },
                       {{{2, 5},
                         [](const Shape& a) -> Shape {
                           return {a[0], 2, a[1]};
                         }},
                        {{3, 5},
                         [](const Shape& a) -> Shape {
                           return {1, a[0], a[1]};
                         }}},
                       {{"IndexError", "select: index 3", [z] { select(z(), 1, 3); }}}));
  rows.push_back(moved("slice", s,
                       [](const Tensor& x) -> Tensors {
                         return {slice(x, 2, 1, 5, 2), slice(x, 1, -2, 99)};
                       },
                       {{{2, 3, 2},
                         [](const Shape& a) -> Shape {
                           return {a[0], a[1], 1 + 2 * a[2]};
                         }},
                        {{2, 2, 5},
                         [](const Shape& a) -> Shape {
                           return {a[0], a[1] + 1, a[2]};
                         }}},
                       {{"ValueError", "slice", [z] { slice(z(), 0, 0, 2, 0); }}}));
  rows.push_back(
      moved("split", s, [](const Tensor& x) { return split(x, 2, 2); },
            {{{2, 3, 2}, same},
             {{2, 3, 2},
              [](const Shape& a) -> Shape {
                return {a[0], a[1], a[2] + 2};
              }},
             {{2, 3, 1},
              [](const Shape& a) -> Shape {
                return {a[0], a[1], 4};
              }}},
            {{"ValueError", "split", [z] { split(z(), 0, 0); }},
             {"ValueError", "parts, not 8589934592", [] { split(zeros({1}).expand({int64_t{1} << 33}), 1); }},
             {"ShapeError", "split", [z] {
                split(z(), Shape{1, 1}, 1);
              }}}));
  rows.push_back(moved("split_lengths", s,
                       [](const Tensor& x) {
                         return split(x, Shape{1, 4}, 2);
                       },
                       {{{2, 3, 1}, same},
                        {{2, 3, 4},
                         [](const Shape& a) -> Shape {
                           return {a[0], a[1], a[2] + 1};
                         }}},
                       {}));
  rows.push_back(
      moved("chunk", s, [](const Tensor& x) { return chunk(x, 2, 1); },
            {{{2, 2, 5}, same},
             {{2, 1, 5},
              [](const Shape& a) -> Shape {
                return {a[0], 2, a[2]};
              }}},
            {{"ValueError", "chunk", [z] { chunk(z(), 0); }},
             {"ValueError", "parts, not 4611686018427387904", [] { chunk(zeros({0}), int64_t{1} << 62); }},
             {"ValueError", "parts, not 8589934592",
              [] { chunk(zeros({1}).expand({int64_t{1} << 33}), int64_t{1} << 33); }}}));
  rows.push_back(moved(
      "unbind", s, [](const Tensor& x) { return unbind(x); },
      {{{3, 5},
        [](const Shape& a) -> Shape {
          return {0, a[0], a[1]};
        }},
       {{3, 5},
        [](const Shape& a) -> Shape {
          return {1, a[0], a[1]};
        }}},
      {{"IndexError", "unbind", [z] { unbind(z(), 2); }},
       {"ValueError", "parts, not 8589934592", [] { unbind(zeros({1}).expand({int64_t{1} << 33})); }}}));
  // elements met twice
  rows.push_back(moved("as_strided", {2, 5},
                       [](const Tensor& x) -> Tensors {
                         return {as_strided(contiguous(x), {3, 2}, {2, 3}, 1)};
                       },
                       {{{3, 2},
                         [](const Shape& a) -> Shape {
                           const int64_t k = 1 + 2 * a[0] + 3 * a[1];
                           return {k / 5, k % 5};
                         }}},
                       {{"ShapeError", "as_strided", [z] {
                           as_strided(z(), {4, 2}, {2, 1});
                         }}}));
  rows.push_back(
      moved("diagonal", {3, 5},
            [](const Tensor& x) -> Tensors {
              return {diagonal(contiguous(x)), diagonal(contiguous(x), 2), diagonal(contiguous(x), -1)};
            },
            {{{3},
              [](const Shape& a) -> Shape {
                return {a[0], a[0]};
              }},
             {{3},
              [](const Shape& a) -> Shape {
                return {a[0], a[0] + 2};
              }},
             {{2},
              [](const Shape& a) -> Shape {
                return {a[0] + 1, a[0]};
              }}},
            {{"ShapeError", "diagonal", [z] { diagonal(z(), 0, 1, 1); }}}));
  rows[1].sizes = {};
  return rows;
}

std::vector<Row> arrange_rows() {
  const Shape s{2, 3, 5};
  const auto z = [] { return zeros({2, 3}); };
  std::vector<Row> rows;
  rows.push_back(
      moved("contiguous", s, [](const Tensor& x) -> Tensors { return {contiguous(x)}; }, {{s, same}}, {}));
  rows.push_back(moved("diag_of_matrix", {3, 5}, [](const Tensor& x) -> Tensors { return {diag(x, 1)}; },
                       {{{3},
                         [](const Shape& a) -> Shape {
                           return {a[0], a[0] + 1};
                         }}},
                       {{"ShapeError", "diag", [] {
                           diag(zeros({2, 3, 2}));
                         }}}));
  rows.push_back(moved("clone", s, [](const Tensor& x) -> Tensors { return {clone(x)}; }, {{s, same}}, {}));
  rows.push_back(moved("repeat", {2, 3},
                       [](const Tensor& x) -> Tensors {
                         return {repeat(x, {2, 1, 2})};
                       },
                       {{{2, 2, 6},
                         [](const Shape& a) -> Shape {
                           return {a[1], a[2] % 3};
                         }}},
                       {{"ShapeError", "repeat", [z] { repeat(z(), {2}); }}}));
  rows.push_back(moved("flip", s,
                       [](const Tensor& x) -> Tensors {
                         return {flip(x, {0, 2}), flip(x, {0})};
                       },
                       {{s,
                         [](const Shape& a) -> Shape {
                           return {1 - a[0], a[1], 4 - a[2]};
                         }},
                        {s,
                         [](const Shape& a) -> Shape {
                           return {1 - a[0], a[1], a[2]};
                         }}},
                       {{"IndexError", "flip", [z] { flip(z(), {2}); }}}));
  rows.push_back(moved("roll", {3, 5},
                       [](const Tensor& x) -> Tensors {
                         return {roll(x, 2, 1), roll(x, -1, 0)};
                       },
                       {{{3, 5},
                         [](const Shape& a) -> Shape {
                           return {a[0], (a[1] + 3) % 5};
                         }},
                        {{3, 5},
                         [](const Shape& a) -> Shape {
                           return {(a[0] + 1) % 3, a[1]};
                         }}},
                       {{"IndexError", "roll", [z] { roll(z(), 1, 2); }}}));
  const auto triangle = [](const std::string& name, Tensor (*op)(In, Whole), bool upper) {
    return Row{.name = name,
               .args = {real({2, 3, 5})},
               .call = [op](const Tensors& x) -> Tensors {
                 return {op(x[0], 0), op(x[0], 1), op(x[0], -2)};
               },
               .reference = [upper](const Hosts& in) -> Hosts {
                 Hosts all;
                 for (const int64_t k : {0, 1, -2})
                   all.push_back(build(in[0].sizes, [&](const Shape& at) {
                     return (upper ? at[2] - at[1] >= k : at[2] - at[1] <= k) ? in[0](at) : 0;
                   }));
                 return all;
               },
               .dtypes = every_type(),
               .sizes = {{{1, 1}}, {{0, 3}}},
               .wrong = {{"ShapeError", name, [op] { op(zeros({2}), 0); }}}};
  };
  rows.push_back(triangle("tril", tril, false));
  rows.back().sizes = {{{1, 1, 1}}, {{0, 3, 2}}};
  rows.push_back(triangle("triu", triu, true));
  rows.back().sizes = {{{1, 1, 1}}, {{0, 3, 2}}};
  rows.push_back({.name = "pad",
                  .args = {real({2, 3})},
                  .call = [](const Tensors& x) -> Tensors {
                    return {pad(x[0], {1, 2, 0, 1}, 7)};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    return {build({3, 6}, [&](const Shape& at) {
                      return at[0] < 2 && at[1] >= 1 && at[1] < 4 ? in[0]({at[0], at[1] - 1}) : 7;
                    })};
                  },
                  .dtypes = {kFloat32, kFloat64, kInt64},
                  .wrong = {{"ShapeError", "pad", [z] { pad(z(), {1}); }}},
                  .takes = {{Number::Meets::kElement, [](const Tensor& x, Scalar s) {
                               return pad(x, {1, 0}, s);
                             }}}});
  const auto joined = [](const Hosts& in, int d) {
    Shape sizes = in[0].sizes;
    sizes[d] += in[1].sizes[d];
    return build(sizes, [&](const Shape& at) {
      return at[d] < in[0].sizes[d] ? in[0](at) : in[1](with(at, d, at[d] - in[0].sizes[d]));
    });
  };
  rows.push_back({.name = "cat",
                  .args = {real({2, 3}), real({2, 5})},
                  .call = [](const Tensors& x) -> Tensors { return {cat(x, 1)}; },
                  .reference = [joined](const Hosts& in) -> Hosts { return {joined(in, 1)}; },
                  .dtypes = every_type(),
                  .sizes = {{{2, 0}, {2, 3}}, {{1, 1}, {1, 1}}, {{0, 2}, {0, 3}}},
                  .wrong = {{"ShapeError", "cat",
                             [] {
                               cat({zeros({2, 3}), zeros({3, 3})}, 1);
                             }},
                            {"ValueError", "the list is empty", [] { cat({}); }}}});
  rows.push_back({.name = "stack",
                  .args = {real({2, 3}), real({2, 3})},
                  .call = [](const Tensors& x) -> Tensors {
                    return {stack(x, 0), stack(x, -1)};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    return {build({2, 2, 3},
                                  [&](const Shape& at) {
                                    return in[static_cast<size_t>(at[0])]({at[1], at[2]});
                                  }),
                            build({2, 3, 2}, [&](const Shape& at) {
                              return in[static_cast<size_t>(at[2])]({at[0], at[1]});
                            })};
                  },
                  .dtypes = every_type(),
                  .wrong = {{"ShapeError", "stack",
                             [] {
                               stack({zeros({2}), zeros({3})});
                             }},
                            {"ValueError", "the list is empty", [] { stack({}); }}}});
  rows.push_back({.name = "to",
                  .args = {real({3, 5})},
                  .call = [](const Tensors& x) -> Tensors {
                    return {to(x[0], kFloat64), to(x[0], x[0].device())};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    return {in[0], in[0]};
                  },
                  .dtypes = every_type()});
  return rows;
}

std::vector<Row> random_rows() {
  std::vector<Row> rows;
  // The same seed gives the same mask, so the survivors are known from a mask drawn over ones.
  rows.push_back({.name = "dropout",
                  .args = {real({7, 5})},
                  .call = [](const Tensors& x) -> Tensors {
                    Generator a(7), b(7);
                    return {dropout(x[0], 0.4, true, &a) -
                                x[0] * dropout(ones_like(x[0]).detach(), 0.4, true, &b),
                            dropout(x[0], 0.4, false), dropout(x[0], 1)};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    return {Host(in[0].sizes), in[0], Host(in[0].sizes)};
                  },
                  .dtypes = {kFloat32, kFloat64},
                  .sizes = {{{}}, {{0}}, {{1}}},
                  .wrong = {{"ValueError", "dropout", [] { dropout(zeros({2}), 1.5); }},
                            {"DTypeError", "dropout", [] { dropout(zeros({2}, {.dtype = kInt64})); }}},
                  .special = false});  // its outputs are differences of equal infinities
  rows.push_back({.name = "dropout_gradient",
                  .args = {real({7, 5})},
                  .call = [](const Tensors& x) -> Tensors {
                    Generator g(7);
                    return {square(dropout(x[0], 0.4, true, &g))};
                  },
                  .reference = nullptr,
                  .dtypes = {kFloat64}});
  rows.push_back(
      {.name = "multinomial",  // all the weight on one position, or each position once
       .args = {fixed({3, 5}, 0.5, 1)},
       .call = [](const Tensors& x) -> Tensors {
         Generator g(3);
         const Tensor one = masked_fill(x[0], ne(arange(5).to(x[0].device()), 2), 0);
         return {multinomial(one, 1, false, &g), multinomial(one, 3, true, &g),
                 sort(multinomial(x[0], 5, false, &g), 1).values};
       },
       .reference = [](const Hosts&) -> Hosts {
         return {build({3, 1}, [](const Shape&) { return 2; }), build({3, 3}, [](const Shape&) { return 2; }),
                 build({3, 5}, [](const Shape& at) { return static_cast<double>(at[1]); })};
       },
       .differentiable = false,
       .wrong = {{"ValueError", "multinomial", [] { multinomial(zeros({3}), 1); }},
                 {"ValueError", "weight -1 of class 0 in row 0", [] { multinomial(full({3}, -1), 1); }},
                 {"ValueError", "multinomial", [] { multinomial(ones({3}), 4); }},
                 {"ShapeError", "multinomial",
                  [] {
                    multinomial(ones({1, 1, 3}), 1);
                  }}},
       .special = false});  // refused
  rows.push_back({.name = "bernoulli",
                  .args = {fixed({3, 5})},
                  .call = [](const Tensors& x) -> Tensors {
                    return {bernoulli(zeros_like(x[0])), bernoulli(ones_like(x[0]))};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    return {Host(in[0].sizes), build(in[0].sizes, [](const Shape&) { return 1; })};
                  },
                  .differentiable = false,
                  .wrong = {{"ValueError", "probability 2 of element 0", [] { bernoulli(full({2}, 2)); }}}});
  return rows;
}

}  // namespace weft::op_table
