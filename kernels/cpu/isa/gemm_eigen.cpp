// The matrix product by Eigen, compiled for one instruction set (the build renames Eigen's namespace for each). Eigen splits nothing
// here: it is called for one tile at a time.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include <weft/kernels/cpu/isa/gemm.h>

namespace weft::kernels::WEFT_ISA_NS {

namespace {

template <class T, int kOrder>
using Matrix = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, kOrder>, 0, Eigen::OuterStride<>>;
template <class T>
using Result = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;

template <class T, int kOrder>
Matrix<T, kOrder> map(const Operand<T>& x, int64_t rows, int64_t columns) {
  return {x.data, rows, columns, Eigen::OuterStride<>(kOrder == Eigen::RowMajor ? x.row : x.col)};
}

template <class T, int kOrderA>
void multiply(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, Result<T> c, T alpha) {
  const auto left = map<T, kOrderA>(a, m, k);
  if (b.col == 1) c.noalias() += alpha * left * map<T, Eigen::RowMajor>(b, k, n);
  else c.noalias() += alpha * left * map<T, Eigen::ColMajor>(b, k, n);
}

}  // namespace

template <class T>
void eigen_gemm(int64_t m, int64_t n, int64_t k, Operand<T> a, Operand<T> b, T* c, int64_t c_row, T alpha, T beta) {
  Result<T> out(c, m, n, Eigen::OuterStride<>(c_row));
  if (beta == 0) out.setZero();
  else if (beta != 1) out *= beta;
  if (k == 0) return;
  if (a.col == 1) multiply<T, Eigen::RowMajor>(m, n, k, a, b, out, alpha);
  else multiply<T, Eigen::ColMajor>(m, n, k, a, b, out, alpha);
}

template void eigen_gemm<float>(int64_t, int64_t, int64_t, Operand<float>, Operand<float>, float*, int64_t, float, float);
template void eigen_gemm<double>(int64_t, int64_t, int64_t, Operand<double>, Operand<double>, double*, int64_t, double, double);

}  // namespace weft::kernels::WEFT_ISA_NS
