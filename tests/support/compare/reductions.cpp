// Rows for reductions, matrix products, softmax, losses and indexing.
#include "support/compare/rows.h"

namespace weft::test {
namespace {

void add_sums(Rows& rows) {
  table<Of<Tensor, Tensor>>(rows, {WEFT_ROW(sum), WEFT_ROW(mean), WEFT_ROW(prod), WEFT_ROW(max),
                                   WEFT_ROW(min), WEFT_ROW(any), WEFT_ROW(all)});
  table<Of<Tensor, Tensor, Shape, bool>>(rows, {{"sum.dims", WEFT_CALL(sum)},
                                                {"mean.dims", WEFT_CALL(mean)},
                                                WEFT_ROW(amax),
                                                WEFT_ROW(amin),
                                                {"any.dims", WEFT_CALL(any)},
                                                {"all.dims", WEFT_CALL(all)}});
  table<Of<Tensor, Tensor, int64_t, bool>>(
      rows, {{"prod.dim", WEFT_CALL(prod)}, WEFT_ROW(argmax), WEFT_ROW(argmin), WEFT_ROW(logsumexp)});
  table<Of<MaxResult, Tensor, int64_t, bool>>(rows,
                                              {{"max.dim", WEFT_CALL(max)}, {"min.dim", WEFT_CALL(min)}});
  table<Of<Tensor, Tensor, Shape, double, bool>>(
      rows, {{"var.dims", WEFT_CALL(var)}, {"std.dims", WEFT_CALL(weft::std)}});
  table<Of<Tensor, Tensor, int64_t>>(rows, {WEFT_ROW(cumsum), WEFT_ROW(cumprod)});
  row<Tensor(In, const Shape&)>(rows, "sum_to", WEFT_CALL(sum_to));
  row<Tensor(Fp32Arg, double)>(rows, "var",
                               [](const auto& x, double correction) { return var(x, {}, correction); });
  row<Tensor(Fp32Arg, double)>(rows, "std",
                               [](const auto& x, double correction) { return weft::std(x, {}, correction); });
  row<Tensor(Fp32Arg, double)>(rows, "norm", WEFT_CALL(norm));
  row<Tensor(Fp32Arg, double, const Shape&, bool)>(rows, "norm.dims", WEFT_CALL(norm));
}

void add_products(Rows& rows) {
  table<Of<Tensor, Tensor, Tensor>>(
      rows, {WEFT_ROW(matmul), WEFT_ROW(mm), WEFT_ROW(mv), WEFT_ROW(dot), WEFT_ROW(bmm), WEFT_ROW(outer)});
  table<Of<Tensor, Tensor, Tensor, Tensor>>(
      rows, {WEFT_ROW(linear), WEFT_ROW(linear_relu), WEFT_ROW(linear_gelu_tanh)});
  row<Tensor(AutocastArg, AutocastArg, AutocastArg, AutocastArg, AutocastArg)>(rows, "feed_forward",
                                                                               WEFT_CALL(feed_forward));
  row<Tensor(AutocastArg, AutocastArg, AutocastArg, Scalar, Scalar)>(rows, "addmm", WEFT_CALL(addmm));
  row(rows, "einsum",
      [](std::string equation, std::vector<Tensor> xs) { return einsum(equation.c_str(), xs); });
}

void add_losses(Rows& rows) {
  table<Of<Tensor, Tensor, int64_t>>(rows, {WEFT_ROW(softmax), WEFT_ROW(log_softmax)});
  table<Of<Tensor, Tensor, Tensor, CrossEntropyOptions>>(rows, {WEFT_ROW(nll_loss), WEFT_ROW(cross_entropy)});
  table<Of<Tensor, Tensor, Tensor, Reduction>>(
      rows, {WEFT_ROW(mse_loss), WEFT_ROW(l1_loss), WEFT_ROW(binary_cross_entropy_with_logits)});
  row<Tensor(Fp32Arg, const Shape&, Fp32Arg, Fp32Arg, double)>(rows, "layer_norm", WEFT_CALL(layer_norm));
  row<Tensor(In, In, In, In, const CrossEntropyOptions&)>(rows, "linear_cross_entropy",
                                                          WEFT_CALL(linear_cross_entropy));
  row<Tensor(Fp32Arg, Fp32Arg, double, Reduction)>(rows, "smooth_l1_loss", WEFT_CALL(smooth_l1_loss));
  row(rows, "scaled_dot_product_attention",
      [](Tensor q, Tensor k, Tensor v, Tensor mask, bool causal, double scale) {
        return scaled_dot_product_attention(q, k, v, {.mask = mask, .causal = causal, .scale = scale});
      });
}

void add_indexing(Rows& rows) {
  table<Of<Tensor, Tensor, Tensor, int64_t>>(rows, {WEFT_ROW(embedding), WEFT_ROW(take_along)});
  table<Of<Tensor, Tensor, int64_t, Tensor>>(rows, {WEFT_ROW(index_select), WEFT_ROW(gather)});
  table<Of<Tensor, Tensor, int64_t, Tensor, Tensor>>(
      rows, {WEFT_ROW(scatter), WEFT_ROW(scatter_add), WEFT_ROW(index_add)});
  row<Tensor(In, In)>(rows, "masked_select", WEFT_CALL(masked_select));
  row<Tensor(In)>(rows, "nonzero", WEFT_CALL(nonzero));
  row<Tensor(In, int64_t)>(rows, "one_hot", WEFT_CALL(one_hot));
  row<MaxResult(In, int64_t, bool)>(rows, "sort", WEFT_CALL(sort));
  row<MaxResult(In, int64_t, int64_t, bool)>(rows, "topk", WEFT_CALL(topk));
}

void add_order(Rows& rows) {
  row<Tensor(In, int64_t, bool)>(rows, "argsort", WEFT_CALL(argsort));
  row<Tensor(In)>(rows, "median", WEFT_CALL(median));
  row<MaxResult(In, int64_t, bool)>(rows, "median.dim", WEFT_CALL(median));
  row(rows, "unique", [](Tensor x) { return unique(x, {.inverse = true, .counts = true}); });
  row<Tensor(In, In, int64_t)>(rows, "bincount", WEFT_CALL(bincount));
  row(rows, "repeat_interleave",
      [](Tensor x, int64_t repeats, int64_t dim) { return repeat_interleave(x, repeats, dim); });
  row(rows, "repeat_interleave.counts",
      [](Tensor x, Tensor repeats, int64_t dim) { return repeat_interleave(x, repeats, dim); });
  row<Tensor(In, int64_t, In, In, ScatterReduce, bool)>(rows, "scatter_reduce", WEFT_CALL(scatter_reduce));
  row<Tensor(Fp32Arg, double, int64_t, double)>(rows, "normalize", WEFT_CALL(normalize));
  row<Tensor(In, int64_t)>(rows, "diag", WEFT_CALL(diag));
}

}  // namespace

void add_reductions(Rows& rows) {
  add_sums(rows);
  add_products(rows);
  add_losses(rows);
  add_indexing(rows);
  add_order(rows);
}

}  // namespace weft::test
