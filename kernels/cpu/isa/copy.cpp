// Pointwise data movement: copy, fill, arange.
#include <weft/kernels/cpu/isa_table.h>
namespace weft::kernels::WEFT_ISA_NS { void fill_copy(IsaTable&) {} }
