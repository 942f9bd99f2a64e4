// The seam of matrix products on a device: device/gemm.cpp calls cuBLASLt, tests/support/simt has one on the host.
#pragma once

#include <cstdint>

#include <weft/kernels/dtype.h>

namespace weft::cuda {

class CudaBackend;

/// c = alpha op(a) op(b) + beta c (+ bias, repeated over rows), or the larger of that and 0 when `relu`; row-major, `batch` times: c [m, n] with row stride ldc; op(a) [m, k] is a, or its transpose stored
/// as [k, m] when `transpose_a`; the same for b [k, n]. No size is 0, and rows do not overlap. Batch strides in elements, 0 repeats. c is not read
/// when beta is 0. float16 and bfloat16 accumulate in float32.
struct Gemm {
  DType dtype = kFloat32;  ///< floating; of a and b, and of c and bias unless `wide`
  bool wide = false;       ///< c and bias are float32 although a and b are float16 or bfloat16
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0, batch = 1;
  double alpha = 1, beta = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  ///< [n] or null
  bool relu = false;
  void* c = nullptr;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;

  DType out() const { return wide ? kFloat32 : dtype; }
};

/// On the backend's device, which is current; memory that the product needs comes from its allocator. The same call gives the same bits each time.
/// Throws: DeviceError when cuBLASLt is missing; CudaError.
void gemm(CudaBackend& backend, void* stream, const Gemm& g);
/// The same for a and b of a half type by way of float32: what gemm does on a device that multiplies no such type.
void gemm_in_float(CudaBackend& backend, void* stream, const Gemm& g);

}  // namespace weft::cuda
