// kernels/cuda/host/gemm.h on the host: the plain triple loop with sums in double. A call that cuBLASLt would
// refuse is a Fault.
#include <weft/kernels/cuda/host/gemm.h>

#include <mutex>
#include <utility>

#include "support/simt/graph.h"
#include "support/simt/memory.h"
#include "support/simt/plain/products.h"
#include "support/simt/streams.h"
#include "support/simt/thread.h"

namespace weft::cuda {

namespace {
void expect_legal(const Gemm& g) {
  const int64_t width_a = g.transpose_a ? g.m : g.k, width_b = g.transpose_b ? g.k : g.n;
  if (!is_floating(g.dtype) || (g.wide && !is_half(g.dtype)))
    throw simt::Fault(str("gemm: takes no ", g.dtype));
  if (g.m < 1 || g.n < 1 || g.k < 1 || g.batch < 1)
    throw simt::Fault(str("gemm: m ", g.m, ", n ", g.n, ", k ", g.k, ", batch ", g.batch));
  if (g.lda < width_a || g.ldb < width_b || g.ldc < g.n)
    throw simt::Fault(str("gemm: rows overlap: ", g.lda, " for ", width_a, ", ", g.ldb, " for ", width_b,
                          ", ", g.ldc, " for ", g.n));
  if (g.batch > 1 && g.stride_c == 0) throw simt::Fault("gemm: all products of a batch go to one place");
}

template <class T, class Out> void multiply(const Gemm& g) {
  for (int64_t i = 0; i < g.batch; ++i) {
    const T* const a = static_cast<const T*>(g.a) + i * g.stride_a;
    const T* const b = static_cast<const T*>(g.b) + i * g.stride_b;
    Out* const c = static_cast<Out*>(g.c) + i * g.stride_c;
    for (int64_t r = 0; r < g.m; ++r)
      for (int64_t s = 0; s < g.n; ++s) {
        double sum = 0;
        for (int64_t k = 0; k < g.k; ++k)
          sum += static_cast<double>(a[g.transpose_a ? k * g.lda + r : r * g.lda + k]) *
                 static_cast<double>(b[g.transpose_b ? s * g.ldb + k : k * g.ldb + s]);
        double y = g.alpha * sum;
        if (g.beta != 0) y += g.beta * static_cast<double>(c[r * g.ldc + s]);
        if (g.bias) y += static_cast<double>(static_cast<const Out*>(g.bias)[s]);
        if (g.relu && y < 0) y = 0;
        if constexpr (sizeof(Out) == 2) c[r * g.ldc + s] = Out(static_cast<float>(y));
        else c[r * g.ldc + s] = static_cast<Out>(y);
      }
  }
}
}  // namespace

namespace {
void run(const Gemm& g) {
  const simt::DeviceAccess open;
  switch (g.dtype) {
    case kFloat16: g.wide ? multiply<Half, float>(g) : multiply<Half, Half>(g); break;
    case kBFloat16: g.wide ? multiply<BFloat16, float>(g) : multiply<BFloat16, BFloat16>(g); break;
    case kFloat32: multiply<float, float>(g); break;
    default: multiply<double, double>(g); break;
  }
  simt::check_guards("gemm");
}
}  // namespace

namespace {
struct Asked {
  std::mutex mutex;
  std::vector<Gemm> products;
};
Asked& asked() {
  static auto* const a = new Asked;
  return *a;
}
}  // namespace

std::vector<Gemm> simt::take_products() {
  const std::lock_guard lock(asked().mutex);
  return std::exchange(asked().products, {});
}

void gemm(CudaBackend&, void* stream, const Gemm& g) {
  {
    const std::lock_guard lock(asked().mutex);
    if (asked().products.size() < 1000) asked().products.push_back(g);
  }
  expect_legal(g);
  if (const auto recording = simt::recording_of(stream))
    return simt::record(*recording, stream, [g] { run(g); });
  simt::issue(simt::current_device(), stream, [g] { run(g); });
}

bool gemm_joined(CudaBackend&, void*, const Gemm&) { return false; }

}  // namespace weft::cuda
