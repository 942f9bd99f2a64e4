// Rows for views, copies, arrangements and factories.
#include "support/compare/rows.h"

namespace weft::test {
namespace {

using Pieces = std::vector<Tensor>;

void add_views(Rows& rows) {
  table<Of<Tensor, Tensor, Shape>>(rows,
                                   {WEFT_ROW(view), WEFT_ROW(reshape), WEFT_ROW(permute), WEFT_ROW(expand)});
  table<Of<Tensor, Tensor, int64_t, int64_t>>(rows,
                                              {WEFT_ROW(flatten), WEFT_ROW(transpose), WEFT_ROW(select)});
  table<Of<Tensor, Tensor, int64_t>>(rows, {{"squeeze.dim", WEFT_CALL(squeeze)}, WEFT_ROW(unsqueeze)});
  table<Of<Tensor, Tensor, int64_t, int64_t, int64_t>>(rows, {WEFT_ROW(narrow), WEFT_ROW(diagonal)});
  table<Of<Pieces, Tensor, int64_t, int64_t>>(rows, {WEFT_ROW(split), WEFT_ROW(chunk)});
  row<Tensor(In)>(rows, "squeeze", WEFT_CALL(squeeze));
  row<Tensor(In, int64_t, int64_t, int64_t, int64_t)>(rows, "slice", WEFT_CALL(slice));
  row<Pieces(In, const Shape&, int64_t)>(rows, "split.lengths", WEFT_CALL(split));
  row<Pieces(In, int64_t)>(rows, "unbind", WEFT_CALL(unbind));
  row<Tensor(In, const Shape&, const Shape&, int64_t)>(rows, "as_strided", WEFT_CALL(as_strided));
}

void add_arrangements(Rows& rows) {
  table<Of<Tensor, Tensor>>(rows, {WEFT_ROW(contiguous), WEFT_ROW(clone)});
  table<Of<Tensor, Pieces, int64_t>>(rows, {WEFT_ROW(cat), WEFT_ROW(stack)});
  table<Of<Tensor, Tensor, Shape>>(rows, {WEFT_ROW(repeat), WEFT_ROW(flip)});
  table<Of<Tensor, Tensor, int64_t>>(rows, {WEFT_ROW(tril), WEFT_ROW(triu)});
  row<Tensor(In, DType)>(rows, "to", WEFT_CALL(to));
  row<Tensor(In, int64_t, int64_t)>(rows, "roll", WEFT_CALL(roll));
  row<Tensor(In, int64_t)>(rows, "roll.all", WEFT_CALL(roll));
  row<Tensor(In, const Shape&, Scalar)>(rows, "pad", WEFT_CALL(pad));
  row(rows, "dropout", [](Tensor x, double p, bool training) { return dropout(x, p, training); });
  // Random numbers cannot be compared: whether each element is 0 or x / (1 - p), and the gradient follows.
  row(rows, "dropout.training", [](Tensor x, double p) {
    Tensor own = x.detach().clone().requires_grad_();
    const Tensor y = dropout(own, p, true), whole = own * (p < 1 ? 1 / (1 - p) : 0);
    y.sum().backward();
    const NoGrad quiet;
    const Tensor slope = full_like(own, p < 1 ? 1 / (1 - p) : 0), nothing = y == 0;
    const auto near = [](const Tensor& a, const Tensor& b) { return abs(a - b) <= abs(b) * 0.02; };
    return Outputs{logical_or(nothing, near(y, whole)),
                   logical_or(where(nothing, own.grad() == 0, near(own.grad(), slope)), own == 0), y * 0};
  });
}

void add_factories(Rows& rows) {
  row(rows, "full",
      [](Shape sizes, Scalar value, DType dtype) { return full(sizes, value, {.dtype = dtype}); });
  row(rows, "full_like", [](Tensor x, Scalar value) { return full_like(x, value); });
  row(rows, "arange", [](Scalar start, Scalar end, Scalar step, DType dtype) {
    return arange(start, end, step, {.dtype = dtype});
  });
  row(rows, "linspace", [](double start, double end, int64_t count, DType dtype) {
    return linspace(start, end, count, {.dtype = dtype});
  });
  row(rows, "eye", [](int64_t n, DType dtype) { return eye(n, {.dtype = dtype}); });
  row(rows, "item", [](Tensor x) { return x.item<double>(); });
}

}  // namespace

void add_shapes(Rows& rows) {
  add_views(rows);
  add_arrangements(rows);
  add_factories(rows);
}

}  // namespace weft::test
