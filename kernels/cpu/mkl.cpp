// The only calls of MKL. Its runtime library is opened when a user asks for it (PyPI's package mkl has it).
// So neither the build nor other programs need it. Its sequential layer is used: tasks come from weft's pool.
#include <weft/kernels/cpu/gemm.h>

#include <weft/kernels/inner/library_file.h>

namespace weft::kernels {

namespace {

/// Values of MKL's interface: CblasRowMajor, CblasNoTrans, CblasTrans, MKL_THREADING_SEQUENTIAL.
enum Cblas : int { kRowMajor = 101, kPlain = 111, kTransposed = 112 };
constexpr int kSequential = 1;

/// MKLVersion of its mkl_types.h.
struct Version {
  int major = 0, minor = 0, update = 0;
  const char *status = nullptr, *build = nullptr, *processor = nullptr, *platform = nullptr;
};

struct Mkl {
  LibraryFile file{"WEFT_MKL_LIBRARY", "libmkl_rt.so.3", "libmkl_rt.so.2"};
  void (*sgemm)(Cblas layout, Cblas a, Cblas b, int m, int n, int k, float alpha, const float* x, int lda,
                const float* y, int ldb, float beta, float* c, int ldc) = nullptr;
  std::string version;
  Mkl() {
    int (*set_layer)(int) = nullptr;
    void (*get_version)(Version*) = nullptr;
    file.find(set_layer, "MKL_Set_Threading_Layer");
    file.find(get_version, "MKL_Get_Version");
    file.find(sgemm, "cblas_sgemm");
    if (!file.missing().empty()) {
      sgemm = nullptr;
      return;
    }
    set_layer(kSequential);
    Version v;
    get_version(&v);
    version = str(v.major, ".", v.minor, ".", v.update);
  }
};
const Mkl& mkl() {
  static const Mkl library;
  return library;
}

}  // namespace

const std::string& mkl_missing() { return mkl().file.missing(); }
const std::string& mkl_version() { return mkl().version; }

void mkl_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  if (!mkl().sgemm) throw Error("matmul: MKL is not loaded: " + mkl_missing());
  const auto size = [](int64_t x) { return static_cast<int>(x); };
  mkl().sgemm(kRowMajor, transpose_a ? kTransposed : kPlain, transpose_b ? kTransposed : kPlain, size(m),
              size(n), size(k), alpha, a, size(lda), b, size(ldb), beta, c, size(ldc));
}

}  // namespace weft::kernels
