// cuBLASLt, opened by the first product that needs it. Its functions are members of the same name. The Init
// functions of its header are inline and call the library's functions with suffix _internal.
#pragma once

#include <cublasLt.h>

namespace weft::cuda::cublaslt {

#define WEFT_CUBLASLT_CALLS(ROW)             \
  ROW(cublasLtGetVersion)                    \
  ROW(cublasLtGetStatusName)                 \
  ROW(cublasLtGetStatusString)               \
  ROW(cublasLtCreate)                        \
  ROW(cublasLtMatmulDescInit_internal)       \
  ROW(cublasLtMatmulDescSetAttribute)        \
  ROW(cublasLtMatrixLayoutInit_internal)     \
  ROW(cublasLtMatrixLayoutSetAttribute)      \
  ROW(cublasLtMatmulPreferenceInit_internal) \
  ROW(cublasLtMatmulPreferenceSetAttribute)  \
  ROW(cublasLtMatmulAlgoGetHeuristic)        \
  ROW(cublasLtMatmul)

struct Library {
#define WEFT_CUBLASLT_MEMBER(name) decltype(&::name) name = nullptr;
  WEFT_CUBLASLT_CALLS(WEFT_CUBLASLT_MEMBER)
#undef WEFT_CUBLASLT_MEMBER
};

/// The environment variable WEFT_CUBLASLT_LIBRARY sets the file to open. Throws: DeviceError, at each call,
/// if the major version of this build is not found.
const Library& library();
/// Whether the library is found, so that library() does not throw.
bool found();

/// Throws: OutOfMemoryError if the call found no memory, else CudaError that names it.
void check(cublasStatus_t status, const char* call);

}  // namespace weft::cuda::cublaslt
