// The CPU backend of one instruction set. The files of kernels/cpu/isa define its methods. They are compiled
// once per set, with all code in the namespace WEFT_ISA_NS. They must not instantiate anything with external
// linkage outside WEFT_ISA_NS (no std::vector, no std::string): the linker would keep one copy for all sets.
#pragma once

#include <weft/kernels/cpu/cpu_backend.h>

namespace weft::kernels::WEFT_ISA_NS {

using V = const View&;

class IsaBackend final : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
#include <weft/kernels/inner/kernel_methods.inc>
  bool has_attention(DType t, int64_t, int64_t) const override { return !is_half(t); }
  PointwiseRow row(Unary op, DType t) const override;
  PointwiseRow row(Binary op, DType t) const override;
  PointwiseRow row(Ternary op, DType t) const override;
};

}  // namespace weft::kernels::WEFT_ISA_NS
