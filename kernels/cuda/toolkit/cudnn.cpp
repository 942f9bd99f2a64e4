// Opens cuDNN (cudnn.h), checks its major version, and converts its status codes to exceptions. Empty in a
// build without cuDNN.
#if defined(WEFT_WITH_CUDNN)

#include <weft/kernels/cuda/toolkit/cudnn.h>

#include <cuda_runtime.h>

#include <weft/kernels/cuda/toolkit/cublaslt.h>
#include <weft/kernels/error.h>
#include <weft/kernels/inner/library_file.h>

#if !defined(WEFT_CUDNN_BUILT)  // path of the library found by the build
#define WEFT_CUDNN_BUILT nullptr
#endif

namespace weft::cuda::cudnn {

namespace {
const Library* open() {
  cublaslt::found();  // cuDNN opens cuBLASLt by name, which finds the library that is open already
  LibraryFile file("WEFT_CUDNN_LIBRARY", str("libcudnn.so.", CUDNN_MAJOR), WEFT_CUDNN_BUILT);
  static Library found;
#define WEFT_CUDNN_FIND(name) file.find(found.name, #name);
  WEFT_CUDNN_CALLS(WEFT_CUDNN_FIND)
#undef WEFT_CUDNN_FIND
  return file.missing().empty() && found.cudnnGetVersion() / 10000 == CUDNN_MAJOR ? &found : nullptr;
}
}  // namespace

const Library* library() {
  static const Library* const opened = open();
  return opened;
}

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const std::string text = str(call, ": ", library()->cudnnGetErrorString(status));
  if (status != CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED &&
      status != CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
    throw CudaError(text);
  cudaGetLastError();  // clears the error for the next launch
  throw OutOfMemoryError(text);
}

}  // namespace weft::cuda::cudnn

#endif
