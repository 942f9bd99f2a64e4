// Creates the backend of the instruction set. cpu_backend.cpp calls it only on a processor that supports the
// set.
#include <weft/kernels/cpu/isa/backend.h>

namespace weft::kernels::WEFT_ISA_NS {

CpuBackend* make_backend(const char* isa) { return new IsaBackend(isa); }

}  // namespace weft::kernels::WEFT_ISA_NS
