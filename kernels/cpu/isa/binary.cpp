// The binary operations of pointwise.h: one row of kernels per functor, and the launch. Powers of floats have
// a separate loop (power.h). elementwise.h handles strides, broadcasting and conversions.
#include <array>

#include <weft/kernels/cpu/isa/kernel_tables.h>
#include <weft/kernels/cpu/isa/power.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

#define WEFT_ROW(name, cls) make_row<functors::name, OpClass::cls, 2>(),
constexpr auto binary_rows = [] {
  std::array rows{WEFT_BINARY_OPS(WEFT_ROW)};
  rows[static_cast<size_t>(Binary::kPow)].at[static_cast<size_t>(kFloat32)] = power_row<PowerForm::kTensors>;
  return rows;
}();
#undef WEFT_ROW

/// Operations whose arithmetic costs more than their memory access: they are cut into smaller tasks.
constexpr bool is_dear(Binary op) {
  switch (op) {
    case Binary::kPow:
    case Binary::kAtan2:
    case Binary::kRemainder:
    case Binary::kEluGrad:
    case Binary::kGeluGrad:
    case Binary::kGeluTanhGrad:
    case Binary::kSiluGrad:
    case Binary::kSoftplusGrad: return true;
    default: return false;
  }
}

}  // namespace

void IsaBackend::binary(Context&, Binary op, Scalar s, Scalar t, View a, View b, View y) {
  const DType in = compute_type(a.dtype);
  const Kernel kernel = binary_rows[static_cast<size_t>(op)].at[static_cast<int>(in)];
  if (!kernel) refuse_dtype(to_string(op), a.dtype);
  const View* const views[] = {&y, &a, &b};
  const DType compute[] = {op_class(op) == OpClass::kTest ? kBool : in, in, in};
  run_elementwise(kernel, {s, t}, views, compute, 3, is_dear(op) ? kDearGrain : kCheapGrain);
}

PointwiseRow IsaBackend::row(Binary op, DType t) const {
  return binary_rows[static_cast<size_t>(op)].at[static_cast<int>(t)];
}

}  // namespace weft::kernels::WEFT_ISA_NS
