// The one line that takes a rule of one's own to CUDA devices, in a file that is not one of the backend's.
#include <weft/kernels/cuda/step_cuda.h>

#include "cuda/user_rule.h"

WEFT_STEP_CUDA(weft::test::SignMomentum)
