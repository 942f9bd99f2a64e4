// Interim: operations whose file is still to come. Weak, so that the real one wins.
#include <weft/kernels/cuda/cuda_backend.h>

namespace weft::cuda {

#define MISSING(name) { throw Error(#name ": has no CUDA kernel yet"); }
__attribute__((weak)) void CudaBackend::step(Context&, const StepKernel&, DType, std::span<const StepTensor>) MISSING(step)
__attribute__((weak)) void CudaBackend::powers(Context&, double, std::span<const View>, double*) MISSING(powers)
__attribute__((weak)) void CudaBackend::scale(Context&, double, std::span<const View>) MISSING(scale)

}  // namespace weft::cuda
