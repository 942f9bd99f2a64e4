// The products that the emulated device was asked for, for tests of the layouts that an operation chooses.
#pragma once

#include <vector>

#include <weft/kernels/cuda/host/gemm.h>

namespace weft::cuda::simt {

/// The products since the last call, on every thread; the first 1,000 of them.
std::vector<Gemm> take_products();

}  // namespace weft::cuda::simt
