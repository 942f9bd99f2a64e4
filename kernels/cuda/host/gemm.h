// The interface of matrix products on a device. toolkit/gemm.cpp implements it with cuBLASLt,
// tests/support/simt on the host.
#pragma once

#include <cstdint>

#include <weft/kernels/dtype.h>

namespace weft::cuda {

class CudaBackend;

/// A result of a product besides c, or a step behind it, within one call of the library.
enum class Joined {
  kNone,
  kGelu,      ///< c = gelu_tanh of that; `beside`, if given, gets its argument
  kGeluGrad,  ///< c = that times the slope of gelu_tanh at `beside`
  kSums,      ///< `beside` [m] gets the sums of the rows of op(a)
};

/// c = alpha op(a) op(b) + beta c (+ bias added to each row), and with `relu` the larger of that and 0;
/// row-major, `batch` times. c is [m, n] with row stride ldc. op(a) is a [m, k], or with `transpose_a` the
/// transpose of a [k, m]; the same for b [k, n]. No size is 0, and rows do not overlap. Batch strides are in
/// elements; 0 repeats an operand. With beta 0, c is not read. float16 and bfloat16 accumulate in float32.
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
  Joined joined = Joined::kNone;  ///< of gemm_joined
  void* beside = nullptr;         ///< of c's dtype
  int64_t beside_row = 0;         ///< its row stride, if it is [m, n]

  DType out() const { return wide ? kFloat32 : dtype; }
};

/// Computes the product on the backend's device, which is current, with workspace from its allocator. Equal
/// calls give equal bits. Throws: DeviceError if cuBLASLt is missing; CudaError.
void gemm(CudaBackend& backend, void* stream, const Gemm& g);
/// The same for one product with `joined`, alpha 1 and beta 0. Returns false, with nothing done, if the
/// library has no such product.
bool gemm_joined(CudaBackend& backend, void* stream, const Gemm& g);
/// gemm through float32 for a and b of a half dtype; gemm calls it on devices without products of that
/// dtype.
void gemm_in_float(CudaBackend& backend, void* stream, const Gemm& g);

}  // namespace weft::cuda
