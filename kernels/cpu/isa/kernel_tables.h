// Kernels from functors: one contiguous loop per compute type, and rows of function pointers, which a file of
// operations collects in a table. A row is indexed by the compute dtype and has entries for the dtypes of the
// operation's class.
#pragma once

#include <utility>

#include <weft/kernels/cpu/isa/elementwise.h>
#include <weft/kernels/inner/convert.h>
#include <weft/kernels/inner/functors.h>

namespace weft::kernels::WEFT_ISA_NS {

struct KernelRow {
  Kernel at[kDTypeCount] = {};
};

/// The loop of one functor over contiguous memory; Inputs is one type per operand.
template <class F, class T, class R, size_t... I>
void kernel_loop(const Params& params, void* const* p, int64_t n, std::index_sequence<I...>) {
  const F f{parameter<T>(params.s), parameter<T>(params.t)};
  R* const y = static_cast<R*>(p[0]);
  const T* const x[] = {static_cast<const T*>(p[I + 1])...};
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<R>(f(x[I][i]...));
}
template <class F, class T, class R, int kInputs>
void kernel(const Params& params, void* const* p, int64_t n) {
  kernel_loop<F, T, R>(params, p, n, std::make_index_sequence<kInputs>());
}

/// The row of one functor template.
template <template <class> class F, OpClass cls, int kInputs> constexpr KernelRow make_row() {
  KernelRow row;
  const auto add = [&]<class T>(TypeTag<T>) {
    using R = std::conditional_t<cls == OpClass::kTest, bool, T>;
    if constexpr (takes(cls, dtype_of<T>))
      row.at[static_cast<int>(dtype_of<T>)] = kernel<F<T>, T, R, kInputs>;
  };
  add(TypeTag<float>{});
  add(TypeTag<double>{});
  add(TypeTag<uint8_t>{});
  add(TypeTag<int32_t>{});
  add(TypeTag<int64_t>{});
  add(TypeTag<bool>{});
  return row;
}

inline constexpr DType compute_type(DType t) { return is_half(t) ? kFloat32 : t; }

/// Throws: DTypeError that names the operation.
[[noreturn]] void refuse_dtype(const char* op, DType t);

}  // namespace weft::kernels::WEFT_ISA_NS
