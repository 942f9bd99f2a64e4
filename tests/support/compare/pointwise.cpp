// Rows for operations of one and two tensors, and comparisons. writes.cpp has the in-place methods.
#include "support/compare/rows.h"

namespace weft::test {
namespace {

void add_arithmetic(Rows& rows) {
  table<Of<Tensor, Tensor, Tensor, Scalar>>(
      rows, {WEFT_ROW(add), WEFT_ROW(sub), WEFT_ROW(masked_fill), {"lerp.number", WEFT_CALL(lerp)}});
  table<Of<Tensor, Tensor, Tensor>>(
      rows, {WEFT_ROW(mul), WEFT_ROW(div), WEFT_ROW(pow), WEFT_ROW(maximum), WEFT_ROW(minimum),
             WEFT_ROW(remainder), WEFT_ROW(fmod), WEFT_ROW(floor_divide), WEFT_ROW(atan2)});
  table<Of<Tensor, Tensor, Tensor, Tensor>>(
      rows, {WEFT_ROW(where), WEFT_ROW(lerp), {"clamp.tensors", WEFT_CALL(clamp)}});
  table<Of<Tensor, Tensor, Tensor, Tensor, Scalar>>(rows, {WEFT_ROW(addcmul), WEFT_ROW(addcdiv)});
  table<Of<Tensor, Tensor, Scalar>>(rows, {{"add.number", WEFT_CALL(add)},
                                           {"sub.number", WEFT_CALL(sub)},
                                           {"mul.number", WEFT_CALL(mul)},
                                           {"div.number", WEFT_CALL(div)},
                                           {"pow.number", WEFT_CALL(pow)},
                                           {"fmod.number", WEFT_CALL(fmod)},
                                           {"floor_divide.number", WEFT_CALL(floor_divide)},
                                           {"remainder.number", WEFT_CALL(remainder)},
                                           {"maximum.number", WEFT_CALL(maximum)},
                                           {"minimum.number", WEFT_CALL(minimum)}});
  table<Of<Tensor, Scalar, Tensor>>(rows, {{"add.from", WEFT_CALL(add)},
                                           {"sub.from", WEFT_CALL(sub)},
                                           {"mul.from", WEFT_CALL(mul)},
                                           {"div.from", WEFT_CALL(div)},
                                           {"pow.from", WEFT_CALL(pow)},
                                           {"floor_divide.from", WEFT_CALL(floor_divide)},
                                           {"maximum.from", WEFT_CALL(maximum)},
                                           {"minimum.from", WEFT_CALL(minimum)},
                                           {"remainder.from", WEFT_CALL(remainder)}});
  row<Tensor(In, Scalar, Scalar)>(rows, "clamp", WEFT_CALL(clamp));
  row<Tensor(In, In, Scalar)>(rows, "where.number", WEFT_CALL(where));
  row<Tensor(In, Scalar, In)>(rows, "where.from", WEFT_CALL(where));
  row<Tensor(In, Scalar, Scalar)>(rows, "where.numbers", WEFT_CALL(where));
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
             WEFT_ROW(logical_and), WEFT_ROW(logical_or), WEFT_ROW(logical_xor), WEFT_ROW(bitwise_and),
             WEFT_ROW(bitwise_or), WEFT_ROW(bitwise_xor)});
  table<Of<Tensor, Tensor, Scalar>>(rows, {{"eq.number", WEFT_CALL(eq)},
                                           {"ne.number", WEFT_CALL(ne)},
                                           {"lt.number", WEFT_CALL(lt)},
                                           {"le.number", WEFT_CALL(le)},
                                           {"gt.number", WEFT_CALL(gt)},
                                           {"ge.number", WEFT_CALL(ge)},
                                           {"bitwise_and.number", WEFT_CALL(bitwise_and)},
                                           {"bitwise_or.number", WEFT_CALL(bitwise_or)},
                                           {"bitwise_xor.number", WEFT_CALL(bitwise_xor)}});
  table<Of<Tensor, Tensor>>(rows, {WEFT_ROW(logical_not), WEFT_ROW(bitwise_not), WEFT_ROW(isnan),
                                   WEFT_ROW(isfinite), WEFT_ROW(isinf)});
  row(rows, "nan_to_num", [](Tensor x, Scalar nan, bool bounds, Scalar high, Scalar low) {
    return bounds ? nan_to_num(x, nan, high, low) : nan_to_num(x, nan);
  });
  row<bool(In, In, double, double)>(rows, "allclose", WEFT_CALL(allclose));
  row<bool(In, In)>(rows, "equal", WEFT_CALL(equal));
}

}  // namespace

void add_pointwise(Rows& rows) {
  add_arithmetic(rows);
  add_functions(rows);
  add_tests(rows);
}

}  // namespace weft::test
