// Rows of the matrix products, softmaxes and layer_norm.
#include <algorithm>
#include <cmath>

#include "support/op_table.h"

namespace weft::op_table {

namespace {

// [.., M, K] x [.., K, N] with leading dims broadcast, both of rank >= 2.
Host product(const Host& a, const Host& b) {
  const int ra = a.sizes.size(), rb = b.sizes.size();
  Shape la = a.sizes, lb = b.sizes;
  for (int i = 0; i < 2; ++i) {
    la.erase(la.size() - 1);
    lb.erase(lb.size() - 1);
  }
  Shape sizes = broadcast("product", la, lb);
  const int lead = sizes.size();
  sizes.push_back(a.sizes[ra - 2]);
  sizes.push_back(b.sizes[rb - 1]);
  return build(sizes, [&](const Shape& at) {
    Shape pa = at, pb = at;
    double s = 0;
    for (int64_t k = 0; k < a.sizes[ra - 1]; ++k) {
      pa[lead + 1] = k;
      pb[lead] = k;
      s += a.broadcast_at(pa) * b.broadcast_at(pb);
    }
    return s;
  });
}

Host shaped(Host h, const Shape& sizes) {
  h.sizes = sizes;
  return h;
}

Host affine(const Host& x, const Host& w, const Host* b) {
  Shape sizes = x.sizes;
  sizes[sizes.size() - 1] = w.sizes[0];
  return build(sizes, [&](const Shape& at) {
    const int last = at.size() - 1;
    double s = b ? (*b)({at[last]}) : 0;
    for (int64_t k = 0; k < w.sizes[1]; ++k) s += x(with(at, last, k)) * w({at[last], k});
    return s;
  });
}

Host gelu_of(Host x) {
  for (double& v : x.v) v = v / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  return x;
}

}  // namespace

std::vector<Row> matmul_rows() {
  const auto two = []<class A>(const std::string& name, Tensor (*op)(A, A), const Shape& a, const Shape& b,
                               std::function<Host(const Host&, const Host&)> f) {
    return Row{.name = name,
               .args = {real(a), real(b)},
               .call = [op](const Tensors& x) -> Tensors { return {op(x[0], x[1])}; },
               .reference = [f](const Hosts& in) -> Hosts { return {f(in[0], in[1])}; },
               .dtypes = numbers()};
  };
  std::vector<Row> rows = {
      two("matmul", matmul, {3, 5}, {5, 7}, product),
      two("matmul_batch", matmul, {2, 3, 5}, {2, 5, 7}, product),
      two("matmul_broadcast", matmul, {2, 1, 3, 5}, {3, 5, 2}, product),
      two("matmul_one_matrix", matmul, {2, 3, 5}, {5, 7}, product),
      two("matmul_shared_left", matmul, {3, 5}, {2, 5, 7}, product),
      two("matmul_vector", matmul, {2, 3, 5}, {5},
          [](const Host& a, const Host& b) {
            return shaped(product(a, shaped(b, {5, 1})), {2, 3});
          }),
      two("matmul_row", matmul, {5}, {2, 5, 3},
          [](const Host& a, const Host& b) {
            return shaped(product(shaped(a, {1, 5}), b), {2, 3});
          }),
      two("mm", mm, {3, 5}, {5, 7}, product),
      two("mv", mv, {3, 5}, {5},
          [](const Host& a, const Host& b) {
            return shaped(product(a, shaped(b, {b.numel(), 1})), {a.sizes[0]});
          }),
      two("dot", dot, {7}, {7},
          [](const Host& a, const Host& b) {
            return shaped(product(shaped(a, {1, a.numel()}), shaped(b, {b.numel(), 1})), {});
          }),
      two("bmm", bmm, {2, 3, 5}, {2, 5, 7}, product),
      two("outer", outer, {3}, {5},
          [](const Host& a, const Host& b) {
            return product(shaped(a, {a.numel(), 1}), shaped(b, {1, b.numel()}));
          }),
  };
  rows[0].sizes = {{{1, 1}, {1, 1}},     {{0, 5}, {5, 7}},     {{3, 0}, {0, 7}},
                   {{17, 19}, {19, 23}}, {{67, 71}, {71, 73}}, {{1, 131}, {131, 1}}};
  rows[0].large = {{131, 127}, {127, 137}};
  rows[0].wrong = {{"ShapeError", "inner sizes differ: a is [3, 4], b is [5, 2]",
                    [] {
                      matmul(zeros({3, 4}), zeros({5, 2}));
                    }},
                   {"DTypeError", "got bool and bool",
                    [] {
                      matmul(zeros({2, 2}, {.dtype = kBool}), zeros({2, 2}, {.dtype = kBool}));
                    }},
                   {"ShapeError", "matmul", [] { matmul(zeros({}), zeros({2})); }}};
  rows[1].large = {{7, 61, 53}, {7, 53, 59}};
  rows[1].wrong = {{"ShapeError", "matmul", [] { matmul(zeros({2, 3, 4}), zeros({3, 4, 5})); }}};
  rows[1].sizes = {{{1, 1, 1}, {1, 1, 1}}, {{0, 3, 5}, {0, 5, 7}}};
  rows[8].wrong = {{"ShapeError", "mv", [] { mv(zeros({3, 4}), zeros({3})); }}};
  rows[8].sizes = {{{1, 1}, {1}}, {{3, 0}, {0}}};
  rows[9].wrong = {{"ShapeError", "dot", [] { dot(zeros({3}), zeros({4})); }}};
  rows[9].sizes = {{{1}, {1}}, {{0}, {0}}};
  rows[10].wrong = {{"ShapeError", "bmm", [] { bmm(zeros({2, 3, 4}), zeros({3, 4, 5})); }}};
  rows[11].wrong = {{"ShapeError", "outer", [] { outer(zeros({2, 2}), zeros({3})); }}};
  rows[11].sizes = {{{1}, {1}}, {{0}, {3}}};
  rows.push_back(
      {.name = "addmm",
       .args = {real({7}), real({3, 5}), real({5, 7})},
       .call = [](const Tensors& x) -> Tensors { return {addmm(x[0], x[1], x[2], 0.5, 2)}; },
       .reference = [](const Hosts& in) -> Hosts {
         const Host p = product(in[1], in[2]);
         return {build(p.sizes, [&](const Shape& at) { return 0.5 * in[0].broadcast_at(at) + 2 * p(at); })};
       },
       .dtypes = {kFloat32, kFloat64},
       .sizes = {{{3, 7}, {3, 5}, {5, 7}}, {{}, {1, 1}, {1, 1}}, {{2}, {3, 0}, {0, 2}}},
       .wrong = {{"ShapeError", "addmm",
                  [] {
                    addmm(zeros({6}), zeros({3, 5}), zeros({5, 7}));
                  }}},
       .takes = {{Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return addmm(x, x, x, 1, s); }},
                 {Number::Meets::kFactor, [](const Tensor& x, Scalar s) { return addmm(x, x, x, s); }}}});
  rows.push_back({.name = "linear",
                  .args = {real({3, 5}), real({7, 5}), real({7})},
                  .call = [](const Tensors& x) -> Tensors { return {linear(x[0], x[1], x[2])}; },
                  .reference = [](const Hosts& in) -> Hosts { return {affine(in[0], in[1], &in[2])}; },
                  .dtypes = floats(),
                  .sizes = {{{5}, {7, 5}, {7}},
                            {{2, 3, 5}, {7, 5}, {7}},
                            {{0, 5}, {7, 5}, {7}},
                            {{1, 1}, {1, 1}, {1}},
                            {{3, 0}, {7, 0}, {7}},
                            {{37, 41}, {43, 41}, {43}}},
                  .wrong = {{"ShapeError", "linear: inner sizes differ: x is [3, 4], weight is [7, 5]",
                             [] {
                               linear(zeros({3, 4}), zeros({7, 5}));
                             }},
                            {"ShapeError", "bias is [5]",
                             [] {
                               linear(zeros({3, 5}), zeros({7, 5}), zeros({5}));
                             }}},
                  .large = {{131, 127}, {137, 127}, {137}}});
  rows.push_back({.name = "linear_no_bias",
                  .args = {real({2, 3, 5}), real({7, 5})},
                  .call = [](const Tensors& x) -> Tensors { return {linear(x[0], x[1])}; },
                  .reference = [](const Hosts& in) -> Hosts { return {affine(in[0], in[1], nullptr)}; },
                  .dtypes = floats()});
  rows.push_back(
      {.name = "linear_relu",
       .args = {real({3, 5}), real({7, 5}), real({7})},
       .call = [](const Tensors& x) -> Tensors { return {linear_relu(x[0], x[1], x[2])}; },
       .reference = [](const Hosts& in) -> Hosts {
         const Host y = affine(in[0], in[1], &in[2]);
         return {build(y.sizes, [&](const Shape& at) { return std::max(y(at), 0.0); })};
       },
       .dtypes = floats(),
       .sizes = {{{5}, {7, 5}, {7}}, {{2, 3, 5}, {7, 5}, {7}}, {{0, 5}, {7, 5}, {7}}, {{3, 0}, {7, 0}, {7}}},
       .wrong = {{"ShapeError", "linear_relu: inner sizes differ: x is [3, 4], weight is [7, 5]",
                  [] {
                    linear_relu(zeros({3, 4}), zeros({7, 5}));
                  }},
                 {"DTypeError", "linear_relu: takes numbers, got bool",
                  [] {
                    linear_relu(zeros({3, 5}, {.dtype = kBool}), zeros({7, 5}, {.dtype = kBool}));
                  }}},
       .large = {{131, 127}, {137, 127}, {137}}});
  rows.push_back({.name = "linear_relu_no_bias",
                  .args = {real({2, 3, 5}), real({7, 5})},
                  .call = [](const Tensors& x) -> Tensors { return {linear_relu(x[0], x[1])}; },
                  .reference = [](const Hosts& in) -> Hosts {
                    const Host y = affine(in[0], in[1], nullptr);
                    return {build(y.sizes, [&](const Shape& at) { return std::max(y(at), 0.0); })};
                  },
                  .dtypes = floats()});
  rows.push_back(
      {.name = "linear_gelu_tanh",
       .args = {real({3, 5}), real({8, 5}), real({8})},
       .call = [](const Tensors& x) -> Tensors { return {linear_gelu_tanh(x[0], x[1], x[2])}; },
       .reference = [](const Hosts& in) -> Hosts { return {gelu_of(affine(in[0], in[1], &in[2]))}; },
       .dtypes = floats(),
       .sizes = {{{5}, {7, 5}, {7}}, {{2, 3, 5}, {8, 5}, {8}}, {{0, 5}, {7, 5}, {7}}, {{3, 0}, {8, 0}, {8}}},
       .wrong = {{"ShapeError", "linear_gelu_tanh: inner sizes differ: x is [3, 4], weight is [7, 5]",
                  [] {
                    linear_gelu_tanh(zeros({3, 4}), zeros({7, 5}));
                  }},
                 {"DTypeError", "linear_gelu_tanh: takes numbers, got bool",
                  [] {
                    linear_gelu_tanh(zeros({3, 5}, {.dtype = kBool}), zeros({7, 5}, {.dtype = kBool}));
                  }}},
       .large = {{131, 127}, {136, 127}, {136}}});
  rows.push_back(
      {.name = "linear_gelu_tanh_no_bias",
       .args = {real({2, 3, 5}), real({8, 5})},
       .call = [](const Tensors& x) -> Tensors { return {linear_gelu_tanh(x[0], x[1])}; },
       .reference = [](const Hosts& in) -> Hosts { return {gelu_of(affine(in[0], in[1], nullptr))}; },
       .dtypes = floats()});
  rows.push_back(
      {.name = "feed_forward",
       .args = {real({3, 5}, -1, 1), real({8, 5}, -1, 1), real({8}), real({7, 8}, -1, 1), real({7})},
       .call = [](const Tensors& x) -> Tensors { return {feed_forward(x[0], x[1], x[2], x[3], x[4])}; },
       .reference = [](const Hosts& in) -> Hosts {
         return {affine(gelu_of(affine(in[0], in[1], &in[2])), in[3], &in[4])};
       },
       .dtypes = floats(),
       .sizes = {{{5}, {7, 5}, {7}, {3, 7}, {3}},
                 {{2, 3, 5}, {8, 5}, {8}, {5, 8}, {5}},
                 {{0, 5}, {7, 5}, {7}, {3, 7}, {3}},
                 {{3, 5}, {0, 5}, {0}, {3, 0}, {3}},
                 {{3, 0}, {8, 0}, {8}, {3, 8}, {3}}},
       .wrong = {{"ShapeError", "feed_forward: inner sizes differ: x is [3, 4], weight is [7, 5]",
                  [] {
                    feed_forward(zeros({3, 4}), zeros({7, 5}), Tensor(), zeros({3, 7}));
                  }},
                 {"ShapeError", "feed_forward: inner sizes differ: x is [3, 7], weight is [3, 6]",
                  [] {
                    feed_forward(zeros({3, 5}), zeros({7, 5}), Tensor(), zeros({3, 6}));
                  }}},
       .large = {{131, 127}, {136, 127}, {136}, {65, 136}, {65}}});
  rows.push_back({.name = "einsum",
                  .args = {real({2, 3, 5}), real({5, 3, 7})},
                  .call = [](const Tensors& x) -> Tensors {
                    return {einsum("bij,jik->bk", x), einsum("bij,jik->kib", x)};
                  },
                  .reference = [](const Hosts& in) -> Hosts {
                    const auto term = [&](int64_t b, int64_t i, int64_t k) {
                      double s = 0;
                      for (int64_t j = 0; j < 5; ++j) s += in[0]({b, i, j}) * in[1]({j, i, k});
                      return s;
                    };
                    return {build({2, 7},
                                  [&](const Shape& at) {
                                    return term(at[0], 0, at[1]) + term(at[0], 1, at[1]) +
                                           term(at[0], 2, at[1]);
                                  }),
                            build({7, 3, 2}, [&](const Shape& at) { return term(at[2], at[1], at[0]); })};
                  },
                  .wrong = {{"ValueError", "\"ij,jk\": no ->",
                             [] {
                               einsum("ij,jk", {zeros({2, 3}), zeros({3, 2})});
                             }},
                            {"ShapeError", "einsum", [] {
                               einsum("ij,jk->ik", {zeros({2, 3}), zeros({4, 2})});
                             }}}});
  rows.push_back({.name = "einsum_trace",
                  .args = {real({3, 3, 2})},
                  .call = [](const Tensors& x) -> Tensors { return {einsum("iij->j", x)}; },
                  .reference = [](const Hosts& in) -> Hosts {
                    return {build({2}, [&](const Shape& at) {
                      return in[0]({0, 0, at[0]}) + in[0]({1, 1, at[0]}) + in[0]({2, 2, at[0]});
                    })};
                  }});
  return rows;
}

