// The binary operations of pointwise.h: one row of kernels per functor, and the launch. Powers, remainders
// and angles of floats have separate loops (power.h, fmod.h, trig.h). elementwise.h handles strides,
// broadcasting and conversions.
#include <array>

#include <weft/kernels/cpu/isa/fmod.h>
#include <weft/kernels/cpu/isa/kernel_tables.h>
#include <weft/kernels/cpu/isa/power.h>
#include <weft/kernels/cpu/isa/trig.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

void angle_row(const Params&, void* const* p, int64_t n) {
  constexpr int64_t kCount = kLanes<double>;
  const float *y = static_cast<const float*>(p[1]), *x = static_cast<const float*>(p[2]);
  float* out = static_cast<float*>(p[0]);
  for (; n > 0; n -= kCount, y += kCount, x += kCount, out += kCount) {
    const auto bytes = static_cast<size_t>(n < kCount ? n : kCount) * sizeof(float);
    HalfVecF a{}, b{};
    __builtin_memcpy(&a, y, bytes);
    __builtin_memcpy(&b, x, bytes);
    a = narrow(angle(widen(a), widen(b)));
    __builtin_memcpy(out, &a, bytes);
  }
}

#define WEFT_ROW(name, cls) make_row<functors::name, OpClass::cls, 2>(),
constexpr auto binary_rows = [] {
  std::array rows{WEFT_BINARY_OPS(WEFT_ROW)};
  const auto of_floats = [&](Binary op, Kernel kernel) {
    rows[static_cast<size_t>(op)].at[static_cast<size_t>(kFloat32)] = kernel;
  };
  of_floats(Binary::kPow, power_row<PowerForm::kTensors>);
  of_floats(Binary::kAtan2, angle_row);
  of_floats(Binary::kRemainder, fmod_row<functors::Remainder>);
  of_floats(Binary::kFmod, fmod_row<functors::Fmod>);
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
