// Opens cuBLASLt (cublaslt.h), checks its major version, and converts its status codes to exceptions. A
// failure is kept as text, which library() throws.
#include <weft/kernels/cuda/toolkit/cublaslt.h>

#include <cuda_runtime.h>

#include <string>

#include <weft/kernels/error.h>
#include <weft/kernels/inner/library_file.h>

#if !defined(WEFT_CUBLASLT_BUILT)  // path of the library found by the build
#define WEFT_CUBLASLT_BUILT nullptr
#endif

namespace weft::cuda::cublaslt {

namespace {
struct Opened {
  Library functions;
  std::string error;
  Opened() {
    LibraryFile file("WEFT_CUBLASLT_LIBRARY", str("libcublasLt.so.", CUBLAS_VER_MAJOR), WEFT_CUBLASLT_BUILT);
#define WEFT_CUBLASLT_FIND(name) file.find(functions.name, #name);
    WEFT_CUBLASLT_CALLS(WEFT_CUBLASLT_FIND)
#undef WEFT_CUBLASLT_FIND
    std::string why = file.missing();
    if (why.empty() && functions.cublasLtGetVersion() / 10000 != CUBLAS_VER_MAJOR)
      why = str("its version is ", functions.cublasLtGetVersion());
    if (!why.empty())
      error =
          str("cuda: products need cuBLASLt ", CUBLAS_VER_MAJOR, ", which cannot be used: ", why,
              "; install it, or set WEFT_CUBLASLT_LIBRARY to the path of libcublasLt.so.", CUBLAS_VER_MAJOR);
  }
};
const Opened& opened() {
  static const auto* const once = new Opened;  // never destroyed
  return *once;
}
}  // namespace

const Library& library() {
  if (!found()) throw DeviceError(opened().error);
  return opened().functions;
}

bool found() { return opened().error.empty(); }

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string text = str(call, ": ", library().cublasLtGetStatusString(status), " (",
                               library().cublasLtGetStatusName(status), ")");
  if (status != CUBLAS_STATUS_ALLOC_FAILED) throw CudaError(text);
  cudaGetLastError();  // clears the error for the next launch
  throw OutOfMemoryError(text);
}

}  // namespace weft::cuda::cublaslt
