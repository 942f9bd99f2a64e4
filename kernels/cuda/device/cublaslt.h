// cuBLASLt as a library that is opened when the first product asks for it; its functions are members of the same name. The header's ...Init are inline
// and call the library's ..._internal with the size of the struct.
#pragma once

#include <cublasLt.h>

namespace weft::cuda::cublaslt {

#define WEFT_CUBLASLT_CALLS(call)                                                                         \
  call(cublasLtGetVersion) call(cublasLtGetStatusName) call(cublasLtGetStatusString) call(cublasLtCreate) \
      call(cublasLtMatmulDescInit_internal) call(cublasLtMatmulDescSetAttribute)                          \
          call(cublasLtMatrixLayoutInit_internal) call(cublasLtMatrixLayoutSetAttribute)                  \
              call(cublasLtMatmulPreferenceInit_internal) call(cublasLtMatmulPreferenceSetAttribute)      \
                  call(cublasLtMatmulAlgoGetHeuristic) call(cublasLtMatmul)

struct Library {
#define WEFT_CUBLASLT_MEMBER(name) decltype(&::name) name = nullptr;
  WEFT_CUBLASLT_CALLS(WEFT_CUBLASLT_MEMBER)
#undef WEFT_CUBLASLT_MEMBER
};

/// WEFT_CUBLASLT_LIBRARY in the environment names the file to open.
/// Throws: DeviceError, at each call, when there is none of the major version that this was built for.
const Library& library();
/// Whether there is one; library() does not throw then.
bool found();

/// Throws: CudaError naming the call, OutOfMemoryError where it found no memory.
void check(cublasStatus_t status, const char* call);

}  // namespace weft::cuda::cublaslt
