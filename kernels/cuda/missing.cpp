// Interim: operations whose file is still to come. Weak, so that the real one wins.
#include <weft/kernels/cuda/cuda_backend.h>

namespace weft::cuda {

#define MISSING(name) { throw Error(#name ": has no CUDA kernel yet"); }
__attribute__((weak)) void CudaBackend::cumulate(Context&, Reduce, int, View, View) MISSING(cumulate)
__attribute__((weak)) void CudaBackend::sort(Context&, bool, View, View, View) MISSING(sort)
__attribute__((weak)) void CudaBackend::matmul(Context&, double, View, View, double, View, View) MISSING(matmul)
__attribute__((weak)) void CudaBackend::take_rows(Context&, View, View, View) MISSING(take_rows)
__attribute__((weak)) void CudaBackend::add_rows(Context&, View, View, int64_t, View) MISSING(add_rows)
__attribute__((weak)) void CudaBackend::gather(Context&, int, View, View, View) MISSING(gather)
__attribute__((weak)) void CudaBackend::scatter(Context&, bool, int, View, View, View) MISSING(scatter)
__attribute__((weak)) int64_t CudaBackend::count_nonzero(Context&, View) MISSING(count_nonzero)
__attribute__((weak)) void CudaBackend::nonzero(Context&, View, View) MISSING(nonzero)
__attribute__((weak)) void CudaBackend::triangle(Context&, bool, int64_t, View, View) MISSING(triangle)
__attribute__((weak)) void CudaBackend::uniform(Context&, PhiloxKey, double, double, View) MISSING(uniform)
__attribute__((weak)) void CudaBackend::normal(Context&, PhiloxKey, double, double, View) MISSING(normal)
__attribute__((weak)) void CudaBackend::bernoulli(Context&, PhiloxKey, View, View) MISSING(bernoulli)
__attribute__((weak)) void CudaBackend::random_int(Context&, PhiloxKey, int64_t, int64_t, View) MISSING(random_int)
__attribute__((weak)) void CudaBackend::dropout(Context&, PhiloxKey, double, View, View) MISSING(dropout)
__attribute__((weak)) void CudaBackend::multinomial(Context&, PhiloxKey, bool, View, View) MISSING(multinomial)
__attribute__((weak)) void CudaBackend::rnn_forward(Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&) MISSING(rnn_forward)
__attribute__((weak)) void CudaBackend::rnn_backward(Context&, const RnnLayer&, const RnnInputs&, const RnnOutputs&, View, View, View, const RnnGrads&) MISSING(rnn_backward)
__attribute__((weak)) void CudaBackend::step(Context&, const StepKernel&, DType, std::span<const StepTensor>) MISSING(step)
__attribute__((weak)) void CudaBackend::powers(Context&, double, std::span<const View>, double*) MISSING(powers)
__attribute__((weak)) void CudaBackend::scale(Context&, double, std::span<const View>) MISSING(scale)

}  // namespace weft::cuda
