// A CUDA library of another build: its stamp is not core's.
#include <cstdio>

#include <weft/kernels/plugin/plugin.h>

extern "C" WEFT_API int weft_cuda_open(const char* abi_stamp, int, char* error, size_t size) {
  std::snprintf(error, size, "core was built as [%s], the CUDA library as [weft 0.0.0]", abi_stamp);
  return -1;
}
