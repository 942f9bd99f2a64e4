// Rows of scaled_dot_product_attention: plain, causal, with a mask of either kind.
#include <cmath>

#include "support/op_table.h"

namespace weft::op_table {

namespace {

// The last entries of `at` replaced by a row and a column.
Shape at_matrix(Shape at, int64_t row, int64_t column) {
  at[at.size() - 2] = row, at[at.size() - 1] = column;
  return at;
}

// in: q, k, v and perhaps a mask, of numbers to be added. causal: row i takes the keys 0 .. i.
Host attended(const Hosts& in, double scale, bool causal) {
  const Host &q = in[0], &k = in[1], &v = in[2];
  const int rank = std::max({q.sizes.size(), k.sizes.size(), v.sizes.size()});
  Shape sizes(rank, 1);
  for (const Host* x : {&q, &k, &v})
    for (int d = 2; d < x->sizes.size(); ++d)
      if (const int64_t n = x->sizes[x->sizes.size() - 1 - d]; n != 1) sizes[rank - 1 - d] = n;
  const int64_t width = q.sizes.back(), keys = k.sizes[k.sizes.size() - 2];
  sizes[rank - 2] = q.sizes[q.sizes.size() - 2], sizes[rank - 1] = v.sizes.back();
  return build(sizes, [&](const Shape& at) {
    const int64_t row = at[rank - 2];
    double top = -INFINITY, sum = 0, y = 0;
    bool none = true;  // no key takes part
    std::vector<double> products;
    for (int64_t j = 0; j < keys; ++j) {
      double s = 0;
      for (int64_t i = 0; i < width; ++i)
        s += q.broadcast_at(at_matrix(at, row, i)) * scale * k.broadcast_at(at_matrix(at, j, i));
      if (in.size() > 3) s += in[3].broadcast_at(at_matrix(at, row, j));
      if (causal && j > row) s = -INFINITY;
      products.push_back(s);
      none = none && s == -INFINITY;
      if (s > top) top = s;
    }
    for (int64_t j = 0; j < keys; ++j) {
      const double p = none ? 0 : std::exp(products[static_cast<size_t>(j)] - top);
      sum += p;
      y += p * v.broadcast_at(at_matrix(at, j, at[rank - 1]));
    }
    return none ? y : y / sum;
  });
}

double usual_scale(const Hosts& in) { return 1 / std::sqrt(static_cast<double>(in[0].sizes.back())); }

}  // namespace

std::vector<Row> attention_rows() {
  Row plain{
      .name = "scaled_dot_product_attention",
      .args = {real({2, 3, 5}), real({2, 7, 5}), real({2, 7, 4})},
      .call = [](const Tensors& x) -> Tensors { return {scaled_dot_product_attention(x[0], x[1], x[2])}; },
      .reference = [](const Hosts& in) -> Hosts { return {attended(in, usual_scale(in), false)}; },
      .dtypes = floats(),
      .sizes = {{{1, 1}, {1, 1}, {1, 1}},
                {{3, 5}, {7, 5}, {7, 4}},
                {{2, 1, 3, 5}, {3, 7, 5}, {7, 4}},
                {{2, 1, 2, 3, 5}, {3, 1, 7, 5}, {7, 4}},
                {{2, 3, 5}, {2, 0, 5}, {2, 0, 4}},
                {{0, 5}, {7, 5}, {7, 4}}},
      .wrong =
          {{"ShapeError", "their last sizes must be equal",
            [] {
              scaled_dot_product_attention(zeros({3, 5}), zeros({7, 4}), zeros({7, 4}));
            }},
           {"ShapeError", "they must have as many rows",
            [] {
              scaled_dot_product_attention(zeros({3, 5}), zeros({7, 5}), zeros({6, 4}));
            }},
           {"ShapeError", "takes at least two dims",
            [] {
              scaled_dot_product_attention(zeros({5}), zeros({7, 5}), zeros({7, 4}));
            }},
           {"ValueError", "dropout must be in [0, 1], is 2",
            [] {
              scaled_dot_product_attention(zeros({3, 5}), zeros({7, 5}), zeros({7, 4}), {.dropout = 2});
            }},
           {"DTypeError", "int64",
            [] {
              scaled_dot_product_attention(zeros({3, 5}), zeros({7, 5}, {.dtype = kInt64}), zeros({7, 4}));
            }}},
      .large = {{3, 150, 8}, {3, 600, 8}, {3, 600, 6}},
      .takes = {{.meets = Number::Meets::kFactor,
                 .call = [](const Tensor& x,
                            Scalar s) { return scaled_dot_product_attention(x, x, x, {.scale = s.d}); },
                 .dtypes = floats()}}};
  Row causal = plain;
  causal.name = "scaled_dot_product_attention_causal";
  causal.call = [](const Tensors& x) -> Tensors {
    return {scaled_dot_product_attention(x[0], x[1], x[2], {.causal = true, .scale = 0.3})};
  };
  causal.reference = [](const Hosts& in) -> Hosts { return {attended(in, 0.3, true)}; };
  causal.wrong.clear(), causal.takes.clear();
  causal.special = false;  // a value that is not finite may count for a row that leaves its key out
  Row masked = causal;
  masked.name = "scaled_dot_product_attention_masked";
  masked.args = {real({2, 3, 5}), real({2, 7, 5}), real({2, 7, 4}), flags({3, 7})};
  masked.call = [](const Tensors& x) -> Tensors {
    return {scaled_dot_product_attention(x[0], x[1], x[2], {.mask = x[3]})};
  };
  masked.reference = [](const Hosts& in) -> Hosts {
    Hosts added = in;
    for (double& m : added[3].v) m = m != 0 ? 0 : -INFINITY;
    return {attended(added, usual_scale(in), false)};
  };
  masked.sizes = {{{3, 5}, {7, 5}, {7, 4}, {7}},
                  {{2, 3, 5}, {2, 7, 5}, {2, 7, 4}, {2, 1, 7}},
                  {{2, 3, 2, 3, 5}, {7, 5}, {7, 4}, {3, 1, 1, 7}}};
  masked.wrong = {{"ShapeError", "does not broadcast to [3, 7]", [] {
                     scaled_dot_product_attention(zeros({3, 5}), zeros({7, 5}), zeros({7, 4}),
                                                  {.mask = zeros({2, 3, 7}, {.dtype = kBool})});
                   }}};
  masked.large = {{3, 150, 8}, {3, 600, 8}, {3, 600, 6}, {150, 600}};
  Row biased = masked;
  biased.name = "scaled_dot_product_attention_biased";
  biased.args[3] = real({3, 7});
  biased.reference = [](const Hosts& in) -> Hosts { return {attended(in, usual_scale(in), false)}; };
  biased.wrong.clear();
  biased.special = true;
  Row given = biased;  // the mask takes no gradient, so the kernel adds it
  given.name = "scaled_dot_product_attention_given_bias";
  given.args[3] = fixed({3, 7});
  return {plain, causal, masked, biased, given};
}

}  // namespace weft::op_table
