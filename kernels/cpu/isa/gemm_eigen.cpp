// The matrix product by Eigen, compiled for one instruction set; the build renames Eigen's namespace for each
// set. Eigen computes one tile per call, on the calling thread.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include <weft/kernels/cpu/isa/gemm.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

template <int kOrder>
using Matrix =
    Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, kOrder>, 0, Eigen::OuterStride<>>;
using Result = Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
                          Eigen::OuterStride<>>;

template <int kOrder> Matrix<kOrder> map(const Operand<float>& x, int64_t rows, int64_t columns) {
  return {x.data, rows, columns, Eigen::OuterStride<>(kOrder == Eigen::RowMajor ? x.row : x.col)};
}

template <int kOrderA>
void multiply(int64_t m, int64_t n, int64_t k, Operand<float> a, Operand<float> b, Result c, float alpha) {
  const auto left = map<kOrderA>(a, m, k);
  if (b.col == 1) c.noalias() += alpha * left * map<Eigen::RowMajor>(b, k, n);
  else c.noalias() += alpha * left * map<Eigen::ColMajor>(b, k, n);
}

}  // namespace

void eigen_gemm(int64_t m, int64_t n, int64_t k, Operand<float> a, Operand<float> b, float* c, int64_t c_row,
                float alpha, float beta) {
  for (int64_t i = 0; i < m && beta != 1; ++i)
    for (int64_t j = 0; j < n; ++j) c[i * c_row + j] = beta == 0 ? 0 : beta * c[i * c_row + j];
  if (k == 0) return;
  const Result out(c, m, n, Eigen::OuterStride<>(c_row));
  if (a.col == 1) multiply<Eigen::RowMajor>(m, n, k, a, b, out, alpha);
  else multiply<Eigen::ColMajor>(m, n, k, a, b, out, alpha);
}

}  // namespace weft::kernels::WEFT_ISA_NS
