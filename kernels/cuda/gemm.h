// The seam of matrix products on a device: gemm_cublas.cpp calls cuBLASLt, tests/support/simt has one on the host.
#pragma once

#include <cstdint>

#include <weft/kernels/dtype.h>

namespace weft::cuda {

/// c = alpha op(a) op(b) + beta c (+ bias, repeated over rows), row-major, `batch` times: c [m, n] with row stride ldc; op(a) [m, k] is a, or its transpose stored
/// as [k, m] when `transpose_a`; the same for b [k, n]. Batch strides in elements, 0 repeats. float16 and bfloat16 accumulate in float32.
struct Gemm {
  DType dtype = kFloat32;
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0, batch = 1;
  double alpha = 1, beta = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  ///< [n] or null
  void* c = nullptr;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
};

/// On device `device`, which is current. Throws: CudaError.
void gemm(int device, void* stream, const Gemm& g);

}  // namespace weft::cuda
