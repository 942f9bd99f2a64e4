// Rows for operations of one and two tensors, comparisons and in-place methods. A row ending in _ answers
// with the written tensor and, as a second output, its whole storage. A row ending in _.recorded writes to a
// copy with a history.
#include "support/compare/rows.h"

namespace weft::test {
namespace {

Tensor storage_of(const Tensor& x) {
  const int64_t bytes = x.body().storage->bytes();
  return alias(x.detach(), {bytes / size_of(x.dtype())}, {1}, 0);
}

void add_arithmetic(Rows& rows) {
  table<Of<Tensor, Tensor, Tensor, Scalar>>(
      rows, {WEFT_ROW(add), WEFT_ROW(sub), WEFT_ROW(masked_fill), {"lerp.number", WEFT_CALL(lerp)}});
  table<Of<Tensor, Tensor, Tensor>>(
      rows, {WEFT_ROW(mul), WEFT_ROW(div), WEFT_ROW(pow), WEFT_ROW(maximum), WEFT_ROW(minimum),
             WEFT_ROW(remainder), WEFT_ROW(fmod), WEFT_ROW(floor_divide), WEFT_ROW(atan2)});
  table<Of<Tensor, Tensor, Tensor, Tensor>>(rows, {WEFT_ROW(where), WEFT_ROW(lerp)});
  table<Of<Tensor, Tensor, Tensor, Tensor, Scalar>>(rows, {WEFT_ROW(addcmul), WEFT_ROW(addcdiv)});
  table<Of<Tensor, Tensor, Scalar>>(rows, {{"add.number", WEFT_CALL(add)},
                                           {"sub.number", WEFT_CALL(sub)},
                                           {"mul.number", WEFT_CALL(mul)},
                                           {"div.number", WEFT_CALL(div)},
                                           {"pow.number", WEFT_CALL(pow)},
                                           {"fmod.number", WEFT_CALL(fmod)},
                                           {"floor_divide.number", WEFT_CALL(floor_divide)},
                                           {"maximum.number", WEFT_CALL(maximum)},
                                           {"minimum.number", WEFT_CALL(minimum)}});
  table<Of<Tensor, Scalar, Tensor>>(
      rows, {{"sub.from", WEFT_CALL(sub)}, {"div.from", WEFT_CALL(div)}, {"pow.from", WEFT_CALL(pow)}});
  row<Tensor(In, Scalar, Scalar)>(rows, "clamp", WEFT_CALL(clamp));
}

void add_functions(Rows& rows) {
  table<Of<Tensor, Tensor>>(
      rows,
      {WEFT_ROW(neg),   WEFT_ROW(abs),        WEFT_ROW(sign),        WEFT_ROW(square),   WEFT_ROW(exp),
       WEFT_ROW(expm1), WEFT_ROW(log),        WEFT_ROW(log1p),       WEFT_ROW(log2),     WEFT_ROW(sqrt),
       WEFT_ROW(rsqrt), WEFT_ROW(reciprocal), WEFT_ROW(sin),         WEFT_ROW(cos),      WEFT_ROW(tan),
       WEFT_ROW(tanh),  WEFT_ROW(sigmoid),    WEFT_ROW(log_sigmoid), WEFT_ROW(erf),      WEFT_ROW(relu),
       WEFT_ROW(gelu),  WEFT_ROW(gelu_tanh),  WEFT_ROW(silu),        WEFT_ROW(softplus), WEFT_ROW(floor),
       WEFT_ROW(ceil),  WEFT_ROW(round),      WEFT_ROW(trunc)});
  table<Of<Tensor, Tensor, double>>(rows, {WEFT_ROW(leaky_relu), WEFT_ROW(elu)});
}

void add_tests(Rows& rows) {
  table<Of<Tensor, Tensor, Tensor>>(
      rows, {WEFT_ROW(eq), WEFT_ROW(ne), WEFT_ROW(lt), WEFT_ROW(le), WEFT_ROW(gt), WEFT_ROW(ge),
             WEFT_ROW(logical_and), WEFT_ROW(logical_or), WEFT_ROW(logical_xor)});
  table<Of<Tensor, Tensor, Scalar>>(rows, {{"eq.number", WEFT_CALL(eq)},
                                           {"ne.number", WEFT_CALL(ne)},
                                           {"lt.number", WEFT_CALL(lt)},
                                           {"le.number", WEFT_CALL(le)},
                                           {"gt.number", WEFT_CALL(gt)},
                                           {"ge.number", WEFT_CALL(ge)}});
  table<Of<Tensor, Tensor>>(rows,
                            {WEFT_ROW(logical_not), WEFT_ROW(isnan), WEFT_ROW(isfinite), WEFT_ROW(isinf)});
  row(rows, "nan_to_num", [](Tensor x, Scalar nan, bool bounds, Scalar high, Scalar low) {
    return bounds ? nan_to_num(x, nan, high, low) : nan_to_num(x, nan);
  });
  row<bool(In, In, double, double)>(rows, "allclose", WEFT_CALL(allclose));
  row<bool(In, In)>(rows, "equal", WEFT_CALL(equal));
}

// Each method twice: on the given memory without recording, and on a view of a recorded copy.
template <auto method, class... A> void in_place(Rows& rows, const std::string& name) {
  row(rows, (name + "_").c_str(), [](Tensor x, A... args) {
    method(x, args...);
    return Outputs{x, storage_of(x)};
  });
  row(rows, (name + "_.recorded").c_str(), [](Tensor x, bool through_view, A... args) {
    Tensor copy = x.clone();
    Tensor written = through_view && x.dim() > 0 && x.size(0) > 1 ? copy.narrow(0, 1, x.size(0) - 1) : copy;
    method(written, args...);
    return Outputs{copy, written};
  });
}

void add_in_place(Rows& rows) {
  in_place<[](Tensor& x) { x.zero_(); }>(rows, "zero");
  in_place<[](Tensor& x) { x.relu_(); }>(rows, "relu");
  in_place<[](Tensor& x, Scalar s) { x.fill_(s); }, Scalar>(rows, "fill");
  in_place<[](Tensor& x, Scalar s) { x.add_(s); }, Scalar>(rows, "add.number");
  in_place<[](Tensor& x, Scalar s) { x.mul_(s); }, Scalar>(rows, "mul.number");
  in_place<[](Tensor& x, Scalar s) { x.div_(s); }, Scalar>(rows, "div.number");
  in_place<[](Tensor& x, Scalar a, Scalar b) { x.clamp_(a, b); }, Scalar, Scalar>(rows, "clamp");
  in_place<[](Tensor& x, const Tensor& y) { x.copy_(y); }, Tensor>(rows, "copy");
  in_place<[](Tensor& x, const Tensor& y, Scalar s) { x.add_(y, s); }, Tensor, Scalar>(rows, "add");
  in_place<[](Tensor& x, const Tensor& y) { x.sub_(y); }, Tensor>(rows, "sub");
  in_place<[](Tensor& x, const Tensor& y) { x.mul_(y); }, Tensor>(rows, "mul");
  in_place<[](Tensor& x, const Tensor& y) { x.div_(y); }, Tensor>(rows, "div");
  // The written tensor and the one read overlap: x[1:] op= x[:-1].
  row(rows, "add_.overlapping", [](Tensor x, int64_t gap) {
    Tensor late = x.narrow(0, gap, x.size(0) - gap);
    late.add_(x.narrow(0, 0, x.size(0) - gap));
    return Outputs{x};
  });
  row(rows, "copy_.overlapping", [](Tensor x, int64_t gap) {
    Tensor late = x.narrow(0, gap, x.size(0) - gap);
    late.copy_(x.narrow(0, 0, x.size(0) - gap));
    return Outputs{x};
  });
  row(rows, "copy_.transposed_onto_itself", [](Tensor x) {
    x.copy_(x.transpose(0, 1));
    return Outputs{x};
  });
}

}  // namespace

void add_pointwise(Rows& rows) {
  add_arithmetic(rows);
  add_functions(rows);
  add_tests(rows);
  add_in_place(rows);
}

}  // namespace weft::test
