// The unary operations of pointwise.h: one row of kernels per functor, and the launch. Sine, cosine, tangent
// and powers of floats have separate loops (trig.h, power.h). elementwise.h handles strides and conversions.
// The powers 2 and -1 use the kernels of square and reciprocal.
#include <array>
#include <cmath>

#include <weft/kernels/cpu/isa/kernel_tables.h>
#include <weft/kernels/cpu/isa/power.h>
#include <weft/kernels/cpu/isa/trig.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

/// Sine, cosine or tangent of floats. A far element is computed by itself, so that no result depends on its
/// neighbours.
template <Unary op> void trig_row(const Params&, void* const* p, int64_t n) {
  constexpr int64_t kBlock = 256;
  const float* x = static_cast<const float*>(p[1]);
  float* y = static_cast<float*>(p[0]);
  const auto alone = [](float v) {
    return op == Unary::kSin ? std::sin(v) : op == Unary::kCos ? std::cos(v) : std::tan(v);
  };
  for (int64_t left = n; left > 0; left -= kBlock, x += kBlock, y += kBlock) {
    const int64_t count = left < kBlock ? left : kBlock;
    float out[kBlock];
    bool far;
    if constexpr (op == Unary::kTan) far = tangents(x, out, count);
    else far = sines<op == Unary::kCos>(x, out, count);
    for (int64_t i = 0; far && i < count; ++i)
      if (!(std::fabs(x[i]) <= kTrigEnd)) out[i] = alone(x[i]);
    __builtin_memcpy(y, out, static_cast<size_t>(count) * sizeof(float));
  }
}

#define WEFT_ROW(name, cls) make_row<functors::name, OpClass::cls, 1>(),
constexpr auto unary_rows = [] {
  std::array rows{WEFT_UNARY_OPS(WEFT_ROW)};
  const auto of_floats = [&](Unary op, Kernel kernel) {
    rows[static_cast<size_t>(op)].at[static_cast<size_t>(kFloat32)] = kernel;
  };
  of_floats(Unary::kSin, trig_row<Unary::kSin>);
  of_floats(Unary::kCos, trig_row<Unary::kCos>);
  of_floats(Unary::kTan, trig_row<Unary::kTan>);
  of_floats(Unary::kPowScalar, power_row<PowerForm::kExponent>);
  of_floats(Unary::kRpowScalar, power_row<PowerForm::kBase>);
  return rows;
}();
#undef WEFT_ROW

}  // namespace

void IsaBackend::unary(Context&, Unary op, Scalar s, Scalar t, View x, View y) {
  const bool dear = op_class(op) == OpClass::kFloat || op == Unary::kPowScalar || op == Unary::kRpowScalar;
  if (op == Unary::kPowScalar) {  // the powers that need no logarithm
    if (s.d == 2) op = Unary::kSquare;
    else if (s.d == -1 && is_floating(x.dtype)) op = Unary::kReciprocal;
  }
  const DType in = compute_type(x.dtype);
  const Kernel kernel = unary_rows[static_cast<size_t>(op)].at[static_cast<int>(in)];
  if (!kernel) refuse_dtype(to_string(op), x.dtype);
  const OpClass cls = op_class(op);
  const View* const views[] = {&y, &x};
  const DType compute[] = {cls == OpClass::kTest ? kBool : in, in};
  run_elementwise(kernel, {s, t}, views, compute, 2, dear ? kDearGrain : kCheapGrain);
}

PointwiseRow IsaBackend::row(Unary op, DType t) const {
  // which row computes a power depends on the exponent
  return op == Unary::kPowScalar ? nullptr : unary_rows[static_cast<size_t>(op)].at[static_cast<int>(t)];
}

void refuse_dtype(const char* op, DType t) { throw DTypeError(str(op, ": does not take ", t)); }

}  // namespace weft::kernels::WEFT_ISA_NS
