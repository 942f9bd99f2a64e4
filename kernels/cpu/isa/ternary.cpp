// The ternary operations of pointwise.h, and where, which only moves elements and is therefore compiled per
// element width instead of per dtype.
#include <weft/kernels/cpu/isa/kernel_tables.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

#define WEFT_ROW(name, cls) make_row<functors::name, OpClass::cls, 3>(),
constexpr KernelRow ternary_rows[] = {WEFT_TERNARY_OPS(WEFT_ROW)};
#undef WEFT_ROW

}  // namespace

void IsaBackend::ternary(Context&, Ternary op, Scalar s, View a, View b, View c, View y) {
  const DType in = compute_type(y.dtype);
  const Kernel kernel = ternary_rows[static_cast<int>(op)].at[static_cast<int>(in)];
  if (!kernel) refuse_dtype(to_string(op), y.dtype);
  const View* const views[] = {&y, &a, &b, &c};
  const DType compute[] = {in, in, in, in};
  run_elementwise(kernel, {s, {}}, views, compute, 4, kCheapGrain);
}

PointwiseRow IsaBackend::row(Ternary op, DType t) const {
  return ternary_rows[static_cast<int>(op)].at[static_cast<int>(t)];
}

namespace {

template <class U> void where_loop(const Params&, void* const* p, int64_t n) {
  U* const y = static_cast<U*>(p[0]);
  const uint8_t* const cond = static_cast<const uint8_t*>(p[1]);
  const U* const a = static_cast<const U*>(p[2]);
  const U* const b = static_cast<const U*>(p[3]);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const U take_a = a[i], take_b = b[i];
    y[i] = cond[i] ? take_a : take_b;
  }
}

}  // namespace

void IsaBackend::where(Context&, View cond, View a, View b, View y) {
  const int64_t width = size_of(y.dtype);
  const Kernel kernel = width == 1   ? where_loop<uint8_t>
                        : width == 2 ? where_loop<uint16_t>
                        : width == 4 ? where_loop<uint32_t>
                                     : where_loop<uint64_t>;
  const View* const views[] = {&y, &cond, &a, &b};
  const DType compute[] = {y.dtype, kBool, y.dtype, y.dtype};
  run_elementwise(kernel, {}, views, compute, 4, kCheapGrain);
}

}  // namespace weft::kernels::WEFT_ISA_NS