namespace {

// Sum of e^x along d, at an index whose entry at d does not matter.
double mass(const Host& x, const Shape& at, int d) {
  double s = 0;
  for (int64_t i = 0; i < x.sizes[d]; ++i) s += std::exp(x(with(at, d, i)));
  return s;
}

Row along(const std::string& name, Tensor (*op)(Fp32Arg, Whole), double (*f)(double x, double mass), int dim,
          const Shape& sizes) {
  return {.name = name,
          .args = {real(sizes)},
          .call = [op, dim](const Tensors& x) -> Tensors { return {op(x[0], dim)}; },
          .reference = [f, dim](const Hosts& in) -> Hosts {
            return {build(in[0].sizes, [&](const Shape& at) { return f(in[0](at), mass(in[0], at, dim)); })};
          },
          .dtypes = floats(),
          .sizes = {{{1, 1, 1}}, {{0, 3, 2}}},
          .wrong = {{"IndexError", name.substr(0, name.find("_dim")),
                     [op] {
                       op(zeros({2, 3}), 2);
                     }},
                    {"DTypeError", name.substr(0, name.find("_dim")),
                     [op] {
                       op(zeros({2, 3}, {.dtype = kInt64}), 0);
                     }}},
          .large = {{7, 61, 53}}};
}

}  // namespace

