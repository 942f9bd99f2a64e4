// The binary operations of pointwise.h.
#include <weft/kernels/cpu/isa/kernel_tables.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

#define WEFT_ROW(name, cls) make_row<functors::name, OpClass::cls, 2>(),
constexpr KernelRow binary_rows[] = {WEFT_BINARY_OPS(WEFT_ROW)};
#undef WEFT_ROW

/// Operations that cost more than memory: cut into smaller pieces.
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

void binary(Binary op, Scalar s, Scalar t, V a, V b, V y) {
  const DType in = compute_type(a.dtype);
  const Kernel kernel = binary_rows[static_cast<int>(op)].at[static_cast<int>(in)];
  if (!kernel) refuse_dtype(to_string(op), a.dtype);
  const View* const views[] = {&y, &a, &b};
  const DType compute[] = {op_class(op) == OpClass::kTest ? kBool : in, in, in};
  run_elementwise(kernel, {s, t}, views, compute, 3, is_dear(op) ? kDearGrain : kCheapGrain);
}

}  // namespace

void fill_binary(IsaTable& table) { table.binary = binary; }

}  // namespace weft::kernels::WEFT_ISA_NS
