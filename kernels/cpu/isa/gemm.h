// The matrix product for the other kernels: float or double, any strides of a and b, contiguous rows of c.
#pragma once

#include <weft/kernels/cpu/isa/gemm_tile.h>

namespace weft::kernels::WEFT_ISA_NS {

/// c[i, j] = alpha * sum_p a[i, p] b[p, j] + beta * c[i, j] + bias[j], on the pool. beta 0 never reads c.
/// `relu`: the positive part of that.
template <class T>
void gemm(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
          Finish<T> finish = {}, bool relu = false);

/// Whether that is made by dot products where the rows of a and the columns of b are contiguous. Products of
/// one column without a bias always are.
template <class T> bool takes_dots(int64_t m, int64_t n, int64_t k);

/// The product as one task on the calling thread; each operand has one stride of 1. With WEFT_AUTOTUNE=1 the
/// table has the choice all the same: beside other tasks no engine can be measured.
template <class T>
void gemm_here(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row,
               Finish<T> finish = {});

/// The same by Eigen on the calling thread, without bias. Each operand has one stride of 1, and the other is
/// at least the length along the first.
void eigen_gemm(int64_t m, int64_t n, int64_t k, Operand<float> a, Operand<float> b, float* c, int64_t c_row,
                float alpha, float beta);

}  // namespace weft::kernels::WEFT_ISA_NS
