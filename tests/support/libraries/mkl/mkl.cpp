// A stand-in for MKL's libmkl_rt: the functions that weft loads, and two that tell tests of the calls.
// Products are plain loops. With WEFT_TEST_MKL_VALUE set, all elements of a result are that number instead.
// So a test knows the products that went here, and a process that measures finds this library the quickest.
// A product before the choice of the sequential layer is an error.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

enum Cblas : int { kRowMajor = 101, kPlain = 111, kTransposed = 112 };
constexpr int kSequential = 1;

struct Version {
  int major, minor, update;
  const char *status, *build, *processor, *platform;
};

std::atomic<int> layer{-1};
std::atomic<int64_t> products{0};

void check(bool right, const char* text) {
  if (right) return;
  std::fprintf(stderr, "stand-in of MKL: %s\n", text);
  std::abort();
}

/// The number of WEFT_TEST_MKL_VALUE, or null.
const float* constant() {
  static const float* const value = [] {
    const char* text = std::getenv("WEFT_TEST_MKL_VALUE");
    return text ? new float(std::strtof(text, nullptr)) : nullptr;
  }();
  return value;
}

}  // namespace

extern "C" {

int MKL_Set_Threading_Layer(int code) {
  layer = code;
  return code;
}

void MKL_Get_Version(Version* version) { *version = {2026, 2, 1, "Product", "1", "any", "any"}; }

void cblas_sgemm(Cblas layout, Cblas of_a, Cblas of_b, int m, int n, int k, float alpha, const float* a,
                 int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  check(layer == kSequential, "a product by another layer than the sequential one");
  check(layout == kRowMajor, "the layout");
  const bool ta = of_a == kTransposed, tb = of_b == kTransposed;
  check((ta || of_a == kPlain) && (tb || of_b == kPlain), "a transposition");
  check(lda >= (ta ? m : k) && ldb >= (tb ? k : n) && ldc >= n, "a leading dimension");
  ++products;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float& to = c[i * ldc + j];
      if (constant()) {
        to = *constant();
        continue;
      }
      float sum = 0;
      for (int64_t p = 0; p < k; ++p)
        sum += a[ta ? p * lda + i : i * lda + p] * b[tb ? j * ldb + p : p * ldb + j];
      to = alpha * sum + (beta == 0 ? 0 : beta * to);
    }
}

int64_t weft_test_mkl_products() { return products; }

}  // extern "C"