std::vector<Row> softmax_rows() {
  // A row with an infinity has no shares: as x - max(x) is NaN there, so is all of it.
  const auto plain = [](double x, double m) { return std::exp(x) / (std::isinf(m) ? NAN : m); };
  const auto logged = [](double x, double m) { return x - std::log(std::isinf(m) ? NAN : m); };
  std::vector<Row> rows = {along("softmax", softmax, plain, 2, {3, 5, 7}),
                           along("softmax_dim0", softmax, plain, 0, {3, 5, 7}),
                           along("log_softmax", log_softmax, logged, 2, {3, 5, 7}),
                           along("log_softmax_dim1", log_softmax, logged, 1, {3, 5, 7})};
  rows.push_back(
      {.name = "logsumexp",
       .args = {real({3, 5, 7})},
       .call = [](const Tensors& x) -> Tensors {
         return {logsumexp(x[0], 1), logsumexp(x[0], -1, true)};
       },
       .reference = [](const Hosts& in) -> Hosts {
         const Shape s = in[0].sizes;
         return {build({s[0], s[2]},
                       [&](const Shape& at) {
                         return std::log(mass(in[0], {at[0], 0, at[1]}, 1));
                       }),
                 build({s[0], s[1], 1}, [&](const Shape& at) { return std::log(mass(in[0], at, 2)); })};
       },
       .dtypes = floats(),
       .sizes = {{{1, 1, 1}}, {{0, 3, 2}}},
       .wrong = {{"DTypeError", "logsumexp", [] { logsumexp(zeros({2}, {.dtype = kInt32}), 0); }}}});
  const auto normalised = [](const Hosts& in) -> Hosts {
    const Host& x = in[0];
    const int last = x.sizes.size() - 1;
    return {build(x.sizes, [&](const Shape& at) {
      double m = 0, v = 0;
      const auto n = static_cast<double>(x.sizes[last]);
      for (int64_t i = 0; i < x.sizes[last]; ++i) m += x(with(at, last, i)) / n;
      for (int64_t i = 0; i < x.sizes[last]; ++i) v += std::pow(x(with(at, last, i)) - m, 2) / n;
      const double y = (x(at) - m) / std::sqrt(v + 1e-5);
      return in.size() == 1 ? y : y * in[1]({at[last]}) + in[2]({at[last]});
    })};
  };
  rows.push_back(
      {.name = "layer_norm",
       .args = {real({3, 2, 7}), real({7}), real({7})},
       .call = [](const Tensors& x) -> Tensors { return {layer_norm(x[0], x[1].sizes(), x[1], x[2])}; },
       .reference = normalised,
       .dtypes = {kFloat32, kFloat64},
       .sizes = {{{5, 3}, {3}, {3}}, {{0, 3}, {3}, {3}}},
       .wrong = {{"ShapeError", "layer_norm",
                  [] {
                    layer_norm(zeros({3, 5}), {4});
                  }},
                 {"DTypeError", "layer_norm: the number 1e+300",
                  [] {
                    layer_norm(zeros({3, 5}), {5}, Tensor(), Tensor(), 1e300);
                  }}},
       .large = {{307, 53}, {53}, {53}},
       .loose = 4});
  rows.push_back({.name = "layer_norm_plain",
                  .args = {real({5, 7})},
                  .call = [](const Tensors& x) -> Tensors { return {layer_norm(x[0], {7})}; },
                  .reference = normalised,
                  .loose = 4});
  rows.push_back({.name = "normalize",
                  .args = {real({3, 5, 2})},
                  .call = [](const Tensors& x) -> Tensors { return {normalize(x[0])}; },
                  .reference = [](const Hosts& in) -> Hosts {
                    return {build(in[0].sizes, [&](const Shape& at) {
                      double squares = 0;
                      for (int64_t i = 0; i < in[0].sizes[1]; ++i)
                        squares += std::pow(in[0](with(at, 1, i)), 2);
                      return in[0](at) / std::max(std::sqrt(squares), 1e-12);
                    })};
                  },
                  .dtypes = floats(),
                  .wrong = {{"DTypeError", "normalize",
                             [] {
                               normalize(zeros({2, 2}, {.dtype = kInt64}));
                             }},
                            {"DTypeError", "normalize: the number 1e+300",
                             [] {
                               normalize(zeros({2, 2}), 2, 1, 1e300);
                             }},
                            {"IndexError", "normalize", [] { normalize(zeros({2})); }}},
                  .loose = 4});
  return rows;
}

}  // namespace weft::op_table
