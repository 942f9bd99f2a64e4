// Rows of index lists (index, index_put, masked_scatter) and of operations on bits.
#include "support/op_table.h"

namespace weft::op_table {

namespace {

int64_t at(const Host& h, const Shape& k) { return static_cast<int64_t>(h(k)); }

Tensor positions(std::initializer_list<double> v, const Tensor& like) {
  return tensor(v, {.dtype = kInt64}).to(like.device());
}

Row read_row() {
  return {.name = "index_positions",
          .args = {real({4, 5, 4}), ids({2, 3}, 4)},
          .call = [](const Tensors& in) -> Tensors {
            const Tensor &x = in[0], &i = in[1];
            return {index(x, {i}),
                    index(x, {Slice(), i}),
                    index(x, {Ellipsis, i.to(kInt32)}),
                    index(x, {i, i + 1}),
                    index(x, {i, Slice(1, 4), i - 4}),
                    index(x, {0, i, None})};
          },
          .reference = [](const Hosts& in) -> Hosts {
            const Host &x = in[0], &i = in[1];
            return {build({2, 3, 5, 4},
                          [&](const Shape& k) {
                            return x({at(i, {k[0], k[1]}), k[2], k[3]});
                          }),
                    build({4, 2, 3, 4},
                          [&](const Shape& k) {
                            return x({k[0], at(i, {k[1], k[2]}), k[3]});
                          }),
                    build({4, 5, 2, 3},
                          [&](const Shape& k) {
                            return x({k[0], k[1], at(i, {k[2], k[3]})});
                          }),
                    build({2, 3, 4},
                          [&](const Shape& k) {
                            return x({at(i, {k[0], k[1]}), at(i, {k[0], k[1]}) + 1, k[2]});
                          }),
                    build({2, 3, 3},
                          [&](const Shape& k) {
                            return x({at(i, {k[0], k[1]}), k[2] + 1, at(i, {k[0], k[1]})});
                          }),
                    build({2, 3, 1, 4}, [&](const Shape& k) {
                      return x({0, at(i, {k[0], k[1]}), k[3]});
                    })};
          },
          .dtypes = every_type(),
          .wrong = {{"IndexError", "index 4 is outside dim 0 of [4, 2]",
                     [] {
                       index(zeros({4, 2}), {positions({0, 4}, zeros({}))});
                     }},
                    {"IndexError", "index -3 is outside dim 1 of [4, 2]",
                     [] {
                       index(zeros({4, 2}), {Slice(), positions({-3}, zeros({}))});
                     }},
                    {"IndexError", "3 indices for a tensor of 2 dims",
                     [] {
                       index(zeros({4, 2}), {0, 0, 0});
                     }},
                    {"IndexError", "index 4 is outside dim 0 of [4, 2]",
                     [] {
                       index(zeros({4, 2}), {4});
                     }},
                    {"DTypeError", "float32",
                     [] {
                       index(zeros({4, 2}), {zeros({1})});
                     }},
                    {"ShapeError", "[2]", [] {
                       index(zeros({4, 2}), {positions({0, 1}, zeros({})), positions({0, 1, 1}, zeros({}))});
                     }}}};
}

Row mask_row() {
  return {.name = "index_mask",
          .args = {real({4, 3, 2}), flags({4, 3})},
          .call = [](const Tensors& in) -> Tensors {
            return {index(in[0], {in[1]}), index(in[0], {Slice(), in[1][1]})};
          },
          .reference = [](const Hosts& in) -> Hosts {
            std::vector<double> pairs, columns;
            for_each(in[1].sizes, [&](const Shape& k) {
              for (int64_t c = 0; c < 2 && in[1](k) != 0; ++c) pairs.push_back(in[0]({k[0], k[1], c}));
              for (int64_t c = 0; c < 2 && in[1]({1, k[1]}) != 0; ++c)
                columns.push_back(in[0]({k[0], k[1], c}));
            });
            const auto kept = static_cast<int64_t>(pairs.size()),
                       width = static_cast<int64_t>(columns.size()) / 8;
            return {Host({kept / 2, 2}, pairs), Host({4, width, 2}, columns)};
          },
          .dtypes = every_type(),
          .wrong = {{"ShapeError", "a mask [3] does not fit [4, 2]", [] {
                       index(zeros({4, 2}), {zeros({3}, {.dtype = kBool})});
                     }}}};
}

Row view_row() {
  return {.name = "index_view",
          .args = {real({4, 3, 5})},
          .call = [](const Tensors& in) -> Tensors {
            return {index(in[0], {-1}), index(in[0], {Slice(1, None, 2), 0}),
                    index(in[0], {None, Ellipsis, Slice(None, -1)})};
          },
          .reference = [](const Hosts& in) -> Hosts {
            const Host& x = in[0];
            return {build({3, 5},
                          [&](const Shape& k) {
                            return x({3, k[0], k[1]});
                          }),
                    build({2, 5},
                          [&](const Shape& k) {
                            return x({1 + 2 * k[0], 0, k[1]});
                          }),
                    build({1, 4, 3, 4}, [&](const Shape& k) {
                      return x({k[1], k[2], k[3]});
                    })};
          },
          .wrong = {{"IndexError", "2 times Ellipsis", [] {
                       index(zeros({4, 2}), {Ellipsis, Ellipsis});
                     }}}};
}

Row put_row() {
  return {
      .name = "index_put",
      .args = {real({4, 3, 5}), real({5}), ids({2}, 2), ids({1}, 3)},
      .call = [](const Tensors& in) -> Tensors {
        const Tensor &x = in[0], &v = in[1], two = positions({2, 0}, x).to(in[2].dtype());
        const Tensor i = in[2] + two.narrow(0, 0, in[2].size(0)), j = in[3] - 3;  // no position twice
        return {index_put(x, {i}, v), index_put(x, {Slice(), j}, v), index_put(x, {i, j}, v),
                index_put(x, {i, Slice(), j}, narrow(v, 0, 0, 3)), index_put(x, {2, Slice(0, 2)}, v)};
      },
      .reference = [](const Hosts& in) -> Hosts {
        const Host &x = in[0], &v = in[1];
        const auto in_i = [&](int64_t k) { return k == at(in[2], {0}) + 2 || k == at(in[2], {1}); };
        const int64_t j = at(in[3], {0});
        const auto put = [&](auto&& hit, auto&& value) {
          return build(x.sizes, [&](const Shape& k) { return hit(k) ? value(k) : x(k); });
        };
        const auto last = [&](const Shape& k) { return v({k[2]}); };
        return {put([&](const Shape& k) { return in_i(k[0]); }, last),
                put([&](const Shape& k) { return k[1] == j; }, last),
                put([&](const Shape& k) { return in_i(k[0]) && k[1] == j; }, last),
                put([&](const Shape& k) { return in_i(k[0]) && k[2] == j + 2; },
                    [&](const Shape& k) { return v({k[1]}); }),
                put([](const Shape& k) { return k[0] == 2 && k[1] < 2; }, last)};
      },
      .dtypes = every_type(),
      .wrong = {{"ShapeError", "values [3] do not broadcast to [1, 5]",
                 [] {
                   index_put(zeros({4, 5}), {positions({3}, zeros({}))}, zeros({3}));
                 }},
                {"DTypeError", "float64",
                 [] { index_put(zeros({4}), {positions({3}, zeros({}))}, zeros({}, {.dtype = kFloat64})); }},
                {"IndexError", "index 4",
                 [] { index_put(zeros({4}), {positions({4}, zeros({}))}, zeros({})); }}}};
}

Row put_mask_row() {
  return {.name = "index_put_mask",
          .args = {real({4, 3, 2}), flags({4, 3}), real({2})},
          .call = [](const Tensors& in) -> Tensors { return {index_put(in[0], {in[1]}, in[2])}; },
          .reference = [](const Hosts& in) -> Hosts {
            return {build({4, 3, 2}, [&](const Shape& k) {
              return in[1]({k[0], k[1]}) != 0 ? in[2]({k[2]}) : in[0](k);
            })};
          },
          .dtypes = every_type()};
}

Row accumulate_row() {
  return {.name = "index_put_accumulate",
          .args = {real({4, 3, 5}), ids({6}, 3), real({6, 1})},
          .call = [](const Tensors& in) -> Tensors {
            return {index_put(in[0], {in[1] + 1}, in[2].unsqueeze(2), true),
                    index_put(in[0], {in[1], in[1]}, in[2], true),
                    index_put(in[0], {in[1], Slice(), in[1]}, in[2], true)};
          },
          .reference = [](const Hosts& in) -> Hosts {
            Hosts y(3, in[0]);
            for (int64_t n = 0; n < 6; ++n) {
              const int64_t i = at(in[1], {n});
              const double v = in[2]({n, 0});
              for (int64_t a = 0; a < 3; ++a)
                for (int64_t b = 0; b < 5; ++b) y[0]({i + 1, a, b}) += v;
              for (int64_t b = 0; b < 5; ++b) y[1]({i, i, b}) += v;
              for (int64_t a = 0; a < 3; ++a) y[2]({i, a, i}) += v;
            }
            return y;
          },
          .loose = 4};
}

Row scatter_row() {
  return {.name = "masked_scatter",
          .args = {real({4, 3}), flags({4, 3}), real({13})},
          .call = [](const Tensors& in) -> Tensors {
            return {masked_scatter(in[0], in[1], in[2]), masked_scatter(in[0], in[1][2], in[2])};
          },
          .reference = [](const Hosts& in) -> Hosts {
            Host y = in[0], z = in[0];
            int64_t next = 0, other = 0;
            for_each(y.sizes, [&](const Shape& k) {
              if (in[1](k) != 0) y(k) = in[2]({next++});
              if (in[1]({2, k[1]}) != 0) z(k) = in[2]({other++});
            });
            return {y, z};
          },
          .dtypes = every_type(),
          .wrong = {{"ShapeError", "3 elements",
                     [] { masked_scatter(zeros({3}), ones({3}).to(kBool), zeros({2})); }},
                    {"DTypeError", "float32", [] { masked_scatter(zeros({3}), zeros({3}), zeros({3})); }},
                    {"ShapeError", "[2]",
                     [] { masked_scatter(zeros({3}), zeros({2}, {.dtype = kBool}), zeros({3})); }}}};
}

using ByNumber = Tensor (*)(In, Scalar);

Row bits(const std::string& name, Tensor (*op)(In, In), ByNumber by_number, int64_t (*f)(int64_t, int64_t)) {
  return {.name = name,
          .args = {fixed({3, 5}, -100, 100), fixed({3, 5}, -100, 100)},
          .call = [op](const Tensors& in) -> Tensors { return {op(in[0], in[1])}; },
          .reference = elementwise([f](const std::vector<double>& x) {
            return static_cast<double>(f(static_cast<int64_t>(x[0]), static_cast<int64_t>(x[1])));
          }),
          .differentiable = false,
          .dtypes = {kInt64, kInt32, kUInt8, kBool},
          .sizes = {{{}, {}}, {{0}, {1}}, {{3, 5}, {5}}, {{3, 1}, {4}}},
          .wrong = {{"DTypeError", "float32", [op] { op(zeros({2}), zeros({2})); }}},
          .large = {{307, 211}, {211}},
          .takes = {{.meets = Number::Meets::kElement, .call = by_number, .dtypes = whole_types()}}};
}

}  // namespace

std::vector<Row> index_many_rows() {
  std::vector<Row> rows = {read_row(),     mask_row(),       view_row(),   put_row(),
                           put_mask_row(), accumulate_row(), scatter_row()};
  for (Row& row : rows) row.masks = true;
  return rows;
}

std::vector<Row> bit_rows() {
  return {bits("bitwise_and", bitwise_and, bitwise_and, [](int64_t a, int64_t b) { return a & b; }),
          bits("bitwise_or", bitwise_or, bitwise_or, [](int64_t a, int64_t b) { return a | b; }),
          bits("bitwise_xor", bitwise_xor, bitwise_xor, [](int64_t a, int64_t b) { return a ^ b; }),
          {.name = "bitwise_not",
           .args = {fixed({3, 5}, -100, 100)},
           .call = [](const Tensors& in) -> Tensors { return {bitwise_not(in[0])}; },
           .reference = elementwise([](const std::vector<double>& x) { return -1 - x[0]; }),
           .differentiable = false,
           .dtypes = {kInt64, kInt32},
           .sizes = {{{}}, {{0}}},
           .wrong = {{"DTypeError", "float32", [] { bitwise_not(zeros({2})); }}}}};
}

}  // namespace weft::op_table
