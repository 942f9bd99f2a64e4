// kernels/cuda/gemm.h on the host: the plain triple loop, sums in double.
#include <weft/kernels/cuda/gemm.h>

#include "support/simt/memory.h"

namespace weft::cuda {

void gemm(int, void*, const Gemm& g) {
  const simt::DeviceAccess open;
  dispatch(g.dtype, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < g.batch; ++i) {
      const T* const a = static_cast<const T*>(g.a) + i * g.stride_a;
      const T* const b = static_cast<const T*>(g.b) + i * g.stride_b;
      T* const c = static_cast<T*>(g.c) + i * g.stride_c;
      for (int64_t r = 0; r < g.m; ++r)
        for (int64_t s = 0; s < g.n; ++s) {
          double sum = 0;
          for (int64_t k = 0; k < g.k; ++k)
            sum += static_cast<double>(a[g.transpose_a ? k * g.lda + r : r * g.lda + k]) * static_cast<double>(b[g.transpose_b ? s * g.ldb + k : k * g.ldb + s]);
          double y = g.alpha * sum;
          if (g.beta != 0) y += g.beta * static_cast<double>(c[r * g.ldc + s]);
          if (g.bias) y += static_cast<double>(static_cast<const T*>(g.bias)[s]);
          if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) c[r * g.ldc + s] = T(static_cast<float>(y));
          else c[r * g.ldc + s] = static_cast<T>(y);
        }
    }
  });
  simt::check_guards("gemm");
}

}  // namespace weft::cuda
