// The built-in rules on CUDA devices: WEFT_STEP_CUDA, as a user writes it for a rule, for each row of
// rules/table.h. Compiled into weft::cuda.
#include <weft/kernels/cuda/step_cuda.h>
#include <weft/optim/rules/table.h>

#define WEFT_CUDA_RULE(Name, ...) WEFT_STEP_CUDA(weft::optim::Name##Rule)
WEFT_OPTIMIZER_RULES(WEFT_CUDA_RULE)
#undef WEFT_CUDA_RULE

/// A symbol that makes the linker keep this file of a static weft::cuda; its users link with -u and this
/// name.
extern "C" WEFT_API void weft_cuda_rules() {}
