// The unary operations of pointwise.h: one row of kernels per functor, and the launch. elementwise.h handles
// strides and conversions. The powers 2 and -1 use the kernels of square and reciprocal.
#include <weft/kernels/cpu/isa/kernel_tables.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

#define WEFT_ROW(name, cls) make_row<functors::name, OpClass::cls, 1>(),
constexpr KernelRow unary_rows[] = {WEFT_UNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW

}  // namespace

void IsaBackend::unary(Context&, Unary op, Scalar s, Scalar t, View x, View y) {
  const bool dear = op_class(op) == OpClass::kFloat || op == Unary::kPowScalar || op == Unary::kRpowScalar;
  if (op == Unary::kPowScalar) {  // the powers that need no logarithm
    if (s.d == 2) op = Unary::kSquare;
    else if (s.d == -1 && is_floating(x.dtype)) op = Unary::kReciprocal;
  }
  const DType in = compute_type(x.dtype);
  const Kernel kernel = unary_rows[static_cast<int>(op)].at[static_cast<int>(in)];
  if (!kernel) refuse_dtype(to_string(op), x.dtype);
  const OpClass cls = op_class(op);
  const View* const views[] = {&y, &x};
  const DType compute[] = {cls == OpClass::kTest ? kBool : in, in};
  run_elementwise(kernel, {s, t}, views, compute, 2, dear ? kDearGrain : kCheapGrain);
}

PointwiseRow IsaBackend::row(Unary op, DType t) const {
  // which row computes a power depends on the exponent
  return op == Unary::kPowScalar ? nullptr : unary_rows[static_cast<int>(op)].at[static_cast<int>(t)];
}

void refuse_dtype(const char* op, DType t) { throw DTypeError(str(op, ": does not take ", t)); }

}  // namespace weft::kernels::WEFT_ISA_NS
