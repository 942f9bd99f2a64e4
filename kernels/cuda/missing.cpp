// Interim: operations whose file is still to come. Weak, so that the real one wins.
#include <weft/kernels/cuda/cuda_backend.h>

namespace weft::cuda {

#define MISSING(name) { throw Error(#name ": has no CUDA kernel yet"); }
__attribute__((weak)) void CudaBackend::reduce(Context&, Reduce, View, View) MISSING(reduce)
__attribute__((weak)) void CudaBackend::arg_reduce(Context&, bool, int, View, View, View) MISSING(arg_reduce)
__attribute__((weak)) void CudaBackend::mean_var(Context&, int64_t, View, View, View) MISSING(mean_var)
__attribute__((weak)) void CudaBackend::softmax(Context&, bool, View, View) MISSING(softmax)
__attribute__((weak)) void CudaBackend::softmax_backward(Context&, bool, View, View, View) MISSING(softmax_backward)
__attribute__((weak)) void CudaBackend::logsumexp(Context&, View, View) MISSING(logsumexp)
__attribute__((weak)) void CudaBackend::cross_entropy(Context&, View, View, View, int64_t, double, View, View) MISSING(cross_entropy)
__attribute__((weak)) void CudaBackend::cross_entropy_backward(Context&, View, View, View, View, int64_t, double, View, View) MISSING(cross_entropy_backward)
__attribute__((weak)) void CudaBackend::layer_norm(Context&, View, View, View, double, View, View, View) MISSING(layer_norm)
__attribute__((weak)) void CudaBackend::layer_norm_backward(Context&, View, View, View, View, View, View, View, View) MISSING(layer_norm_backward)
__attribute__((weak)) void CudaBackend::step(Context&, const StepKernel&, DType, std::span<const StepTensor>) MISSING(step)
__attribute__((weak)) void CudaBackend::powers(Context&, double, std::span<const View>, double*) MISSING(powers)
__attribute__((weak)) void CudaBackend::scale(Context&, double, std::span<const View>) MISSING(scale)

}  // namespace weft::cuda
